"""Flows by the client."""

from collections.abc import AsyncIterator

import pytest

from chargehand.app import Server
from chargehand.client import AsyncClient, JobFailed
from chargehand.client.types.flows import After, NewStep
from tests.api.serving import on_sqlite, serving


@pytest.fixture
async def server(store_url: str) -> AsyncIterator[Server]:
    async with serving(store_url) as running:
        yield running


def a_step(name: str, *after: str | After) -> NewStep:
    return NewStep(name, "engine", {"queue": name, "payload": None}, after)


async def end(client: AsyncClient, queue: str, *, fails: bool = False) -> None:
    [job] = await client.engine.claim([queue], wait_seconds=10)
    if fails:
        await client.engine.fail(job.id, job.lease, "broken")
    else:
        await client.engine.succeed(job.id, job.lease, 1)


@on_sqlite
async def test_a_flow_is_submitted_read_waited_for_and_tried_again(store_url: str, server: Server) -> None:
    async with AsyncClient(server.url) as client:
        flow_id = (await client.flows.submit([a_step("a"), a_step("b", "a"), a_step("c", After("b", "failed"))])).job_id
        await end(client, "a")
        await end(client, "b", fails=True)
        assert [step.state async for step in client.flows.steps(flow_id)] == ["succeeded", "failed", "queued"]
        await end(client, "c", fails=True)
        with pytest.raises(JobFailed, match="step 'c' failed: broken"):
            await client.flows.wait(flow_id)
        await client.flows.retry(flow_id, "b")
        await end(client, "b")
        flow = await client.flows.wait(flow_id)
        assert (flow.state, flow.counts) == ("succeeded", {"succeeded": 2, "skipped": 1})
        assert [found.id async for found in client.flows.find(state="succeeded")] == [flow_id]
        assert [event.step async for event in client.flows.events(flow_id) if event.step][-2:] == ["b", "c"]


@on_sqlite
async def test_a_flow_is_cancelled(store_url: str, server: Server) -> None:
    async with AsyncClient(server.url) as client:
        flow_id = (await client.flows.submit([a_step("a"), a_step("b", "a")])).job_id
        assert (await client.flows.cancel(flow_id)).state == "cancelled"
