"""The pulse of a queue: is there work, since when, and was some of it delayed."""

from typing import Any

import pytest

from chargehand.engine.job import SECOND, QueueSettings, SetQueue
from chargehand.engine.reads import Pulse
from chargehand.engine.store import Store
from chargehand.store.queries import columns
from tests.conftest import Clock
from tests.store.given import a_queue, move, opened, sql, submit, submit_many, take_one
from tests.store.test_queries import MANY_JOBS, effort


async def test_a_queue_without_jobs_has_no_pulse(store: Store, clock: Clock) -> None:
    await submit(store, queue="other")
    assert await store.pulse(a_queue("q"), 0, 10) == Pulse(0, None, None, False, None, False, clock.now)


async def test_ready_jobs_are_counted_up_to_the_bound_over_all_priorities(store: Store, clock: Clock) -> None:
    began = clock.now
    for priority in (0, 3, 9):
        await submit_many(store, 2, priority=priority)
        clock.advance(1)
    assert await store.pulse(a_queue("q"), 0, 100) == Pulse(6, began, began + 2 * SECOND, False, None, False, clock.now)
    assert [(await store.pulse(a_queue("q"), 0, bound)).ready for bound in (1, 2, 5, 6, 7)] == [1, 2, 5, 6, 6]
    await take_one(store)
    assert (await store.pulse(a_queue("q"), 0, 100)).ready == 5


async def test_a_delayed_job_is_not_ready_before_it_is_due(store: Store, clock: Clock) -> None:
    began = clock.now
    await submit(store, delay_seconds=10, priority=4)
    await submit(store, delay_seconds=5)
    assert await store.pulse(a_queue("q"), 0, 10) == Pulse(0, None, None, False, began + 5 * SECOND, False, clock.now)
    clock.advance(5)
    due = began + 5 * SECOND
    assert await store.pulse(a_queue("q"), 0, 10) == Pulse(1, due, due, True, began + 10 * SECOND, False, clock.now)


@pytest.mark.parametrize(("since_seconds", "delayed"), [(-1, True), (4, True), (5, False), (6, False)])
async def test_a_job_counts_as_delayed_only_if_it_became_due_after_the_given_time(
    store: Store, clock: Clock, since_seconds: int, delayed: bool
) -> None:
    began = clock.now
    await submit(store, delay_seconds=5)
    await submit(store)
    clock.advance(7)
    assert (await store.pulse(a_queue("q"), began + since_seconds * SECOND, 10)).delayed is delayed


async def test_jobs_that_are_due_at_once_are_not_delayed(store: Store, clock: Clock) -> None:
    await submit(store, priority=9)
    job = await take_one(store)
    clock.advance(3)
    assert await move(store, job, "park")
    clock.advance(3)
    assert not (await store.pulse(a_queue("q"), 0, 10)).delayed
    job = await take_one(store)
    assert await move(store, job, "retry", delay_seconds=2)
    clock.advance(2)
    assert (await store.pulse(a_queue("q"), 0, 10)).delayed


async def test_the_pulse_of_a_paused_queue_shows_that_and_still_counts(store: Store) -> None:
    await submit(store)
    await store.write(SetQueue(QueueSettings(a_queue("q"), paused=True)))
    pulse = await store.pulse(a_queue("q"), 0, 10)
    assert (pulse.paused, pulse.ready) == (True, 1)
    await store.write(SetQueue(QueueSettings(a_queue("q"), max_running=1)))
    assert not (await store.pulse(a_queue("q"), 0, 10)).paused


async def test_the_pulse_of_a_hundred_thousand_jobs_is_read_as_quickly_as_of_a_few(
    store_url: str, clock: Clock
) -> None:
    asked: dict[str, Any] = {**columns(a_queue("many/1")), "since": 0, "bound": 1, "now": clock.now}
    async with opened(store_url, clock) as store:
        for priority in range(10):
            await submit_many(store, 5, queue="many/1", priority=priority)
            await submit(store, queue="many/1", priority=priority, delay_seconds=60)
        few = await effort(store_url, "pulse", **asked)
        await sql(store_url, MANY_JOBS)
        await sql(store_url, "ANALYZE jobs")
        assert await effort(store_url, "pulse", **asked | {"since": clock.now - 1}) <= 5 * few
        assert (await store.pulse(a_queue("many/1"), 0, 1_000_000)).ready > 15_000
