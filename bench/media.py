"""Media: a large file as a BMC fetches it, beside nginx, which sends it by the kernel (sendfile) without copying it."""

import asyncio
import os
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import msgspec

from bench.bench import Bench
from bench.processes import Server, running
from bench.report import Row, Sample, Target, at, megabytes

SIZE = 256 << 20
CONNECTIONS = (1, 8)
FETCHES = 8  # in one run, on all connections together: a single fetch is too short to be measured
BUFFER_BYTES = 1 << 20
PATIENCE_SECONDS = 10.0

NGINX = """
daemon off; master_process off; worker_processes 1; pid nginx.pid; error_log stderr;
events {{ worker_connections 64; }}
http {{
  access_log off; sendfile on; tcp_nopush on; default_type application/octet-stream;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  server {{ listen 127.0.0.1:{port}; root .; }}
}}
"""


async def media(bench: Bench) -> AsyncIterator[Row]:
    with tempfile.TemporaryDirectory(dir=bench.stores.folder) as folder:
        file = Path(folder) / "medium.iso"
        await asyncio.to_thread(_write, file)
        store_url = await bench.stores.create()
        async with running("media_server", str(file), store_url, folder) as (pid, [url]), _nginx(file) as beside:
            ours = Server(url, pid, bench.stores.database)
            if beside is None:
                bench.say("  nginx is not installed: no ratio")
            for connections in CONNECTIONS:
                samples: dict[str, list[Sample]] = {}
                for number in range(bench.scale.rounds + 1):
                    for name, server in (("chargehand", ours), ("nginx", beside)):
                        if server is not None:
                            sample = await _fetch(server, connections)
                            if number:  # the first run is the warm-up
                                said = bench.said(f"{name}, {at(connections)}", sample)
                                samples.setdefault(name, []).append(said)
                for row in _rows(connections, samples["chargehand"], samples.get("nginx")):
                    yield row


def _rows(connections: int, ours: list[Sample], nginx: list[Sample] | None) -> list[Row]:
    def row(what: str, unit: str, mine: list[float], theirs: list[float], target: Target | None = None) -> Row:
        return Row(
            measurement=f"media, {at(connections)}: {what}",
            value=median(mine),
            unit=unit,
            baseline=median(theirs) if theirs else None,
            ratio=median(one / other for one, other in zip(mine, theirs, strict=True)) if theirs else None,
            target=target if theirs else None,
            samples={"measured": ours, **({"baseline": nginx} if nginx else {})},
        )

    return [
        row("beside nginx's sendfile", "MB/s", _rates(ours), _rates(nginx), Target("≥", 0.7)),
        row("CPU beside nginx's sendfile", "ms/GB", _costs(ours), _costs(nginx)),
    ]


def _rates(samples: list[Sample] | None) -> list[float]:
    return [megabytes(sample.received_bytes / sample.seconds) for sample in samples or ()]


def _costs(samples: list[Sample] | None) -> list[float]:
    return [sample.server_cpu / sample.received_bytes * 1e12 for sample in samples or ()]


async def _fetch(server: Server, connections: int) -> Sample:
    """Fetch the file repeatedly, each connection in its own thread: as fast as a client can be."""
    cpu, began, own = server.cpu(), time.perf_counter(), time.process_time()
    each = [asyncio.to_thread(_downloads, server.url, FETCHES // connections) for _ in range(connections)]
    taken = [seconds for some in await asyncio.gather(*each) for seconds in some]
    seconds = time.perf_counter() - began
    sample = server.sample(cpu, FETCHES, seconds, taken, time.process_time() - own)
    return msgspec.structs.replace(sample, received_bytes=FETCHES * SIZE)


def _downloads(url: str, count: int) -> list[float]:
    return [_download(url) for _ in range(count)]


def _download(url: str) -> float:
    parts = urlsplit(url)
    began, received = time.perf_counter(), 0
    buffer = memoryview(bytearray(BUFFER_BYTES))
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n".encode())
        while count := connection.recv_into(buffer):
            received += count
    if received < SIZE:
        raise RuntimeError(f"{url} was sent only in part")
    return time.perf_counter() - began


def _write(file: Path) -> None:
    with file.open("wb") as writing:
        for _ in range(SIZE // BUFFER_BYTES):
            writing.write(os.urandom(BUFFER_BYTES))


@asynccontextmanager
async def _nginx(file: Path) -> AsyncIterator[Server | None]:
    """Start nginx with one process, like our server; None if it is not installed."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        yield None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = file.parent / "nginx.conf"
    settings.write_text(NGINX.format(port=port))
    process = await asyncio.create_subprocess_exec(
        found, "-p", str(file.parent), "-c", str(settings), "-e", "stderr", stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await _listens(process, port)
        yield Server(f"http://127.0.0.1:{port}/{file.name}", process.pid, None)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _listens(process: asyncio.subprocess.Process, port: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if process.returncode is not None:
                raise RuntimeError(f"nginx ended with {process.returncode}")
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                await writer.wait_closed()
                return
