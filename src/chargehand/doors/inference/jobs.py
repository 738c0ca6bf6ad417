"""`/jobs`: submit a chat or a completion and be told; read, list, follow, cancel, retry; fetch artifacts."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from chargehand.config import Config
from chargehand.doors.inference import views
from chargehand.doors.inference.artifacts import artifact
from chargehand.doors.inference.attempt import Attempts
from chargehand.doors.inference.names import KIND, checked, is_cloud, model_of, name_of, node_of, queue_of, spellings
from chargehand.doors.inference.request import (
    NOTHING,
    SMALL_BYTES,
    ArtifactWish,
    Fields,
    decode_request,
    encode_request,
    give_way,
    leaves,
    outline,
)
from chargehand.doors.inference.scheduler import Scheduler
from chargehand.doors.inference.stream import Cut, Stream
from chargehand.engine.delivery import endpoint_id
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import Event, Job, NewJob, Report, State, rfc3339
from chargehand.engine.store import JobFilter
from chargehand.errors import (
    Conflict,
    EgressRefused,
    Forbidden,
    IdempotencyMismatch,
    InvalidField,
    NotFound,
    TooLarge,
)
from chargehand.files import checked_name
from chargehand.http import sse
from chargehand.http.files import send_file
from chargehand.http.inputs import (
    IDEMPOTENCY_KEY,
    TEN_YEARS,
    absent,
    check_utf8,
    fingerprint,
    idempotency_key,
    json_object,
    last_event_id,
    run_at_micros,
    trace_headers,
)
from chargehand.http.paging import EVENTS_BYTES, Cursor, Limit, cursor, ulid
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, decode, query, read_body, reply
from chargehand.observability.tracing import Tracing
from chargehand.webhooks.egress import EgressPolicy

TAG = "inference"
PRIORITY = 3  # beneath somebody who holds a connection, above a batch
POSITION_BOUND = 10_000
MAX_ARTIFACTS = 32
MAX_UNKNOWN = 64  # fields: they are passed on, so there may be some
LONGEST_SLIP = 40  # characters of a field's name that could be one of ours, misspelled
SHOWN_BYTES = 65_536
EXTENSIONS = frozenset(
    [
        "state_webhook_url",
        "webhook_events",
        "priority",
        "max_attempts",
        "run_at",
        "delay_seconds",
        "deadline_seconds",
        "metadata",
        "artifacts",
    ]
)

StateFilter = Literal["queued", "loading", "working", "done", "failed"]


class Message(msgspec.Struct):
    """Other fields of Ollama's messages pass through unread."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = ""
    images: list[str] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class Role(msgspec.Struct, gc=False):
    """A message of which nothing else is unfolded. There may be millions, so they are counted while they are read."""

    role: Literal["system", "user", "assistant", "tool"]
    content: msgspec.Raw = NOTHING

    left: ClassVar[int] = 0

    def __post_init__(self) -> None:
        Role.left -= 1
        if Role.left < 0:
            raise ValueError("has too many entries")  # which ends the reading
        if len(self.content) and bytes(memoryview(self.content)[:1]) not in (b'"', b"n"):
            raise ValueError("content must be a string")


