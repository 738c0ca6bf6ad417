"""The HTTP face of a job: submit, list, read, wait, follow, cancel and requeue, the same for every door.

A door gives its `Wording` and keeps what is its own: the fields of a request and the views of an answer.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from chargehand.engine.delivery import endpoint_id
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.ids import is_ulid
from chargehand.engine.job import Event, Job, NewJob, Report
from chargehand.engine.listing import list_page
from chargehand.engine.moves import Moved, Submitted
from chargehand.engine.reads import JobFilter
from chargehand.engine.wakeups import wait_within
from chargehand.errors import NotFound
from chargehand.http import sse
from chargehand.http.auth import Caller
from chargehand.http.inputs import IDEMPOTENCY_KEY, last_event_id, trace_headers
from chargehand.http.paging import ulid
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import reply
from chargehand.observability.tracing import Span, Tracing, Value

EVENTS_PAGE = 1000
EVENTS_BYTES = 4 << 20  # of messages and data in a page of events, whose last one may go beyond
WAIT_POLL_SECONDS = 5.0  # finds the end of a job on another node when its notification was lost
SUBMIT_HEADERS = {
    "Idempotency-Key": IDEMPOTENCY_KEY,
    "traceparent": "W3C trace context; kept through the job to its webhooks",
}
FOLLOW_HEADERS = {"Last-Event-ID": "The last sequence number that was seen"}
FOLLOW = "With `Accept: text/event-stream` it goes on live and continues after `Last-Event-ID`."

T = TypeVar("T")
Traced = Callable[[NewJob], NewJob]


class Accepted(msgspec.Struct):
    job_id: str


Next = Annotated[
    str | None,
    msgspec.Meta(
        description="`cursor` of the next page; null: this is the last. No page searches more than 10000 jobs, so with filters it may have "
        "fewer than `limit`, even none, and still a `next`"
    ),
]


class JobPage(msgspec.Struct, Generic[T]):
    jobs: list[T]
    next: Next


class EventPage(msgspec.Struct, Generic[T]):
    events: list[T]


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True):
    after: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=2**31 - 1, description="Only events with a higher sequence number; up to 1000 or 4 MiB follow"
        ),
    ] = 0


class WebhookRetries(NamedTuple):
    """Of a webhook that is not taken; None: as the server's settings say."""

    max_attempts: int | None = None
    backoff_base_seconds: float | None = None
    backoff_max_seconds: float | None = None


def name_of_move(event: Event) -> str:
    return event.move


class Wording(NamedTuple):
    """How a door speaks of its jobs."""

    kind: str | None  # None: jobs of all kinds
    noun: str  # in errors: "there is no … 01J…"
    path: str  # of the list; a job is read at {path}/{id}
    event_view: Callable[[Event], Any]
    event_name: Callable[[Event], str] = name_of_move  # of a server-sent event
    dialect: str = "standard"  # of its webhooks
    retries: WebhookRetries = WebhookRetries()


class StepDoor(NamedTuple):
    """How a flow makes a step of a door's jobs: what the body of a submission there is made into, and what the caller needs for that."""

    kind: str
    scopes: tuple[str, ...]  # any one of them is enough
    new_job: Callable[[Caller, bytes], Awaitable[NewJob]]
    refers: bool = True  # whether its payload may refer to the results of other steps


