"""`chargehand flows`: submit, list, show, watch, cancel and retry; and what `jobs` and `watch` say of flows and their steps."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import Api, on_sqlite, serving, talking, until
from tests.api.test_flows import a_step, flow_of, states, submit, succeed
from tests.commands.running import ended, invoked, running
from tests.commands.terminal import terminal
from tests.webhooks.receiver import receiving

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.timeout(90)]
UNKNOWN = "01M7HYHB0CBN67BKJPQJM86ZZZ"
LONG = "a-name-that-is-longer-than-a-column-may-be"


def a_flow(*steps: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"steps": steps, **more}).encode()


async def fail(api: Api, queue: str, error: str) -> None:
    (await api.move(await api.claim(queues=[queue]), "fail", error=error)).good()


# submitting -------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_flow_from_a_file_is_submitted_once_with_name_and_webhook(store_url: str, tmp_path: Path) -> None:
    file = tmp_path / "flow.json"
    big = a_step("a", payload={"n": 1})
    file.write_bytes(
        a_flow(big, name="of the file", metadata={"n": 1}).replace(b'"n": 1', b'"n": 12345678901234567890123')
    )
    async with serving(store_url) as server, talking(server) as api, receiving() as receiver:
        words = ("flows", "submit", str(file), "--idempotency-key", "k", "--webhook", receiver.url())
        first = (await invoked(server.url, *words, "--name", "nightly")).good()
        again = (await invoked(server.url, *words, "--name", "nightly", "--json")).good().json
        assert again == {"type": "submitted", "job_id": first.out.strip(), "kind": "flow"}
        flow = await flow_of(api, again["job_id"])
        assert (flow["name"], flow["metadata"]) == ("nightly", {"n": 12345678901234567890123})
        assert (await api.claim(queues=["a"]))["payload"] == {"n": 12345678901234567890123}
        await until(lambda: receiver.hooks)
        assert receiver.hooks[0].job_id == again["job_id"]
        assert "another" in (await invoked(server.url, *words)).good(2).err, "the name of the file is another flow"


@on_sqlite
async def test_a_flow_that_cannot_work_is_refused_with_the_field(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        for body, says in (
            (a_flow(a_step("a", "b"), a_step("b", "a")), "steps[1].after[0]: closes a circle: a after b after a"),
            (a_flow(a_step("a") | {"door": "tasks"}), "steps[0].body"),
            (a_flow(), "steps: "),
            (a_flow(a_step("a"), stepz=1), "standard input is not a flow: Object contains unknown field `stepz`"),
            (b"[]", "it is an object with `steps`"),
            (b'{"steps"', "standard input is not JSON"),
        ):
            assert says in (await invoked(server.url, "flows", "submit", "-", stdin=body)).good(2).err
        circle = a_flow(a_step("a", "a"))
        told = json.loads((await invoked(server.url, "flows", "submit", "-", "--json", stdin=circle)).good(2).err)
        assert told["error"] == "request.invalid_field"
        assert told["message"] == "steps[0].after[0]: closes a circle: a after a"
        assert (await api.get("/engine/flows")).good()["jobs"] == []


# watching ---------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_flow_is_submitted_and_followed_to_its_end(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        body = a_flow(a_step("a"), a_step("b", "a"), a_step("c", {"step": "a", "on": "failed"}))
        async with running(server.url, "flows", "submit", "-", "--wait") as process:
            assert process.stdin is not None
            process.stdin.write(body)
            process.stdin.write_eof()
            flow_id = await until(lambda: _newest(api))
            await succeed(api, "a")
            await succeed(api, "b")
            told = (await ended(process)).good()
        assert told.err.splitlines()[0] == f"flow {flow_id}"
        shown = [line.split(maxsplit=1)[1] for line in told.err.splitlines()[1:-1]]
        assert shown[-4:] == [
            "running       step a succeeded",
            "running       step c was skipped",
            "running       step b succeeded",
            "succeeded",
        ]
        assert told.err.splitlines()[-1] == f"{flow_id} succeeded"
        assert json.loads(told.out) == {"steps": 3, "succeeded": 2, "failed": 0, "skipped": 1}
        lines = (await invoked(server.url, "flows", "watch", flow_id, "--json")).good().objects
        assert [line["step"] for line in lines[:-1] if line["move"] == "note"] == ["a", "c", "b"]
        assert (lines[-1]["type"], lines[-1]["outcome"]) == ("end", "succeeded")


async def _newest(api: Api) -> str:
    flows = (await api.get("/engine/flows")).good()["jobs"]
    return str(flows[0]["id"]) if flows else ""


@on_sqlite
async def test_the_end_of_a_flow_is_the_exit_code(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        flow_id = await submit(api, a_step("a"), a_step("b", "a"))
        await fail(api, "a", "no disk")
        for words in (("flows", "watch"), ("watch",)):
            told = (await invoked(server.url, *words, flow_id)).good(1)
            again = f"to try it again: chargehand flows retry {flow_id}"
            assert told.err.splitlines()[-1] == f"{flow_id} failed: step 'a' failed: no disk; {again}"
            assert told.out == ""
        cancelled = await submit(api, a_step("a"))
        (await invoked(server.url, "flows", "cancel", cancelled)).good()
        assert "was cancelled" in (await invoked(server.url, "flows", "watch", cancelled)).good(3).err


@on_sqlite
async def test_a_terminal_shows_how_many_steps_have_ended(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api, terminal() as (pipes, seen, _):
        environ = pipes.pop("environ")
        flow_id = await submit(api, a_step("a"), a_step("b", "a"), a_step("c", "b"))
        async with running(server.url, "flows", "watch", flow_id, environ=environ, **pipes) as process:
            await until(lambda: b"0 of 3 steps have ended; 1 queued, 2 waiting" in b"".join(seen))
            await succeed(api, "a")
            await until(lambda: b"1 of 3 steps have ended; 1 queued, 1 waiting" in b"".join(seen))
            await until(lambda: b"step a succeeded" in b"".join(seen))
            await succeed(api, "b")
            await succeed(api, "c")
            (await ended(process)).good()
        assert b"".join(seen).decode().rstrip().removesuffix("\033[0m").endswith(f"{flow_id} succeeded")


# listing and showing ----------------------------------------------------------------------------------------------------


@on_sqlite
async def test_flows_are_listed_by_state_and_name_page_by_page(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        url = server.url
        assert "No flows yet: chargehand flows submit" in (await invoked(url, "flows", "list")).good().out
        ids = [await submit(api, a_step("a"), name=name) for name in ("day", "night", "night")]
        await fail(api, "a", "no disk")
        head, *rows = (await invoked(url, "flows", "list")).good().out.splitlines()
        assert head.split() == ["FLOW", "NAME", "STATE", "CREATED", "TOOK", "NOTE"]
        assert [row.split()[:3] for row in rows] == [
            [ids[2], "night", "running"],
            [ids[1], "night", "running"],
            [ids[0], "day", "failed"],
        ]
        assert rows[-1].endswith("step 'a' failed: no disk")
        page = (await invoked(url, "flows", "list", "--name", "night", "--limit", "1", "--json")).good().json
        assert [flow["id"] for flow in page["flows"]] == [ids[2]]
        rest = (await invoked(url, "flows", "list", "--name", "night", "--before", page["next"], "--json")).good().json
        assert ([flow["id"] for flow in rest["flows"]], rest["next"]) == ([ids[1]], None)
        failed = (await invoked(url, "flows", "list", "--state", "failed", "--json")).good().json
        assert [flow["failed_step"] for flow in failed["flows"]] == ["a"]
        assert (await invoked(url, "flows", "list", "--name", "none")).good().out == "No flow matches.\n"
        refused = (await invoked(url, "flows", "list", "--state", "queued")).good(2)
        assert "it must be one of running, succeeded, failed, cancelled" in refused.err


@on_sqlite
async def test_a_flow_is_shown_with_its_steps_in_eighty_columns(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        task = {"name": "task", "door": "tasks", "body": {"command": "c", "payload": 1}, "after": [LONG, "b"]}
        either = a_step("either", "b", LONG, need="any")
        flow_id = await submit(api, a_step("a"), a_step("b"), a_step(LONG), a_step("d", "a"), task, either)
        await fail(api, "a", "no such\nfile \033[31m" + "x" * 500)
        await api.claim(queues=["b"])
        shown = (await invoked(server.url, "flows", "show", flow_id)).good().out
        assert "state    running\n" in shown
        assert "steps    6: 1 failed, 1 skipped, 1 running, 1 queued, 2 waiting\n" in shown
        lines = shown.splitlines()
        start = lines.index("") + 1
        rows = lines[start : start + 7]
        assert max(map(len, rows)) == 80
        assert [row.split()[:4] for row in rows] == [
            ["STEP", "NAME", "DOOR", "STATE"],
            ["0", "a", "engine", "failed"],
            ["1", "b", "engine", "running"],
            ["2", "a-name-that-is-longer…", "engine", "queued"],
            ["3", "d", "engine", "skipped"],
            ["4", "task", "tasks", "waiting"],
            ["5", "either", "engine", "waiting"],
        ]
        notes = [row[rows[0].index("NOTE") :] for row in rows]
        assert notes[1].startswith("no such file  [31mxxx")
        assert notes[1].endswith("x…")
        assert notes[3:5] == ["waits for worker", "step 'a' failed"]
        assert [note[:20] for note in notes[5:]] == ["waits for a-name-tha", "waits for one of b, "]
        steps = (await flow_of(api, flow_id))["steps"]
        assert f"failed\n  a  chargehand jobs show {steps[0]['job_id']}\n" in shown
        told = (await invoked(server.url, "flows", "show", flow_id.lower(), "--json")).good().json
        assert told == await flow_of(api, flow_id)


@on_sqlite
async def test_all_steps_of_a_large_flow_are_shown(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        flow_id = await submit(api, a_step("first"), *[a_step(f"s{number}", "first") for number in range(600)])
        for words in (("flows", "show"), ("jobs", "show")):
            shown = (await invoked(server.url, *words, flow_id)).good().out.splitlines()
            assert shown[-1].split() == ["600", "s599", "engine", "waiting", "waits", "for", "first"]
        told = (await invoked(server.url, "flows", "show", flow_id, "--json")).good().json
        assert ([step["number"] for step in told["steps"]], told["next"]) == ([*range(601)], None)


# cancelling and trying again --------------------------------------------------------------------------------------------


@on_sqlite
async def test_flows_are_cancelled_and_a_refused_id_does_not_stop_the_others(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        first, second = await submit(api, a_step("a"), a_step("b", "a")), await submit(api, a_step("a"))
        (await invoked(server.url, "flows", "cancel", first, "123")).good(2)
        assert await states(api, first) == {"a": "queued", "b": "waiting"}
        told = (await invoked(server.url, "flows", "cancel", first, UNKNOWN, second)).good(1)
        assert told.out == f"{first} is cancelled.\n{second} is cancelled.\n"
        assert told.err == f"chargehand: there is no flow {UNKNOWN}; to list what exists: chargehand flows list\n"
        assert await states(api, first) == {"a": "cancelled", "b": "cancelled"}
        shown = (await invoked(server.url, "flows", "show", first)).good().out
        assert shown.endswith(f"\nto try it again: chargehand flows retry {first}\n")
        done = await submit(api, a_step("z"))
        await succeed(api, "z")
        assert (
            "has ended; there is nothing to cancel" in (await invoked(server.url, "flows", "cancel", done)).good(2).err
        )


@on_sqlite
async def test_a_flow_is_tried_again_from_a_step_and_watched(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        url = server.url
        flow_id = await submit(api, a_step("a"), a_step("b", "a"), a_step("c", "b"))
        early = (await invoked(url, "flows", "retry", flow_id)).good(2)
        assert "only one that failed or was cancelled can be tried again" in early.err
        await succeed(api, "a")
        await fail(api, "b", "no disk")
        again = f"chargehand flows retry {flow_id} --from b\n"
        assert (await invoked(url, "flows", "show", flow_id)).good().out.endswith(again)
        wrong = (await invoked(url, "flows", "retry", flow_id, "--from", "x")).good(2)
        assert wrong.err == "chargehand: from: there is no step 'x' in this flow\n"
        async with running(url, "flows", "retry", flow_id, "--from", "b", "--watch", "--json") as process:
            assert process.stdout is not None
            first = json.loads(await process.stdout.readline())
            assert first == {"type": "retried", "job_id": flow_id, "kind": "flow"}
            assert await states(api, flow_id) == {"a": "succeeded", "b": "queued", "c": "waiting"}
            await succeed(api, "b")
            await fail(api, "c", "no disk either")
            lines = (await ended(process)).good(1).objects
        assert [line["move"] for line in lines[:-1]] == ["requeue", "claim", "note", "note", "fail"]
        told = (await invoked(url, "flows", "retry", flow_id, "--json")).good().json
        assert (told["id"], told["state"]) == (flow_id, "running")
        assert await states(api, flow_id) == {"a": "succeeded", "b": "succeeded", "c": "queued"}


@on_sqlite
async def test_an_unknown_flow_names_the_command_that_lists(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        job = await api.submit()
        for command in ("show", "watch", "cancel", "retry"):
            for other in (UNKNOWN, job):
                refused = (await invoked(server.url, "flows", command, other)).good(2)
                assert (
                    refused.err == f"chargehand: there is no flow {other}; to list what exists: chargehand flows list\n"
                )
            assert "is not the id of a flow" in (await invoked(server.url, "flows", command, "123")).good(2).err


# as jobs ----------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_flow_is_listed_shown_cancelled_and_retried_as_any_job(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api, receiving() as receiver:
        url = server.url
        flow_id = await submit(api, a_step("a"), a_step("b", "a"), name="night", webhook={"url": receiver.url()})
        await api.deliveries("state=delivered", 2)
        [listed] = (await invoked(url, "jobs", "list", "--kind", "flow", "--json")).good().json["jobs"]
        assert (listed["id"], listed["queue"]) == (flow_id, "night")
        shown = (await invoked(url, "jobs", "show", flow_id)).good().out
        assert "waiting  waits for a\n" in shown
        assert "webhooks: 2 of 2 delivered\n" in shown
        told = (await invoked(url, "jobs", "show", flow_id, "--json")).good().json
        assert [step["name"] for step in told["door"]["steps"]] == ["a", "b"]
        assert (await invoked(url, "jobs", "cancel", flow_id)).good().out == f"{flow_id} is cancelled.\n"
        assert (await invoked(url, "jobs", "retry", flow_id)).good().out == f"{flow_id} is running again.\n"
        assert await states(api, flow_id) == {"a": "queued", "b": "waiting"}


@on_sqlite
async def test_a_step_says_that_it_waits_for_other_steps_and_is_tried_again_with_its_flow(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api, terminal() as (pipes, seen, _):
        url, environ = server.url, pipes.pop("environ")
        task = {"name": "task", "door": "tasks", "body": {"command": "c", "payload": 1}, "after": ["a"]}
        flow_id = await submit(api, a_step("a"), task)
        first, step = [each["job_id"] for each in (await flow_of(api, flow_id))["steps"]]
        listed = (await invoked(url, "jobs", "list", "--kind", "task")).good().out
        assert listed.endswith("waits for other steps of its flow\n")
        shown = (await invoked(url, "jobs", "show", step)).good().out
        assert "waits for  other steps of its flow\n" in shown
        assert f"step of    {flow_id}, a flow: chargehand flows show {flow_id}\n" in shown
        async with running(url, "watch", step, environ=environ, **pipes) as process:
            await until(lambda: b"other steps of its flow" in b"".join(seen))
            await fail(api, "a", "no disk")
            (await ended(process)).good(3)
        again = f"chargehand flows retry {flow_id}"
        assert f"to try it again: {again}\n" in (await invoked(url, "jobs", "show", first)).good().out
        assert f"to try it again: {again}\n" in (await invoked(url, "watch", first)).good(1).err
        refused = (await invoked(url, "jobs", "retry", first)).good(2)
        assert (
            f"is a step of the flow {flow_id}, which is tried again from a step on: {again} --from STEP" in refused.err
        )
