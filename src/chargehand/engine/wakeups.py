"""Who waits for work, and who is woken for it. Nobody polls for what happens in this process.

A submitted, retried or parked job wakes as many waiters of its queue as there are jobs, not all of them. Besides, the
store is read once a second for all waiters together: that finds what other nodes did and what became due.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence

from chargehand.engine.job import SECOND
from chargehand.engine.queue import Queue, Queues, Wanted, all_with
from chargehand.engine.reads import DueQueue
from chargehand.engine.store import LOOK_ON

MIN_PAUSE_SECONDS = 0.005
MAX_PAUSE_SECONDS = 1.0  # as often as the store is read for all waiters anyway


class Waiter:
    """A place in the line of one or more queues, taken before the first claim, so that no wake-up is missed in between."""

    __slots__ = ("_news", "_wakeups", "queues", "woken_by")

    def __init__(self, wakeups: "Wakeups", queues: tuple[Wanted, ...]) -> None:
        self.queues = queues
        self.woken_by: Queue | None = None
        self._wakeups = wakeups
        self._news = asyncio.Event()

    def wake(self, queue: Queue | None) -> None:
        self.woken_by = queue
        self._news.set()

    async def wait(self, timeout: float) -> bool:
        """Return True when there may be work, False when the time is over or the server is stopping."""
        await wait_within(self._news, timeout)
        heard, self.woken_by = self.woken_by is not None, None
        return heard

    def __enter__(self) -> "Waiter":
        self._wakeups.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._wakeups.leave(self)
        if self.woken_by is not None:
            self._wakeups.wake(self.woken_by)  # a wake-up that was not used goes to the next in line


class Wakeups:
    def __init__(self) -> None:
        # Ordered sets: the one who waits longest is woken first.
        self._waiting: dict[Wanted, dict[Waiter, None]] = {}
        self._many = 0  # lines that are for many queues at once
        self._soonest: int | None = None
        self._pauses: dict[Queue, float] = {}  # of queues through whose keys claims walk, and find nothing
        self._changed = asyncio.Event()
        self._open = True

    @property
    def waiting(self) -> int:
        return len({waiter for waiters in self._waiting.values() for waiter in waiters})

    def line_up(self, queues: tuple[Wanted, ...]) -> Waiter:
        return Waiter(self, queues)

    async def wait(self, queues: tuple[Wanted, ...], timeout: float) -> bool:
        with self.line_up(queues) as waiter:
            return await waiter.wait(timeout)

    def enter(self, waiter: Waiter) -> None:
        if not self._open:
            waiter.wake(None)
            return
        for queue in waiter.queues:
            if queue not in self._waiting:
                self._waiting[queue] = {}
                self._many += isinstance(queue, Queues)
            self._waiting[queue][waiter] = None

    def leave(self, waiter: Waiter) -> None:
        for queue in waiter.queues:
            waiters = self._waiting.get(queue)
            if waiters is not None:
                waiters.pop(waiter, None)
                if not waiters:
                    del self._waiting[queue]
                    self._many -= isinstance(queue, Queues)

    def wake(self, queue: Queue, count: int = 1) -> None:
        while count > 0 and (waiters := self._line(queue)):
            waiter = next(iter(waiters))
            self.leave(waiter)
            waiter.wake(queue)
            count -= 1

    def _line(self, queue: Queue) -> "dict[Waiter, None] | None":
        """Return the waiters for this queue, else those for many queues of which it is one."""
        if (waiters := self._waiting.get(queue)) is None and self._many:
            waiters = next(filter(None, map(self._waiting.get, all_with(queue))), None)
        return waiters

    def due_at(self, queue: Queue, run_at: int, now: Callable[[], int]) -> None:
        """Wake a waiter for a job that was put into the queue, now or when it is due."""
        if self._line(queue) is None:
            return
        if run_at <= now():
            self.wake(queue)
        elif self._soonest is None or run_at < self._soonest:
            self._soonest = run_at
            self._changed.set()

    def again_at(self, queue: Queue, at: int, now: Callable[[], int]) -> None:
        """Wake a waiter when a limit lets more start, but never at once: by the store's clock it may still be too early."""
        self.due_at(queue, max(at, now() + int(self._pause(queue, at) * SECOND)), now)

    def _pause(self, queue: Queue, at: int) -> float:
        """Longer each time: with very many keys that may start nothing, the store would do little but look through them."""
        if at != LOOK_ON:
            self._pauses.pop(queue, None)
            return MIN_PAUSE_SECONDS
        pause = self._pauses.get(queue, MIN_PAUSE_SECONDS)
        self._pauses[queue] = min(pause * 2, MAX_PAUSE_SECONDS)
        return pause

    def found(self, queues: Iterable[Queue]) -> None:
        """Something of these queues has started."""
        if self._pauses:
            for queue in queues:
                self._pauses.pop(queue, None)

    def close(self) -> None:
        """End all waiting with no work, because the server is stopping."""
        self._open = False
        for waiter in [waiter for waiters in self._waiting.values() for waiter in waiters]:
            waiter.wake(None)
        self._waiting.clear()
        self._many = 0

    # the truth underneath -----------------------------------------------------------------------------------------------

    async def look(self, due: Callable[[Sequence[Wanted], int], Awaitable[Iterable[DueQueue]]]) -> None:
        queues = list(self._waiting)
        self._soonest = None
        if not queues:
            return
        bound = max(len(waiters) for waiters in self._waiting.values())
        for queue in await due(queues, bound):
            self.wake(queue.queue, queue.ready)
            if queue.next_at is not None and (self._soonest is None or queue.next_at < self._soonest):
                self._soonest = queue.next_at

    async def pause(self, poll_seconds: float, now: Callable[[], int]) -> None:
        """Wait until the next poll: at most the interval, less when a delayed job is due before."""
        wait = poll_seconds
        if self._soonest is not None:
            # Never at once: a node whose clock is ahead of the database's would spin until the database agrees.
            wait = min(wait, max(MIN_PAUSE_SECONDS, (self._soonest - now()) / SECOND))
        self._changed.clear()
        await wait_within(self._changed, wait)


async def wait_within(news: asyncio.Event, seconds: float) -> None:
    """Return when there is news, or after so many seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()
