"""One task from the claim to its end: its function runs while heartbeats keep the lease, then the worker reports the end.

| the function …           | the worker reports             | `TaskEnded.word` |
|--------------------------|--------------------------------|------------------|
| returns                  | COMPLETED with the value       | `completed`      |
| raises Fail              | FAILED with the error          | `failed`         |
| raises Retry, or another | nack: another try, later       | `retry`          |
| passes its time limit    | nack: another try, later       | `retry`          |
| is stopped by the worker | abandon: as if never claimed   | `abandoned`      |
| has lost its lease       | nothing                        | `lost`           |
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from chargehand.client.errors import ClientError, Fail, Retry
from chargehand.client.tasks import TaskCalls
from chargehand.client.types.tasks import NewResult, Task, TaskArtifact
from chargehand.client.worker.calls import Call, FunctionCalls, RaisedInChild
from chargehand.client.worker.functions import TaskFunction
from chargehand.client.worker.held import Held
from chargehand.client.worker.lease import LeaseLost, TaskLease
from chargehand.client.worker.outcome import as_result
from chargehand.client.worker.presence import ServerPresence
from chargehand.client.worker.progress import ProgressSender
from chargehand.client.worker.results import ResultSender

log = logging.getLogger("chargehand.client")

STOP_SECONDS = 15.0  # for a cancelled coroutine to clean up
LATE_SECONDS = 2.0  # the same, past its hard time limit
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
        calls: FunctionCalls,
        claimed_seconds: float,
    ) -> None:
        self._tasks = tasks
        self._results = results
        self._handler = handler
        self._calls = calls
        self._task = task
        self._lease = TaskLease(tasks, presence, task, claimed_seconds, handler.lease_seconds)
        self._reports = ProgressSender(tasks, task)
        self._held = Held(task, self._reports.report)
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._call: Call | None = None
        self._given_up = self._loop.create_future()
        self._released = self._loop.create_future()
        self._why_lost = ""
        self._stopped = self._overdue = False
        self._clocks: list[asyncio.TimerHandle] = []
        self.busy = True  # the function runs
        self.reported = False

    def stop(self) -> None:
        """Stop the function and give the task back. A thread cannot be stopped: it runs on, and its result is dropped."""
        self._stopped = True
        _finish(self._released)
        self._give_up(STOP_SECONDS if self._handler.can_be_stopped else 0.0)

    async def run(self) -> TaskEnded:
        """Run the function and report its end. Nothing that the function raises is raised here."""
        keeping = self._loop.create_task(self._keep())
        try:
            if not self._stopped:
                self._call = self._calls.start(self._handler, self._held)
                if self._handler.limits:
                    self._call.begun.add_done_callback(self._set_clocks)
                await asyncio.wait({self._call.ended, self._given_up}, return_when=asyncio.FIRST_COMPLETED)
            if self._call is not None and not self._call.ended.done():
                self._call.kill()
            self.busy = self._outlasts_its_limit
            await self._reports.close(0.0 if self._held.lost.is_set() or self._stopped else 1.0)
        finally:
            keeping.cancel()
            for clock in self._clocks:
                clock.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            self._given_up.cancel()
        word, text = await self._report_end()
        self.reported = True
        return TaskEnded(self._task, word, text, self._loop.time() - self._since)

    async def leave(self) -> None:
        """Wait for a function that cannot be stopped, though its task has gone back: until it ends it has its place."""
        if self._call is None or not self._outlasts_its_limit:
            return
        self._held.lost.set()
        log.error(
            "task %s (%s) is past its timeout and cannot be stopped: its place stays taken until it ends",
            self._task.id,
            self._task.command,
        )
        await asyncio.wait({self._call.ended, self._released}, return_when=asyncio.FIRST_COMPLETED)
        self.busy = False

    @property
    def _outlasts_its_limit(self) -> bool:
        call = self._call
        return self._overdue and call is not None and not call.can_be_killed and not call.ended.done()

    def _set_clocks(self, _: object) -> None:
        limits = self._handler.limits
        if limits.soft is not None and self._call is not None:
            self._clocks.append(self._loop.call_later(limits.soft, self._call.soften))
        if limits.hard is not None:
            self._clocks.append(self._loop.call_later(limits.hard, self._pass_limit))

    def _pass_limit(self) -> None:
        if self._stopped:
            return
        self._overdue = True
        self._give_up(LATE_SECONDS if self._handler.can_be_stopped else 0.0)

    async def _keep(self) -> None:
        try:
            await self._lease.keep()
        except LeaseLost as lost:
            self._why_lost = str(lost)
            self._held.lost.set()
            if self._handler.can_be_stopped or (self._call is not None and self._call.can_be_killed):
                self._give_up(STOP_SECONDS)

    def _give_up(self, after_seconds: float) -> None:
        if self._call is not None:
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
        call = self._call.ended if self._call is not None else None
        if self._overdue:
            return self._nacked(None, f"took longer than {self._handler.limits.hard:g} s")
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
            named = "" if isinstance(error, RaisedInChild) else f"{type(error).__name__}: "
            return self._nacked(None, f"{named}{error}")
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


def _presentable(text: str) -> str:
    """Drop lone surrogates, which JSON does not allow, and keep the end, which says most."""
    clean = text.encode("utf-8", "replace").decode("utf-8", "replace").strip()
    return clean[-MAX_REASON:] or "no reason given"


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
