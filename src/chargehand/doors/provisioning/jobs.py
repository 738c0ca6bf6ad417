"""`/api/v1/jobs`: submit a recipe for a server and be told; read, list, follow, cancel, retry."""

from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from chargehand.doors.provisioning import views
from chargehand.doors.provisioning.job.deadlines import Deadlines
from chargehand.doors.provisioning.job.orders import JobMetadata, Orders, order_of
from chargehand.doors.provisioning.job.position import TOPICS, Positions, Status, position_of
from chargehand.doors.provisioning.names import BASE, KIND, READ, TAG, WRITE, server_queue
from chargehand.doors.provisioning.recipe.recipe import Recipe, judged
from chargehand.doors.provisioning.recipe.schema import SCHEMA_BYTES
from chargehand.doors.provisioning.refusals import ProvisioningRefused, write_error
from chargehand.doors.provisioning.servers import ServerRecord, Servers, checked_serial
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.doors.provisioning.vault import Vault
from chargehand.engine.delivery import endpoint_id
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import Job, NewJob, Report, State, rfc3339
from chargehand.engine.reads import JobFilter
from chargehand.errors import Conflict, EgressRefused, IdempotencyMismatch, InvalidField, NotFound
from chargehand.http import sse
from chargehand.http.inputs import (
    IDEMPOTENCY_KEY,
    absent,
    fingerprint,
    idempotency_key,
    json_object,
    last_event_id,
    trace_headers,
)
from chargehand.http.paging import EVENTS_BYTES, Cursor, Limit, cursor, ulid
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, decode, query, read_body, reply
from chargehand.observability.tracing import Tracing
from chargehand.webhooks.egress import EgressPolicy

MAX_BODY = 4 << 20
EVENTS_PAGE = 1000
SCHEMA_MEDIA = "application/schema+json"


class ProvisioningWebhook(msgspec.Struct, forbid_unknown_fields=True):
    url: Annotated[
        str,
        Meta(max_length=2048, description="Told of every change of status", examples=["http://127.0.0.1:9000/hook"]),
    ]
    # A set: however often each is given, it is kept once.
    on: Annotated[frozenset[Status], Meta(description="Only these statuses; default: all")] = msgspec.field(
        default_factory=frozenset
    )


class SubmitProvisioning(msgspec.Struct, forbid_unknown_fields=True):
    server_serial: Annotated[str, Meta(max_length=1024)]
    recipe: Annotated[msgspec.Raw, Meta(description="See docs/provisioning.md and GET /api/v1/recipe-schema")]
    webhook: ProvisioningWebhook | None = None
    priority: Annotated[int, Meta(ge=0, le=9, description="9 goes first")] = 0
    metadata: Annotated[
        msgspec.Raw, Meta(description="A JSON object of at most 16 KiB: kept with the job, and sent with its webhooks")
    ] = msgspec.field(default_factory=absent)


class ProvisioningSubmitted(msgspec.Struct):
    job_id: str
    status: str
    server_serial: str
    created_at: str


class ProvisioningJobQuery(msgspec.Struct, forbid_unknown_fields=True):
    status: Status | None = None
    server_serial: str | None = None
    cursor: Cursor | None = None
    limit: Limit = 50


class ProvisioningJobPage(msgspec.Struct):
    jobs: list[views.ProvisioningJobSummary]
    next: str | None


class ProvisioningEventsQuery(msgspec.Struct, forbid_unknown_fields=True):
    after: Annotated[int, Meta(ge=0, le=2**31 - 1, description="Only events with a higher number")] = 0


class ProvisioningEventPage(msgspec.Struct):
    events: list[views.ProvisioningEventView]


class RecipeValid(msgspec.Struct):
    valid: bool
    schema_id: str


_submit = msgspec.json.Decoder(SubmitProvisioning)
_object = msgspec.json.Decoder(dict[str, Any])


