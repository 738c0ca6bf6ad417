"""Opening a database: an empty one, an older one, a newer one, and one that other nodes open at the same time."""

import asyncio
from pathlib import Path

import apsw
import asyncpg
import pytest

from chargehand.engine.job import QueueSettings, SetQueue, State
from chargehand.engine.moves import Change
from chargehand.engine.reads import JobFilter
from chargehand.engine.store import Store
from chargehand.errors import ConfigError, StoreError, StoreLocked, StoreTooNew
from chargehand.store import open_store
from chargehand.store.queries import Dialect, load_migrations, load_queries
from tests.e2e.server import eventually
from tests.store.given import TENANT, a_queue, a_report, get, move, opened, running, seen, sql, submit, take_one


@pytest.fixture(scope="module")
def postgres_template() -> str:
    """Without tables: these tests create them."""
    return "template1"


def dialect_of(store_url: str) -> Dialect:
    return "sqlite" if store_url.startswith("sqlite:") else "postgres"


def test_migrations_are_numbered_without_a_gap() -> None:
    migrations = load_migrations("sqlite") + load_migrations("postgres")
    numbers = {migration.version for migration in migrations}
    assert numbers == set(range(1, len(numbers) + 1))
    assert len({(migration.version, migration.name) for migration in migrations}) == len(numbers)
    assert all(migration.name and migration.statements for migration in migrations)


def test_a_migration_for_one_database_is_not_applied_to_the_other() -> None:
    only = {(m.version, m.name) for m in load_migrations("sqlite")} - {
        (m.version, m.name) for m in load_migrations("postgres")
    }
    assert only == {(6, "quick_checks")}


async def test_a_new_store_is_at_the_newest_version(store: Store, store_url: str) -> None:
    await store.check()
    applied = await sql(store_url, "SELECT version, name FROM schema_migrations WHERE version > 0 ORDER BY version")
    assert applied == [(migration.version, migration.name) for migration in load_migrations(dialect_of(store_url))]


async def test_reopening_keeps_everything(store_url: str) -> None:
    async with opened(store_url) as store:
        job = await running(store)
        await move(store, job, "succeed", result=b"42")
        waiting = await submit(store, priority=3)
        await store.write(SetQueue(QueueSettings(a_queue("other"), max_running=2)))
        before = await get(store, job.id), await get(store, waiting), await store.list_events(job.id)
    async with opened(store_url) as store:
        assert (await get(store, job.id), await get(store, waiting), await store.list_events(job.id)) == before
        assert await store.list_queue_settings() == [QueueSettings(a_queue("other"), max_running=2)]
        assert (await take_one(store)).id == waiting


OLD_JOB = """
    INSERT INTO jobs (id, tenant, kind, queue, state, stage, topic, previous, topic_seq, priority, run_at, attempt,
                      max_attempts, lease, waiting_for, traceparent, tracestate, reports, seq, created_at, updated_at)
    VALUES ('old', 'acme', 'job', 'q', 'queued', '', 'queued', '', 1, 0, 0, 0, 1, 0, '', '', '', '', 1, 0, 0)"""


async def test_an_older_database_is_migrated_with_all_its_rows(store_url: str) -> None:
    first = load_migrations(dialect_of(store_url))[0]
    await sql(store_url, "CREATE TABLE schema_migrations (version INTEGER PRIMARY KEY, name TEXT, applied_at BIGINT)")
    await sql(store_url, f"INSERT INTO schema_migrations VALUES (1, '{first.name}', 0)")
    for statement in (*first.statements, OLD_JOB):
        await sql(store_url, statement)
    async with opened(store_url) as store:
        await store.check()
        assert (await get(store, "old")).deadline_at is None
        assert await store.write(Change(seen("old"), "cancel"))
        assert (await running(store, deadline_seconds=1)).deadline_at is not None


