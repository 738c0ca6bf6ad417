"""For workers: claim jobs with a long poll, extend the lease, report progress, finish."""

from collections.abc import Awaitable
from typing import Annotated

import msgspec

from chargehand.api.jobs import JobMoved, reply_moved
from chargehand.api.views import KIND, Instant, JobView, QueueName, job_view
from chargehand.config import Config
from chargehand.engine.endings import repeated
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import Job, rfc3339
from chargehand.engine.moves import Broke, Change, Moved, Note
from chargehand.engine.queue import Queue
from chargehand.errors import InvalidField, NotFound, StaleLease
from chargehand.http.inputs import TEN_YEARS, absent, json_or_absent, json_text
from chargehand.http.paging import ulid
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, decode, read_body, reply

TAG = "work"
SCOPE = "work"
NOTE_BYTES = 65_536  # small, since a page of events has a thousand of them
STAGE = "claimed"  # the only stage that is seen of a remote worker: it claimed the job

Lease = Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1, description="The lease number that came with the claim")]
Owner = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$", description="Default: the token's name"),
]
Text = Annotated[str, msgspec.Meta(max_length=10_000)]
Delay = Annotated[float, msgspec.Meta(ge=0, le=TEN_YEARS)]


def _null() -> msgspec.Raw:
    return msgspec.Raw(b"null")


class ClaimJobs(msgspec.Struct, forbid_unknown_fields=True):
    """The queues that a worker can handle."""

    queues: Annotated[tuple[QueueName, ...], msgspec.Meta(min_length=1, max_length=100)]
    owner: Owner | None = None
    lease_seconds: Annotated[float, msgspec.Meta(gt=0, description="Default: engine.lease_seconds")] | None = None
    wait_seconds: Annotated[float, msgspec.Meta(ge=0, description="Long poll; cut to engine.max_wait_seconds")] = 0.0
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


class ClaimedJob(JobView, kw_only=True):
    lease: Lease
    traceparent: Annotated[str, msgspec.Meta(description="W3C trace context of the submitting request; empty: none")]
    tracestate: str


class ClaimedJobs(msgspec.Struct):
    jobs: list[ClaimedJob]


class BeatJob(msgspec.Struct, forbid_unknown_fields=True):
    lease: Lease
    lease_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None


class LeaseExtended(msgspec.Struct):
    lease_until: Instant


class AdvanceJob(msgspec.Struct, forbid_unknown_fields=True):
    lease: Lease
    stage: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$", description="In the worker's words")]
    message: Text = ""


class NoteJob(msgspec.Struct, forbid_unknown_fields=True):
    """A line in the job's log: progress, a warning."""

    lease: Lease
    message: Text
    level: Annotated[str, msgspec.Meta(pattern="^(info|warn|error)$")] = "info"
    step: Annotated[str, msgspec.Meta(max_length=200)] = ""
    data: Annotated[msgspec.Raw, msgspec.Meta(description="Any JSON")] = msgspec.field(default_factory=absent)


class NoteAdded(msgspec.Struct):
    sequence: int


class SucceedJob(msgspec.Struct, forbid_unknown_fields=True):
    lease: Lease
    result: Annotated[msgspec.Raw, msgspec.Meta(description="Any JSON")] = msgspec.field(default_factory=_null)


class RetryJob(msgspec.Struct, forbid_unknown_fields=True):
    """The attempt broke and counts. When no attempt is left, the job fails."""

    lease: Lease
    error: Text
    failed_step: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    delay_seconds: Annotated[Delay, msgspec.Meta(description="Default: exponential backoff with jitter")] | None = None


class ParkJob(msgspec.Struct, forbid_unknown_fields=True):
    """Give the job back; the attempt does not count."""

    lease: Lease
    waiting_for: Annotated[str, msgspec.Meta(max_length=200, description="Shown to whoever asks why the job waits")] = (
        ""
    )
    delay_seconds: Delay = 0.0


class FailJob(msgspec.Struct, forbid_unknown_fields=True):
    """Fail the job without a retry."""

    lease: Lease
    error: Text
    failed_step: Annotated[str, msgspec.Meta(max_length=200)] | None = None


_claim = msgspec.json.Decoder(ClaimJobs)
_beat = msgspec.json.Decoder(BeatJob)
_advance = msgspec.json.Decoder(AdvanceJob)
_note = msgspec.json.Decoder(NoteJob)
_succeed = msgspec.json.Decoder(SucceedJob)
_retry = msgspec.json.Decoder(RetryJob)
_park = msgspec.json.Decoder(ParkJob)
_fail = msgspec.json.Decoder(FailJob)


