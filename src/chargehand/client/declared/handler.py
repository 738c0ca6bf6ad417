"""What a worker runs for a declared task: its function, with arguments and a result that are checked."""

import importlib
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pickle import PicklingError
from typing import Any

from msgspec import Raw

from chargehand.client.declared.middleware import Middleware
from chargehand.client.declared.retries import Retries
from chargehand.client.declared.values import Arguments, PayloadError, Returns, Single, payload_of
from chargehand.client.errors import Fail
from chargehand.client.worker.held import Held

log = logging.getLogger("chargehand.client")
_current: ContextVar[Held] = ContextVar("chargehand_task")


def current_task() -> Held:
    """The task that the caller's function runs for: its id, its attempt, `progress` and `attach`. RuntimeError outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("no task runs here: the function was called, and not by a worker") from None


class Surroundings:
    """What is around each run of a function: the current task, the middleware, and the verdict on what it raises."""

    def __init__(self, middleware: Sequence[Middleware], retries: Retries) -> None:
        self._middleware = middleware
        self._retries = retries

    @contextmanager
    def of(self, held: Held) -> Iterator[None]:
        before = _current.set(held)
        try:
            with ExitStack() as stack:
                for each in self._middleware:
                    stack.enter_context(each.around_run(held))
                yield
        except Exception as error:
            verdict = self._retries.verdict(error, held.attempt)
            if verdict is error:
                raise
            log.warning("task %s (%s) raised", held.id, held.command, exc_info=error)
            raise verdict from error
        finally:
            _current.reset(before)


class FunctionHandler:
    def __init__(
        self, function: Callable[..., Any], arguments: Arguments, returns: Returns[Any], surroundings: Surroundings
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._returns = returns
        self._around = surroundings
        self.is_async = inspect.iscoroutinefunction(function)

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker's child process makes its own: it finds the task by its name, as the function itself has another there."""
        where = (self._function.__module__, self._function.__qualname__)
        if getattr(_task_of(*where), "function", None) is not self._function:
            raise PicklingError(f"{where[0]} has no task {where[1]}")
        return _handler_of, where

    def for_worker(self) -> Callable[[Held], Any]:
        return self.arun if self.is_async else self.run

    def run(self, held: Held) -> Raw:
        with self._around.of(held):
            return packed(self._returns, self._function(**unpacked(self._arguments, held)))

    async def arun(self, held: Held) -> Raw:
        with self._around.of(held):
            return packed(self._returns, await self._function(**unpacked(self._arguments, held)))


def _handler_of(module: str, name: str) -> Any:
    return _task_of(module, name).handler()


def _task_of(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for each in name.split("."):
        found = getattr(found, each, None)
    return found


def unpacked(arguments: Arguments | Single, held: Held) -> Any:
    """Another try would find the same payload, so the task fails for good."""
    try:
        return arguments.unpack(payload_of(held.task))
    except PayloadError as error:
        raise Fail(f"the payload is not what {held.command} takes: {error}") from None


def packed(returns: Returns[Any], value: Any) -> Raw:
    try:
        return returns.pack(value)
    except PayloadError as error:
        raise Fail(f"the function returned something else than it declares: {error}") from None
