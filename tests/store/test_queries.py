"""The SQL statements, the lists, and that a read never waits for a write."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec
import pytest

from chargehand.engine import listing
from chargehand.engine.guard import Guard
from chargehand.engine.ids import UlidMaker, first_id_at
from chargehand.engine.job import SECOND, Job, State
from chargehand.engine.listing import list_full_page, list_page
from chargehand.engine.moves import Change
from chargehand.engine.queue import Queue
from chargehand.engine.reads import DeliveryFilter, FileFilter, JobFilter
from chargehand.engine.records import Records
from chargehand.engine.store import Store
from chargehand.store.postgres.connecting import READ_IN_ORDER, connect
from chargehand.store.postgres.store import IN_ORDER
from chargehand.store.queries import Dialect, Query, load_queries
from chargehand.store.sqlite.session import plan_once
from tests.conftest import Clock
from tests.store.given import (
    TENANT,
    a_queue,
    a_report,
    a_take,
    claim,
    get,
    get_endpoint,
    job_in,
    new_id,
    opened,
    running,
    seen,
    sql,
    submit,
    submit_many,
)

# The statements by which a claim looks for work: their cost must not grow with jobs that are not due, finished, or in other queues.
CLAIMING = (
    "due_priorities", "due_jobs", "running_in", "queue_settings", "recent_starts", "ready_keys", "jobs_of_keys", "keyless_jobs",
)  # fmt: skip
FILES = ("get_file", "list_files_of_job", "list_files", "blobs_in_use", "prunable_files", "prune_job_files")


# the statements ---------------------------------------------------------------------------------------------------------


async def test_every_statement_is_valid_in_its_database(store: Store, store_url: str) -> None:
    if store_url.startswith("sqlite:"):
        with apsw.Connection(store_url.removeprefix("sqlite:///")) as reader:
            for query in load_queries("sqlite").values():
                assert reader.execute(f"EXPLAIN {query.sql}", [None] * len(query.parameters)).fetchall(), query.name
        return
    connection = await asyncpg.connect(store_url)
    for query in load_queries("postgres").values():
        prepared = await connection.prepare(query.sql)
        assert len(prepared.get_parameters()) == len(query.parameters), query.name
    await connection.close()


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_no_statement_contains_a_comment_that_would_hide_the_rest(dialect: Dialect) -> None:
    assert [query.name for query in load_queries(dialect).values() if "--" in query.sql or "\n" in query.sql] == []


def test_a_parameter_used_twice_is_bound_once() -> None:
    query = load_queries("sqlite")["beat_job"]
    assert len(query.parameters) == len(set(query.parameters))
    values: dict[str, Any] = {name: f"<{name}>" for name in query.parameters}
    assert query.bind(**values, ignored=1) == tuple(values.values())


def test_the_columns_of_a_job_are_read_in_the_order_of_its_fields() -> None:
    text = " ".join(load_queries("postgres")["get_job"].sql.split())
    columns = text.removeprefix("SELECT ").partition(" FROM ")[0].split(", ")
    first, _, *fields = Job.__struct_fields__
    assert [column.partition(".")[2] for column in columns] == [first, "kind", "tenant", "queue", "node", *fields]


async def test_a_claim_never_scans_or_sorts_the_jobs(tmp_path: Path) -> None:
    """On SQLite, whose plan depends only on the schema; PostgreSQL's depends on the rows too."""
    async with opened(f"sqlite:///{tmp_path}/jobs.db"):
        with apsw.Connection(f"{tmp_path}/jobs.db") as reader:
            for query in (load_queries("sqlite")[name] for name in CLAIMING):
                plan = reader.execute(f"EXPLAIN QUERY PLAN {query.sql}", [None] * len(query.parameters)).fetchall()
                steps = [str(step[-1]) for step in plan]
                assert "SCAN j" not in steps, query.name
                assert query.name != "due_jobs" or not [step for step in steps if "TEMP B-TREE" in step]


async def test_finding_files_never_scans_them(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path}/files.db"):
        with apsw.Connection(f"{tmp_path}/files.db") as reader:
            for query in (load_queries("sqlite")[name] for name in FILES):
                plan = reader.execute(f"EXPLAIN QUERY PLAN {query.sql}", [None] * len(query.parameters)).fetchall()
                steps = [str(step[-1]) for step in plan]
                assert not [step for step in steps if step.startswith(("SCAN f", "SCAN files"))], (query.name, steps)


