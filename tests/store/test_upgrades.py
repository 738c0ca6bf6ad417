"""A database of every earlier release, opened by this one: nothing is lost, and all jobs continue."""

import secrets
from collections import Counter
from pathlib import Path

import pytest

from chargehand.engine.delivery import DeliveryState, Replay
from chargehand.engine.guard import Guard
from chargehand.engine.job import Job, State
from chargehand.engine.queue import Queue
from chargehand.engine.reads import DeliveryFilter, JobFilter
from chargehand.engine.records import Records
from chargehand.engine.store import Store
from tests.conftest import Clock
from tests.store.given import a_job, a_settle, a_take, claim, get, move, opened, sql
from tests.store.releases import RELEASES, restore
from tests.store.releases.story import ACME, AWAY, GLOBEX, HELD, HOUR, OTHER_SERIAL

TENANTS = (ACME, GLOBEX)


@pytest.fixture(scope="module")
def postgres_template() -> str:
    """Without tables: the release's own are restored."""
    return "template1"


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def store_url(store_url: str, release: str, tmp_path: Path) -> str:
    """Restore the release's database and return its URL."""
    await restore(release, store_url, tmp_path / "data")
    return store_url


@pytest.fixture
async def clock(clock: Clock, store_url: str) -> Clock:
    """Set the clock to a second after the last event there: leases are still valid, and delays have not ended."""
    [[clock.now]] = await sql(store_url, "SELECT MAX(updated_at) FROM jobs")
    clock.advance(1)
    return clock


async def another_database(postgres_url: str) -> str:
    """Return the URL of an empty database at the same server, to compare with."""
    name = f"new_{secrets.token_hex(6)}"
    await sql(postgres_url, f"CREATE DATABASE {name} TEMPLATE template1")
    path, _, options = postgres_url.partition("?")
    return f"{path.rpartition('/')[0]}/{name}?{options}"


async def jobs_of(store: Store, kind: str, tenant: str, name: str) -> list[Job]:
    """Return the jobs of a queue for all nodes, oldest first, with their payloads."""
    listed = await store.list_jobs(JobFilter(tenant, kind, name))
    return [await get(store, job.id) for job in reversed(listed) if job.queue == Queue(kind, tenant, name)]


async def only(store: Store, kind: str, tenant: str, name: str) -> Job:
    [job] = await jobs_of(store, kind, tenant, name)
    return job


async def claimed(store: Store, kind: str, tenant: str, name: str) -> list[Job]:
    return list((await claim(store, Queue(kind, tenant, name), limit=10)).jobs)


async def test_every_release_has_a_database_of_both_stores() -> None:
    assert "0.1.0" in RELEASES


def flat(queue: Queue) -> str:
    """Return the queue in the notation of 0.1.0."""
    return f"{queue.kind}/{queue.tenant}/{queue.name}" + (f" @{queue.node}" if queue.node else "")


async def test_every_job_is_unchanged_after_the_upgrade(store_url: str, clock: Clock) -> None:
    told = "id, tenant, kind, state, stage, topic, attempt, lease, lease_until, error, idempotency_key, seq"
    rows = await sql(store_url, f"SELECT {told} FROM jobs")
    queues = dict(await sql(store_url, "SELECT id, queue FROM jobs"))
    payloads = dict(await sql(store_url, "SELECT job_id, payload FROM job_payloads"))
    results = dict(await sql(store_url, "SELECT job_id, result FROM job_results"))
    events = Counter(job_id for [job_id] in await sql(store_url, "SELECT job_id FROM job_events"))
    async with opened(store_url, clock) as store:
        for row in rows:
            job = await get(store, row[0])
            assert tuple(getattr(job, name) for name in told.split(", ")) == row
            assert flat(job.queue) == queues[job.id]
            assert (job.payload, job.result) == (payloads[job.id], results.get(job.id))
            assert len(await store.list_events(job.id)) == events[job.id]
        tenants = {(await get(store, row[0])).tenant for row in rows}
        listed = [await store.list_jobs(JobFilter(tenant, limit=1000)) for tenant in tenants]
        assert sum(map(len, listed)) == len(rows) > 50


SCHEMA = {
    "sqlite": ["SELECT name, sql FROM sqlite_schema WHERE tbl_name <> 'schema_migrations' ORDER BY name"],
    "postgres": [
        """SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns
           WHERE table_schema = 'public' ORDER BY table_name, column_name""",
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY indexname",
    ],
}


