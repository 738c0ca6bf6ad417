"""For producers: create tasks, cancel them. A task is durable when the 202 is there, and its callback with it."""

import asyncio

import msgspec

from chargehand.config import Config
from chargehand.doors.tasks import access, wire
from chargehand.doors.tasks.errors import TaskRefused, detail_of
from chargehand.doors.tasks.limits import Limits
from chargehand.doors.tasks.metrics import TaskMetrics
from chargehand.doors.tasks.names import ADMIN, BASE, KIND, MAX_COMMAND, PRODUCE, task_queue
from chargehand.doors.tasks.resource import ENDS, get_task
from chargehand.doors.tasks.topics import Topics, attempts, keep_seconds, tier
from chargehand.doors.tasks.views import STATUS, Task, metadata, metadata_of, task_view
from chargehand.engine.delivery import shown_url
from chargehand.engine.engine import Engine
from chargehand.engine.job import Job, NewJob, Report, State, rfc3339
from chargehand.engine.moves import Moved, Submitted
from chargehand.errors import ChargehandError, Conflict, NotFound
from chargehand.http.auth import Caller
from chargehand.http.carried import carried_text
from chargehand.http.inputs import absent
from chargehand.http.jobs import JobResource, StepDoor
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, reply
from chargehand.observability.tracing import Span, Tracing

KEY_SECONDS = 3600  # a key is removed with its task, so a task with a key is kept for an hour at least
LAST_RUN_AT = 221_845_392_000_000_000  # the year 9000


class CreatedTask(msgspec.Struct, omit_defaults=True):
    task: Task | None = None
    error: str = ""
    detail: str = ""


class TasksCreated(msgspec.Struct):
    results: list[CreatedTask]


