"""`/api/v1/jobs`: submit a recipe for a server; list, read, follow, cancel and retry jobs; check recipes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from chargehand.doors.provisioning import views
from chargehand.doors.provisioning.job.deadlines import Deadlines
from chargehand.doors.provisioning.job.orders import JobMetadata, Orders, order_of
from chargehand.doors.provisioning.job.position import TOPICS, Positions, Status, position_of
from chargehand.doors.provisioning.names import BASE, KIND, READ, WRITE, server_queue
from chargehand.doors.provisioning.recipe.recipe import Recipe, judged
from chargehand.doors.provisioning.recipe.schema import SCHEMA_BYTES
from chargehand.doors.provisioning.refusals import ProvisioningRefused, route
from chargehand.doors.provisioning.servers import ServerRecord, Servers, checked_serial
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.doors.provisioning.vault import Vault
from chargehand.engine.engine import Engine
from chargehand.engine.held import held
from chargehand.engine.job import Job, NewJob, Report, State, rfc3339
from chargehand.engine.reads import JobFilter
from chargehand.errors import Conflict, EgressRefused, IdempotencyMismatch, InvalidField, NotFound
from chargehand.http.auth import Caller
from chargehand.http.inputs import absent, identity, json_object
from chargehand.http.jobs import (
    FOLLOW,
    FOLLOW_HEADERS,
    SUBMIT_HEADERS,
    EventPage,
    EventsQuery,
    JobPage,
    JobResource,
    StepDoor,
    Wording,
)
from chargehand.http.paging import Cursor, Limit, cursor
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, decode, query, read_body, reply

MAX_BODY = 4 << 20
SCHEMA_MEDIA = "application/schema+json"


class ProvisioningWebhook(msgspec.Struct, forbid_unknown_fields=True):
    url: Annotated[
        str,
        Meta(
            max_length=2048, description="Every change of status is sent there", examples=["http://127.0.0.1:9000/hook"]
        ),
    ]
    # A set, so that a status that is given twice is stored once.
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


class RecipeValid(msgspec.Struct):
    valid: bool
    schema_id: str


_submit = msgspec.json.Decoder(SubmitProvisioning)
_object = msgspec.json.Decoder(dict[str, Any])


WORDING = Wording(
    kind=KIND,
    noun="provisioning job",
    path=f"{BASE}/jobs",
    event_view=views.event_view,
    event_name=views.event_kind,
)


@dataclass(eq=False, repr=False)
class ProvisioningJobsApi:
    _engine: Engine
    _jobs: JobResource
    _vault: Vault
    _orders: Orders
    _positions: Positions
    _deadlines: Deadlines
    _servers: Servers
    unreachable: str = ""  # why machines cannot reach this server

    def routes(self) -> list[Route]:
        jobs, one = f"{BASE}/jobs", f"{BASE}/jobs/{{job_id}}"
        of_one = (NotFound, Conflict)
        # fmt: off
        return [
            route("POST", jobs, self.submit_job, "Submit a recipe for a server", WRITE,
                  "After the 202 the job and its webhooks are durable. A server has one active job at most.", request=SubmitProvisioning, headers=SUBMIT_HEADERS,
                  status=202, reply=ProvisioningSubmitted, errors=(NotFound, Conflict, EgressRefused, IdempotencyMismatch)),
            route("GET", jobs, self.list_jobs, "List jobs, newest first", READ, query=ProvisioningJobQuery, reply=JobPage[views.ProvisioningJobSummary]),
            route("GET", one, self.get_job, "Read a job, with its progress step by step", READ, reply=views.ProvisioningJobView, errors=(NotFound,)),
            route("GET", f"{one}/events", self.list_events, "Read or follow a job's log", READ, FOLLOW, query=EventsQuery, headers=FOLLOW_HEADERS,
                  reply=EventPage[views.ProvisioningEventView], errors=(NotFound,)),
            route("POST", f"{one}/cancel", self.cancel_job, "Cancel a job", WRITE,
                  "Media are ejected before it is complete. A machine that is already at work goes on, unless the recipe's on_failure says otherwise.",
                  reply=views.ProvisioningJobSummary, errors=of_one),
            route("POST", f"{one}/retry", self.retry_job, "Retry a failed or cancelled job from its first step", WRITE,
                  reply=views.ProvisioningJobSummary, errors=of_one),
            route("POST", f"{BASE}/recipes/validate", self.validate_recipe, "Check a recipe without submitting it", READ, request=dict[str, Any], reply=RecipeValid),
            route("GET", f"{BASE}/recipe-schema", self.get_schema, "The JSON Schema of recipes", READ, reply=dict[str, Any], reply_media=SCHEMA_MEDIA),
        ]
        # fmt: on

    # submitting ---------------------------------------------------------------------------------------------------------

    async def submit_job(self, req: Request, resp: Response) -> None:
        # The job has a copy of the recipe: nobody holds the body while the job is written.
        body = await read_body(req, MAX_BODY)
        job = await self._new_job(req.caller.tenant, body, *identity(req, body))
        del body
        serial = job.queue.name
        submitted = await self._jobs.submit(req, job, {"server_serial": serial})
        status, created_at = "queued", submitted.moved.created_at if submitted.moved else 0
        if not submitted.created:
            found = await self._engine.get(submitted.job_id, req.caller.tenant)
            if job.idempotency_key is None or found.idempotency_key != job.idempotency_key:
                text = f"job {found.id} is active for server {serial}; wait, or cancel it"
                raise ProvisioningRefused(409, Key.CONFLICT_ACTIVE_JOB, text)
            status, created_at = position_of(found).status, found.created_at
        view = ProvisioningSubmitted(submitted.job_id, status, serial, rfc3339(created_at))
        self._jobs.accept(resp, submitted, view)

    @property
    def steps(self) -> StepDoor:
        # A recipe is sealed when it is submitted, so nothing can be put into it later.
        return StepDoor(KIND, (WRITE,), self._new_step, refers=False)

    async def _new_step(self, caller: Caller, body: bytes) -> NewJob:
        return await self._new_job(caller.tenant, body)

    async def _new_job(
        self, tenant: str, body: bytes, key: str | None = None, fingerprint: str | None = None
    ) -> NewJob:
        asked = _asked(body)
        self._vault.require_open()
        if self.unreachable:
            raise ProvisioningRefused(503, "config.missing", self.unreachable)
        shown = await judged(memoryview(asked.recipe), "/recipe")
        serial = asked.server_serial
        server = await self._server(tenant, serial)
        job_id = self._engine.new_id()
        return NewJob(
            job_id,
            server_queue(tenant, serial),
            self._orders.seal(job_id, serial, shown, memoryview(asked.recipe)),
            asked.priority,
            idempotency_key=key,
            fingerprint=fingerprint,
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
        topics = tuple(topic for status in sorted(webhook.on) for topic in TOPICS[status])
        return self._jobs.report_to(tenant, "webhook.url", webhook.url, topics)

    # reading ------------------------------------------------------------------------------------------------------------

    async def list_jobs(self, req: Request, resp: Response) -> None:
        by = query(req, ProvisioningJobQuery)
        queue = None if by.server_serial is None else checked_serial(by.server_serial)
        topics = () if by.status is None else TOPICS[by.status]
        found, following = await self._jobs.list(
            JobFilter(req.caller.tenant, KIND, queue, before=cursor(by.cursor), limit=by.limit, topics=topics)
        )
        why = await self._held(found)
        listed = [views.summary(job, await self._positions.in_list(job), why.get(job.id, "")) for job in found]
        reply(resp, JobPage(listed, following))

    async def get_job(self, req: Request, resp: Response, job_id: str) -> None:
        job = await self._jobs.get(job_id, req.caller.tenant)
        position, recipe = await self._positions.of(job), order_of(job).recipe
        deadlines, why = self._deadlines.current(position, Recipe.of(recipe)), await self._held([job])
        reply(resp, views.job_view(job, recipe, position, deadlines, why.get(job.id, "")))

    async def list_events(self, req: Request, resp: Response, job_id: str) -> None:
        after = query(req, EventsQuery).after
        await self._jobs.send_events(req, resp, await self._jobs.get(job_id, req.caller.tenant), after)

    # acting -------------------------------------------------------------------------------------------------------------

    async def cancel_job(self, req: Request, resp: Response, job_id: str) -> None:
        job = await self._jobs.get(job_id, req.caller.tenant)
        await self._jobs.cancel(req, job)
        await self._reply(resp, job)

    async def retry_job(self, req: Request, resp: Response, job_id: str) -> None:
        job = await self._jobs.get(job_id, req.caller.tenant)
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
        await self._jobs.requeue(req, job)
        await self._reply(resp, job)

    async def _reply(self, resp: Response, job: Job) -> None:
        now = await self._engine.get(job.id, job.tenant)
        reply(resp, views.summary(now, await self._positions.in_list(now), (await self._held([now])).get(now.id, "")))

    async def _held(self, jobs: Sequence[Job]) -> dict[str, str]:
        return await held(self._engine.jobs, jobs, await self._engine.jobs.now())

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