class WorkApi:
    def __init__(self, engine: Engine, config: Config) -> None:
        self._engine = engine
        self._config = config.engine
        self._max_body = config.server.max_body_bytes

    def routes(self) -> list[Route]:
        one, lost = "/engine/jobs/{job_id}", (NotFound, StaleLease)
        # fmt: off
        return [
            Route("POST", "/engine/claims", self.claim_jobs, "Claim jobs, waiting for them if asked to", SCOPE, TAG,
                  "By priority, then age, over all queues named.", request=ClaimJobs, reply=ClaimedJobs, or_nothing="There was nothing to claim"),
            Route("POST", f"{one}/beat", self.beat_job, "Extend the lease", SCOPE, TAG, request=BeatJob, reply=LeaseExtended, errors=lost),
            Route("POST", f"{one}/advance", self.advance_job, "Set the stage of a job", SCOPE, TAG, request=AdvanceJob, reply=JobMoved, errors=lost),
            Route("POST", f"{one}/note", self.note_job, "Add a line to the job's log", SCOPE, TAG, request=NoteJob, reply=NoteAdded, errors=lost),
            Route("POST", f"{one}/succeed", self.succeed_job, "Finish with a result", SCOPE, TAG, request=SucceedJob, reply=JobMoved, errors=lost),
            Route("POST", f"{one}/retry", self.retry_job, "Retry a job whose attempt broke", SCOPE, TAG, request=RetryJob, reply=JobMoved, errors=lost),
            Route("POST", f"{one}/park", self.park_job, "Give a job back; the attempt does not count", SCOPE, TAG, request=ParkJob, reply=JobMoved, errors=lost),
            Route("POST", f"{one}/fail", self.fail_job, "Finish with an error", SCOPE, TAG, request=FailJob, reply=JobMoved, errors=lost),
        ]
        # fmt: on

    async def claim_jobs(self, req: Request, resp: Response) -> None:
        asked = decode(_claim, await read_body(req, self._max_body))
        caller = req.caller
        owner = asked.owner or caller.subject
        if owner.startswith("@"):
            raise InvalidField("owner", "must not begin with @, which marks the server's own runners")
        queues = tuple(dict.fromkeys(Queue(KIND, caller.tenant, name) for name in asked.queues))
        lease = self._lease(asked.lease_seconds)
        jobs: tuple[Job, ...] | None = await self._engine.claim(queues, owner, lease, limit=asked.limit, stage=STAGE)
        if not jobs and (wait := min(asked.wait_seconds, self._config.max_wait_seconds)):
            waiting = self._engine.claim(queues, owner, lease, limit=asked.limit, stage=STAGE, wait_seconds=wait)
            jobs = await req.unless_gone(waiting)
        if not jobs:
            resp.status = 204
            return
        now = await self._engine.jobs.now()
        reply(resp, ClaimedJobs([_claimed_job(job, now) for job in jobs]))

    def _lease(self, asked: float | None) -> float:
        seconds = asked or self._config.lease_seconds
        if seconds > self._config.max_lease_seconds:
            raise InvalidField(
                "lease_seconds", f"must be at most {self._config.max_lease_seconds:g} (engine.max_lease_seconds)"
            )
        return seconds

    async def beat_job(self, req: Request, resp: Response, job_id: str) -> None:
        asked = decode(_beat, await read_body(req, self._max_body))
        until = await self._engine.beat(_guard(req, job_id, asked.lease), self._lease(asked.lease_seconds))
        reply(resp, LeaseExtended(rfc3339(until)))

    async def advance_job(self, req: Request, resp: Response, job_id: str) -> None:
        asked = decode(_advance, await read_body(req, self._max_body))
        guard = _guard(req, job_id, asked.lease)
        reply_moved(resp, await self._engine.advance(guard, asked.stage, message=asked.message))

    async def note_job(self, req: Request, resp: Response, job_id: str) -> None:
        asked = decode(_note, await read_body(req, min(NOTE_BYTES, self._max_body)))
        data = json_or_absent("data", asked.data)
        note = Note(_guard(req, job_id, asked.lease), asked.level, asked.step, asked.message, data)
        reply(resp, NoteAdded(await self._engine.note(note)))

    async def succeed_job(self, req: Request, resp: Response, job_id: str) -> None:
        asked = decode(_succeed, await read_body(req, self._max_body))
        guard, result = _guard(req, job_id, asked.lease), json_text("result", asked.result)
        del asked  # frees the body: `result` is a copy
        await self._finish(resp, self._engine.succeed(guard, result), Change(guard, "succeed", result=result))

    async def retry_job(self, req: Request, resp: Response, job_id: str) -> None:
        asked = decode(_retry, await read_body(req, self._max_body))
        outcome = Broke(asked.error, asked.failed_step, asked.delay_seconds)
        reply_moved(resp, await self._engine.broke(_guard(req, job_id, asked.lease), outcome))

    async def park_job(self, req: Request, resp: Response, job_id: str) -> None:
        asked = decode(_park, await read_body(req, self._max_body))
        guard = _guard(req, job_id, asked.lease)
        reply_moved(resp, await self._engine.park(guard, asked.waiting_for, delay_seconds=asked.delay_seconds))

    async def fail_job(self, req: Request, resp: Response, job_id: str) -> None:
        asked = decode(_fail, await read_body(req, self._max_body))
        guard, outcome = _guard(req, job_id, asked.lease), Broke(asked.error, asked.failed_step, final=True)
        await self._finish(resp, self._engine.broke(guard, outcome), Change(guard, "fail", error=asked.error))

    async def _finish(self, resp: Response, move: Awaitable[Moved], change: Change) -> None:
        """Make the move. If this lease has ended the job so before, say the same again: the first answer was lost."""
        try:
            reply_moved(resp, await move)
        except StaleLease:
            if (job := await repeated(self._engine.jobs, change)) is None:
                raise
            reply(resp, JobMoved(job.id, job.state, job.seq))


def _guard(req: Request, job_id: str, lease: int) -> Guard:
    """Jobs of the caller's tenant and of this door; the lease, which nobody can guess, proves that the worker holds it."""
    return Guard(ulid("job_id", job_id), req.caller.tenant, KIND, lease, None)


def _claimed_job(job: Job, now: int) -> ClaimedJob:
    return ClaimedJob(
        **msgspec.structs.asdict(job_view(job, now)),
        lease=job.lease,
        traceparent=job.traceparent,
        tracestate=job.tracestate,
    )
