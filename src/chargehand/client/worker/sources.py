"""Where a worker's tasks come from: a stream that the server fills, or claims that wait.

They run until they are cancelled. They try again after an error, unless it is a refusal and no call has ever succeeded.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from chargehand.client.errors import ClientError
from chargehand.client.tasks import MAX_CLAIM, TaskCalls
from chargehand.client.transport.backoff import pause
from chargehand.client.types.tasks import Task
from chargehand.client.worker.pool import TaskPool
from chargehand.client.worker.presence import ServerPresence

T = TypeVar("T")

POLL_SECONDS = 25.0  # the longest wait of a server is 30
MAX_IN_FLIGHT = 1000  # of one stream
LAST_CLAIM_SECONDS = 0.5
STEADY_SECONDS = 1.0  # a stream that lasted so long did not fail


@dataclass(frozen=True)
class ClaimSource:
    tasks: TaskCalls
    presence: ServerPresence
    pool: TaskPool
    commands: Sequence[str]
    lease_seconds: float

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call until it succeeds, with growing pauses or those that the server asks for."""
        failures = 0
        while True:
            try:
                answer = await call()
            except ClientError as error:
                self.presence.failed(error)
                await asyncio.sleep(pause(failures, asked=error.retry_after_seconds))
                failures += 1
            else:
                self.presence.answered()
                return answer


class NoStreams(Exception):
    """The server has no streamed claims: it is codeQ, or an old Chargehand."""


class StreamedClaims:
    """Claim over one connection, on which the server sends a task when another ends.

    The server counts the tasks of one stream only. When a stream breaks while its tasks run, the next stream does not know of these orphans, so
    it asks for fewer tasks; a second stream asks for the rest once the orphans have ended. Two streams are enough, and together they
    never ask for more tasks than there are places.
    """

    def __init__(self, source: ClaimSource) -> None:
        self._source = source
        self._pool = source.pool
        self._limits: dict[object, int] = {}  # of the open streams

    async def run(self) -> None:
        await until_one_ends(self._lane(), self._lane())

    async def _lane(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            origin, limit = await self._allotted()
            since = loop.time()
            try:
                await self._follow(origin, limit)
            except ClientError as error:
                if error.status in (404, 405):
                    raise NoStreams from None
                self._source.presence.failed(error)
            finally:
                del self._limits[origin]
            self._pool.note_change()  # for the other lane
            failures = 0 if loop.time() - since > STEADY_SECONDS else failures + 1
            await asyncio.sleep(pause(failures))

    async def _allotted(self) -> tuple[object, int]:
        while True:
            orphans = self._orphans()
            left = min(self._pool.places - sum(self._limits.values()) - orphans, MAX_IN_FLIGHT)
            if left > 0 and (not self._limits or not orphans):
                origin = object()
                self._limits[origin] = left
                return origin, left
            await self._pool.change()

    def _orphans(self) -> int:
        return self._pool.places - self._pool.free - self._pool.running_for(set(self._limits))

    async def _follow(self, origin: object, limit: int) -> None:
        source = self._source
        claims = source.tasks.claims(source.commands, lease_seconds=source.lease_seconds, max_in_flight=limit)
        async with claims as stream:
            source.presence.answered()
            try:
                async for task in stream:
                    if not self._pool.start(task, origin):
                        return  # a function that lost its lease still runs, in a place that the server counts as free
            finally:
                for task in await stream.leave():
                    self._pool.give_back(task)


class PolledClaims:
    """Claim one task and wait for it; after each that came, claim as many as there are places, without waiting."""

    def __init__(self, source: ClaimSource) -> None:
        self._source = source
        self._more = True

    async def run(self) -> None:
        while True:
            for task in await self._source.insist(self._claimed):
                self._source.pool.start(task)

    async def _claimed(self) -> list[Task]:
        return await owned(self._source.pool, self._claim(await self._source.pool.room()))

    async def _claim(self, free: int) -> list[Task]:
        source = self._source
        if self._more and free > 1 and (tasks := await claim_now(source, free)):
            return tasks
        task = await source.tasks.claim(
            source.commands, lease_seconds=source.lease_seconds, wait_seconds=POLL_SECONDS, retries=0
        )
        self._more = task is not None
        return [] if task is None else [task]


async def until_one_ends(*works: Coroutine[Any, Any, object]) -> None:
    """Raise what the first to end raises, and cancel the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def owned(pool: TaskPool, claim: Coroutine[Any, Any, list[Task]]) -> list[Task]:
    """Return the claimed tasks. If this is cancelled, wait a moment for the answer and give its tasks back."""
    claiming = asyncio.create_task(claim)
    try:
        return await asyncio.shield(claiming)
    except asyncio.CancelledError:
        await asyncio.wait({claiming}, timeout=LAST_CLAIM_SECONDS)
        claiming.cancel()
        [answer] = await asyncio.gather(claiming, return_exceptions=True)
        for task in answer if isinstance(answer, list) else ():
            pool.give_back(task)
        raise


async def claim_now(source: ClaimSource, free: int) -> list[Task]:
    """Claim without waiting."""
    if free > 1:
        with suppress(_NoBatches):
            return await _claim_many(source, min(free, MAX_CLAIM))
    task = await source.tasks.claim(source.commands, lease_seconds=source.lease_seconds, retries=0)
    return [] if task is None else [task]


class _NoBatches(Exception):
    """The server has no batches of claims: it may be another server with codeQ's API."""


async def _claim_many(source: ClaimSource, count: int) -> list[Task]:
    try:
        return await source.tasks.claim_many(count, source.commands, lease_seconds=source.lease_seconds, retries=0)
    except ClientError as error:
        if error.status in (404, 405):
            raise _NoBatches from None
        raise
