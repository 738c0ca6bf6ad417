"""Where a job is, from its stored records.

Three parties store a part each, under guards of their own, so it cannot be one record:

- a move writes the job's row, guarded by the lease or by the stage that the mover saw: what callers were shown;
- the owner writes the run, guarded by the record's version: the step that it takes;
- whoever knows the outcome first writes the verdict into the ledger: a machine that reports to any node, a deadline, an operator. Most of
  them hold no lease.

Only this module reads the three together. A job that an operator starts again keeps the run and the ledger of the start before until
its new owner has written its own: `position_of` leaves those out.
"""

from enum import StrEnum
from typing import Literal, NamedTuple

from chargehand.doors.provisioning.job.ledger import JobLedger, JobLedgers, Outcome, Verdict
from chargehand.doors.provisioning.job.run import JobRun, JobRuns, RunStep
from chargehand.engine.job import FINAL, Event, Job, State, topic_of, visible

Status = Literal["queued", "provisioning", "succeeded", "failed", "complete"]


class Stage(StrEnum):
    """The stages of a job that runs. `complete` is the engine's own end."""

    PROVISIONING = "provisioning"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


STAGE_OF: dict[Outcome, Stage] = {"succeeded": Stage.SUCCEEDED, "failed": Stage.FAILED, "cancelled": Stage.FAILED}
TOPICS: dict[Status, tuple[str, ...]] = {  # what callers see -> what the engine calls it
    "queued": ("queued",),
    "provisioning": ("running:provisioning",),
    "succeeded": ("running:succeeded",),
    "failed": ("running:failed",),
    "complete": ("succeeded", "failed", "cancelled"),
}
_STATUSES: dict[str, Status] = {
    topic: status for status, topics in TOPICS.items() if status != "complete" for topic in topics
}
_ENDS: dict[str, Outcome] = {
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
    topic_of(State.RUNNING, Stage.SUCCEEDED): "succeeded",
    topic_of(State.RUNNING, Stage.FAILED): "failed",
}


class Position(NamedTuple):
    status: Status
    outcome: Outcome | None  # None: not known yet
    begun: bool  # callers were shown that this start is under way
    run: JobRun | None  # of this start
    ledger: JobLedger | None  # of this start

    @property
    def verdict(self) -> Verdict | None:
        return self.ledger.verdict if self.ledger else None

    @property
    def step(self) -> str:
        """The owner's step; while the owner waits, the step that the machine last reported."""
        step = self.run.step if self.run else RunStep.BUILD
        reported = self.ledger.steps if self.ledger and step is RunStep.WAIT else ()
        return reported[-1].step if reported else str(step)


def position_of(job: Job, run: JobRun | None = None, ledger: JobLedger | None = None) -> Position:
    begun = job.topic != State.QUEUED
    ledger = ledger if begun else None
    # The run of this start is written before callers are shown it; that of the start before is done by then.
    run = run if begun or (run and run.step is not RunStep.DONE) else None
    outcome = _ENDS.get(job.state) or (ledger.verdict.outcome if ledger and ledger.verdict else _ENDS.get(job.topic))
    return Position(_shown(job.state, job.topic) or "queued", outcome, begun, run, ledger)


def status_after(event: Event) -> Status | None:
    """Return the status that callers see after the event; None if they were shown none yet."""
    topic = topic_of(event.state, event.stage) if visible(event.state, event.stage) else event.previous
    return _shown(event.state, topic)


def status_before(event: Event) -> Status | None:
    return _STATUSES.get(event.previous)


def outcome_after(event: Event) -> Outcome | None:
    return _ENDS.get(event.state)


def _shown(state: State, topic: str) -> Status | None:
    return "complete" if state in FINAL else _STATUSES.get(topic)


class Positions:
    """Reads the records of a job and says where it is."""

    def __init__(self, runs: JobRuns, ledgers: JobLedgers) -> None:
        self._runs = runs
        self._ledgers = ledgers

    async def of(self, job: Job) -> Position:
        found = await self._runs.get(job.tenant, job.id)
        return position_of(job, found[0] if found else None, await self._ledgers.get(job.tenant, job.id))

    async def in_list(self, job: Job) -> Position:
        """Return the position without the run. For a finished job only the row is read: it has the outcome."""
        return position_of(job, ledger=None if job.finished else await self._ledgers.get(job.tenant, job.id))
