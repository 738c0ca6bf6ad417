"""On PostgreSQL what is over lies in the tables of its period, and goes with them; what is not over yet stays."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest

from chargehand.engine.delivery import DeliveryState
from chargehand.engine.file import NewFile
from chargehand.engine.ids import UlidMaker, first_id_at
from chargehand.engine.job import FINAL, SECOND, State
from chargehand.engine.moves import Change
from chargehand.engine.reads import DeliveryFilter, EndpointFilter, FileFilter
from chargehand.engine.store import OldJobs, OldPeriods, Store
from chargehand.errors import StoreError, StoreUnavailable
from chargehand.store.postgres import periods
from chargehand.store.postgres.connecting import Connection
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
    until_held_up,
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

    async def turn(self) -> int:
        """Do what the two chores do; return how many jobs were removed one by one."""
        for _ in range(20):
            with contextlib.suppress(StoreUnavailable):  # it waits for no lock for long, autovacuum's included
                return await self.try_turn()
        return await self.try_turn()

    async def try_turn(self) -> int:
        await self.store.prune(OldPeriods(LIFE), 1)
        return await self.store.prune(OLD, 10)

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
        await store.prune(OldPeriods(LIFE), 1)  # opens the first period, a minute from now, and the one after it
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
    assert await tables(shop) == 2 * len(periods.TABLES)
    shop.clock.advance(LIFE + 3600 + 60)
    assert await shop.turn() == 0  # no row was removed one by one
    for table in ("job_payloads", "job_results", "job_events", "deliveries", "delivery_tries", "job_keys", "files"):
        assert await shop.rows(table) == set(), table
    assert await shop.rows("jobs", "id") == set()
    assert await shop.store.list_endpoints(EndpointFilter(None, "", 10)) == []
    assert await tables(shop) == 2 * len(periods.TABLES)  # of the next periods
    assert (await shop.store.write(a_job(idempotency_key="succeed"))).created


async def test_no_job_goes_before_its_time(shop: Shop) -> None:
    job_id = await shop.finished()
    before = await shop.trace(job_id)
    shop.clock.advance(LIFE + 3500)
    await shop.turn()
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
    await shop.turn()
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
    await shop.turn()
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


async def test_flows_that_are_over_keep_no_period(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periods, "MOST_MOVED", 0)
    flow = a_flow({"a": [], "b": ["a"]}, make_id=shop.new_id)
    await shop.store.write(flow)
    for name in ("a", "b"):
        await end(shop.store, flow, name)
    shop.clock.advance(LIFE + 3700)
    assert await shop.turn() == 0
    assert await shop.rows("jobs", "id") == await shop.rows("flow_steps") == set()


async def test_the_keys_of_what_outlives_its_period_stay_and_those_of_all_others_are_free(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periods, "AT_A_TIME", 2)
    queued = await shop.submit(idempotency_key="queued")
    kept = await shop.finished(idempotency_key="kept", keep_seconds=30 * LIFE)
    for n in range(5):
        await shop.finished(idempotency_key=f"gone {n}")
    pending = await shop.finish(await shop.submit(idempotency_key="pending"))
    shop.clock.advance(LIFE + 3700)
    await shop.turn()
    assert await shop.rows("job_keys") == await shop.rows("jobs", "id") == {queued, kept, pending}


async def test_a_job_that_outlived_its_period_can_still_do_all_that_jobs_do(shop: Shop) -> None:
    job_id = await shop.submit()
    shop.clock.advance(LIFE + 3700)
    await shop.turn()
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
    row = await connection.fetchrow("SELECT first_id, until_id FROM periods ORDER BY first_id")
    assert row is not None
    async with connection.transaction():
        await periods._take_out_jobs(connection, periods.Period(*row), shop.clock.now, int(LIFE * 1_000_000))
    await connection.close()
    assert await shop.rows("jobs", "id") == {kept}
    await shop.turn()
    for table in ("job_payloads", "job_events", "files"):
        assert await shop.rows(table) == {kept}, table
    assert await tables(shop) == 2 * len(periods.TABLES)


async def test_two_nodes_make_and_drop_one_period_together(postgres_url: str, clock: Clock) -> None:
    async with opened(postgres_url, clock) as one, opened(postgres_url, clock) as other:
        for _ in range(3):
            await asyncio.gather(one.prune(OldPeriods(LIFE), 1), other.prune(OldPeriods(LIFE), 1))
            assert len(await sql(postgres_url, "SELECT 1 FROM periods")) == 2
            clock.advance(10 * LIFE)


async def test_a_turn_gives_up_and_harms_nobody_while_somebody_reads_for_long(shop: Shop) -> None:
    job_id = await shop.finished()
    shop.clock.advance(LIFE + 3700)
    reader = await asyncpg.connect(shop.url)
    async with reader.transaction():
        await reader.execute("SELECT 1 FROM jobs")
        with pytest.raises(StoreError, match="lock timeout"):
            await shop.try_turn()
        assert await shop.store.get_job(job_id) is not None
    await reader.close()
    await shop.turn()
    assert await shop.store.get_job(job_id) is None


async def test_jobs_are_taken_and_finished_while_periods_are_dropped(shop: Shop) -> None:
    for _ in range(5):
        await shop.finished()
    shop.clock.advance(LIFE + 3700)
    pruning = asyncio.create_task(shop.turn())
    done = await asyncio.gather(*(shop.finished() for _ in range(20)))
    with contextlib.suppress(StoreError):  # on a busy machine it may have given up, so that they need not wait
        await pruning
    await shop.turn()
    assert await shop.rows("jobs", "id") == set(done)
    assert {(await get(shop.store, job_id)).state for job_id in done} <= FINAL


async def test_rows_by_a_clock_that_is_early_go_into_the_period_of_their_time(shop: Shop) -> None:
    shop.clock.advance(6 * 3600)
    early = await shop.finished(idempotency_key="early")
    before = await shop.trace(early)
    shop.clock.advance(-6 * 3600)
    for _ in range(7):
        await shop.turn()
        assert await shop.trace(early) == before
        shop.clock.advance(3600)
    assert not await shop.rows("jobs_over_rest", "id")
    shop.clock.advance(LIFE + 3600)
    assert await shop.turn() == 0
    assert await shop.rows("jobs", "id") == await shop.rows("job_keys") == set()


async def test_the_first_period_takes_its_rows_out_of_the_rest(postgres_url: str, clock: Clock) -> None:
    async with opened(postgres_url, clock) as store:
        shop = Shop(store, postgres_url, clock)
        lonely = await shop.finished()
        clock.advance(7200)
        early = await shop.finished()
        before = await shop.trace(early)
        clock.advance(-7200)
        await shop.turn()
        assert await shop.trace(early) == before
        assert await shop.rows("jobs_over_rest", "id") == await shop.rows("job_events_rest") == {lonely}


async def test_the_rest_is_not_looked_through_while_others_wait(shop: Shop) -> None:
    """PostgreSQL says when it need not."""
    said: list[str] = []
    connection = await asyncpg.connect(shop.url, server_settings={"client_min_messages": "debug1"})
    connection.add_log_listener(lambda _, message: said.append(message.message))
    shop.clock.advance(3600)
    await periods.turn(connection, shop.clock.now, int(LIFE * SECOND))
    for table in periods.TABLES:
        proven = f'updated partition constraint for default partition "{table}_rest" is implied by existing constraints'
        assert said.count(proven) == 2, table  # for the period that ends, and for the one that begins
    await connection.close()


async def test_no_caller_is_refused_between_the_steps_by_which_a_period_is_made(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove, seen_there = periods._prove, []

    async def finish_meanwhile(connection: Connection, before: periods.Period, tables: Sequence[str]) -> None:
        await prove(connection, before, tables)
        for seconds in (0, 3600, 2 * 3600, 100 * 3600):  # now, in the period that ends, in the next one, and far beyond
            shop.clock.advance(seconds)
            seen_there.append(await shop.finished(idempotency_key=str(seconds)))
            shop.clock.advance(-seconds)

    monkeypatch.setattr(periods, "_prove", finish_meanwhile)
    shop.clock.advance(1800)
    await shop.turn()
    assert len(seen_there) == 4
    assert await shop.rows("jobs", "id") == await shop.rows("job_events") == set(seen_there)
    assert await shop.rows("jobs_over_rest", "id") == set()


async def test_a_period_whose_making_was_broken_off_is_completed_by_the_next_turn(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.clock.advance(1800)
    reader = await asyncpg.connect(shop.url)
    async with reader.transaction():
        await reader.execute("SELECT 1 FROM job_events")
        with pytest.raises(StoreError, match="lock timeout"):
            await shop.try_turn()
        await shop.finished()
    await reader.close()
    assert await tables(shop) < 3 * len(periods.TABLES)
    await shop.turn()
    assert await tables(shop) == 3 * len(periods.TABLES)
    shop.clock.advance(3600)
    job_id = await shop.finished()
    [_, (first, _), _] = sorted(await sql(shop.url, "SELECT first_id, until_id FROM periods"))
    for table in ("job_events", "deliveries_over"):
        assert await shop.rows(periods.Period(first, "").of(table)) >= {job_id}


async def test_a_table_that_is_too_large_is_divided_at_a_start_where_no_other_node_is(
    postgres_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.now = (await sql(postgres_url, "SELECT (EXTRACT(EPOCH FROM NOW()) * 1000000)::BIGINT"))[0][0]
    async with opened(postgres_url, clock) as store:
        shop = Shop(store, postgres_url, clock)
        job_id = await shop.finished()
        monkeypatch.setattr(periods, "MOST_SCANNED", 0)
        with pytest.raises(StoreError, match="jobs_over_rest is too large"):
            await store.prune(OldPeriods(LIFE), 1)
        async with opened(postgres_url, clock):
            assert await sql(postgres_url, "SELECT 1 FROM periods") == []  # another node would wait for it
        clock.advance(LIFE + 1)
        assert await store.prune(OLD, 10) == 1  # one by one
        assert await store.get_job(job_id) is None
    async with opened(postgres_url, clock) as store:
        assert len(await sql(postgres_url, "SELECT 1 FROM periods")) == 1


FILL = """
INSERT INTO jobs_over
SELECT '{prefix}' || LPAD(n::TEXT, 16, '0'), 'job', 'acme', 'q', '', 'succeeded', '', 'succeeded', '', 1, 0, {now}, 1, 1, 0, NULL, NULL,
       '', NULL, NULL, '{prefix}' || n, 'f', '', '', '', NULL, NULL, NULL, {keep}, {now}::BIGINT + {keep}, 3, {now}, {now}, {now}