class SubmitInference(msgspec.Struct):
    """The body of Ollama's `/api/chat` (or, with `prompt`, of `/api/generate`), and beside it what makes it a job."""

    model: Annotated[str, msgspec.Meta(examples=["smollm2:135m"])]
    messages: Annotated[list[Message], msgspec.Meta(description="A chat")] | None = None
    prompt: Annotated[str, msgspec.Meta(description="In place of messages: a completion")] | None = None
    format: Annotated[Any, msgspec.Meta(description="json, or a JSON Schema for the answer")] = None
    options: Annotated[dict[str, Any], msgspec.Meta(description="As Ollama's: temperature, num_ctx, …")] | None = None
    keep_alive: str | float | None = None
    tools: list[dict[str, Any]] | None = None
    think: bool | str | None = None
    system: str | None = None
    suffix: str | None = None
    template: str | None = None
    raw: bool | None = None
    images: list[str] | None = None
    stream: Annotated[bool, msgspec.Meta(description="Ignored: a job's answer comes whole")] | None = None
    state_webhook_url: Annotated[
        str, msgspec.Meta(description="Told of every change of state", examples=["http://127.0.0.1:9000/hook"])
    ] | None = None  # fmt: skip
    webhook_events: Annotated[
        list[StateFilter], msgspec.Meta(max_length=len(views.TOPICS), description="Only these states; default: all")
    ] | None = None  # fmt: skip
    priority: Annotated[int, msgspec.Meta(ge=0, le=9, description="9 goes first")] = PRIORITY
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=1000, description="Default: engine.max_attempts")] | None = None
    run_at: Annotated[datetime, msgspec.Meta(tz=True, description="Not before this instant (RFC 3339)")] | None = None
    delay_seconds: Annotated[float, msgspec.Meta(ge=0, le=TEN_YEARS, description="Not before so many seconds")] = 0.0
    deadline_seconds: Annotated[
        float, msgspec.Meta(ge=0.001, le=TEN_YEARS, description="Fails when it is not done so many seconds after submission")
    ] | None = None  # fmt: skip
    metadata: Annotated[msgspec.Raw, msgspec.Meta(description="A JSON object that is kept with the job")] = (
        msgspec.field(default_factory=absent)
    )
    artifacts: Annotated[
        list[ArtifactWish], msgspec.Meta(max_length=MAX_ARTIFACTS, description="What to keep of the answer as a file")
    ] = []


class Accepted(msgspec.Struct):
    job_id: str


class JobQuery(msgspec.Struct, forbid_unknown_fields=True):
    state: StateFilter | None = None
    model: str | None = None
    cursor: Cursor | None = None
    limit: Limit = 50


class JobPage(msgspec.Struct):
    jobs: list[views.JobSummary]
    next: str | None


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True):
    after: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1, description="Only events with a higher number")] = 0
    tokens: Annotated[
        bool, msgspec.Meta(description="With SSE: also what the model says, from its first token, as `token` events")
    ] = False


class EventView(msgspec.Struct):
    """A line of a job's log."""

    sequence: int
    at: views.Instant
    state: views.StateName | None
    previous_state: views.StateName | None
    move: str
    attempt: int
    level: str
    message: str
    error: str | None
    data: Any


class EventPage(msgspec.Struct):
    events: list[EventView]


class Moved(msgspec.Struct):
    job_id: str
    state: views.StateName


_decoder = msgspec.json.Decoder(SubmitInference)
_fields = msgspec.json.Decoder(Fields)
_roles = msgspec.json.Decoder(list[Role])
KNOWN = frozenset(field.encode_name for field in msgspec.structs.fields(SubmitInference))
# How a value begins that is too large to be looked at further: what is wrong inside of it, the target says.
BEGINNINGS = {
    "messages": "[", "tools": "[", "images": "[",
    "prompt": '"', "system": '"', "suffix": '"', "template": '"',
}  # fmt: skip


