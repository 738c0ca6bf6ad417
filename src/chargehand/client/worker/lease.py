"""The lease on one task. Heartbeats extend it; it is over when its time is, even if the server cannot be reached."""

import asyncio
from collections.abc import Awaitable, Callable

from chargehand.client.errors import NO_ANSWER, ClientError
from chargehand.client.tasks import TaskCalls
from chargehand.client.transport.backoff import pause
from chargehand.client.types.tasks import Task
from chargehand.client.worker.presence import ServerPresence


class LeaseLost(Exception):
    """Another worker may have the task now. `unheard`: a report was sent before and its answer lost, so it may have ended the task."""

    def __init__(self, why: str, unheard: bool = False) -> None:
        super().__init__(why)
        self.unheard = unheard


class TaskLease:
    """`claimed_seconds` is the length that the claim asked for; heartbeats ask for `seconds`."""

    def __init__(
        self, tasks: TaskCalls, presence: ServerPresence, task: Task, claimed_seconds: float, seconds: float
    ) -> None:
        self._tasks = tasks
        self._presence = presence
        self._task = task
        self._seconds = seconds
        self._granted = claimed_seconds
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()

    @property
    def ends_at(self) -> float:
        """By the clock of the loop. It need not be exact: the server checks the lease at every change."""
        return self._since + self._granted

    async def keep(self) -> None:
        """Send heartbeats at each third of the lease until it is lost (LeaseLost), or this is cancelled."""
        failures = 0
        while True:
            wait = pause(failures - 1) if failures else self._granted / 3
            await asyncio.sleep(min(wait, self.ends_at - self._loop.time()))
            failures = 0 if await self._beat() else failures + 1

    async def _beat(self) -> bool:
        at = self._loop.time()
        if at >= self.ends_at:
            raise LeaseLost("the lease is over, and the server could not be reached to extend it")
        try:
            async with asyncio.timeout_at(self.ends_at):
                await self._tasks.heartbeat(self._task.id, self._seconds, lease=self._task.lease, retries=0)
        except ClientError as error:
            if error.lease_lost:
                raise LeaseLost(str(error)) from None
            self._presence.failed(error)
            return False
        except TimeoutError:
            return False
        self._presence.answered()
        self._since, self._granted = at, self._seconds
        return True

    async def insist(self, report: Callable[[], Awaitable[object]]) -> None:
        """Repeat a report until the server answers or the lease is over (LeaseLost). A refusal is raised."""
        failures = 0
        unheard = False
        while True:
            try:
                await report()
            except ClientError as error:
                if error.lease_lost:
                    raise LeaseLost(str(error), unheard) from None
                if not error.away:
                    raise
                self._presence.failed(error)
                unheard = unheard or (error.status == NO_ANSWER and error.sent)
                wait = pause(failures, asked=error.retry_after_seconds)
                if self._loop.time() + wait >= self.ends_at:
                    raise LeaseLost(
                        f"the lease is over, and the server could not be reached to report the end: {error}"
                    ) from None
                await asyncio.sleep(wait)
                failures += 1
            else:
                self._presence.answered()
                return
