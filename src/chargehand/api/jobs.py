"""The engine's own jobs: submit, and list, read, follow, cancel and requeue those of all doors."""

import re
from datetime import datetime
from typing import Annotated

import msgspec

from chargehand.api.views import KIND, EventView, JobSummary, JobView, QueueName, event_view, job_summary, job_view
from chargehand.config import Config
from chargehand.engine.engine import Engine
from chargehand.engine.job import Job, NewJob, Report, State
from chargehand.engine.moves import Moved
from chargehand.engine.queue import Queue
from chargehand.engine.reads import JobFilter
from chargehand.errors import Conflict, EgressRefused, IdempotencyMismatch, InvalidField, NotFound
from chargehand.http.auth import Caller
from chargehand.http.inputs import TEN_YEARS, absent, identity, json_object, json_text, micros
from chargehand.http.jobs import (
    FOLLOW,
    FOLLOW_HEADERS,
    SUBMIT_HEADERS,
    Accepted,
    EventPage,
    EventsQuery,
    JobPage,
    JobResource,
    StepDoor,
    Wording,
)
from chargehand.http.kinds import Kinds, require
from chargehand.http.paging import Cursor, Limit, cursor
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, decode, query, read_body, reply
from chargehand.http.terms import tell, terms
from chargehand.observability.tracing import Tracing
from chargehand.webhooks.egress import EgressPolicy

TAG = "jobs"
PATH = "/engine/jobs"
TOPICS = frozenset({"queued", "running", "succeeded", "failed", "cancelled"})
MAX_ON = 20  # more than there are states: one may be named twice
POSITION_BOUND = 10_000

Deadline = Annotated[
    float,
    msgspec.Meta(ge=0.001, le=TEN_YEARS, description="Fails unless it has finished so many seconds after this request"),
]


class WebhookTarget(msgspec.Struct, forbid_unknown_fields=True):
    """Where every change of state is sent."""

    url: Annotated[str, msgspec.Meta(description="http or https", examples=["http://127.0.0.1:9000/hook"])]
    on: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            max_length=MAX_ON,
            description="Only these states (queued, running, succeeded, failed, cancelled); empty: all",
        ),
    ] = ()


class SubmitJob(msgspec.Struct, forbid_unknown_fields=True):
    """A job for a worker that claims from its queue."""

    queue: QueueName
    payload: Annotated[msgspec.Raw, msgspec.Meta(description="Any JSON; the worker gets it as it was sent")]
    priority: Annotated[int, msgspec.Meta(ge=0, le=9, description="9 goes first")] = 0
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=1000, description="Default: engine.max_attempts")] | None = None
    run_at: Annotated[datetime, msgspec.Meta(tz=True, description="Not before this instant (RFC 3339)")] | None = None
    delay_seconds: Annotated[float, msgspec.Meta(ge=0, le=TEN_YEARS, description="Not before so many seconds")] = 0.0
    deadline_seconds: Deadline | None = None
    limit_key: Annotated[
        str,
        msgspec.Meta(
            max_length=255,
            pattern=r"^[^\x00-\x1f\x7f]*$",
            description="Whose limits hold, if the queue has limits for each key",
        ),
    ] = ""
    webhook: WebhookTarget | None = None
    metadata: Annotated[msgspec.Raw, msgspec.Meta(description="A JSON object that is sent with its webhooks")] = (
        msgspec.field(default_factory=absent)
    )


Sought = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Time = Annotated[datetime, msgspec.Meta(tz=True)]