class InferenceJobs:
    def __init__(
        self,
        engine: Engine,
        config: Config,
        policy: EgressPolicy,
        tracing: Tracing,
        scheduler: Scheduler,
        attempts: Attempts,
    ) -> None:
        self._engine = engine
        self._config = config
        self._settings = config.inference
        self._policy = policy
        self._tracing = tracing
        self._scheduler = scheduler
        self._attempts = attempts

    def routes(self) -> list[Route]:
        read, write, one = "jobs:read", "jobs:write", "/jobs/{job_id}"
        key = {
            "Idempotency-Key": IDEMPOTENCY_KEY,
            "traceparent": "W3C trace context; kept through the job to its webhooks",
        }
        # fmt: off
        return [
            Route("POST", "/jobs", self.submit_job, "Submit a chat or a completion", write, TAG,
                  "Durable when the 202 is there. Every change of state is told to `state_webhook_url`.",
                  request=SubmitInference, headers=key, status=202, reply=Accepted, errors=(EgressRefused, IdempotencyMismatch, TooLarge)),
            Route("GET", "/jobs", self.list_jobs, "List jobs, newest first", read, TAG, query=JobQuery, reply=JobPage),
            Route("GET", one, self.get_job, "Read a job: state, result, artifacts, why it waits", read, TAG, reply=views.JobView, errors=(NotFound,)),
            Route("DELETE", one, self.cancel_job, "Cancel a job", write, TAG, "A running one is stopped at its target.", reply=Moved, errors=(NotFound, Conflict)),
            Route("POST", f"{one}/retry", self.retry_job, "Give a failed job all its attempts again", write, TAG, reply=Moved, errors=(NotFound, Conflict)),
            Route("GET", f"{one}/events", self.list_events, "Read or follow a job's log, and its tokens", read, TAG,
                  "With `Accept: text/event-stream` it goes on live and takes up after `Last-Event-ID`.", query=EventsQuery,
                  headers={"Last-Event-ID": "The last sequence number that was seen"}, reply=EventPage, errors=(NotFound,)),
            Route("HEAD", f"{one}/artifacts/{{name}}", self.get_artifact, "As GET", read, TAG, hidden=True),
            Route("GET", f"{one}/artifacts/{{name}}", self.get_artifact, "Fetch a file of a job", read, TAG, "With ranges and ETag.",
                  reply_media="application/octet-stream", errors=(NotFound,)),
        ]
        # fmt: on

    # submitting -------------------------------------------------------------------------------------------------------

    async def submit_job(self, req: Request, resp: Response) -> None:
        # Nobody here keeps the body: the job has a copy of it, and that is enough.
        job = await self._new_job(req, await read_body(req, self._settings.max_body_bytes))
        with self._tracing.span("submit", **trace_headers(req), attributes={"model": name_of(job.queue)}) as span:
            trace = {"traceparent": span.traceparent, "tracestate": span.tracestate}
            submitted = await self._engine.submit(msgspec.structs.replace(job, **trace))
            span.set("job_id", submitted.job_id)
        accepted(resp, submitted.job_id)
        if not submitted.created:
            resp.set_header("idempotency-replayed", "true")

    async def _new_job(self, req: Request, body: bytes) -> NewJob:
        check_utf8(body)
        if len(body) > SMALL_BYTES:
            outline(body)
            await give_way(body)
        fields = decode(_fields, body, len(body))  # a few, as the outline has shown, each as it came
        asked = _asked(body, fields)
        await give_way(body)
        self._check(asked, fields)
        tenant = req.caller.tenant
        path = "/api/generate" if _given(fields, "prompt") else "/api/chat"
        key = idempotency_key(req)
        return NewJob(
            self._engine.new_id(),
            tenant,
            KIND,
            queue_of(tenant, asked.model),
            encode_request(path, native_body(fields), leaves=leaves(asked.keep_alive), artifacts=asked.artifacts),
            asked.priority,
            asked.max_attempts or self._config.engine.max_attempts,
            run_at_micros(asked.run_at),
            asked.delay_seconds,
            key,
            fingerprint(body) if key else None,
            reports=self._reports(tenant, asked),
            metadata=json_object("metadata", asked.metadata),
            deadline_seconds=asked.deadline_seconds,
        )

    def _check(self, asked: SubmitInference, fields: Fields) -> None:
        """What the types cannot say. Whether the model exists, only a target can tell."""
        _check_names(fields)
        check_model(asked.model, self._settings.allow_cloud)
        chat, completion = _given(fields, "messages"), _given(fields, "prompt")
        if chat == completion:
            raise InvalidField("messages", "give either messages (a chat) or prompt (a completion)")
        if chat:
            self._check_messages(asked.messages, fields["messages"])
        if completion and len(fields["prompt"]) <= 2:
            raise InvalidField("prompt", "must not be empty")
        if asked.run_at is not None and asked.delay_seconds:
            raise InvalidField("delay_seconds", "excludes run_at: give one of them")
        if asked.webhook_events and asked.state_webhook_url is None:
            raise InvalidField("webhook_events", "needs state_webhook_url")
        for index, wish in enumerate(asked.artifacts):
            checked_name(f"artifacts[{index}].name", wish.name)
        if len({wish.name for wish in asked.artifacts}) < len(asked.artifacts):
            raise InvalidField("artifacts", "has two of the same name")

    def _check_messages(self, messages: Sequence[object] | None, raw: msgspec.Raw) -> None:
        """Those that are large are not unfolded yet."""
        Role.left = most = self._settings.max_messages
        try:
            found = _roles.decode(raw) if messages is None else messages
            if not found:
                raise InvalidField("messages", "must not be empty")
            if len(found) > most:
                raise InvalidField("messages", f"has {len(found)} entries; at most {most} (inference.max_messages)")
        except msgspec.ValidationError as error:
            if Role.left < 0:
                text = f"has more than {most} entries, the most that are taken (inference.max_messages)"
                raise InvalidField("messages", text) from None
            message, _, path = str(error).partition(" - at `$")
            raise InvalidField(f"messages{path.rstrip('`')}", message) from None

    def _reports(self, tenant: str, asked: SubmitInference) -> tuple[Report, ...]:
        if asked.state_webhook_url is None:
            return ()
        url = self._policy.check_url("state_webhook_url", asked.state_webhook_url)
        states = dict.fromkeys(asked.webhook_events or ())
        topics = tuple(topic for state in states for topic in views.TOPICS[state])
        return (Report(url, endpoint_id(tenant, url), "foreman", topics),)

    # reading ----------------------------------------------------------------------------------------------------------

    async def get_job(self, req: Request, resp: Response, job_id: str) -> None:
        job = await self._get(req, job_id)
        store = self._engine.store
        now, log = await store.now(), await store.list_events(job.id)
        events = [event for event in log if event.seq <= job.seq]  # it may have moved on since it was read
        files = [artifact(job.id, file) for file in await store.job_files(job.id)]
        attempts = views.attempts_of(events)
        waiting_for, waiting = self._waiting(job, now)
        queued = job.state is State.QUEUED
        request = decode_request(job.payload)
        view = views.JobView(
            **views.summary(job, now, waiting_for),
            waiting=waiting,
            position=await store.position(job.id, POSITION_BOUND) if queued else None,
            resident={ledger.name: sorted(ledger.resident) for ledger in self._scheduler.ledgers} if queued else None,
            metadata=msgspec.Raw(job.metadata) if job.metadata else None,
            request=views.RequestView(request.path, len(request.body), _shown(request.body)),
            result=msgspec.Raw(job.result) if job.result else None,
            artifacts=files,
            evidence=attempts[-1].evidence if attempts and job.finished else None,
            attempts=attempts,
        )
        reply(resp, view)

    async def list_jobs(self, req: Request, resp: Response) -> None:
        asked, tenant = query(req, JobQuery), req.caller.tenant
        by = JobFilter(
            tenant,
            KIND,
            names=() if asked.model is None else spellings(checked("model", asked.model)),
            before=cursor(asked.cursor),
            limit=asked.limit + 1,
            topic=None if asked.state in (None, "failed") else views.TOPICS[asked.state][0],
            stopped=asked.state == "failed",
        )
        jobs, now = await self._engine.store.list_jobs(by), await self._engine.store.now()
        more = len(jobs) > asked.limit
        page = jobs[: asked.limit]
        listed = [views.JobSummary(**views.summary(job, now, self._waiting(job, now)[0])) for job in page]
        reply(resp, JobPage(listed, page[-1].id if more else None))

    def _waiting(self, job: Job, now: int) -> tuple[str | None, str | None]:
        if views.shown_state(job) != "queued":
            return None, None
        if job.run_at > now:
            why = job.waiting_for or "run_at"
            return why, f"not before {rfc3339(job.run_at)} ({why})" + (f": {job.error}" if job.error else "")
        waiting = self._scheduler.explain(model_of(job.queue), job.queue)
        return waiting.waiting_for, waiting.reason

    async def _get(self, req: Request, job_id: str) -> Job:
        job = await self._engine.get(ulid("job_id", job_id), req.caller.tenant)
        if job.kind != KIND:
            raise NotFound(f"there is no job {job_id} at this door")
        return job

    async def get_artifact(self, req: Request, resp: Response, job_id: str, name: str) -> None:
        job = await self._get(req, job_id)
        file = await self._engine.store.job_file(job.id, name)
        if file is None:
            raise NotFound(f"job {job_id} has no artifact {name!r}")
        await send_file(req, resp, self._attempts.files, file)

    # changing ---------------------------------------------------------------------------------------------------------

    async def cancel_job(self, req: Request, resp: Response, job_id: str) -> None:
        job, caller = await self._get(req, job_id), req.caller
        await self._engine.cancel(Guard.seen(job), message=f"cancelled by {caller.subject}")
        reply(resp, Moved(job.id, "failed"))

    async def retry_job(self, req: Request, resp: Response, job_id: str) -> None:
        job, caller = await self._get(req, job_id), req.caller
        if node_of(job.queue):
            raise Conflict(f"job {job_id} was a synchronous request: its caller is gone, send the request again")
        await self._engine.requeue(Guard.seen(job), message=f"retried by {caller.subject}")
        reply(resp, Moved(job.id, "queued"))

    # following --------------------------------------------------------------------------------------------------------

    async def list_events(self, req: Request, resp: Response, job_id: str) -> None:
        asked = query(req, EventsQuery)
        job = await self._get(req, job_id)
        if "text/event-stream" not in (req.get_header("accept") or "") and not asked.tokens:
            events = await self._engine.store.list_events(job.id, asked.after, max_bytes=EVENTS_BYTES)
            return reply(resp, EventPage([event_view(event) for event in events]))
        sse.send_events(req, resp, self._follow(job, max(asked.after, last_event_id(req)), asked.tokens))
        return None

    async def _follow(self, job: Job, after: int, tokens: bool) -> AsyncGenerator[sse.Event, None]:
        """The log, and what the running attempt says, as one stream in the order in which they come."""
        news: asyncio.Queue[sse.Event] = asyncio.Queue(maxsize=256)
        following = asyncio.create_task(self._put_events(job, after, tokens, news))
        try:
            while not (following.done() and news.empty()):
                getting = asyncio.ensure_future(news.get())
                try:
                    await asyncio.wait({getting, following}, return_when=asyncio.FIRST_COMPLETED)
                    if getting.done():
                        yield getting.result()
                finally:
                    getting.cancel()
            following.result()  # tells what went wrong, if something did
        finally:
            following.cancel()

    async def _put_events(self, job: Job, after: int, tokens: bool, news: "asyncio.Queue[sse.Event]") -> None:
        along = _Along(news)
        stop = self._attempts.follow(job.id, along.begin) if tokens else lambda: None
        try:
            async for event in self._engine.watch(job.id, after, job.tenant):
                if event.move in views.ENDS:
                    await along.end()  # what was said comes before what became of it
                await news.put(sse.Event(event.move, msgspec.json.encode(event_view(event)), str(event.seq)))
                along.read()
        finally:
            stop()
            along.cancel()


