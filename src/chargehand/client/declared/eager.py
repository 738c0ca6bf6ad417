"""Run a task where it is sent, at once, with all checks: for tests, where no worker should be needed."""

import asyncio
import itertools
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from chargehand.client.declared.batches import BatchHandler
from chargehand.client.declared.handler import FunctionHandler
from chargehand.client.errors import Fail, Retry
from chargehand.client.types.tasks import NewTask, Result, Task
from chargehand.client.worker.held import Held, ReportedProgress

T = TypeVar("T")
Handler = FunctionHandler | BatchHandler
Ended = tuple[Task, Result]

ATTEMPTS = 5  # of a server that is told nothing else
_numbers = itertools.count(1)


class EagerTask(Held):
    """What the function gets as its current task. `reports` are the progress that it reported."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.id = task.id
        self.command = task.command
        self.attempt = task.attempts
        self.max_attempts = task.max_attempts
        self.tenant = task.tenant_id
        self.lost = threading.Event()
        self.reports: list[ReportedProgress] = []
        self._artifacts = []

    def progress(self, percent: float | None = None, message: str | None = None, data: Any = msgspec.UNSET) -> Any:
        self.reports.append(ReportedProgress(percent, message, data))
        return _Told()


class _Told:
    def __await__(self) -> Any:
        return iter(())


def run_eagerly(handler: Handler, new: NewTask) -> Ended:
    """Run it in this thread, or if it is a coroutine function, in a loop of its own."""
    if isinstance(handler, FunctionHandler) and not handler.is_async:
        return _without_a_loop(_run(handler, new))
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_run(handler, new))
    return _in_another_thread(_run(handler, new))


async def arun_eagerly(handler: Handler, new: NewTask) -> Ended:
    if isinstance(handler, FunctionHandler) and not handler.is_async:
        return await asyncio.to_thread(run_eagerly, handler, new)
    return await _run(handler, new)


async def _run(handler: Handler, new: NewTask) -> Ended:
    """Treat Retry and Fail as a worker does. Raise any other error: a test should show it."""
    task = _task(new)
    for attempt in range(1, task.max_attempts + 1):
        task = msgspec.structs.replace(task, attempts=attempt)
        try:
            raw = await _result(handler, EagerTask(task))
        except Fail as error:
            return _failed(task, error.error)
        except Retry as error:
            reason = error.reason or "retry"
        else:
            done = msgspec.structs.replace(task, status="COMPLETED")
            return done, Result(task_id=task.id, status="COMPLETED", result=msgspec.json.decode(raw or b"{}"))
    return _failed(task, reason)


async def _result(handler: Handler, task: EagerTask) -> Raw:
    if isinstance(handler, FunctionHandler) and not handler.is_async:
        return handler.run(task)
    return await handler.arun(task)


def _task(new: NewTask) -> Task:
    return Task(
        id=f"eager-{next(_numbers)}",
        command=new.command,
        payload_json=msgspec.json.encode(new.payload).decode(),
        priority=new.priority,
        status="IN_PROGRESS",
        max_attempts=new.max_attempts or ATTEMPTS,
        metadata=msgspec.json.decode(msgspec.json.encode(new.metadata)),
    )


def _failed(task: Task, error: str) -> Ended:
    failed = msgspec.structs.replace(task, status="FAILED", error=error)
    return failed, Result(task_id=task.id, status="FAILED", error=error)


def _without_a_loop(run: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits nothing; return its result."""
    try:
        run.send(None)
    except StopIteration as ended:
        value: T = ended.value
        return value
    raise AssertionError("a plain function awaits nothing")


def _in_another_thread(run: Coroutine[Any, Any, T]) -> T:
    """Run it in a thread with its own loop: the loop of this thread is blocked."""
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(asyncio.run(run))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="eager task")
    thread.start()
    thread.join()
    for error in errors:
        raise error
    return results[0]