OFTEN = (
    "insert_job", "insert_payload", "insert_event", "put_result", "claimable_jobs", "claim_job", "change_job", "changed_job",
    "beat_job", "note_job", "noted_job", "insert_delivery", "settle_delivery", "settled_delivery", "insert_try",
)  # fmt: skip


async def test_frequent_writes_create_no_temporary_table(tmp_path: Path) -> None:
    """SQLite creates one for RETURNING, and for an IN of three values in a CHECK: each costs as much as the write."""
    async with opened(f"sqlite:///{tmp_path}/jobs.db"):
        with apsw.Connection(f"{tmp_path}/jobs.db") as reader:
            for query in (load_queries("sqlite")[name] for name in OFTEN):
                program = reader.execute(f"EXPLAIN {query.sql}", [None] * len(query.parameters)).fetchall()
                assert "OpenEphemeral" not in [step[1] for step in program], query.name


async def test_no_statement_is_prepared_anew_for_other_values(tmp_path: Path) -> None:
    prepared = 0

    def preparing(*_: Any) -> int:
        """SQLite calls its authoriser when it prepares a statement, and not when it runs a prepared one."""
        nonlocal prepared
        prepared += 1
        return apsw.SQLITE_OK

    async with opened(f"sqlite:///{tmp_path}/jobs.db"):
        with apsw.Connection(f"{tmp_path}/jobs.db") as connection:
            plan_once(connection)
            connection.set_authorizer(preparing)
            for query in load_queries("sqlite").values():
                if query.sql.startswith(("SELECT", "WITH", "UPDATE", "DELETE")):
                    connection.execute(query.sql, [1] * len(query.parameters)).fetchall()
                    assert prepared
                    prepared = 0
                    connection.execute(query.sql, [2] * len(query.parameters)).fetchall()
                    assert not prepared, query.name


MANY_JOBS = """
    INSERT INTO jobs (id, tenant, kind, queue, node, state, stage, topic, previous, topic_seq, priority, run_at, attempt,
                      max_attempts, lease, waiting_for, traceparent, tracestate, reports, seq, created_at, updated_at)
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
    SELECT 'many' || i, 'acme', 'job', 'many/' || (i % 3), '', 'queued', '', 'queued', '', 1, i / 3 % 10,
           CASE WHEN i / 30 % 2 = 0 THEN i ELSE 9000000000000000 + i END, 0, 1, 0, '', '', '', '', 1, 1, 1
    FROM n"""


async def test_queue_heads_of_a_hundred_thousand_jobs_are_read_as_quickly_as_of_a_few(
    store_url: str, clock: Clock
) -> None:
    async with opened(store_url, clock) as store:
        for queue in ("many/0", "many/1", "many/2"):
            for priority in range(10):
                await submit_many(store, 5, queue=queue, priority=priority)
                await submit(store, queue=queue, priority=priority, delay_seconds=60)
        few = await effort(store_url, "queue_heads", kind="job", tenant="acme", bound=5, now=clock.now)
        await sql(store_url, MANY_JOBS)
        many = await effort(store_url, "queue_heads", kind="job", tenant="acme", bound=5, now=clock.now)
        assert many <= 1.1 * few
        assert sum(head.ready for head in await store.queue_heads("job", 100_000)) > 50_000


async def effort(url: str, name: str, **values: Any) -> float:
    """Return the cost of a read: steps of SQLite's virtual machine, or rows that PostgreSQL read from table and indexes."""
    if url.startswith("sqlite:"):
        query, steps = load_queries("sqlite")[name], 0

        def step() -> bool:
            nonlocal steps
            steps += 1
            return False

        with apsw.Connection(url.removeprefix("sqlite:///")) as reader:
            reader.set_progress_handler(step, 1)
            reader.execute(query.sql, query.bind(**values)).fetchall()
        return steps
    query = load_queries("postgres")[name]
    if name in IN_ORDER:
        return rows_taken(await plan_made_once(url, query, values))
    connection = await asyncpg.connect(url)
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {query.sql}", *query.bind(**values))
    await connection.close()
    return rows_taken(msgspec.json.decode(text)[0]["Plan"])


async def plan_made_once(url: str, query: Query, values: dict[str, Any]) -> dict[str, Any]:
    """Return the plan of a statement that was planned without its values; EXPLAIN alone would plan for these."""
    connection = await connect(url, settings=READ_IN_ORDER)
    await connection.execute(f"PREPARE planned AS {query.sql}")
    quoted = [
        await connection.fetchval("SELECT QUOTE_NULLABLE($1::TEXT)", None if value is None else str(value))
        for value in query.bind(**values)
    ]
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE planned ({', '.join(quoted)})")
    await connection.close()
    plan: dict[str, Any] = msgspec.json.decode(text)[0]["Plan"]
    return plan


