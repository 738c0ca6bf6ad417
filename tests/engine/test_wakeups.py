"""Which waiter is woken, and that no wake-up is lost with a cancelled waiter."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from chargehand.engine.job import SECOND
from chargehand.engine.queue import Wanted
from chargehand.engine.reads import DueQueue
from chargehand.engine.store import LOOK_ON
from chargehand.engine.wakeups import Wakeups
from tests.store.given import a_queue

LONG = 30.0


async def waiting(wakeups: Wakeups, *queues: str, timeout: float = LONG) -> "asyncio.Task[bool]":
    """Return a waiter that waits."""
    before = wakeups.waiting
    task = asyncio.create_task(wakeups.wait(tuple(map(a_queue, queues or ("q",))), timeout))
    await asyncio.sleep(0)
    assert wakeups.waiting == before + 1
    return task


async def settled(*tasks: "asyncio.Task[bool]") -> list[bool]:
    """Return which waiters were woken, after everything that could run has run."""
    for _ in range(10):
        await asyncio.sleep(0)
    return [task.done() and not task.cancelled() and task.result() for task in tasks]


async def test_only_the_waiter_that_waited_longest_is_woken() -> None:
    wakeups = Wakeups()
    tasks = [await waiting(wakeups) for _ in range(3)]
    wakeups.wake(a_queue("q"))
    assert await settled(*tasks) == [True, False, False]
    wakeups.wake(a_queue("q"), 5)
    assert await settled(*tasks) == [True, True, True]
    assert wakeups.waiting == 0


async def test_a_job_in_another_queue_wakes_nobody() -> None:
    wakeups = Wakeups()
    task = await waiting(wakeups, "a", "b")
    wakeups.wake(a_queue("c"))
    assert await settled(task) == [False]
    wakeups.wake(a_queue("b"))
    assert await settled(task) == [True]


async def test_a_waiter_for_several_queues_is_woken_once() -> None:
    wakeups = Wakeups()
    both, other = await waiting(wakeups, "a", "b"), await waiting(wakeups, "b")
    wakeups.wake(a_queue("a"))
    wakeups.wake(a_queue("b"))
    assert await settled(both, other) == [True, True]


async def test_waiting_ends_after_its_timeout() -> None:
    wakeups = Wakeups()
    assert await wakeups.wait((a_queue("q"),), 0.01) is False
    assert wakeups.waiting == 0


async def test_a_wake_up_for_a_cancelled_waiter_goes_to_the_next() -> None:
    wakeups = Wakeups()
    leaving, staying = await waiting(wakeups), await waiting(wakeups)
    leaving.cancel()
    wakeups.wake(a_queue("q"))
    assert await settled(staying) == [True]


async def test_a_wake_up_that_a_waiter_did_not_use_goes_to_the_next() -> None:
    wakeups = Wakeups()
    leaving, staying = await waiting(wakeups), await waiting(wakeups)
    wakeups.wake(a_queue("q"))
    leaving.cancel()
    assert await settled(staying) == [True]


async def test_a_wake_up_that_comes_just_after_the_timeout_goes_to_the_next() -> None:
    wakeups = Wakeups()
    late = await waiting(wakeups, timeout=0.01)
    staying = await waiting(wakeups)
    asyncio.get_running_loop().call_later(0.011, wakeups.wake, a_queue("q"))
    time.sleep(0.03)  # noqa: ASYNC251 - so that both are due in the same iteration of the loop
    assert await settled(staying) == [True] or await late, "one of them must be woken"


async def test_closing_ends_all_waiting() -> None:
    wakeups = Wakeups()
    tasks = [await waiting(wakeups), await waiting(wakeups, "a", "b")]
    wakeups.close()
    assert await asyncio.gather(*tasks) == [False, False]
    assert await wakeups.wait((a_queue("q"),), LONG) is False


async def test_a_poll_wakes_as_many_waiters_as_there_are_jobs() -> None:
    wakeups = Wakeups()
    a, a2, b = await waiting(wakeups, "a"), await waiting(wakeups, "a"), await waiting(wakeups, "b")
    asked: list[tuple[Sequence[Wanted], int]] = []

    async def due(queues: Sequence[Wanted], bound: int) -> list[DueQueue]:
        asked.append((queues, bound))
        return [DueQueue(a_queue("a"), 1, None)]

    await wakeups.look(due)
    assert asked == [([a_queue("a"), a_queue("b")], 2)]
    assert await settled(a, a2, b) == [True, False, False]
    wakeups.close()


async def test_a_poll_reads_nothing_while_nobody_waits() -> None:
    async def due(queues: Sequence[Wanted], bound: int) -> list[DueQueue]:
        raise AssertionError("asked")

    await Wakeups().look(due)


async def test_a_pause_ends_when_a_delayed_job_is_due() -> None:
    wakeups = Wakeups()
    await waiting(wakeups)

    async def due(queues: Sequence[Wanted], bound: int) -> list[DueQueue]:
        return [DueQueue(a_queue("q"), 0, SECOND // 20)]

    await wakeups.look(due)
    async with asyncio.timeout(1):
        await wakeups.pause(LONG, lambda: 0)
    wakeups.close()


async def test_a_pause_is_cut_short_by_a_job_that_is_due_sooner() -> None:
    wakeups = Wakeups()
    await waiting(wakeups)
    pausing = asyncio.create_task(wakeups.pause(LONG, lambda: 0))
    await asyncio.sleep(0)
    wakeups.due_at(a_queue("q"), SECOND // 100, lambda: 0)
    async with asyncio.timeout(1):
        await pausing
    wakeups.close()


async def test_a_clock_ahead_of_the_database_does_not_make_the_poll_spin() -> None:
    wakeups = Wakeups()
    await waiting(wakeups)

    async def due(queues: Sequence[Wanted], bound: int) -> list[DueQueue]:
        return [DueQueue(a_queue("q"), 0, SECOND)]

    looks = 0
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        await wakeups.look(due)
        await wakeups.pause(LONG, lambda: 2 * SECOND)
        looks += 1
    assert looks <= 30
    wakeups.close()


async def test_claims_that_walk_through_keys_and_find_nothing_pause_longer_each_time_until_something_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wakeups, queue = Wakeups(), a_queue("q")
    due: list[int] = []
    monkeypatch.setattr(wakeups, "due_at", lambda _, at, now: due.append((at - now()) * 1000 // SECOND))

    def look_on(times: int, at: int = LOOK_ON) -> list[int]:
        due.clear()
        for _ in range(times):
            wakeups.again_at(queue, at, lambda: SECOND)
        return list(due)

    assert look_on(10) == [5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000]
    wakeups.found([queue])
    assert look_on(2) == [5, 10]
    assert look_on(1, 3 * SECOND) == [2000], "the walk is over: it is known when"
    assert look_on(1) == [5]


async def test_a_job_that_is_due_wakes_somebody_and_one_that_is_not_does_not() -> None:
    wakeups = Wakeups()
    task = await waiting(wakeups)
    wakeups.due_at(a_queue("q"), SECOND, lambda: 0)
    assert await settled(task) == [False]
    wakeups.due_at(a_queue("q"), SECOND, lambda: SECOND)
    assert await settled(task) == [True]
