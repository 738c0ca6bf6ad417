"""Reading tasks, for producers and workers: a list, a task, its result with a long poll, its events, its artifacts."""

from typing import Annotated

import msgspec

from chargehand.doors.tasks import access
from chargehand.doors.tasks.errors import TaskRefused
from chargehand.doors.tasks.holding import tenant_of
from chargehand.doors.tasks.names import BASE, KIND, queue_name
from chargehand.doors.tasks.resource import get_task
from chargehand.doors.tasks.views import (
    PROGRESS,
    STATUS,
    ResultView,
    Task,
    TaskEvent,
    progress_view,
    result_view,
    task_view,
)
from chargehand.doors.tasks.wire import route
from chargehand.engine.endings import end_of
from chargehand.engine.engine import Engine
from chargehand.engine.job import Job, State
from chargehand.engine.reads import JobFilter
from chargehand.errors import NotFound
from chargehand.files import Files
from chargehand.http.files import send_file
from chargehand.http.jobs import EVENTS_PAGE, FOLLOW, FOLLOW_HEADERS, EventPage, JobResource, Next
from chargehand.http.paging import Cursor, Limit, cursor
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, query, reply

MAX_WAIT_SECONDS = 60.0
# What a caller may ask for -> the state of the job, and whether it is one that failed or was cancelled.
STATES: dict[str | None, tuple[State | None, bool]] = {
    None: (None, False),
    "PENDING": (State.QUEUED, False),
    "IN_PROGRESS": (State.RUNNING, False),
    "COMPLETED": (State.SUCCEEDED, False),
    "FAILED": (None, True),
}
RAFT = {"enabled": False, "numGroups": 0}


class TaskOutcome(msgspec.Struct):
    task: Task
    result: ResultView


class EventQuery(msgspec.Struct):
    after: Annotated[
        int, msgspec.Meta(ge=0, description=f"The last `sequence` seen; up to {EVENTS_PAGE} or 4 MiB follow")
    ] = 0


class TaskQuery(msgspec.Struct):
    command: str | None = None
    status: Annotated[str, msgspec.Meta(description="PENDING, IN_PROGRESS, COMPLETED or FAILED")] | None = None
    cursor: Cursor | None = None
    limit: Limit = 50


class ResultQuery(msgspec.Struct, rename="camel"):
    """For the API description; a `waitSeconds` that is not a number is ignored, as in codeQ."""

    wait_seconds: Annotated[int, msgspec.Meta(description="Long poll, up to 60")] = 0


class TaskListing(msgspec.Struct):
    tasks: list[Task]
    next: Next


class ReadingApi:
    def __init__(self, engine: Engine, jobs: JobResource, files: Files) -> None:
        self._engine = engine
        self._jobs = jobs
        self._files = files

    def routes(self) -> list[Route]:
        one = f"{BASE}/tasks/{{task_id}}"
        of_one = (NotFound,)
        # fmt: off
        return [
            route("GET", f"{BASE}/tasks", self.list_tasks, "List tasks, newest first", "Without their payloads.", query=TaskQuery, reply=TaskListing),
            route("GET", one, self.get_task, "Read a task", reply=Task, errors=of_one),
            route("GET", f"{one}/result", self.get_result, "Read the result, waiting for it if asked to", query=ResultQuery, reply=TaskOutcome, errors=of_one),
            route("GET", f"{one}/events", self.get_events, "Read or follow what happened to a task", FOLLOW,
                  query=EventQuery, headers=FOLLOW_HEADERS, reply=EventPage[TaskEvent], errors=of_one),
            route("GET", f"{one}/artifacts/{{name}}", self.get_artifact, "Fetch an artifact", reply_media="application/octet-stream", errors=of_one),
            route("GET", f"{BASE}/raft/status", self.get_raft, "Always: raft is not used here"),
        ]
        # fmt: on

    async def list_tasks(self, req: Request, resp: Response) -> None:
        caller, by = access.either(req.caller), query(req, TaskQuery)
        if by.status not in STATES:
            detail = "must be PENDING, IN_PROGRESS, COMPLETED or FAILED"
            raise TaskRefused(400, "invalid status", detail=detail, field="status")
        state, stopped = STATES[by.status]
        queue = None if by.command is None else queue_name(by.command)
        found, following = await self._jobs.list(
            JobFilter(caller.tenant, KIND, queue, state, cursor(by.cursor), by.limit, stopped=stopped)
        )
        now = await self._engine.jobs.now()
        reply(resp, TaskListing([task_view(job, now) for job in found], following))

    async def get_task(self, req: Request, resp: Response, task_id: str) -> None:
        job = await self._task(req, task_id)
        now = await self._engine.jobs.now()
        view = task_view(job, now)
        if job.state is State.QUEUED and job.run_at <= now:
            view.waiting_for = (await self._engine.jobs.waiting(job)).held_by
        if job.state is State.RUNNING:
            last = await self._engine.jobs.last_note(job.id, PROGRESS)
            if last is not None and last.at >= job.updated_at:  # of this claim, not of an earlier one
                view.progress = progress_view(last)
        reply(resp, view)

    async def get_result(self, req: Request, resp: Response, task_id: str) -> None:
        job = await self._task(req, task_id, "task not found")
        wait = _seconds(req.get_param("waitSeconds"))
        if wait and not job.finished:
            job = await self._jobs.wait(req, job.id, wait)
        if not job.finished:
            raise TaskRefused(404, "result not found", detail=f"the task is {STATUS[job.state]}")
        result = result_view(job, await end_of(self._engine.jobs, job))
        reply(resp, TaskOutcome(task_view(job, await self._engine.jobs.now()), result))

    async def get_events(self, req: Request, resp: Response, task_id: str) -> None:
        await self._jobs.send_events(req, resp, await self._task(req, task_id), query(req, EventQuery).after)

    async def get_artifact(self, req: Request, resp: Response, task_id: str, name: str) -> None:
        job = await self._task(req, task_id)
        file = await self._files.of_job(job.id, name)
        if file is None:
            raise TaskRefused(404, "artifact not found")
        await send_file(req, resp, self._files, file)

    async def get_raft(self, req: Request, resp: Response) -> None:
        access.either(req.caller)
        reply(resp, RAFT)

    async def _task(self, req: Request, task_id: str, text: str = "not found") -> Job:
        return await get_task(self._jobs, task_id, tenant_of(access.either(req.caller)), text)


def _seconds(text: str | None) -> float:
    """Return 0 for anything but a whole number, as codeQ does."""
    return min(float(text), MAX_WAIT_SECONDS) if text and text.isascii() and text.isdigit() and len(text) < 9 else 0.0
