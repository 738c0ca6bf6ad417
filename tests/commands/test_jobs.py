"""`chargehand jobs`, for jobs of all doors, and `targets`."""

import json
from pathlib import Path

import aiohttp
import pytest

from chargehand.engine import listing
from tests.api.serving import on_sqlite, serving, talking, until
from tests.commands.running import ended, invoked, running
from tests.inference.conformance import OllamaTarget
from tests.inference.stories import MODELS, a_place

UNKNOWN = "01M7HYHB0CBN67BKJPQJM86ZZZ"


@on_sqlite
async def test_jobs_are_listed_by_state_kind_and_queue_page_by_page(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        assert "No jobs yet: chargehand submit --help" in (await invoked(server.url, "jobs", "list")).good().out
        ids = [await api.submit(payload=number) for number in range(3)]
        (await api.post("/v1/codeq/tasks", {"command": "resize", "payload": 1})).good(202)
        await api.move(await api.claim(), "fail", error="no such\nfile \033[31m")

        told = (await invoked(server.url, "jobs", "list")).good()
        head, *rows = told.out.splitlines()
        assert head.split() == ["JOB", "KIND", "QUEUE", "STATE", "CREATED", "TOOK", "NOTE"]
        assert [row.split()[1] for row in rows] == ["task", "job", "job", "job"]
        assert rows[-1].endswith("no such file  [31m"), "one line, and nothing that a terminal obeys"
        assert told.err == ""

        page = (await invoked(server.url, "jobs", "list", "--kind", "job", "--limit", "2", "--json")).good().json
        assert [job["id"] for job in page["jobs"]] == [ids[2], ids[1]]
        rest = ("jobs", "list", "--kind", "job", "--queue", "q", "--before", page["next"], "--json")
        assert [job["id"] for job in (await invoked(server.url, *rest)).good().json["jobs"]] == [ids[0]]
        failed = (await invoked(server.url, "jobs", "list", "--state", "failed", "--json")).good().json
        assert [(job["id"], job["error"]) for job in failed["jobs"]] == [(ids[0], "no such\nfile \033[31m")]
        more = (await invoked(server.url, "jobs", "list", "--limit", "2")).good()
        assert "There may be more: --before" in more.err
        tasks = (await invoked(server.url, "jobs", "list", "--kind", "task", "--queue", "Resize", "--json")).good().json
        assert [job["queue"] for job in tasks["jobs"]] == ["resize"]
        none = (await invoked(server.url, "jobs", "list", "--kind", "batch")).good()
        assert none.out == "No job matches.\n"


@on_sqlite
async def test_a_list_goes_on_over_pages_that_have_fewer_jobs_than_they_may(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SEARCHED", 10)
    monkeypatch.setattr(listing, "GLANCED", 2)
    async with serving(store_url) as server, talking(server) as api:
        rare = await api.submit(queue="rare")
        for _ in range(25):
            await api.submit()
        page = (await api.get("/engine/jobs?queue=rare")).good()
        assert (page["jobs"], page["next"] > rare) == ([], True)
        for limit in ("1", "20"):
            told = await invoked(
                server.url, "jobs", "list", "--kind", "job", "--queue", "rare", "--limit", limit, "--json"
            )
            assert [job["id"] for job in told.good().json["jobs"]] == [rare]


@on_sqlite
async def test_a_job_is_shown_cancelled_and_retried(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        first, second = await api.submit(payload={"big": 1}), await api.submit()
        shown = (await invoked(server.url, "jobs", "show", first.lower())).good().out
        assert "waits for  worker" in shown
        assert '  "big": 1' in shown
        assert "submit  queued" in shown
        done = (await invoked(server.url, "jobs", "cancel", first, second)).good()
        assert done.out == f"{first} is cancelled.\n{second} is cancelled.\n"
        refused = (await invoked(server.url, "jobs", "cancel", first)).good(2)
        assert "is cancelled; cancel is not possible from there" in refused.err
        shown = (await invoked(server.url, "jobs", "show", first)).good().out
        assert f"to try it again: chargehand jobs retry {first}" in shown
        assert (await invoked(server.url, "jobs", "retry", first, "--json")).good().json["state"] == "queued"
        told = (await invoked(server.url, "jobs", "show", first, "--json")).good().json
        assert [event["move"] for event in told["events"]] == ["submit", "cancel", "requeue"]
        assert (told["state"], told["payload"], told["deliveries"]) == ("queued", {"big": 1}, [])


@on_sqlite
async def test_a_refused_id_does_not_stop_the_others(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        first, second = await api.submit(), await api.submit()
        (await invoked(server.url, "jobs", "cancel", first, "123")).good(2)
        assert (await api.job(first))["state"] == "queued", "all ids are looked at before anything is done"
        told = (await invoked(server.url, "jobs", "cancel", first, UNKNOWN, second)).good(1)
        assert told.out == f"{first} is cancelled.\n{second} is cancelled.\n"
        assert told.err == f"chargehand: there is no job {UNKNOWN}; to list what exists: chargehand jobs list\n"
        again = (await invoked(server.url, "jobs", "retry", UNKNOWN, first, second, "--json")).good(1)
        assert [job["id"] for job in again.objects] == [first, second]
        assert json.loads(again.err)["job_id"] == UNKNOWN
        assert (await invoked(server.url, "jobs", "retry", first, second)).good(2).out == "", "none was"


@on_sqlite
async def test_all_json_lines_of_a_job_that_is_retried_and_watched_have_a_type(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        job_id = await api.submit()
        (await invoked(server.url, "jobs", "cancel", job_id)).good()
        async with running(server.url, "jobs", "retry", job_id, "--watch", "--json") as process:
            assert process.stdout is not None
            first = json.loads(await process.stdout.readline())
            assert first == {"type": "retried", "job_id": job_id, "kind": "job"}
            await api.move(await api.claim(), "succeed", result={"n": 1})
            assert [line["type"] for line in (await ended(process)).good().objects] == [
                "event",
                "event",
                "event",
                "end",
            ]


@on_sqlite
async def test_a_cancelled_task_gets_its_attempts_again(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        task = (await api.post("/v1/codeq/tasks", {"command": "Resize", "payload": 1})).good(202)["id"]
        (await invoked(server.url, "jobs", "cancel", task)).good()
        assert (await invoked(server.url, "jobs", "retry", task)).good().out == f"{task} is queued again.\n"
        shown = (await invoked(server.url, "jobs", "show", task)).good().out
        assert "queue      Resize" in shown
        refused = (await invoked(server.url, "jobs", "retry", task, task, "--watch")).good(2)
        assert "one job can be watched at a time" in refused.err


@on_sqlite
async def test_an_unknown_job_names_the_command_that_lists(store_url: str) -> None:
    async with serving(store_url) as server:
        for words in (("watch",), ("jobs", "show"), ("jobs", "cancel"), ("jobs", "retry")):
            refused = (await invoked(server.url, *words, UNKNOWN)).good(2)
            told = f"chargehand: there is no job {UNKNOWN}; to list what exists: chargehand jobs list\n"
            assert refused.err == told
            assert "is not the id of a job" in (await invoked(server.url, *words, "123")).good(2).err


async def test_a_chat_is_shown_by_its_messages_and_answer(tmp_path: Path) -> None:
    async with OllamaTarget(MODELS) as target, a_place(tmp_path, target) as place:
        done = await place.run(text="one two")
        shown = (await invoked(place.url, "jobs", "show", done["id"])).good().out
        assert "  user: one two\n" in shown
        assert "answer\n  " in shown
        assert f"  {done['result']['message']['content']}" in shown
        told = (await invoked(place.url, "jobs", "show", done["id"], "--json")).good().json
        assert told["door"]["evidence"]["target"] == "laptop"

        up = (await invoked(place.url, "targets")).good().out
        assert "laptop  up " in up
        assert "a:latest; 2 slots" in up
        await target.stop()
        await until(lambda: not place.server.inference.scheduler.targets["laptop"].up)  # type: ignore[union-attr]
        away = (await invoked(place.url, "targets")).good().out
        assert "laptop  away " in away
        assert "jobs for its models wait, and run when it is back" in away
        [told] = (await invoked(place.url, "targets", "--json")).good().json["targets"]
        assert told["state"] == "away"
        job_id = await place.ask(text="three")
        shown = (await invoked(place.url, "jobs", "show", job_id)).good().out
        assert "waits for  laptop is away" in shown


async def test_a_batch_is_shown_and_cancelled_as_any_job_and_cannot_be_retried(tmp_path: Path) -> None:
    async with OllamaTarget(MODELS) as target, a_place(tmp_path, target) as place:
        body = {"model": "a", "messages": [{"role": "user", "content": "one"}]}
        line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", json.dumps(line).encode(), filename="lines.jsonl")
        file = (await place.call("POST", "/v1/files", data=form)).good()["id"]
        wish = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = (await place.post("/v1/batches", wish)).good()["id"]
        told = (await invoked(place.url, "watch", batch)).good()
        assert json.loads(told.out)["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
        refused = (await invoked(place.url, "jobs", "cancel", batch)).good(2)
        assert refused.err == f"chargehand: the batch {batch} has ended; there is nothing to cancel\n"
        assert "submit its file again" in (await invoked(place.url, "jobs", "retry", batch)).good(2).err


@on_sqlite
async def test_without_targets_the_command_says_how_to_add_one(store_url: str) -> None:
    async with serving(store_url) as server:
        assert "chargehand serve --target http" in (await invoked(server.url, "targets")).good().out
    async with serving(store_url, {"inference.enabled": False}) as server:
        assert "is the door enabled" in (await invoked(server.url, "targets")).good(2).err