def rows_taken(node: dict[str, Any]) -> float:
    taken = 0.0
    if node.get("Relation Name"):
        removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        taken = node["Actual Loops"] * (1 + node["Actual Rows"] + removed)
    return taken + sum(rows_taken(child) for child in node.get("Plans", ()))


# lists ------------------------------------------------------------------------------------------------------------------


async def test_jobs_are_listed_newest_first_by_every_filter(store: Store) -> None:
    first = await submit(store)
    second = await submit(store, queue="other", kind="door")
    third = await submit(store, tenant="other")
    failed = (await job_in(store, State.FAILED)).id

    async def listed(tenant: str = TENANT, **by: Any) -> list[str]:
        return [job.id for job in await store.list_jobs(JobFilter(tenant, **by))]

    assert await listed() == [failed, second, first]
    assert await listed(limit=2) == [failed, second]
    assert await listed(before=failed, limit=1) == [second]
    assert await listed("other") == [third]
    assert await listed("othe") == await listed("other ") == []
    assert await listed(queue="other") == await listed(kind="door") == [second]
    assert await listed(state=State.QUEUED) == [second, first]
    assert await listed(state=State.FAILED) == [failed]
    assert await listed("other", state=State.FAILED) == await listed(state=State.CANCELLED) == []
    cancelled = (await job_in(store, State.CANCELLED)).id
    done = (await job_in(store, State.SUCCEEDED)).id
    working, later = await running(store), await running(store)
    await store.write(Change(Guard.held(working), "advance", stage="working"))
    assert await listed(stopped=True) == [cancelled, failed]
    assert await listed("other", stopped=True) == []
    assert await listed(stopped=True, limit=1) == await listed(state=State.CANCELLED) == [cancelled]
    assert await listed(stopped=True, state=State.FAILED) == await listed(stopped=True, before=cancelled) == [failed]
    assert (
        await listed(stopped=True, state=State.QUEUED) == await listed(stopped=True, topics=("running:working",)) == []
    )
    assert await listed(state=State.SUCCEEDED) == [done]
    assert await listed(state=State.RUNNING) == [later.id, working.id]
    assert await listed(state=State.RUNNING, before=later.id) == [working.id]
    assert await listed("other", state=State.RUNNING) == await listed(state=State.RUNNING, queue="q") == []
    assert await listed(topics=("running:working",)) == [working.id]
    assert await listed(topics=("running:loading",)) == await listed("other", topics=("running:working",)) == []
    assert second in await listed(topics=("queued",), kind="door")
    assert await listed(state=State.FAILED, before=failed) == await listed(state=State.FAILED, queue="q") == []


EVERY_JOB: dict[str, Any] = {
    **dict.fromkeys(("kind", "kinds", "queue", "state", "topics", "names", "text", "text_lower")),
    **dict.fromkeys(("any_kind", "any_topic", "unnamed"), True),
    "starts": False,
    "since": 0,
    "until": 2**62,
    "first": "",
    "before": "z",
    "searched": 2**62,
}


def lists_of_queued(store_url: str) -> tuple[str, ...]:
    """On SQLite all jobs lie in one table, so there is no list of its own for those that wait."""
    return ("list_jobs",) if store_url.startswith("sqlite:") else ("list_jobs", "list_queued_jobs")


async def test_a_few_stopped_jobs_are_found_without_reading_the_others(store_url: str, clock: Clock) -> None:
    async with opened(store_url, clock) as store:
        await job_in(store, State.FAILED)
        await job_in(store, State.CANCELLED)
        await sql(store_url, MANY_JOBS)
        await sql(store_url, "ANALYZE jobs")
        assert await effort(store_url, "list_stopped_jobs", **EVERY_JOB, tenant=TENANT, limit=50) < 10_000


async def test_the_running_jobs_are_found_without_reading_those_that_wait(store_url: str, clock: Clock) -> None:
    async with opened(store_url, clock) as store:
        await running(store)
        await sql(store_url, MANY_JOBS)
        await sql(store_url, "ANALYZE jobs")
        assert await effort(store_url, "list_running_jobs", **EVERY_JOB, tenant=TENANT, limit=50) < 10_000


