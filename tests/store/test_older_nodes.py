"""Nodes of earlier releases beside the schema of today.

Nodes since 0.1.0 look at the schema with every connection and are refused (tests/e2e/test_upgrade.py). Those of 0.1.0 look at their
start alone, so nothing is migrated while one is there. Were it cut off at that moment, some of its statements would still write.
"""

import re
from pathlib import Path

import asyncpg
import pytest

from chargehand.errors import StoreUnavailable
from chargehand.store import open_store
from tests.store.given import opened, sql
from tests.store.releases import HERE, RELEASES, restore

CHANGED = "SELECT SUM(n_tup_ins + n_tup_upd + n_tup_del)::INTEGER FROM pg_stat_xact_user_tables"
NOBODY_IS_TOLD = "INSERT INTO endpoints VALUES ('ep_none', 'acme', 'http://127.0.0.1:9/none', 'active', '', 0, 0)"
# Nothing may be added here, and what the next migration stops is removed.
STILL_WRITES = {
    "0.1.0": {
        "set_endpoint",
        "take_deliveries",
        "release_delivery",
        "replay_delivery",
        "replay_endpoint",
        "give_up_deliveries",
        "prune_jobs",
        "prune_tries",
        "prune_deliveries",
        "prune_events",
        "prune_payloads",
        "prune_results",
        "prune_job_files",
        "prune_endpoints",
        "put_file",
        "drop_files",
        "put_record",
        "change_record",
        "drop_record",
        "change_jobs",
        "beat_jobs",
        "note_job",
        "ensure_endpoints",
        "insert_deliveries",
    }
}


@pytest.fixture(scope="module")
def postgres_template() -> str:
    """Without tables: the release's own are restored."""
    return "template1"


@pytest.fixture(params=[release for release in RELEASES if (HERE / release / "writes.sql").exists()])
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def database(postgres_url: str, release: str, tmp_path: Path) -> str:
    await restore(release, postgres_url, tmp_path / "data")
    await sql(postgres_url, NOBODY_IS_TOLD)  # for the statement that removes endpoints
    return postgres_url


def writes(release: str) -> dict[str, str]:
    pieces = re.split(r"^-- name: (\w+)$", (HERE / release / "writes.sql").read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


async def changed_by(url: str, statement: str) -> int:
    """Return how many rows the statement changes, and roll it back."""
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    try:
        await transaction.start()
        await connection.execute(statement)
        return int(await connection.fetchval(CHANGED))
    finally:
        await connection.close()


async def test_each_statement_writes_to_a_database_of_its_own_release(database: str, release: str) -> None:
    """If not, the next test would show nothing."""
    idle = [name for name, statement in writes(release).items() if not await changed_by(database, statement)]
    assert not idle


async def test_nothing_is_migrated_while_a_node_of_the_release_is_connected(database: str) -> None:
    node = await asyncpg.connect(database)
    try:
        with pytest.raises(StoreUnavailable, match="stop them"):
            await open_store(database)
    finally:
        await node.close()
    assert await sql(database, "SELECT MAX(version) FROM schema_migrations") == [(5,)]
    async with opened(database) as store:
        await store.check()


async def test_no_other_statement_writes_to_the_schema_of_today(database: str, release: str) -> None:
    async with opened(database):
        pass
    still = {}
    for name, statement in writes(release).items():
        try:
            if count := await changed_by(database, statement):
                still[name] = f"{count} rows are changed by {statement}"
        except asyncpg.PostgresError as error:
            print(f"{name}: {type(error).__name__}: {error}")
    assert still.keys() == STILL_WRITES[release], "\n".join(still.values())
