"""For workers: claim with a long poll, heartbeat, progress, abandon, nack. They finish tasks in `results`."""

import msgspec

from chargehand.config import Config
from chargehand.doors.tasks import access, wire
from chargehand.doors.tasks.errors import TaskRefused
from chargehand.doors.tasks.holding import TaskHolder, owner_of, tenant_of
from chargehand.doors.tasks.limits import Limits
from chargehand.doors.tasks.names import ABANDON, ANY, BASE, CLAIM, HEARTBEAT, KIND, NACK, queue_name
from chargehand.doors.tasks.roll import Roll
from chargehand.doors.tasks.views import CLAIMED, PROGRESS, Task, task_view
from chargehand.engine.engine import Engine
from chargehand.engine.job import SECOND, Job, State
from chargehand.engine.moves import Broke, Note
from chargehand.engine.queue import Queue, Queues, Wanted
from chargehand.errors import NotFound, StaleLease
from chargehand.http.auth import Caller
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, read_body, reply

MAX_WAIT_SECONDS = 30.0
MAX_COUNT = 10
MAX_BODY = 65_536


class ClaimedMany(msgspec.Struct):
    tasks: list[Task]


class Ok(msgspec.Struct):
    ok: bool


class Requeued(msgspec.Struct, rename="camel"):
    status: str
    delay_seconds: int


class Abandoned(msgspec.Struct):
    status: str


