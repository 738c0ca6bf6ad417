"""Starts and ends the processes that are measured, and reads their CPU and memory."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from bench.client import Connection, Work
from bench.report import Sample
from chargehand.commands.bench.load import quantiles, repeat

_TICKS = os.sysconf("SC_CLK_TCK")


class Cpu(NamedTuple):
    """Seconds of CPU used so far."""

    server: float
    store: float
    others: float  # CPU of other programs on the machine: the noise in a measurement

    def since(self, before: "Cpu") -> "Cpu":
        return Cpu(*[now - then for now, then in zip(self, before, strict=True)])


class Server(NamedTuple):
    """A server under measurement."""

    url: str
    pid: int
    database: int | None  # the parent process of PostgreSQL; SQLite's writer descends from the server

    def cpu(self) -> Cpu:
        return Cpu(sum(_times(self.pid)[:2]), sum(map(_all_times, self._store())), others_cpu(self.database))

    def _store(self) -> list[int]:
        return descendants(self.pid) if self.database is None else [self.database, *descendants(self.database)]

    def peak_bytes(self) -> tuple[int, int]:
        """Return the peaks of the server and of its writer; 0 for PostgreSQL, whose processes share memory."""
        return _peak(self.pid), sum(map(_peak, self._store())) if self.database is None else 0

    async def run(
        self,
        connections: list[Connection],
        work: Work,
        *,
        seconds: float = 3600.0,
        count: int | None = None,
        spread_seconds: float = 0.0,
    ) -> Sample:
        before = self.cpu()
        load = await repeat(connections, work, seconds=seconds, count=count, spread_seconds=spread_seconds)
        return self.sample(before, len(load.latencies), load.seconds, load.latencies, load.client_cpu)

    def sample(
        self, before: Cpu, operations: int, seconds: float, latencies: Sequence[float], client_cpu: float = 0.0
    ) -> Sample:
        cpu = self.cpu().since(before)
        return Sample(
            operations,
            seconds,
            *quantiles(latencies),
            cpu.server,
            cpu.store,
            client_cpu,
            cpu.others,
            *self.peak_bytes(),
        )


@asynccontextmanager
async def running(module: str, *arguments: str) -> AsyncIterator[tuple[int, list[str]]]:
    """Run a module of this benchmark as a process; yield its id and the URLs that it printed."""
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", f"bench.{module}", *arguments],
        stdin=asyncio.subprocess.PIPE,  # ends when this process ends, however it ends
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        urls = (await process.stdout.readline()).decode().split()
        if not urls:
            raise RuntimeError(f"bench.{module} did not start")
        yield process.pid, urls
    finally:
        if process.returncode is None:
            process.kill()  # no drain: it would wait for webhooks to a dead endpoint
        await process.wait()


async def output(module: str, *arguments: str) -> bytes:
    """Run a module of this benchmark to its end; return what it printed."""
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", f"bench.{module}", *arguments], stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"bench.{module} ended with {process.returncode}")
    return printed


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and (parent := _stat(int(each.name))):
            children.setdefault(int(parent[1]), []).append(int(each.name))
    found = list(children.get(pid, ()))
    for child in found:
        found += children.get(child, ())
    return found


def listener(port: int) -> int | None:
    """Return the process that listens on this port, if we may inspect it."""
    table = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    sockets = {f"socket:[{row[9]}]" for row in table if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    for opened in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # the process has ended, or belongs to another user
            if os.readlink(opened) in sockets:
                return int(opened.parts[2])
    return None


def others_cpu(database: int | None) -> float:
    """Seconds used by all processes but this one, those it started, and the database server."""
    busy = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    idle = int(busy[3]) + int(busy[4])
    ours = [root for root in (os.getpid(), database) if root is not None]
    ours += [pid for root in ours for pid in descendants(root)]
    return (sum(map(int, busy)) - idle) / _TICKS - sum(map(_all_times, ours))


def _all_times(pid: int) -> float:
    return sum(_times(pid))


def _times(pid: int) -> list[float]:
    """Seconds of CPU: user, system, and the same of children that have ended."""
    return [int(ticks) / _TICKS for ticks in _stat(pid)[11:15]]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/…/stat from the state on; none if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _peak(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
