"""Calls of functions, as the worker's own loop sees them: they run in another loop or in a thread, where they may do as they like."""

import asyncio
import contextlib
import contextvars
import threading
from typing import Any, Protocol

from chargehand.client.errors import Retry, SoftTimeLimit
from chargehand.client.worker.functions import TaskFunction
from chargehand.client.worker.held import Held
from chargehand.client.worker.limits import SoftlyLimited, ThreadLimit
from chargehand.client.worker.loop_watch import LoopWatch
from chargehand.client.worker.mailbox import Mailbox


class Call:
    """A call that runs. `ended` is a future of the worker's own loop, in which all methods are called."""

    can_be_killed = False

    def __init__(self) -> None:
        self._own = asyncio.get_running_loop()
        self.ended: asyncio.Future[Any] = self._own.create_future()
        self.ended.add_done_callback(_retrieve)
        self.begun: asyncio.Future[None] = self._own.create_future()  # only told of functions with time limits

    def cancel(self) -> None:
        """Ask the function to end, where that can be asked."""

    def soften(self) -> None:
        """Raise SoftTimeLimit in the function."""

    def kill(self) -> None:
        """End the function by force, where `can_be_killed`."""

    def _has_begun(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)

    def _settle(self, value: Any, error: BaseException | None = None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(value)
        elif isinstance(error, asyncio.CancelledError):
            self.ended.cancel()
        elif isinstance(error, StopIteration):  # a future cannot hold this one
            self.ended.set_exception(RuntimeError(f"StopIteration: {error}"))
        else:
            self.ended.set_exception(error)


class RaisedInChild(Exception):
    """An error of a function in a child process. Its text names the kind of error, and its cause is the traceback as text."""


class FunctionCalls(Protocol):
    """Where functions run."""

    async def open(self) -> None: ...

    async def watch(self) -> None:
        """Watch what stalls the functions; raise if they cannot go on."""

    def start(self, handler: TaskFunction, held: Held) -> Call: ...

    async def close(self) -> None: ...


class CallsInProcess:
    """Coroutines run in the loop given, which runs in this thread; plain functions in threads of their own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        own = asyncio.get_running_loop()
        self._loop = loop
        self._watch = LoopWatch(loop, thread)
        self._to_loop = Mailbox(own, loop)
        self._from_loop = Mailbox(loop, own)

    async def open(self) -> None:
        pass

    async def watch(self) -> None:
        await self._watch.run()

    async def close(self) -> None:
        pass

    def start(self, handler: TaskFunction, held: Held) -> Call:
        if handler.in_a_thread:
            return ThreadCall(handler, held)
        return CoroutineCall(handler, held, self._loop, self._to_loop, self._from_loop)


class CoroutineCall(Call):
    def __init__(
        self,
        handler: TaskFunction,
        held: Held,
        loop: asyncio.AbstractEventLoop,
        to_loop: Mailbox,
        from_loop: Mailbox,
    ) -> None:
        super().__init__()
        self._handler = handler
        self._held = held
        self._loop = loop
        self._to_loop = to_loop
        self._from_loop = from_loop
        self._task: asyncio.Task[Any] | None = None
        self._softly: SoftlyLimited | None = None
        to_loop.put(self._begin)

    def cancel(self) -> None:
        self._to_loop.put(self._cancel)

    def soften(self) -> None:
        self._to_loop.put(self._soften)

    # in the loop of the functions

    def _begin(self) -> None:
        if self._handler.limits.soft is not None:
            self._softly = SoftlyLimited(self._handler.function(self._held))
        self._task = self._loop.create_task(self._guarded(), name=_name(self._held))
        self._task.add_done_callback(self._done)
        if self._handler.limits:
            self._from_loop.put(self._has_begun)

    async def _guarded(self) -> Any:
        try:
            return await (self._softly or self._handler.function(self._held))
        except SoftTimeLimit:
            raise past_soft_limit(self._handler) from None
        except SystemExit as error:  # it would end the loop, and with it all other tasks
            raise RuntimeError(f"SystemExit: {error}") from None

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _soften(self) -> None:
        if self._task is not None and self._softly is not None:
            self._softly.end(self._task)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        value = task.result() if error is None else None
        self._from_loop.put(lambda: self._settle(value, error))


class ThreadCall(Call):
    """In a daemon thread, unlike an executor's: a function that hangs must not keep the process alive."""

    def __init__(self, handler: TaskFunction, held: Held) -> None:
        super().__init__()
        self._handler = handler
        self._held = held
        self._context = contextvars.copy_context()
        self._limit = ThreadLimit()
        self._has_begun()
        threading.Thread(target=self._run, name=_name(held), daemon=True).start()

    def soften(self) -> None:
        self._limit.end()

    def _run(self) -> None:
        value: Any = None
        failed: BaseException | None = None
        try:
            with self._limit:
                value = self._context.run(self._handler.function, self._held)
        except SoftTimeLimit:
            failed = past_soft_limit(self._handler)
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the worker has stopped and closed its loop
            self._own.call_soon_threadsafe(self._settle, value, failed)


def past_soft_limit(handler: TaskFunction) -> Retry:
    return Retry(None, f"took longer than {handler.limits.soft:g} s, its soft limit")


def _name(held: Held) -> str:
    return f"task {held.id} ({held.command})"


def _retrieve(ended: "asyncio.Future[Any]") -> None:
    """Retrieve the error of a call that nobody awaits any more, else asyncio logs it."""
    if not ended.cancelled():
        ended.exception()
