"""Submitting, reading, watching, cancelling and requeueing jobs."""

from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Annotated

import msgspec

from chargehand.api.views import KIND, EventView, JobSummary, JobView, QueueName, event_view, job_summary, job_view
from chargehand.config import Config
from chargehand.engine.delivery import endpoint_id
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import Job, NewJob, Report, State, queue_name
from chargehand.engine.store import JobFilter
from chargehand.errors import Conflict, EgressRefused, IdempotencyMismatch, InvalidField, NotFound
from chargehand.http import sse
from chargehand.http.inputs import (
    IDEMPOTENCY_KEY,
    TEN_YEARS,
    absent,
    fingerprint,
    idempotency_key,
    json_object,
    json_text,
    last_event_id,
    run_at_micros,
    trace_headers,
)
from chargehand.http.kinds import Kinds, require
from chargehand.http.paging import EVENTS_BYTES, Cursor, Limit, cursor, ulid
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, decode, query, read_body, reply
from chargehand.observability.tracing import Span, Tracing
from chargehand.webhooks.egress import EgressPolicy

TAG = "jobs"
TOPICS = frozenset({"queued", "running", "succeeded", "failed", "cancelled"})
MAX_ON = 20  # more than there are: a list that says one twice is none to refuse
POSITION_BOUND = 10_000
EVENTS_PAGE = 1000

Deadline = Annotated[
    float,
    msgspec.Meta(ge=0.001, le=TEN_YEARS, description="Fails unless it is done so many seconds after this request"),
]


class WebhookTarget(msgspec.Struct, forbid_unknown_fields=True):
    """Where to tell every change of state."""

    url: Annotated[str, msgspec.Meta(description="http or https", examples=["http://127.0.0.1:9000/hook"])]
    on: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            max_length=MAX_ON,
            description="Only these states (queued, running, succeeded, failed, cancelled); empty: all",
        ),
    ] = ()


class SubmitJob(msgspec.Struct, forbid_unknown_fields=True):
    """A job for whoever claims from its queue."""

    queue: QueueName
    payload: Annotated[msgspec.Raw, msgspec.Meta(description="Any JSON; it comes to the worker as it was sent")]
    priority: Annotated[int, msgspec.Meta(ge=0, le=9, description="9 goes first")] = 0
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=1000, description="Default: engine.max_attempts")] | None = None
    run_at: Annotated[datetime, msgspec.Meta(tz=True, description="Not before this instant (RFC 3339)")] | None = None
    delay_seconds: Annotated[float, msgspec.Meta(ge=0, le=TEN_YEARS, description="Not before so many seconds")] = 0.0
    deadline_seconds: Deadline | None = None
    webhook: WebhookTarget | None = None
    metadata: Annotated[msgspec.Raw, msgspec.Meta(description="A JSON object that webhooks carry along")] = (
        msgspec.field(default_factory=absent)
    )


class Accepted(msgspec.Struct):
    job_id: str


Sought = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class JobQuery(msgspec.Struct, forbid_unknown_fields=True):
    state: State | None = None
    kind: str | None = None
    queue: (
        Annotated[str, msgspec.Meta(description="A queue of this kind; of the kind `job` if none is given")] | None
    ) = None
    name: (
        Annotated[Sought, msgspec.Meta(description="How the queue's name starts, whichever the kind and case")] | None
    ) = None
    topic: Annotated[
        Sought, msgspec.Meta(description="What callers see: the state, with the stage after a colon", examples=["running:loading"])
    ] | None = None  # fmt: skip
    key: (
        Annotated[Sought, msgspec.Meta(description="The job that this idempotency key made; goes with `kind` alone")]
        | None
    ) = None
    cursor: Cursor | None = None
    limit: Limit = 50


class JobPage(msgspec.Struct):
    jobs: list[JobSummary]
    next: str | None


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True):
    after: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=2**31 - 1, description="Only events with a higher sequence number; up to 1000 or 4 MiB follow"
        ),
    ] = 0


