"""THE TABLE of moves, and `decide`, which turns what happened into one of them. Pure: no clock, no I/O.

`docs/states.md` is made from this table.
"""

from enum import Enum
from random import Random
from typing import ClassVar

import msgspec

from chargehand.engine.backoff import equal_jitter
from chargehand.engine.guard import Guard
from chargehand.engine.job import SECOND, Job, NewJob, State, topic_of
from chargehand.engine.operation import Operation
from chargehand.engine.queue import Queue

QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED = State


class Lease(Enum):
    GRANT = "granted"
    EXTEND = "extended"
    KEEP = "kept"
    DROP = "dropped"


class Attempt(Enum):
    UP = "counted"
    DOWN = "given back"
    SAME = "kept"
    RESET = "starts again at 0"


class Move(msgspec.Struct, frozen=True):
    name: str
    source: frozenset[State]
    to: State
    lease: Lease
    attempt: Attempt
    meaning: str

    by_name: ClassVar[dict[str, "Move"]] = {}

    @property
    def needs_holder(self) -> bool:
        """Return whether only the holder of the job may make this move."""
        return self.source == frozenset({State.RUNNING})


# fmt: off
TABLE = (
    #    name       from                          to         lease         attempt
    Move("claim",   frozenset({QUEUED}),            RUNNING,   Lease.GRANT,  Attempt.UP,    "somebody took the job"),
    Move("beat",    frozenset({RUNNING}),           RUNNING,   Lease.EXTEND, Attempt.SAME,  "the owner is alive; writes no event"),
    Move("advance", frozenset({RUNNING}),           RUNNING,   Lease.KEEP,   Attempt.SAME,  "the stage changed"),
    Move("succeed", frozenset({RUNNING}),           SUCCEEDED, Lease.DROP,   Attempt.SAME,  "done, with a result"),
    Move("retry",   frozenset({RUNNING}),           QUEUED,    Lease.DROP,   Attempt.SAME,  "the work began and broke; comes back after a backoff"),
    Move("park",    frozenset({RUNNING}),           QUEUED,    Lease.DROP,   Attempt.DOWN,  "nobody's fault; the attempt does not count"),
    Move("fail",    frozenset({RUNNING}),           FAILED,    Lease.DROP,   Attempt.SAME,  "given up, with an error"),
    Move("cancel",  frozenset({QUEUED, RUNNING}),   CANCELLED, Lease.DROP,   Attempt.SAME,  "somebody asked for it"),
    Move("expire",  frozenset({QUEUED, RUNNING}),   FAILED,    Lease.DROP,   Attempt.SAME,  "its deadline passed"),
    Move("requeue", frozenset({FAILED, CANCELLED}), QUEUED,    Lease.DROP,   Attempt.RESET, "an operator gives it all its attempts again, and no deadline"),
)
# fmt: on
# When a step of a flow is due, whoever waits for jobs is told of a `release` (store/flows.py). That is none of these moves: nobody asks
# for it, the step stays queued, and it has no event.
Move.by_name.update({move.name: move for move in TABLE})


class Moved(msgspec.Struct, frozen=True, array_like=True, tag="moved"):
    """The job after a move: enough to wake whoever waits for it."""

    job_id: str
    queue: Queue
    move: str
    state: State
    stage: str
    attempt: int
    seq: int
    run_at: int
    at: int
    created_at: int
    endpoints: tuple[str, ...] = ()  # where deliveries were put
    successor: "Moved | None" = None  # of the job that was submitted with it
    others: tuple["Moved", ...] = ()  # of its flow: what else moved in the same commit
    flow: str = ""  # whose log says that this step has ended

    @property
    def tenant(self) -> str:
        return self.queue.tenant

    @property
    def kind(self) -> str:
        return self.queue.kind


class Change(Operation[Moved | None], frozen=True, array_like=True, tag="change"):
    """One guarded move of one job: it happens only if the job is still as the mover saw it."""

    guard: Guard
    move: str
    stage: str = ""
    delay_seconds: float = 0.0
    waiting_for: str = ""
    error: str | None = None
    failed_step: str | None = None
    result: bytes | None = None
    level: str = "info"
    step: str = ""
    message: str = ""
    data: bytes | None = None
    lease_until: int | None = None  # the lease's end as a lapse saw it: a later beat keeps the job
    deadline_at: int | None = None  # the deadline as an expiry saw it: a job requeued since has none
    payload: bytes | None = None  # in place of the job's own, for another start
    seen_stage: str | None = None  # the stage as a mover without a lease saw it: of two who saw the same, one moves
    successor: NewJob | None = None  # submitted with the move, in the same commit, or not at all


