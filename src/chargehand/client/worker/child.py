"""A child process of a worker: it runs the functions, one at a time, and knows nothing of the server."""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from chargehand.client.errors import Fail, Retry
from chargehand.client.types.tasks import TaskArtifact
from chargehand.client.worker.calls import Call, CallsInProcess
from chargehand.client.worker.functions import TaskFunction
from chargehand.client.worker.held import Held, ReportedProgress
from chargehand.client.worker.messages import (
    MAX_BYTES,
    Begin,
    CallEnded,
    Cancel,
    ChildReady,
    Order,
    Progressed,
    Raised,
    Report,
    Returned,
    Soften,
    framed,
    messages,
)
from chargehand.client.worker.outcome import as_result

log = logging.getLogger("chargehand.client")


def main(connection: socket.socket, functions: Mapping[str, TaskFunction]) -> None:
    connection.set_inheritable(False)
    os.setsid()  # a Ctrl-C is for the worker, and what a function starts ends with this group
    for number in (signal.SIGTERM, signal.SIGINT):
        # A supervisor may send it to all processes; the worker says when to end. Not SIG_IGN, which programs would inherit.
        signal.signal(number, lambda *_: None)
    asyncio.run(_serve(connection, functions))


async def _serve(connection: socket.socket, functions: Mapping[str, TaskFunction]) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    child = _Child(functions, writer)
    child.say(ChildReady())
    async for order in messages(reader, Order):
        child.obey(order)


class _Child:
    def __init__(self, functions: Mapping[str, TaskFunction], writer: asyncio.StreamWriter) -> None:
        self._functions = functions
        self._writer = writer
        self._calls = CallsInProcess(asyncio.get_running_loop(), threading.get_ident())
        self._held: Held | None = None
        self._call: Call | None = None
        self._newest: ReportedProgress | None = None
        self._sending: asyncio.Task[None] | None = None

    def say(self, report: Report) -> None:
        self._writer.write(framed(report))

    def obey(self, order: Order) -> None:
        if isinstance(order, Begin):
            self._begin(order)
        elif self._call is not None and isinstance(order, Soften):
            self._call.soften()
        elif self._call is not None and self._held is not None and isinstance(order, Cancel):
            self._held.lost.set()
            self._call.cancel()

    def _begin(self, order: Begin) -> None:
        held = self._held = Held(order.task, self._progressed)
        self._call = self._calls.start(self._functions[order.command], held)
        self._call.ended.add_done_callback(lambda ended: self._end(held, ended))

    def _end(self, held: Held, ended: "asyncio.Future[Any]") -> None:
        self._held = self._call = None
        self._tell_newest()
        self._writer.write(_last_word(_outcome(ended), held.artifacts))

    # progress: of several reports that wait, the newest goes

    def _progressed(self, note: ReportedProgress) -> "asyncio.Future[None]":
        self._newest = note
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_progress())
        taken = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken

    async def _send_progress(self) -> None:
        while self._newest is not None:
            self._tell_newest()
            await self._writer.drain()
        self._sending = None

    def _tell_newest(self) -> None:
        note, self._newest = self._newest, None
        if note is None:
            return
        try:
            data = None if note.data is msgspec.UNSET else msgspec.json.encode(note.data)
        except Exception as error:  # progress never makes a task fail
            log.warning("progress cannot be sent: %s", error)
            return
        self.say(Progressed(note.percent, note.message, data))


def _last_word(outcome: Returned | Raised, artifacts: tuple[TaskArtifact, ...]) -> bytes:
    """It always comes: the worker waits for it."""
    try:
        word = framed(CallEnded(outcome, artifacts, _memory()))
    except Exception as error:  # such as a file's name that is no Unicode
        return framed(CallEnded(Raised("fail", _clean(f"the result cannot be sent: {error}")), (), _memory()))
    if len(word) <= MAX_BYTES:
        return word
    text = f"the result has {len(word)} bytes with its files; at most {MAX_BYTES} are allowed"
    return framed(CallEnded(Raised("fail", text), (), _memory()))


def _outcome(ended: "asyncio.Future[Any]") -> Returned | Raised:
    if ended.cancelled():
        return Raised("cancelled", "CancelledError")
    error = ended.exception()
    if isinstance(error, Fail):
        return Raised("fail", _clean(error.error))
    if isinstance(error, Retry):
        return Raised("retry", _clean(error.reason), error.delay_seconds)
    if error is not None:
        trace = "".join(traceback.format_exception(error))
        return Raised("raised", _clean(f"{type(error).__name__}: {error}"), trace=_clean(trace))
    try:
        return Returned(bytes(as_result(ended.result())))
    except Exception as unfit:  # the objects in it may raise anything
        return Raised("fail", _clean(f"the result cannot be written as JSON: {unfit}"))


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _memory() -> int:
    """Bytes that this process has now; where the system does not say, the most that it has had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource  # not everywhere

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