class _Along:
    """Reads what the attempts of a job say, each from its first token, one after the other."""

    def __init__(self, news: "asyncio.Queue[sse.Event]") -> None:
        self._news = news
        self._coming: deque[Stream] = deque()
        self._reading: tuple[Stream, asyncio.Task[None]] | None = None

    def begin(self, stream: Stream) -> None:
        self._coming.append(stream)
        self.read()

    def read(self) -> None:
        if self._reading is None and self._coming:
            stream = self._coming.popleft()
            self._reading = stream, asyncio.create_task(self._put_tokens(stream))

    async def end(self) -> None:
        """An attempt has ended: what it said is put whole. An end of long ago is not that of the attempt that runs."""
        if self._reading is not None and self._reading[0].closed:
            await asyncio.wait({self._reading[1]})
            self._reading = None

    def cancel(self) -> None:
        if self._reading is not None:
            self._reading[1].cancel()

    async def _put_tokens(self, stream: Stream) -> None:
        with contextlib.suppress(Cut):
            async for line in stream.lines():
                await self._put(line)

    async def _put(self, line: bytes) -> None:
        if line.strip():
            await self._news.put(sse.Event("token", line))


def accepted(resp: Response, job_id: str) -> None:
    reply(resp, Accepted(job_id), 202)
    resp.set_header("location", f"/jobs/{job_id}")


