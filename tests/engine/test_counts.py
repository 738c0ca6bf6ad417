"""A count is taken once for all who ask, and a large one is kept for a while."""

import asyncio

import pytest

from chargehand.engine import counts
from chargehand.engine.counts import IN_A_SECOND, SMALL, JobCounts, Kept
from chargehand.engine.store import Store
from chargehand.errors import StoreUnavailable
from tests.store.given import a_queue, submit_many, take_one


class Counting:
    """Counts how often it was counted; `size` is how many there were."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.times = 0
        self.now = 0.0
        self.fails = False
        self.kept = Kept(self._count, lambda _: self.size, lambda: self.now)

    async def _count(self) -> int:
        self.times += 1
        await asyncio.sleep(0)
        if self.fails:
            raise StoreUnavailable("gone")
        return self.times


async def test_a_small_count_is_taken_anew_for_everybody_who_asks() -> None:
    counting = Counting(SMALL)
    assert [await counting.kept.get() for _ in range(3)] == [1, 2, 3]


async def test_a_large_count_is_kept_for_the_longer_the_larger_it_is() -> None:
    counting = Counting(5 * IN_A_SECOND)
    assert [await counting.kept.get() for _ in range(3)] == [1, 1, 1]
    counting.now = 4.9
    assert await counting.kept.get() == 1
    counting.now = 5.0
    assert await counting.kept.get() == 2


async def test_who_asks_while_a_large_count_is_taken_waits_for_that_one() -> None:
    counting = Counting(SMALL + 1)
    assert await asyncio.gather(*[counting.kept.get() for _ in range(5)]) == [1] * 5


async def test_who_asks_after_a_write_does_not_get_a_small_count_that_began_before_it() -> None:
    counting = Counting(1)
    first = asyncio.create_task(counting.kept.get())
    await asyncio.sleep(0)
    assert (await counting.kept.get(), await first) == (2, 1)


async def test_a_count_that_was_given_up_is_finished_for_the_next_who_asks() -> None:
    counting = Counting(SMALL + 1)
    first = asyncio.create_task(counting.kept.get())
    await asyncio.sleep(0)
    first.cancel()
    assert await counting.kept.get() == 1


async def test_who_waits_for_a_count_that_fails_hears_it_and_the_next_takes_another() -> None:
    counting = Counting(SMALL + 1)
    counting.fails = True
    answers = await asyncio.gather(*[counting.kept.get() for _ in range(5)], return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 5
    assert counting.times == 1
    counting.fails = False
    assert await counting.kept.get() == 2


async def test_nobody_waits_for_a_count_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "PATIENCE_SECONDS", 0.01)
    ready = asyncio.Event()

    async def count() -> int:
        await ready.wait()
        return SMALL + 1

    kept = Kept(count, lambda size: size)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await kept.get()
    ready.set()
    assert await kept.get() == SMALL + 1


async def test_live_jobs_are_counted_by_queue_and_stage_with_the_time_of_the_count(store: Store) -> None:
    await submit_many(store, 3)
    await take_one(store, stage="loading")
    before = await store.now()
    counted = await JobCounts(store).live()
    [queue] = counted.queues
    assert (queue.queue, queue.ready, queue.running) == (a_queue("q"), 2, 1)
    assert counted.of(a_queue("q")) is queue
    assert counted.of(a_queue("other")) is None
    assert [(topic.topic, topic.count) for topic in counted.topics] == [("running:loading", 1)]
    assert before <= counted.at <= await store.now()
