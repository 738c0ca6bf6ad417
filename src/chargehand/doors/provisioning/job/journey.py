"""A job in the hands of its owner: every change of its run is durable before the next step is taken."""

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from chargehand.doors.provisioning.job.ledger import JobLedger, JobLedgers, Outcome, Verdict
from chargehand.doors.provisioning.job.ledger_writer import LedgerWriter
from chargehand.doors.provisioning.job.run import KEYS, JobRun, JobRuns, Mark, RunStep
from chargehand.doors.provisioning.recipe.recipe import Recipe
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import SECOND, Job, Level
from chargehand.engine.moves import Note
from chargehand.errors import ChargehandError, StaleLease
from chargehand.observability.logs import get_logger

MAX_MARKS = 100
LOOK_SECONDS = 30.0  # how often it checks without being woken

T = TypeVar("T")
log = get_logger(__name__)


class StepFailed(Exception):
    def __init__(self, key: Key, message: str, reason: str = "", *, refused: bool = False) -> None:
        super().__init__(message)
        self.key = key
        self.message = message
        self.reason = reason
        self.refused = refused  # the BMC refused the request, and so did nothing


class Overtaken(Exception):
    """A verdict was recorded while the owner worked: the work is stopped."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.outcome)
        self.verdict = verdict


@dataclass(eq=False, repr=False)
class Journey:
    engine: Engine
    _runs: JobRuns
    _ledgers: JobLedgers
    _writer: LedgerWriter
    job: Job
    serial: str
    recipe: Recipe
    run: JobRun
    _version: int

    # the run ------------------------------------------------------------------------------------------------------------

    async def save(self, **changes: Any) -> None:
        await self._write(replace(self.run, **changes))

    async def close(self, due_at: int) -> None:
        """Write the last step; `due_at`: when retention must look at the run."""
        await self._write(replace(self.run, step=RunStep.DONE), due_at)

    async def _write(self, run: JobRun, due_at: int | None = None) -> None:
        put = self._runs.put(self.job.tenant, self.job.id, run, self._version, due_at=due_at)
        writing = asyncio.ensure_future(put)
        try:
            self._version, self.run = await asyncio.shield(writing), run
        except asyncio.CancelledError:
            # A verdict may stop the work in the midst of this write. Without its new version we would take our own write for
            # another owner's.
            with contextlib.suppress(ChargehandError):
                self._version, self.run = await writing, run
            raise

    async def require(self) -> None:
        """Raise StaleLease if the job has another owner. Called before every request that changes something at a BMC."""
        if not await self.engine.holds(self.job.id, self.job.lease):
            raise StaleLease(f"job {self.job.id} has another owner now")

    async def enter(self, step: RunStep) -> None:
        marks = self.run.marks
        if not marks or marks[-1].step is not step or marks[-1].ended_at is not None:
            marks = (*marks, Mark(step, self.engine.now()))[-MAX_MARKS:]
        await self.save(step=step, marks=marks)

    async def leave(self, message: str, *, to: RunStep, ok: bool = True, **changes: Any) -> None:
        """End the step: store its time, and write a line into the log of the job and into ours."""
        step, now = self.run.step, self.engine.now()
        last = self.run.marks[-1]
        marks = (*self.run.marks[:-1], replace(last, ended_at=now, ok=ok))
        await self.save(step=to, marks=marks, trouble="", **changes)
        seconds = (now - last.began_at) / SECOND
        if ok:
            await self.note(message, step=str(KEYS[step]), data={"step": step, "seconds": round(seconds, 3)})
        log.info(
            "a step ended" if ok else "a step failed",
            job_id=self.job.id,
            server_serial=self.serial,
            step=str(step),
            attempt=self.run.generation,
            duration_ms=round(seconds * 1000),
        )

    # the log of the job -------------------------------------------------------------------------------------------------

    async def note(
        self, message: str, *, level: Level = "info", step: str = "", data: dict[str, Any] | None = None
    ) -> None:
        body = None if data is None else msgspec.json.encode(data)
        await self.engine.note(Note(Guard.held(self.job), level, step, one_line(message), body))

    async def warn(self, key: Key, message: str) -> None:
        warning = f"{key}: {one_line(message)}"
        if warning not in self.run.warnings:
            await self.save(warnings=(*self.run.warnings, warning)[-20:])
        await self.note(message, level="warn", step=str(key))

    # the verdict --------------------------------------------------------------------------------------------------------

    async def ledger(self) -> JobLedger:
        return await self._ledgers.get(self.job.tenant, self.job.id) or JobLedger(self.run.generation)

    async def verdict(self) -> Verdict | None:
        return (await self.ledger()).verdict

    async def judge(self, outcome: Outcome, *, key: str | None = None, error: str = "", reason: str = "") -> Verdict:
        """Record the owner's verdict if there is none; return the recorded one."""
        verdict = Verdict(outcome, self.engine.now(), "controller", key, "", one_line(error), reason)
        return await self._writer.judge(self.job.tenant, self.job.id, verdict)

    async def fail(self, key: str, message: str, reason: str = "") -> Verdict:
        """End the step that is under way and record the failure; return the recorded verdict."""
        if self.run.marks and self.run.marks[-1].ended_at is None:
            await self.leave("", ok=False, to=self.run.step)
        return await self.judge("failed", key=key, error=message, reason=reason)

    async def unless_judged(self, work: Awaitable[T]) -> T:
        """Return the work's result. When a verdict comes first, stop the work and raise Overtaken."""
        doing = asyncio.ensure_future(work)
        news = asyncio.Event()
        stop = self.engine.watching(self.job.id, news)
        try:
            while True:
                if (verdict := await self.verdict()) is not None and not doing.done():
                    raise Overtaken(verdict)
                waiting = asyncio.create_task(news.wait())
                try:
                    await asyncio.wait({doing, waiting}, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiting.cancel()
                if doing.done():
                    return doing.result()
                news.clear()
        finally:
            stop()
            if not doing.done():
                doing.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await doing

    # time ---------------------------------------------------------------------------------------------------------------

    def left(self, began_at: int, seconds: float) -> float:
        """Return the seconds left of a budget that began then; not negative."""
        return max(0.0, (began_at - self.engine.now()) / SECOND + seconds)


def one_line(text: str) -> str:
    """Return the text as one line, without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:2000]
