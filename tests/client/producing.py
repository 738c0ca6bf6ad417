"""A producer with a table of its own: it adds an order and a task in one transaction, by the way that its first argument names.

For each line of its stdin it begins one, and prints the task's id. Then it ends it as the line says: `commit`, `rollback`, or `hang`:
not at all.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from chargehand.client.postgres import submit_task, submit_task_async

ORDER = "INSERT INTO orders DEFAULT VALUES"
COMMAND, PAYLOAD = "Pack", {"order": "fünf", "weight": 1.5}


class RollBack(Exception):
    pass


def ended(task_id: str, end: str) -> None:
    print(task_id, flush=True)
    if end == "rollback":
        raise RollBack
    if end == "hang":
        sys.stdin.readline()


def psycopg(url: str, end: str) -> None:
    import psycopg
    from psycopg.rows import dict_row

    with psycopg.connect(url, row_factory=dict_row) as connection:
        connection.execute(ORDER)
        ended(submit_task(connection, COMMAND, PAYLOAD), end)


def django(url: str, end: str) -> None:
    from django.conf import settings
    from django.db import connection, transaction

    address, _, host = url.partition("?host=")
    name = address.rpartition("/")[2]
    if not settings.configured:
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": "postgres", "HOST": host}
        settings.configure(DATABASES={"default": database})
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(ORDER)
        ended(submit_task(connection, COMMAND, PAYLOAD), end)


def sqlalchemy(url: str, end: str) -> None:
    from sqlalchemy import create_engine, text

    with create_engine(url.replace(":", "+psycopg:", 1)).begin() as connection:
        connection.execute(text(ORDER))
        ended(submit_task(connection, COMMAND, PAYLOAD), end)


def session(url: str, end: str) -> None:
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import Session

    with Session(create_engine(url.replace(":", "+psycopg:", 1))) as session, session.begin():
        session.execute(text(ORDER))
        ended(submit_task(session, COMMAND, PAYLOAD), end)


async def asyncpg(url: str, end: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        await connection.set_type_codec(
            "json", schema="pg_catalog", encoder=repr, decoder=repr
        )  # as some applications do
        async with connection.transaction():
            await connection.execute(ORDER)
            ended(await submit_task_async(connection, COMMAND, PAYLOAD), end)
    finally:
        await connection.close()


async def asyncpg_pool(url: str, end: str) -> None:
    import asyncpg

    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection, connection.transaction():
        await connection.execute(ORDER)
        ended(await submit_task_async(connection, COMMAND, PAYLOAD), end)


async def async_psycopg(url: str, end: str) -> None:
    from psycopg import AsyncConnection

    async with await AsyncConnection.connect(url) as connection:
        await connection.execute(ORDER)
        ended(await submit_task_async(connection, COMMAND, PAYLOAD), end)


async def async_sqlalchemy(url: str, end: str) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine

    async with create_async_engine(url.replace(":", "+asyncpg:", 1)).begin() as connection:
        await connection.execute(text(ORDER))
        ended(await submit_task_async(connection, COMMAND, PAYLOAD), end)


async def async_session(url: str, end: str) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async with AsyncSession(create_async_engine(url.replace(":", "+psycopg:", 1))) as session, session.begin():
        await session.execute(text(ORDER))
        ended(await submit_task_async(session, COMMAND, PAYLOAD), end)


WAYS: dict[str, Callable[[str, str], Any]] = {
    each.__name__: each
    for each in (
        psycopg, django, sqlalchemy, session, asyncpg, asyncpg_pool, async_psycopg, async_sqlalchemy, async_session
    )
}  # fmt: skip


async def finished(doing: Awaitable[None]) -> None:
    await doing


def main(way: str, url: str) -> None:
    for line in sys.stdin:
        try:
            doing = WAYS[way](url, line.strip())
            if doing is not None:
                asyncio.run(finished(doing))
        except RollBack:
            pass
        print("ended", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
