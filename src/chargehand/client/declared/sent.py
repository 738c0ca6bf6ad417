"""A declared task or a flow that was sent: its id, and in time its result."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from chargehand.client.declared.flows import each_end
from chargehand.client.declared.graph import EndedFlow, end_names
from chargehand.client.declared.values import Returns
from chargehand.client.errors import JobFailed, refused
from chargehand.client.types.engine import Job, MovedJob
from chargehand.client.types.flows import Flow
from chargehand.client.types.tasks import Result, Task

if TYPE_CHECKING:
    from chargehand.client.declared.app import App

R = TypeVar("R")


class SentTask(Generic[R]):
    """Any process can make one of an id: `greet.sent(task_id)`."""

    def __init__(self, app: "App", task_id: str, returns: Returns[R], ended: tuple[Task, Result] | None = None) -> None:
        self.id = task_id
        self._app = app
        self._returns = returns
        self._ended = ended  # known if it ran eagerly, or was waited for

    def result(self, timeout: float | None = None) -> R:
        """What the function returned, once it has. JobFailed if the task failed, NotDone if it has not ended in time."""
        if self._ended is None:
            self._ended = self._app.client.tasks.wait(self.id, timeout=timeout)
        return self._value(*self._ended)

    async def aresult(self, timeout: float | None = None) -> R:
        if self._ended is None:
            self._ended = await self._app.async_client.tasks.wait(self.id, timeout=timeout)
        return self._value(*self._ended)

    def _value(self, task: Task, result: Result) -> R:
        if result.status != "COMPLETED":
            raise JobFailed(task, result.error)
        return self._returns.unpack(result.result)

    def __repr__(self) -> str:
        return f"<SentTask {self.id}>"


class SentFlow(Generic[R]):
    """Any process can make one of an id and the flow: `flow.sent(flow_id)`."""

    def __init__(self, app: "App", flow_id: str, ends: Any, ended: EndedFlow | None = None) -> None:
        self.id = flow_id
        self._app = app
        self._ends = ends
        self._eager = ended is not None
        self._ended = ended  # known if it ran eagerly, or was waited for

    def result(self, timeout: float | None = None) -> R:
        """What its last steps returned. JobFailed if the flow failed or one of them was skipped, NotDone if it has not ended in time."""
        if self._ended is None:
            client, names = self._app.client, end_names(self._ends)
            flow = client.flows.wait(self.id, timeout=timeout)
            ids = {step.name: step.job_id for step in client.flows.steps(self.id) if step.name in names}
            self._ended = flow, {name: client.engine.job(job_id) for name, job_id in ids.items()}
        return self._value(*self._ended)

    async def aresult(self, timeout: float | None = None) -> R:
        if self._ended is None:
            client, names = self._app.async_client, end_names(self._ends)
            flow = await client.flows.wait(self.id, timeout=timeout)
            ids = {step.name: step.job_id async for step in client.flows.steps(self.id) if step.name in names}
            self._ended = flow, {name: await client.engine.job(job_id) for name, job_id in ids.items()}
        return self._value(*self._ended)

    def cancel(self) -> MovedJob:
        """Cancel the flow and its steps. It ends when those that run have ended."""
        self._again()
        return self._app.client.flows.cancel(self.id)

    async def acancel(self) -> MovedJob:
        self._again()
        return await self._app.async_client.flows.cancel(self.id)

    def retry(self, step: str = "") -> MovedJob:
        """Run a step and all that come after it again; without a step all that did not succeed."""
        self._again()
        return self._app.client.flows.retry(self.id, step)

    async def aretry(self, step: str = "") -> MovedJob:
        self._again()
        return await self._app.async_client.flows.retry(self.id, step)

    def _again(self) -> None:
        if self._eager:
            raise refused(409, "the flow ran eagerly, and has ended")
        self._ended = None

    def _value(self, flow: Flow, jobs: Mapping[str, Job]) -> R:
        if flow.state != "succeeded":
            raise JobFailed(flow, flow.error or flow.state)
        return cast(R, each_end(lambda end: _result(jobs[end.name], end.returns), self._ends))

    def __repr__(self) -> str:
        return f"<SentFlow {self.id}>"


def _result(job: Job, returns: Returns[Any] | None) -> Any:
    if job.state != "succeeded":
        raise JobFailed(job, job.error or job.state)
    return job.result if returns is None else returns.unpack(job.result)
