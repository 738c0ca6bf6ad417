"""The child processes of a worker, of which each runs one function at a time. One that ends is replaced, and costs its own task alone."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.reduction import ForkingPickler
from typing import Any

import msgspec

from chargehand.client.errors import Fail, Retry
from chargehand.client.worker import child as program
from chargehand.client.worker.calls import Call, RaisedInChild
from chargehand.client.worker.functions import TaskFunction
from chargehand.client.worker.held import Held
from chargehand.client.worker.messages import (
    Begin,
    CallEnded,
    Cancel,
    Order,
    Progressed,
    Raised,
    Report,
    Soften,
    framed,
    messages,
)
from chargehand.lifeline import Guardian

log = logging.getLogger("chargehand.client")

EXIT_SECONDS = 5.0  # for a child to end by itself

Functions = Mapping[str, TaskFunction]


class ChildrenSettings(msgspec.Struct, frozen=True):
    count: int
    max_tasks: int | None = None  # of one child
    max_memory: int | None = None  # bytes

    def worn_out(self, tasks: int, memory: int) -> bool:
        return tasks >= (self.max_tasks or tasks + 1) or memory > (self.max_memory or memory)


class _Trace(Exception):
    pass


def check_functions(functions: Functions) -> None:
    """Raise ValueError for a function that a new process cannot find."""
    for handler in functions.values():
        try:
            ForkingPickler.dumps(handler)
        except Exception as error:
            raise ValueError(
                f"the function for {handler.command!r} cannot run in a process of its own, because that has to find it by "
                f"the name of its module and its own: {error}"
            ) from None


class Child:
    def __init__(self, functions: Functions, guardian: Guardian) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._guardian = guardian
        self._process = get_context("spawn").Process(target=program.main, args=(theirs, functions))
        self._process.start()
        theirs.close()
        self._pid = self._process.pid or 0
        guardian.watch(self._pid)
        self._writer: asyncio.StreamWriter | None = None
        self._reports = messages(asyncio.StreamReader(), Report)
        self._tasks = 0
        self._ending: asyncio.Task[None] | None = None

    async def ready(self) -> bool:
        """Wait until it has its functions; False: it has ended before."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._reports = messages(reader, Report)
        return await anext(self._reports, None) is not None

    def tell(self, order: Order) -> None:
        if self._writer is not None:
            self._writer.write(framed(order))

    async def work(self, call: "ChildCall", settings: ChildrenSettings) -> bool:
        """Run the function to its end; return whether the child can run another."""
        self._tasks += 1
        async for report in self._reports:
            if isinstance(report, CallEnded):
                call.end(report)
                return not settings.worn_out(self._tasks, report.memory)
            call.progressed(report)
        await self.end()
        call.broke(Retry(None, self._epitaph()))
        return False

    async def end(self) -> None:
        """Let it end, or kill it; whatever it left in its group ends with it."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()
        await asyncio.to_thread(self._process.join, EXIT_SECONDS)
        self.kill()
        await asyncio.to_thread(self._process.join)
        self._guardian.leave(self._pid)

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)  # the group may live on without it
        if self._process.is_alive():
            self._process.kill()

    def _epitaph(self) -> str:
        code = self._process.exitcode or 0
        return f"its process was ended by signal {-code}" if code < 0 else f"its process ended with exit code {code}"


class ChildCall(Call):
    can_be_killed = True

    def __init__(self, handler: TaskFunction, held: Held) -> None:
        super().__init__()
        self._handler = handler
        self._held = held
        self._child: Child | None = None

    def begin(self, child: Child) -> None:
        self._child = child
        child.tell(Begin(self._handler.command.lower(), self._held.task))
        self._has_begun()

    def cancel(self) -> None:
        if self._child is None:
            self.ended.cancel()
        elif not self.ended.done():  # else the child may have another task
            self._child.tell(Cancel())

    def soften(self) -> None:
        if self._child is not None and not self.ended.done():
            self._child.tell(Soften())

    def kill(self) -> None:
        if self._child is not None and not self.ended.done():
            self._child.kill()

    def progressed(self, report: Any) -> None:
        if isinstance(report, Progressed):
            data = msgspec.UNSET if report.data is None else msgspec.Raw(report.data)
            self._held.progress(report.percent, report.message, data)

    def end(self, report: CallEnded) -> None:
        self._held.add(report.artifacts)
        if isinstance(report.outcome, Raised):
            self._settle(None, self._error(report.outcome))
        else:
            self._settle(msgspec.Raw(report.outcome.value))

    def broke(self, error: BaseException) -> None:
        self._settle(None, error)

    def _error(self, raised: Raised) -> BaseException:
        if raised.kind == "cancelled":
            return asyncio.CancelledError()
        if raised.kind == "fail":
            return Fail(raised.text)
        if raised.kind == "retry":
            return Retry(raised.delay_seconds, raised.text)
        error = RaisedInChild(raised.text)
        error.__cause__ = _Trace(f"\n{raised.trace}")
        return error


class Children:
    def __init__(self, functions: Functions, settings: ChildrenSettings) -> None:
        self._functions = functions
        self._settings = settings
        self._guardian = Guardian()
        self._idle: asyncio.Queue[Child] = asyncio.Queue()
        self._all: set[Child] = set()
        self._work: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self) -> None:
        await asyncio.gather(*(self._add() for _ in range(self._settings.count)))

    async def watch(self) -> None:
        """Raise what makes it impossible to replace one."""
        await self._broken

    def start(self, handler: TaskFunction, held: Held) -> Call:
        call = ChildCall(handler, held)
        work = asyncio.create_task(self._serve(call))
        self._work.add(work)
        work.add_done_callback(self._done)
        return call

    async def close(self) -> None:
        self._broken.cancel()
        for work in self._work:
            work.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await asyncio.gather(*(child.end() for child in self._all))
        await asyncio.to_thread(self._guardian.close)

    async def _add(self) -> None:
        child = Child(self._functions, self._guardian)
        self._all.add(child)
        if not await child.ready():
            raise ChildrenFailed("a process of this worker ended before it had its functions; it has said why above")
        self._idle.put_nowait(child)

    async def _serve(self, call: ChildCall) -> None:
        child = await self._idle.get()
        if call.ended.done():  # it was cancelled while it waited
            self._idle.put_nowait(child)
            return
        call.begin(child)
        if await child.work(call, self._settings):
            self._idle.put_nowait(child)
            return
        await asyncio.gather(child.end(), self._add())
        self._all.discard(child)

    def _done(self, work: "asyncio.Task[None]") -> None:
        self._work.discard(work)
        if not work.cancelled() and (error := work.exception()) is not None and not self._broken.done():
            self._broken.set_exception(error)


class ChildrenFailed(Exception):
    """The processes of a worker cannot be started."""
