"""A server that is killed or stopped in the middle of an answer: no job is lost, and no webhook is wrong."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.api.serving import on_sqlite
from tests.inference.calling import Caller, a_line, chat, ran, unchunked
from tests.inference.conformance import Answer, Model, OllamaTarget

from .receiver import Receiver
from .server import SECRET, Server, eventually

pytestmark = pytest.mark.xdist_group("processes")

SOON = 15.0


@pytest.fixture
async def target() -> AsyncIterator[OllamaTarget]:
    async with OllamaTarget({"a": Model(), "b": Model()}) as target:
        yield target


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver(SECRET) as receiver:
        yield receiver


@pytest.fixture
async def server(store_url: str, tmp_path: Path, target: OllamaTarget) -> AsyncIterator[Server]:
    settings: dict[str, Any] = {
        "server_drain_seconds": 2,
        "server_data_dir": tmp_path,
        "engine_poll_seconds": 0.1,
        "inference_targets": target.url,
        "inference_probe_seconds": 0.5,
        "inference_lease_seconds": 1.5,
    }
    async with Server(store_url, tmp_path, **settings) as server:
        yield server


@pytest.fixture
async def caller(server: Server) -> AsyncIterator[Caller]:
    timeout = aiohttp.ClientTimeout(total=SOON)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield Caller(server.url, session)


async def told(receiver: Receiver, job_id: str, last: str) -> list[dict[str, Any]]:
    """Wait for a job's last webhook, and return all, each once, in the order of the events."""

    def bodies() -> dict[int, set[bytes]]:
        found: dict[int, set[bytes]] = {}
        for delivery in receiver.taken:
            if delivery.job_id == job_id:
                found.setdefault(delivery.sequence, set()).add(delivery.body)
        return found

    def has_ended() -> bool:
        return any(f'"state":"{last}"'.encode() in body for each in bodies().values() for body in each)

    await eventually(has_ended, SOON, lambda: f"{last} is told, not only {bodies()}")
    assert all(len(copies) == 1 for copies in bodies().values()), "an event was sent with two different bodies"
    return [msgspec.json.decode(body) for _, [body] in sorted(bodies().items())]


def chain(bodies: list[dict[str, Any]]) -> list[tuple[str, str | None, int]]:
    return [(body["state"], body["previous_state"], body["attempt"]) for body in bodies]


async def all_told(caller: Caller, receiver: Receiver, job_id: str) -> list[dict[str, Any]]:
    """Like `told`, but compare it with the log: there is a webhook for every event with a state, and no other."""
    bodies = await told(receiver, job_id, "done")
    events = [event for event in (await caller.get(f"/jobs/{job_id}/events")).good()["events"] if event["state"]]

    def complete() -> bool:
        return {d.sequence for d in receiver.taken if d.job_id == job_id} == {e["sequence"] for e in events}

    await eventually(complete, SOON, "every event was sent")
    bodies = await told(receiver, job_id, "done")
    assert chain(bodies) == [(event["state"], event["previous_state"], event["attempt"]) for event in events]
    assert [body["timestamp"] for body in bodies] == [event["at"] for event in events]
    return bodies


