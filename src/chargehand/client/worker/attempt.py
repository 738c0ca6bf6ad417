"""One task from the claim to its end: its function runs while heartbeats keep the lease, then the worker reports the end.

| the function …           | the worker reports             | `TaskEnded.word` |
|--------------------------|--------------------------------|------------------|
| returns                  | COMPLETED with the value       | `completed`      |
| raises Fail              | FAILED with the error          | `failed`         |
| raises Retry, or another | nack: another try, later       | `retry`          |
| is stopped by the worker | abandon: as if never claimed   | `abandoned`      |
| has lost its lease       | nothing                        | `lost`           |
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

STOP_SECONDS = 15.0  # for a cancelled coroutine to clean up
MAX_REASON = 4096

Word = Literal["completed", "failed", "retry", "abandoned", "lost"]


@dataclass(frozen=True)
class TaskEnded:
    """How a task ended in this worker; `text` is the error or the reason, if there is one."""

    task: Task
    word: Word
    text: str
    seconds: float


@dataclass(frozen=True)
class _FinalReport:
    word: Word
    send: Callable[[], Awaitable[object]]
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
        """Stop the function and give the task back. A thread cannot be stopped: it runs on, and its result is dropped."""
        self._stopped = True
        self._give_up(0.0 if self._handler.in_a_thread else STOP_SECONDS)

    async def run(self) -> TaskEnded:
        """Run the function and report its end. Nothing that the function raises is raised here."""
        keeping = self._loop.create_task(self._keep())
        try:
            if not self._stopped:
                self._call = self._handler.start(self._held)
                self._call.add_done_callback(_retrieve)
                await asyncio.wait({self._call, self._given_up}, return_when=asyncio.FIRST_COMPLETED)
            self.busy = False
            await self._reports.close(0.0 if self._held.lost.is_set() or self._stopped else 1.0)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            self._given_up.cancel()
        word, text = await self._report_end()
        return TaskEnded(self._task, word, text, self._loop.time() - self._since)

    async def _keep(self) -> None:
        try:
            await self._lease.keep()
        except LeaseLost as lost:
            self._why_lost = str(lost)
            self._held.lost.set()
            if not self._handler.in_a_thread:
                self._give_up(STOP_SECONDS)

    def _give_up(self, after_seconds: float) -> None:
        if self._call is not None and not self._handler.in_a_thread:
            self._call.cancel()
        self._loop.call_later(after_seconds, _finish, self._given_up)

    async def _report_end(self) -> tuple[Word, str]:
        if self._held.lost.is_set():
            return "lost", self._why_lost
        ending = self._ending()
        try:
            try:
                await self._lease.insist(ending.send)
            except ClientError as error:
                if ending.word not in ("completed", "failed"):
                    raise
                # The server would refuse this result again, so the task fails rather than runs again: without its files, which may
                # be what the server refuses.
                before = f"{ending.text}; " if ending.text else ""
                ending = self._failed(f"{before}the server refused the result: {error}", ())
                await self._lease.insist(ending.send)
        except LeaseLost as lost:
            if lost.unheard and await self._was_heard(ending):
                return ending.word, ending.text
            self._held.lost.set()
            return "lost", str(lost)
        except ClientError as error:
            log.error("%s of task %s was refused, its lease will lapse: %s", ending.word, self._task.id, error)
            return "lost", str(error)
        return ending.word, ending.text

    async def _was_heard(self, ending: _FinalReport) -> bool:
        """Whether the server ended the task as reported, and only its answer was lost."""
        try:
            now = await self._tasks.get(self._task.id)
        except ClientError:
            return False
        return (ending.word, ending.text) == (now.status.lower(), now.error)

    def _ending(self) -> _FinalReport:
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
        except Exception as unfit:  # the objects in it may raise anything
            return self._failed(f"the result cannot be written as JSON: {unfit}", self._held.artifacts)
        outcome = NewResult("COMPLETED", result, "", self._held.artifacts, self._task.lease, self._task.id)
        return _FinalReport("completed", lambda: self._results.send(outcome))

    def _failed(self, error: str, artifacts: tuple[TaskArtifact, ...]) -> _FinalReport:
        text = _presentable(error)
        outcome = NewResult("FAILED", None, text, artifacts, self._task.lease, self._task.id)
        return _FinalReport("failed", lambda: self._results.send(outcome), text)

    def _nacked(self, delay_seconds: float | None, reason: str) -> _FinalReport:
        text = _presentable(reason)

        async def nack() -> object:
            return await self._tasks.nack(
                self._task.id, delay_seconds=delay_seconds, reason=text, lease=self._task.lease, retries=0
            )

        return _FinalReport("retry", nack, text)

    def _abandoned(self) -> _FinalReport:
        return _FinalReport("abandoned", lambda: self._tasks.abandon(self._task.id, lease=self._task.lease, retries=0))


def as_result(value: Any) -> msgspec.Raw:
    """The result as a JSON object; any other value is put into one."""
    if value is None:
        return msgspec.Raw(b"{}")
    raw = msgspec.json.encode(value)
    return msgspec.Raw(raw if raw.startswith(b"{") else b'{"value":' + raw + b"}")


def _presentable(text: str) -> str:
    """Drop lone surrogates, which JSON does not allow, and keep the end, which says most."""
    clean = text.encode("utf-8", "replace").decode("utf-8", "replace").strip()
    return clean[-MAX_REASON:] or "no reason given"


def _retrieve(call: "asyncio.Future[Any]") -> None:
    """Retrieve the error of a call that nobody awaits any more, else asyncio logs it."""
    if not call.cancelled():
        call.exception()


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
