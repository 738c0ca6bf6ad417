"""Which worker holds a task: on this wire a worker is known by its name, and may send its lease to be sure.

A worker that lost its lease gets 409 and changes nothing; one that never held the task gets 403. A worker that sends the
`lease` it was given is also safe from another worker of the same name that has taken the task over.
"""

from collections.abc import Awaitable
from typing import TypeVar

from chargehand.doors.tasks import access
from chargehand.doors.tasks.errors import TaskRefused
from chargehand.doors.tasks.names import ALL_TENANTS, KIND
from chargehand.doors.tasks.views import STATUS
from chargehand.engine.engine import Engine
from chargehand.engine.guard import EVERY_TENANT, Guard
from chargehand.engine.ids import is_ulid
from chargehand.engine.job import Job, State
from chargehand.errors import Conflict, NotFound
from chargehand.http.auth import Caller

T = TypeVar("T")
EVENTS = 1000  # that are read at once to tell a former holder from a stranger


class TaskHolder:
    """A worker in a call about one task: makes the engine's guard, and the refusal if the guard fails."""

    def __init__(self, caller: Caller, task_id: str, text: str = "not-found") -> None:
        if not is_ulid(task_id):
            raise TaskRefused(404, text)
        self.task_id = task_id
        self.owner = owner_of(caller)
        self.tenant = tenant_of(caller)
        self._text = text

    @classmethod
    def of(cls, caller: Caller, scope: str, task_id: str, text: str = "not-found") -> "TaskHolder":
        return cls(access.worker(caller, scope), task_id, text)

    def guard(self, lease: int | None) -> Guard:
        """Compare the worker's name always, and the lease if the worker sent one."""
        return Guard(self.task_id, self.tenant, KIND, lease, self.owner)

    async def act(self, engine: Engine, lease: int | None, move: Awaitable[T]) -> T:
        """Return what came of a move under `guard`; if the engine refuses it, say why this worker does not hold the task."""
        try:
            return await move
        except (Conflict, NotFound):
            raise await self.refusal(engine, lease) from None

    async def held(self, engine: Engine, lease: int | None = None) -> Job:
        """Return the task if this worker holds it now, else refuse."""
        job = await engine.jobs.get_job(self.task_id, self.tenant)
        if job is None or job.state is not State.RUNNING or not self.guard(lease).admits(job):
            raise await self.refusal(engine, lease)
        return job

    async def refusal(self, engine: Engine, lease: int | None = None) -> TaskRefused:
        """Return the error that says why this worker does not hold the task."""
        job = await engine.jobs.get_job(self.task_id, self.tenant)
        if job is None or job.kind != KIND:
            return TaskRefused(404, self._text)
        if job.state is not State.RUNNING:
            return TaskRefused(
                409, "not-in-progress", detail=f"the task is {STATUS[job.state]}; drop the work, nothing was changed"
            )
        if job.lease_owner == self.owner and lease not in (None, job.lease):
            return _lost()
        if await self._held_before(engine):
            return _lost()
        return TaskRefused(403, "not-owner", detail="another worker has this task")

    async def _held_before(self, engine: Engine) -> bool:
        after, claimed = 0, f"claimed by {self.owner}"
        while events := await engine.jobs.list_events(self.task_id, after, EVENTS):
            if any(event.move == "claim" and event.message == claimed for event in events):
                return True
            after = events[-1].seq
        return False


def _lost() -> TaskRefused:
    return TaskRefused(409, "lease-lost", detail="somebody else has the task now; drop the work, nothing was changed")


def owner_of(caller: Caller) -> str:
    # Names that begin with @ are those of the server's own runners, whose leases end with their process.
    return f"_{caller.subject}" if caller.subject.startswith("@") else caller.subject


def tenant_of(caller: Caller) -> str | None:
    """Return None (every tenant) only for the very scope codeq:all-tenants, never for `*`."""
    return EVERY_TENANT if ALL_TENANTS in caller.scopes else caller.tenant