async def test_the_checks_of_an_older_file_are_rewritten_without_changing_its_rows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chargehand.db"
    older = load_migrations("sqlite")[:5]
    await sql(url, "CREATE TABLE schema_migrations (version INTEGER PRIMARY KEY, name TEXT, applied_at BIGINT)")
    for migration in older:
        await sql(url, f"INSERT INTO schema_migrations VALUES ({migration.version}, '{migration.name}', 0)")
        for statement in migration.statements:
            await sql(url, statement)
    await sql(url, OLD_JOB)
    before = await sql(url, "SELECT * FROM jobs")
    async with opened(url):
        columns = await sql(url, "SELECT name FROM PRAGMA_TABLE_INFO('jobs')")
        old = ", ".join(name for (name,) in columns[: len(before[0])])
        assert await sql(url, f"SELECT {old} FROM jobs") == before  # the columns that came later stand behind
    async with opened(f"sqlite:///{tmp_path}/new.db"):
        schema = "SELECT name, sql FROM sqlite_schema WHERE tbl_name <> 'schema_migrations' ORDER BY name"
        assert await sql(url, schema) == await sql(f"sqlite:///{tmp_path}/new.db", schema)
    assert await sql(url, "PRAGMA integrity_check") == [("ok",)]


BROKEN = {
    "a state that there is not": "UPDATE jobs SET state = 'lost'",
    "running without a lease": "UPDATE jobs SET state = 'running'",
    "queued with a lease": "UPDATE jobs SET lease_until = 1",
    "finished at no time": "UPDATE jobs SET state = 'cancelled'",
    "not finished, with a time of its end": "UPDATE jobs SET finished_at = 1",
    "a priority above the highest": "UPDATE jobs SET priority = 10",
    "a delivery in a state that there is not": "UPDATE deliveries SET state = 'lost'",
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_the_database_itself_refuses_an_invalid_row(store: Store, store_url: str, broken: str) -> None:
    await submit(store, reports=(a_report(),))
    with pytest.raises((apsw.ConstraintError, asyncpg.CheckViolationError)):
        await sql(store_url, BROKEN[broken])


async def test_a_lease_survives_a_restart(store_url: str) -> None:
    async with opened(store_url) as store:
        job = await running(store)
    async with opened(store_url) as store:
        assert await move(store, job, "succeed")
        assert (await get(store, job.id)).state is State.SUCCEEDED


async def test_a_database_of_a_newer_version_is_refused_and_not_changed(store_url: str) -> None:
    async with opened(store_url) as store:
        job_id = await submit(store)
        await sql(store_url, "INSERT INTO schema_migrations (version, name, applied_at) VALUES (999, 'future', 0)")
        with pytest.raises(StoreTooNew):
            await store.check()
    with pytest.raises(StoreTooNew, match="999"):
        await open_store(store_url)
    assert await sql(store_url, "SELECT id FROM jobs") == [(job_id,)]


async def test_a_node_works_on_a_newer_schema_unless_it_is_too_old_for_it(store_url: str) -> None:
    newest = load_migrations(dialect_of(store_url))[-1].version
    newer = "INSERT INTO schema_migrations (version, name, applied_at, oldest) VALUES"
    async with opened(store_url) as store:
        await sql(store_url, f"{newer} (998, 'expands', 0, {newest})")
        await store.check()
        await submit(store)
    async with opened(store_url) as store:
        await submit(store)
        await sql(store_url, f"{newer} (999, 'contracts', 0, {newest + 1})")
        with pytest.raises(StoreTooNew, match=f"version 999; this version knows up to {newest}"):
            await store.check()
    with pytest.raises(StoreTooNew, match=f"version 999; this version knows up to {newest}"):
        await open_store(store_url)
    assert await sql(store_url, "SELECT COUNT(*) FROM jobs") == [(2,)]


async def test_a_migration_happens_whole_or_not_at_all(store_url: str) -> None:
    await sql(store_url, "CREATE TABLE deliveries (in_the_way INTEGER)")
    with pytest.raises(StoreError, match="deliveries"):
        await open_store(store_url)
    with pytest.raises(Exception, match="jobs"):
        await sql(store_url, "SELECT 1 FROM jobs")
    await sql(store_url, "DROP TABLE deliveries")
    async with opened(store_url) as store:
        await submit(store)


async def an_older_node(url: str) -> asyncpg.Connection:
    """Make the tables of the first version, and return the connection of a node to them."""
    await sql(url, "CREATE TABLE schema_migrations (version INTEGER PRIMARY KEY, name TEXT, applied_at BIGINT)")
    first = load_migrations("postgres")[0]
    for statement in (*first.statements, f"INSERT INTO schema_migrations VALUES (1, '{first.name}', 0)"):
        await sql(url, statement)
    node = await asyncpg.connect(url)
    await node.execute(CALL_OURS)
    return node


CALL_OURS = """SELECT set_config('application_name', 'chargehand ' || c.relnamespace, false)
               FROM pg_class c WHERE c.oid = 'schema_migrations'::REGCLASS"""


async def test_a_migration_ends_the_sessions_of_older_nodes_and_no_others(postgres_url: str) -> None:
    """Two Chargehands may share a database and its user, each with a schema of its own."""
    urls = [f"{postgres_url}&search_path={name}" for name in ("one", "two")]
    for name in ("one", "two"):
        await sql(postgres_url, f"CREATE SCHEMA {name}")
    one, two = [await an_older_node(url) for url in urls]
    # Of a name that no node has, and that no node of 0.1.0 can have: beside those nothing is migrated.
    somebody = await asyncpg.connect(urls[0], server_settings={"application_name": "chargehand's observer"})
    async with opened(urls[0]) as store:
        assert one.is_closed()
        await submit(store)
        assert await two.fetchval("SELECT MAX(version) FROM schema_migrations") == 1
        assert await somebody.fetchval("SELECT COUNT(*) FROM jobs") == 1
        async with opened(urls[1]):
            assert two.is_closed()
            await store.check()
    await somebody.close()


async def test_a_node_that_connects_during_a_migration_waits_for_it_and_is_refused(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await submit(store)
        newer = await asyncpg.connect(postgres_url)
        async with newer.transaction():
            await newer.execute(load_queries("postgres")["lock_schema"].sql)
            await newer.fetch(load_queries("postgres")["end_sessions"].sql)
            writing = [asyncio.create_task(submit(store)) for _ in range(3)]
            waiting = "SELECT COUNT(*) FROM pg_locks WHERE relation = 'schema_migrations'::REGCLASS AND NOT granted"
            await eventually(lambda: newer.fetchval(waiting), 2, "a connection waits for the migration")
            await newer.execute("INSERT INTO schema_migrations (version, name, applied_at) VALUES (999, 'future', 0)")
        for refused in (*writing, submit(store), store.list_jobs(JobFilter(TENANT)), store.check()):
            with pytest.raises(StoreTooNew, match="schema version 999"):
                await refused
        assert await newer.fetchval("SELECT COUNT(*) FROM jobs") == 1
        await newer.execute("DELETE FROM schema_migrations WHERE version = 999")
        assert await submit(store), "it goes on when the backup is restored"
        await newer.close()


@pytest.mark.parametrize("_", range(5))  # the race can raise three different errors, each rarely
async def test_five_nodes_can_open_an_empty_database_at_once(postgres_url: str, _: int) -> None:
    stores = await asyncio.gather(*[open_store(postgres_url, pool_size=2) for _ in range(5)])
    try:
        job_ids = [await submit(store) for store in stores]
        assert {job.id for job in await stores[0].list_jobs(JobFilter(TENANT))} == set(job_ids)
    finally:
        await asyncio.gather(*[store.close() for store in stores])


async def test_a_database_without_the_right_to_create_tables_is_refused_with_our_own_error(postgres_url: str) -> None:
    await sql(postgres_url, "DO $$ BEGIN CREATE ROLE guest LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    with pytest.raises(StoreError, match="permission denied"):
        await open_store(postgres_url.replace("postgres:@", "guest:@"))


async def test_a_failed_open_leaves_no_connection_behind(postgres_url: str) -> None:
    async with opened(postgres_url):
        await sql(postgres_url, "INSERT INTO schema_migrations (version, name, applied_at) VALUES (999, 'future', 0)")
    with pytest.raises(StoreTooNew):
        await open_store(postgres_url)
    others = "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    assert await sql(postgres_url, others) == []


async def test_a_second_server_on_the_same_file_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chargehand.db"
    async with opened(url) as first:
        with pytest.raises(StoreLocked, match="another server"):
            await open_store(url)
        await submit(first)
        await first.check()


async def test_the_next_server_waits_for_the_last_one_to_finish(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chargehand.db"
    first = await open_store(url)
    opening = asyncio.create_task(open_store(url))
    job_id = await submit(first)
    await first.close()
    second = await opening
    await get(second, job_id)
    await second.close()


@pytest.mark.parametrize("url", ["", "mysql://localhost/db", "sqlite:relative.db", "sqlite:///"])
async def test_an_unknown_kind_of_store_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.url"):
        await open_store(url)
