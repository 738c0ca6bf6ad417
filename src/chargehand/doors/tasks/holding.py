"""Whose task it is: on this wire a worker says its name, and the lease only if it wants to be sure.

A worker that lost its lease is told so with 409, and changes nothing; one that never held the task gets 403. A worker that sends
the `lease` it was given is safe even from another one of the same name that took the task over.
"""

from chargehand.doors.tasks import access
from chargehand.doors.tasks.errors import TaskRefused
from chargehand.doors.tasks.names import ALL_TENANTS, KIND
from chargehand.doors.tasks.views import STATUS
from chargehand.engine.engine import Engine
from chargehand.engine.guard import EVERY_TENANT, Guard
from chargehand.engine.ids import is_ulid
from chargehand.engine.job import Job, State
from chargehand.http.auth import Caller
from chargehand.http.request import Request

EVENTS = 1000  # of a task that are looked at in one go to tell a former owner from a stranger


class TaskHolder:
    """A worker that calls about one task: its guards for the engine."""

    def __init__(self, caller: Caller, task_id: str, text: str = "not-found") -> None:
        if not is_ulid(task_id):
            raise TaskRefused(404, text)
        self.task_id = task_id
        self.owner = owner_of(caller)
        self.tenant = tenant_of(caller)
        self._text = text

    @classmethod
    def of(cls, req: Request, scope: str, task_id: str, text: str = "not-found") -> "TaskHolder":
        return cls(access.worker(req, scope), task_id, text)

    def guard(self, lease: int | None) -> Guard:
        """The worker's name is compared in any case, the lease where the worker sent one."""
        return Guard(self.task_id, self.tenant, KIND, lease, self.owner)

    async def held(self, engine: Engine, lease: int | None = None) -> Job:
        """The task, if this worker holds it now."""
        job = await engine.store.get_job(self.task_id, self.tenant)
        if job is None or job.state is not State.RUNNING or not self.guard(lease).admits(job):
            raise await self.refusal(engine, lease)
        return job

    async def refusal(self, engine: Engine, lease: int | None = None) -> TaskRefused:
        """Why the task is not this worker's."""
        job = await engine.store.get_job(self.task_id, self.tenant)
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
        while events := await engine.store.list_events(self.task_id, after, EVENTS):
            if any(event.move == "claim" and event.message == claimed for event in events):
                return True
            after = events[-1].seq
        return False


def _lost() -> TaskRefused:
    return TaskRefused(409, "lease-lost", detail="somebody else has the task now; drop the work, nothing was changed")


def owner_of(caller: Caller) -> str:
    # The server's own runners begin with @, and end with their process.
    return f"_{caller.subject}" if caller.subject.startswith("@") else caller.subject


def tenant_of(caller: Caller) -> str | None:
    """A fleet works for every tenant only by that very scope, never by `*`."""
    return EVERY_TENANT if ALL_TENANTS in caller.scopes else caller.tenant
