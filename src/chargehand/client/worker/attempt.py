"""One task from the claim to its end: the function runs, heartbeats beside it, and then the server is told.

| the function …           | the server is told             | the word for it |
|--------------------------|--------------------------------|-----------------|
| returns                  | COMPLETED with the value       | `completed`     |
| raises Fail              | FAILED with the error          | `failed`        |
| raises Retry, or another | nack: another try, later       | `retry`         |
| is stopped by the worker | abandon: as if never claimed   | `abandoned`     |
| has lost its lease       | nothing                        | `lost`          |
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from chargehand.client.errors import ClientError, Fail, Retry
from chargehand.client.tasks import TaskCalls
from chargehand.client.types.tasks import NewResult, Task, TaskArtifact
from chargehand.client.worker.functions import TaskFunction
from chargehand.client.worker.held import Held
from chargehand.client.worker.lease import LeaseLost, TaskLease
from chargehand.client.worker.presence import ServerPresence
from chargehand.client.worker.progress import ProgressSender
from chargehand.client.worker.results import ResultSender

log = logging.getLogger("chargehand.client")

STOP_SECONDS = 15.0  # for a cancelled coroutine to put its things away
MAX_REASON = 4096

Word = Literal["completed", "failed", "retry", "abandoned", "lost"]


@dataclass(frozen=True)
class TaskEnded:
    """What became of a task in this worker; `text` is the error or the reason, if there is one."""

    task: Task
    word: Word
    text: str
    seconds: float


@dataclass(frozen=True)
class _Ending:
    word: Word
    say: Callable[[], Awaitable[object]]
    text: str = ""


class TaskAttempt:
    def __init__(
        self,
        tasks: TaskCalls,
        presence: ServerPresence,
        results: ResultSender,
        task: Task,
        handler: TaskFunction,
        claimed_seconds: float,
    ) -> None:
        self._tasks = tasks
        self._results = results
        self._handler = handler
        self._task = task
        self._lease = TaskLease(tasks, presence, task, claimed_seconds, handler.lease_seconds)
        self._reports = ProgressSender(tasks, task)
        self._held = Held(task, self._reports.report)
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._call: asyncio.Future[Any] | None = None
        self._given_up = self._loop.create_future()
        self._why_lost = ""
        self._stopped = False
        self.busy = True  # the function runs

    def stop(self) -> None:
        """Give the task back. A thread cannot be stopped: it is left to itself, and what it returns is dropped."""
        self._stopped = True
        self._leave(0.0 if self._handler.in_a_thread else STOP_SECONDS)

    async def run(self) -> TaskEnded:
        """How it ended. Nothing that a function does can raise here."""
        keeping = self._loop.create_task(self._keep())
        try:
            if not self._stopped:
                self._call = self._handler.start(self._held)
                self._call.add_done_callback(_look)
                await asyncio.wait({self._call, self._given_up}, return_when=asyncio.FIRST_COMPLETED)
            self.busy = False
            await self._reports.close(0.0 if self._held.lost.is_set() or self._stopped else 1.0)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            self._given_up.cancel()
        word, text = await self._tell()
        return TaskEnded(self._task, word, text, self._loop.time() - self._since)

    async def _keep(self) -> None:
        try:
            await self._lease.keep()
        except LeaseLost as lost:
            self._why_lost = str(lost)
            self._held.lost.set()
            if not self._handler.in_a_thread:
                self._leave(STOP_SECONDS)

    def _leave(self, patience_seconds: float) -> None:
        if self._call is not None and not self._handler.in_a_thread:
            self._call.cancel()
        self._loop.call_later(patience_seconds, _finish, self._given_up)

    async def _tell(self) -> tuple[Word, str]:
        if self._held.lost.is_set():
            return "lost", self._why_lost
        ending = self._ending()
        try:
            try:
                await self._lease.insist(ending.say)
            except ClientError as error:
                if ending.word not in ("completed", "failed"):
                    raise
                # The server will not have this result, now or later: that is how the task ends, not by running again.
                # Without its files, which may be what the server will not have.
                said = f"{ending.text}; " if ending.text else ""
                ending = self._failed(f"{said}the server refused the result: {error}", ())
                await self._lease.insist(ending.say)
        except LeaseLost as lost:
            if lost.unheard and await self._was_heard(ending):
                return ending.word, ending.text
            self._held.lost.set()
            return "lost", str(lost)
        except ClientError as error:
            log.error("%s of task %s was refused, its lease will lapse: %s", ending.word, self._task.id, error)
            return "lost", str(error)
        return ending.word, ending.text

    async def _was_heard(self, ending: _Ending) -> bool:
        """The server ended the task and the answer was lost: then it has what we told it."""
        try:
            now = await self._tasks.get(self._task.id)
        except ClientError:
            return False
        return (ending.word, ending.text) == (now.status.lower(), now.error)

    def _ending(self) -> _Ending:
        call = self._call
        if call is None or not call.done() or (call.cancelled() and self._stopped):
            return self._abandoned()
        if call.cancelled():
            return self._nacked(None, "CancelledError")
        error = call.exception()
        if isinstance(error, Fail):
            return self._failed(error.error, self._held.artifacts)
        if isinstance(error, Retry):
            return self._nacked(error.delay_seconds, error.reason or "retry")
        if error is not None:
            log.warning("task %s (%s) raised", self._task.id, self._task.command, exc_info=error)
            return self._nacked(None, f"{type(error).__name__}: {error}")
        try:
            result = as_result(call.result())
        except Exception as unfit:  # whatever the objects in it do when they are looked at
            return self._failed(f"the result cannot be written as JSON: {unfit}", self._held.artifacts)
        outcome = NewResult("COMPLETED", result, "", self._held.artifacts, self._task.lease, self._task.id)
        return _Ending("completed", lambda: self._results.send(outcome))

    def _failed(self, error: str, artifacts: tuple[TaskArtifact, ...]) -> _Ending:
        text = _presentable(error)
        outcome = NewResult("FAILED", None, text, artifacts, self._task.lease, self._task.id)
        return _Ending("failed", lambda: self._results.send(outcome), text)

    def _nacked(self, delay_seconds: float | None, reason: str) -> _Ending:
        text = _presentable(reason)

        async def nack() -> object:
            return await self._tasks.nack(
                self._task.id, delay_seconds=delay_seconds, reason=text, lease=self._task.lease, retries=0
            )

        return _Ending("retry", nack, text)

    def _abandoned(self) -> _Ending:
        return _Ending("abandoned", lambda: self._tasks.abandon(self._task.id, lease=self._task.lease, retries=0))


def as_result(value: Any) -> msgspec.Raw:
    """The wire wants an object: what is one is taken as it is, the rest is put into one."""
    if value is None:
        return msgspec.Raw(b"{}")
    raw = msgspec.json.encode(value)
    return msgspec.Raw(raw if raw.startswith(b"{") else b'{"value":' + raw + b"}")


def _presentable(text: str) -> str:
    """A traceback may hold anything, and JSON does not take lone surrogates. The end tells most."""
    clean = text.encode("utf-8", "replace").decode("utf-8", "replace").strip()
    return clean[-MAX_REASON:] or "no reason given"


def _look(call: "asyncio.Future[Any]") -> None:
    """An error that nobody asked for, such as that of a task that was lost, is complained about unless it was seen."""
    if not call.cancelled():
        call.exception()


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
