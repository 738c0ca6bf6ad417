"""Schedules: tasks that are created by the clock. Ours, in the style of codeQ's wire, which has none.

Every tick creates one task, on any number of nodes and through a crash: the task is created with an idempotency key that names
schedule and tick, and only then is the record moved on to its next tick. If a node dies in between, the next node finds the task
by its key. Ticks that passed while no server ran create one task, for the last of them; ticks that passed while the schedule was
paused create none.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec.structs import replace

from chargehand.config import Config
from chargehand.doors.tasks import access, cron
from chargehand.doors.tasks.errors import TaskRefused
from chargehand.doors.tasks.names import BASE
from chargehand.doors.tasks.schedule import (
    MAX_NAME,
    ScheduleList,
    ScheduleRequest,
    ScheduleView,
    StoredSchedule,
    checked,
    completed,
    is_name,
    kept_in,
    listed,
    task_of,
    view,
)
from chargehand.doors.tasks.views import Task, task_view
from chargehand.doors.tasks.wire import CreateTask, route
from chargehand.engine.chores import Chore
from chargehand.engine.engine import Engine
from chargehand.engine.job import SECOND, Job
from chargehand.engine.record import DropRecord, PutRecord, Record
from chargehand.errors import ChargehandError, InvalidField, StoreError
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, decode, read_body, reply
from chargehand.observability.logs import get_logger
from chargehand.webhooks.egress import EgressPolicy

log = get_logger(__name__)
RECORD = "schedule"
MAX_BODY = 65_536  # stored with the schedule and copied at every tick
MAX_SCHEDULES = 1000  # of a tenant
BATCH = 100


class Create(Protocol):
    """Creates a task as the door does, topics included; the same key returns the same task again."""

    async def __call__(self, tenant: str, new: CreateTask, /, *, key: str | None) -> Job: ...


# (body, next tick) as stored -> as they are to be stored
Change = Callable[[StoredSchedule, int | None], tuple[StoredSchedule, int | None]]
_asked = msgspec.json.Decoder(ScheduleRequest)


class Schedules:
    def __init__(self, engine: Engine, config: Config, policy: EgressPolicy, create: Create) -> None:
        self._jobs = engine.jobs
        self._records = engine.records
        self._max_body = min(MAX_BODY, config.server.max_body_bytes)
        self._policy = policy
        self._create = create
        self._now = engine.now

    def routes(self) -> list[Route]:
        path = f"{BASE}/schedules"
        one = path + "/{name}"
        # fmt: off
        return [
            route("POST", path, self.post_schedule, "Make a schedule", "409 when there is one of this name.",
                  request=ScheduleRequest, status=201, reply=ScheduleView),
            route("GET", path, self.list_schedules, "List the schedules", reply=ScheduleList),
            route("GET", one, self.get_schedule, "Show a schedule and its next ticks", reply=ScheduleView),
            route("PUT", one, self.put_schedule, "Make or change a schedule",
                  "201 when it is made, else 200. What is left out goes back to its default; a paused schedule stays paused.",
                  request=ScheduleRequest, reply=ScheduleView),
            route("DELETE", one, self.delete_schedule, "Delete a schedule", "Its tasks stay.", status=204),
            route("POST", one + "/pause", self.pause, "Pause a schedule", reply=ScheduleView),
            route("POST", one + "/resume", self.resume, "Resume a schedule",
                  "It goes on with the next tick; those that passed meanwhile make no tasks.", reply=ScheduleView),
            route("POST", one + "/run", self.run_now, "Create its task now",
                  "Also of a paused schedule; its ticks stay as they are. Answers with the task.", status=202, reply=Task),
        ]
        # fmt: on

    # the clock ----------------------------------------------------------------------------------------------------------

    def chores(self) -> list[Chore]:
        return [Chore("schedules", 1.0, self.fire, self._until_next_second)]

    async def _until_next_second(self, _seconds: float) -> None:
        """All ticks are at whole seconds."""
        await asyncio.sleep((SECOND - self._now() % SECOND) / SECOND)

    async def fire(self) -> None:
        """Create a task for every schedule that is due. A schedule that failed at the store stays due."""
        while records := await self._records.due(RECORD, BATCH):
            now = await self._jobs.now()  # the store's clock, the same for all nodes
            outcomes = await asyncio.gather(*[self._fire(record, now) for record in records], return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
            if len(records) < BATCH:
                break

    async def _fire(self, record: Record, now: int) -> None:
        body, due_at = record.body, None
        try:
            kept = kept_in(record)
            asked = kept.asked
            tick = cron.latest_tick(asked.cron, asked.timezone, record.due_at or 0, now)
            due_at = cron.next_tick(asked.cron, asked.timezone, tick)
            body = msgspec.json.encode(await self._tick(record, kept, tick))
        except StoreError:
            raise
        except Exception:  # one broken schedule must not stop the others, nor be retried every second
            log.exception("a schedule is broken", tenant=record.tenant, schedule=record.name, stopped=due_at is None)
        # A node that loses this race has created no task of its own: the key was the same.
        await self._records.put(
            PutRecord(RECORD, record.tenant, record.name, body, expected=record.version, due_at=due_at)
        )

    async def _tick(self, record: Record, kept: StoredSchedule, tick: int) -> StoredSchedule:
        # Has created_at in it: a schedule that was deleted and created again has ticks of its own.
        key = f"schedule/{record.name}/{record.created_at}/{tick}"
        try:
            job = await self._create(record.tenant, task_of(kept.asked), key=key)
        except StoreError:
            raise
        except ChargehandError as error:
            log.warning(
                "a schedule could not make its task", tenant=record.tenant, schedule=record.name, error=error.message
            )
            return replace(kept, last_error=error.message)
        return replace(kept, last_run_at=tick, last_task_id=job.id, last_error="")

    # the endpoints ------------------------------------------------------------------------------------------------------

    async def post_schedule(self, req: Request, resp: Response) -> None:
        tenant = access.producer(req.caller).tenant
        asked, now = decode(_asked, await read_body(req, self._max_body)), await self._jobs.now()
        asked = checked(asked, self._policy, now)
        record = await self._make(tenant, asked, now)
        if record is None:
            raise TaskRefused(409, "schedule exists", detail=f"there is a schedule {asked.name!r}; PUT changes it")
        reply(resp, view(record), 201)

    async def put_schedule(self, req: Request, resp: Response, name: str) -> None:
        tenant = access.producer(req.caller).tenant
        asked, now = decode(_asked, await read_body(req, self._max_body)), await self._jobs.now()
        if asked.name not in ("", name):
            raise InvalidField("name", "must be the one in the path, or left out; a schedule cannot be renamed")
        asked = checked(replace(asked, name=name), self._policy, now)

        def change(kept: StoredSchedule, due_at: int | None) -> tuple[StoredSchedule, int | None]:
            wanted = completed(asked, kept.asked)
            if kept.asked == wanted:
                return kept, due_at
            if not kept.paused and (kept.asked.cron, kept.asked.timezone) != (wanted.cron, wanted.timezone):
                due_at = _next(wanted, now)
            return replace(kept, asked=wanted, version=kept.version + 1), due_at

        while True:
            if (changed := await self._change(tenant, name, change)) is not None:
                return reply(resp, view(changed))
            if (made := await self._make(tenant, asked, now)) is not None:
                return reply(resp, view(made), 201)

    async def list_schedules(self, req: Request, resp: Response) -> None:
        tenant = access.producer(req.caller).tenant
        records = await self._records.list(RECORD, tenant, limit=MAX_SCHEDULES)
        reply(resp, ScheduleList([listed(record) for record in records]))

    async def get_schedule(self, req: Request, resp: Response, name: str) -> None:
        reply(resp, view(await self._must_get(access.producer(req.caller).tenant, name)))

    async def delete_schedule(self, req: Request, resp: Response, name: str) -> None:
        tenant = access.producer(req.caller).tenant
        await self._must_get(tenant, name)
        await self._records.drop(DropRecord(RECORD, tenant, name))
        resp.status = 204

    async def pause(self, req: Request, resp: Response, name: str) -> None:
        def change(kept: StoredSchedule, due_at: int | None) -> tuple[StoredSchedule, int | None]:
            return (kept, due_at) if kept.paused else (replace(kept, paused=True, version=kept.version + 1), None)

        reply(resp, view(await self._must_change(access.producer(req.caller).tenant, name, change)))

    async def resume(self, req: Request, resp: Response, name: str) -> None:
        tenant, now = access.producer(req.caller).tenant, await self._jobs.now()

        def change(kept: StoredSchedule, due_at: int | None) -> tuple[StoredSchedule, int | None]:
            if not kept.paused:
                return kept, due_at
            return replace(kept, paused=False, version=kept.version + 1), _next(kept.asked, now)

        reply(resp, view(await self._must_change(tenant, name, change)))

    async def run_now(self, req: Request, resp: Response, name: str) -> None:
        tenant = access.producer(req.caller).tenant
        record = await self._must_get(tenant, name)
        job = await self._create(tenant, task_of(kept_in(record).asked), key=None)

        def change(kept: StoredSchedule, due_at: int | None) -> tuple[StoredSchedule, int | None]:
            return replace(kept, last_run_at=job.created_at, last_task_id=job.id, last_error=""), due_at

        await self._change(tenant, name, change)  # None if it was deleted meanwhile: the task was created nevertheless
        reply(resp, task_view(job, await self._jobs.now()), 202)

    # how they are kept --------------------------------------------------------------------------------------------------

    async def _make(self, tenant: str, asked: ScheduleRequest, now: int) -> Record | None:
        """Return None if there is one of this name."""
        there = await self._records.list(RECORD, tenant, limit=MAX_SCHEDULES)
        if len(there) >= MAX_SCHEDULES and all(record.name != asked.name for record in there):
            raise TaskRefused(409, "too many schedules", detail=f"a tenant may have {MAX_SCHEDULES}; delete one first")
        body = msgspec.json.encode(StoredSchedule(asked))
        return await self._records.put(
            PutRecord(RECORD, tenant, asked.name, body, expected=0, due_at=_next(asked, now))
        )

    async def _change(self, tenant: str, name: str, change: Change) -> Record | None:
        """Return None if there is none. If a tick or another caller gets in between, apply the change to what they stored."""
        while (record := await self._records.get(RECORD, tenant, name)) is not None:
            kept = kept_in(record)
            wanted, due_at = change(kept, record.due_at)
            if (wanted, due_at) == (kept, record.due_at):
                return record
            changed = await self._records.put(
                PutRecord(RECORD, tenant, name, msgspec.json.encode(wanted), expected=record.version, due_at=due_at)
            )
            if changed is not None:
                return changed
        return None

    async def _must_get(self, tenant: str, name: str) -> Record:
        return _found(name, await self._records.get(RECORD, tenant, name) if is_name(name) else None)

    async def _must_change(self, tenant: str, name: str, change: Change) -> Record:
        return _found(name, await self._change(tenant, name, change) if is_name(name) else None)


def _next(asked: ScheduleRequest, now: int) -> int | None:
    return cron.next_tick(asked.cron, asked.timezone, now)


def _found(name: str, record: Record | None) -> Record:
    if record is None:
        raise TaskRefused(404, "schedule not found", detail=f"there is no schedule {name[:MAX_NAME]!r}")
    return record
