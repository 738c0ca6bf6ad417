"""Examine a store without changing it: no migration, no writer, no lock. For `chargehand doctor`."""

import asyncio
from functools import partial
from typing import NamedTuple

import apsw
import asyncpg

from chargehand.errors import StoreCorrupt, StoreError, StoreUnavailable
from chargehand.store.postgres.connecting import require_session
from chargehand.store.postgres.store import translated
from chargehand.store.queries import load_migrations, load_queries
from chargehand.store.sqlite.store import sqlite_path

PATIENCE_SECONDS = 5.0


class Checkup(NamedTuple):
    schema: int | None  # None: there is nothing yet
    newest_schema: int  # that this version knows
    newest_job: str | None = None
    now: int | None = None  # by the database's own clock, where it has one, in microseconds
    oldest_schema: int = 0  # the oldest version that may work on a newer schema than ours


async def look(url: str) -> Checkup:
    """Raise a StoreError that says what is wrong."""
    return await asyncio.to_thread(_sqlite, url) if url.startswith("sqlite:") else await _postgres(url)


def _sqlite(url: str) -> Checkup:
    path, newest = sqlite_path(url), load_migrations("sqlite")[-1].version
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return Checkup(None, newest)
    except OSError as error:  # such as a folder of somebody else's
        raise StoreUnavailable(f"SQLite: {path}: {error.strerror}") from None
    queries = load_queries("sqlite")
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            connection.set_busy_timeout(round(PATIENCE_SECONDS * 1000))
            [(version,)] = connection.execute(queries["schema_version"].sql)
            [(newest_job,)] = connection.execute(queries["newest_job"].sql)
            [(_, oldest)] = connection.execute(queries["schema"].sql) if version > newest else [(version, 0)]
        finally:
            connection.close()
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise StoreCorrupt(f"SQLite: {path}: {error}") from None
    except apsw.SQLError as error:
        raise StoreError(f"SQLite: {path} is not Chargehand's: {error}") from None
    except apsw.Error as error:
        raise StoreUnavailable(f"SQLite: {path}: {error}") from None
    return Checkup(version, newest, newest_job, oldest_schema=oldest)


async def _postgres(url: str) -> Checkup:
    newest, queries = load_migrations("postgres")[-1].version, load_queries("postgres")
    try:
        with translated():
            connect = partial(asyncpg.connect, url, timeout=PATIENCE_SECONDS, command_timeout=PATIENCE_SECONDS)
            connection = await connect()
            try:
                await require_session(connection, connect)
                now = await connection.fetchval(queries["now"].sql, None)
                try:
                    version = await connection.fetchval(queries["schema_version"].sql)
                    newest_job = await connection.fetchval(queries["newest_job"].sql)
                    oldest = await connection.fetchval(queries["schema"].sql, column=1) if version > newest else 0
                except asyncpg.UndefinedTableError:
                    return Checkup(None, newest, now=now)
            finally:
                await connection.close(timeout=PATIENCE_SECONDS)
    except TimeoutError:
        raise StoreUnavailable(f"PostgreSQL: no answer within {PATIENCE_SECONDS:g} s") from None
    except ValueError:
        # Without the driver's text: where it cannot parse the URL, it quotes the password.
        raise StoreUnavailable("PostgreSQL: store.url cannot be understood") from None
    return Checkup(version, newest, newest_job, now, oldest)
