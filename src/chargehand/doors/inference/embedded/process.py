"""The embedded target as a child process of the server, which starts it again when it dies."""

import asyncio
import contextlib
import os
import platform
import random
import signal
import socket
import sys
import time
from asyncio import StreamReader
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, cast

import msgspec

from chargehand.observability.logs import get_logger

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 5.0
BACKOFF_SECONDS: Final = 0.25
BACKOFF_MAX_SECONDS: Final = 30.0
STEADY_SECONDS: Final = 60.0  # after so long a run the backoff is reset
ERROR_BYTES: Final = 2000  # how much of its standard error is kept

log = get_logger(__name__)


class CannotStart(Exception):
    """The embedded target did not come up. The message says why."""


class EmbeddedReady(msgspec.Struct):
    url: str
    models: list[str]


class Embedded:
    """One process. It keeps its port over restarts, so that its URL stays the same.

    With a key it serves only requests that carry it as a Bearer token; without one, all programs of this machine.
    """

    def __init__(
        self, models: Sequence[str] = (), *, threads: int = 0, parallel: int = 1, port: int = 0, key: str = ""
    ) -> None:
        self._arguments = ["--threads", str(threads), "--parallel", str(parallel)]
        for model in models:
            self._arguments += ["--model", model]
        self._port = port
        self._key = key
        self._process: Process | None = None
        self._errors = bytearray()
        self._error_reader: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self.url = ""  # known once it was started
        self.models: tuple[str, ...] = ()

    @staticmethod
    def available() -> str:
        """Return why the engine cannot run here, or "" if it can."""
        if sys.platform not in ("linux", "darwin"):
            return f"the embedded target runs on Linux and macOS, not on {sys.platform}"
        if find_spec("xllamacpp") is None:
            return "the package xllamacpp is not installed (`make setup` does, where it has a wheel for the platform)"
        if sys.platform == "linux" and platform.machine() == "x86_64" and "avx2" not in cpu_flags():
            return "the CPU has no AVX2, which xllamacpp's wheel needs"
        return ""

    @property
    def pid(self) -> int | None:
        """The process id; None while it does not run."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> str:
        """Start it and return its URL once it listens, or raise CannotStart."""
        if self.pid is not None:
            return self.url
        self._stopping.clear()
        if reason := self.available():
            raise CannotStart(reason)
        began = time.monotonic()
        port = self._port or free_port()
        self._process = process = await self._spawn(port)
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await self._ready(process)
        except TimeoutError:
            await self._end(process)
            raise CannotStart(f"the embedded target did not listen within {START_SECONDS:g} s") from None
        except BaseException:
            await self._end(process)
            raise
        self._port, self.url, self.models = port, ready.url, tuple(ready.models)
        took = round(time.monotonic() - began, 3)
        log.info("embedded target started", url=self.url, pid=process.pid, models=ready.models, seconds=took)
        return self.url

    async def stop(self) -> None:
        """Stop it. May be called again, and before it was started."""
        self._stopping.set()
        process, self._process = self._process, None
        if process is not None:
            await self._end(process, gently=True)

    async def keep_running(self) -> None:
        """Start it, and start it again whenever it dies, until `stop`. A failed start is logged and retried."""
        wait = BACKOFF_SECONDS
        while True:
            began = time.monotonic()
            try:
                await self.start()
                happened = {"exit_code": await self._died(), "errors": self._last_error()}
            except (CannotStart, OSError) as error:
                happened = {"reason": str(error)}
            if time.monotonic() - began > STEADY_SECONDS:
                wait = BACKOFF_SECONDS
            if self._stopping.is_set():
                return
            log.warning("embedded target is not running", **happened, again_in_seconds=wait)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait)
                return
            wait = min(wait * 2, BACKOFF_MAX_SECONDS)

    async def _died(self) -> int:
        return await self._process.wait() if self._process else 0

    async def _spawn(self, port: int) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "chargehand.doors.inference.embedded", "--port", str(port), *self._arguments),
            stdin=PIPE,  # never written to: the process reads its end when we exit
            stdout=PIPE,
            stderr=PIPE,
            env={**os.environ, "CHARGEHAND_EMBEDDED_KEY": self._key},  # all users can read a process's arguments
            start_new_session=True,  # Ctrl-C must reach only us; we stop it
        )
        self._errors.clear()
        self._error_reader = asyncio.get_running_loop().create_task(self._read_errors(process))
        return process

    async def _ready(self, process: Process) -> EmbeddedReady:
        if line := await cast(StreamReader, process.stdout).readline():
            return msgspec.json.decode(line, type=EmbeddedReady)
        code = await process.wait()
        if self._error_reader:
            await self._error_reader
        raise CannotStart(f"the embedded target ended with {code}: {self._last_error() or 'without an error message'}")

    async def _read_errors(self, process: Process) -> None:
        """Read its standard error, so that the pipe does not fill up, and keep the end."""
        stream = cast(StreamReader, process.stderr)
        while errors := await stream.read(4096):
            self._errors += errors
            del self._errors[:-ERROR_BYTES]

    def _last_error(self) -> str:
        """Return the last line of its standard error."""
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    async def _end(self, process: Process, *, gently: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError):
            if gently:
                process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), STOP_SECONDS)
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def cpu_flags() -> set[str]:
    """Return the CPU flags from /proc/cpuinfo; empty if there is none."""
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open() as lines:
        for line in lines:
            if line.startswith("flags"):
                return set(line.partition(":")[2].split())
    return set()


def free_port() -> int:
    """Return a free port below the range of outgoing connections, so that none takes it while the process is down."""
    while True:
        port = random.randrange(20_000, 32_000)  # noqa: S311
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