class ProducerApi:
    def __init__(
        self,
        engine: Engine,
        config: Config,
        jobs: JobResource,
        tracing: Tracing,
        topics: Topics,
        limits: Limits,
        metrics: TaskMetrics,
    ) -> None:
        self._engine = engine
        self._config = config.tasks
        self._max_body = config.server.max_body_bytes
        self._jobs = jobs
        self._tracing = tracing
        self._topics = topics
        self._limits = limits
        self._metrics = metrics

    def routes(self) -> list[Route]:
        # fmt: off
        return [
            wire.route("POST", f"{BASE}/tasks", self.create_task, "Create a task", "Durable when the 202 is there; its callback too.",
                  request=wire.CreateTask, status=202, reply=Task),
            wire.route("POST", f"{BASE}/tasks/batch", self.create_tasks, "Create up to 100 tasks", "Each for itself: an invalid one does not stop the others.",
                  request=wire.CreateTasks, reply=TasksCreated),
            wire.route("POST", f"{BASE}/tasks/{{task_id}}/cancel", self.cancel_task, "Cancel a task",
                  "It ends as FAILED with the error CANCELLED, and its callback says so.", reply=Task, errors=(NotFound, Conflict)),
        ]
        # fmt: on

    # over HTTP --------------------------------------------------------------------------------------------------------

    async def create_task(self, req: Request, resp: Response) -> None:
        caller = access.producer(req.caller)
        self._limits.check("producer", "create_task", caller)
        asked = await wire.read(req, wire.create_task, self._max_body)
        with self._jobs.span(req, {"command": asked.command[:MAX_COMMAND]}) as span:
            task = await self._create(caller.tenant, asked, span)
            span.set("job_id", task.id)
        reply(resp, task, 202)

    async def create_tasks(self, req: Request, resp: Response) -> None:
        caller = access.producer(req.caller)
        self._limits.check("producer", "create_task", caller)
        asked = await wire.read(req, wire.create_tasks, self._max_body)
        wire.check_batch("tasks", asked.tasks)
        with self._jobs.span(req, {"tasks": len(asked.tasks)}) as span:
            creating = [self._create_one(caller.tenant, each, span) for each in asked.tasks]
            del asked  # the body is freed once each task has copied its payload
            results = await asyncio.gather(*creating)
        reply(resp, TasksCreated(list(results)))

    async def _create_one(self, tenant: str, raw: msgspec.Raw, span: Span) -> CreatedTask:
        try:
            asked = wire.parse(wire.create_task, raw)
            del raw
            if not asked.command:  # codeQ has another text for this in a batch
                raise TaskRefused(400, "invalid command", detail="command: is required")
            return CreatedTask(await self._create(tenant, asked, span))
        except ChargehandError as error:
            return CreatedTask(error=error.message, detail=detail_of(error))

    async def cancel_task(self, req: Request, resp: Response, task_id: str) -> None:
        caller = access.producer(req.caller)
        try:
            await self._jobs.cancel(req, await get_task(self._jobs, task_id, caller.tenant))
        except NotFound:
            raise TaskRefused(404, "not found") from None
        except Conflict:
            raise TaskRefused(
                409, "already finished", detail="only a PENDING or IN_PROGRESS task can be cancelled"
            ) from None
        job = await get_task(self._jobs, task_id, caller.tenant)
        reply(resp, task_view(job, await self._engine.jobs.now()))

    # for gRPC streams -------------------------------------------------------------------------------------------------

    async def create_streamed(self, caller: Caller, asked: wire.CreateTask, traceparent: str, tracestate: str) -> Task:
        self._limits.check("producer", "create_task", caller)
        attributes = {"command": asked.command[:MAX_COMMAND]}
        with self._tracing.span(
            "submit", traceparent=traceparent, tracestate=tracestate, attributes=attributes
        ) as span:
            task = await self._create(caller.tenant, asked, span)
            span.set("job_id", task.id)
        return task

    # for schedules ----------------------------------------------------------------------------------------------------

    async def create(self, tenant: str, asked: wire.CreateTask, *, key: str | None) -> Job:
        asked = msgspec.structs.replace(asked, idempotency_key=key)
        with self._tracing.span("submit") as span:
            new = self._new_job(tenant, asked, span.traceparent, span.tracestate)
            self._metrics.spell(asked.command)
            submitted = await self._engine.submit(new)
        return await self._engine.get(submitted.job_id, tenant)

    # for flows --------------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> StepDoor:
        return StepDoor(KIND, (PRODUCE, ADMIN), self._new_step)

    async def _new_step(self, caller: Caller, body: bytes) -> NewJob:
        asked = wire.parse(wire.create_task, body)
        if asked.idempotency_key:
            raise TaskRefused(
                400, "invalid body", detail="idempotencyKey: a step has none; the flow has", field="idempotencyKey"
            )
        new = self._new_job(caller.tenant, asked)
        self._metrics.spell(asked.command)
        return new

    # making -----------------------------------------------------------------------------------------------------------

    async def _create(self, tenant: str, asked: wire.CreateTask, span: Span) -> Task:
        new = self._new_job(tenant, asked, span.traceparent, span.tracestate)
        asked.payload = absent()  # frees the body: the job has a copy
        self._metrics.spell(asked.command)
        submitted: Submitted = await self._engine.submit(new)
        if submitted.moved is not None:
            return _created(new, asked, submitted.moved)
        job = await self._engine.get(submitted.job_id, tenant)
        return task_view(job, await self._engine.jobs.now())

    def _new_job(self, tenant: str, asked: wire.CreateTask, traceparent: str = "", tracestate: str = "") -> NewJob:
        payload = wire.some_json("payload", asked.payload)
        if not asked.command or payload is None:
            field = "payload" if asked.command else "command"
            raise TaskRefused(400, "invalid body", detail=f"{field}: is required", field=field)
        command = wire.checked_command(asked.command)
        policy = self._topics.policy(tenant, command)
        run_at, delay = _when(asked)
        default = attempts(policy, self._config.max_attempts)
        runs = asked.max_attempts if asked.max_attempts and asked.max_attempts > 0 else default
        keep = keep_seconds(policy)
        if keep and asked.idempotency_key:
            keep = max(keep, KEY_SECONDS)
        return NewJob(
            self._engine.new_id(),
            task_queue(tenant, command),
            payload,
            tier(policy, min(max(asked.priority or 0, 0), 9)),
            min(runs, wire.MAX_ATTEMPTS),
            run_at,
            delay,
            wire.checked_key("idempotencyKey", asked.idempotency_key),
            None,
            traceparent,
            tracestate,
            self._reports(tenant, asked.webhook),
            metadata(command, wire.some_object("metadata", asked.metadata)),
            unique_key=wire.checked_key("uniqueKey", asked.unique_key),
            keep_seconds=keep,
            limit_key=wire.checked_key("limitKey", asked.limit_key) or "",
        )

    def _reports(self, tenant: str, webhook: str | None) -> tuple[Report, ...]:
        url = webhook if webhook and webhook.strip() else None
        return self._jobs.report_to(tenant, "webhook", url, ENDS)


def _when(asked: wire.CreateTask) -> tuple[int | None, float]:
    if asked.run_at:
        at = wire.instant("runAt", asked.run_at)
        if at >= LAST_RUN_AT:
            raise TaskRefused(
                400, "invalid 'runAt' (use RFC3339)", detail="must be before the year 9000", field="runAt"
            )
        return max(at, 0), 0.0
    delay = asked.delay_seconds or 0.0
    if delay < 0:
        raise TaskRefused(400, "invalid 'delaySeconds' (must be >= 0)", field="delaySeconds")
    return None, delay


def _created(new: NewJob, asked: wire.CreateTask, moved: Moved) -> Task:
    """Return the view of a task that was just created, without reading its row."""
    delayed = moved.run_at > moved.at
    at = rfc3339(moved.at)
    return Task(
        id=new.id,
        command=asked.command.strip(),
        payload=carried_text(new.payload),
        priority=new.priority,
        webhook=shown_url(new.reports[0].url) if new.reports else "",
        trace_parent=new.traceparent,
        trace_state=new.tracestate,
        status=STATUS[State.QUEUED],
        last_known_location="DELAYED_ZSET" if delayed else "PENDING_LIST",
        run_at=rfc3339(moved.run_at) if delayed else "",
        max_attempts=new.max_attempts,
        metadata=metadata_of(new),
        limit_key=new.limit_key,
        tenant_id=new.tenant,
        created_at=at,
        updated_at=at,
    )
