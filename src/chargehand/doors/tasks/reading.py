"""Reading tasks, by producer or worker: one, its result (waiting for it if asked to), its log as it grows, its files, a list."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec

from chargehand.doors.tasks import access
from chargehand.doors.tasks.errors import Refusal, write_error
from chargehand.doors.tasks.holding import tenant_of
from chargehand.doors.tasks.names import BASE, KIND, TAG, task_queue
from chargehand.doors.tasks.producer import existing, owned_task
from chargehand.doors.tasks.views import (
    DEAD_TOPIC,
    PROGRESS,
    STATUS,
    ProgressView,
    ResultView,
    Task,
    progress_view,
    result_view,
    task_view,
)
from chargehand.engine.engine import Engine
from chargehand.engine.job import Event, Job, State, rfc3339
from chargehand.engine.store import JobFilter
from chargehand.errors import NotFound
from chargehand.files import Files
from chargehand.http import sse
from chargehand.http.files import send_file
from chargehand.http.inputs import last_event_id
from chargehand.http.paging import EVENTS_BYTES, Cursor, Limit, cursor
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, query, reply

MAX_WAIT_SECONDS = 60.0
LOOK_SECONDS = 5.0  # underneath the wake-ups: what other nodes did, should their word be lost
EVENTS = 1000
LATER_NOTES = 100
RAFT = {"enabled": False, "numGroups": 0}


class Outcome(msgspec.Struct):
    task: Task
    result: ResultView


class TaskEvent(msgspec.Struct, rename="camel", omit_defaults=True):
    """A line of a task's log."""

    sequence: int
    at: str
    move: str
    status: str
    level: str = "info"
    attempt: int = 0
    message: str = ""
    error: str = ""
    progress: ProgressView | None = None


class EventPage(msgspec.Struct):
    events: list[TaskEvent]


class EventQuery(msgspec.Struct):
    after: Annotated[
        int, msgspec.Meta(ge=0, description=f"The last `sequence` seen; up to {EVENTS} or 4 MiB follow")
    ] = 0


class TaskQuery(msgspec.Struct):
    command: str | None = None
    status: Annotated[str, msgspec.Meta(description="PENDING, IN_PROGRESS, COMPLETED or FAILED")] | None = None
    cursor: Cursor | None = None
    limit: Limit = 50


class ResultQuery(msgspec.Struct, rename="camel"):
    """As it is described; what is no number is no wait, as at codeQ."""

    wait_seconds: Annotated[int, msgspec.Meta(description="Long poll, up to 60")] = 0


class TaskPage(msgspec.Struct):
    tasks: list[Task]
    next: str | None


