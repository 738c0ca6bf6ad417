"""A transaction may stay open for any time: nobody waits for it, and its job is whole when it commits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from chargehand.engine.ids import made_at
from chargehand.engine.job import SECOND
from chargehand.engine.records import Records
from chargehand.engine.store import OldPeriods, Store
from chargehand.http.terms import Terms, tell
from chargehand.store.postgres import periods
from chargehand.store.postgres.store import PostgresStore
from tests.api.serving import Api, serving, talking, until
from tests.conftest import Clock
from tests.store.given import opened, sql
from tests.transactions.submitting import HOOK, TASKS, Connection, claimed, submit, submit_task, task


async def test_others_submit_and_claim_while_a_transaction_is_open_and_its_task_comes_with_its_commit(
    api: Api, producer: Connection
) -> None:
    async with producer.transaction():
        opened_first = await submit_task(producer, webhook="http://127.0.0.1:9/new")
        hooked = await submit(producer, "job", "q", "{}", webhook="http://127.0.0.1:9/new")
        later = [await task(api, webhook="http://127.0.0.1:9/new") for _ in range(3)]
        await api.submit(queue="other", webhook={"url": "http://127.0.0.1:9/new"})
        assert await claimed(api, count=4) == later
        newest = await task(api)
    # It counts as submitted at its commit: behind what was there before, though its id is older.
    assert await claimed(api, count=3) == [newest, opened_first]
    assert (await api.claim())["id"] == hooked
    made = await producer.fetchrow("SELECT created_at, run_at FROM jobs WHERE id = $1", opened_first)
    assert made is not None
    assert made["created_at"] == made["run_at"] > made_at(opened_first) * SECOND


async def test_a_delay_and_a_deadline_count_from_the_commit(producer: Connection) -> None:
    async with producer.transaction():
        job_id = await submit(producer, "job", "q", "{}", delay_seconds=2, deadline_seconds=5)
        between = await producer.fetchval("SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT")
    job = await producer.fetchrow("SELECT * FROM jobs WHERE id = $1", job_id)
    assert job is not None
    assert job["created_at"] > between
    assert (job["run_at"], job["deadline_at"]) == (job["created_at"] + 2 * SECOND, job["created_at"] + 5 * SECOND)


@asynccontextmanager
async def before_its_period_ends(postgres_url: str, life: int) -> AsyncIterator[tuple[Store, Clock, Connection]]:
    """Yield a store in whose period we are now, with the time that is in its middle, and a producer."""
    clock, connection = Clock(), await asyncpg.connect(postgres_url)
    clock.now = await connection.fetchval("SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT")
    clock.advance(-life / periods.IN_A_LIFE / 2)
    async with opened(postgres_url, clock=clock) as store:
        await tell(Records(store), "job", Terms(1, 1000, "}"))
        await store.prune(OldPeriods(life), 1)
        yield store, clock, connection
    await connection.close()


async def test_periods_are_made_and_dropped_beside_an_open_transaction_and_its_job_keeps_all_of_itself(
    postgres_url: str,
) -> None:
    """As if it were open for longer than finished jobs are kept."""
    life = 8 * 7200
    async with before_its_period_ends(postgres_url, life) as (store, clock, producer):
        [(first, until), _] = await sql(postgres_url, "SELECT first_id, until_id FROM periods ORDER BY first_id")
        end = clock.now + (life + 3 * 7200) * SECOND
        async with producer.transaction():
            job_id = await submit(producer, "job", "q", '{"a": 1}', idempotency_key="k", webhook=HOOK)
            assert first <= job_id < until
            while clock.now < end:
                clock.advance(1800)
                await store.prune(OldPeriods(life), 1)
            assert await sql(postgres_url, f"SELECT 1 FROM periods WHERE first_id = '{first}'") == []
        assert await sql(postgres_url, f"SELECT to_regclass('{periods.Period(first, until).of('job_payloads')}')") == [
            (None,)
        ]
        job = await store.get_job(job_id)
        assert job is not None
        assert job.payload == b'{"a": 1}'
        assert [event.move for event in await store.list_events(job_id)] == ["submit"]
        assert await sql(postgres_url, "SELECT job_id FROM deliveries") == [(job_id,)]


async def test_an_id_of_a_period_lies_in_its_tables(postgres_url: str) -> None:
    async with before_its_period_ends(postgres_url, 8 * 7200) as (_, _, producer):
        job_id = await submit(producer, "job", "q", "{}")
        [period, _] = await producer.fetch("SELECT first_id, until_id FROM periods ORDER BY first_id")
        tables = await producer.fetch("SELECT tableoid::REGCLASS::TEXT FROM job_events WHERE job_id = $1", job_id)
        assert [row[0] for row in tables] == [periods.Period(*period).of("job_events")]


async def test_a_hint_of_a_commit_makes_no_node_believe_that_another_is_there(postgres_url: str) -> None:
    async with serving(postgres_url, {"engine.poll_seconds": 60}) as server, talking(server) as api:
        assert isinstance(server.store, PostgresStore)
        connection = await asyncpg.connect(postgres_url)
        claim = asyncio.create_task(api.post(f"{TASKS}/claim", {"commands": ["pack"], "waitSeconds": 30}))
        await until(lambda: server.engine.wakeups.waiting)
        job_id = await submit_task(connection)
        assert (await claim).good()["id"] == job_id
        assert server.store._hints._peers == {}
        await connection.close()
