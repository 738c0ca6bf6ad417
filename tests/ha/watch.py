"""When the database took writes: a client of its own at each member, which tries all the time."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

import asyncpg

EVERY_SECONDS = 0.1
_COMMIT = "CREATE TABLE IF NOT EXISTS watched (); INSERT INTO watched DEFAULT VALUES"
_REFUSED = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


@contextlib.asynccontextmanager
async def watching(urls: Sequence[str]) -> AsyncIterator[list[float]]:
    """Yield a list to which the time of each commit is added that any member acknowledged."""
    commits: list[float] = []
    watches = [asyncio.create_task(_watch(url, commits)) for url in urls]
    try:
        yield commits
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


async def _watch(url: str, commits: list[float]) -> None:
    while True:
        with contextlib.suppress(*_REFUSED):
            connection = await asyncpg.connect(url)
            try:
                await _commit(connection, commits)
            finally:
                connection.terminate()
        await asyncio.sleep(EVERY_SECONDS)


async def _commit(connection: "asyncpg.Connection[asyncpg.Record]", commits: list[float]) -> None:
    """Commit again and again, without a limit of time: one that is frozen, or waits for a standby, goes on in its time."""
    while True:
        if not await connection.fetchval("SELECT pg_is_in_recovery()"):
            await connection.execute(_COMMIT)
            commits.append(time.time())
        await asyncio.sleep(EVERY_SECONDS)