class EventPage(msgspec.Struct):
    events: list[EventView]


class Moved(msgspec.Struct):
    job_id: str
    state: str
    sequence: int


_decoder = msgspec.json.Decoder(SubmitJob)


class Jobs:
    def __init__(
        self,
        engine: Engine,
        config: Config,
        policy: EgressPolicy,
        tracing: Tracing,
        kinds: Kinds,
    ) -> None:
        self._engine = engine
        self._kinds = kinds
        self._tracing = tracing
        self._policy = policy
        self._max_body = config.server.max_body_bytes
        self._max_attempts = config.engine.max_attempts

    def routes(self) -> list[Route]:
        read, write = "jobs:read", "jobs:write"
        key = {
            "Idempotency-Key": IDEMPOTENCY_KEY,
            "traceparent": "W3C trace context; kept through the job to its webhooks",
        }
        one = "/engine/jobs/{job_id}"
        # fmt: off
        return [
            Route("POST", "/engine/jobs", self.submit_job, "Submit a job", write, TAG, "Durable when the 202 is there; its webhooks too.",
                  request=SubmitJob, headers=key, status=202, reply=Accepted, errors=(EgressRefused, IdempotencyMismatch)),
            Route("GET", "/engine/jobs", self.list_jobs, "List jobs, newest first", read, TAG, query=JobQuery, reply=JobPage),
            Route("GET", one, self.get_job, "Read a job", read, TAG, reply=JobView, errors=(NotFound,)),
            Route("GET", f"{one}/events", self.list_events, "Read or follow a job's events", read, TAG,
                  "With `Accept: text/event-stream` it goes on live and takes up after `Last-Event-ID`.",
                  query=EventsQuery, headers={"Last-Event-ID": "The last sequence number that was seen"}, reply=EventPage, errors=(NotFound,)),
            Route("POST", f"{one}/cancel", self.cancel_job, "Cancel a job", write, TAG, reply=Moved, errors=(NotFound, Conflict)),
            Route("POST", f"{one}/requeue", self.requeue_job, "Give a failed or cancelled job all its attempts again", write, TAG,
                  reply=Moved, errors=(NotFound, Conflict)),
        ]
        # fmt: on

    async def submit_job(self, req: Request, resp: Response) -> None:
        body = await read_body(req, self._max_body)
        asked = decode(_decoder, body)
        tenant = req.caller.tenant
        key = idempotency_key(req)
        with self._tracing.span("submit", **trace_headers(req), attributes={"queue": asked.queue}) as span:
            job = self._new_job(asked, body, tenant, key, span)
            del asked, body  # the job has its own copy of the payload: one is enough while it is written
            submitted = await self._engine.submit(job)
            span.set("job_id", submitted.job_id)
        reply(resp, Accepted(submitted.job_id), 202)
        resp.set_header("location", f"/engine/jobs/{submitted.job_id}")
        if not submitted.created:
            resp.set_header("idempotency-replayed", "true")

    def _new_job(self, asked: SubmitJob, body: bytes, tenant: str, key: str | None, span: Span) -> NewJob:
        return NewJob(
            self._engine.new_id(),
            tenant,
            KIND,
            queue_name(KIND, tenant, asked.queue),
            json_text("payload", asked.payload),
            asked.priority,
            asked.max_attempts or self._max_attempts,
            run_at_micros(asked.run_at),
            asked.delay_seconds,
            key,
            fingerprint(body) if key else None,
            span.traceparent,
            span.tracestate,
            self._reports(tenant, asked.webhook),
            json_object("metadata", asked.metadata),
            asked.deadline_seconds,
        )

    def _reports(self, tenant: str, webhook: WebhookTarget | None) -> tuple[Report, ...]:
        if webhook is None:
            return ()
        for topic in webhook.on:
            if topic not in TOPICS:
                raise InvalidField(
                    "webhook.on", f"{topic[:50]!r} is not a state; allowed are {', '.join(sorted(TOPICS))}"
                )
        url = self._policy.check_url("webhook.url", webhook.url)
        return (Report(url, endpoint_id(tenant, url), "standard", tuple(dict.fromkeys(webhook.on))),)

    async def list_jobs(self, req: Request, resp: Response) -> None:
        by, caller = query(req, JobQuery), req.caller
        tenant, kinds = caller.tenant, self._kinds.readable(caller)
        if by.kind is not None:
            require(caller, self._kinds.of(by.kind).read)
            kinds = (by.kind,)
        now = await self._engine.store.now()
        if by.key is not None:
            found = await self._of_key(by, tenant, kinds)
            return reply(resp, JobPage([job_summary(job, now) for job in found], None))
        queue = None if by.queue is None else queue_name(by.kind or KIND, tenant, by.queue)
        found = await self._engine.store.list_jobs(
            JobFilter(
                tenant,
                None,
                queue,
                by.state,
                cursor(by.cursor),
                by.limit,
                topic=by.topic,
                kinds=kinds,
                names=() if by.name is None else (by.name.lower(),),
                starts=True,
            )
        )
        following = found[-1].id if len(found) == by.limit else None
        return reply(resp, JobPage([job_summary(job, now) for job in found], following))

    async def _of_key(self, by: JobQuery, tenant: str, kinds: tuple[str, ...]) -> list[Job]:
        """By an index of its own, so that no list is walked: a key names one job of a kind."""
        if (by.state, by.queue, by.name, by.topic, by.cursor) != (None,) * 5:
            raise InvalidField("key", "goes with kind alone")
        return await self._engine.store.jobs_of_key(tenant, kinds, by.key or "")

    async def get_job(self, req: Request, resp: Response, job_id: str) -> None:
        job = await self._job(req, job_id)
        view = job_view(job, await self._engine.store.now())
        if job.state is State.QUEUED:
            view.position = await self._engine.store.position(job.id, POSITION_BOUND)
            if any(
                settings.queue == job.queue and settings.paused
                for settings in await self._engine.store.list_queue_settings()
            ):
                view.waiting_for = "queue paused"
        reply(resp, view)

    async def list_events(self, req: Request, resp: Response, job_id: str) -> None:
        after = query(req, EventsQuery).after
        job = await self._job(req, job_id)
        if "text/event-stream" in (req.get_header("accept") or ""):
            sse.send_events(req, resp, self._follow(job.id, max(after, last_event_id(req)), job.tenant))
            return
        events = await self._engine.store.list_events(job.id, after, EVENTS_PAGE, EVENTS_BYTES)
        reply(resp, EventPage([event_view(event) for event in events]))

    async def _follow(self, job_id: str, after: int, tenant: str) -> AsyncGenerator[sse.Event, None]:
        async for event in self._engine.watch(job_id, after, tenant):
            yield sse.Event(event.move, msgspec.json.encode(event_view(event)), str(event.seq))

    async def cancel_job(self, req: Request, resp: Response, job_id: str) -> None:
        caller = req.caller
        job = await self._engine.get(ulid("job_id", job_id), caller.tenant)
        require(caller, self._kinds.of(job.kind).cancel)
        moved = await self._engine.cancel(Guard.seen(job), message=f"cancelled by {caller.subject}")
        reply(resp, Moved(moved.job_id, moved.state, moved.seq))

    async def requeue_job(self, req: Request, resp: Response, job_id: str) -> None:
        caller = req.caller
        job = await self._engine.get(ulid("job_id", job_id), caller.tenant)
        require(caller, self._kinds.of(job.kind).requeue)  # another start may wipe a disk
        moved = await self._engine.requeue(Guard.seen(job), message=f"requeued by {caller.subject}")
        reply(resp, Moved(moved.job_id, moved.state, moved.seq))

    async def _job(self, req: Request, job_id: str) -> Job:
        """The caller's job, if its door would show it to the caller too."""
        caller = req.caller
        job = await self._engine.get(ulid("job_id", job_id), caller.tenant)
        require(caller, self._kinds.of(job.kind).read)
        return job
