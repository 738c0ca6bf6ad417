"""An engine on a store, and waits with a timeout."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Self

from chargehand.config import Config, load_config
from chargehand.engine.chores import Chores, engine_chores
from chargehand.engine.engine import Engine
from chargehand.engine.job import Event, Job
from chargehand.engine.moves import RetryPolicy
from chargehand.engine.queue import Queue
from chargehand.engine.store import Claim, Store
from chargehand.store.postgres.store import PostgresStore
from tests.store.given import a_queue

POLICY = RetryPolicy(backoff_base_seconds=5, backoff_max_seconds=60)
AT_ONCE = 2.0  # seconds, for a busy machine; nothing polls here, so without a wake-up nothing happens at all
LONG = 60.0


class CountingEngine(Engine):
    """Counts how often its claims looked for work."""

    looks = 0

    async def _claim(self, claim: Claim) -> tuple[Job, ...]:
        jobs = await super()._claim(claim)
        self.looks += 1
        return jobs


def an_engine(store: Store, now: Callable[[], int] | None = None) -> CountingEngine:
    if now is None:
        return CountingEngine(store, policy=POLICY, random=Random(0))
    return CountingEngine(store, policy=POLICY, random=Random(0), now=now)


async def claim_one(engine: Engine, queue: str | Queue = "q", lease_seconds: float = 60) -> Job:
    [job] = await engine.claim((a_queue(queue),), "worker", lease_seconds)
    return job


async def claiming(engine: CountingEngine, *queues: str | Queue) -> "asyncio.Task[tuple[Job, ...]]":
    """Return a claim that has found nothing and waits."""
    before = engine.looks
    task = asyncio.create_task(engine.claim(tuple(map(a_queue, queues or ("q",))), "waiter", 60, wait_seconds=LONG))
    await until(lambda: engine.looks > before)
    assert not task.done()
    return task


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)


async def until_met(*stores: Store) -> None:
    """Wait until each of two nodes knows of the other: before that they send no hints."""
    hints = [store._hints for store in stores if isinstance(store, PostgresStore)]
    await until(lambda: all(each._peers for each in hints))


async def event(engine: Engine, job_id: str, move: str, seconds: float = 5.0) -> Event:
    """Wait for the first event of this kind and return it."""
    async with asyncio.timeout(seconds):
        async for each in engine.watch(job_id):
            if each.move == move:
                return each
    raise AssertionError(f"the job ended without {move}")


async def log(engine: Engine, job_id: str) -> list[str]:
    return [each.move for each in await engine.jobs.list_events(job_id)]


@asynccontextmanager
async def kept_up(engine: Engine, **settings: Any) -> AsyncIterator[None]:
    """Run the engine's chores meanwhile."""
    running = asyncio.create_task(Chores(engine_chores(engine, config_with(**settings))).run())
    try:
        yield
    finally:
        await stop(running)


def config_with(**settings: Any) -> Config:
    return load_config(environ={}, overrides={name.replace("__", "."): value for name, value in settings.items()})


async def stop(task: "asyncio.Task[None]") -> None:
    """Check that the task still runs, and cancel it."""
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Cable:
    """A connection between a store and its database that can be cut."""

    def __init__(self, url: str, here: Path) -> None:
        address, _, there = url.partition("?host=")
        self.url = f"{address}?host={here}"
        self._there, self._here = (f"{folder}/.s.PGSQL.5432" for folder in (there, here))
        self._ends: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()

    async def mend(self) -> None:
        self._socket = await asyncio.start_unix_server(self._connect, self._here)

    def cut(self) -> None:
        self._socket.close()
        Path(self._here).unlink(missing_ok=True)  # from Python 3.13 on the socket does that by itself
        for end in self._ends:
            end.close()
        self._ends.clear()

    async def _connect(self, near: asyncio.StreamReader, near_end: asyncio.StreamWriter) -> None:
        far, far_end = await asyncio.open_unix_connection(self._there)
        self._ends += (near_end, far_end)
        await asyncio.gather(self._carry(near, far_end), self._carry(far, near_end))

    async def _carry(self, source: asyncio.StreamReader, end: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                end.write(data)
        end.close()