class ProvisioningJobs:
    def __init__(
        self,
        engine: Engine,
        policy: EgressPolicy,
        tracing: Tracing,
        vault: Vault,
        orders: Orders,
        positions: Positions,
        deadlines: Deadlines,
        servers: Servers,
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._tracing = tracing
        self._vault = vault
        self._orders = orders
        self._positions = positions
        self._deadlines = deadlines
        self._servers = servers
        self.unreachable = ""  # why no machine could reach us

    def routes(self) -> list[Route]:
        jobs, one = f"{BASE}/jobs", f"{BASE}/jobs/{{job_id}}"
        # fmt: off
        rows: list[dict[str, Any]] = [
            {"method": "POST", "path": jobs, "handler": self.submit_job, "summary": "Provision a server by a recipe",
             "scope": WRITE, "request": SubmitProvisioning, "status": 202, "reply": ProvisioningSubmitted,
             "description": "Durable when the 202 is there; its webhooks too. One job at a time for each server.",
             "headers": {"Idempotency-Key": IDEMPOTENCY_KEY}, "errors": (NotFound, Conflict, EgressRefused, IdempotencyMismatch)},
            {"method": "GET", "path": jobs, "handler": self.list_jobs, "summary": "List jobs, newest first",
             "scope": READ, "query": ProvisioningJobQuery, "reply": ProvisioningJobPage},
            {"method": "GET", "path": one, "handler": self.get_job, "summary": "Read a job, with its progress step by step",
             "scope": READ, "reply": views.ProvisioningJobView, "errors": (NotFound,)},
            {"method": "GET", "path": f"{one}/events", "handler": self.list_events, "summary": "The log of a job",
             "scope": READ, "query": ProvisioningEventsQuery, "reply": ProvisioningEventPage, "errors": (NotFound,),
             "description": "With `Accept: text/event-stream` they come as they happen."},
            {"method": "POST", "path": f"{one}/cancel", "handler": self.cancel_job, "summary": "Cancel a job",
             "scope": WRITE, "reply": views.ProvisioningJobSummary, "errors": (NotFound, Conflict),
             "description": "Media are ejected before it is complete. A machine that is at work already goes on unless the recipe's on_failure says otherwise."},
            {"method": "POST", "path": f"{one}/retry", "handler": self.retry_job, "summary": "Start a failed or cancelled job again, from the beginning",
             "scope": WRITE, "reply": views.ProvisioningJobSummary, "errors": (NotFound, Conflict)},
            {"method": "POST", "path": f"{BASE}/recipes/validate", "handler": self.validate_recipe, "summary": "Check a recipe without submitting it",
             "scope": READ, "request": dict[str, Any], "reply": RecipeValid},
            {"method": "GET", "path": f"{BASE}/recipe-schema", "handler": self.get_schema, "summary": "The JSON Schema of recipes",
             "scope": READ, "reply": dict[str, Any], "reply_media": SCHEMA_MEDIA},
        ]
        # fmt: on
        return [Route(**row, tag=TAG, error_writer=write_error) for row in rows]

    # submitting ---------------------------------------------------------------------------------------------------------

    async def submit_job(self, req: Request, resp: Response) -> None:
        caller, key = req.caller, idempotency_key(req)
        serial, new = await self._ordered(req, key)
        with self._tracing.span("submit", **trace_headers(req), attributes={"server_serial": serial}) as span:
            new = replace(new, traceparent=span.traceparent, tracestate=span.tracestate)
            submitted = await self._engine.submit(new)
            span.set("job_id", submitted.job_id)
        if (made := submitted.moved) is not None:  # what was just stored is not read again
            reply(resp, ProvisioningSubmitted(made.job_id, "queued", serial, rfc3339(made.created_at)), 202)
            return
        job = await self._engine.get(submitted.job_id, caller.tenant)
        if key is None or job.idempotency_key != key:
            raise ProvisioningRefused(
                409,
                Key.CONFLICT_ACTIVE_JOB,
                f"job {job.id} is active for server {serial}; wait, or cancel it",
            )
        reply(resp, ProvisioningSubmitted(job.id, position_of(job).status, serial, rfc3339(job.created_at)), 202)

    async def _ordered(self, req: Request, key: str | None) -> tuple[str, NewJob]:
        """In a call of its own: while the job is stored, its request is no longer held."""
        tenant = req.caller.tenant
        body = await read_body(req, MAX_BODY)
        asked, printed = _asked(body), fingerprint(body) if key else None
        self._vault.require_open()
        if self.unreachable:
            raise ProvisioningRefused(503, "config.missing", self.unreachable)
        shown = await judged(memoryview(asked.recipe), "/recipe")
        serial = asked.server_serial
        server = await self._server(tenant, serial)
        job_id = self._engine.new_id()
        return serial, NewJob(
            job_id,
            server_queue(tenant, serial),
            self._orders.seal(job_id, serial, shown, memoryview(asked.recipe)),
            asked.priority,
            idempotency_key=key,
            fingerprint=printed,
            reports=self._reports(tenant, asked.webhook),
            metadata=_metadata(asked, shown, server.system_uuid),
            unique_key="active",  # of the server's own queue
        )

    async def _server(self, tenant: str, serial: str) -> ServerRecord:
        try:
            return await self._servers.get(tenant, checked_serial(serial))
        except InvalidField as error:
            raise ProvisioningRefused(404, Key.VALIDATION_SERVER, error.message) from None
        except NotFound:
            raise ProvisioningRefused(
                404, Key.VALIDATION_SERVER, f"there is no server {serial}; register it with PUT {BASE}/servers/{serial}"
            ) from None

    def _reports(self, tenant: str, webhook: ProvisioningWebhook | None) -> tuple[Report, ...]:
        if webhook is None:
            return ()
        url = self._policy.check_url("webhook.url", webhook.url)
        on = tuple(topic for status in sorted(webhook.on) for topic in TOPICS[status])
        return (Report(url, endpoint_id(tenant, url), "standard", on),)

    # reading ------------------------------------------------------------------------------------------------------------

    async def list_jobs(self, req: Request, resp: Response) -> None:
        by, tenant = query(req, ProvisioningJobQuery), req.caller.tenant
        queue = None if by.server_serial is None else checked_serial(by.server_serial)
        # Of `complete` there are three topics: those jobs are looked through, and they are nearly all there are.
        topic = None if by.status in (None, "complete") else TOPICS[by.status][0]
        jobs: list[views.ProvisioningJobSummary] = []
        before, more = cursor(by.cursor), True
        while more and len(jobs) < by.limit:
            found = await self._engine.jobs.list_jobs(
                JobFilter(
                    tenant,
                    KIND,
                    queue,
                    before=before,
                    limit=by.limit,
                    topics=(topic,) if topic else (),
                )
            )
            more = len(found) == by.limit
            for job in found[: by.limit]:
                if len(jobs) < by.limit:
                    before = job.id
                    if by.status in (None, position_of(job).status):
                        jobs.append(views.summary(job, await self._positions.in_list(job)))
        reply(resp, ProvisioningJobPage(jobs, before if more or len(jobs) == by.limit else None))

    async def get_job(self, req: Request, resp: Response, job_id: str) -> None:
        job = await self._job(req, job_id)
        position, recipe = await self._positions.of(job), order_of(job).recipe
        reply(resp, views.job_view(job, recipe, position, self._deadlines.current(position, Recipe.of(recipe))))

    async def list_events(self, req: Request, resp: Response, job_id: str) -> None:
        after = query(req, ProvisioningEventsQuery).after
        job = await self._job(req, job_id)
        if "text/event-stream" in (req.get_header("accept") or ""):
            sse.send_events(req, resp, self._follow(job, max(after, last_event_id(req))))
            return
        events = await self._engine.jobs.list_events(job.id, after, EVENTS_PAGE, EVENTS_BYTES)
        reply(resp, ProvisioningEventPage([views.event_view(event) for event in events]))

    async def _follow(self, job: Job, after: int) -> AsyncGenerator[sse.Event, None]:
        async for event in self._engine.watch(job.id, after, job.tenant):
            view = views.event_view(event)
            yield sse.Event(view.kind, msgspec.json.encode(view), str(event.seq))

    # acting -------------------------------------------------------------------------------------------------------------

    async def cancel_job(self, req: Request, resp: Response, job_id: str) -> None:
        job = await self._job(req, job_id)
        await self._engine.cancel(Guard.seen(job), message=f"cancelled by {req.caller.subject}")
        await self._reply(resp, job)

    async def retry_job(self, req: Request, resp: Response, job_id: str) -> None:
        job = await self._job(req, job_id)
        if job.state not in (State.FAILED, State.CANCELLED):
            raise ProvisioningRefused(
                409,
                "conflict.state",
                f"the job is {position_of(job).status}; only one that failed or was cancelled can be tried again",
            )
        await self._server(job.tenant, order_of(job).server_serial)
        active = await self._servers.active_job(job.tenant, order_of(job).server_serial)
        if active is not None:
            raise ProvisioningRefused(
                409, Key.CONFLICT_ACTIVE_JOB, f"job {active.id} is active for this server; wait, or cancel it"
            )
        message = f"to be tried again, says {req.caller.subject}"
        await self._engine.requeue(Guard.seen(job), message=message)
        await self._reply(resp, job)

    async def _reply(self, resp: Response, job: Job) -> None:
        job = await self._engine.get(job.id, job.tenant)
        reply(resp, views.summary(job, await self._positions.in_list(job)))

    async def _job(self, req: Request, job_id: str) -> Job:
        job = await self._engine.get(ulid("job_id", job_id), req.caller.tenant)
        if job.kind != KIND:
            raise NotFound(f"there is no provisioning job {job_id}")
        return job

    # recipes ------------------------------------------------------------------------------------------------------------

    async def validate_recipe(self, req: Request, resp: Response) -> None:
        await judged(await read_body(req, MAX_BODY))
        reply(resp, RecipeValid(True, Recipe.schema_id))

    async def get_schema(self, req: Request, resp: Response) -> None:
        resp.content_type = SCHEMA_MEDIA
        resp.data = SCHEMA_BYTES


def _asked(body: bytes) -> SubmitProvisioning:
    asked = decode(_submit, body)
    if len(asked.recipe) <= len(b"null") and bytes(asked.recipe) in (b"", b"null"):
        raise InvalidField("recipe", "must be a JSON object")
    return asked


def _metadata(asked: SubmitProvisioning, recipe: Recipe, system_uuid: str | None) -> bytes:
    metadata = decode(_object, json_object("metadata", asked.metadata) or b"{}")
    return msgspec.json.encode(JobMetadata(asked.server_serial, recipe.target, system_uuid, metadata))
