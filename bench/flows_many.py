"""PostgreSQL with a million flows, half of them over and half of them waiting, beside one with a page of each."""

from collections.abc import AsyncIterator

import asyncpg
import msgspec

from bench import work
from bench.bench import Bench
from bench.client import Connection, connected, request
from bench.growth import compared, get
from bench.report import Row
from bench.stores import postgres_stores

CHUNK = 25_000
FEW = 60  # of each kind, in both databases: more than a page


def _flow(first_queue: str) -> bytes:
    queues = {"a": first_queue, "b": "small"}
    body = [{"name": name, "door": "engine", "body": {"queue": queue, "payload": {}}} for name, queue in queues.items()]
    return request("POST", "/engine/flows", msgspec.json.encode({"steps": [body[0], body[1] | {"after": ["a"]}]}))


_SMALL, _PARKED = _flow("small"), _flow("nobody")
_NEWEST = request("GET", "/engine/flows?limit=1")
_CLAIM = request("POST", "/engine/claims", b'{"queues":["small"],"lease_seconds":600,"wait_seconds":5}')

# Copies of a flow and its steps. Their ids keep the time; the rest is the number of the copy and that of the row.
_NEW_ID = "SUBSTR(m.id, 1, 10) || LPAD(n::TEXT, 15, '0') || m.place"
_MAPPED = f"""
WITH m AS (
  SELECT id, (ROW_NUMBER() OVER (ORDER BY id) - 1)::TEXT AS place FROM jobs WHERE id = $1 OR flow = $1
), ids AS (SELECT m.id AS old, {_NEW_ID} AS new, n FROM m CROSS JOIN GENERATE_SERIES($2::BIGINT, $3::BIGINT) AS n)
"""
_COPIES = {  # table -> the columns that are ids
    "jobs": ("id", "flow"),
    "job_payloads": ("job_id",),
    "job_results": ("job_id",),
    "job_events": ("job_id",),
    "flow_steps": ("job_id", "step_id"),
    "flow_edges": ("job_id",),
}


async def flows_many(bench: Bench) -> AsyncIterator[Row]:
    with postgres_stores() as stores:
        few = Bench(stores, bench.scale, bench.say)
        urls = {"empty": await stores.create(), "grown": await stores.create()}
        ids = {name: await _some(few, url) for name, url in urls.items()}
        await _copy(few, urls["grown"], ids["grown"], bench.scale.many // 2)
        for url in urls.values():
            await stores.tidy(url)
        works = {
            "submit a flow of two and end it": (1, _submit_and_end),
            "read of the newest flow": (1, _read),
            "list of flows": (1, get("/engine/flows?limit=50")),
            "list of running flows": (1, get("/engine/flows?limit=50&state=running")),
            "list of succeeded flows": (1, get("/engine/flows?limit=50&state=succeeded")),
            "queues": (1, get("/engine/queues")),
        }
        async for row in compared(few, urls, works):
            yield row


async def _submit_and_end(connection: Connection) -> None:
    await connection.expect(_SMALL, 202)
    for _ in range(2):
        await work.succeed(connection, await connection.expect(_CLAIM, 200))


async def _read(connection: Connection) -> None:
    [newest] = msgspec.json.decode((await connection.expect(_NEWEST, 200)).body)["jobs"]
    await connection.expect(request("GET", f"/engine/flows/{newest['id']}"), 200)


async def _some(bench: Bench, url: str) -> list[str]:
    """Put in a few flows; return the ids of one that is over and of one that waits."""
    async with bench.server(url) as server, connected(server.url, 1) as [connection]:
        for _ in range(FEW):
            await _submit_and_end(connection)
            parked = await connection.expect(_PARKED, 202)
        listed = await connection.expect(request("GET", "/engine/flows?state=succeeded"), 200)
    return [msgspec.json.decode(listed.body)["jobs"][0]["id"], msgspec.json.decode(parked.body)["job_id"]]


async def _copy(bench: Bench, url: str, ids: list[str], count: int) -> None:
    connection = await asyncpg.connect(url)
    for flow_id in ids:
        for first in range(0, count, CHUNK):
            last = min(first + CHUNK, count) - 1
            async with connection.transaction():
                for table, columns in _COPIES.items():
                    await connection.execute(_copying(table, columns), flow_id, first, last)
        bench.say(f"  {count:>12,} copies of a flow")
    await connection.close()


def _copying(table: str, columns: tuple[str, ...]) -> str:
    key, *others = columns
    changed = f"'{key}', ids.new" + "".join(f", '{other}', other.new" for other in others)
    joined = "".join(f" LEFT JOIN ids other ON other.old = t.{other} AND other.n = ids.n" for other in others)
    return (
        f"{_MAPPED} INSERT INTO {table} SELECT r.* FROM ids JOIN {table} t ON t.{key} = ids.old{joined}"
        f" CROSS JOIN LATERAL JSONB_POPULATE_RECORD(t, JSONB_BUILD_OBJECT({changed})) AS r"
    )
