"""The views of jobs, events and deliveries in the engine's API. Instants are RFC 3339."""

from typing import Annotated, Any

import msgspec

from chargehand.engine.delivery import Delivery, Endpoint, Outgoing, Subject, Try, shown_url
from chargehand.engine.flow import KIND as FLOW
from chargehand.engine.job import Event, Job, rfc3339, shown_payload, topic_of
from chargehand.http.carried import carried_json
from chargehand.http.kinds import KindScopes
from chargehand.webhooks.hours import EndpointHour

KIND = "job"  # the kind of jobs that are submitted here
_OWN = KindScopes(("jobs:read",), ("jobs:write",), ("jobs:write",))
SCOPES = {KIND: _OWN, FLOW: _OWN}

QueueName = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=200,
        pattern=r"^(?!\*$)[^\x00-\x1f\x7f]+$",  # a single star means all queues
        description="A queue; it exists once a job is in it",
    ),
]
Instant = Annotated[str, msgspec.Meta(description="RFC 3339, UTC", examples=["2026-05-23T12:00:00.000Z"])]


def json_or_none(raw: bytes | None) -> Any:
    return msgspec.Raw(raw) if raw else None


def instant(at: int | None) -> str | None:
    return None if at is None else rfc3339(at)


class JobSummary(msgspec.Struct):
    """A job without its payload and result."""

    id: str
    kind: Annotated[str, msgspec.Meta(description="Which door made it")]
    queue: str
    state: Annotated[str, msgspec.Meta(description="queued, running, succeeded, failed or cancelled")]
    stage: Annotated[str, msgspec.Meta(description="The progress of a running job, in its door's words")]
    previous: Annotated[str, msgspec.Meta(description="The state, and stage after a colon, that was shown before")]
    priority: int
    attempt: Annotated[int, msgspec.Meta(description="Counts from 1 with the first claim")]
    max_attempts: int
    run_at: Annotated[Instant | None, msgspec.Meta(description="null while it waits for other steps of its flow")]
    deadline_at: Annotated[Instant | None, msgspec.Meta(description="When it fails unless it is done")]
    waiting_for: Annotated[str | None, msgspec.Meta(description="What a queued job waits for")]
    error: str | None
    failed_step: str | None
    lease_owner: str | None
    lease_until: Instant | None
    flow: Annotated[str | None, msgspec.Meta(description="Of a step: the id of its flow")]
    step: Annotated[int | None, msgspec.Meta(description="Of a step: its number there")]
    sequence: Annotated[int, msgspec.Meta(description="The number of its last event")]
    created_at: Instant
    updated_at: Instant
    finished_at: Instant | None


class JobView(JobSummary):
    """A job with its payload, and its result once it has succeeded."""

    position: Annotated[
        int | None, msgspec.Meta(description="How many jobs of its queue go before it; at most 10000")
    ] = None
    idempotency_key: str | None = None
    limit_key: Annotated[str, msgspec.Meta(description="Whose limits hold for it")] = ""
    metadata: Any = None
    payload: Any = None
    result: Any = None


class EventView(msgspec.Struct):
    """A line of a job's log."""

    sequence: int
    at: Instant
    level: str
    move: Annotated[str, msgspec.Meta(description="The move that wrote it, or `note`")]
    state: str
    stage: str
    previous: str
    attempt: int
    step: str
    message: str
    error: str | None
    data: Any = None


class WebhookBody(msgspec.Struct):
    """The body of a webhook in the `standard` dialect."""

    type: Annotated[str, msgspec.Meta(description="job. and the state", examples=["job.succeeded"])]
    timestamp: Instant
    data: "WebhookData"


class WebhookData(msgspec.Struct):
    job_id: str
    queue: str
    state: str
    stage: str
    previous: str
    sequence: int
    attempt: int
    error: str | None
    message: str
    metadata: Any
    result: Any


class DeliveryView(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(description="Also the `webhook-id` header; the same for every try")]
    job_id: str
    sequence: int
    kind: Annotated[str, msgspec.Meta(description="Of the job: which door made it")]
    queue: Annotated[str, msgspec.Meta(description="The job's")]
    topic: Annotated[str, msgspec.Meta(description="The job's state, and its stage after a colon")]
    endpoint_id: str
    url: Annotated[str, msgspec.Meta(description="Without its query, which may hold a secret")]
    dialect: str
    state: Annotated[str, msgspec.Meta(description="pending, delivered or dead")]
    tries: int
    due_at: Instant
    reason: str
    status: Annotated[int | None, msgspec.Meta(description="The HTTP status of the last try")]
    duration_seconds: Annotated[float | None, msgspec.Meta(description="How long the last try took")]
    created_at: Instant
    updated_at: Instant