class WorkerApi:
    def __init__(self, engine: Engine, config: Config, limits: Limits, roll: Roll) -> None:
        self._engine = engine
        self._config = config
        self._limits = limits
        self._roll = roll
        self._max_wait = min(MAX_WAIT_SECONDS, config.engine.max_wait_seconds)

    def routes(self) -> list[Route]:
        one = f"{BASE}/tasks/{{task_id}}"
        held = (NotFound, StaleLease)
        # fmt: off
        return [
            wire.route("POST", f"{BASE}/tasks/claim", self.claim_task, "Claim a task, waiting for one if asked to",
                  "By priority, then age, over all commands named.", request=wire.ClaimTask, reply=Task, or_nothing="There was nothing to claim"),
            wire.route("POST", f"{BASE}/tasks/claim/batch", self.claim_tasks, "Claim up to 10 tasks",
                  request=wire.ClaimTasks, reply=ClaimedMany, or_nothing="There was nothing to claim"),
            wire.route("POST", f"{one}/heartbeat", self.heartbeat, "Keep the lease alive", request=wire.Heartbeat, reply=Ok, errors=held),
            wire.route("POST", f"{one}/progress", self.progress, "Report progress", request=wire.ReportProgress, reply=Ok, errors=held),
            wire.route("POST", f"{one}/abandon", self.abandon, "Give the task back; costs no attempt", reply=Abandoned, errors=held),
            wire.route("POST", f"{one}/nack", self.nack, "The work broke: again later, or the dead letters", request=wire.Nack, reply=Requeued, errors=held),
        ]
        # fmt: on

    # claiming ---------------------------------------------------------------------------------------------------------

    async def claim_task(self, req: Request, resp: Response) -> None:
        caller = access.worker(req.caller, CLAIM)
        self._limits.check("worker", "claim", caller)
        asked = await wire.read(req, wire.claim_task, MAX_BODY)
        wait = min(asked.wait_seconds or 0.0, self._max_wait)
        jobs = await self._claim(req, caller, asked, 1, max(wait, 0.0))
        if not jobs:
            resp.status = 204
            return
        reply(resp, task_view(jobs[0], jobs[0].updated_at))

    async def claim_tasks(self, req: Request, resp: Response) -> None:
        caller = access.worker(req.caller, CLAIM)
        self._limits.check("worker", "claim", caller)
        asked = await wire.read(req, wire.claim_tasks, MAX_BODY)
        if asked.count < 1:
            raise TaskRefused(400, "invalid body", detail="count: must be from 1 to 10", field="count")
        if asked.count > MAX_COUNT:
            raise TaskRefused(400, f"count exceeds maximum of {MAX_COUNT}", field="count")
        jobs = await self._claim(req, caller, asked, asked.count, 0.0)
        if not jobs:
            resp.status = 204
            return
        reply(resp, ClaimedMany([task_view(job, job.updated_at) for job in jobs]))

    async def _claim(
        self, req: Request, caller: Caller, asked: wire.ClaimTask, limit: int, wait: float
    ) -> tuple[Job, ...]:
        queues, owner, lease = claim_queues(caller, asked), owner_of(caller), self.lease(asked.lease_seconds)
        jobs = await self._engine.claim(queues, owner, lease, limit=limit, stage=CLAIMED)
        if jobs or not wait:
            self._roll.asked(caller, queues)
            return jobs
        with self._roll.asking(caller, queues):
            waiting = self._engine.claim(queues, owner, lease, limit=limit, stage=CLAIMED, wait_seconds=wait)
            return await req.unless_gone(waiting)

    def lease(self, asked: float | None) -> float:
        """Return the default for what is not above 0, as codeQ does; unlike codeQ, bound the lease."""
        seconds = asked if asked is not None and asked > 0 else self._config.tasks.lease_seconds
        return min(seconds, self._config.engine.max_lease_seconds)

    # while it runs ----------------------------------------------------------------------------------------------------

    async def heartbeat(self, req: Request, resp: Response, task_id: str) -> None:
        holder = TaskHolder.of(req.caller, HEARTBEAT, task_id)
        await self.beat(holder, await wire.read(req, wire.heartbeat, MAX_BODY))
        self._roll.beat(req.caller)
        reply(resp, Ok(True))

    async def beat(self, holder: TaskHolder, asked: wire.Heartbeat) -> None:
        seconds = self.lease(asked.extend_seconds)
        await holder.act(self._engine, asked.lease, self._engine.beat(holder.guard(asked.lease), seconds))

    async def progress(self, req: Request, resp: Response, task_id: str) -> None:
        holder = TaskHolder.of(req.caller, HEARTBEAT, task_id)
        asked = await wire.read(req, wire.progress, MAX_BODY)  # small, since a page of events has a thousand of them
        data = wire.some_json("data", asked.data)
        said = {"percent": asked.percent, "data": msgspec.Raw(data) if data else None}
        body = msgspec.json.encode({key: value for key, value in said.items() if value is not None})
        note = Note(holder.guard(asked.lease), step=PROGRESS, message=asked.message or "", data=body)
        await holder.act(self._engine, asked.lease, self._engine.note(note))
        reply(resp, Ok(True))

    # giving it back ---------------------------------------------------------------------------------------------------

    async def abandon(self, req: Request, resp: Response, task_id: str) -> None:
        holder = TaskHolder.of(req.caller, ABANDON, task_id)
        await self.give_back(holder, wire.parse_or_ignore(wire.abandon, await read_body(req, MAX_BODY)).lease)
        reply(resp, Abandoned("requeued"))

    async def give_back(self, holder: TaskHolder, lease: int | None) -> None:
        parking = self._engine.park(holder.guard(lease), "", message=f"abandoned by {holder.owner}")
        await holder.act(self._engine, lease, parking)

    async def nack(self, req: Request, resp: Response, task_id: str) -> None:
        holder = TaskHolder.of(req.caller, NACK, task_id)
        reply(resp, await self.give_up(holder, await wire.read(req, wire.nack, MAX_BODY)))

    async def give_up(self, holder: TaskHolder, asked: wire.Nack) -> Requeued:
        delay = asked.delay_seconds if asked.delay_seconds is not None and asked.delay_seconds >= 0 else None
        outcome = Broke((asked.reason or "").strip(), failed_step="nack", delay_seconds=delay)
        breaking = self._engine.broke(holder.guard(asked.lease), outcome)
        moved = await holder.act(self._engine, asked.lease, breaking)
        if moved.state is State.FAILED:
            return Requeued("dlq", 0)
        return Requeued("requeued", max(0, moved.run_at - moved.at) // SECOND)


def claim_queues(caller: Caller, asked: wire.ClaimTask) -> tuple[Wanted, ...]:
    """Return the queues to claim from: many at once for a worker of any command, and for a fleet that serves every tenant."""
    commands = tuple(asked.commands or ())
    if any(not command.strip() or "*" in command for command in commands):
        raise TaskRefused(400, "invalid body", detail="commands: must not be blank, nor have a *", field="commands")
    access.check_event_types(caller, commands)
    if not commands and ANY not in caller.event_types:
        commands = tuple(caller.event_types)
    tenant = tenant_of(caller)
    if not commands:
        return (Queues(KIND, tenant),)
    names = sorted({queue_name(command) for command in commands})
    if tenant is None:
        return tuple(Queues(KIND, None, name) for name in names)
    return tuple(Queue(KIND, tenant, name) for name in names)
