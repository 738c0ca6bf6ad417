"""The running tasks, never more than `places`, however many the server sends."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from chargehand.client.errors import ClientError
from chargehand.client.tasks import TaskCalls
from chargehand.client.types.tasks import Task
from chargehand.client.worker.attempt import STOP_SECONDS, TaskAttempt, TaskEnded
from chargehand.client.worker.calls import FunctionCalls
from chargehand.client.worker.functions import TaskFunction
from chargehand.client.worker.presence import ServerPresence
from chargehand.client.worker.results import ResultSender

log = logging.getLogger("chargehand.client")

REPORT_SECONDS = 5.0  # to report how the stopped tasks ended


class TaskPool:
    def __init__(
        self,
        tasks: TaskCalls,
        presence: ServerPresence,
        handlers: Mapping[str, TaskFunction],
        calls: FunctionCalls,
        places: int,
        claimed_seconds: float,
        watch: Callable[[TaskEnded], None],
    ) -> None:
        self._tasks = tasks
        self._presence = presence
        self._results = ResultSender(tasks)
        self._handlers = handlers
        self._calls = calls
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
        """Places without a task. A task keeps its place until its result is sent."""
        return self._places - len(self._running)

    def running_for(self, origins: Collection[object]) -> int:
        """How many running tasks came from one of these streams."""
        return sum(origin in origins for _, origin in self._running.values())

    async def change(self) -> None:
        """Wait until a task ends, or `note_change` is called."""
        self._changed.clear()
        await self._changed.wait()

    def note_change(self) -> None:
        self._changed.set()

    async def room(self) -> int:
        """Wait for a free place; return how many there are."""
        while self.free <= 0:
            await self.change()
        return self.free

    def start(self, task: Task, origin: object = None) -> bool:
        """Run the task, or give it back and return False if there is no place or no function for its command."""
        handler = self._handlers.get(task.command.strip().lower())
        if self._closed or handler is None or not self._has_a_place():
            self.give_back(task)
            return False
        attempt = TaskAttempt(
            self._tasks, self._presence, self._results, task, handler, self._calls, self._claimed_seconds
        )
        running = asyncio.create_task(self._work(attempt))
        self._running[running] = (attempt, origin)
        running.add_done_callback(self._ended)
        return True

    def _has_a_place(self) -> bool:
        """A place is taken until its function has ended. `free` is later: the server sends the next task as soon as it has a
        result, before its answer arrives here."""
        return self.free > 0 or sum(attempt.busy for attempt, _ in self._running.values()) < self._places

    def give_back(self, task: Task) -> None:
        returning = asyncio.create_task(self._give_back(task))
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)

    async def drain(self, grace_seconds: float, hurry: asyncio.Event) -> None:
        """Wait up to `grace_seconds`, or until `hurry`, for running tasks to end; stop the rest and give them back."""
        self._closed = True
        ending = {running for running, (attempt, _) in self._running.items() if not attempt.reported}
        if ending and grace_seconds > 0:
            log.warning(
                "stopping: waiting up to %g s for %d running; another signal gives them back at once",
                grace_seconds,
                len(ending),
            )
            await _wait_for(ending, grace_seconds, hurry)
        for attempt, _ in self._running.values():
            attempt.stop()
        last = {*self._running, *self._returning}
        if last:
            await asyncio.wait(last, timeout=STOP_SECONDS + REPORT_SECONDS)
        for late in (task for task in last if not task.done()):
            late.cancel()
        await asyncio.gather(*last, return_exceptions=True)
        self._results.close()

    async def _work(self, attempt: TaskAttempt) -> None:
        self._watch(await attempt.run())
        await attempt.leave()

    def _ended(self, running: "asyncio.Task[None]") -> None:
        del self._running[running]
        self.note_change()
        if not running.cancelled() and (error := running.exception()) is not None:
            log.error("the worker failed", exc_info=error)

    async def _give_back(self, task: Task) -> None:
        try:
            await self._tasks.abandon(task.id, lease=task.lease, retries=1)
        except ClientError as error:
            log.warning("task %s could not be given back, its lease will lapse: %s", task.id, error)


async def _wait_for(ending: Collection[asyncio.Task[None]], seconds: float, hurry: asyncio.Event) -> None:
    waiting = asyncio.create_task(hurry.wait())
    all_ended = asyncio.create_task(asyncio.wait(ending))
    await asyncio.wait({waiting, all_ended}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    all_ended.cancel()
    await asyncio.gather(waiting, all_ended, return_exceptions=True)
