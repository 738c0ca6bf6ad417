"""Two nodes on one database, in front of one target."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from chargehand.app import Server
from tests.api.serving import Api, serving, talking, until
from tests.engine.given import until_met
from tests.inference.conformance import Model, OllamaTarget

Nodes = tuple[Api, Api]


@pytest.fixture
async def target() -> AsyncIterator[OllamaTarget]:
    async with OllamaTarget(models={"a": Model()}, parallel=4) as running:
        running.habits.token_seconds = 0.01
        yield running


@pytest.fixture
async def nodes(postgres_url: str, target: OllamaTarget) -> AsyncIterator[Nodes]:
    settings = {"inference.targets": [{"url": target.url, "name": "laptop", "parallel": 1}]}
    async with (
        serving(postgres_url, settings) as one,
        serving(postgres_url, settings) as other,
        talking(one) as api,
        talking(other) as other_api,
    ):
        await until(lambda: all(is_there(node) for node in (one, other)))
        await until_met(one.store, other.store)
        yield api, other_api


def is_there(server: Server) -> bool:
    return server.inference is not None and server.inference.scheduler.has_live_target("a:latest")


async def test_a_synchronous_call_is_answered_by_the_node_that_got_it(nodes: Nodes) -> None:
    body = {"model": "a", "prompt": "one two three"}
    answers = await asyncio.gather(*[nodes[number % 2].post("/api/generate", body) for number in range(16)])
    assert [answer.status for answer in answers] == [200] * 16
    assert all(b'"done":true' in answer.body for answer in answers)


async def test_a_job_runs_on_any_node_and_can_be_read_at_any_node(nodes: Nodes) -> None:
    body = {"model": "a", "prompt": "one two three"}
    ids = [(await nodes[0].post("/jobs", body)).good(202)["job_id"] for _ in range(8)]

    async def all_done() -> bool:
        jobs = [(await nodes[1].get(f"/jobs/{job_id}")).good() for job_id in ids]
        return all(job["state"] == "done" for job in jobs)

    assert await until(all_done)


async def test_a_caller_learns_of_a_cancel_at_another_node(nodes: Nodes, target: OllamaTarget) -> None:
    target.habits.token_seconds = 0.2
    target.habits.tokens = 50
    running = asyncio.create_task(nodes[0].post("/api/generate", {"model": "a", "prompt": "first"}))

    async def working() -> bool:
        return bool((await nodes[1].get("/jobs?state=working&model=a")).good()["jobs"])

    await until(working)
    waiting = asyncio.create_task(nodes[0].post("/api/generate", {"model": "a", "prompt": "second"}))

    async def queued() -> str | None:
        jobs = (await nodes[1].get("/jobs?state=queued&model=a")).good()["jobs"]
        return str(jobs[0]["id"]) if jobs else None

    await nodes[1].call("DELETE", f"/jobs/{await until(queued)}")
    answer = await asyncio.wait_for(waiting, 10)
    assert (answer.status, b"cancelled" in answer.body) == (502, True)
    running.cancel()
    await asyncio.wait({running})
