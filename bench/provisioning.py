"""The provisioning door: many machines report within a few seconds to a server that runs a job for each of them."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.bench import Bench
from bench.bmc import serial
from bench.client import Answer, Connection, connected, request
from bench.pace import Due, evenly, paced
from bench.processes import Server, running
from bench.report import Row, Sample, Target, at

RATE = 200.0  # reports a second, and as many progress reports
CONNECTIONS = 64
PATIENCE_SECONDS = 600.0
LOOK_SECONDS = 0.05
SECRET = "what machines of the benchmark know"
IMAGE = b"of the maintenance system nothing is read here" * 1_000
RECIPE: dict[str, Any] = {
    "task_target": "install-linux.target",
    "target_disk": "/dev/vda",
    "wipe": True,
    "oci_url": "127.0.0.1:5000/os-images/debian:12",
    "partition_layout": [
        {"size": "512M", "type_guid": "ef00", "format": "vfat", "label": "ESP", "mountpoint": "/boot/efi"},
        {"size": "100%", "type_guid": "8300", "format": "ext4", "label": "root", "mountpoint": "/"},
    ],
    "user_data": "#cloud-config\nhostname: bench\n",
}


class Run(NamedTuple):
    sample: Sample
    worst: float


class Fleet(NamedTuple):
    server: Server
    connections: list[Connection]
    bmcs: list[str]
    counter: Connection  # to a BMC

    async def register(self) -> None:
        bodies = [{"bmc_address": url, "bmc_username": "bench", "bmc_password": "bench"} for url in self.bmcs]
        puts = [_json("PUT", f"/api/v1/servers/{serial(n)}", body) for n, body in enumerate(bodies)]
        await self._all(puts, 200)

    async def begin(self) -> float:
        """Submit a job for each server and wait until all of them wait for their machine's report; return the seconds."""
        expected = await self.resets() + len(self.bmcs)
        began = time.perf_counter()
        asked = [{"server_serial": serial(n), "recipe": RECIPE} for n in range(len(self.bmcs))]
        jobs = await self._all([_json("POST", "/api/v1/jobs", each) for each in asked], 202)
        await self._until_reset(expected)
        for job in jobs:
            await self._until_job(job["job_id"], lambda job: "webhook.wait" in job["deadlines"])
        return time.perf_counter() - began

    async def end(self, expected: int) -> None:
        """Wait until every job is complete: each machine was reset a second time."""
        await self._until_reset(expected)
        for number in range(len(self.bmcs)):
            page = _decoded(await self._ask(f"/api/v1/jobs?server_serial={serial(number)}&limit=1"))
            job = await self._until_job(page["jobs"][0]["job_id"], lambda job: job["status"] == "complete")
            if job["outcome"] != "succeeded":
                raise RuntimeError(f"a job ended otherwise: {job}")

    async def run(self, dues: Sequence[Due]) -> tuple[Run, list[Answer]]:
        before = self.server.cpu()
        load, answers = await paced(self.connections, dues)
        sample = self.server.sample(before, len(dues), load.seconds, load.latencies, load.client_cpu)
        return Run(sample, max(load.latencies)), answers

    async def _all(self, requests: Sequence[bytes], status: int) -> list[Any]:
        """Send on all connections, each as fast as it is answered."""
        left, answers = iter(list(enumerate(requests))), dict[int, Any]()

        async def on(connection: Connection) -> None:
            for number, each in left:
                answers[number] = _decoded(await connection.expect(each, status))

        await asyncio.gather(*map(on, self.connections))
        return [answers[number] for number in range(len(requests))]

    async def _until_job(self, job_id: str, so: Callable[[Any], bool]) -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                if so(job := _decoded(await self._ask(f"/api/v1/jobs/{job_id}"))):
                    return job
                await asyncio.sleep(LOOK_SECONDS)

    async def _ask(self, path: str) -> Answer:
        return await self.connections[0].expect(request("GET", path), 200)

    async def resets(self) -> int:
        return int((await self.counter.expect(request("GET", "/count"), 200)).body)

    async def _until_reset(self, count: int) -> None:
        """Poll the BMCs and not the server, which is busy."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                if await self.resets() >= count:
                    return
                await asyncio.sleep(LOOK_SECONDS)


async def status_webhooks(bench: Bench) -> AsyncIterator[Row]:
    """Send each machine's report of success at its time, and once more, as a sender does that got no answer."""
    count = bench.scale.machines
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=bench.stores.folder)))
        (folder / "maintenance.iso").write_bytes(IMAGE)
        server = await stack.enter_async_context(
            bench.server(
                provisioning__maintenance_iso=str(folder / "maintenance.iso"),
                provisioning__webhook_secret=SECRET,
                provisioning__key="a key of the benchmark, of 32 bytes and more",
            )
        )
        _, bmcs = await stack.enter_async_context(running("bmc", str(count)))
        connections = await stack.enter_async_context(connected(server.url, CONNECTIONS))
        [counter] = await stack.enter_async_context(connected(bmcs[0], 1))
        fleet = Fleet(server, connections, bmcs, counter)
        await fleet.register()
        empty, _ = await fleet.run(evenly(RATE, [_post("/bench/empty", {"status": "success"})] * count, 202))
        bench.said("empty handler", empty.sample)
        for number, (name, progress) in enumerate((("reports", False), ("reports and progress", True))):
            seconds = await fleet.begin()
            bench.say(f"  {count:,} jobs wait after {seconds:.1f} s")
            if not number:
                yield Row(measurement=f"{count:,} jobs, submitted until they wait", value=count / seconds, unit="/s")
            resets = await fleet.resets() + count
            runs = await _reported(fleet, progress)
            label = f"status webhooks, {RATE:g}/s{' and progress' if progress else ''}, {at(CONNECTIONS)}"
            for what, run in runs.items():
                bench.said(f"{name}: {what}", run.sample)
                for row in _rows(f"{label}: {what}", run, empty):
                    yield row
            ended = time.perf_counter()
            await fleet.end(resets)
            bench.say(f"  all complete {time.perf_counter() - ended:.1f} s later")


