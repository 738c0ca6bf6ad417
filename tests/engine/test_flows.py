"""Cancelling a flow: what was begun is gone on with, whatever becomes of the node that began."""

import pytest

from chargehand.engine.flow import CANCELLED_FLOW, NewFlow
from chargehand.engine.flows import Flows
from chargehand.engine.guard import Guard
from chargehand.engine.job import Job, State
from chargehand.engine.moves import Change, Moved
from chargehand.engine.reads import RecordFilter
from chargehand.engine.record import PutRecord
from chargehand.engine.store import Store
from chargehand.errors import Conflict, StoreUnavailable
from tests.conftest import Clock
from tests.engine.given import an_engine
from tests.store.flow_given import end, states, submit_flow
from tests.store.given import get

LATER = 20.0


class Node:
    """An engine with flows, where cancelling a step first goes wrong as often as there are errors."""

    def __init__(self, store: Store, *errors: Exception) -> None:
        self.engine = an_engine(store)
        self.flows = Flows(self.engine)
        self.engine.cancel_by("job", self._cancel)
        self._errors = list(errors)
        self.asked = 0

    async def _cancel(self, job: Job, message: str) -> Moved:
        self.asked += 1
        if self._errors:
            raise self._errors.pop()
        return await self.engine.change(Change(Guard.seen(job), "cancel", error="cancelled", message=message))


async def cancel(node: Node, store: Store, flow: NewFlow) -> Moved:
    return await node.flows.cancel(await get(store, flow.job.id), "cancelled by me")


@pytest.fixture
async def flow(store: Store) -> NewFlow:
    return await submit_flow(store, {"a": [], "b": [], "c": ["a", "b"]})


async def is_on_record(store: Store) -> bool:
    return bool(await store.list_records(RecordFilter(CANCELLED_FLOW)))


async def test_what_a_node_left_running_of_a_cancelled_flow_another_one_cancels(
    store: Store, clock: Clock, flow: NewFlow
) -> None:
    with pytest.raises(StoreUnavailable):
        await cancel(Node(store, *[StoreUnavailable("gone")] * 2), store, flow)
    assert await states(store, flow) == {"a": "ready", "b": "ready", "c": "cancelled"}
    other = Node(store)
    await other.flows.go_on_cancelling()
    assert other.asked == 0  # the first one may be at it
    clock.advance(LATER)
    await other.flows.go_on_cancelling()
    assert (await get(store, flow.job.id)).state is State.CANCELLED
    assert not await is_on_record(store)


async def test_a_step_whose_door_was_not_ready_to_cancel_it_is_cancelled_later(
    store: Store, clock: Clock, flow: NewFlow
) -> None:
    node = Node(store, Conflict("it is just being claimed; ask again"))
    assert (await cancel(node, store, flow)).state is State.RUNNING
    assert sorted((await states(store, flow)).values()) == ["cancelled", "cancelled", "ready"]
    clock.advance(LATER)
    await node.flows.go_on_cancelling()
    assert (await get(store, flow.job.id)).state is State.CANCELLED


async def test_of_two_nodes_one_goes_on_and_asks_again_until_the_steps_have_ended(
    store: Store, clock: Clock, flow: NewFlow
) -> None:
    one, two = Node(store, *[Conflict("wait")] * 6), Node(store)
    await cancel(one, store, flow)
    for turn in range(2, 4):
        clock.advance(LATER)
        await one.flows.go_on_cancelling()
        await two.flows.go_on_cancelling()
        assert (one.asked, two.asked) == (2 * turn, 0)
    await end(store, flow, "a")
    await end(store, flow, "b")
    assert (await get(store, flow.job.id)).state is State.CANCELLED
    assert not await is_on_record(store)


async def test_a_flow_that_has_nothing_left_to_cancel_leaves_no_record(store: Store, flow: NewFlow) -> None:
    await cancel(Node(store), store, flow)
    assert (await get(store, flow.job.id)).state is State.CANCELLED
    assert not await is_on_record(store)


async def test_a_record_of_a_flow_that_is_not_being_cancelled_is_dropped(store: Store, flow: NewFlow) -> None:
    for name in (flow.job.id, "01GONE"):
        await store.write(PutRecord(CANCELLED_FLOW, "", name, b"", due_at=0))
    await Node(store).flows.go_on_cancelling()
    assert not await is_on_record(store)
    assert (await states(store, flow))["a"] == "ready"