class ListJobs(msgspec.Struct, forbid_unknown_fields=True):
    state: State | None = None
    kind: str | None = None
    queue: (
        Annotated[str, msgspec.Meta(description="A queue of this kind; of the kind `job` if none is given")] | None
    ) = None
    name: (
        Annotated[
            Sought,
            msgspec.Meta(
                description="How the queue's name starts, in upper or lower case, of any kind: a command, a model, a serial"
            ),
        ]
        | None
    ) = None
    topic: Annotated[
        Sought, msgspec.Meta(description="What callers see: the state, with the stage after a colon", examples=["running:loading"])
    ] | None = None  # fmt: skip
    since: Annotated[Time, msgspec.Meta(description="Created at this instant or later (RFC 3339)")] | None = None
    until: Annotated[Time, msgspec.Meta(description="Created before this instant (RFC 3339)")] | None = None
    text: (
        Annotated[
            Sought,
            msgspec.Meta(
                description="In the error, in upper or lower case; of failed and cancelled jobs if there is no `state`"
            ),
        ]
        | None
    ) = None
    id: (
        Annotated[
            Sought,
            msgspec.Meta(
                description="Of a job, of a batch, or of a delivery, whose job is listed then; or an idempotency key. Goes with `kind` alone"
            ),
        ]
        | None
    ) = None
    key: (
        Annotated[Sought, msgspec.Meta(description="The job that this idempotency key made; goes with `kind` alone")]
        | None
    ) = None
    cursor: Cursor | None = None
    limit: Limit = 50


class JobMoved(msgspec.Struct):
    job_id: str
    state: str
    sequence: int


WORDING = Wording(kind=None, noun="job", path=PATH, event_view=event_view)
_decoder = msgspec.json.Decoder(SubmitJob)
_PREFIX = re.compile(r"^[a-z]+[_-](?=[0-9A-Z]{26}$)")  # such as that of a batch


class JobsApi:
    def __init__(self, engine: Engine, config: Config, policy: EgressPolicy, tracing: Tracing, kinds: Kinds) -> None:
        self._engine = engine
        self._kinds = kinds
        self._jobs = JobResource(engine, WORDING, tracing, policy.check_url)
        self._max_body = config.server.max_body_bytes
        self._max_attempts = config.engine.max_attempts

    async def start(self) -> None:
        """Store the settings that the database functions read (`http/terms.py`)."""
        await tell(self._engine.records, KIND, terms(self._jobs, (), self._max_attempts, self._max_body))

    def routes(self) -> list[Route]:
        read, write, one = "jobs:read", "jobs:write", f"{PATH}/{{job_id}}"
        # fmt: off
        return [
            Route("POST", PATH, self.submit_job, "Submit a job", write, TAG, "Durable when the 202 is there; its webhooks too.",
                  request=SubmitJob, headers=SUBMIT_HEADERS, status=202, reply=Accepted, errors=(EgressRefused, IdempotencyMismatch)),
            Route("GET", PATH, self.list_jobs, "List jobs, newest first", read, TAG, query=ListJobs, reply=JobPage[JobSummary]),
            Route("GET", one, self.get_job, "Read a job", read, TAG, reply=JobView, errors=(NotFound,)),
            Route("GET", f"{one}/events", self.list_events, "Read or follow a job's events", read, TAG, FOLLOW,
                  query=EventsQuery, headers=FOLLOW_HEADERS, reply=EventPage[EventView], errors=(NotFound,)),
            Route("POST", f"{one}/cancel", self.cancel_job, "Cancel a job", write, TAG, reply=JobMoved, errors=(NotFound, Conflict)),
            Route("POST", f"{one}/requeue", self.requeue_job, "Give a failed or cancelled job all its attempts again", write, TAG,
                  reply=JobMoved, errors=(NotFound, Conflict)),
        ]
        # fmt: on

    async def submit_job(self, req: Request, resp: Response) -> None:
        # The job has a copy of the payload: nobody holds the body while the job is written.
        body = await read_body(req, self._max_body)
        job = self._new_job(req.caller.tenant, body, *identity(req, body))
        del body
        self._jobs.accept(resp, await self._jobs.submit(req, job, {"queue": job.queue.name}))

    @property
    def steps(self) -> StepDoor:
        return StepDoor(KIND, ("jobs:write",), self._new_step)

    async def _new_step(self, caller: Caller, body: bytes) -> NewJob:
        return self._new_job(caller.tenant, body)

    def _new_job(self, tenant: str, body: bytes, key: str | None = None, fingerprint: str | None = None) -> NewJob:
        asked = decode(_decoder, body)
        return NewJob(
            self._engine.new_id(),
            Queue(KIND, tenant, asked.queue),
            json_text("payload", asked.payload),
            asked.priority,
            asked.max_attempts or self._max_attempts,
            micros("run_at", asked.run_at),
            asked.delay_seconds,
            key,
            fingerprint,
            reports=reports_of(self._jobs, tenant, asked.webhook),
            metadata=json_object("metadata", asked.metadata),
            deadline_seconds=asked.deadline_seconds,
            limit_key=asked.limit_key,
        )

    async def list_jobs(self, req: Request, resp: Response) -> None:
        by, caller = query(req, ListJobs), req.caller
        kinds = self._kinds.readable(caller)
        if by.kind is not None:
            require(caller, self._kinds.of(by.kind).read)
            kinds = (by.kind,)
        now = await self._engine.jobs.now()
        found, following = await self._jobs.list(_job_filter(by, caller.tenant, kinds))
        reply(resp, JobPage([job_summary(job, now) for job in found], following))

    async def get_job(self, req: Request, resp: Response, job_id: str) -> None:
        job = await self._readable(req, job_id)
        now = await self._engine.jobs.now()
        view = job_view(job, now)
        if job.state is State.QUEUED:
            waiting = await self._engine.jobs.waiting(job, POSITION_BOUND)
            view.position = waiting.position
            if job.run_at <= now and waiting.held_by:
                view.waiting_for = waiting.held_by
        reply(resp, view)

    async def list_events(self, req: Request, resp: Response, job_id: str) -> None:
        after = query(req, EventsQuery).after
        await self._jobs.send_events(req, resp, await self._readable(req, job_id), after)

    async def cancel_job(self, req: Request, resp: Response, job_id: str) -> None:
        job = await self._jobs.get(job_id, req.caller.tenant)
        await self._kinds.require_throughout(req.caller, self._engine.jobs, job, lambda scopes: scopes.cancel)
        reply_moved(resp, await self._jobs.cancel(req, job))

    async def requeue_job(self, req: Request, resp: Response, job_id: str) -> None:
        job = await self._jobs.get(job_id, req.caller.tenant)
        require(req.caller, self._kinds.of(job.kind).requeue)  # another start may wipe a disk
        reply_moved(resp, await self._jobs.requeue(req, job))

    async def _readable(self, req: Request, job_id: str) -> Job:
        """Return the job if the caller may read jobs of its kind at their own door too."""
        job = await self._jobs.get(job_id, req.caller.tenant)
        require(req.caller, self._kinds.of(job.kind).read)
        return job


