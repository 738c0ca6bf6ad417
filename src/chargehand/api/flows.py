"""Flows: submit many jobs of any door that wait for each other; list, read, wait for, follow, cancel and retry them as one."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec.structs import replace

from chargehand.api.flow_views import FlowSummary, FlowView, flow_summary, flow_view
from chargehand.api.jobs import JobMoved, WebhookTarget, reply_moved, reports_of
from chargehand.api.views import EventView, event_view
from chargehand.config import Config
from chargehand.engine.engine import Engine
from chargehand.engine.flow import KIND, NewFlow, NewStep, On
from chargehand.engine.flows import Flows
from chargehand.engine.graph import AskedStep, Graph
from chargehand.engine.held import held
from chargehand.engine.job import Job, NewJob, State
from chargehand.engine.moves import Submitted
from chargehand.engine.queue import Queue
from chargehand.engine.reads import JobFilter, StepFilter
from chargehand.engine.references import references
from chargehand.errors import (
    BadRequest,
    ChargehandError,
    Conflict,
    EgressRefused,
    IdempotencyMismatch,
    InvalidField,
    NotFound,
)
from chargehand.http.inputs import absent, identity, json_object
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
    Traced,
    Wording,
)
from chargehand.http.kinds import Kinds, require
from chargehand.http.paging import Cursor, Limit, cursor
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, decode, query, read_body, reply
from chargehand.observability.tracing import Tracing
from chargehand.webhooks.egress import EgressPolicy

TAG = "flows"
PATH = "/engine/flows"
MAX_STEPS = 10_000
STEPS_A_TURN = 200
MAX_READ = 4 << 20  # of a body beside the bodies of its steps
DEFAULT_NAME = "flow"

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="Unique in the flow")]


class After(msgspec.Struct, forbid_unknown_fields=True):
    """Another step, and how it must end."""

    step: str
    on: Annotated[On, msgspec.Meta(description="succeeded, failed (or cancelled by hand), or finished in any way")] = (
        On.SUCCEEDED
    )


class AskedJob(msgspec.Struct, forbid_unknown_fields=True):
    """A job that waits for others."""

    name: Name
    door: Annotated[
        Literal["engine", "tasks", "inference", "provisioning"], msgspec.Meta(description="Where the job is submitted")
    ]
    body: Annotated[
        msgspec.Raw,
        msgspec.Meta(
            description="As the door takes it. In strings of what the worker or the model gets, `{{name.path}}` stands for a result of a "
            "step before"
        ),
    ]
    after: Annotated[
        list[str | After], msgspec.Meta(max_length=MAX_STEPS, description="It starts when these have ended so")
    ] = []
    need: Annotated[
        Literal["all", "any"], msgspec.Meta(description="of `after`: all of them, or the first that does")
    ] = "all"


class SubmitFlow(msgspec.Struct, forbid_unknown_fields=True):
    """Jobs that wait for each other."""

    steps: Annotated[list[AskedJob], msgspec.Meta(min_length=1, max_length=MAX_STEPS)]
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")] = DEFAULT_NAME
    webhook: WebhookTarget | None = None
    metadata: Annotated[msgspec.Raw, msgspec.Meta(description="A JSON object that is sent with its webhooks")] = (
        msgspec.field(default_factory=absent)
    )


class ListFlows(msgspec.Struct, forbid_unknown_fields=True):
    state: State | None = None
    name: str | None = None
    cursor: Cursor | None = None
    limit: Limit = 50


class FlowQuery(msgspec.Struct, forbid_unknown_fields=True):
    first: Annotated[int, msgspec.Meta(ge=0, le=MAX_STEPS, description="Steps from this number on")] = 0
    limit: Limit = 500


class WaitQuery(msgspec.Struct, forbid_unknown_fields=True):
    seconds: Annotated[float, msgspec.Meta(ge=0, le=60, description="How long at most")] = 30.0


class RetryFrom(msgspec.Struct, forbid_unknown_fields=True):
    step: (
        Annotated[
            Name, msgspec.Meta(description="It and all that come after it; left out: all steps that did not succeed")
        ]
        | None
    ) = msgspec.field(default=None, name="from")


WORDING = Wording(kind=KIND, noun="flow", path=PATH, event_view=event_view)
_decoder = msgspec.json.Decoder(SubmitFlow)
_retry = msgspec.json.Decoder(RetryFrom)


class FlowsApi:
    def __init__(
        self,
        engine: Engine,
        flows: Flows,
        config: Config,
        policy: EgressPolicy,
        tracing: Tracing,
        kinds: Kinds,
        doors: Mapping[str, StepDoor],
    ) -> None:
        self._engine = engine
        self._flows = flows
        self._kinds = kinds
        self._doors = doors
        self._jobs = JobResource(engine, WORDING, tracing, policy.check_url)
        self._max_body = config.server.max_body_bytes

    def routes(self) -> list[Route]:
        read, write, one = "jobs:read", "jobs:write", f"{PATH}/{{job_id}}"
        # fmt: off
        return [
            Route("POST", PATH, self.submit_flow, "Submit jobs that wait for each other", write, TAG,
                  "All or nothing, and durable when the 202 is there. For each step the caller needs what its door asks for.",
                  request=SubmitFlow, headers=SUBMIT_HEADERS, status=202, reply=Accepted, errors=(EgressRefused, IdempotencyMismatch, Conflict)),
            Route("GET", PATH, self.list_flows, "List flows, newest first", read, TAG, query=ListFlows, reply=JobPage[FlowSummary]),
            Route("GET", one, self.get_flow, "Read a flow and its steps", read, TAG, query=FlowQuery, reply=FlowView, errors=(NotFound,)),
            Route("GET", f"{one}/wait", self.wait_for_flow, "Read a flow once it has ended, or after so many seconds", read, TAG,
                  query=WaitQuery, reply=FlowView, errors=(NotFound,)),
            Route("GET", f"{one}/events", self.list_events, "Read or follow a flow's events: its own, and the end of each step", read, TAG, FOLLOW,
                  query=EventsQuery, headers=FOLLOW_HEADERS, reply=EventPage[EventView], errors=(NotFound,)),
            Route("POST", f"{one}/cancel", self.cancel_flow, "Cancel a flow and its steps", write, TAG,
                  "It is `cancelling` until its running steps have ended.", reply=JobMoved, errors=(NotFound, Conflict)),
            Route("POST", f"{one}/retry", self.retry_flow, "Try a flow that failed or was cancelled again, from a step on", write, TAG,
                  request=RetryFrom, reply=JobMoved, errors=(NotFound, Conflict)),
        ]
        # fmt: on

    # submitting -------------------------------------------------------------------------------------------------------

    async def submit_flow(self, req: Request, resp: Response) -> None:
        body = await read_body(req, self._max_body)
        asked = decode(_decoder, body, MAX_READ)
        key, fingerprint = identity(req, body)
        flow = await self._new_flow(req, asked, key, fingerprint)

        def submit(traced: Traced) -> Awaitable[Submitted]:
            steps = tuple(replace(step, job=traced(step.job)) for step in flow.steps)
            return self._engine.submit_flow(NewFlow(traced(flow.job), steps))

        self._jobs.accept(resp, await self._jobs.submit_by(req, {"steps": len(flow.steps)}, submit))

    async def _new_flow(self, req: Request, asked: SubmitFlow, key: str | None, fingerprint: str | None) -> NewFlow:
        graph = Graph([AskedStep(step.name, [_after(each) for each in step.after]) for step in asked.steps])
        caller = req.caller
        job = NewJob(
            self._engine.new_id(),
            Queue(KIND, caller.tenant, asked.name),
            msgspec.json.encode({"name": asked.name, "steps": len(asked.steps)}),
            idempotency_key=key,
            fingerprint=fingerprint,
            reports=reports_of(self._jobs, caller.tenant, asked.webhook),
            metadata=json_object("metadata", asked.metadata),
        )
        steps = [await self._new_step(req, number, step, graph, job.id) for number, step in enumerate(asked.steps)]
        return NewFlow(job, tuple(steps))

    async def _new_step(self, req: Request, number: int, step: AskedJob, graph: Graph, flow_id: str) -> NewStep:
        field = f"steps[{number}]"
        if number % STEPS_A_TURN == STEPS_A_TURN - 1:
            await asyncio.sleep(0)  # other requests get in between
        door = self._doors.get(step.door)
        if door is None:
            raise InvalidField(f"{field}.door", f"the door {step.door!r} is switched off at this server")
        require(req.caller, door.scopes)
        body = bytes(step.body)
        try:
            job = await door.new_job(req.caller, body)
        except ChargehandError as error:
            raise _of_step(f"{field}.body", error) from None
        _check_references(
            f"{field}.body", references(body), references(job.payload) if door.refers else set(), number, graph
        )
        parents = graph.parents[number]
        need = len(parents) if step.need == "all" else min(1, len(parents))
        return NewStep(step.name, replace(job, flow=flow_id, step=number, waits=bool(parents)), parents, need)

    # reading ----------------------------------------------------------------------------------------------------------

    async def list_flows(self, req: Request, resp: Response) -> None:
        by = query(req, ListFlows)
        found, following = await self._jobs.list(
            JobFilter(req.caller.tenant, KIND, by.name, by.state, cursor(by.cursor), by.limit)
        )
        reply(resp, JobPage([flow_summary(job) for job in found], following))

    async def get_flow(self, req: Request, resp: Response, job_id: str) -> None:
        by = query(req, FlowQuery)
        reply(resp, await self._view(req, await self._jobs.get(job_id, req.caller.tenant), by.first, by.limit))

    async def wait_for_flow(self, req: Request, resp: Response, job_id: str) -> None:
        seconds = query(req, WaitQuery).seconds
        flow = await self._jobs.get(job_id, req.caller.tenant)
        reply(resp, await self._view(req, await self._jobs.wait(req, flow.id, seconds), 0, FlowQuery().limit))

    async def _view(self, req: Request, flow: Job, first: int, limit: int) -> FlowView:
        reads = self._engine.jobs
        found = await reads.list_steps(StepFilter(flow.id, first, limit + 1, counted=True))
        readable = self._kinds.readable(req.caller)
        doors = {door.kind: name for name, door in self._doors.items()}
        now = await reads.now()
        why = await held(reads, [step.job for step in found.steps if step.job.kind in readable], now)
        return flow_view(flow, found.steps, limit, found.counts, now, doors, readable, why)

    async def list_events(self, req: Request, resp: Response, job_id: str) -> None:
        after = query(req, EventsQuery).after
        await self._jobs.send_events(req, resp, await self._jobs.get(job_id, req.caller.tenant), after)

    # acting -----------------------------------------------------------------------------------------------------------

    async def cancel_flow(self, req: Request, resp: Response, job_id: str) -> None:
        flow = await self._jobs.get(job_id, req.caller.tenant)
        await self._kinds.require_throughout(req.caller, self._engine.jobs, flow, lambda scopes: scopes.cancel)
        reply_moved(resp, await self._jobs.cancel(req, flow))

    async def retry_flow(self, req: Request, resp: Response, job_id: str) -> None:
        asked = decode(_retry, await read_body(req, 10_000))
        flow = await self._jobs.get(job_id, req.caller.tenant)
        await self._kinds.require_throughout(req.caller, self._engine.jobs, flow, lambda scopes: scopes.requeue)
        named = StepFilter(flow.id, names=(asked.step,)) if asked.step else None
        if named and not (await self._engine.jobs.list_steps(named)).steps:
            raise InvalidField("from", f"there is no step {asked.step!r} in this flow")
        reply_moved(resp, await self._flows.retry(flow, asked.step or "", f"tried again by {req.caller.subject}"))


def _after(each: str | After) -> tuple[str, On]:
    return (each, On.SUCCEEDED) if isinstance(each, str) else (each.step, each.on)


def _check_references(field: str, asked: set[str], fillable: set[str], number: int, graph: Graph) -> None:
    for name in sorted(asked):
        if not graph.comes_after(number, name):
            raise InvalidField(
                field, f"refers to {{{{{name}}}}}, but this step does not come after a step of that name"
            )
    for name in sorted(asked - fillable):
        raise InvalidField(
            field,
            f"{{{{{name}}}}} is not allowed here: a result can only go into what the worker or the model gets",
        )


def _of_step(field: str, error: ChargehandError) -> ChargehandError:
    """Return the door's error as one about the step."""
    more = getattr(error, "more", {})  # of codeQ's wire, whose text is for programs
    message = str(more.get("detail") or error.message)
    inner = getattr(error, "field", None) or more.get("field")
    if inner is not None:
        return InvalidField(f"{field}.{inner}", message.removeprefix(f"{inner}: "))
    if isinstance(error, BadRequest) or (error.status >= 500 and not hasattr(error, "http_status")):
        error.message = f"{field}: {error.message}"
        return error
    return InvalidField(field, message)