def check_model(model: str, allow_cloud: bool) -> None:
    checked("model", model)
    if is_cloud(model) and not allow_cloud:
        raise Forbidden(f"{model} would run in the cloud, which is switched off here (inference.allow_cloud)")


def native_body(fields: Fields) -> dict[str, Any]:
    """For the target: without what only we read, and streamed, so that we see the answer grow."""
    kept: dict[str, Any] = {name: value for name, value in fields.items() if name not in EXTENSIONS}
    return kept | {"stream": True}


def _asked(body: bytes, fields: Fields) -> SubmitInference:
    """All that is small enough to be unfolded, checked by its type; of the rest, how it begins."""
    if len(body) <= SMALL_BYTES:
        return decode(_decoder, body)
    for name, raw in fields.items():
        if len(raw) > SMALL_BYTES and name in BEGINNINGS and not _begins(raw, BEGINNINGS[name]):
            raise InvalidField(name, f"must begin with {BEGINNINGS[name]}")
    small = msgspec.json.encode({name: raw for name, raw in fields.items() if len(raw) <= SMALL_BYTES})
    return decode(_decoder, small, len(small))


def _begins(raw: msgspec.Raw, beginning: str) -> bool:
    return bytes(memoryview(raw)[:1]) == beginning.encode()


def _given(fields: Fields, name: str) -> bool:
    return name in fields and bytes(memoryview(fields[name])[:4]) != b"null"


