"""Counts of the last hour by minute: over several nodes, after restarts, and with bounds. On both stores."""

from pathlib import Path

import pytest

from chargehand.console import minutes as module
from chargehand.console.minutes import DELIVERIES, MAX_SERIES, RECORD, Minutes
from chargehand.engine.delivery import DeliveryState
from chargehand.engine.job import State
from chargehand.engine.moves import Moved
from chargehand.engine.queue import Queue
from chargehand.engine.reads import DeliveryFilter
from chargehand.engine.records import Records
from chargehand.engine.store import Store
from chargehand.errors import StoreError
from tests.api.serving import on_sqlite
from tests.conftest import Clock
from tests.engine.given import Cable
from tests.store.given import TENANT, a_report, a_settle, opened, submit


def moved(clock: Clock, move: str, state: State, tenant: str = "acme", kind: str = "job") -> Moved:
    return Moved("id", Queue(kind, tenant, "q"), move, state, "", 1, 1, clock(), clock(), clock())


def a_node(store: Store, clock: Clock, name: str) -> Minutes:
    return Minutes(Records(store), name, clock)


def work(minutes: Minutes, clock: Clock, *, submitted: int = 0, ended: int = 0, failed: int = 0, **whose: str) -> None:
    for _ in range(submitted):
        minutes.on_move(moved(clock, "submit", State.QUEUED, **whose))
    for _ in range(ended):
        minutes.on_move(moved(clock, "succeed", State.SUCCEEDED, **whose))
    for _ in range(failed):
        minutes.on_move(moved(clock, "fail", State.FAILED, **whose))


def last(minutes: Minutes, tenant: str = "acme", kind: str = "job", ago: int = 0) -> tuple[int, int, int]:
    count = minutes.hour(tenant, kind)[-1 - ago]
    return count.submitted, count.ended, count.failed


async def test_two_nodes_on_one_store_show_the_sum_of_both(store: Store, clock: Clock) -> None:
    one, other = a_node(store, clock, "one"), a_node(store, clock, "other")
    work(one, clock, submitted=3, ended=2)
    work(other, clock, submitted=1, failed=1)
    for node in (one, other, one):
        await node.exchange()
    assert last(one) == last(other) == (4, 2, 1)


async def test_the_jobs_in_the_queues_are_not_added_up_over_nodes(store: Store, clock: Clock) -> None:
    one, other = a_node(store, clock, "one"), a_node(store, clock, "other")
    one.stand("acme", "job", waiting=7, running=2)
    other.stand("acme", "job", waiting=7, running=2)
    for node in (one, other, one):
        await node.exchange()
    now = one.hour("acme", "job")[-1]
    assert (now.waiting, now.running) == (7, 2)


async def test_a_restart_keeps_the_written_counts(store: Store, clock: Clock) -> None:
    before = a_node(store, clock, "life-1")
    work(before, clock, submitted=5, ended=4)
    await before.exchange()
    after = a_node(store, clock, "life-2")
    await after.exchange()
    work(after, clock, ended=1)
    assert last(after) == (5, 5, 0)


async def test_a_minute_that_is_written_again_is_not_counted_twice(store: Store, clock: Clock) -> None:
    one, other = a_node(store, clock, "one"), a_node(store, clock, "other")
    for _ in range(3):
        work(one, clock, submitted=1)
        await one.exchange()
        await other.exchange()
    assert last(one) == last(other) == (3, 0, 0)


async def test_counts_are_in_their_minute_and_are_dropped_after_an_hour(store: Store, clock: Clock) -> None:
    minutes = a_node(store, clock, "one")
    work(minutes, clock, submitted=2)
    await minutes.exchange()
    clock.advance(60 * 10)
    work(minutes, clock, submitted=1)
    assert [count.submitted for count in minutes.hour("acme", "job")] == [0] * 49 + [2] + [0] * 9 + [1]
    clock.advance(60 * 60)
    await minutes.exchange()
    assert sum(count.submitted for count in minutes.hour("acme", "job")) == 0
    assert [record.name for record in await Records(store).list(RECORD, module.NOBODY)] == []


async def test_nothing_is_written_while_nothing_happens(store: Store, clock: Clock) -> None:
    minutes = a_node(store, clock, "one")
    work(minutes, clock, submitted=1)
    await minutes.exchange()
    [written] = await Records(store).list(RECORD, module.NOBODY)
    await minutes.exchange()
    [again] = await Records(store).list(RECORD, module.NOBODY)
    assert again.version == written.version


async def test_a_minute_that_could_not_be_written_is_written_when_the_store_is_back(
    postgres_url: str, tmp_path: Path, clock: Clock
) -> None:
    async with Cable(postgres_url, tmp_path) as cable, opened(cable.url, clock) as store:
        one, other = a_node(store, clock, "one"), a_node(store, clock, "other")
        work(one, clock, submitted=1)
        cable.cut()
        with pytest.raises(StoreError):
            await one.exchange()
        await cable.mend()
        await one.exchange()
        await other.exchange()
        assert last(other) == (1, 0, 0)


@on_sqlite
async def test_tenants_and_kinds_are_counted_separately(store: Store, clock: Clock) -> None:
    minutes = a_node(store, clock, "one")
    work(minutes, clock, submitted=1, tenant="acme", kind="job")
    work(minutes, clock, submitted=2, tenant="acme", kind="task")
    work(minutes, clock, submitted=4, tenant="umbrella", kind="job")
    assert (last(minutes), last(minutes, kind="task"), last(minutes, "umbrella")) == ((1, 0, 0), (2, 0, 0), (4, 0, 0))


@on_sqlite
async def test_a_cancelled_job_counts_neither_as_a_success_nor_as_a_failure(store: Store, clock: Clock) -> None:
    minutes = a_node(store, clock, "one")
    minutes.on_move(moved(clock, "cancel", State.CANCELLED))
    assert last(minutes) == (0, 0, 0)


@on_sqlite
@pytest.mark.parametrize(
    ("state", "counted"),
    [(DeliveryState.DELIVERED, (0, 1, 0)), (DeliveryState.DEAD, (0, 0, 1)), (DeliveryState.PENDING, (0, 0, 0))],
)
async def test_deliveries_count_when_they_are_settled(
    store: Store, clock: Clock, state: DeliveryState, counted: tuple[int, int, int]
) -> None:
    minutes = a_node(store, clock, "one")
    job_id = await submit(store, reports=(a_report(),))
    [made] = await store.list_deliveries(DeliveryFilter(TENANT, job_id=job_id))
    [outgoing] = await store.outgoing([made.id])
    minutes.on_settled(a_settle(made.id, made.lease, state), outgoing)
    assert last(minutes, TENANT, DELIVERIES) == counted


@on_sqlite
async def test_the_number_of_series_in_a_minute_is_bounded(store: Store, clock: Clock) -> None:
    minutes = a_node(store, clock, "one")
    for number in range(MAX_SERIES + 50):
        work(minutes, clock, submitted=1, tenant=f"tenant-{number}")
    await minutes.exchange()
    [record] = await Records(store).list(RECORD, module.NOBODY)
    assert record.body.count(b"tenant-") == MAX_SERIES
