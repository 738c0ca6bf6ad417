"""For administrators of a tenant: count its queues, pause or limit a command, handle dead letters, clean up."""

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from chargehand.config import Config
from chargehand.doors.tasks import access, wire
from chargehand.doors.tasks.errors import TaskRefused
from chargehand.doors.tasks.limits import Limits
from chargehand.doors.tasks.names import ANY, BASE, KIND, queue_name, task_queue
from chargehand.doors.tasks.resource import get_task
from chargehand.doors.tasks.roll import Roll, WorkersSeen
from chargehand.doors.tasks.views import DEAD, DEAD_TOPIC, Task, TaskEvent, task_event, task_view, whole_seconds
from chargehand.engine.engine import Engine
from chargehand.engine.job import SECOND, Job, QueueCount, QueueSettings
from chargehand.engine.listing import list_full_page
from chargehand.engine.queue import Queue
from chargehand.engine.reads import JobFilter
from chargehand.errors import Conflict, NotFound
from chargehand.http.inputs import absent
from chargehand.http.jobs import EVENTS_PAGE, JobResource
from chargehand.http.paging import Cursor, Limit, cursor
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, query, read_body, reply

CLEANUP_LIMIT = 1000
CLEANUP_MOST = 10_000
FOR_EVER = 2**61  # microseconds; no task gets so old
LETTERS_LIMIT = 100
LETTERS_MOST = 1000
MAX_BODY = 65_536


class Depth(msgspec.Struct, rename="camel"):
    command: str
    ready: int
    delayed: int
    in_progress: int
    dlq: int
    paused: bool = False
    max_in_progress: int | None = None