async def _reported(fleet: Fleet, progress: bool) -> dict[str, Run]:
    count, stamp = len(fleet.bmcs), time.time_ns()
    reports = [
        _post(f"/api/v1/status-webhook/{serial(n)}", {"status": "success", "delivery_id": f"{stamp}-{n}"})
        for n in range(count)
    ]
    first = evenly(RATE, reports, 200)
    # From the machines that report last, because an ended job refuses progress. Each is sent between two reports.
    late = [_progress(number) for number in range(count // 2, count)]
    meanwhile = evenly(RATE, late, 200, 0.5 / RATE) if progress else []
    runs = {}
    for what, dues, duplicate in (("first", [*first, *meanwhile], False), ("repeated", first, True)):
        runs[what], answers = await fleet.run(dues)
        told = [answer.get("duplicate", duplicate) for answer in map(_decoded, answers)]
        if set(told) != {duplicate}:
            raise RuntimeError(f"{told.count(not duplicate)} of {len(told)} reports were taken for what they are not")
    return runs


def _rows(label: str, run: Run, empty: Run) -> list[Row]:
    samples: dict[str, Sequence[Sample]] = {"measured": [run.sample], "baseline": [empty.sample]}
    times = {
        "p50": (run.sample.p50, empty.sample.p50),
        "p99": (run.sample.p99, empty.sample.p99),
        "max": (run.worst, empty.worst),
    }
    return [
        Row(
            measurement=f"{label}, {name}",
            value=mine * 1e3,
            unit="ms",
            baseline=theirs * 1e3,
            ratio=None if name == "p99" else mine / theirs,
            target=Target("≤", 50) if name == "p99" else None,
            samples=samples if name == "p99" else {},
        )
        for name, (mine, theirs) in times.items()
    ]


def _progress(number: int) -> bytes:
    said = {"step": "image-linux.service", "percent": 50, "message": "writing", "boot_id": f"boot-{number}"}
    return _post(f"/api/v1/status-webhook/{serial(number)}/progress", said)


def _post(path: str, body: Any) -> bytes:
    """Build the request of a machine; the empty handler needs a token."""
    if not path.startswith("/api"):
        return _json("POST", path, body)
    data = msgspec.json.encode(body)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nx-webhook-secret: {SECRET}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


def _json(method: str, path: str, body: Any) -> bytes:
    return request(method, path, msgspec.json.encode(body))


def _decoded(answer: Answer) -> Any:
    return msgspec.json.decode(answer.body)