class TryView(msgspec.Struct):
    number: int
    at: Instant
    status: int | None
    duration_seconds: float
    error: str
    answer: Annotated[str, msgspec.Meta(description="The start of the endpoint's answer")]


class EndpointView(msgspec.Struct):
    id: str
    url: str
    state: Annotated[str, msgspec.Meta(description="active, paused, or disabled because it answered 410")]
    reason: str
    pending: int
    dead: int
    oldest_due_at: Instant | None
    created_at: Instant
    breaker: Annotated[str, msgspec.Meta(description="At this node: closed, open or half open")]
    breaker_until: Annotated[Instant | None, msgspec.Meta(description="Until when nothing is sent to it")]
    hour: EndpointHour


def _summary(job: Job, now: int) -> dict[str, Any]:
    return {
        "id": job.id,
        "kind": job.kind,
        "queue": job.queue.name,
        "state": job.state,
        "stage": job.stage,
        "previous": job.previous,
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "run_at": None if job.waits_for_steps else rfc3339(job.run_at),
        "deadline_at": instant(job.deadline_at),
        "waiting_for": waiting_for(job, now),
        "error": job.error,
        "failed_step": job.failed_step,
        "lease_owner": job.lease_owner,
        "lease_until": instant(job.lease_until),
        "flow": job.flow,
        "step": job.step,
        "sequence": job.seq,
        "created_at": rfc3339(job.created_at),
        "updated_at": rfc3339(job.updated_at),
        "finished_at": instant(job.finished_at),
    }


def waiting_for(job: Job, now: int) -> str | None:
    if job.state != "queued":
        return None
    if job.run_at > now:
        return job.waiting_for or "run_at"
    return "worker" if job.waiting_for in ("", "backoff") else job.waiting_for


def job_summary(job: Job, now: int) -> JobSummary:
    return JobSummary(**_summary(job, now))


def job_view(job: Job, now: int) -> JobView:
    return JobView(
        **_summary(job, now),
        idempotency_key=job.idempotency_key,
        metadata=json_or_none(job.metadata),
        payload=carried_json(shown_payload(job.payload)) if job.payload else None,
        result=carried_json(job.result) if job.result else None,
    )


def event_view(e: Event) -> EventView:
    return EventView(
        e.seq, rfc3339(e.at), e.level, e.move, e.state, e.stage, e.previous, e.attempt, e.step, e.message, e.error,
        json_or_none(e.data),
    )  # fmt: skip


def delivery_view(d: Delivery, subject: Subject) -> DeliveryView:
    return DeliveryView(
        d.id, d.job_id, d.seq, subject.kind, subject.queue, topic_of(subject.state, subject.stage), d.endpoint_id,
        shown_url(d.url), d.dialect, d.state, d.tries, rfc3339(d.due_at), d.reason, subject.status,
        subject.duration_seconds, rfc3339(d.created_at), rfc3339(d.updated_at),
    )  # fmt: skip


def try_view(t: Try) -> TryView:
    return TryView(t.number, rfc3339(t.at), t.status, t.duration_seconds, t.error, t.answer)


def endpoint_view(e: Endpoint, breaker: str, until: int | None, hour: EndpointHour) -> EndpointView:
    return EndpointView(
        e.id, e.url, e.state, e.reason, e.pending, e.dead, instant(e.oldest_at), rfc3339(e.created_at), breaker,
        instant(until), hour,
    )  # fmt: skip


_encoder = msgspec.json.Encoder()


def render(outgoing: Outgoing) -> bytes:
    """Return the body of a webhook. It is the same for every try: events do not change."""
    event, job = outgoing.event, outgoing.job
    result = json_or_none(job.result) if event.state == "succeeded" else None
    data = WebhookData(
        job.id, job.queue.name, event.state, event.stage, event.previous, event.seq, event.attempt, event.error,
        event.message, json_or_none(job.metadata), result,
    )  # fmt: skip
    return _encoder.encode(WebhookBody(f"job.{event.state}", rfc3339(event.at), data))
