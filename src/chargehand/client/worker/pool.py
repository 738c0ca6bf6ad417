"""The tasks that are being worked on: never more than there are places, whatever the server sends."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from chargehand.client.errors import ClientError
from chargehand.client.tasks import TaskCalls
from chargehand.client.types.tasks import Task
from chargehand.client.worker.attempt import STOP_SECONDS, TaskAttempt, TaskEnded
from chargehand.client.worker.functions import TaskFunction
from chargehand.client.worker.presence import ServerPresence
from chargehand.client.worker.results import ResultSender

log = logging.getLogger("chargehand.client")

GOODBYE_SECONDS = 5.0  # for the server to hear what became of the tasks that were stopped


class TaskPool:
    def __init__(
        self,
        tasks: TaskCalls,
        presence: ServerPresence,
        handlers: Mapping[str, TaskFunction],
        places: int,
        claimed_seconds: float,
        watch: Callable[[TaskEnded], None],
    ) -> None:
        self._tasks = tasks
        self._presence = presence
        self._results = ResultSender(tasks)
        self._handlers = handlers
        self._places = places
        self._claimed_seconds = claimed_seconds
        self._watch = watch
        self._running: dict[asyncio.Task[None], tuple[TaskAttempt, object]] = {}
        self._returning: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def places(self) -> int:
        return self._places

    @property
    def free(self) -> int:
        """Places without a task; one whose result is on its way is still there."""
        return self._places - len(self._running)

    def running_for(self, origins: Collection[object]) -> int:
        """How many came from one of these sources."""
        return sum(origin in origins for _, origin in self._running.values())

    async def change(self) -> None:
        """Until a task ends, or somebody says `note_change`."""
        self._changed.clear()
        await self._changed.wait()

    def note_change(self) -> None:
        self._changed.set()

    async def room(self) -> int:
        while self.free <= 0:
            await self.change()
        return self.free

    def start(self, task: Task, origin: object = None) -> bool:
        """Work on it, or give it back (False): there is no place, or nobody here knows the command."""
        handler = self._handlers.get(task.command.strip().lower())
        if self._closed or handler is None or not self._has_a_place():
            self.give_back(task)
            return False
        attempt = TaskAttempt(self._tasks, self._presence, self._results, task, handler, self._claimed_seconds)
        running = asyncio.create_task(self._work(attempt))
        self._running[running] = (attempt, origin)
        running.add_done_callback(self._ended)
        return True

    def _has_a_place(self) -> bool:
        """Not the same as `free`: the server sends the next task as soon as it has a result, and that is before we have
        heard that it does."""
        return self.free > 0 or sum(attempt.busy for attempt, _ in self._running.values()) < self._places

    def give_back(self, task: Task) -> None:
        returning = asyncio.create_task(self._give_back(task))
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)

    async def drain(self, grace_seconds: float, hurry: asyncio.Event) -> None:
        """What runs may end by itself for a while, or until somebody is in a hurry; the rest is stopped and given back."""
        self._closed = True
        if self._running and grace_seconds > 0:
            log.warning(
                "stopping: %d running for up to %g s more; another signal gives back at once",
                len(self._running),
                grace_seconds,
            )
            waiting = asyncio.create_task(hurry.wait())
            ending = asyncio.create_task(asyncio.wait(set(self._running)))
            await asyncio.wait({waiting, ending}, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            ending.cancel()
            await asyncio.gather(waiting, ending, return_exceptions=True)
        for attempt, _ in self._running.values():
            attempt.stop()
        last = {*self._running, *self._returning}
        if last:
            await asyncio.wait(last, timeout=STOP_SECONDS + GOODBYE_SECONDS)
        for late in (task for task in last if not task.done()):
            late.cancel()
        await asyncio.gather(*last, return_exceptions=True)
        self._results.close()

    async def _work(self, attempt: TaskAttempt) -> None:
        self._watch(await attempt.run())

    def _ended(self, running: "asyncio.Task[None]") -> None:
        del self._running[running]
        self.note_change()
        if not running.cancelled() and (error := running.exception()) is not None:
            log.error("a fault of the worker", exc_info=error)

    async def _give_back(self, task: Task) -> None:
        try:
            await self._tasks.abandon(task.id, lease=task.lease, retries=1)
        except ClientError as error:
            log.warning("task %s could not be given back, its lease will lapse: %s", task.id, error)
