"""codeQ's own Go SDK on its gRPC streams: one task from a producer's stream through a worker's, on ours and on codeQ itself."""

import asyncio
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median

from bench.bench import Bench
from bench.report import Row
from chargehand.http.credentials import hash_token

DRIVER = Path(__file__).parents[1] / "tests" / "tasks" / "codeq_sdk_test.go"
CYCLES = {1: 20_000, 32: 100_000}  # tasks of a run, by how many go in one message
TOKEN = "bench"
WORKER_SCOPES = [f"codeq:{verb}" for verb in ("claim", "heartbeat", "abandon", "nack", "result", "subscribe")]
START_SECONDS = 30.0

Streams = Mapping[str, str]  # what the driver is told: where the streams are


async def codeq_stream(bench: Bench) -> AsyncIterator[Row]:
    """Both keep what they acknowledged through a crash of the machine: codeQ with fsyncOnCommit."""
    if bench.codeq is None:
        bench.say("  without codeQ: --codeq names a folder with its source")
        return
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        driver, server = await _built(bench.codeq, folder)
        rates: dict[tuple[str, int], list[float]] = {}
        async with AsyncExitStack() as stack:
            places = {
                "ours": await stack.enter_async_context(_ours(bench)),
                "codeQ": await stack.enter_async_context(_codeq(server, folder / "data")),
            }
            for turn in range(bench.scale.rounds + 1):  # the first is the warm-up
                for batch in CYCLES:
                    for name, streams in places.items():
                        rate = await _cycles(driver, streams, batch)
                        bench.say(f"  {f'{name}, {batch} in a message':<42}{rate:>9,.0f}/s")
                        rates.setdefault((name, batch), []).extend([rate] if turn else [])
    for batch in CYCLES:
        ours, theirs = rates["ours", batch], rates["codeQ", batch]
        yield Row(
            measurement=f"cycle on codeQ's gRPC streams, {batch} in a message, against codeQ",
            value=median(ours),
            unit="/s",
            baseline=median(theirs),
            ratio=median(one / other for one, other in zip(ours, theirs, strict=True)),
        )


async def _built(source: Path, folder: Path) -> tuple[Path, Path]:
    """Build the driver, a test of a package of codeQ's module, and codeQ's server."""
    copy = folder / "codeq"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".git"))
    (copy / "chargehand").mkdir()
    shutil.copy(DRIVER, copy / "chargehand" / "sdk_test.go")
    driver, server = folder / "driver", folder / "server"
    await _run("go", "test", "-c", "-o", str(driver), "./chargehand/", cwd=copy)
    await _run("go", "build", "-o", str(server), "./cmd/server", cwd=copy)
    return driver, server


async def _run(*command: str, cwd: Path | None = None, told: Streams | None = None) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env=os.environ | dict(told or {}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = (await process.communicate())[0].decode()
    if process.returncode:
        raise RuntimeError(f"{command[0]} failed: {said[-2000:]}")
    return said


async def _cycles(driver: Path, streams: Streams, batch: int) -> float:
    """Return cycles a second, as the driver counts them."""
    arguments = ("-test.run", "^$", "-test.bench", f"Cycle/batch-{batch}$", "-test.benchtime", f"{CYCLES[batch]}x")
    said = await _run(str(driver), *arguments, told=streams)
    found = re.search(r"([\d.]+) cycles/s", said)
    if found is None:
        raise RuntimeError(f"the driver measured nothing: {said[-2000:]}")
    return float(found[1])


@asynccontextmanager
async def _ours(bench: Bench) -> AsyncIterator[Streams]:
    listen = f"127.0.0.1:{_free_port()}"
    tokens = [
        {"name": "producer", "hash": hash_token(TOKEN + "-producer"), "scopes": ["codeq:produce"]},
        {"name": "worker", "hash": hash_token(TOKEN + "-worker"), "scopes": WORKER_SCOPES},
    ]
    async with bench.server(tasks__grpc_listen=listen, auth__tokens=tokens):
        yield _told(listen, listen)


@asynccontextmanager
async def _codeq(server: Path, data: Path) -> AsyncIterator[Streams]:
    http, workers, producers = (f"127.0.0.1:{_free_port()}" for _ in range(3))
    settings = {
        "PORT": http.rpartition(":")[2],
        "ENV": "dev",
        "GIN_MODE": "release",
        "LOG_LEVEL": "error",
        "PERSISTENCE_PROVIDER": "pebble",
        "PERSISTENCE_CONFIG": json.dumps({"path": str(data), "fsyncOnCommit": True}),
        "WORKER_STREAM_ADDR": workers,
        "PRODUCER_STREAM_ADDR": producers,
        "PRODUCER_AUTH_PROVIDER": "static",
        "PRODUCER_AUTH_CONFIG": json.dumps({"token": TOKEN + "-producer", "subject": "p", "raw": {"tenantId": "bench-tenant"}}),
        "WORKER_AUTH_PROVIDER": "static",
        "WORKER_AUTH_CONFIG": json.dumps(
            {"token": TOKEN + "-worker", "subject": "w", "scopes": WORKER_SCOPES, "eventTypes": ["*"], "raw": {"tenantId": "bench-tenant"}}
        ),
    }  # fmt: skip
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(str(server), env=os.environ | settings, stdout=quiet, stderr=quiet)
    try:
        for address in (workers, producers):
            await _listening(address)
        yield _told(producers, workers)
    finally:
        process.terminate()
        await process.wait()


def _told(producers: str, workers: str) -> Streams:
    return {
        "CHARGEHAND_GRPC": producers,
        "CHARGEHAND_GRPC_WORKER": workers,
        "CHARGEHAND_PRODUCER_TOKEN": TOKEN + "-producer",
        "CHARGEHAND_WORKER_TOKEN": TOKEN + "-worker",
    }


async def _listening(address: str) -> None:
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