async def test_the_tables_are_those_of_a_new_database(store: Store, store_url: str, tmp_path: Path) -> None:
    await store.check()
    if store_url.startswith("sqlite:"):
        dialect, new_url = "sqlite", f"sqlite:///{tmp_path}/new.db"
    else:
        dialect, new_url = "postgres", await another_database(store_url)
    async with opened(new_url):
        for query in SCHEMA[dialect]:
            assert await sql(store_url, query) == await sql(new_url, query)


STATES = {
    ("job", "waiting"): [State.QUEUED],
    ("job", "a/b/c @d"): [State.QUEUED],
    ("job", "deadline"): [State.QUEUED],
    ("job", "leased"): [State.RUNNING],
    ("job", "failed"): [State.FAILED],
    ("job", "succeeded"): [State.SUCCEEDED],
    ("job", "cancelled"): [State.CANCELLED],
    ("job", "paused/by/us"): [State.QUEUED],
    ("job", "limited"): [State.RUNNING, State.QUEUED],
    ("task", "render"): [State.QUEUED, State.QUEUED],
    ("task", "resize"): [State.RUNNING],
    ("task", "dead"): [State.FAILED],
    ("inference", AWAY): [State.QUEUED],
    ("inference", "Registry.Ollama.ai/library/Ready"): [State.QUEUED],
}


@pytest.mark.parametrize("tenant", TENANTS)
async def test_the_jobs_of_a_queue_are_found_by_its_name(store: Store, tenant: str) -> None:
    for (kind, name), states in STATES.items():
        jobs = await jobs_of(store, kind, tenant, name)
        assert [job.state for job in jobs] == states, name
        assert {(job.kind, job.tenant) for job in jobs} == {(kind, tenant)}


async def test_jobs_of_one_node_and_of_all_nodes_are_in_separate_queues(store: Store) -> None:
    shared = await jobs_of(store, "inference", ACME, HELD)
    assert Counter(job.state for job in shared) == {State.RUNNING: 1, State.QUEUED: 3}
    of_nodes = [job for job in await store.list_jobs(JobFilter(ACME, "inference", HELD)) if job.queue.node]
    assert sorted(job.state for job in of_nodes) == [State.QUEUED, State.RUNNING]
    assert [len(job.queue.node) for job in of_nodes] == [26, 26]
    assert {job.id for job in await claimed(store, "inference", ACME, HELD)} <= {job.id for job in shared}


async def test_a_server_with_a_colon_in_its_serial_keeps_its_paused_job(store: Store) -> None:
    assert (await only(store, "provision", ACME, OTHER_SERIAL)).state is State.QUEUED
    assert not await claimed(store, "provision", ACME, OTHER_SERIAL)
    assert [job.state for job in await jobs_of(store, "provision", ACME, "SN-1")] == [State.CANCELLED, State.RUNNING]


@pytest.mark.parametrize("tenant", TENANTS)
@pytest.mark.parametrize("name", ["waiting", "a/b/c @d", "keyed", "deadline"])
async def test_a_queued_job_is_claimed_and_finished(store: Store, tenant: str, name: str) -> None:
    [job] = await claimed(store, "job", tenant, name)
    assert (job.tenant, job.state, job.attempt) == (tenant, State.RUNNING, 1)
    assert await move(store, job, "succeed", result=b"42")
    assert (await get(store, job.id)).result == b"42"


@pytest.mark.parametrize(("kind", "name", "owner"), [("job", "leased", "worker-1"), ("task", "resize", ACME)])
async def test_a_lease_from_before_the_upgrade_is_still_valid(store: Store, kind: str, name: str, owner: str) -> None:
    job = await only(store, kind, ACME, name)
    guard = Guard(job.id, ACME, kind, job.lease, owner)
    assert guard.admits(job)
    assert not await claimed(store, kind, ACME, name)
    assert await move(store, job, "succeed", result=b"1")


async def test_a_lapsed_lease_is_found_after_the_upgrade(store: Store, clock: Clock) -> None:
    clock.advance(2 * HOUR)
    lapsed = {(job.kind, job.tenant) for job in await store.list_jobs(JobFilter(late="lease", limit=100))}
    assert lapsed == {("job", ACME), ("job", GLOBEX), ("task", ACME), ("task", GLOBEX)} | {
        (kind, ACME) for kind in ("inference", "batch", "provision")
    }


