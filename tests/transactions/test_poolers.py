"""A pooler between producers and the database, by transaction: a producer's next transaction may be in another session."""

import asyncio

import asyncpg
import pytest

from tests.store.given import sql
from tests.store.pgbouncer import pgbouncer
from tests.transactions.submitting import Connection, submit_task


@pytest.mark.tools("pgbouncer")
async def test_producers_share_sessions_by_way_of_a_pgbouncer_in_transaction_mode(
    producer: Connection, postgres_url: str
) -> None:
    committed: list[str] = []

    async def use(url: str, number: int) -> None:
        connection = await asyncpg.connect(url, statement_cache_size=0)  # as asyncpg needs it behind any pooler
        for turn in range(5):
            transaction = connection.transaction()
            await transaction.start()
            job_id = await submit_task(connection, idempotency_key=f"{number}-{turn}")
            assert await submit_task(connection, idempotency_key=f"{number}-{turn}") == job_id
            if (number + turn) % 2:
                await transaction.commit()
                committed.append(job_id)
            else:
                await transaction.rollback()
        await connection.close()

    with pgbouncer(postgres_url, "transaction", default_pool_size=3) as url:
        await asyncio.gather(*[use(url, number) for number in range(8)])
    assert {row[0] for row in await sql(postgres_url, "SELECT id FROM jobs")} == set(committed)
    assert await sql(postgres_url, "SELECT 1 FROM submissions") == []