class SetCommand(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Fields that are left out keep their value."""

    paused: Annotated[bool, msgspec.Meta(description="No more claims; what is in progress goes on")] | UnsetType = UNSET
    max_in_progress: (
        Annotated[int, msgspec.Meta(ge=1, le=1_000_000, description="null: no limit")] | UnsetType | None
    ) = UNSET


class Cleaned(msgspec.Struct):
    deleted: int
    before: str
    limit: int


class LettersQuery(msgspec.Struct):
    command: str | None = None
    cursor: Cursor | None = None
    limit: Limit = 50


class Letters(msgspec.Struct):
    tasks: list[Task]
    next: str | None
    counts: Annotated[dict[str, int], msgspec.Meta(description="How many there are of each command, in lower case")]


class Letter(msgspec.Struct):
    task: Task
    events: list[TaskEvent]


class Requeue(msgspec.Struct, forbid_unknown_fields=True):
    payload: Annotated[msgspec.Raw, msgspec.Meta(description="In place of the task's own; left out: as it was")] = (
        msgspec.field(default_factory=absent)
    )


class SomeLetters(msgspec.Struct, forbid_unknown_fields=True):
    """The newest dead letters of a command, or of all commands if none is named."""

    # Unlike codeQ's bodies it refuses unknown fields: a typing error in `command` would select all commands.

    command: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=LETTERS_MOST)] = LETTERS_LIMIT


class LetterCount(msgspec.Struct):
    count: int


_set_command = msgspec.json.Decoder(SetCommand)
_requeue = msgspec.json.Decoder(Requeue)
_some = msgspec.json.Decoder(SomeLetters)


class AdminApi:
    def __init__(self, engine: Engine, config: Config, jobs: JobResource, limits: Limits, roll: Roll) -> None:
        self._engine = engine
        self._jobs = jobs
        self._config = config
        self._limits = limits
        self._roll = roll

    def routes(self) -> list[Route]:
        queues, letters = f"{BASE}/admin/queues", f"{BASE}/admin/dlq"
        of_one = (NotFound, Conflict)
        # fmt: off
        return [
            wire.route("GET", queues, self.get_queues, "Count the tasks of all commands, by codeQ's labels", reply=dict[str, int]),
            wire.route("GET", f"{queues}/{{command:path}}", self.get_queue, "Count the tasks of a command", reply=Depth),
            wire.route("PUT", f"{queues}/{{command:path}}", self.set_queue, "Pause, resume or limit a command", request=SetCommand, reply=Depth),
            wire.route("GET", f"{BASE}/admin/workers", self.list_workers, "List the workers that came to this node in the last hour", reply=WorkersSeen),
            wire.route("POST", f"{BASE}/admin/tasks/cleanup", self.clean_up, "Remove finished tasks that are older than their retention",
                  "Never a task that is pending or in progress.", reply=Cleaned),
            wire.route("GET", letters, self.list_letters, "List dead letters, newest first", query=LettersQuery, reply=Letters),
            wire.route("POST", f"{letters}/requeue", self.requeue_letters, "Requeue dead letters with all their attempts", request=SomeLetters, reply=LetterCount),
            wire.route("POST", f"{letters}/purge", self.purge_letters, "Remove dead letters for good", request=SomeLetters, reply=LetterCount),
            wire.route("GET", f"{letters}/{{task_id}}", self.get_letter, "Read a dead letter and its events", reply=Letter, errors=of_one),
            wire.route("POST", f"{letters}/{{task_id}}/requeue", self.requeue_letter, "Requeue a dead letter with all its attempts, and another payload if given",
                  request=Requeue, reply=Task, errors=of_one),
            wire.route("DELETE", f"{letters}/{{task_id}}", self.drop_letter, "Remove a dead letter for good", status=204, errors=of_one),
        ]
        # fmt: on

    # queues -----------------------------------------------------------------------------------------------------------

    async def get_queues(self, req: Request, resp: Response) -> None:
        tenant = access.admin(req.caller).tenant
        counts = {}
        for count in (await self._engine.counts.live()).queues:
            if (count.queue.kind, count.queue.tenant) != (KIND, tenant):
                continue
            label = _label(count.queue)
            for priority, ready in count.by_priority.items():
                counts[f"{label}:pending:{priority}"] = ready
            counts[f"{label}:inprog"] = count.running
            counts[f"{label}:delayed"] = count.delayed
        for queue, dead in (await self._dead(tenant)).items():
            counts[f"{_label(queue)}:dlq"] = dead
        reply(resp, counts)

    async def get_queue(self, req: Request, resp: Response, command: str) -> None:
        tenant = access.admin(req.caller).tenant
        reply(resp, await self._depth(tenant, command))

    async def set_queue(self, req: Request, resp: Response, command: str) -> None:
        tenant = access.admin(req.caller).tenant
        asked = await wire.read(req, _set_command, MAX_BODY)
        queue = task_queue(tenant, wire.checked_command(command))
        now = await self._settings(queue)
        paused = now.paused if asked.paused is UNSET else asked.paused
        limit = now.max_running if asked.max_in_progress is UNSET else asked.max_in_progress
        await self._engine.set_queue(msgspec.structs.replace(now, paused=paused, max_running=limit))
        reply(resp, await self._depth(tenant, command))

    async def _depth(self, tenant: str, command: str) -> Depth:
        queue = task_queue(tenant, command)
        count = (await self._engine.counts.live()).of(queue) or QueueCount(queue, {}, 0, 0, None)
        dead = (await self._dead(tenant)).get(queue, 0)
        settings = await self._settings(queue)
        return Depth(command, count.ready, count.delayed, count.running, dead, settings.paused, settings.max_running)

    async def _dead(self, tenant: str) -> dict[Queue, int]:
        dead = await self._engine.counts.stopped(DEAD_TOPIC)
        return {queue: count for queue, count in dead.items() if (queue.kind, queue.tenant) == (KIND, tenant)}

    async def _settings(self, queue: Queue) -> QueueSettings:
        known = await self._engine.jobs.list_queue_settings()
        return next((each for each in known if each.queue == queue), QueueSettings(queue))

    async def list_workers(self, req: Request, resp: Response) -> None:
        reply(resp, WorkersSeen(self._roll.seen(access.admin(req.caller).tenant)))

    # cleaning up ------------------------------------------------------------------------------------------------------

    async def clean_up(self, req: Request, resp: Response) -> None:
        caller = access.admin(req.caller)
        self._limits.check("admin", "cleanup", caller)
        asked = wire.parse_or_ignore(wire.cleanup, await read_body(req, MAX_BODY))
        before = wire.instant("before", asked.before) if asked.before else await self._engine.jobs.now()
        limit = min(asked.limit, CLEANUP_MOST) if asked.limit and asked.limit > 0 else CLEANUP_LIMIT
        age = int(self._config.retention.finished_seconds * SECOND) or FOR_EVER
        deleted = await self._engine.purge_finished(caller.tenant, KIND, before, age, limit)
        reply(resp, Cleaned(deleted, whole_seconds(before), asked.limit or 0))

    # dead letters -----------------------------------------------------------------------------------------------------

    async def list_letters(self, req: Request, resp: Response) -> None:
        tenant, by = access.admin(req.caller).tenant, query(req, LettersQuery)
        found, following = await self._letters(tenant, by.command, by.limit, cursor(by.cursor))
        now = await self._engine.jobs.now()
        dead = await self._dead(tenant)
        counts = {queue.name: count for queue, count in sorted(dead.items())}
        reply(resp, Letters([task_view(job, now) for job in found], following, counts))

    async def get_letter(self, req: Request, resp: Response, task_id: str) -> None:
        job = await self._letter(access.admin(req.caller).tenant, task_id)
        events = await self._engine.jobs.list_events(
            job.id, max(0, job.seq - EVENTS_PAGE), EVENTS_PAGE
        )  # the last ones say why it died
        view = task_view(job, await self._engine.jobs.now())
        reply(resp, Letter(view, [task_event(event) for event in events]))

    async def requeue_letter(self, req: Request, resp: Response, task_id: str) -> None:
        caller = access.admin(req.caller)
        body = await read_body(req, self._config.server.max_body_bytes)
        asked = wire.parse(_requeue, body) if body else Requeue()
        payload = wire.some_json("payload", asked.payload)
        job = await self._letter(caller.tenant, task_id)
        try:
            await self._jobs.requeue(req, job, payload=payload)
        except (Conflict, NotFound):
            raise TaskRefused(
                409, "not requeued", detail="it is no longer a dead letter, or its uniqueKey is in use"
            ) from None
        job = await get_task(self._jobs, job.id, caller.tenant)
        reply(resp, task_view(job, await self._engine.jobs.now()))

    async def requeue_letters(self, req: Request, resp: Response) -> None:
        caller = access.admin(req.caller)
        asked = await wire.read(req, _some, MAX_BODY)
        count = 0
        found, _ = await self._letters(caller.tenant, asked.command, asked.limit)
        for job in found:
            try:
                await self._jobs.requeue(req, job)
                count += 1
            except (Conflict, NotFound):
                continue
        reply(resp, LetterCount(count))

    async def purge_letters(self, req: Request, resp: Response) -> None:
        caller = access.admin(req.caller)
        asked = await wire.read(req, _some, MAX_BODY)
        if not asked.command:
            # Purging cannot be undone: a request without a command must not purge all of them.
            detail = f"command: is required; {ANY} removes the dead letters of all commands"
            raise TaskRefused(400, "invalid body", detail=detail, field="command")
        found, _ = await self._letters(caller.tenant, asked.command, asked.limit)
        reply(resp, LetterCount(await self._engine.purge(caller.tenant, KIND, tuple(job.id for job in found))))

    async def drop_letter(self, req: Request, resp: Response, task_id: str) -> None:
        job = await self._letter(access.admin(req.caller).tenant, task_id)
        if not await self._engine.purge(job.tenant, KIND, (job.id,)):
            raise TaskRefused(409, "not removed", detail="its callback is still to be delivered; try again after that")
        resp.status = 204

    async def _letters(
        self, tenant: str, command: str | None, limit: int, before: str | None = None
    ) -> tuple[list[Job], str | None]:
        queue = None if command in (None, ANY) else queue_name(command)
        return await list_full_page(
            self._engine.jobs,
            JobFilter(tenant, KIND, queue, before=before, limit=limit, topics=(DEAD_TOPIC,), stopped=True),
        )

    async def _letter(self, tenant: str, task_id: str) -> Job:
        job = await get_task(self._jobs, task_id, tenant)
        if not (job.finished and job.stage == DEAD):
            raise TaskRefused(404, "not found", detail="the task exists, but it is not a dead letter")
        return job


def _label(queue: Queue) -> str:
    return f"codeq:q:{queue.name}:{queue.tenant}"
