"""A checkup reads a store from outside and does not change it."""

from pathlib import Path

import apsw
import pytest

from chargehand.errors import StoreCorrupt, StoreError, StoreUnavailable
from chargehand.store import open_store
from chargehand.store.checkup import look
from chargehand.store.queries import load_migrations
from tests.store.given import a_job, sql


def newest(store_url: str) -> int:
    return load_migrations("sqlite" if store_url.startswith("sqlite:") else "postgres")[-1].version


@pytest.fixture(scope="module")
def postgres_template() -> str:
    """Without tables: a store that was never opened is checked too."""
    return "template1"


async def test_a_checkup_does_not_create_a_missing_store(store_url: str, tmp_path: Path) -> None:
    found = await look(store_url)
    assert (found.schema, found.newest_schema, found.newest_job) == (None, newest(store_url), None)
    assert not (tmp_path / "chargehand.db").exists()
    assert (found.now is None) == store_url.startswith("sqlite:")


async def test_a_checkup_reads_version_and_newest_job_while_a_server_runs(store_url: str) -> None:
    store = await open_store(store_url)
    try:
        assert (await look(store_url)).newest_job is None
        job = a_job()
        await store.write(job)
        found = await look(store_url)
        assert (found.schema, found.newest_job) == (newest(store_url), job.id)
    finally:
        await store.close()


async def test_a_checkup_reads_who_may_work_on_a_newer_store(store_url: str) -> None:
    await (await open_store(store_url)).close()
    ours = (await look(store_url)).newest_schema
    future = f"INSERT INTO schema_migrations (version, name, applied_at, oldest) VALUES (999, 'future', 0, {ours})"
    await sql(store_url, future)
    found = await look(store_url)
    assert (found.schema, found.oldest_schema) == (999, ours)


async def test_a_checkup_reports_a_file_that_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database" * 100)
    with pytest.raises(StoreCorrupt):
        await look(f"sqlite:///{tmp_path}/text.db")
    apsw.Connection(str(tmp_path / "other.db")).execute("CREATE TABLE cats (name TEXT)")
    with pytest.raises(StoreError, match="is not Chargehand's"):
        await look(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(StoreUnavailable) as refused:
        await look("postgresql://nobody:hush@127.0.0.1:9/jobs")
    assert "hush" not in str(refused.value)
