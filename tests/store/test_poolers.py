"""A pooler between a node and PostgreSQL: by session it works, otherwise it is refused at the start with what to do."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from chargehand.errors import StoreError
from chargehand.store import open_store
from chargehand.store.checkup import look
from chargehand.store.postgres.store import translated
from tests.api.serving import until
from tests.store.given import claimed_ids, opened, sql, submit
from tests.store.pgbouncer import pgbouncer
from tests.store.relay import Pooler

TABLES = "SELECT relname, n_tup_ins FROM pg_stat_user_tables ORDER BY 1"
SENTENCE = r"a pooler .*: name the database's own address in store\.url, or .*pool_mode = session"


@pytest.fixture
async def pooler(postgres_url: str) -> AsyncIterator[Pooler]:
    async with Pooler.to(postgres_url) as pooler:
        yield pooler


async def refused(url: str) -> None:
    with pytest.raises(StoreError, match=SENTENCE):
        await open_store(url)
    with pytest.raises(StoreError, match=SENTENCE):
        await look(url)


async def used(url: str) -> None:
    assert (await look(url)).schema
    async with opened(url) as one, opened(url) as other:
        heard = set[str]()
        other.listen(lambda hint: heard.update(hint.streams))
        job_id = await submit(one)
        assert await claimed_ids(other) == [job_id]

        def told() -> bool:
            one.notify(stream="s")  # again, since the other may not listen yet
            return heard == {"s"}

        await until(told)


async def test_a_pooler_by_session_is_used(pooler: Pooler) -> None:
    await used(pooler.url)


async def test_a_pooler_that_loses_notifications_is_refused_with_what_to_do(pooler: Pooler, postgres_url: str) -> None:
    before = await sql(postgres_url, TABLES)
    pooler.by_session = False
    await refused(pooler.url)
    assert await sql(postgres_url, TABLES) == before


async def test_a_pooler_that_changes_its_mode_while_a_node_runs_is_named(postgres_url: str) -> None:
    """The statements that a node has prepared are not there, or are those of another node."""
    connection = await asyncpg.connect(postgres_url)
    for statements in ("EXECUTE gone", "PREPARE ours AS SELECT 1; PREPARE ours AS SELECT 2"):
        with pytest.raises(StoreError, match=SENTENCE), translated():
            await connection.execute(statements)
    await connection.close()


# with PgBouncer ---------------------------------------------------------------------------------------------------------


@pytest.mark.tools("pgbouncer")
async def test_pgbouncer_in_session_mode_is_used(postgres_url: str) -> None:
    with pgbouncer(postgres_url, "session") as url:
        await used(url)


@pytest.mark.tools("pgbouncer")
@pytest.mark.parametrize("pool_mode", ["transaction", "statement"])
@pytest.mark.parametrize("settings", [{}, {"min_pool_size": 3, "server_round_robin": 1}], ids=["default", "in turn"])
async def test_pgbouncer_in_another_mode_is_refused_with_what_to_do(
    postgres_url: str, pool_mode: str, settings: dict[str, int]
) -> None:
    with pgbouncer(postgres_url, pool_mode, **settings) as url:
        await refused(url)
        await refused(url)  # also when the server's connections have been used before
