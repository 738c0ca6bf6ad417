"""The inference door: what it adds to a stream, taking jobs in, going on when a target is back, and swapping models rarely."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from statistics import median
from typing import Any, NamedTuple

import msgspec

from bench import work
from bench.bench import WARM_UP_SECONDS, Bench
from bench.client import Connection, Unexpected, connected, request
from bench.processes import Server, running
from bench.report import Row, Sample, Target, at, compared_rates
from chargehand.commands.bench.load import quantiles
from tests.inference.conformance import Habits, Model, OllamaTarget

TOKENS = 64
PARALLEL = 64  # more than there are connections, so that the target is not the limit
PARKED = 20
ALTERNATING = 20
CAP_SECONDS = 10.0
PATIENCE_SECONDS = 60.0


def generating(model: str) -> bytes:
    return msgspec.json.encode({"model": model, "prompt": "x" * 250})


_generate = request("POST", "/api/generate", generating("a"))
_submit = {model: request("POST", "/jobs", generating(model)) for model in "ab"}


# passing through ------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    label: str
    connections: int
    token_seconds: float
    spread_seconds: float = 0.0  # independent callers do not begin at the same time
    longer: int = 1  # factor of the duration: one connection makes few streams
    first: tuple[Target, Target] | None = None  # targets for the time added to the first byte, in ms: p50, p99
    throughput: Target | None = None


PACED = 0.005  # a token: a small model on a fast machine
FIRST = (Target("≤", 3), Target("≤", 15))
CASES = (
    Case(at(1), 1, PACED, longer=3, first=FIRST),
    Case(at(32), 32, PACED, TOKENS * PACED, first=FIRST, throughput=Target("≥", 0.8)),
    Case("32 at once", 32, PACED),
    Case(f"{at(1)}, flat out", 1, 0.0),
    Case(f"{at(32)}, flat out", 32, 0.0),
)


class Streams:
    """The work of one run, and the times that it measured."""

    def __init__(self) -> None:
        self.first_seconds: list[float] = []
        self.received_bytes = 0

    async def __call__(self, connection: Connection) -> None:
        began = time.perf_counter()
        first_at, received = await connection.stream(_generate)
        if b'"done":true' not in received:
            raise Unexpected(f"a stream broke off: {received[-500:]!r}")
        self.first_seconds.append(first_at - began)
        self.received_bytes += len(received)


async def passthrough(bench: Bench) -> AsyncIterator[Row]:
    """Measure a stream from a target directly, and the same one through the server."""
    for case in CASES:
        async with (
            running("target", "0", str(TOKENS), str(case.token_seconds), str(PARALLEL)) as (pid, [url]),
            bench.server(inference__targets=[{"url": url, "parallel": PARALLEL}]) as server,
        ):
            for row in await _passed(bench, case, Server(url, pid, None), server):
                yield row


async def _passed(bench: Bench, case: Case, target: Server, server: Server) -> list[Row]:
    ways = {"direct": target, "through": server}
    samples: dict[str, list[Sample]] = {name: [] for name in ways}
    first_seconds: dict[str, list[float]] = {name: [] for name in ways}
    for each in ways.values():
        await _stream(each, case, WARM_UP_SECONDS)
    for _ in range(bench.scale.rounds):
        for name, each in ways.items():
            sample, seconds = await _stream(each, case, bench.scale.seconds * case.longer)
            samples[name].append(bench.said(f"{name}, {case.label}", sample))
            first_seconds[name] += seconds
    label = f"passthrough, {case.label}"
    direct, through = (quantiles(first_seconds[name]) for name in ways)
    firsts = [
        Row(
            measurement=f"{label}: added to the first token, {name}",
            value=(through[index] - direct[index]) * 1e3,
            unit="ms",
            baseline=direct[index] * 1e3,
            target=case.first[index] if case.first else None,
            samples={"measured": samples["through"], "baseline": samples["direct"]},
        )
        for index, name in enumerate(("p50", "p99"))
    ]
    return [*firsts, compared_rates(f"{label}: streams", samples["through"], samples["direct"], case.throughput)]


async def _stream(server: Server, case: Case, seconds: float) -> tuple[Sample, list[float]]:
    streams = Streams()
    async with connected(server.url, case.connections) as opened:
        sample = await server.run(opened, streams, seconds=seconds, spread_seconds=case.spread_seconds)
    p50, p99 = quantiles(streams.first_seconds)
    sample = msgspec.structs.replace(sample, p50=p50, p99=p99, received_bytes=streams.received_bytes)
    return sample, streams.first_seconds


# jobs -----------------------------------------------------------------------------------------------------------------


async def inference_jobs(bench: Bench) -> AsyncIterator[Row]:
    """A durable job against an empty handler on the same server. The target is away, so that no job runs."""
    async with bench.server(inference__targets=[f"http://127.0.0.1:{_free_port()}"]) as server:
        for connections, target in ((64, Target("≥", 0.5)), (1, None)):
            runs = await bench.rounds(server, connections, empty=work.do_nothing, submit=_submit_job)
            yield compared_rates(f"inference jobs, {at(connections)}", runs["submit"], runs["empty"], target)


async def _submit_job(connection: Connection) -> None:
    await connection.expect(_submit["a"], 202)


async def back(bench: Bench) -> AsyncIterator[Row]:
    """Measure from a target that listens again to the first waiting job that runs on it, including the wait for the next probe."""
    port, taken = _free_port(), list[float]()
    away = {"url": f"http://127.0.0.1:{port}", "parallel": PARALLEL}
    rounds = 4 * bench.scale.rounds
    async with bench.server(inference__targets=[away]) as server, connected(server.url, 1) as [caller]:
        for number in range(rounds):
            jobs = await _submitted(caller, "a" * PARKED)
            await _until(caller, f"/jobs/{jobs[-1]}", lambda job: job["waiting_for"] == "target")
            await asyncio.sleep(number / rounds)  # a target that is away is probed every second, so the pause varies
            async with running("target", str(port), "8", "0", str(PARALLEL)):
                began = time.time()
                await _done(caller, jobs)
            taken.append(min([await _working_at(caller, job) for job in jobs]) - began)
            bench.say(f"  {'back to working':<42}{taken[-1] * 1e3:9.0f} ms")
            await _until(caller, "/targets", lambda seen: seen["targets"][0]["state"] == "away")
    label = f"back, {PARKED} parked, with up to 1 s until the next probe"
    yield Row(measurement=f"{label}: to the first working, p50", value=median(taken) * 1e3, unit="ms")
    yield Row(measurement=f"{label}: the longest", value=max(taken) * 1e3, unit="ms")


# swapping -------------------------------------------------------------------------------------------------------------


async def swaps(bench: Bench) -> AsyncIterator[Row]:
    """Jobs for two models in turn, where memory holds one: through the server, and by the target's own queue."""
    async with _one_slot() as target:
        aimed = {"url": target.url, "slots": 1}
        async with (
            bench.server(inference__targets=[aimed], inference__wait_cap_seconds=CAP_SECONDS) as server,
            connected(server.url, 1) as [caller],
        ):
            began = time.monotonic()
            jobs = await _done(caller, await _submitted(caller, "ab" * (ALTERNATING // 2)))
            seconds = time.monotonic() - began
            waits = [await _working_at(caller, job["id"]) - _seconds(job["created_at"]) for job in jobs]
        swapped, longest = len(target.loads) - 1, max(waits)
        bench.say(f"  through: loads {' '.join(target.loads)}   longest wait {longest:.2f} s   all in {seconds:.2f} s")
    async with _one_slot() as target, connected(target.url, ALTERNATING) as connections:
        began = time.monotonic()
        asked = [request("POST", "/api/generate", generating("ab"[number % 2])) for number in range(len(connections))]
        await asyncio.gather(*[connection.stream(each) for connection, each in zip(connections, asked, strict=True)])
        alone, seconds = len(target.loads) - 1, time.monotonic() - began
        bench.say(f"  direct: loads {' '.join(target.loads)}   all in {seconds:.2f} s")
    label = f"swaps, {ALTERNATING} alternating jobs, one slot"
    yield Row(measurement=label, value=swapped, unit="", target=Target("≤", 2))
    yield Row(measurement=f"{label}: by the target alone", value=alone, unit="")
    yield Row(measurement=f"{label}: the longest wait", value=longest, unit="s", target=Target("≤", CAP_SECONDS))


def _one_slot() -> OllamaTarget:
    habits = Habits(tokens=16, token_seconds=PACED, load_seconds=0.5)
    return OllamaTarget({"a": Model(), "b": Model()}, habits, max_loaded=1)


# asking about jobs ----------------------------------------------------------------------------------------------------


async def _submitted(caller: Connection, models: str) -> list[str]:
    answers = [await caller.expect(_submit[model], 202) for model in models]
    return [msgspec.json.decode(answer.body)["job_id"] for answer in answers]


async def _get(caller: Connection, path: str) -> Any:
    return msgspec.json.decode((await caller.expect(request("GET", path), 200)).body)


async def _until(caller: Connection, path: str, so: Callable[[Any], bool]) -> Any:
    """Read until the condition holds; return what was read."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = await _get(caller, path)
            if so(found):
                return found
            await asyncio.sleep(0.02)


async def _done(caller: Connection, jobs: list[str]) -> list[Any]:
    return [await _until(caller, f"/jobs/{job}", lambda job: job["state"] == "done") for job in jobs]


async def _working_at(caller: Connection, job: str) -> float:
    events = (await _get(caller, f"/jobs/{job}/events"))["events"]
    return _seconds(next(event["at"] for event in events if event["state"] == "working"))


def _seconds(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()


def _free_port() -> int:
    """Return a port that refuses connections now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
