"""Faults: a full disk, a damaged file, a dead writer, a lost database, one invalid operation among valid ones."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

from chargehand.engine.job import QueueSettings, SetQueue, State
from chargehand.engine.moves import Change, Note
from chargehand.engine.reads import DeliveryFilter, EndpointFilter, JobFilter
from chargehand.engine.store import OldJobs, Store
from chargehand.errors import BadRequest, ChargehandError, StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from chargehand.store import open_store
from chargehand.store.sqlite.store import SqliteStore
from tests.api.serving import until
from tests.conftest import Clock
from tests.store.given import (
    KILL,
    TENANT,
    URL,
    a_job,
    a_queue,
    a_report,
    a_take,
    claim,
    claimed_ids,
    get,
    job_in,
    move,
    new_id,
    opened,
    running,
    seen,
    sql,
    submit,
    submit_many,
    trace,
    until_held_up,
)

SMALL = 400_000  # bytes: the schema fits, and a few dozen jobs


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "chargehand.db"


@pytest.fixture
def file_url(file: Path) -> str:
    return f"sqlite:///{file}"


@pytest.fixture
def letter(file: Path) -> bytes:
    """Write another file where the database should be, and return its content."""
    file.write_bytes(b"This is a letter, not a database. " * 200)
    return file.read_bytes()


@pytest.fixture
def directory(file: Path) -> Path:
    file.mkdir()
    return file


def damage(file: Path) -> bytes:
    """Overwrite every page but the first with noise."""
    healthy = file.read_bytes()
    assert len(healthy) > 100_000
    file.write_bytes(healthy[:4096] + os.urandom(len(healthy) - 4096))
    return file.read_bytes()


@contextmanager
def password_needed(rules: Path, user: str) -> Iterator[None]:
    before = rules.read_text()
    rules.write_text(f"local all {user} scram-sha-256\n{before}")
    try:
        yield
    finally:
        rules.write_text(before)


# one bad operation ------------------------------------------------------------------------------------------------------

BAD: dict[str, dict[str, Any]] = {
    "a priority that no CHECK allows": {"priority": 99},
    "a priority that no column holds": {"priority": 2**40},
    "a priority that cannot be sent": {"priority": 2**70},
    "no attempts": {"max_attempts": 0},
    "a time that no column holds": {"run_at": 2**63},
    "a delay without end": {"delay_seconds": float("inf")},
    "a delay that is no number": {"delay_seconds": float("nan")},
    "half a character": {"queue": "\ud800"},
}


@pytest.mark.parametrize("fields", BAD.values(), ids=BAD.keys())
async def test_one_invalid_operation_is_refused_and_the_others_of_its_group_succeed(
    store: Store, fields: dict[str, Any]
) -> None:
    jobs = [a_job() for _ in range(10)] + [a_job(**fields)] + [a_job() for _ in range(10)]
    answers = await asyncio.gather(*map(_submit, [store] * 21, jobs), return_exceptions=True)
    bad = answers.pop(10)
    assert [answer for answer in answers if isinstance(answer, BaseException)] == []
    assert isinstance(bad, BadRequest), repr(bad)
    assert {job.id for job in await store.list_jobs(JobFilter(TENANT))} == {
        job.id for job in jobs if job is not jobs[10]
    }


async def _submit(store: Store, job: Any) -> str:
    return str((await store.write(job)).job_id)


async def test_an_invalid_move_is_refused_and_does_not_change_the_job(store: Store) -> None:
    job = await running(store, max_attempts=2)
    before = await trace(store, job.id)
    with pytest.raises(BadRequest):
        await move(store, job, "retry", delay_seconds=float("inf"))
    assert await trace(store, job.id) == before
    assert await move(store, job, "succeed")


async def test_a_nul_in_text_is_stored_or_refused_and_affects_no_other_operation(store: Store) -> None:
    """PostgreSQL cannot store a NUL in text; in bytes both stores can."""
    nul = a_job(kind="a\x00b", payload=b"\x00")
    answers = await asyncio.gather(*map(_submit, [store] * 3, [a_job(), nul, a_job()]), return_exceptions=True)
    assert isinstance(answers[0], str)
    assert isinstance(answers[2], str)
    if isinstance(answers[1], str):
        assert (await get(store, nul.id)).kind == "a\x00b"
    else:
        assert isinstance(answers[1], BadRequest)
        assert await store.get_job(nul.id) is None


@pytest.mark.parametrize("text", ["a\x00b", "\ud800"], ids=["NUL", "half a character"])
async def test_a_value_that_cannot_be_looked_up_is_refused(store: Store, text: str) -> None:
    with suppress(BadRequest):
        assert await store.get_job(text) is None
    with suppress(BadRequest):
        assert await store.list_jobs(JobFilter(TENANT, queue=text)) == []
    with suppress(BadRequest):
        assert await store.list_deliveries(DeliveryFilter(job_id=text)) == []
    await submit(store)


async def test_a_missing_table_is_an_error_of_the_store_and_not_of_the_caller(store: Store, store_url: str) -> None:
    job_id = await submit(store)
    for table in ("jobs", "job_payloads"):
        await sql(store_url, f"ALTER TABLE {table} RENAME TO {table}_elsewhere")
    with pytest.raises(StoreError):
        await store.get_job(job_id)
    with pytest.raises(StoreError):
        await store.list_jobs(JobFilter(TENANT))
    with pytest.raises(StoreError):
        await submit(store)
    for table in ("jobs", "job_payloads"):
        await sql(store_url, f"ALTER TABLE {table}_elsewhere RENAME TO {table}")
    await submit(store)


async def test_a_rolled_back_endpoint_is_made_again(store: Store) -> None:
    """Its row was written in the group that failed, so a cache of endpoints must drop it."""
    bad = a_job(priority=99)
    reporting = a_job(reports=(a_report(),))
    await asyncio.gather(_submit(store, reporting), _submit(store, bad), return_exceptions=True)
    assert [endpoint.url for endpoint in await store.list_endpoints(EndpointFilter(None, "", 10))] == [URL]
    assert len((await store.write(a_take())).ids) == 1


# SQLite: a full disk ----------------------------------------------------------------------------------------------------


async def fill(store: Store) -> str:
    """Submit jobs until the store is full; return the id of the job that did not fit."""
    while True:
        job_id = new_id()
        try:
            await submit(store, id=job_id, queue="filling", payload=os.urandom(20_000), reports=(a_report(),))
        except StoreFull:
            return job_id


async def test_a_job_that_does_not_fit_is_refused_and_leaves_nothing_behind(file_url: str) -> None:
    async with opened(file_url, max_bytes=SMALL) as store:
        job_id = await fill(store)
        assert await store.get_job(job_id) is None
        for table in ("job_payloads", "job_events", "deliveries"):
            assert await sql(file_url, f"SELECT 1 FROM {table} WHERE job_id = '{job_id}'") == [], table
        [(jobs, payloads, events, deliveries)] = await sql(
            file_url,
            "SELECT (SELECT COUNT(*) FROM jobs), (SELECT COUNT(*) FROM job_payloads), "
            "(SELECT COUNT(*) FROM job_events), (SELECT COUNT(*) FROM deliveries)",
        )
        assert jobs == payloads == events == deliveries > 0
        assert await sql(file_url, "PRAGMA integrity_check") == [("ok",)]


async def test_a_full_store_can_still_be_read_and_its_error_says_what_to_do(file_url: str) -> None:
    async with opened(file_url, max_bytes=SMALL) as store:
        await fill(store)
        assert await store.list_jobs(JobFilter(TENANT))
        with pytest.raises(StoreFull, match=r"store\.max_bytes"):
            await submit(store, payload=bytes(SMALL))


async def test_a_move_that_does_not_fit_does_not_happen(file_url: str) -> None:
    async with opened(file_url, max_bytes=SMALL) as store:
        job = await running(store)
        await fill(store)
        before = await trace(store, job.id)
        with pytest.raises(StoreFull):
            await move(store, job, "succeed", result=bytes(SMALL))
        assert await trace(store, job.id) == before


async def test_a_full_store_goes_on_as_soon_as_there_is_room(file_url: str, clock: Clock) -> None:
    async with opened(file_url, clock, max_bytes=SMALL) as store:
        for _ in range(5):
            await job_in(store, State.SUCCEEDED, payload=os.urandom(20_000))
        await fill(store)
        clock.advance(1000)
        assert await store.prune(OldJobs(100), 100) == 5
        assert await store.get_job(await submit(store, payload=os.urandom(20_000))) is not None


async def test_a_raised_limit_makes_room(file_url: str) -> None:
    async with opened(file_url, max_bytes=SMALL) as store:
        await fill(store)
    async with opened(file_url, max_bytes=2 * SMALL) as store:
        await submit(store, payload=os.urandom(20_000))


@pytest.mark.parametrize("priority", [99, 2**70], ids=["refused", "unsendable"])
async def test_a_write_refused_by_a_full_store_leaves_nothing_behind_for_its_caller(
    file_url: str, priority: int
) -> None:
    """Also if the group was split because another operation was invalid."""
    async with opened(file_url, max_bytes=SMALL) as store:
        jobs = [a_job(), a_job(priority=priority), a_job(payload=bytes(SMALL)), a_job()]
        answers = await asyncio.gather(*map(_submit, [store] * 4, jobs), return_exceptions=True)
        there = [await store.get_job(job.id) is not None for job in jobs]
        assert there == [isinstance(answer, str) for answer in answers]
        assert isinstance(answers[1], BadRequest)
        assert isinstance(answers[2], StoreFull)


# SQLite: a bad place, a damaged file ------------------------------------------------------------------------------------


async def test_a_file_in_place_of_the_directory_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    with pytest.raises(StoreUnavailable, match="data"):
        await open_store(f"sqlite:///{tmp_path}/data/chargehand.db")


async def test_a_directory_in_place_of_the_file_is_named_in_the_error(directory: Path) -> None:
    with pytest.raises(StoreUnavailable):
        await open_store(f"sqlite:///{directory}")


async def test_missing_directories_are_created_for_the_owner_only(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path}/new/data/chargehand.db"):
        assert (tmp_path / "new" / "data").stat().st_mode & 0o777 == 0o700


async def test_a_file_that_is_not_a_database_is_refused_and_not_changed(file_url: str, letter: bytes) -> None:
    with pytest.raises(StoreCorrupt, match="backup"):
        await open_store(file_url)
    assert contents(file_url) == letter


async def test_a_damaged_database_is_reported_at_its_first_use(file: Path, file_url: str) -> None:
    async with opened(file_url) as store:
        await submit_many(store, 50, payload=os.urandom(5000))
    await sql(file_url, "PRAGMA wal_checkpoint(TRUNCATE)")
    damaged = damage(file)
    with pytest.raises(StoreCorrupt):
        async with opened(file_url) as store:
            await store.list_jobs(JobFilter(TENANT))
    assert contents(file_url) == damaged


async def test_a_closed_store_is_one_file(file: Path, file_url: str) -> None:
    """So a copy of the file of a stopped server is complete."""
    async with opened(file_url) as store:
        await submit(store)
    assert sorted(os.listdir(file.parent)) == ["chargehand.db", "chargehand.db.lock"]


def contents(url: str) -> bytes:
    return Path(url.removeprefix("sqlite:///")).read_bytes()


# SQLite: the writer dies ------------------------------------------------------------------------------------------------


def kill_writer(store: Store) -> None:
    os.kill(cast(SqliteStore, store)._process.pid, signal.SIGKILL)


async def test_when_the_writer_dies_callers_and_server_get_an_error(file_url: str) -> None:
    async with opened(file_url) as store:
        job_id = await submit(store)
        ended = asyncio.create_task(store.ended())
        kill_writer(store)
        answers = await asyncio.gather(*[submit(store) for _ in range(20)], return_exceptions=True)
        assert {type(answer) for answer in answers} == {StoreUnavailable}
        async with asyncio.timeout(5):
            assert "process" in await ended
        with pytest.raises(StoreUnavailable):
            await store.check()
        assert await store.get_job(job_id) is not None, "reading goes on"


async def test_nothing_acknowledged_is_lost_when_the_writer_dies(file_url: str) -> None:
    acknowledged: list[str] = []

    async def keep_submitting(store: Store) -> None:
        with suppress(StoreUnavailable):
            while True:
                acknowledged.append(await submit(store))
                if len(acknowledged) == 100:
                    kill_writer(store)

    async with opened(file_url) as store:
        await asyncio.gather(*[keep_submitting(store) for _ in range(16)])
    async with opened(file_url) as store:
        kept = {job.id for job in await store.list_jobs(JobFilter(TENANT, limit=10_000))}
        assert len(acknowledged) >= 100
        assert kept >= set(acknowledged)
        assert await sql(file_url, "PRAGMA integrity_check") == [("ok",)]


async def test_a_store_that_was_not_closed_releases_the_file_when_its_writer_ends(file_url: str) -> None:
    async with opened(file_url) as first:
        kill_writer(first)
        async with opened(file_url) as second:
            await submit(second)


# PostgreSQL: the connection is lost -------------------------------------------------------------------------------------


@pytest.fixture
async def node(postgres_url: str) -> AsyncIterator[Store]:
    async with opened(postgres_url, pool_size=4) as store:
        yield store


async def test_a_connection_lost_in_mid_write_is_reported_and_the_next_call_works(
    node: Store, postgres_url: str
) -> None:
    job_id = await submit(node)
    await node.write(SetQueue(QueueSettings(a_queue("q"), max_running=5)))
    holder = await asyncpg.connect(postgres_url)
    async with holder.transaction():
        await holder.execute("SELECT 1 FROM queue_settings FOR UPDATE")
        claiming = asyncio.create_task(claim(node))
        await until_held_up(holder, claiming)
        await holder.execute(KILL)
        with pytest.raises(StoreUnavailable):
            await claiming
    await holder.close()
    assert await claimed_ids(node) == [job_id], "nothing of the lost claim remains"


async def test_reads_and_writes_recover_from_lost_connections_without_reopening(node: Store, postgres_url: str) -> None:
    acknowledged: list[str] = []
    refused = 0

    async def keep_submitting() -> None:
        nonlocal refused
        while len(acknowledged) < 300:
            try:
                acknowledged.append(await submit(node))
                if len(acknowledged) in (50, 100, 150):
                    await sql(postgres_url, KILL)
                await node.get_job(acknowledged[-1])
            except StoreUnavailable:
                refused += 1

    async with asyncio.timeout(30):
        await asyncio.gather(*[keep_submitting() for _ in range(8)])
    kept = {job.id for job in await node.list_jobs(JobFilter(TENANT, limit=10_000))}
    assert kept >= set(acknowledged)
    assert refused <= 3 * 16, "each kill fails only the calls that were under way"
    await node.check()


# PostgreSQL: an address that does not work ------------------------------------------------------------------------------

PASSWORD = "open-sesame"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{PASSWORD}@127.0.0.1:1/db",
        f"postgresql://user:{PASSWORD}@no-such-host.invalid/db",
        f"postgresql://user:{PASSWORD}@/db?host=/no/such/socket",
        f"postgresql://user:{PASSWORD}@127.0.0.1:port/db",
        f"postgresql://user:{PASSWORD}/unquoted@127.0.0.1/db",
        f"postgresql://user:{PASSWORD}@127.0.0.1:1/db?sslmode=nonsense",
    ],
    ids=["nobody listens", "unknown host", "no socket", "no port", "a slash in the password", "unknown option"],
)
async def test_the_error_for_an_unreachable_database_does_not_contain_the_password(url: str) -> None:
    with pytest.raises(ChargehandError) as caught:
        await open_store(url)
    assert PASSWORD not in str(caught.value)
    assert PASSWORD not in str(caught.value.__cause__)
    assert str(caught.value)


async def test_a_database_or_user_that_does_not_exist_is_named(postgres_url: str) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere"):
        await open_store(postgres_url.replace("/test_", "/nowhere_"))
    with pytest.raises(StoreUnavailable, match="nobody"):
        await open_store(postgres_url.replace("postgres:@", "nobody:@"))


@pytest.mark.xdist_group("hba_file")  # which both tests change
async def test_a_wrong_password_is_refused_and_not_repeated(postgres_url: str) -> None:
    [(rules,)] = await sql(postgres_url, "SHOW hba_file")
    user = f"user_{new_id().lower()}"
    await sql(postgres_url, f"CREATE ROLE {user} LOGIN SUPERUSER PASSWORD 'another'")
    with password_needed(Path(rules), user):
        await sql(postgres_url, "SELECT pg_reload_conf()")
        with pytest.raises(StoreUnavailable, match="password") as caught:
            await open_store(postgres_url.replace("postgres:@", f"{user}:{PASSWORD}@"))
        assert PASSWORD not in str(caught.value)
        async with opened(postgres_url.replace("postgres:@", f"{user}:another@")) as store:
            await store.check()
    await sql(postgres_url, "SELECT pg_reload_conf()")


@pytest.mark.xdist_group("hba_file")
async def test_a_new_password_is_read_from_the_password_file_for_the_next_connection(
    postgres_url: str, tmp_path: Path
) -> None:
    [(rules,)] = await sql(postgres_url, "SHOW hba_file")
    user, passwords = f"user_{new_id().lower()}", tmp_path / "pgpass"

    async def rotate(password: str) -> None:
        await sql(postgres_url, f"ALTER ROLE {user} PASSWORD '{password}'")
        passwords.write_text(f"*:*:*:{user}:{password}\n")
        passwords.chmod(0o600)

    await sql(postgres_url, f"CREATE ROLE {user} LOGIN SUPERUSER")
    await rotate("first")
    with password_needed(Path(rules), user):
        await sql(postgres_url, "SELECT pg_reload_conf()")
        async with opened(postgres_url.replace("postgres:@", f"{user}@") + f"&passfile={passwords}") as store:
            await rotate("second")
            await sql(postgres_url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'")

            async def works() -> bool:
                try:
                    return await get(store, await submit(store)) is not None
                except StoreUnavailable:  # on a connection that has just been closed
                    return False

            await until(works)
    await sql(postgres_url, "SELECT pg_reload_conf()")


# closing ----------------------------------------------------------------------------------------------------------------


async def test_closing_the_store_finishes_running_operations_and_refuses_later_ones(store_url: str) -> None:
    store = await open_store(store_url)
    job_id = await submit(store)
    under_way = asyncio.gather(*[store.write(Note(seen(job_id))) for _ in range(50)])
    await asyncio.sleep(0)
    await store.close()
    assert sorted(seq or 0 for seq in await under_way) == list(range(2, 52))
    with pytest.raises(StoreError):
        await store.write(Change(seen(job_id), "cancel"))
