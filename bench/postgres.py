"""PostgreSQL beside SQLite in the same run."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from bench import work
from bench.bench import Bench
from bench.client import connected
from bench.jobs import CONNECTIONS
from bench.report import Row, Sample, Target, compared_rates
from bench.stores import postgres_stores, sqlite_stores

WORKS = {"accept": (64, work.submit), "cycle": (CONNECTIONS, work.cycle)}


async def both_stores(bench: Bench) -> AsyncIterator[Row]:
    """The same work on PostgreSQL and on SQLite; they take turns."""
    runs: dict[tuple[str, str], list[Sample]] = {}
    with sqlite_stores() as sqlite, postgres_stores() as postgres:
        async with AsyncExitStack() as stack:
            both = {
                "SQLite": Bench(sqlite, bench.scale, bench.say),
                "PostgreSQL": Bench(postgres, bench.scale, bench.say),
            }
            servers = {name: await stack.enter_async_context(each.server()) for name, each in both.items()}
            for turn in range(bench.scale.rounds + 1):
                for name, server in servers.items():
                    for what, (connections, does) in WORKS.items():
                        async with connected(server.url, connections) as opened:
                            sample = await server.run(opened, does, seconds=bench.scale.seconds)
                        if turn:  # the first warms up
                            runs.setdefault((what, name), []).append(bench.said(f"{what}, {name}", sample))
    for what, (connections, _) in WORKS.items():
        measured, baseline = runs[what, "PostgreSQL"], runs[what, "SQLite"]
        yield compared_rates(f"{what}, PostgreSQL / SQLite, {connections}", measured, baseline, Target("≥", 0.7))
