"""A worker's functions: coroutines run in the loop, plain functions in a thread each."""

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chargehand.client.worker.held import Held

Function = Callable[[Held], Any]


@dataclass(frozen=True)
class TaskFunction:
    command: str
    function: Function
    lease_seconds: float

    @property
    def in_a_thread(self) -> bool:
        called = getattr(self.function, "__call__", None)  # noqa: B004 - an object may have a coroutine function there
        return not (inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(called))

    def start(self, held: Held) -> "asyncio.Future[Any]":
        if self.in_a_thread:
            return _in_a_thread(self.function, held)
        return asyncio.ensure_future(self._guarded(held))

    async def _guarded(self, held: Held) -> Any:
        try:
            return await self.function(held)
        except SystemExit as error:  # it would end the loop, and with it all other tasks
            raise RuntimeError(f"SystemExit: {error}") from None


def _in_a_thread(function: Function, held: Held) -> "asyncio.Future[Any]":
    """In a daemon thread, unlike an executor's: a function that hangs must not keep the process alive."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if ended.done():
            return  # the attempt has ended without it
        if error is None:
            ended.set_result(value)
        elif isinstance(error, StopIteration):  # a future cannot hold this one
            ended.set_exception(RuntimeError(f"StopIteration: {error}"))
        else:
            ended.set_exception(error)

    def run() -> None:
        value: Any = None
        failed: BaseException | None = None
        try:
            value = context.run(function, held)
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the worker has stopped and closed the loop
            loop.call_soon_threadsafe(settle, value, failed)

    threading.Thread(target=run, name=f"task {held.id}", daemon=True).start()
    return ended
