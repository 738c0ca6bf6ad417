"""The parent of `chargehand serve --processes N`. It binds the port, and starts, watches and ends the processes that serve on it.

It is to them what systemd is to a server: they tell it that they are ready and alive (`observability/supervisor.py`), and it
starts those anew that end.
"""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from chargehand.commands.serve.told import Told
from chargehand.config import Config, require_safe
from chargehand.errors import ConfigError
from chargehand.http.listening import bind, url_of
from chargehand.observability.logs import Format, get_logger
from chargehand.observability.supervisor import Supervisor
from chargehand.private import keep_files_private

BACKOFF_SECONDS = 0.25
BACKOFF_MAX_SECONDS = 30.0
STEADY_SECONDS = 60.0  # after so long a run the backoff is reset
CLOSE_SECONDS = 10.0  # for what a process does beside its drain, which has a time limit of its own

log = get_logger(__name__)


async def run_processes(
    config: Config, log_format: Format, started: Callable[[str], None], *, as_json: bool = False
) -> int:
    """Serve until told to stop; return the worst exit code of the processes. `started` gets the URL."""
    keep_files_private()
    require_safe(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    supervisor = Supervisor()
    alive = asyncio.create_task(supervisor.keep_alive())
    listening = await bind(config.server.host, config.server.port)
    descriptors = tuple(each.fileno() for each in listening)

    def begun() -> None:
        started(url_of(listening[0].getsockname()[:2], tls=bool(config.server.tls_certificate)))
        supervisor.ready()
        gc.freeze()  # spare the interpreter, at its exit, collecting the objects that exist now

    with _private_folder() as folder:
        children = [
            ServerChild(Told(config, number, folder, descriptors, log_format, as_json), supervisor.beat_seconds)
            for number in range(1, config.server.processes + 1)
        ]
        running = asyncio.create_task(_run(children, begun))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            supervisor.stopping()
            for task in (running, stopping):
                task.cancel()
            await asyncio.wait({running, stopping})
            for each in listening:
                each.close()  # the processes close theirs: from now on connections are refused
            patience = config.server.drain_seconds + config.webhooks.timeout_seconds + CLOSE_SECONDS
            codes = await asyncio.gather(*(child.end(patience) for child in children))
            alive.cancel()
    if not running.cancelled():
        running.result()  # raises what was unexpected
    return max(codes)


async def _run(children: "Sequence[ServerChild]", begun: Callable[[], None]) -> None:
    """Start all and keep them running. Return if one ends before it was ready."""
    for some in (children[:1], children[1:]):  # the first one alone: it migrates, and what is wrong is said once
        if not all(await asyncio.gather(*(child.start() for child in some))):
            return
    begun()
    await asyncio.gather(*(child.keep() for child in children))


@contextlib.contextmanager
def _private_folder() -> Iterator[str]:
    try:
        folder = TemporaryDirectory(prefix="chargehand-")
    except OSError as error:
        raise ConfigError(f"no temporary folder can be made: {error.strerror}; set TMPDIR to one") from None
    with folder as path:
        yield path


def next_pause(pause: float, ran_seconds: float) -> float:
    """Return how long to wait before a process that ended is started, given how long it was the time before."""
    if ran_seconds > STEADY_SECONDS:
        return BACKOFF_SECONDS
    return min(max(2 * pause, BACKOFF_SECONDS), BACKOFF_MAX_SECONDS)


class ServerChild(asyncio.DatagramProtocol):
    def __init__(self, told: Told, beat_seconds: float) -> None:
        self._told = told
        self._beat_seconds = beat_seconds  # 0: it is not watched
        self._notices = Path(told.folder) / f"{told.number}.notices"
        self._ready = asyncio.Event()
        self._heard_at = 0.0
        self._ear: asyncio.BaseTransport | None = None
        self._process: Process | None = None

    def datagram_received(self, data: bytes, _address: object) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if data == b"READY=1":
            self._ready.set()

    async def start(self) -> bool:
        """Return True once it is ready, or False if it ended before that."""
        try:
            self._ear, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: self, local_addr=str(self._notices), family=socket.AF_UNIX
            )
        except OSError as error:
            raise ConfigError(f"{self._notices}: {error}; set TMPDIR to a folder with a shorter path") from None
        process = await self._spawn()
        ready, ended = asyncio.create_task(self._ready.wait()), asyncio.create_task(self._ended(process))
        try:
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
            return self._ready.is_set()
        finally:
            ready.cancel()
            ended.cancel()

    async def keep(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Start it anew whenever it ends."""
        loop = asyncio.get_running_loop()
        pause, began, process = 0.0, loop.time(), self._process
        while process is not None:
            code = await self._ended(process)
            self._process = None
            pause = next_pause(pause, loop.time() - began)
            log.error("a process ended", process=self._told.number, exit_code=code, again_in_seconds=pause)
            await sleep(pause)
            began = loop.time()
            process = await self._spawn()

    async def end(self, patience_seconds: float) -> int:
        """Have it drain, and return its exit code."""
        try:
            return await self._end(patience_seconds)
        finally:
            if self._ear is not None:
                self._ear.close()

    async def _end(self, patience_seconds: float) -> int:
        process = self._process
        if process is None:
            return 0
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(patience_seconds):
                code = await process.wait()
        except TimeoutError:
            log.error("a process is killed: it did not end", process=self._told.number, seconds=patience_seconds)
            process.kill()
            code = await process.wait()
        # One that had just begun to start ends by the signal itself.
        return code if code >= 0 else 0 if code == -signal.SIGTERM else 1

    async def _spawn(self) -> Process:
        self._ready.clear()
        environ = {name: value for name, value in os.environ.items() if name != "WATCHDOG_PID"}
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "chargehand.commands.serve.child"),
            stdin=PIPE,  # it ends when we are gone
            pass_fds=self._told.listening,
            env={**environ, "NOTIFY_SOCKET": str(self._notices)},
            start_new_session=True,  # a Ctrl-C reaches only us, and we have it drain
        )
        if process.stdin is not None:
            with contextlib.suppress(ConnectionError):  # it has ended already
                process.stdin.write(self._told.encoded())
                await process.stdin.drain()
        return process

    async def _ended(self, process: Process) -> int:
        """Return its exit code. With a watchdog, kill it if its event loop hangs."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(self._beat_seconds or None):
                    return await process.wait()
            except TimeoutError:
                silent = loop.time() - self._heard_at
                if self._ready.is_set() and silent > 2 * self._beat_seconds and process.returncode is None:
                    log.error("a process is killed: it hangs", process=self._told.number, seconds=silent)
                    process.kill()