def _check_names(fields: Fields) -> None:
    """Ollama ignores what it does not know, and so do we; but nobody should wait for a webhook because of a slip."""
    unknown = [name for name in fields if name not in KNOWN]
    if len(unknown) > MAX_UNKNOWN:
        raise InvalidField("body", f"has {len(unknown)} fields that are not known here; at most {MAX_UNKNOWN}")
    for name in unknown:
        if meant := _meant(name):
            raise InvalidField(name, f"is not known here; did you mean {meant}?")


def _meant(name: str) -> str:
    if len(name) > LONGEST_SLIP:
        return ""
    nearest = get_close_matches(name, EXTENSIONS, n=1, cutoff=0.8)
    return nearest[0] if nearest else "state_webhook_url" if "webhook" in name or "callback" in name else ""


def _shown(body: memoryview) -> msgspec.Raw | None:
    """A body with images is megabytes, and whoever asks how a job is doing has it already."""
    return msgspec.Raw(body) if len(body) <= SHOWN_BYTES else None


def event_view(event: Event) -> EventView:
    state = views.state_of(f"{event.state}:{event.stage}" if event.stage else event.state)
    return EventView(
        event.seq, rfc3339(event.at), state, views.state_of(event.previous), event.move,
        views.attempt_of(event.state, event.attempt), event.level, event.message, event.error,
        msgspec.Raw(event.data) if event.data else None,
    )  # fmt: skip
