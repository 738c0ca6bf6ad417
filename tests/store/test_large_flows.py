"""The largest flow that may be submitted: ten thousand steps, one before all others but one, which comes after those."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

from chargehand.engine.flow import CancelFlow, NewFlow, RetryFlow
from chargehand.engine.job import State
from chargehand.engine.moves import Change, Moved
from chargehand.engine.reads import StepFilter
from chargehand.engine.store import Store
from tests.store.flow_given import a_flow, end, id_of
from tests.store.given import TENANT, get, seen, submit

T = TypeVar("T")
STEPS = 10_000
LONG = 25.0  # seconds: far more than it takes on a busy machine, far less than what grows with the square of the steps


def the_largest() -> NewFlow:
    between = [f"s{number}" for number in range(1, STEPS - 1)]
    graph = {"first": [], **{name: ["first"] for name in between}, "last": [f"{name}:finished" for name in between]}
    return a_flow(graph)


@asynccontextmanager
async def others_are_served(store: Store) -> AsyncIterator[None]:
    """Submit jobs all the time: PostgreSQL's store fails whoever waits for a statement that does not end."""

    async def others() -> None:
        while True:
            await submit(store)
            await asyncio.sleep(0.01)

    task = asyncio.create_task(others())
    yield
    assert not task.done(), task.exception()
    task.cancel()


async def within(doing: Awaitable[T]) -> T:
    begin = time.monotonic()
    done = await doing
    assert time.monotonic() - begin < LONG
    return done


async def counts(store: Store, flow: NewFlow) -> dict[str, int]:
    found = (await store.list_steps(StepFilter(flow.job.id, limit=1, counted=True))).counts
    return {state: count for (_, state), count in found.items()}


async def test_the_largest_flow_is_submitted_released_and_ends(store: Store) -> None:
    flow = the_largest()
    async with others_are_served(store):
        await within(store.write(flow))
        moved = await within(end(store, flow, "first"))
        assert len(moved.others) == STEPS - 2
        assert await counts(store, flow) == {"succeeded": 1, "queued": STEPS - 2, "waiting": 1}
        between = [step.job.id for step in flow.steps[1:-1]]
        await within(_cancel_each(store, between))
        await end(store, flow, "last")
    ended = await get(store, flow.job.id)
    assert (ended.state, ended.result) == (
        State.SUCCEEDED,
        b'{"steps":10000,"succeeded":2,"failed":9998,"skipped":0}',
    )


async def _cancel_each(store: Store, ids: list[str]) -> list[Moved | None]:
    return await asyncio.gather(*[store.write(Change(seen(job_id), "cancel", error="cancelled")) for job_id in ids])


async def test_the_largest_flow_is_cancelled_while_it_waits_and_tried_again(store: Store) -> None:
    flow = the_largest()
    await store.write(flow)
    async with others_are_served(store):
        assert await within(store.write(CancelFlow(flow.job.id, TENANT, "no")))
        assert await counts(store, flow) == {"cancelled": STEPS - 1, "queued": 1}
        await store.write(Change(seen(id_of(flow, "first")), "cancel", error="cancelled"))
        cancelled = await get(store, flow.job.id)
        assert cancelled.state is State.CANCELLED
        assert await within(store.write(RetryFlow(flow.job.id, TENANT, cancelled.seq, "", "again")))
        assert await counts(store, flow) == {"queued": 1, "waiting": STEPS - 1}
