"""Jobs: submit, claim, and the whole cycle."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median

from bench import work
from bench.bench import Bench
from bench.client import connected
from bench.processes import Server
from bench.report import Row, Sample, Target, at, compared_rates, megabytes, rates
from bench.stores import fill

CONNECTIONS = 32  # of many workers
DELAY_SECONDS = 86_400.0


async def accept(bench: Bench) -> AsyncIterator[Row]:
    """A durable submission against an empty handler on the same server."""
    async with bench.server() as server:
        for connections, target in ((64, Target("≥", 0.5)), (1, None)):
            runs = await bench.rounds(server, connections, empty=work.do_nothing, submit=work.submit)
            yield compared_rates(f"accept, {at(connections)}", runs["submit"], runs["empty"], target)


async def cycle(bench: Bench) -> AsyncIterator[Row]:
    """submit -> claim -> succeed."""
    async with bench.server() as server:
        for connections in (CONNECTIONS, 1):
            runs = await bench.rounds(server, connections, cycle=work.cycle)
            yield rates(f"cycle, {at(connections)}", runs["cycle"])


async def claim(bench: Bench) -> AsyncIterator[Row]:
    """claim -> succeed out of a short queue, a long one, and one with a long tail of delayed jobs; the servers take turns."""
    few, many = bench.scale.few, bench.scale.many
    queues = {f"{few:,} queued": (few, 0), f"{many:,} queued": (many, 0), f"{many:,} delayed": (few, many)}
    runs: dict[tuple[str, int], list[Sample]] = {}
    async with AsyncExitStack() as stack:
        servers = {name: await stack.enter_async_context(_filled(bench, *jobs)) for name, jobs in queues.items()}
        for _ in range(bench.scale.rounds):
            for name, server in servers.items():
                for connections, share in ((1, 0.3), (CONNECTIONS, 0.6)):
                    async with connected(server.url, connections) as opened:
                        sample = await server.run(opened, work.claim_and_succeed, count=int(few * share))
                        await server.run(opened, work.submit, count=int(few * share))
                    bench.said(f"claim of {name}, {at(connections)}", sample)
                    runs.setdefault((name, connections), []).append(sample)
        memory = {name: sum(server.peak_bytes()) for name, server in servers.items()}
    [short, *long] = queues
    for name in long:
        for connections in (1, CONNECTIONS):
            label = f"claim of {name}, {at(connections)}"
            yield _compared_times(label, runs[name, connections], runs[short, connections])
        yield Row(measurement=f"memory with {name}", value=megabytes(memory[name]), unit="MB", target=Target("<", 200))


@asynccontextmanager
async def _filled(bench: Bench, ready: int, delayed: int) -> AsyncIterator[Server]:
    url = await bench.stores.create()
    await fill(url, delayed, DELAY_SECONDS)
    await fill(url, ready)
    await bench.stores.tidy(url)
    async with bench.server(url) as server:
        yield server


def _compared_times(label: str, samples: list[Sample], baseline: list[Sample]) -> Row:
    """Compare the mean time of an operation, which with one connection is its latency."""
    return Row(
        measurement=label,
        value=median(1e3 / s.rate for s in samples),
        unit="ms",
        baseline=median(1e3 / s.rate for s in baseline),
        ratio=median(b.rate / s.rate for s, b in zip(samples, baseline, strict=True)),
        target=Target("≤", 1.5),
        samples={"measured": samples, "baseline": baseline},
    )