class Reading:
    def __init__(self, engine: Engine, files: Files) -> None:
        self._engine = engine
        self._files = files

    def routes(self) -> list[Route]:
        one = f"{BASE}/tasks/{{task_id}}"
        shape: dict[str, Any] = {"error_writer": write_error, "request_id": True}
        of_one = {**shape, "errors": (NotFound,)}
        # fmt: off
        return [
            Route("GET", f"{BASE}/tasks", self.list_tasks, "List tasks, newest first", "", TAG, "Without their payloads.", query=TaskQuery, reply=TaskPage, **shape),
            Route("GET", one, self.get_task, "Read a task", "", TAG, reply=Task, **of_one),
            Route("GET", f"{one}/result", self.get_result, "Read the result, waiting for it if asked to", "", TAG, query=ResultQuery, reply=Outcome, **of_one),
            Route("GET", f"{one}/events", self.get_events, "Read or follow what happened to a task", "", TAG,
                  "With `Accept: text/event-stream` it goes on live and takes up after `Last-Event-ID`.", query=EventQuery, reply=EventPage, **of_one),
            Route("GET", f"{one}/artifacts/{{name}}", self.get_artifact, "Fetch an artifact", "", TAG, reply_media="application/octet-stream", **of_one),
            Route("GET", f"{BASE}/raft/status", self.get_raft, "That there is no raft here", "", TAG, **shape),
        ]
        # fmt: on

    async def list_tasks(self, req: Request, resp: Response) -> None:
        caller, by = access.either(req), query(req, TaskQuery)
        state, stopped = _state(by.status)
        queue = None if by.command is None else task_queue(caller.tenant, by.command)
        found = await self._engine.store.list_jobs(
            JobFilter(caller.tenant, KIND, queue, state, cursor(by.cursor), by.limit, stopped=stopped, exact=True)
        )
        now = await self._engine.store.now()
        following = found[-1].id if len(found) == by.limit else None
        reply(resp, TaskPage([task_view(job, now) for job in found], following))

    async def get_task(self, req: Request, resp: Response, task_id: str) -> None:
        job = await self._job(req, task_id)
        view = task_view(job, await self._engine.store.now())
        if job.state is State.RUNNING:
            last = await self._engine.store.last_note(job.id, PROGRESS)
            if last is not None and last.at >= job.updated_at:  # since this claim: another's progress is no news
                view.progress = progress_view(last)
        reply(resp, view)

    async def get_result(self, req: Request, resp: Response, task_id: str) -> None:
        job = await self._job(req, task_id, "task not found")
        wait = _seconds(req.get_param("waitSeconds"))
        if not job.finished and wait:
            job = await req.unless_gone(self._finished(job, wait)) or job
        if not job.finished:
            raise Refusal(404, "result not found", detail=f"the task is {task_view(job, 0).status}")
        # The last event, unless somebody has added a note to it since.
        events = await self._engine.store.list_events(job.id, after=max(0, job.seq - LATER_NOTES))
        result = result_view(job, next((event for event in reversed(events) if event.move != "note"), None))
        reply(resp, Outcome(task_view(job, await self._engine.store.now()), result))

    async def _finished(self, job: Job, wait: float) -> Job:
        """The task at its end, or as it is when the time is over."""
        until = time.monotonic() + wait
        news = asyncio.Event()
        stop = self._engine.watching(job.id, news)
        try:
            while True:
                news.clear()
                job = await self._engine.get(job.id)
                left = until - time.monotonic()
                if job.finished or left <= 0 or self._engine.draining:
                    return job
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, LOOK_SECONDS)):
                        await news.wait()
        finally:
            stop()

    async def get_events(self, req: Request, resp: Response, task_id: str) -> None:
        job = await self._job(req, task_id)
        if "text/event-stream" in (req.get_header("accept") or ""):
            sse.send_events(req, resp, self._follow(job.id, last_event_id(req), job.tenant))
            return
        events = await self._engine.store.list_events(job.id, query(req, EventQuery).after, EVENTS, EVENTS_BYTES)
        reply(resp, EventPage([task_event(event) for event in events]))

    async def _follow(self, task_id: str, after: int, tenant: str) -> AsyncGenerator[sse.Event, None]:
        async for event in self._engine.watch(task_id, after, tenant):
            name = PROGRESS if event.step == PROGRESS else event.move
            yield sse.Event(name, msgspec.json.encode(task_event(event)), str(event.seq))

    async def get_artifact(self, req: Request, resp: Response, task_id: str, name: str) -> None:
        job = await self._job(req, task_id)
        file = await self._engine.store.job_file(job.id, name)
        if file is None:
            raise Refusal(404, "artifact not found")
        await send_file(req, resp, self._files, file)

    async def get_raft(self, req: Request, resp: Response) -> None:
        access.either(req)
        reply(resp, RAFT)

    async def _job(self, req: Request, task_id: str, text: str = "not found") -> Job:
        caller = access.either(req)
        return await owned_task(self._engine, existing(task_id, text), tenant_of(caller), text)


def task_event(event: Event) -> TaskEvent:
    said = progress_view(event) if event.step == PROGRESS else None
    dead = " (dead letter)" if f"{event.state}:{event.stage}" == DEAD_TOPIC else ""
    return TaskEvent(
        event.seq,
        rfc3339(event.at),
        event.move,
        STATUS[event.state],
        event.level,
        event.attempt,
        "" if said else event.message + dead,
        event.error or "",
        said,
    )


def _state(status: str | None) -> tuple[State | None, bool]:
    match status:
        case None:
            return None, False
        case "PENDING":
            return State.QUEUED, False
        case "IN_PROGRESS":
            return State.RUNNING, False
        case "COMPLETED":
            return State.SUCCEEDED, False
        case "FAILED":
            return None, True
    raise Refusal(400, "invalid status", detail="must be PENDING, IN_PROGRESS, COMPLETED or FAILED", field="status")


def _seconds(text: str | None) -> float:
    """Junk is no wait, as at codeQ."""
    return min(float(text), MAX_WAIT_SECONDS) if text and text.isascii() and text.isdigit() and len(text) < 9 else 0.0
