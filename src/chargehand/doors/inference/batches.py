"""OpenAI's Batches over HTTP. A batch is a job, and each of its lines is a job too.

All state of a batch is in its job and its log, also that a caller asked it to stop. That is a note and not the engine's `cancel`,
which ends a job at once: a batch must cancel its lines and write its files before it ends.
"""

import asyncio
import contextlib
import re
from typing import Annotated, Any, Literal

import msgspec

from chargehand.config import Config
from chargehand.doors.inference.batch import CANCEL, BatchRecord, Counts, Spec, batch_name, spec_of
from chargehand.doors.inference.batch_lines import ENDPOINTS, LineError
from chargehand.doors.inference.batch_work import BatchWork
from chargehand.doors.inference.errors import write_openai
from chargehand.doors.inference.uploads import PURPOSE, TAG, file_name, file_ulid
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.ids import is_ulid
from chargehand.engine.job import SECOND, Event, Job, NewJob, State
from chargehand.engine.listing import list_full_page
from chargehand.engine.moves import Change, Moved, Note
from chargehand.engine.queue import Queue
from chargehand.engine.reads import JobFilter
from chargehand.engine.runner import Runner
from chargehand.engine.wakeups import wait_within
from chargehand.errors import Conflict, IdempotencyMismatch, InvalidField, NotFound, StoreError
from chargehand.files import Files
from chargehand.http.inputs import IDEMPOTENCY_KEY, identity, trace_headers
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, decode, query, read_body, reply
from chargehand.observability.logs import get_logger
from chargehand.observability.tracing import trace_context

KIND = "batch"
PREFIX = "batch_"
CONCURRENCY = 4  # of each tenant's batches, so that they do not wait for those of other tenants
MAX_ATTEMPTS = 1000  # an attempt is spent only when a server dies
MAX_BODY = 64 << 10
MAX_PAIRS = 16
EVENTS_PAGE = 1000
UNITS = {"s": 1, "m": 60, "h": 3600}
LONGEST_SECONDS = 24 * 3600

log = get_logger(__name__)


class CreateBatch(msgspec.Struct):
    input_file_id: str
    endpoint: Annotated[str, msgspec.Meta(description=", ".join(ENDPOINTS), examples=[ENDPOINTS[0]])]
    completion_window: Annotated[
        str, msgspec.Meta(description="24h, as OpenAI's; here also less, such as 90m or 30s", examples=["24h"])
    ]
    metadata: Annotated[dict[str, str], msgspec.Meta(max_length=MAX_PAIRS)] | None = None


class BatchQuery(msgspec.Struct, forbid_unknown_fields=True):
    after: Annotated[str, msgspec.Meta(description="The id of the last batch of the page before")] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20


class BatchErrors(msgspec.Struct):
    data: list[LineError]
    object: str = "list"


Status = Literal["validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"]


STAGES: dict[str, Status] = {"in_progress": "in_progress", "finalizing": "finalizing"}
ENDS: dict[str, Status] = {"succeed": "completed", "fail": "failed", "cancel": "cancelled", "expire": "failed"}


class BatchObject(msgspec.Struct, kw_only=True):
    """All instants are whole seconds since the epoch."""

    id: str
    object: str = "batch"
    endpoint: str
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts
    metadata: dict[str, str] | None = None