class Submitted(msgspec.Struct, frozen=True, array_like=True, tag="submitted"):
    job_id: str
    created: bool  # False: the idempotency key was known, and this is the job it made
    fingerprint: str | None
    moved: Moved | None = None


class Beat(Operation[int | None], frozen=True, array_like=True, tag="beat"):
    """Extend a lease; the answer is until when it holds now."""

    guard: Guard
    lease_seconds: float


class Note(Operation[int | None], frozen=True, array_like=True, tag="note"):
    """Add a line to a job's log without a move; the answer is its number. Without a holder in its guard it may be written in any state."""

    guard: Guard
    level: str = "info"
    step: str = ""
    message: str = ""
    data: bytes | None = None


class Prune(Operation[int], frozen=True, array_like=True, tag="prune"):
    """Remove finished jobs with all that belongs to them; the answer is how many."""

    ids: tuple[str, ...]
    age: int
    of: tuple[str, str] | None = None  # a tenant and a kind: somebody removes those jobs now, whatever their age


# What happened to a job that somebody worked on. ----------------------------------------------------------------------


class Broke(msgspec.Struct, frozen=True):
    """The work began and failed. The attempt counts."""

    error: str
    failed_step: str | None = None
    delay_seconds: float | None = None  # None: the backoff decides
    final: bool = False  # trying again cannot help
    data: bytes | None = None  # of the event, as JSON


class Lapsed(msgspec.Struct, frozen=True):
    """The owner sent no beat until its lease ran out."""


class RetryPolicy(msgspec.Struct, frozen=True):
    backoff_base_seconds: float
    backoff_max_seconds: float


def decide(job: Job, outcome: Broke | Lapsed, policy: RetryPolicy, random: Random) -> Change:
    """Retry after a backoff if attempts are left, else fail."""
    lease_until = None
    step = None
    if isinstance(outcome, Lapsed):
        outcome, lease_until = Broke(f"the lease of {job.lease_owner} lapsed"), job.lease_until
        step = "lease"
    if outcome.final or job.attempt >= job.max_attempts:
        return give_up(job, outcome, lease_until, step)
    delay = outcome.delay_seconds
    if delay is None:
        delay = equal_jitter(job.attempt, policy.backoff_base_seconds, policy.backoff_max_seconds, random)
    return try_again(job, outcome, delay, lease_until, step)


def give_up(job: Job, broke: Broke, lease_until: int | None, step: str | None = None) -> Change:
    return Change(
        Guard.held(job),
        "fail",
        lease_until=lease_until,
        error=broke.error,
        failed_step=broke.failed_step,
        level="error",
        step=step or broke.failed_step or "",
        message=f"failed on attempt {job.attempt} of {job.max_attempts}: {broke.error}",
        data=broke.data,
    )


def try_again(job: Job, broke: Broke, delay: float, lease_until: int | None, step: str | None = None) -> Change:
    return Change(
        Guard.held(job),
        "retry",
        lease_until=lease_until,
        delay_seconds=delay,
        waiting_for="backoff" if delay else "",
        error=broke.error,
        failed_step=broke.failed_step,
        level="warn",
        step=step or broke.failed_step or "",
        message=f"attempt {job.attempt} of {job.max_attempts} broke, again in {delay:.1f} s: {broke.error}",
        data=broke.data,
    )


def expire(job: Job) -> Change:
    """Return the change that fails a job whose deadline has passed."""
    seconds = ((job.deadline_at or job.created_at) - job.created_at) / SECOND
    error = f"the deadline of {f'{seconds:.3f}'.rstrip('0').rstrip('.')} s passed"
    waiting = f", waiting for {job.waiting_for}" if job.waiting_for else ""
    return Change(
        Guard.seen(job),
        "expire",
        deadline_at=job.deadline_at,
        error=error,
        level="error",
        step="deadline",
        message=f"expired while {topic_of(job.state, job.stage)}{waiting}: {error}",
    )
