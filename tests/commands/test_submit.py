"""`chargehand submit` and `watch` against a real server: every door, every exit code, for people, pipes and programs."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import Api, on_sqlite, serving, talking, until
from tests.commands.proxy import wire
from tests.commands.running import chargehand, ended, invoked, running
from tests.e2e.server import Server
from tests.inference.conformance import Habits, OllamaTarget
from tests.inference.stories import MODELS, a_place
from tests.provisioning.lab import RECIPE, SERIAL, lab
from tests.webhooks.receiver import receiving

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.timeout(90)]
TASKS = "/v1/codeq/tasks"


async def a_task(api: Api, command: str) -> dict[str, Any]:
    """Claim the task as a worker, once it is there."""

    async def claimed() -> Any:
        answer = await api.post(f"{TASKS}/claim", {"commands": [command]})
        return answer.json if answer.status == 200 else None

    task: dict[str, Any] = await until(claimed)
    return task


# chats ------------------------------------------------------------------------------------------------------------------


async def test_the_answer_of_a_chat_goes_to_stdout_and_its_events_to_stderr(tmp_path: Path) -> None:
    async with OllamaTarget(MODELS) as target, a_place(tmp_path, target) as place:
        words = ("submit", "--model", "a", "-", "--system", "Be brief.", "--option", "temperature=0", "--watch")
        told = await chargehand(place.url, *words, stdin=b"one two three")
        [seen] = [each for each in target.at("/api/chat") if each.json.get("messages")]
        assert [each["role"] for each in seen.json["messages"]] == ["system", "user"]
        assert seen.json["options"] == {"temperature": 0}
        job_id = told.good().err.splitlines()[0].removeprefix("job ")
        job = await place.seen(job_id)
        assert told.out == job["result"]["message"]["content"] + "\n"
        assert [line.split()[1] for line in told.err.splitlines()[1:-1]] == ["queued", "loading", "working", "done"]
        assert told.err.splitlines()[-1].startswith(f"{job_id} succeeded (")
        assert "\033" not in told.out + told.err

        # The queue is paused until the command listens, so that no event is missed.
        (await place.call("PUT", "/engine/queues/inference/a", {"paused": True})).good()
        async with running(place.url, "submit", "-m", "a", "four five", "--watch", "--json") as process:
            assert process.stdout is not None
            first = [await process.stdout.readline() for _ in range(2)]
            (await place.call("PUT", "/engine/queues/inference/a", {"paused": False})).good()
            lines = [*map(json.loads, first), *(await ended(process)).good().objects]
        assert [lines[0]["type"], lines[0]["kind"], lines[-1]["type"]] == ["submitted", "inference", "end"]
        assert [each["sequence"] for each in lines if each["type"] == "event"] == [1, 2, 3, 4]
        tokens = "".join(each["text"] for each in lines if each["type"] == "token")
        assert tokens == lines[-1]["result"]["message"]["content"]
        assert lines[-1]["outcome"] == "succeeded"
        # A job that ended long ago can be watched too, and shows the same answer.
        again = (await invoked(place.url, "watch", lines[0]["job_id"])).good()
        assert again.out == f"{tokens}\n"


async def test_a_lost_connection_repeats_no_token(tmp_path: Path) -> None:
    async with (
        OllamaTarget(MODELS, Habits(token_seconds=0.1, tokens=20)) as target,
        a_place(tmp_path, target) as place,
        wire(place.url) as line,
        running(line.url, "submit", "-m", "a", "words", "--watch", "--json") as process,
    ):
        assert process.stdout is not None
        lines: list[Any] = []
        while sum(each["type"] == "token" for each in lines) < 3:
            lines.append(json.loads(await process.stdout.readline()))
        line.cut()
        told = (await ended(process)).good()
        assert "the server is back" in told.err or told.err == ""
        lines += told.objects
        tokens = [each for each in lines if each["type"] == "token"]
        assert "".join(each["text"] for each in tokens) == lines[-1]["result"]["message"]["content"]
        assert all("restarted" not in each for each in tokens)


async def test_a_chat_that_fails_says_why_and_how_to_retry_it(tmp_path: Path) -> None:
    async with OllamaTarget(MODELS) as target, a_place(tmp_path, target) as place:
        told = await invoked(place.url, "submit", "-m", "embedder", "words", "--watch", "--max-attempts", "1")
        job_id = told.good(1).err.splitlines()[0].removeprefix("job ")
        assert told.out == ""
        assert f"{job_id} failed: " in told.err.splitlines()[-1]
        assert told.err.endswith(f"to try it again: chargehand jobs retry {job_id}\n")


# tasks ------------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_task_is_watched_with_its_progress_and_its_outcome_is_the_exit_code(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        words = ("submit", "-c", "resize", '{"size": 12345678901234567890}', "--priority", "3", "--watch")
        async with running(server.url, *words) as process:
            task = await a_task(api, "resize")
            assert task["payload"] == '{"size": 12345678901234567890}'
            (await api.post(f"{TASKS}/{task['id']}/progress", {"percent": 50, "message": "half"})).good()
            done = {"status": "COMPLETED", "result": {"file": "small.png"}}
            (await api.post(f"{TASKS}/{task['id']}/result", done)).good()
            told = (await ended(process)).good()
        assert json.loads(told.out) == {"file": "small.png"}
        assert "50 % half" in told.err
        assert "COMPLETED" in told.err

        async with running(server.url, *words) as process:
            task = await a_task(api, "resize")
            (await api.post(f"{TASKS}/{task['id']}/result", {"status": "FAILED", "error": "no such file"})).good()
            assert "failed: no such file; to try it again" in (await ended(process)).good(1).err


# jobs of the engine -----------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_job_from_a_file_has_a_webhook_and_is_made_once(store_url: str, tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"a": [1, 2]}')
    async with serving(store_url) as server, talking(server) as api, receiving() as receiver:
        words = ("submit", "--queue", "q", f"@{file}", "--idempotency-key", "the first", "--webhook", receiver.url())
        first = (await invoked(server.url, *words)).good()
        again = (await invoked(server.url, *words, "--json")).good().json
        assert first.out == f"{again['job_id']}\n"
        assert first.err == "", "hints are for terminals"
        assert (await api.job(again["job_id"]))["payload"] == {"a": [1, 2]}
        await until(lambda: receiver.hooks)
        assert receiver.hooks[0].job_id == again["job_id"]


async def test_a_watch_goes_on_over_a_restart_of_the_server(tmp_path: Path) -> None:
    async with (
        Server(f"sqlite:///{tmp_path}/chargehand.db", tmp_path) as server,
        running(server.url, "submit", "--queue", "q", "1", "--watch") as process,
    ):
        assert process.stderr is not None
        job_id = (await process.stderr.readline()).decode().split()[1]
        assert b"queued" in await process.stderr.readline()
        await server.kill()
        assert b"the server is away" in await process.stderr.readline()
        await server.start()
        (await chargehand(server.url, "jobs", "cancel", job_id)).good()
        told = (await ended(process)).good(3)
        assert f"{job_id} was cancelled" in told.err


@on_sqlite
async def test_ctrl_c_ends_the_watch_and_not_the_job(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        async with running(server.url, "submit", "--queue", "q", "1", "--watch") as process:
            assert process.stderr is not None
            job_id = (await process.stderr.readline()).decode().split()[1]
            assert b"queued" in await process.stderr.readline()
            process.send_signal(signal.SIGINT)
            told = (await ended(process)).good(130)
        assert f"Job {job_id} continues. To watch it again: chargehand watch {job_id}" in told.err
        assert (await api.job(job_id))["state"] == "queued"


# machines ---------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_recipe_is_submitted_watched_cancelled_and_retried_as_any_job(store_url: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(RECIPE))
    async with lab(store_url, tmp_path) as room:
        url = room.server.url
        refused = await invoked(url, "submit", "--server", SERIAL, str(recipe))
        assert f"there is no server {SERIAL}; register it" in refused.good(2).err
        await room.register()
        told = (await chargehand(url, "submit", "--server", SERIAL, str(recipe), "--watch")).good()
        assert told.out.splitlines()[-1].startswith(f"{SERIAL} is complete, succeeded after ")
        job_id = told.err.splitlines()[0].removeprefix("job ")
        lines = (await invoked(url, "watch", job_id, "--json")).good().objects
        assert {each["type"] for each in lines} == {"event", "end"}
        assert lines[-1]["outcome"] == "succeeded"
        shown = (await invoked(url, "jobs", "show", job_id)).good().out
        assert "complete, succeeded" in shown
        refused = await invoked(url, "jobs", "retry", job_id)
        assert "only one that failed or was cancelled can be tried again" in refused.good(2).err