FROM GENERATE_SERIES(1, {count}) n;
INSERT INTO job_keys SELECT tenant, kind, idempotency_key, id, fingerprint FROM jobs_over WHERE id ~ '^{prefix}';
INSERT INTO job_payloads SELECT id, '1' FROM jobs_over WHERE id ~ '^{prefix}'"""


async def fill(shop: Shop, count: int, keep_seconds: float | None = None) -> None:
    """Let jobs end now, each with a key."""
    keep = "NULL" if keep_seconds is None else int(keep_seconds * SECOND)
    values = {"prefix": first_id_at(shop.clock.now)[:10], "now": shop.clock.now, "keep": keep, "count": count}
    connection = await asyncpg.connect(shop.url)
    await connection.execute(FILL.format(**values))
    await connection.execute("ANALYZE")
    await connection.close()
    shop.clock.advance(1)


async def test_a_period_that_very_many_outlive_stays_and_its_old_jobs_go_one_by_one(shop: Shop) -> None:
    await fill(shop, 100_000, keep_seconds=30 * LIFE)
    await fill(shop, 5)
    shop.clock.advance(LIFE + 3700)
    assert await shop.turn() == 0
    assert len(await shop.rows("job_keys")) == 100_005
    shop.clock.advance(LIFE / 8)
    assert await shop.turn() == 5
    assert len(await shop.rows("job_keys")) == len(await shop.rows("jobs", "id")) == 100_000


async def test_very_many_keys_and_jobs_go_with_their_period(shop: Shop) -> None:
    await fill(shop, 100_000)
    await fill(shop, 3_000, keep_seconds=30 * LIFE)
    shop.clock.advance(LIFE + 3700)
    assert await shop.turn() == 0
    assert len(await shop.rows("jobs_over_rest", "id")) == 3_000
    assert await shop.rows("job_keys") == await shop.rows("job_payloads") == await shop.rows("jobs", "id")


async def more_events(shop: Shop, job_id: str, count: int) -> None:
    rows = f"SELECT '{job_id}', n, 0, 'info', 'note', 'queued', '', '', 0, '', '' FROM GENERATE_SERIES(2, {count}) n"
    await sql(shop.url, f"INSERT INTO job_events {rows} ON CONFLICT DO NOTHING")


async def test_a_period_whose_jobs_can_be_moved_while_others_wait_is_dropped(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periods, "MOST_MOVED", 10)
    queued = [await shop.submit() for _ in range(2)]
    await more_events(shop, queued[0], 9)
    shop.clock.advance(LIFE + 3700)
    assert await shop.turn() == 0
    assert await tables(shop) == 2 * len(periods.TABLES)
    assert [len(await shop.store.list_events(job_id)) for job_id in queued] == [9, 1]


@pytest.mark.parametrize("many", ["events", "long results"])
async def test_a_period_that_few_jobs_with_much_outlive_stays_whole(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, many: str
) -> None:
    monkeypatch.setattr(periods, "MOST_MOVED", 10)
    gone = await shop.finished()
    kept = await shop.finished(keep_seconds=30 * LIFE)
    if many == "events":
        await more_events(shop, kept, 20)
    else:
        await sql(shop.url, f"UPDATE job_results SET result = '{'x' * 200_000}' WHERE job_id = '{kept}'")
        await sql(shop.url, "ALTER TABLE job_results ALTER result SET STORAGE EXTERNAL")
        await sql(shop.url, f"UPDATE job_results SET result = result || 'y' WHERE job_id = '{kept}'")
    shop.clock.advance(LIFE + 3700)
    await shop.turn()
    assert await shop.rows("jobs", "id") == {gone, kept}  # not yet
    shop.clock.advance(LIFE / 8)
    assert await shop.turn() == 1
    assert await shop.rows("jobs", "id") == await shop.rows("job_events") == {kept}
    monkeypatch.setattr(periods, "MOST_MOVED", 1000)
    await shop.turn()
    assert await shop.rows("jobs_over_rest", "id") == await shop.rows("job_results_rest") == {kept}


async def test_a_job_is_never_there_without_its_key(shop: Shop) -> None:
    job_id = await shop.finished(idempotency_key="k")
    shop.clock.advance(LIFE + 3590)
    await shop.turn()  # opens the next period; that of the job is over in ten seconds
    shop.clock.advance(10)
    reader = await asyncpg.connect(shop.url)  # as pg_dump
    async with reader.transaction():
        await reader.execute("SELECT 1 FROM jobs")
        with pytest.raises(StoreError, match="lock timeout"):
            await shop.try_turn()
        again = await shop.store.write(a_job(idempotency_key="k"))
        assert (again.job_id, again.created) == (job_id, False)
    await reader.close()
    await shop.turn()
    assert (await shop.store.write(a_job(idempotency_key="k"))).created


async def test_jobs_are_removed_one_by_one_while_no_period_can_be_dropped(shop: Shop) -> None:
    job_id = await shop.finished(idempotency_key="k")
    shop.clock.advance(LIFE + 3700)
    reader = await asyncpg.connect(shop.url)
    async with reader.transaction():
        await reader.execute("SELECT 1 FROM jobs")
        shop.clock.advance(LIFE / 8)
        with pytest.raises(StoreError, match="lock timeout"):
            await shop.store.prune(OldPeriods(LIFE), 1)
        assert await shop.store.prune(OLD, 10) == 1
        assert await shop.store.get_job(job_id) is None
        assert await shop.rows("job_keys") == set()
    await reader.close()


async def test_the_store_is_ready_while_a_turn_takes_long(postgres_url: str, clock: Clock) -> None:
    async with opened(postgres_url, clock, pool_size=4) as store:
        holder, watcher = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
        async with holder.transaction():
            await holder.execute("LOCK TABLE periods IN ACCESS EXCLUSIVE MODE")
            turning = asyncio.create_task(store.prune(OldPeriods(LIFE), 1))
            await until_held_up(watcher, turning)
            await store.check()
            assert not turning.done()
        await turning
        await holder.close()
        await watcher.close()


async def test_a_node_leaves_periods_alone_while_another_is_at_it(shop: Shop) -> None:
    shop.clock.advance(LIFE + 3700)
    other = await asyncpg.connect(shop.url)
    await other.execute("SELECT pg_advisory_lock('periods'::REGCLASS::OID::BIGINT)")
    before = await sql(shop.url, "SELECT * FROM periods")
    await shop.turn()
    assert await sql(shop.url, "SELECT * FROM periods") == before
    await other.close()


async def test_the_key_of_a_job_that_was_not_taken_for_its_unique_key_is_free(shop: Shop) -> None:
    first = await shop.submit(queue="q", unique_key="u")
    refused = await shop.store.write(a_job(unique_key="u", idempotency_key="k"))
    assert (refused.job_id, refused.created) == (first, False)
    assert (await shop.store.write(a_job(idempotency_key="k"))).created
