"""Send progress reports, one at a time; of those that wait, only the newest."""

import asyncio
import logging

from chargehand.client.errors import ClientError
from chargehand.client.tasks import TaskCalls
from chargehand.client.types.tasks import Task
from chargehand.client.worker.held import ReportedProgress

log = logging.getLogger("chargehand.client")


class ProgressSender:
    def __init__(self, tasks: TaskCalls, task: Task) -> None:
        self._tasks = tasks
        self._task = task
        self._newest: ReportedProgress | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._sender: asyncio.Task[None] | None = None
        self._closed = False

    def report(self, note: ReportedProgress) -> "asyncio.Future[None]":
        """The future is done once this or a newer report was sent or dropped."""
        done = asyncio.get_running_loop().create_future()
        if self._closed:
            done.set_result(None)
            return done
        self._newest = note
        self._waiting.append(done)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())
        return done

    async def close(self, wait_seconds: float) -> None:
        """Send the last report before the task ends, if that takes no longer than `wait_seconds`."""
        if self._sender is not None:
            await asyncio.wait({self._sender}, timeout=wait_seconds)
        self._closed = True
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
        _release(self._waiting)

    async def _send(self) -> None:
        while self._newest is not None and not self._closed:
            note, waiting = self._newest, self._waiting
            self._newest, self._waiting = None, []
            try:
                await self._submit(note)
            finally:
                _release(waiting)
        self._sender = None

    async def _submit(self, note: ReportedProgress) -> None:
        try:
            await self._tasks.progress(
                self._task.id, note.percent, note.message, note.data, lease=self._task.lease, retries=0
            )
        except ClientError as error:
            # codeQ has no progress (404, 405). The heartbeat notices a lost lease.
            self._closed = self._closed or error.status in (404, 405)
            log.debug("progress of %s was not sent: %s", self._task.id, error)
        except Exception as error:  # such as data that is not JSON: progress never makes a task fail
            log.warning("progress of %s cannot be sent: %s", self._task.id, error)


def _release(waiting: "list[asyncio.Future[None]]") -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
