"""The SQL itself, the lists made with it, and that reading never waits for writing."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from chargehand.engine.job import Job, State
from chargehand.engine.moves import Change
from chargehand.engine.store import DeliveryFilter, JobFilter, Store
from chargehand.store.queries import load_queries
from tests.conftest import Clock
from tests.store.given import TENANT, a_report, a_take, get, job_in, new_id, opened, running, submit, submit_many

# How a claim looks for work: what these touch must not grow with what is not due, finished, or in other queues.
CLAIMING = ("due_lanes", "due_jobs", "count_running", "queue_settings")


# the statements ---------------------------------------------------------------------------------------------------------


async def test_every_statement_is_understood_by_its_database(store: Store, store_url: str) -> None:
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


def test_a_parameter_used_twice_is_bound_once() -> None:
    query = load_queries("sqlite")["beat_job"]
    assert len(query.parameters) == len(set(query.parameters))
    values: dict[str, Any] = {name: f"<{name}>" for name in query.parameters}
    assert query.bind(**values, ignored=1) == tuple(values.values())


def test_the_columns_of_a_job_are_read_in_the_order_of_its_fields() -> None:
    text = " ".join(load_queries("postgres")["get_job"].sql.split())
    columns = text.removeprefix("SELECT ").partition(" FROM ")[0].split(", ")
    assert [column.partition(".")[2] for column in columns] == list(Job.__struct_fields__)


async def test_looking_for_work_never_scans_or_sorts_the_jobs(tmp_path: Path) -> None:
    """On SQLite, whose plan follows from the schema alone; PostgreSQL looks at what is in the table."""
    async with opened(f"sqlite:///{tmp_path}/jobs.db"):
        with apsw.Connection(f"{tmp_path}/jobs.db") as reader:
            for query in (load_queries("sqlite")[name] for name in CLAIMING):
                plan = reader.execute(f"EXPLAIN QUERY PLAN {query.sql}", [None] * len(query.parameters)).fetchall()
                steps = [str(step[-1]) for step in plan]
                assert "SCAN j" not in steps, query.name
                assert query.name != "due_jobs" or not [step for step in steps if "TEMP B-TREE" in step]


# lists ------------------------------------------------------------------------------------------------------------------


async def test_jobs_are_listed_newest_first_by_what_is_asked(store: Store) -> None:
    first = await submit(store)
    second = await submit(store, queue="other", kind="door")
    third = await submit(store, tenant="other")
    failed = (await job_in(store, State.FAILED)).id

    async def listed(**by: Any) -> list[str]:
        return [job.id for job in await store.list_jobs(JobFilter(**by))]

    assert await listed() == [failed, third, second, first]
    assert await listed(limit=2) == [failed, third]
    assert await listed(before=third, limit=1) == [second]
    assert await listed(tenant=TENANT) == [failed, second, first]
    assert await listed(queue="other") == await listed(kind="door") == [second]
    assert await listed(state=State.QUEUED) == [third, second, first]
    assert await listed(state=State.FAILED) == await listed(state=State.FAILED, tenant=TENANT) == [failed]
    assert await listed(state=State.FAILED, tenant="other") == await listed(state=State.CANCELLED) == []
    assert await listed(state=State.FAILED, before=failed) == await listed(state=State.FAILED, queue="q") == []


async def test_a_list_of_jobs_leaves_out_what_may_be_large(store: Store) -> None:
    await submit(store, payload=b"large")
    assert [(job.payload, job.result) for job in await store.list_jobs(JobFilter())] == [(b"", None)]


@pytest.mark.parametrize("text", ["'", '"', "%", "\\", "\u2028", "💥", "a" * 3000, "{each x as y}", ":now", "$1", "?1"])
async def test_text_is_kept_whatever_it_is(store: Store, text: str) -> None:
    job = await running(store, tenant=text, queue=text, kind=text, traceparent=text, idempotency_key=text)
    assert await store.change(Change(job.id, "fail", job.lease, text, error=text, failed_step=text, message=text))
    after = await get(store, job.id)
    assert {after.tenant, after.queue, after.kind, after.traceparent, after.error, after.failed_step} == {text}
    assert [event.message for event in await store.list_events(job.id)][-1] == text


# reading beside writing -------------------------------------------------------------------------------------------------


def reads(store: Store, job_id: str) -> list[Callable[[], Awaitable[Any]]]:
    endpoint = a_report().endpoint_id
    return [
        lambda: store.get_job(job_id),
        lambda: store.list_events(job_id),
        lambda: store.list_jobs(JobFilter()),
        lambda: store.list_jobs(JobFilter(state=State.FAILED)),
        lambda: store.lapsed_jobs(10),
        lambda: store.due_queues(["q"], 10),
        lambda: store.count_queues(),
        lambda: store.list_queue_settings(),
        lambda: store.position(job_id, 10),
        lambda: store.outgoing(["nobody"]),
        lambda: store.due_endpoints(10),
        lambda: store.list_deliveries(DeliveryFilter()),
        lambda: store.get_endpoint(endpoint),
        lambda: store.count_endpoints([endpoint]),
        lambda: store.now(),
    ]


async def test_reads_answer_while_a_write_is_held_up(store_url: str, clock: Clock) -> None:
    """SQLite: somebody holds the write lock of the file. PostgreSQL: somebody holds the row that all writers want."""
    async with opened(store_url, clock, pool_size=4) as store:
        job_ids = await submit_many(store, 3, reports=(a_report(),))
        blocker = await Blocker.open(store_url, job_ids[0])
        writes = [asyncio.create_task(_cancel(store, job_ids[0])) for _ in range(20)]
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(2):
                for read in reads(store, job_ids[0]) * 3:
                    await read()
                await asyncio.gather(*[read() for read in reads(store, job_ids[0])])
            assert (await get(store, job_ids[0])).state is State.QUEUED
            assert not any(write.done() for write in writes)
        finally:
            await blocker.close()
        assert (await asyncio.gather(*writes)).count(True) == 1
        assert len((await store.take_deliveries(a_take())).ids) == 4


async def _cancel(store: Store, job_id: str) -> bool:
    return await store.change(Change(job_id, "cancel")) is not None


class Blocker:
    """Holds a lock that every writer of the job needs."""

    def __init__(self, sqlite: apsw.Connection | None, postgres: "asyncpg.Connection[asyncpg.Record] | None") -> None:
        self._sqlite, self._postgres = sqlite, postgres

    @classmethod
    async def open(cls, url: str, job_id: str) -> "Blocker":
        if url.startswith("sqlite:"):
            file = apsw.Connection(url.removeprefix("sqlite:///"))
            file.execute("BEGIN IMMEDIATE")
            file.execute("INSERT INTO queue_settings VALUES ('uncommitted', 1, NULL)")
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


async def test_what_was_acknowledged_is_read_at_once(store: Store) -> None:
    for _ in range(50):
        job_id = new_id()
        await submit(store, id=job_id)
        assert await store.get_job(job_id) is not None
        assert (await store.list_jobs(JobFilter(limit=1)))[0].id == job_id
