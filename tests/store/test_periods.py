"""On PostgreSQL what is over lies in the tables of its period, and goes with them; what is not over yet stays."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from chargehand.engine.delivery import DeliveryState
from chargehand.engine.file import NewFile
from chargehand.engine.ids import UlidMaker
from chargehand.engine.job import FINAL, State
from chargehand.engine.moves import Change
from chargehand.engine.reads import DeliveryFilter, EndpointFilter, FileFilter
from chargehand.engine.store import OldJobs, Store
from chargehand.errors import StoreError
from chargehand.store.postgres import periods
from chargehand.store.postgres.store import PostgresStore
from tests.conftest import Clock
from tests.store.flow_given import a_flow, end, id_of
from tests.store.given import (
    TENANT,
    a_job,
    a_report,
    a_settle,
    a_take,
    get,
    move,
    new_id,
    opened,
    seen,
    sql,
    take_one,
)

LIFE = 8 * 3600.0  # seconds that finished jobs are kept: a period is an hour
OLD = OldJobs(LIFE)


class Shop:
    """A store in whose first period we are, and jobs with all that they leave behind."""

    def __init__(self, store: Store, url: str, clock: Clock) -> None:
        self.store = store
        self.url = url
        self.clock = clock
        self.new_id = UlidMaker(now_ms=lambda: clock.now // 1000)

    async def submit(self, **fields: Any) -> str:
        job_id = self.new_id()
        job = a_job(**{"id": job_id, "queue": job_id, "reports": (a_report(),), **fields})
        assert (await self.store.write(job)).created
        await self.store.write(NewFile(new_id(), TENANT, "a.txt", "text/plain", 1, "0" * 64, job_id))
        return job_id

    async def finish(self, job_id: str, how: str = "succeed") -> str:
        job = await take_one(self.store, (await get(self.store, job_id)).queue)
        assert await move(self.store, job, how, result=b"result" if how == "succeed" else None)
        return job_id

    async def deliver(self, state: DeliveryState = DeliveryState.DELIVERED) -> None:
        taken = await self.store.write(a_take(limit=1000))
        for delivery_id, lease in zip(taken.ids, taken.leases, strict=True):
            assert await self.store.write(a_settle(delivery_id, lease, state))

    async def finished(self, **fields: Any) -> str:
        job_id = await self.finish(await self.submit(**fields))
        await self.deliver()
        return job_id

    async def rows(self, table: str, column: str = "job_id") -> set[str]:
        return {row[0] for row in await sql(self.url, f"SELECT {column} FROM {table}")}

    async def trace(self, job_id: str) -> list[object]:
        """Return all that can be read of a job."""
        deliveries = await self.store.list_deliveries(DeliveryFilter(job_id=job_id))
        return [
            await self.store.get_job(job_id),
            await self.store.list_events(job_id),
            sorted(each.id for each in deliveries),
            [await self.store.list_tries(each.id) for each in deliveries],
            await self.store.list_files(FileFilter(TENANT, job_id=job_id)),
        ]


@pytest.fixture
async def shop(postgres_url: str, clock: Clock) -> AsyncIterator[Shop]:
    async with opened(postgres_url, clock) as store:
        await store.prune(OLD, 10)  # makes the first period, a minute from now
        clock.advance(61)
        yield Shop(store, postgres_url, clock)


async def tables(shop: Shop) -> int:
    """Return how many tables periods have."""
    [(count,)] = await sql(shop.url, "SELECT COUNT(*) FROM pg_class WHERE relkind = 'r' AND relname ~ '_0[0-9a-z]{9}$'")
    return int(count)


async def test_all_rows_of_old_jobs_go_with_the_tables_of_their_period(shop: Shop) -> None:
    for how in ("succeed", "fail", "cancel"):
        await shop.finish(await shop.submit(idempotency_key=how), how)
    await shop.deliver()
    [(lonely,)] = await sql(shop.url, "SELECT COUNT(*) FROM jobs_over_rest")
    assert lonely == 0
    assert await tables(shop) == len(periods.TABLES)
    shop.clock.advance(LIFE + 3600 + 60)
    assert await shop.store.prune(OLD, 10) == 0  # no row was removed one by one
    for table in ("job_payloads", "job_results", "job_events", "deliveries", "delivery_tries", "job_keys", "files"):
        assert await shop.rows(table) == set(), table
    assert await shop.rows("jobs", "id") == set()
    assert await shop.store.list_endpoints(EndpointFilter(None, "", 10)) == []
    assert await tables(shop) == len(periods.TABLES)  # of the next period
    assert (await shop.store.write(a_job(idempotency_key="succeed"))).created


async def test_no_job_goes_before_its_time(shop: Shop) -> None:
    job_id = await shop.finished()
    before = await shop.trace(job_id)
    shop.clock.advance(LIFE + 3500)
    await shop.store.prune(OLD, 10)
    assert await shop.trace(job_id) == before


async def test_what_outlives_its_period_stays_with_all_that_belongs_to_it_until_its_own_time(shop: Shop) -> None:
    queued = await shop.submit()
    running = await shop.submit()
    await take_one(shop.store, running)
    later = await shop.submit()
    kept = await shop.finish(await shop.submit(keep_seconds=30 * LIFE))
    await shop.deliver()
    await shop.finished(keep_seconds=60)
    await shop.finished()
    pending = await shop.finish(await shop.submit())
    shop.clock.advance(LIFE)
    await shop.finish(later)
    shop.clock.advance(3700)
    left = [queued, running, later, kept, pending]
    before = {job_id: await shop.trace(job_id) for job_id in left}
    await shop.store.prune(OLD, 10)
    assert await shop.rows("jobs", "id") == set(left)
    for job_id in left:
        assert await shop.trace(job_id) == before[job_id], left.index(job_id)
    for table in ("job_payloads", "job_events", "files"):
        assert await shop.rows(table) == set(left), table
    await shop.deliver()
    shop.clock.advance(LIFE + 1)
    assert await shop.store.prune(OLD, 10) == 2  # later and pending, from the rest
    assert await shop.rows("jobs", "id") == {queued, running, kept}


async def test_a_finished_step_outlives_its_period_with_its_flow(shop: Shop) -> None:
    flow, over = [a_flow({"a": [], "b": ["a"]}, make_id=shop.new_id) for _ in range(2)]
    for each in (flow, over):
        await shop.store.write(each)
        await end(shop.store, each, "a")
    await end(shop.store, over, "b")
    shop.clock.advance(LIFE + 3700)
    await shop.store.prune(OLD, 10)
    assert await shop.rows("jobs", "id") == {flow.job.id, *(step.job.id for step in flow.steps)}
    assert await shop.rows("flow_steps") == {flow.job.id}
    assert (await get(shop.store, id_of(flow, "a"))).result == b'"done"'
    await end(shop.store, flow, "b")
    shop.clock.advance(LIFE + 1)
    assert [await shop.store.prune(OLD, 10) for _ in range(2)] == [1, 2]  # the flow, then its steps
    for table, column in (
        ("jobs", "id"),
        ("job_payloads", "job_id"),
        ("job_events", "job_id"),
        ("flow_steps", "job_id"),
    ):
        assert await shop.rows(table, column) == set(), table


async def test_the_keys_of_what_outlives_its_period_stay_and_those_of_all_others_are_free(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periods, "KEYS_AT_A_TIME", 2)
    queued = await shop.submit(idempotency_key="queued")
    kept = await shop.finished(idempotency_key="kept", keep_seconds=30 * LIFE)
    for n in range(5):
        await shop.finished(idempotency_key=f"gone {n}")
    pending = await shop.finish(await shop.submit(idempotency_key="pending"))
    shop.clock.advance(LIFE + 3700)
    await shop.store.prune(OLD, 10)
    assert await shop.rows("job_keys") == await shop.rows("jobs", "id") == {queued, kept, pending}


async def test_a_job_that_outlived_its_period_can_still_do_all_that_jobs_do(shop: Shop) -> None:
    job_id = await shop.submit()
    shop.clock.advance(LIFE + 3700)
    await shop.store.prune(OLD, 10)
    await shop.finish(job_id, "fail")
    assert await shop.store.write(Change(seen(job_id), "requeue"))
    await shop.finish(job_id)
    job = await get(shop.store, job_id)
    assert (job.state, job.payload, job.result) == (State.SUCCEEDED, b"{}", b"result")
    assert [event.move for event in await shop.store.list_events(job_id)][-3:] == ["requeue", "claim", "succeed"]


async def test_a_turn_that_was_broken_off_is_completed_by_the_next(shop: Shop) -> None:
    await shop.finished()
    kept = await shop.submit()
    shop.clock.advance(LIFE + 3700)
    connection = await asyncpg.connect(shop.url)
    [row] = await connection.fetch("SELECT first_id, until_id FROM periods")
    async with connection.transaction():
        await periods._drop_jobs(connection, periods.Period(*row), shop.clock.now, int(LIFE * 1_000_000))
    await connection.close()
    assert await shop.rows("jobs", "id") == {kept}
    await shop.store.prune(OLD, 10)
    for table in ("job_payloads", "job_events", "files"):
        assert await shop.rows(table) == {kept}, table
    assert await tables(shop) == len(periods.TABLES)


async def test_two_nodes_make_and_drop_one_period_together(postgres_url: str, clock: Clock) -> None:
    async with opened(postgres_url, clock) as one, opened(postgres_url, clock) as other:
        for _ in range(3):
            await asyncio.gather(one.prune(OLD, 10), other.prune(OLD, 10))
            assert len(await sql(postgres_url, "SELECT 1 FROM periods")) == 1
            clock.advance(10 * LIFE)


async def test_a_turn_gives_up_and_harms_nobody_while_somebody_reads_for_long(shop: Shop) -> None:
    job_id = await shop.finished()
    shop.clock.advance(LIFE + 3700)
    reader = await asyncpg.connect(shop.url)
    async with reader.transaction():
        await reader.execute("SELECT 1 FROM jobs")
        with pytest.raises(StoreError, match="lock timeout"):
            await shop.store.prune(OLD, 10)
        assert await shop.store.get_job(job_id) is not None
    await reader.close()
    await shop.store.prune(OLD, 10)
    assert await shop.store.get_job(job_id) is None


async def test_jobs_are_taken_and_finished_while_periods_are_dropped(shop: Shop) -> None:
    for _ in range(5):
        await shop.finished()
    shop.clock.advance(LIFE + 3700)
    pruning = asyncio.create_task(shop.store.prune(OLD, 10))
    done = await asyncio.gather(*(shop.finished() for _ in range(20)))
    await pruning
    assert await shop.rows("jobs", "id") == set(done)
    assert {(await get(shop.store, job_id)).state for job_id in done} <= FINAL


async def test_a_period_is_not_made_over_rows_of_the_future_and_the_error_says_why(shop: Shop) -> None:
    shop.clock.advance(7200)
    await shop.finished()  # in no period, so in the rest
    shop.clock.advance(-3600)
    with pytest.raises(StoreError, match="clock"):
        await shop.store.prune(OLD, 10)
    assert isinstance(shop.store, PostgresStore)
    assert len(await sql(shop.url, "SELECT 1 FROM periods")) == 1


async def test_the_key_of_a_job_that_was_not_taken_for_its_unique_key_is_free(shop: Shop) -> None:
    first = await shop.submit(queue="q", unique_key="u")
    refused = await shop.store.write(a_job(unique_key="u", idempotency_key="k"))
    assert (refused.job_id, refused.created) == (first, False)
    assert (await shop.store.write(a_job(idempotency_key="k"))).created
