"""How many jobs there are of what, counted once for all who show it.

To count a million jobs takes a moment. So a large count is kept for a while, for the longer the larger it is, and says when it was
taken; a small one is taken anew for everybody who asks.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Generic, TypeVar

import msgspec

from chargehand.engine.job import QueueCount
from chargehand.engine.queue import Queue
from chargehand.engine.reads import JobReads, TopicCount
from chargehand.errors import StoreUnavailable

SMALL = 10_000  # up to so many are counted anew each time
IN_A_SECOND = (
    100_000  # a count is kept for a second for each of these, so counting takes a few percent of one core at most
)
PATIENCE_SECONDS = 4.5  # of callers

A = TypeVar("A")


class Kept(Generic[A]):
    """Keeps a count for a while. Callers that ask during a count wait for it.

    The count goes on when those who asked for it have no more patience: the next ones find it.
    """

    def __init__(
        self, count: Callable[[], Awaitable[A]], size: Callable[[A], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._size = size
        self._clock = clock
        self._taking: asyncio.Task[A] | None = None
        self._until = float("-inf")
        self._counted: A

    async def get(self) -> A:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS) as waiting:
                return await self._get()
        except TimeoutError:
            if waiting.expired():
                text = f"the jobs have not been counted within {PATIENCE_SECONDS:g} s; try again"
                raise StoreUnavailable(text, retry_after_seconds=2) from None
            raise

    async def _get(self) -> A:
        if self._taking is not None:
            await asyncio.shield(self._taking)  # or fail as it does
        if self._clock() < self._until:
            return self._counted
        if self._taking is None:
            self._taking = asyncio.ensure_future(self._take())
            self._taking.add_done_callback(self._taken)
        return await asyncio.shield(self._taking)

    async def _take(self) -> A:
        counted = await self._count()
        size = self._size(counted)
        self._counted = counted
        self._until = self._clock() + (size / IN_A_SECOND if size > SMALL else 0.0)
        return counted

    def _taken(self, taking: asyncio.Task[A]) -> None:
        self._taking = None
        if not taking.cancelled():
            taking.exception()  # those who waited for it have it


class LiveCount(msgspec.Struct, frozen=True):
    queues: list[QueueCount]
    topics: list[TopicCount]
    at: int  # when this was so, by the store's clock

    def of(self, queue: Queue) -> QueueCount | None:
        return next((count for count in self.queues if count.queue == queue), None)


class JobCounts:
    def __init__(self, jobs: JobReads) -> None:
        self._jobs = jobs
        self._live = Kept(self._count_live, _live_jobs)
        self._stopped: dict[str, Kept[Mapping[Queue, int]]] = {}

    async def live(self) -> LiveCount:
        """Count what is queued and what runs."""
        return await self._live.get()

    async def stopped(self, topic: str) -> Mapping[Queue, int]:
        """Count failed or cancelled jobs, by what their callers see."""
        if topic not in self._stopped:
            self._stopped[topic] = Kept(partial(self._jobs.count_stopped, topic), lambda counts: sum(counts.values()))
        return await self._stopped[topic].get()

    async def _count_live(self) -> LiveCount:
        at = await self._jobs.now()
        return LiveCount(await self._jobs.count_queues(), await self._jobs.count_topics(), at)


def _live_jobs(counted: LiveCount) -> int:
    return sum(count.ready + count.delayed + count.running for count in counted.queues)