MANY_FLOWS = """
    INSERT INTO jobs (id, tenant, kind, queue, node, state, stage, topic, previous, topic_seq, priority, run_at, attempt,
                      max_attempts, lease, lease_owner, lease_until, waiting_for, traceparent, tracestate, reports, seq, created_at,
                      updated_at)
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50000)
    SELECT 'flow' || (100000 + i), 'acme', 'flow', 'flows', '', 'running', 'steps', 'running:steps', '', 1, 5, 1, 1, 1, 0, 'its steps',
           9000000000000000, '', '', '', '', 1, 1, 1
    FROM n"""


async def test_what_runs_and_what_lapsed_are_found_beside_many_flows_that_run(store_url: str, clock: Clock) -> None:
    async with opened(store_url, clock) as store:
        working = await running(store)
        await sql(store_url, MANY_FLOWS)
        await sql(store_url, "ANALYZE jobs")
        flows = [job.id for job in await store.list_jobs(JobFilter(TENANT, kind="flow", state=State.RUNNING, limit=3))]
        assert flows == ["flow150000", "flow149999", "flow149998"]
        await sql(store_url, "UPDATE jobs SET queue = 'rare' WHERE id = 'flow100007'")
        rare, following = await list_page(store, JobFilter(TENANT, kind="flow", queue="rare", state=State.RUNNING))
        assert ([job.id for job in rare], following) == (["flow100007"], None)
        of_tasks = EVERY_JOB | {"kind": "task"}
        assert await effort(store_url, "list_running_jobs", **of_tasks, tenant=TENANT, limit=50) < 10_000
        everything = await store.list_jobs(JobFilter(TENANT, state=State.RUNNING, limit=2))
        assert [job.id for job in everything] == ["flow150000", "flow149999"]
        others = await store.list_jobs(JobFilter(TENANT, kind=working.kind, state=State.RUNNING))
        assert [job.id for job in others] == [working.id]
        assert await effort(store_url, "list_running_jobs", **EVERY_JOB, tenant=TENANT, limit=50) < 20_000
        assert await effort(store_url, "list_lapsed_jobs", owner_prefix="", now=clock.now, limit=50) < 2_000
        assert await effort(store_url, "list_lapsed_jobs", owner_prefix="worker", now=clock.now, limit=50) < 2_000


MANY_DEAD = """
    INSERT INTO deliveries (id, tenant, job_id, seq, endpoint_id, url, dialect, state, attempt, tries, lease, lease_until, due_at, since_at,
                            reason, created_at, updated_at)
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
    SELECT 'many' || (100000 + i), 'acme', 'many' || i, 1, 'many' || (i % 3), '', 'engine',
           CASE WHEN i % 3 = 0 THEN 'dead' ELSE 'delivered' END, 1, 1, 0, NULL, 1, 1, '', 1, 1
    FROM n"""


async def test_the_newest_dead_deliveries_are_found_without_reading_older_ones(store_url: str, clock: Clock) -> None:
    page = {"tenant": TENANT, "limit": 50}
    async with opened(store_url, clock):
        await sql(store_url, MANY_DEAD)
        await sql(store_url, "ANALYZE deliveries")
        assert await effort(store_url, "newest_dead_deliveries", **page, before="z") < 5_000
        of_one = {**page, "endpoint_id": "many0", "before": None}
        assert await effort(store_url, "dead_deliveries_of_endpoint", **of_one) < 5_000


async def test_the_jobs_of_a_tenant_with_few_are_found_without_reading_those_of_others(
    store_url: str, clock: Clock
) -> None:
    async with opened(store_url, clock) as store:
        await submit(store, tenant="other")
        await sql(store_url, MANY_JOBS)
        await sql(store_url, "ANALYZE jobs")
        for name in lists_of_queued(store_url):
            assert await effort(store_url, name, **EVERY_JOB, tenant="other", limit=50) < 10_000


async def test_jobs_that_are_over_are_listed_without_reading_those_that_wait(postgres_url: str, clock: Clock) -> None:
    """On SQLite all lie in one table and are read newest first."""
    async with opened(postgres_url, clock) as store:
        await job_in(store, State.SUCCEEDED)
        await sql(postgres_url, MANY_JOBS)
        await sql(postgres_url, "ANALYZE jobs")
        assert await effort(postgres_url, "list_succeeded_jobs", **EVERY_JOB, tenant=TENANT, limit=50) < 2_000


