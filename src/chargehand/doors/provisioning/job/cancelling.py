"""Cancelling a job. One that has begun is cleaned up before it ends; one that has not ends at once."""

import asyncio
import contextlib

from chargehand.doors.provisioning.job.ledger import Verdict
from chargehand.doors.provisioning.job.ledger_writer import LedgerWriter
from chargehand.doors.provisioning.job.outcomes import Outcomes
from chargehand.doors.provisioning.job.position import position_of
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import Job, State
from chargehand.engine.moves import Change, Moved
from chargehand.errors import Conflict

READS = 40
READ_SECONDS = 0.05


class Cancelling:
    def __init__(self, engine: Engine, ledger: LedgerWriter, outcomes: Outcomes) -> None:
        self._engine = engine
        self._ledger = ledger
        self._outcomes = outcomes

    async def cancel(self, job: Job, message: str) -> Moved:
        for _ in range(READS):
            if job.state is State.CANCELLED:
                return _moved(job)  # the caller asks again, since the answer was lost
            if job.finished:
                raise Conflict(f"job {job.id} is complete; there is nothing to cancel")
            if position_of(job).begun:
                return await self._stop(job, message)
            if job.state is State.QUEUED:
                plain = Change(Guard.held(job), "cancel", error="cancelled", level="warn", message=message)
                with contextlib.suppress(Conflict):  # a runner claims it this very moment
                    return await self._engine.change(plain)
            await asyncio.sleep(READ_SECONDS)  # it is claimed, and its owner has not begun yet
            job = await self._engine.get(job.id)
        raise Conflict(f"job {job.id} is just being claimed; ask again")

    async def _stop(self, job: Job, message: str) -> Moved:
        """The verdict stops the owner, which cleans up and ends the job."""
        verdict = Verdict("cancelled", self._engine.now(), message, error=message)
        known = await self._ledger.judge(job.tenant, job.id, verdict)
        if known.outcome != "cancelled":
            raise Conflict(f"job {job.id} has its outcome already ({known.outcome}) and is being cleaned up")
        await self._outcomes.show(job, verdict, held=False)
        return _moved(await self._engine.get(job.id))


def _moved(job: Job) -> Moved:
    return Moved(
        job.id, job.queue, "advance", job.state, job.stage, job.attempt, job.seq, job.run_at,
        job.updated_at, job.created_at,
    )  # fmt: skip
