"""The parameters of every measurement: how much to do, servers to measure, and a function that prints progress."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.client import Work, connected
from bench.processes import Server, running
from bench.report import Sample, at
from bench.stores import Stores
from bench.tasks_client import Wire

WARM_UP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Scale:
    rounds: int
    seconds: float  # of one run
    deliveries: int
    delivery_rounds: int
    few: int  # jobs in a short queue
    many: int  # jobs in a long one
    waiters: int
    idle_seconds: float
    wakeups: int
    tries: int  # of each setting of a peer, before it is measured with the best
    machines: int  # with a job each
    finished: int  # jobs in an old database
    cycles: int  # after which tables are measured


FULL = Scale(5, 3.0, 20_000, 3, 1_000, 1_000_000, 1_000, 10.0, 200, 3, 1_000, 10_000_000, 1_000_000)
QUICK = Scale(1, 1.0, 4_000, 1, 1_000, 20_000, 200, 2.0, 50, 1, 50, 100_000, 5_000)


@dataclass(frozen=True, slots=True)
class Bench:
    stores: Stores
    scale: Scale
    say: Callable[[str], None]
    peer: Wire | None = None  # the URL of another server with the API of the tasks door
    kept: Path | None = None  # where the databases of growth stay from run to run
    codeq: Path | None = None  # codeQ's source

    @asynccontextmanager
    async def server(self, store_url: str | None = None, **settings: Any) -> AsyncIterator[Server]:
        """Start a server. In the names of `settings` two underscores stand for a dot."""
        store_url = store_url or await self.stores.create()
        given = msgspec.json.encode({name.replace("__", "."): value for name, value in settings.items()}).decode()
        async with running("server", store_url, str(self.stores.folder), given) as (pid, [url]):
            yield Server(url, pid, self.stores.database)

    def said(self, name: str, sample: Sample) -> Sample:
        self.say(f"  {name:<42}{sample}")
        return sample

    async def rounds(self, server: Server, connections: int, **works: Work) -> dict[str, list[Sample]]:
        """Run each work in turn, as often as there are rounds."""
        samples: dict[str, list[Sample]] = {name: [] for name in works}
        async with connected(server.url, connections) as opened:
            for work in works.values():
                await server.run(opened, work, seconds=WARM_UP_SECONDS)
            for _ in range(self.scale.rounds):
                for name, work in works.items():
                    sample = await server.run(opened, work, seconds=self.scale.seconds)
                    samples[name].append(self.said(f"{name}, {at(connections)}", sample))
        return samples