class BatchList(msgspec.Struct):
    data: list[BatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"


_decoder = msgspec.json.Decoder(CreateBatch)
_record = msgspec.json.Decoder(BatchRecord)


class Batches:
    def __init__(self, engine: Engine, config: Config, files: Files) -> None:
        self._engine = engine
        self._jobs = engine.jobs
        self._lease_seconds = config.inference.lease_seconds
        self._poll_seconds = config.engine.poll_seconds
        self._files = files
        self._work = BatchWork(engine, config, files)
        self._queues: set[Queue] = set()
        self._news = asyncio.Event()
        self._stopping: set[asyncio.Task[None]] = set()

    def routes(self) -> list[Route]:
        read, write, one = "jobs:read", "jobs:write", "/v1/batches/{batch_id}"
        openai: dict[str, Any] = {"error_writer": write_openai}
        # fmt: off
        return [
            Route("POST", "/v1/batches", self.create_batch, "Have the lines of a file worked on", write, TAG,
                  "Each line is a job in the same queues as all others, beneath everybody who waits.", request=CreateBatch,
                  headers={"Idempotency-Key": IDEMPOTENCY_KEY}, reply=BatchObject, errors=(IdempotencyMismatch,), **openai),
            Route("GET", "/v1/batches", self.list_batches, "List batches, newest first", read, TAG, query=BatchQuery, reply=BatchList, **openai),
            Route("GET", one, self.get_batch, "Read a batch", read, TAG, reply=BatchObject, errors=(NotFound,), **openai),
            Route("POST", f"{one}/cancel", self.cancel_batch, "Cancel a batch", write, TAG, "What has been answered by then is kept.",
                  reply=BatchObject, errors=(NotFound, Conflict), **openai),
        ]
        # fmt: on

    # submitting -------------------------------------------------------------------------------------------------------

    async def create_batch(self, req: Request, resp: Response) -> None:
        body = await read_body(req, MAX_BODY)
        asked, tenant = decode(_decoder, body), req.caller.tenant
        spec = await self._check(asked, tenant)
        traceparent, tracestate = trace_context(**trace_headers(req))
        key, fingerprint = identity(req, body)
        submitted = await self._engine.submit(
            NewJob(
                self._engine.new_id(),
                Queue(KIND, tenant, "all"),
                msgspec.json.encode(spec),
                max_attempts=MAX_ATTEMPTS,
                idempotency_key=key,
                fingerprint=fingerprint,
                traceparent=traceparent,
                tracestate=tracestate,
            )
        )
        reply(resp, await self._shown(await self._engine.get(submitted.job_id, tenant)))

    async def _check(self, asked: CreateBatch, tenant: str) -> Spec:
        if asked.endpoint not in ENDPOINTS:
            raise InvalidField("endpoint", f"must be one of {', '.join(ENDPOINTS)}")
        for name, value in (asked.metadata or {}).items():
            if not 1 <= len(name) <= 64 or len(value) > 512:
                raise InvalidField("metadata", "a name has 1 to 64 characters, a value at most 512")
        seconds = _window(asked.completion_window)
        file_id = file_ulid("input_file_id", asked.input_file_id)
        file = await self._files.get(file_id, tenant)
        if file is None or file.purpose != PURPOSE:
            raise InvalidField("input_file_id", f"there is no file {asked.input_file_id} that was uploaded for a batch")
        return Spec(file_id, asked.endpoint, asked.completion_window, seconds, asked.metadata)

    # reading ----------------------------------------------------------------------------------------------------------

    async def get_batch(self, req: Request, resp: Response, batch_id: str) -> None:
        reply(resp, await self._shown(await self._get(req, batch_id)))

    async def list_batches(self, req: Request, resp: Response) -> None:
        asked, tenant = query(req, BatchQuery), req.caller.tenant
        before = None if asked.after is None else batch_ulid("after", asked.after)
        # OpenAI's clients go on behind the last batch of a page, so one that has none would be the last to them.
        found, following = await list_full_page(self._jobs, JobFilter(tenant, KIND, before=before, limit=asked.limit))
        jobs = [await self._jobs.get_job(job.id, tenant) for job in found]  # with their payloads
        shown = [await self._shown(job) for job in jobs if job is not None]
        ends = (shown[0].id, shown[-1].id) if shown else (None, None)
        reply(resp, BatchList(shown, following is not None, *ends))

    async def _get(self, req: Request, batch_id: str) -> Job:
        job = await self._jobs.get_job(batch_ulid("batch_id", batch_id), req.caller.tenant)
        if job is None or job.kind != KIND:
            raise NotFound(f"there is no batch {batch_id}")
        return job

    async def _shown(self, job: Job) -> BatchObject:
        shown = batch_object(job, await self._log(job.id))
        if (batch := self._work.under_way.get(job.id)) is not None:
            shown.request_counts = batch.counts
        return shown

    async def _log(self, job_id: str) -> list[Event]:
        events: list[Event] = []
        while page := await self._jobs.list_events(job_id, events[-1].seq if events else 0, EVENTS_PAGE):
            events += page
            if len(page) < EVENTS_PAGE:
                break
        return events

    # cancelling -------------------------------------------------------------------------------------------------------

    async def cancel_batch(self, req: Request, resp: Response, batch_id: str) -> None:
        job, caller = await self._get(req, batch_id), req.caller
        if job.finished:
            raise Conflict(f"the batch {batch_id} has ended; there is nothing to cancel")
        message = f"cancelled by {caller.subject}"
        if job.lease or not await self._cancel_unbegun(job, message):
            await self._engine.note(Note(Guard.seen(job), "warn", CANCEL, message))
        reply(resp, await self._shown(await self._engine.get(job.id, caller.tenant)))

    async def _cancel_unbegun(self, job: Job, message: str) -> bool:
        """Cancel a batch that was never claimed. Its lease is the guard: a claim meanwhile has changed it."""
        change = Change(Guard.held(job), "cancel", error="cancelled", level="warn", message=message)
        with contextlib.suppress(Conflict):
            await self._engine.change(change)
            return True
        return False

    # working ----------------------------------------------------------------------------------------------------------

    def on_line_move(self, moved: Moved) -> None:
        self._work.on_line_move(moved)

    def on_move(self, moved: Moved) -> None:
        if moved.state is State.QUEUED and moved.queue not in self._queues:
            self._news.set()
        batch = self._work.under_way.get(moved.job_id)
        if moved.move == "cancel" and batch is not None and not batch.ended:
            # Cancelled through the engine's own API: cancel its lines too.
            task = asyncio.create_task(self._work.cancel(batch.job.tenant, list(batch.open), "its batch was cancelled"))
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def run(self) -> None:
        """Start a runner for each tenant when its first batch is seen."""
        async with asyncio.TaskGroup() as runners:
            while not self._engine.draining:
                self._news.clear()
                for queue in await self._waiting():
                    self._queues.add(queue)
                    runners.create_task(self._runner(queue).run())
                await wait_within(self._news, self._poll_seconds)

    async def _waiting(self) -> set[Queue]:
        try:
            heads = await self._jobs.queue_heads(KIND, 1)
        except StoreError as error:
            log.warning("cannot look for batches, will try again", error=str(error))
            return set()
        return {head.queue for head in heads if not head.queue.node} - self._queues

    def _runner(self, queue: Queue) -> Runner:
        return Runner(
            self._engine, KIND, (queue,), self._work.work, concurrency=CONCURRENCY, lease_seconds=self._lease_seconds
        )


# views ------------------------------------------------------------------------------------------------------------------


def batch_object(job: Job, events: list[Event]) -> BatchObject:
    """Return the view of a batch from its job and its log. Events before a requeue are ignored."""
    spec = spec_of.decode(job.payload)
    times: dict[str, Any] = {}
    record = BatchRecord()
    for event in events:
        if event.move == "requeue":
            times, record = {}, BatchRecord()
        if (status := _status(event)) is not None:
            times.setdefault(f"{status}_at", event.at // SECOND)
        record = _read_record(event) or record
    return BatchObject(
        id=batch_name(job.id),
        endpoint=spec.endpoint,
        errors=BatchErrors(list(record.errors)) if record.errors else None,
        input_file_id=file_name(spec.input_file_id),
        completion_window=spec.completion_window,
        status=_current(job, times),
        output_file_id=record.output_file_id,
        error_file_id=record.error_file_id,
        created_at=job.created_at // SECOND,
        expires_at=int(job.created_at / SECOND + spec.window_seconds),
        request_counts=record.request_counts or Counts(),
        metadata=spec.metadata,
        **times,
    )


def _status(event: Event) -> Status | None:
    """Return the status that began with an event."""
    if event.step == CANCEL:
        return "cancelling"
    if event.move == "advance":
        return STAGES.get(event.stage)
    if event.move == "fail" and (_read_record(event) or BatchRecord()).expired:
        return "expired"
    return ENDS.get(event.move)


def _current(job: Job, times: dict[str, Any]) -> Status:
    """Return the furthest status: another attempt after a crash does not set a batch back."""
    order: tuple[Status, ...] = ("cancelling", "finalizing", "in_progress")
    if job.finished:
        order = ("completed", "expired", "failed", "cancelled")
    return next((status for status in order if f"{status}_at" in times), "failed" if job.finished else "validating")


def _read_record(event: Event) -> BatchRecord | None:
    if event.data is None:
        return None
    try:
        record = _record.decode(event.data)
    except msgspec.DecodeError:
        return None  # the data of a note by somebody else
    return record if record.request_counts is not None or record.errors else None


def _window(text: str) -> float:
    match = re.fullmatch(r"(\d{1,6})([smh])", text)
    seconds = int(match[1]) * UNITS[match[2]] if match else 0
    if not 1 <= seconds <= LONGEST_SECONDS:
        raise InvalidField("completion_window", "must be 24h, or less: a number and s, m or h")
    return float(seconds)


def batch_ulid(field: str, text: str) -> str:
    if not text.startswith(PREFIX) or not is_ulid(text.removeprefix(PREFIX)):
        raise InvalidField(field, f"must be the id of a batch: {PREFIX} and 26 characters")
    return text.removeprefix(PREFIX)