async def test_a_plan_for_lists_that_was_made_while_there_was_nothing_serves_a_hundred_thousand_jobs(
    postgres_url: str, clock: Clock
) -> None:
    async with opened(postgres_url, clock):
        await sql(postgres_url, MANY_JOBS)
        for name in ("list_jobs", "list_queued_jobs"):
            assert await effort(postgres_url, name, **EVERY_JOB, tenant=TENANT, limit=50) < 2_000


@pytest.mark.parametrize(
    "by", [{"queue": "rare"}, {"kind": "batch"}, {"any_topic": False, "topics": []}, {"unnamed": False, "names": []}]
)
async def test_a_list_that_few_jobs_are_like_reads_no_more_of_the_others_than_it_was_told(
    store_url: str, clock: Clock, by: dict[str, Any]
) -> None:
    nothing = "[]" if store_url.startswith("sqlite:") else "{}"
    by = EVERY_JOB | {name: nothing if value == [] else value for name, value in by.items()}
    async with opened(store_url, clock) as store:
        await submit(store, queue="rare", kind="batch")
        await sql(store_url, MANY_JOBS)
        for name in lists_of_queued(store_url):
            few = await effort(store_url, name, **(by | {"searched": 100}), tenant=TENANT, limit=51)
            more = await effort(store_url, name, **(by | {"searched": 200}), tenant=TENANT, limit=51)
            assert few < more < 2.2 * few < 30_000


async def test_the_end_of_a_search_is_found_without_reading_what_is_behind_it(store_url: str, clock: Clock) -> None:
    page = {"tenant": TENANT, "first": "", "before": "z", "since": 0, "until": 2**62}
    async with opened(store_url, clock):
        await sql(store_url, MANY_JOBS)
        for name in lists_of_queued(store_url):
            assert await effort(store_url, f"end_of_{name}", **page, skip=100) < 6_000


async def test_a_list_that_most_jobs_are_like_reads_no_more_than_its_page(store_url: str, clock: Clock) -> None:
    async with opened(store_url, clock):
        await sql(store_url, MANY_JOBS)
        by = EVERY_JOB | {"kind": "job", "searched": 10_000}
        for name in lists_of_queued(store_url):
            assert await effort(store_url, name, **by, tenant=TENANT, limit=51) < 10_000


async def test_what_waits_or_runs_in_a_queue_is_found_without_reading_other_jobs(store_url: str, clock: Clock) -> None:
    async with opened(store_url, clock) as store:
        await job_in(store, State.FAILED, queue="rare")
        runs = (await running(store, queue="rare")).id
        waits = await submit(store, queue="rare")
        await sql(store_url, MANY_JOBS)
        by = {"tenant": TENANT, "kind": "job", "queue": "rare", "limit": 10}
        assert await effort(store_url, "list_live_jobs", **by) < 1_000
        live = JobFilter(TENANT, "job", "rare", live=True)
        assert {job.id for job in await store.list_jobs(live)} == {waits, runs}
        assert await store.list_jobs(JobFilter("other", "job", "rare", live=True)) == []


async def failed_with(store: Store, error: str, **fields: Any) -> str:
    job = await running(store, **fields)
    assert await store.write(Change(Guard.held(job), "fail", error=error))
    return job.id


async def test_jobs_are_found_by_the_text_of_their_error_in_upper_or_lower_case(store: Store) -> None:
    disk = await failed_with(store, "Disk /dev/sda is 100% full")
    name = await failed_with(store, "the name ÄÖÜ_ß is taken!")
    await failed_with(store, "disk", tenant="other")
    await submit(store)

    async def listed(text: str, **by: Any) -> list[str]:
        return [job.id for job in await store.list_jobs(JobFilter(TENANT, text=text, **by))]

    for text in ("disk", "DISK", "100% full", "/dev/sda", "Disk /dev/sda is 100% full"):
        assert (
            await listed(text) == await listed(text, stopped=True) == await listed(text, state=State.FAILED) == [disk]
        )
    assert await listed("ÄÖÜ_ß") == await listed("TAKEN!") == [name]
    assert await listed("is") == [name, disk]
    assert await listed("disk_") == await listed("d%k") == await listed("disk", before=disk) == []
    assert await listed("disk", state=State.QUEUED) == await listed("disk", kinds=()) == []


