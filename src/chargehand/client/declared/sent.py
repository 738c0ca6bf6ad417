"""A declared task that was sent: its id, and in time its result."""

from typing import TYPE_CHECKING, Generic, TypeVar

from chargehand.client.declared.values import Returns
from chargehand.client.errors import JobFailed
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