@pytest.mark.parametrize("kind_and_name", [("job", "delayed"), ("inference", "Registry.Ollama.ai/library/Ready")])
async def test_a_delayed_job_becomes_due_when_it_should(
    store: Store, clock: Clock, kind_and_name: tuple[str, str]
) -> None:
    kind, name = kind_and_name
    assert not await claimed(store, kind, ACME, name)
    clock.advance(HOUR)
    [job] = await claimed(store, kind, ACME, name)
    assert job.tenant == ACME


@pytest.mark.parametrize(("kind", "name"), [("job", "paused/by/us"), ("task", "paused")])
async def test_a_paused_queue_stays_paused(store: Store, kind: str, name: str) -> None:
    for tenant in TENANTS:
        assert not await claimed(store, kind, tenant, name)


async def test_the_limit_of_a_queue_still_holds(store: Store) -> None:
    assert not await claimed(store, "job", ACME, "limited")
    [running, _] = await jobs_of(store, "job", ACME, "limited")
    assert await move(store, running, "succeed")
    assert len(await claimed(store, "job", ACME, "limited")) == 1
    assert not await claimed(store, "job", ACME, "limited")


async def test_idempotency_and_unique_keys_are_still_taken(store: Store) -> None:
    keyed = await only(store, "job", ACME, "keyed")
    again = a_job(tenant=ACME, kind="job", queue="keyed", idempotency_key="order-17")
    assert (await store.write(again)).job_id == keyed.id
    unique = await only(store, "task", ACME, "unique")
    another = a_job(tenant=ACME, kind="task", queue="unique", unique_key="only-one")
    assert (await store.write(another)).job_id == unique.id
    elsewhere = a_job(tenant=ACME, kind="task", queue="other", unique_key="only-one")
    assert (await store.write(elsewhere)).created


async def test_dead_letters_are_counted_by_queue(store: Store) -> None:
    assert [queue.tenant for queue in await store.count_stopped("failed:dead")].count(ACME) == 1


@pytest.mark.parametrize("tenant", TENANTS)
async def test_pending_deliveries_continue_after_the_upgrade(store: Store, clock: Clock, tenant: str) -> None:
    found = await store.list_deliveries(DeliveryFilter(tenant=tenant))
    by_state = Counter(delivery.state for delivery in found if delivery.dialect != "foreman")
    assert by_state == {DeliveryState.PENDING: 2, DeliveryState.DEAD: 1, DeliveryState.DELIVERED: 1}
    [dead] = [delivery for delivery in found if delivery.state is DeliveryState.DEAD]
    assert await store.write(Replay(tenant, dead.id))
    pending = [delivery for delivery in found if delivery.state is DeliveryState.PENDING]
    takes = [a_take(delivery.url, tenant=tenant) for delivery in pending]
    assert not any([(await store.write(take)).ids for take in takes])
    clock.advance(HOUR)
    for delivery, take in zip(pending, takes, strict=True):
        taken = await store.write(take)
        assert taken.ids == (delivery.id,)
        [outgoing] = await store.outgoing(taken.ids)
        assert (outgoing.job.id, outgoing.job.tenant) == (delivery.job_id, tenant)
        assert await store.write(a_settle(delivery.id, taken.leases[0]))


async def test_records_of_doors_are_unchanged_after_the_upgrade(store_url: str, clock: Clock) -> None:
    rows = await sql(store_url, "SELECT kind, tenant, name, body, version, due_at FROM records")
    async with opened(store_url, clock) as store:
        for kind, tenant, name, body, version, due_at in rows:
            record = await Records(store).get(kind, tenant, name)
            assert record is not None
            assert (record.body, record.version, record.due_at) == (body, version, due_at)
    assert {"topic", "schedule", "subscription", "server", "provision-run"} <= {row[0] for row in rows}


async def test_queue_settings_are_kept_by_the_upgrade(store_url: str, clock: Clock) -> None:
    rows = await sql(store_url, "SELECT queue, paused, max_running FROM queue_settings")
    async with opened(store_url, clock) as store:
        settings = await store.list_queue_settings()
    assert {(flat(each.queue), each.paused, each.max_running) for each in settings} == {
        (queue, bool(paused), max_running) for queue, paused, max_running in rows
    }
    assert Queue("inference", ACME, AWAY) in {each.queue for each in settings}
