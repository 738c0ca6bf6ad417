"""Rules that hold for every endpoint of the tasks door: request ids, invalid bodies, sizes, unknown paths."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.api.serving import on_sqlite
from tests.tasks.calling import NOBODY, Shop, calling, refused

pytestmark = on_sqlite

# Every endpoint that binds a body: whose it is, its path, the text when the body is invalid.
BODIES = [
    ("producer", "/tasks", "invalid body"),
    ("producer", "/tasks/batch", "invalid body"),
    ("worker", "/tasks/claim", "invalid body"),
    ("worker", "/tasks/claim/batch", "invalid body"),
    ("worker", "/tasks/claim/stream", "invalid body"),
    ("worker", f"/tasks/{NOBODY}/heartbeat", "invalid body"),
    ("worker", f"/tasks/{NOBODY}/progress", "invalid body"),
    ("worker", f"/tasks/{NOBODY}/nack", "invalid body"),
    ("worker", f"/tasks/{NOBODY}/result", "invalid request body"),
    ("worker", "/tasks/batch/results", "invalid body"),
    ("boss", "/admin/dlq/requeue", "invalid body"),
    ("boss", "/admin/dlq/purge", "invalid body"),
]
WRONG_TYPES: list[tuple[str, str, dict[str, Any], str]] = [
    ("producer", "/tasks", {"command": 7, "payload": 1}, "command"),
    ("producer", "/tasks", {"command": "a", "payload": 1, "priority": "9"}, "priority"),
    ("producer", "/tasks", {"command": "a", "payload": 1, "priority": 1.5}, "priority"),
    ("producer", "/tasks", {"command": "a", "payload": 1, "webhook": 1}, "webhook"),
    ("producer", "/tasks", {"command": "a", "payload": 1, "maxAttempts": "5"}, "maxAttempts"),
    ("producer", "/tasks", {"command": "a", "payload": 1, "idempotencyKey": 5}, "idempotencyKey"),
    ("producer", "/tasks", {"command": "a", "payload": 1, "uniqueKey": {}}, "uniqueKey"),
    ("producer", "/tasks", {"command": "a", "payload": 1, "runAt": 5}, "runAt"),
    ("producer", "/tasks", {"command": "a", "payload": 1, "delaySeconds": "5"}, "delaySeconds"),
    ("producer", "/tasks", {"command": "a", "payload": 1, "delaySeconds": 315360001}, "delaySeconds"),
    ("producer", "/tasks/batch", {"tasks": {}}, "tasks"),
    ("worker", "/tasks/claim", {"commands": "render"}, "commands"),
    ("worker", "/tasks/claim", {"commands": [1]}, "commands[0]"),
    ("worker", "/tasks/claim", {"leaseSeconds": "5"}, "leaseSeconds"),
    ("worker", "/tasks/claim", {"waitSeconds": True}, "waitSeconds"),
    ("worker", "/tasks/claim/batch", {"count": "2"}, "count"),
    ("worker", "/tasks/claim/stream", {"maxInFlight": 0}, "maxInFlight"),
    ("worker", f"/tasks/{NOBODY}/heartbeat", {"extendSeconds": "5"}, "extendSeconds"),
    ("worker", f"/tasks/{NOBODY}/heartbeat", {"lease": 0}, "lease"),
    ("worker", f"/tasks/{NOBODY}/nack", {"delaySeconds": "5"}, "delaySeconds"),
    ("worker", f"/tasks/{NOBODY}/nack", {"reason": 5}, "reason"),
    ("worker", f"/tasks/{NOBODY}/progress", {"percent": 101}, "percent"),
    ("worker", "/tasks/batch/results", {"results": "all"}, "results"),
    ("boss", "/admin/dlq/purge", {"limit": 0}, "limit"),
    ("boss", "/admin/dlq/purge", {"limit": 1001}, "limit"),
]


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[Shop]:
    async with calling(store_url) as opened:
        yield opened


async def test_healthz_answers_without_a_token(shop: Shop) -> None:
    answer = await shop.nobody.api.get("/healthz")
    assert answer.good()["status"] == "ok"


async def test_raft_status_says_that_raft_is_off(shop: Shop) -> None:
    for caller in (shop.producer, shop.worker):
        assert (await caller.get("/raft/status")).good() == {"enabled": False, "numGroups": 0}
    refused(await shop.nobody.get("/raft/status"), 401, "missing Authorization header")


async def test_a_request_id_is_echoed_or_generated_on_good_and_bad_answers(shop: Shop) -> None:
    task = await shop.producer.create()
    for caller, path, status in [
        (shop.producer, f"/tasks/{task['id']}", 200),
        (shop.producer, f"/tasks/{NOBODY}", 404),
        (shop.nobody, f"/tasks/{task['id']}", 401),
        (shop.worker, "/workers/subscriptions", 200),
    ]:
        echoed = await caller.get(path, {"X-Request-Id": "my own 7"})
        assert (echoed.status, echoed.headers["x-request-id"]) == (status, "my own 7")
        made = [(await caller.get(path)).headers["x-request-id"] for _ in range(2)]
        assert all(re.fullmatch("[0-9a-f]{32}", each) for each in made)
        assert made[0] != made[1]


async def test_a_request_id_that_is_too_long_is_not_echoed(shop: Shop) -> None:
    answer = await shop.producer.get("/raft/status", {"X-Request-Id": "x" * 201})
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


async def test_an_empty_claim_has_a_request_id_and_no_body(shop: Shop) -> None:
    answer = await shop.worker.post("/tasks/claim", {}, {"X-Request-Id": "abc"})
    assert (answer.status, answer.body, answer.headers["x-request-id"]) == (204, b"", "abc")


async def test_a_body_that_is_empty_or_no_json_object_is_refused_everywhere(shop: Shop) -> None:
    for who, path, text in BODIES:
        for body in ("", "not json", "[]", "7", "{", "null"):
            said = refused(await getattr(shop, who).send(path, body), 400, text, _field(body))
            assert said["detail"], path


def _field(body: str) -> str | None:
    return "body" if body in ("[]", "7", "null") else None


async def test_a_member_of_the_wrong_type_is_refused_and_named(shop: Shop) -> None:
    for who, path, body, field in WRONG_TYPES:
        refused(await getattr(shop, who).post(path, body), 400, "invalid body", field)
    for body in ({"status": 1}, {"status": "FAILED", "error": 1}, {"status": "FAILED", "artifacts": {}}):
        said = (await shop.worker.post(f"/tasks/{NOBODY}/result", body)).json
        assert said["error"] == "invalid request body"
        assert said["field"] in body


async def test_unknown_members_are_ignored(shop: Shop) -> None:
    task = await shop.producer.create(tenantId="globex", status="COMPLETED", id="mine", colour="red")
    assert (task["tenantId"], task["status"]) == ("acme", "PENDING")
    held = await shop.worker.claim(colour="red", workerId="somebody")
    assert (held["id"], held["workerId"]) == (task["id"], "worker")
    assert (await shop.worker.on(task, "heartbeat", colour="red")).good() == {"ok": True}
    done = await shop.worker.complete(task, workerId="somebody", colour="red")
    assert done["status"] == "COMPLETED"


async def test_a_null_field_is_the_same_as_a_missing_field(shop: Shop) -> None:
    names = ("priority", "webhook", "maxAttempts", "idempotencyKey", "uniqueKey", "runAt", "delaySeconds")
    task = (await shop.producer.post("/tasks", {"command": "a", "payload": 1, **dict.fromkeys(names)})).good(202)
    assert {"priority", "webhook", "runAt"}.isdisjoint(task)
    assert task["maxAttempts"] == 5
    held = (await shop.worker.post("/tasks/claim", dict.fromkeys(("commands", "leaseSeconds", "waitSeconds")))).good()
    assert held["id"] == task["id"]
    assert (await shop.worker.on(task, "heartbeat", extendSeconds=None, lease=None)).good() == {"ok": True}
    assert (await shop.worker.on(task, "progress", percent=None, message=None, data=None)).good() == {"ok": True}
    nacked = (await shop.worker.on(task, "nack", delaySeconds=None, reason=None, lease=None)).good()
    assert nacked["status"] == "requeued"
    assert 0 <= nacked["delaySeconds"] <= 10  # the delay is left out, so the policy sets it


async def test_text_that_is_not_unicode_is_refused(shop: Shop) -> None:
    for body in (b'{"command":"a\xff","payload":1}', b'{"command":"a","payload":"\xff"}'):
        answer = await shop.producer.send("/tasks", body)
        assert (answer.status, answer.json["error"]) == (400, "invalid body")
    for body in (b'{"command":"a\\ud800","payload":1}', b'{"command":"a\\u0000","payload":1}'):
        assert (await shop.producer.send("/tasks", body)).status == 400


async def test_a_body_over_the_limit_is_refused_in_this_wires_shape(store_url: str) -> None:
    async with calling(store_url, {"server.max_body_bytes": 2000}) as shop:
        answer = await shop.producer.post("/tasks", {"command": "a", "payload": "x" * 3000})
        assert answer.status == 413
        assert "at most 2000" in answer.json["error"]
        assert (await shop.worker.post("/tasks/claim", {"commands": ["x" * 70_000]})).status == 413


async def test_an_unknown_path_is_404_and_a_wrong_method_is_405(shop: Shop) -> None:
    assert (await shop.producer.get("/nowhere")).status == 404
    assert (await shop.producer.delete("/tasks")).status == 405


async def test_malformed_ids_are_not_found_rather_than_invalid(shop: Shop) -> None:
    for task_id in ("7", "x" * 300, "01hzzzzzzzzzzzzzzzzzzzzzzz", "0189c9b8-0000-4000-8000-000000000000", "a%20b"):
        refused(await shop.producer.get(f"/tasks/{task_id}"), 404, "not found")
        refused(await shop.producer.get(f"/tasks/{task_id}/result"), 404, "task not found")
        refused(await shop.producer.post(f"/tasks/{task_id}/cancel"), 404, "not found")
        for verb in ("heartbeat", "abandon", "nack", "progress"):
            refused(await shop.worker.post(f"/tasks/{task_id}/{verb}", {}), 404, "not-found")
        body = {"status": "FAILED", "error": "x"}
        refused(await shop.worker.post(f"/tasks/{task_id}/result", body), 404, "task not found")