async def test_a_job_whose_answer_was_cut_off_by_a_crash_runs_again(
    server: Server, caller: Caller, target: OllamaTarget, receiver: Receiver
) -> None:
    target.script("a", Answer(chunks=["x", "y", "z"], hold=asyncio.Event(), hold_after=2))
    hook = f"{receiver.url}/hook"
    running = await caller.ask(text="first", state_webhook_url=hook)
    await caller.in_state(running, "working")
    await target.until(lambda: ran(target)[0].chunks == 2)
    waiting = [await caller.ask(text=text, state_webhook_url=hook) for text in ("second", "third")]
    await server.kill()
    await target.until(lambda: ran(target)[0].aborted)
    await server.start()
    jobs = [await caller.ended(job_id, SOON) for job_id in (running, *waiting)]
    assert [job["state"] for job in jobs] == ["done"] * 3
    assert [job["attempt"] for job in jobs] == [2, 1, 1]
    assert jobs[0]["result"]["message"]["content"] == "a says: first"
    assert [each["outcome"] for each in jobs[0]["attempts"]] == ["retry", "succeed"]
    bodies = await all_told(caller, receiver, running)
    assert chain(bodies) == [
        ("queued", None, 1),
        ("loading", "queued", 1),
        ("working", "loading", 1),
        ("queued", "working", 2),
        ("working", "queued", 2),
        ("done", "working", 2),
    ]
    assert bodies[-1]["result"] == jobs[0]["result"]
    assert "laps" in bodies[3]["error"]
    for job_id in waiting:
        assert chain(await all_told(caller, receiver, job_id)) == [
            ("queued", None, 1),
            ("working", "queued", 1),
            ("done", "working", 1),
        ]
    assert receiver.forged == []
    assert sorted(seen.json["messages"][0]["content"] for seen in ran(target)) == ["first", "first", "second", "third"]


@on_sqlite
async def test_a_synchronous_request_that_was_cut_off_by_a_crash_does_not_run_again(
    server: Server, caller: Caller, target: OllamaTarget
) -> None:
    target.script("a", Answer(chunks=["x", "y"], hold=asyncio.Event(), hold_after=1))
    async with a_line(server.url) as line:
        line.send("POST", "/api/chat", msgspec.json.encode(chat()))
        _, headers = await line.head()
        got = await line.until_seen(b'"x"')
        await server.kill()
        assert not unchunked(got + await line.rest())[1]
    await server.start()
    job = await caller.ended(headers["x-chargehand-job"], SOON)
    assert (job["state"], job["attempt"], job["result"]) == ("failed", 1, None)
    assert (await caller.post("/api/chat", chat("again"))).status == 200
    assert len(ran(target)) == 2


async def test_a_stopping_server_requeues_running_jobs_without_using_an_attempt(
    server: Server, caller: Caller, target: OllamaTarget, receiver: Receiver
) -> None:
    target.script("a", Answer(chunks=["x", "y"], hold=asyncio.Event(), hold_after=1))
    job_id = await caller.ask(max_attempts=1, state_webhook_url=f"{receiver.url}/hook")
    await caller.in_state(job_id, "working")
    await target.until(lambda: ran(target)[0].chunks == 1)
    server.terminate()
    assert await server.exit_code(SOON) == 0
    assert ran(target)[0].aborted
    await server.start()
    job = await caller.ended(job_id, SOON)
    assert (job["state"], job["attempt"]) == ("done", 1)
    assert [(each["attempt"], each["outcome"]) for each in job["attempts"]] == [(1, "park"), (1, "succeed")]
    assert chain(await all_told(caller, receiver, job_id)) == [
        ("queued", None, 1),
        ("loading", "queued", 1),
        ("working", "loading", 1),
        ("queued", "working", 1),
        ("working", "queued", 1),
        ("done", "working", 1),
    ]


@on_sqlite
async def test_a_stopping_server_lets_an_answer_finish(server: Server, caller: Caller, target: OllamaTarget) -> None:
    hold = asyncio.Event()
    target.script("a", Answer(chunks=["x", "y"], hold=hold, hold_after=1))
    async with a_line(server.url) as line:
        line.send("POST", "/api/chat", msgspec.json.encode(chat()))
        _, headers = await line.head()
        got = await line.until_seen(b'"x"')
        server.terminate()

        async def is_closed() -> bool:
            try:
                async with caller.session.get(f"{server.url}/healthz"):
                    return False
            except aiohttp.ClientError:
                return True

        await eventually(is_closed, 5, "no connection is accepted any more")
        hold.set()
        body, ended = unchunked(got + await line.rest())
        assert ended
        assert msgspec.json.decode(body.splitlines()[-1])["done"] is True
    assert await server.exit_code(SOON) == 0
    await server.start()
    assert (await caller.seen(headers["x-chargehand-job"]))["state"] == "done"
