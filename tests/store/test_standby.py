"""What is acknowledged is on the standby too, where the database is told to wait for one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import asyncpg
import pytest

from chargehand.errors import StoreUnavailable
from chargehand.store import open_store
from tests.e2e.server import Database, eventually
from tests.store.given import a_job

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

WITHIN = 30.0
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture
async def database() -> AsyncIterator[Database]:
    with TemporaryDirectory(prefix="chargehand-standby-") as folder:
        database = Database(Path(folder))
        await database.start()
        yield database
        await database.kill()


async def wait_for_standbys(admin: Connection, names: str) -> None:
    await admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    await admin.execute("SELECT pg_reload_conf()")


async def a_commit_waits(admin: Connection) -> None:
    await eventually(lambda: admin.fetch(WAITING), WITHIN, "a commit waits for a standby")


async def cut_off_who_waits(admin: Connection) -> None:
    await admin.execute(f"SELECT pg_terminate_backend(pid) FROM ({WAITING}) AS waiting")


async def commit_again_and_again(connection: Connection) -> None:
    while True:
        await connection.execute("SELECT pg_logical_emit_message(true, 'a', 'b')")


@pytest.mark.parametrize("key", [{"idempotency_key": "once", "fingerprint": "f"}, {"unique_key": "once"}], ids=str)
async def test_a_repeated_request_is_not_acknowledged_before_a_standby_has_the_job(
    database: Database, key: dict[str, Any]
) -> None:
    """Whose connection ends while it waits for the standby has committed: others see the job, and a failover would lose it."""
    store = await open_store(database.url)
    admin, other = await asyncpg.connect(database.url), await asyncpg.connect(database.url)
    await wait_for_standbys(admin, "nobody")
    committing = asyncio.create_task(commit_again_and_again(other))
    await a_commit_waits(admin)
    await cut_off_who_waits(admin)
    await asyncio.gather(committing, return_exceptions=True)

    first = asyncio.ensure_future(store.write(job := a_job(**key)))
    await a_commit_waits(admin)
    await cut_off_who_waits(admin)
    with pytest.raises(StoreUnavailable):
        await first

    again = asyncio.ensure_future(store.write(a_job(**key)))
    waits = asyncio.create_task(a_commit_waits(admin))
    await asyncio.wait((again, waits), return_when=asyncio.FIRST_COMPLETED)
    assert not again.done()
    await waits
    await wait_for_standbys(admin, "")
    assert (await again).job_id == job.id
    await store.close()
    await admin.close()