async def test_a_search_continues_by_its_cursor_after_a_page_has_read_enough(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SEARCHED", 3)
    monkeypatch.setattr(listing, "GLANCED", 3)
    found = [await failed_with(store, error) for error in ("a", "b", "b", "a", "b", "b", "b", "a", "a", "b")]
    wanted = [job_id for job_id, error in zip(found, "abbabbbaab", strict=True) if error == "a"][::-1]
    for limit, sizes in ((10, [2, 0, 1, 1]), (1, [1, 1, 1, 1])):
        pages, cursor = [], None
        while True:
            jobs, cursor = await list_page(store, JobFilter(TENANT, text="A", stopped=True, before=cursor, limit=limit))
            pages.append([job.id for job in jobs])
            if cursor is None:
                break
        assert [len(page) for page in pages] == sizes
        assert [job_id for page in pages for job_id in page] == wanted


@pytest.mark.parametrize(
    "by",
    [
        {"queue": "rare"},
        {"kind": "batch"},
        {"names": ("rar",), "starts": True},
        {"kinds": ("batch",)},
        {"queue": "rare", "state": State.QUEUED},
        {"queue": "rare", "since": 1, "until": 2**61},
    ],
)
async def test_a_list_goes_on_by_its_cursor_over_pages_that_are_short(
    store: Store, monkeypatch: pytest.MonkeyPatch, by: dict[str, Any]
) -> None:
    monkeypatch.setattr(listing, "SEARCHED", 3)
    monkeypatch.setattr(listing, "GLANCED", 2)
    rare = [await submit(store, queue="rare", kind="batch")]
    await submit_many(store, 10)
    rare += [await submit(store, queue="rare", kind="batch") for _ in range(3)]
    pages, cursor = [], None
    while True:
        jobs, cursor = await list_page(store, JobFilter(TENANT, before=cursor, limit=2, **by))
        pages.append([job.id for job in jobs])
        if cursor is None:
            break
    assert [len(page) for page in pages] == [2, 1, 0, 0, 1, 0]
    assert [job_id for page in pages for job_id in page] == rare[::-1]
    whole = JobFilter(TENANT, limit=4, **by)
    found, following = await list_full_page(store, whole)
    assert ([job.id for job in found], following) == (rare[::-1], None)
    found, following = await list_full_page(store, msgspec.structs.replace(whole, limit=2))
    assert ([job.id for job in found], following) == (rare[:1:-1], rare[2])


async def test_no_job_is_left_out_of_a_list_when_others_come_while_it_is_searched(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SEARCHED", 3)
    monkeypatch.setattr(listing, "GLANCED", 2)
    rare = await submit(store, queue="rare")
    await submit_many(store, 10)
    found, cursor = [], None
    while True:
        by = JobFilter(TENANT, queue="rare", state=State.QUEUED, before=cursor)
        jobs, cursor = await list_page(_Busy(store), by)  # type: ignore[arg-type]
        found += jobs
        if cursor is None:
            break
    assert [job.id for job in found] == [rare]


class _Busy:
    """A store in which jobs come and go between two reads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list_jobs(self, by: JobFilter) -> list[Job]:
        jobs = await self._store.list_jobs(by)
        await submit_many(self._store, 2)
        await claim(self._store, "q", limit=4)
        return jobs


async def test_jobs_are_listed_by_their_time_of_creation(store: Store, clock: Clock) -> None:
    made = UlidMaker(lambda: clock.now // 1000)
    begin, ids = clock.now, []
    for _ in range(4):
        ids.append(await submit(store, id=made()))
        clock.now += 3 * 3600 * SECOND

    async def listed(**by: Any) -> list[str]:
        return [job.id for job in await store.list_jobs(JobFilter(TENANT, **by))][::-1]

    hour = 3600 * SECOND
    assert await listed(since=begin) == await listed(until=clock.now) == ids
    assert await listed(since=begin + 1) == await listed(since=begin + 3 * hour) == ids[1:]
    assert await listed(until=begin) == await listed(since=clock.now) == []
    assert await listed(since=begin + 3 * hour, until=begin + 9 * hour) == ids[1:3]
    assert await listed(until=begin + 9 * hour, before=ids[2], limit=1) == ids[1:2]


async def test_a_time_range_is_read_without_reading_other_jobs(store_url: str, clock: Clock) -> None:
    async with opened(store_url, clock) as store:
        await submit(store)
        await sql(store_url, MANY_JOBS)
        await sql(store_url, "ANALYZE jobs")
        by = EVERY_JOB | {"first": first_id_at(clock.now - SECOND), "before": "8"}
        assert await effort(store_url, "list_jobs", **by, tenant=TENANT, limit=50) < 10_000


async def test_a_job_is_listed_by_its_time_of_creation_though_the_clock_of_its_node_is_wrong(
    store: Store, clock: Clock
) -> None:
    at = clock.now
    ids = [first_id_at(at + seconds * SECOND) for seconds in (-55, 55)]
    for job_id in ids:
        await submit(store, id=job_id)
    found = await store.list_jobs(JobFilter(TENANT, since=at, until=at + SECOND))
    assert [job.id for job in found] == ids[::-1]


async def test_jobs_are_found_by_the_name_in_their_queue(store: Store) -> None:
    a = await submit(store, queue="Alpha", kind="one")
    b = await submit(store, queue=Queue("two", TENANT, "alpha", "node"))
    c = await submit(store, queue="alphabet", kind="two")
    d = (await job_in(store, State.FAILED, queue="alpha", kind="two")).id
    await submit(store, queue="beta/alpha", kind="two")

    async def listed(*names: str, **by: Any) -> list[str]:
        return [job.id for job in await store.list_jobs(JobFilter(TENANT, names=names, **by))]

    assert await listed("alpha", starts=True) == [d, c, b, a]
    assert await listed("alpha") == [d, b, a]
    assert await listed("alphabet", "nothing") == [c]
    assert await listed("alpha", kind="two", limit=1, before=d) == [b]
    assert await listed("alpha", "alphabet", state=State.FAILED) == [d]
    assert await listed("alp", "pha", "%", "alpha%", "alph_") == await listed("%", starts=True) == []


async def test_a_job_is_found_by_its_idempotency_key(store: Store) -> None:
    a = await submit(store, kind="one", idempotency_key="k")
    b = await submit(store, kind="two", idempotency_key="k")
    await submit(store, kind="one", idempotency_key="k2")
    await submit(store, kind="one", idempotency_key="k", tenant="other")

    async def found(key: str, *kinds: str) -> list[str]:
        return [job.id for job in await store.list_jobs(JobFilter(TENANT, kinds=kinds, key=key))]

    assert await found("k", "one", "two", "three") == [b, a]
    assert await found("k", "one") == [a]
    assert await found("k", "three") == await found("k") == await found("K", "one") == []


async def test_a_job_is_found_by_its_id_and_by_that_of_a_delivery(store: Store) -> None:
    a, b = await submit(store, reports=(a_report(),)), await submit(store)
    [delivery] = await store.list_deliveries(DeliveryFilter(job_id=a))

    async def found(sought: str, tenant: str = TENANT, kinds: tuple[str, ...] = ("job",)) -> list[str]:
        return [job.id for job in await store.list_jobs(JobFilter(tenant, kinds=kinds, id=sought))]

    assert await found(a) == await found(delivery.id) == [a]
    assert await found(b) == [b]
    assert await found(new_id()) == await found(a, "other") == await found(delivery.id, "other") == []
    assert await found(a, kinds=("task",)) == await found(a, kinds=()) == []


async def test_a_key_and_an_id_are_looked_up_without_reading_other_jobs(store_url: str, clock: Clock) -> None:
    async with opened(store_url, clock) as store:
        await submit(store, kind="one", idempotency_key="k")
        await sql(store_url, MANY_JOBS)
        await sql(store_url, "ANALYZE jobs")
        kinds: Any = '["one", "two"]' if store_url.startswith("sqlite:") else ["one", "two"]
        assert await effort(store_url, "find_jobs", tenant=TENANT, kinds=kinds, key="k", id="many7") < 10_000


async def test_overdue_jobs_are_found_without_reading_those_without_a_deadline(store_url: str, clock: Clock) -> None:
    async with opened(store_url, clock) as store:
        await submit_many(store, 5, deadline_seconds=1)
        await sql(store_url, MANY_JOBS)
        await sql(store_url, "ANALYZE jobs")
        assert await effort(store_url, "list_overdue_jobs", now=clock.now + 2_000_000, limit=200) < 10_000


async def test_a_list_of_jobs_leaves_out_payloads_and_results(store: Store) -> None:
    await submit(store, payload=b"large")
    assert [(job.payload, job.result) for job in await store.list_jobs(JobFilter(TENANT))] == [(b"", None)]


@pytest.mark.parametrize("text", ["'", '"', "%", "\\", "\u2028", "💥", "a" * 3000, "{each x as y}", ":now", "$1", "?1"])
async def test_any_text_is_stored_unchanged(store: Store, text: str) -> None:
    job = await running(store, tenant=text, queue=text, kind=text, traceparent=text, idempotency_key=text)
    assert await store.write(Change(Guard.held(job), "fail", text, error=text, failed_step=text, message=text))
    after = await get(store, job.id)
    assert {after.tenant, after.queue.name, after.kind, after.traceparent, after.error, after.failed_step} == {text}
    assert [event.message for event in await store.list_events(job.id)][-1] == text


# reads during writes ----------------------------------------------------------------------------------------------------


def reads(store: Store, job: Job) -> list[Callable[[], Awaitable[Any]]]:
    job_id = job.id
    endpoint = a_report().endpoint_id
    return [
        lambda: store.get_job(job_id),
        lambda: store.list_events(job_id),
        lambda: store.list_jobs(JobFilter(TENANT)),
        lambda: store.list_jobs(JobFilter(TENANT, state=State.FAILED)),
        lambda: store.list_jobs(JobFilter(TENANT, state=State.RUNNING)),
        lambda: store.list_jobs(JobFilter(TENANT, kinds=("job",), key="k")),
        lambda: store.list_jobs(JobFilter(TENANT, "job", "q", live=True)),
        lambda: store.list_jobs(JobFilter(late="lease", limit=10)),
        lambda: store.list_jobs(JobFilter(late="deadline", limit=10)),
        lambda: store.due_queues([a_queue("q")], 10),
        lambda: store.queue_heads("job", 10),
        lambda: store.pulse(a_queue("q"), 0, 10),
        lambda: Records(store).list("thing"),
        lambda: Records(store).due("thing", 10),
        lambda: store.count_queues(),
        lambda: store.list_queue_settings(),
        lambda: store.waiting(job, 10),
        lambda: store.outgoing(["nobody"]),
        lambda: store.due_endpoints(10),
        lambda: store.list_deliveries(DeliveryFilter()),
        lambda: store.subjects({"nobody": "nobody"}),
        lambda: get_endpoint(store, endpoint),
        lambda: store.list_files(FileFilter(job_id=job_id)),
        lambda: store.list_files(FileFilter(TENANT)),
        lambda: store.blobs_in_use(["nobody's"]),
        lambda: store.now(),
    ]


async def test_reads_do_not_wait_for_a_blocked_write(store_url: str, clock: Clock) -> None:
    """SQLite: another connection holds the write lock of the file. PostgreSQL: it holds the row that all writers need."""
    async with opened(store_url, clock, pool_size=4) as store:
        job_ids = await submit_many(store, 3, reports=(a_report(),))
        job = await get(store, job_ids[0])
        blocker = await Blocker.open(store_url, job.id)
        writes = [asyncio.create_task(_cancel(store, job_ids[0])) for _ in range(20)]
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(2):
                for read in reads(store, job) * 3:
                    await read()
                await asyncio.gather(*[read() for read in reads(store, job)])
            assert (await get(store, job_ids[0])).state is State.QUEUED
            assert not any(write.done() for write in writes)
        finally:
            await blocker.close()
        assert (await asyncio.gather(*writes)).count(True) == 1
        assert len((await store.write(a_take())).ids) == 4


async def _cancel(store: Store, job_id: str) -> bool:
    return await store.write(Change(seen(job_id), "cancel")) is not None


class Blocker:
    """Holds a lock that every writer of the job needs."""

    def __init__(self, sqlite: apsw.Connection | None, postgres: "asyncpg.Connection[asyncpg.Record] | None") -> None:
        self._sqlite, self._postgres = sqlite, postgres

    @classmethod
    async def open(cls, url: str, job_id: str) -> "Blocker":
        if url.startswith("sqlite:"):
            file = apsw.Connection(url.removeprefix("sqlite:///"))
            file.execute("BEGIN IMMEDIATE")
            file.execute(
                "INSERT INTO queue_settings (kind, tenant, queue, node, paused) VALUES ('job', 'acme', 'uncommitted', '', 1)"
            )
            return cls(file, None)
        connection = await asyncpg.connect(url)
        await connection.execute("BEGIN")
        await connection.execute(f"SELECT 1 FROM jobs WHERE id = '{job_id}' FOR UPDATE")
        return cls(None, connection)

    async def close(self) -> None:
        if self._sqlite is not None:
            self._sqlite.execute("ROLLBACK")
            self._sqlite.close()
        if self._postgres is not None:
            await self._postgres.close()


async def test_an_acknowledged_write_is_visible_at_once(store: Store) -> None:
    for _ in range(50):
        job_id = new_id()
        await submit(store, id=job_id)
        assert await store.get_job(job_id) is not None
        assert (await store.list_jobs(JobFilter(TENANT, limit=1)))[0].id == job_id
