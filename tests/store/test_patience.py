"""A database that is frozen or elsewhere: callers get an answer soon, and are served soon after it is back."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest

from chargehand.engine.reads import JobFilter
from chargehand.errors import ConfigError, StoreUnavailable
from chargehand.store import open_store
from chargehand.store.postgres.connecting import CONNECT_SECONDS, PLANNED_ONCE, connect, each_host
from chargehand.store.postgres.connections import Connections
from chargehand.store.postgres.hints import AGAIN_SECONDS, ANSWER_SECONDS, HELLO_EVERY_SECONDS
from chargehand.store.postgres.store import PostgresStore
from tests.api.serving import serving, talking, until
from tests.store.given import TENANT, a_job, submit
from tests.store.relay import Relay, url_of

SOON = 5.0  # seconds: the longest a caller waits for a refusal, and for service after the database is back


@pytest.fixture
async def relay(postgres_url: str) -> AsyncIterator[Relay]:
    async with Relay.to(postgres_url) as relay:
        yield relay


def test_a_frozen_database_is_noticed_and_found_again_within_the_bounds() -> None:
    assert HELLO_EVERY_SECONDS + ANSWER_SECONDS < SOON
    assert CONNECT_SECONDS + AGAIN_SECONDS < SOON


async def test_callers_of_a_frozen_database_are_refused_soon_and_served_when_it_is_back(relay: Relay) -> None:
    async with serving(relay.url) as server, talking(server) as api:
        await api.submit()
        relay.freeze()
        began = time.monotonic()
        asked = asyncio.gather(
            api.post("/engine/jobs", {"queue": "q", "payload": {}}),
            api.get("/engine/jobs"),
            api.post("/engine/claims", {"queues": ["q"]}),
        )
        ready = await api.get("/readyz")
        assert ready.status == 503
        assert time.monotonic() - began < 1.5
        answers = await asked
        assert time.monotonic() - began < SOON + 1
        assert [answer.status for answer in answers] == [503] * 3
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)
        at_once = time.monotonic()
        assert (await api.post("/engine/jobs", {"queue": "q", "payload": {}})).status == 503
        assert time.monotonic() - at_once < 1  # nobody waits for what is known to be frozen
        relay.thaw()
        back = time.monotonic()

        async def served() -> bool:
            return (await api.post("/engine/jobs", {"queue": "q", "payload": {}})).status == 202

        await until(served)
        assert time.monotonic() - back < SOON + 1
        assert (await api.get("/readyz")).status == 200


@contextlib.asynccontextmanager
async def locked(postgres_url: str, table: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """Hold a lock for which every reader of the table waits; yield a connection without one."""
    owner, other = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    async with owner.transaction():
        await owner.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield other
    await owner.close()
    await other.close()


async def waiting_for_locks(connection: "asyncpg.Connection[asyncpg.Record]") -> int:
    return int(
        await connection.fetchval(
            "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )


async def test_reads_behind_a_lock_are_refused_soon_and_end_in_the_database_too(postgres_url: str) -> None:
    store = await open_store(postgres_url, pool_size=4)  # so that most of them wait for a connection
    job_id = await submit(store)
    async with locked(postgres_url, "jobs") as other:
        began = time.monotonic()
        reads = [
            (store.get_job(job_id), store.list_jobs(JobFilter(TENANT)), store.list_events(job_id)) for _ in range(5)
        ]
        found = await asyncio.gather(*[read for some in reads for read in some], return_exceptions=True)
        assert time.monotonic() - began < 3 * SOON
        refused = [answer for answer in found if isinstance(answer, StoreUnavailable)]
        assert len(refused) >= 10, found
        assert {(each.retry_after_seconds, "4.5 s" in each.message) for each in refused} == {(2, True)}

        async def nobody_waits() -> bool:
            return not await waiting_for_locks(other)

        await until(nobody_waits, 3 * SOON)
    assert await store.get_job(job_id) is not None
    assert [job.id for job in await store.list_jobs(JobFilter(TENANT))] == [job_id]
    await store.close()


async def test_lists_and_counts_that_wait_are_answered_with_503_soon(postgres_url: str) -> None:
    async with serving(postgres_url) as server, talking(server) as api:
        job_id = await api.submit()
        paths = ("jobs", "jobs?queue=q&state=failed", f"jobs/{job_id}", "queues", "overview")
        async with locked(postgres_url, "jobs"):
            began = time.monotonic()
            answers = await asyncio.gather(*[api.get(f"/engine/{path}") for path in paths * 3])
            assert time.monotonic() - began < 3 * SOON
            assert [answer.status for answer in answers] == [503] * len(answers)
            assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)

        async def served() -> bool:
            return {(await api.get(f"/engine/{path}")).status for path in paths} == {200}

        await until(served)


async def test_a_caller_that_hangs_up_ends_its_statement_in_the_database(postgres_url: str) -> None:
    store = await open_store(postgres_url)
    async with locked(postgres_url, "jobs") as other:
        reading = asyncio.create_task(store.list_jobs(JobFilter(TENANT)))

        async def one_waits() -> bool:
            return await waiting_for_locks(other) == 1

        async def nobody_waits() -> bool:
            return not await waiting_for_locks(other)

        await until(one_waits)
        reading.cancel()
        await until(nobody_waits, 3 * SOON)
    await store.close()


async def test_a_job_acknowledged_before_the_freeze_is_there_after_it(relay: Relay, postgres_url: str) -> None:
    store = await open_store(relay.url)
    job_id = await submit(store)
    relay.freeze()
    with pytest.raises(StoreUnavailable):
        await store.write(a_job())
    relay.thaw()

    async def found() -> bool:
        try:
            return await store.get_job(job_id) is not None
        except StoreUnavailable:
            return False

    await until(found)
    await store.close()


async def test_of_several_hosts_one_that_is_frozen_and_one_that_is_gone_do_not_delay_the_connection(
    relay: Relay, postgres_url: str
) -> None:
    async with Relay.to(postgres_url) as frozen, Relay.to(postgres_url) as gone:
        frozen.freeze()
        url = url_of(frozen, gone, relay).replace(f":{gone.port}", ":9")
        began = time.monotonic()
        store = await open_store(url)
        assert time.monotonic() - began < CONNECT_SECONDS
        await submit(store)
        await store.close()


async def test_a_store_goes_on_with_another_host_when_its_own_freezes(relay: Relay, postgres_url: str) -> None:
    async with Relay.to(postgres_url) as other:
        other.freeze()
        store = await open_store(url_of(relay, other))
        await submit(store)
        assert isinstance(store, PostgresStore)
        await until(
            lambda: store._hints.ahead is not None
        )  # by the same way as the others: it is what notices the silence
        other.thaw()
        relay.freeze()
        began = time.monotonic()

        async def submitted() -> bool:
            try:
                await store.write(a_job())
            except StoreUnavailable:
                return False
            return True

        await until(submitted)
        assert time.monotonic() - began < 2 * SOON
        await store.close()


async def test_a_host_that_takes_no_writes_is_passed_over(relay: Relay, postgres_url: str) -> None:
    standby = "standby" + postgres_url.partition("/test_")[2].partition("?")[0]
    owner = await asyncpg.connect(postgres_url)
    database = await owner.fetchval("SELECT current_database()")
    await owner.execute(f"CREATE ROLE {standby} LOGIN SUPERUSER")
    await owner.execute(f"ALTER ROLE {standby} IN DATABASE {database} SET default_transaction_read_only = on")
    read_only = relay.url.replace("postgres:@", f"{standby}@")
    connection = await connect(read_only)  # a URL with one host says what is wanted
    await connection.close()
    with pytest.raises(asyncpg.TargetServerAttributeNotMatched):
        await connect(read_only.replace(f":{relay.port}", f":{relay.port},127.0.0.1:{relay.port}"))
    await owner.execute(f"DROP OWNED BY {standby}; DROP ROLE {standby}")
    await owner.close()


@pytest.mark.parametrize(
    ("url", "urls"),
    [
        ("postgresql://h/db", ["postgresql://h/db"]),
        ("postgresql:///db?host=/run/postgresql", ["postgresql:///db?host=/run/postgresql"]),
        (
            "postgresql://u:p%40@h1:1,h2:2/db?sslmode=verify-full",
            [f"postgresql://u:p%40@{host}/db?sslmode=verify-full" for host in ("h1:1", "h2:2")],
        ),
        ("postgres://u@[::1]:5,[::2]/db", ["postgres://u@[::1]:5/db", "postgres://u@[::2]/db"]),
    ],
)
def test_a_url_of_several_hosts_is_taken_apart(url: str, urls: list[str]) -> None:
    assert each_host(url) == urls


@pytest.mark.parametrize(
    "query", ["host=h1,h2", "sslmode=require&host=h1:1,h2:2", "host=h1%2Ch2", "host=/run/a,/run/b&port=1,2"]
)
async def test_several_hosts_in_the_query_of_a_url_are_refused_with_what_to_write(query: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^store\.url: several hosts .*postgresql://user@host1:5432,host2:5432/database$"
    ):
        await open_store(f"postgresql://u:secret@/db?{query}")


async def test_a_caller_that_hangs_up_in_the_middle_of_a_statement_spoils_the_connection_for_nobody(
    postgres_url: str,
) -> None:
    connections = Connections(lambda: connect(postgres_url), size=1)

    async def sleep() -> None:
        async with connections.use() as connection:
            await connection.execute("SELECT pg_sleep(60)")

    sleeping = asyncio.create_task(sleep())
    await until(lambda: connections._busy)
    sleeping.cancel()
    async with connections.use() as connection:
        assert await connection.fetchval("SELECT 1") == 1
    async with connections.use() as again:
        assert again is connection  # kept, without a round trip
    await connections.close(1)


async def test_writes_are_planned_once_and_a_node_that_froze_in_a_transaction_is_cut_off(postgres_url: str) -> None:
    connection = await connect(postgres_url, settings=PLANNED_ONCE)
    assert await connection.fetchval("SHOW plan_cache_mode") == "force_generic_plan"
    assert await connection.fetchval("SHOW idle_in_transaction_session_timeout") == "10s"
    await connection.close()


async def test_a_database_that_acknowledges_before_the_disk_is_told_to_wait(postgres_url: str) -> None:
    owner = await asyncpg.connect(postgres_url)
    database = await owner.fetchval("SELECT current_database()")
    await owner.execute(f"ALTER DATABASE {database} SET synchronous_commit = off")
    connection = await connect(postgres_url)
    assert await connection.fetchval("SHOW synchronous_commit") == "on"
    await connection.close()
    await owner.close()
