"""Submitting in a producer's own transaction, with every library that the client knows: committed together, or not at all."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from chargehand.client import App
from chargehand.client.postgres import submit_job_async, submit_task, submit_task_async
from tests.api.serving import Api, serving, talking, until
from tests.client.producing import PAYLOAD, WAYS
from tests.store.given import sql

PATIENCE = 60  # seconds for a process to start and answer on a busy machine
LEFT = "SELECT (SELECT COUNT(*) FROM orders), (SELECT COUNT(*) FROM jobs), (SELECT COUNT(*) FROM submissions)"


@pytest.fixture
async def api(postgres_url: str) -> AsyncIterator[Api]:
    await sql(postgres_url, "CREATE TABLE orders (id SERIAL)")
    # Nobody polls within the test: only a hint can wake a claim.
    async with serving(postgres_url, {"engine.poll_seconds": 60}) as server, talking(server) as api:
        yield api


@asynccontextmanager
async def producer(way: str, postgres_url: str) -> AsyncIterator[Process]:
    command = (sys.executable, "-m", "tests.client.producing", way, postgres_url)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode().strip()


async def begin(process: Process, end: str) -> str:
    """Return the id of the task of a new transaction, which then ends so."""
    assert process.stdin is not None
    process.stdin.write(f"{end}\n".encode())
    task_id = await line(process)
    assert len(task_id) == 26
    return task_id


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("way", WAYS)
async def test_a_task_is_there_if_its_transaction_commits_and_never_was_if_not(
    way: str, api: Api, postgres_url: str
) -> None:
    async with producer(way, postgres_url) as process:
        await begin(process, "rollback")
        assert await line(process) == "ended"
        assert await sql(postgres_url, LEFT) == [(0, 0, 0)]

        claim = asyncio.create_task(api.post("/v1/codeq/tasks/claim", {"commands": ["pack"], "waitSeconds": 30}))
        task_id = await begin(process, "commit")
        assert await line(process) == "ended"
        task = (await claim).good()
        assert (task["id"], task["command"], task["payload"]) == (task_id, "Pack", '{"order":"fünf","weight":1.5}')
        assert await sql(postgres_url, LEFT) == [(1, 1, 0)]

        await begin(process, "hang")
        process.kill()
        await process.wait()

    async def gone() -> bool:
        others = (
            "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%submit_task%'"
        )
        return await sql(postgres_url, others + " AND pid <> pg_backend_pid()") == [(0,)]

    await until(gone)
    assert await sql(postgres_url, LEFT) == [(1, 1, 0)]


async def test_every_option_of_the_helpers_is_taken(api: Api, postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    task_id = await submit_task_async(
        connection, "pack", PAYLOAD, priority=3, max_attempts=2, run_at="2030-01-01T00:00:00Z", delay_seconds=1,
        idempotency_key="k", unique_key="u", limit_key="l", metadata={"user": "fox"}, webhook="http://127.0.0.1:9/", traceparent="", tracestate="",
        tenant="acme", schema="public",
    )  # fmt: skip
    job_id = await submit_job_async(
        connection, "q", None, deadline_seconds=60, webhook="http://127.0.0.1:9/", on=["failed"], metadata={"a": 1}
    )
    await connection.close()
    made = "SELECT id, tenant, priority, max_attempts, unique_key, limit_key, deadline_at IS NOT NULL, convert_from(metadata, 'UTF8') FROM jobs ORDER BY 1"
    assert await sql(postgres_url, made) == [
        (task_id, "acme", 3, 2, "u", "l", False, '{"command":"pack","metadata":{"user":"fox"}}'),
        (job_id, "default", 0, 5, None, "", True, '{"a":1}'),
    ]


async def test_a_declared_task_is_sent_in_a_transaction_as_it_was_declared(api: Api, postgres_url: str) -> None:
    app = App("http://127.0.0.1:9")  # no server is called

    @app.task(queue="Pack", retry=3, priority=4)
    def pack(order: int, gift: bool = False) -> None: ...

    connection = await asyncpg.connect(postgres_url)
    async with connection.transaction():
        task_id = await submit_task_async(connection, pack.new_task(17))
        keyed = pack.options(limit_key="acme", delay_seconds=60, metadata={"user": "fox"}).new_task(order=18, gift=True)
        await submit_task_async(connection, keyed, priority=9, schema="public")
    await connection.close()
    task = (await api.post("/v1/codeq/tasks/claim", {"commands": ["pack"]})).good()
    assert (task["id"], task["command"], json.loads(task["payload"])) == (task_id, "Pack", {"order": 17})
    made = "SELECT priority, max_attempts, limit_key, run_at - created_at, convert_from(metadata, 'UTF8') FROM jobs ORDER BY id"
    assert await sql(postgres_url, made) == [
        (4, 3, "", 0, '{"command":"Pack"}'),
        (9, 3, "acme", 60_000_000, '{"command":"Pack","metadata":{"user":"fox"}}'),
    ]


async def test_what_is_no_connection_and_a_schema_that_is_no_name_are_refused(postgres_url: str) -> None:
    async with asyncpg.create_pool(postgres_url, min_size=0) as pool:
        with pytest.raises(TypeError, match="connection: "):
            await submit_task_async(pool, "pack", {})
    with pytest.raises(TypeError, match="payload: is missing"):
        submit_task(None, "pack")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="schema: "):
        submit_task(None, "pack", {}, schema='x"; DROP TABLE orders; --')
