"""What the functions of the database write is what the server writes."""

import json
from typing import Any

from chargehand.app import Server
from chargehand.engine.ids import is_ulid, made_at
from chargehand.engine.job import SECOND
from tests.api.serving import Api
from tests.transactions.submitting import HOOK, TASKS, Connection, camel, claimed, submit, submit_task

LATER = "2033-05-18T03:33:20+00:00"
LATER_AT = 2_000_000_000 * SECOND
TRACED = ("traceparent", "tracestate")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
# What holds rows of jobs; `endpoints` and `job_keys` too.
TABLES = {
    "jobs": "id", "job_payloads": "job_id", "job_results": "job_id", "job_events": "job_id", "job_keys": "job_id",
    "deliveries": "job_id", "endpoints": None,
}  # fmt: skip


async def rows(connection: Connection, job_id: str) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of the job, with its instants counted from its creation, and names in place of ids that are random."""
    found: dict[str, list[dict[str, Any]]] = {}
    created: int = await connection.fetchval("SELECT created_at FROM jobs WHERE id = $1", job_id)
    for table, key in TABLES.items():
        of_job = f"WHERE t.{key} = '{job_id}'" if key else ""
        records = await connection.fetch(f"SELECT t.* FROM {table} t {of_job}")
        found[table] = [{name: _same(name, value, created, job_id) for name, value in each.items()} for each in records]
    return found


def _same(name: str, value: Any, created: int, job_id: str) -> Any:
    if value == job_id:
        return "the job"
    if name == "id" and is_ulid(str(value)):
        return "a delivery"
    if name == "fingerprint" and value is not None:
        return "a fingerprint"
    if isinstance(value, int) and value > 10**15 and abs(value - LATER_AT) > 100 * SECOND:
        return value - created
    return value


async def forget(connection: Connection) -> None:
    for table in TABLES:
        await connection.execute(f"DELETE FROM {table}")


SAME_TASKS: list[tuple[str, str, dict[str, Any]]] = [
    ("pack", "{}", {}),
    ("  Pack It! ", '{"a":1,  "a": 2, "n": 1.000, "e": 1e400, "ü": "\\u0000"}', {}),
    ("pack", "0", {"priority": 4}),
    ("pack", '" text "', {"priority": 17}),
    ("pack", "[]", {"priority": -3}),
    ("pack", "true", {"max_attempts": 9}),
    ("pack", "{}", {"max_attempts": 0}),
    ("pack", "{}", {"max_attempts": 5000}),
    ("pack", "{}", {"delay_seconds": 4.35}),
    ("pack", "{}", {"run_at": LATER}),
    ("pack", "{}", {"run_at": LATER, "delay_seconds": 5}),
    ("pack", "{}", {"run_at": "1969-01-01T00:00:00Z"}),
    ("pack", "{}", {"idempotency_key": "key 1"}),
    ("pack", "{}", {"unique_key": "order-7"}),
    ("pack", "{}", {"idempotency_key": "key 1", "unique_key": "order-7"}),
    ("pack", "{}", {"idempotency_key": "", "unique_key": "", "webhook": " "}),
    ("pack", "{}", {"limit_key": "acme"}),
    ("Pack", "{}", {"limit_key": "", "metadata": {"user": "fünf", "a": [1, 2.0]}}),
    ("pack", "{}", {"metadata": {}}),
    ("pack", "{}", {"metadata": None}),
    ("pack", "{}", {"webhook": HOOK}),
    ("pack", "{}", {"webhook": "HTTP://Example.COM:80?a=%20"}),
    ("pack", "{}", {"webhook": "https://hooks.example.:8443/A/b;c?d=/e&f='\"{}"}),
    ("pack", "{}", {"webhook": " https://a_b-c.example "}),
    ("pack", "{}", {"traceparent": TRACE, "tracestate": "a=1,b=2"}),
    ("pack", "{}", {"traceparent": "nonsense", "tracestate": "a=1"}),
    ("Tiered", "{}", {}),
    ("tiered", "{}", {"priority": 6}),
    ("tiered", "{}", {"priority": 9, "max_attempts": 2}),
    ("tiered", "{}", {"idempotency_key": "kept for an hour"}),
    ("tiered", "{}", {"priority": None, "run_at": None, "webhook": None}),
]
SAME_JOBS: list[tuple[str, str, dict[str, Any]]] = [
    ("q", "null", {}),
    ("Größe *", ' {"a":1,  "a": 2} '.strip(), {"priority": 9, "max_attempts": 3}),
    ("q", "{}", {"delay_seconds": 0.29}),
    ("q", "{}", {"run_at": LATER}),
    ("q", "{}", {"deadline_seconds": 1.1}),
    ("q", "{}", {"idempotency_key": "key-1"}),
    ("q", "{}", {"webhook": HOOK}),
    ("q", "{}", {"webhook": HOOK, "on": ["queued", "failed"]}),
    ("q", "{}", {"webhook": HOOK, "on": ["succeeded"]}),
    ("q", "{}", {"metadata": {"a": [1, 2.0]}}),
    ("q", "{}", {"limit_key": "acme"}),
    ("q", "{}", {"traceparent": TRACE, "tracestate": "a=1"}),
]


async def test_the_function_for_tasks_writes_what_the_server_writes_for_the_same_task(
    server: Server, api: Api, producer: Connection
) -> None:
    await server.outbox.drain(0)
    topic = {"priorityTiers": [2, 5, 10], "maxAttempts": 7, "retentionSeconds": 60}
    (await api.call("PUT", "/v1/codeq/admin/topics/tiered", topic)).good(201)
    for command, payload, options in SAME_TASKS:
        headers = {name: value for name, value in options.items() if name.startswith("trace")}
        fields = {camel(name): value for name, value in options.items() if name not in headers}
        body = json.dumps({"command": command, "payload": ...} | fields, default=lambda _: "PAYLOAD")
        sent = body.replace('"PAYLOAD"', payload)
        answer = await api.call("POST", TASKS, data=sent, headers=headers)
        expected = await rows(producer, answer.good(202)["id"])
        await forget(producer)
        written = await rows(producer, await submit_task(producer, command, payload, **options))
        await forget(producer)
        assert written == expected, (command, payload, options)


async def test_the_function_for_jobs_writes_what_the_server_writes_for_the_same_job(
    server: Server, api: Api, producer: Connection
) -> None:
    await server.outbox.drain(0)
    for queue, payload, options in SAME_JOBS:
        fields = dict(options)
        headers: dict[str, str] = {name: fields.pop(name) for name in TRACED if name in fields}
        if "idempotency_key" in fields:
            headers["Idempotency-Key"] = fields.pop("idempotency_key")
        if "webhook" in fields:
            fields["webhook"] = {"url": fields["webhook"], "on": fields.pop("on", [])}
        body = json.dumps({"queue": queue, "payload": ...} | fields, default=lambda _: "PAYLOAD")
        answer = await api.call("POST", "/engine/jobs", data=body.replace('"PAYLOAD"', payload), headers=headers)
        expected = await rows(producer, answer.good(202)["job_id"])
        await forget(producer)
        written = await rows(producer, await submit(producer, "job", queue, payload, **options))
        await forget(producer)
        assert written == expected, (queue, payload, options)


async def test_ids_are_made_at_the_call_and_claimed_in_the_order_of_the_calls(api: Api, producer: Connection) -> None:
    before = await producer.fetchval("SELECT EXTRACT(EPOCH FROM clock_timestamp())::FLOAT8")
    async with producer.transaction():
        ids = [await submit_task(producer) for _ in range(50)]
    assert all(is_ulid(each) for each in ids)
    assert ids == sorted(set(ids))
    assert before - 0.002 <= made_at(ids[0]) <= made_at(ids[-1]) < before + 3600
    assert await claimed(api, count=50) == ids