def reports_of(jobs: JobResource, tenant: str, webhook: WebhookTarget | None) -> tuple[Report, ...]:
    if webhook is None:
        return ()
    for topic in webhook.on:
        if topic not in TOPICS:
            raise InvalidField("webhook.on", f"{topic[:50]!r} is not a state; allowed are {', '.join(sorted(TOPICS))}")
    return jobs.report_to(tenant, "webhook.url", webhook.url, tuple(dict.fromkeys(webhook.on)))


def reply_moved(resp: Response, moved: Moved) -> None:
    reply(resp, JobMoved(moved.job_id, moved.state, moved.seq))


def _job_filter(by: ListJobs, tenant: str, kinds: tuple[str, ...]) -> JobFilter:
    if by.id is not None or by.key is not None:
        if by != ListJobs(kind=by.kind, id=by.id, key=by.key, limit=by.limit) or None not in (by.id, by.key):
            raise InvalidField("key" if by.id is None else "id", "goes with kind alone")
        return JobFilter(tenant, kinds=kinds, key=by.key or by.id, id=_PREFIX.sub("", by.id) if by.id else None)
    return JobFilter(
        tenant,
        (by.kind or KIND) if by.queue is not None else None,
        by.queue,
        by.state,
        cursor(by.cursor),
        by.limit,
        topics=() if by.topic is None else (by.topic,),
        stopped=by.text is not None and by.state is None,
        names=() if by.name is None else (by.name.lower(),),
        starts=True,
        kinds=kinds,
        since=micros("since", by.since),
        until=micros("until", by.until),
        text=by.text or "",
    )