class JobResource:
    """The jobs of a door over HTTP."""

    def __init__(
        self, engine: Engine, wording: Wording, tracing: Tracing, check_url: Callable[[str, str], str]
    ) -> None:
        self._engine = engine
        self._wording = wording
        self._tracing = tracing
        self._check_url = check_url  # (field, url) -> the URL as it is called, or an error about the field

    # submitting -------------------------------------------------------------------------------------------------------

    def report_to(self, tenant: str, field: str, url: str | None, topics: tuple[str, ...]) -> tuple[Report, ...]:
        """Return where the job's changes are sent: to this URL, if there is one and the egress policy allows it."""
        if url is None:
            return ()
        url = self._check_url(field, url)
        return (self.report(url, endpoint_id(tenant, url), topics),)

    def report(self, url: str, endpoint: str, topics: tuple[str, ...]) -> Report:
        return Report(url, endpoint, self._wording.dialect, topics, *self._wording.retries)

    def span(self, req: Request, attributes: Mapping[str, Value]) -> Span:
        """Open the span in which a job is submitted, a child of the caller's."""
        return self._tracing.span("submit", **trace_headers(req), attributes=attributes)

    async def submit(self, req: Request, job: NewJob, attributes: Mapping[str, Value]) -> Submitted:
        return await self.submit_by(req, attributes, lambda traced: self._engine.submit(traced(job)))

    async def submit_by(
        self, req: Request, attributes: Mapping[str, Value], submit: Callable[[Traced], Awaitable[Submitted]]
    ) -> Submitted:
        """Submit in a span of its own. `submit` gets a function that has a job continue its trace."""
        with self.span(req, attributes) as span:
            trace = {"traceparent": span.traceparent, "tracestate": span.tracestate}
            submitted = await submit(lambda job: replace(job, **trace))
            span.set("job_id", submitted.job_id)
        return submitted

    def accept(self, resp: Response, submitted: Submitted, view: Any = None) -> None:
        """Reply 202: the job is durable."""
        reply(resp, view or Accepted(submitted.job_id), 202)
        resp.set_header("location", f"{self._wording.path}/{submitted.job_id}")
        if not submitted.created:
            resp.set_header("idempotency-replayed", "true")

    # reading ----------------------------------------------------------------------------------------------------------

    async def get(self, job_id: str, tenant: str | None) -> Job:
        job = await self.find(ulid("job_id", job_id), tenant)
        if job is None:
            raise NotFound(f"there is no {self._wording.noun} {job_id}")
        return job

    async def find(self, job_id: str, tenant: str | None) -> Job | None:
        """Return the tenant's job of this kind; None also where the id is malformed."""
        job = await self._engine.jobs.get_job(job_id, tenant) if is_ulid(job_id) else None
        return job if job is not None and self._wording.kind in (None, job.kind) else None

    async def list(self, by: JobFilter) -> tuple[list[Job], str | None]:
        """Return a page of jobs, and the cursor of the next one."""
        return await list_page(self._engine.jobs, by)

    async def wait(self, req: Request, job_id: str, seconds: float) -> Job:
        """Return the job once it has finished, or as it is after so many seconds. Stop when the caller hangs up."""
        return await req.unless_gone(self._finished(job_id, time.monotonic() + seconds))

    async def _finished(self, job_id: str, until: float) -> Job:
        news = asyncio.Event()
        stop = self._engine.watching(job_id, news)
        try:
            while True:
                news.clear()
                job = await self._engine.get(job_id)
                left = until - time.monotonic()
                if job.finished or left <= 0 or self._engine.draining:
                    return job
                await wait_within(news, min(left, WAIT_POLL_SECONDS))
        finally:
            stop()

    async def send_events(self, req: Request, resp: Response, job: Job, after: int) -> None:
        """Reply with a page of events, or with all to come when the caller accepts an event stream."""
        if "text/event-stream" in (req.get_header("accept") or ""):
            sse.send_events(req, resp, self.follow(job, max(after, last_event_id(req))))
            return
        events = await self._engine.jobs.list_events(job.id, after, EVENTS_PAGE, EVENTS_BYTES)
        reply(resp, EventPage([self._wording.event_view(event) for event in events]))

    async def follow(self, job: Job, after: int) -> AsyncGenerator[sse.Event, None]:
        async for event in self._engine.watch(job.id, after, job.tenant):
            yield self.sent(event)

    def sent(self, event: Event) -> sse.Event:
        wording = self._wording
        return sse.Event(wording.event_name(event), msgspec.json.encode(wording.event_view(event)), str(event.seq))

    # acting -----------------------------------------------------------------------------------------------------------

    async def cancel(self, req: Request, job: Job) -> Moved:
        return await self._engine.cancel(Guard.seen(job), message=f"cancelled by {req.caller.subject}")

    async def requeue(self, req: Request, job: Job, *, payload: bytes | None = None) -> Moved:
        message = f"requeued by {req.caller.subject}" + (" with another payload" if payload else "")
        return await self._engine.requeue(Guard.seen(job), message=message, payload=payload)
