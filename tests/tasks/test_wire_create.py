"""POST /tasks and /tasks/batch: every field with its rule and its default, keys, delays, cancelling."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.api.serving import on_sqlite
from tests.tasks.calling import NOBODY, Shop, calling, refused

RFC3339 = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z"


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[Shop]:
    async with calling(store_url) as opened:
        yield opened


def at(**later: float) -> str:
    return (datetime.now(UTC) + timedelta(**later)).isoformat()


# one task -----------------------------------------------------------------------------------------------------------------


async def test_create_answers_the_whole_task_without_zero_fields(shop: Shop) -> None:
    made = await shop.producer.create("Render", {"b": 1, "a": [True, None]})
    said = {"id", "command", "payload", "status", "lastKnownLocation", "maxAttempts", "tenantId"}
    assert made.keys() - {"traceParent"} == said | {"createdAt", "updatedAt"}
    assert made["command"] == "Render"
    assert made["payload"] == '{"b": 1, "a": [true, null]}'
    assert (made["status"], made["lastKnownLocation"]) == ("PENDING", "PENDING_LIST")
    assert (made["maxAttempts"], made["tenantId"]) == (5, "acme")
    assert re.fullmatch(RFC3339, made["createdAt"])
    assert made["updatedAt"] == made["createdAt"]
    assert await shop.producer.task(made) == made


@on_sqlite
async def test_every_field_comes_back(shop: Shop) -> None:
    made = await shop.producer.create(
        "render", "x", priority=7, webhook="http://127.0.0.1:9/hook", maxAttempts=2, runAt=at(hours=1)
    )
    assert (made["priority"], made["webhook"], made["maxAttempts"]) == (7, "http://127.0.0.1:9/hook", 2)
    assert made["lastKnownLocation"] == "DELAYED_ZSET"
    assert re.fullmatch(RFC3339, made["runAt"])
    assert await shop.producer.task(made) == made


async def test_a_payload_is_any_json_and_comes_back_byte_for_byte(shop: Shop) -> None:
    for text in (
        "12345678901234567890123456789",
        '{"id": 9007199254740993, "z": 1, "a": 2}',
        "0.1000000000000000055511151231257827",
        '"\\u0000 \\ud83d\\ude00 é <&>"',
        "false",
        "0",
        '""',
        "[]",
        "{}",
    ):
        made = (await shop.producer.send("/tasks", f'{{"command":"p","payload": {text} }}')).good(202)
        assert made["payload"] == text
        assert (await shop.producer.task(made))["payload"] == text
        assert (await shop.worker.claim("p"))["payload"] == text


async def test_metadata_comes_with_the_task_wherever_it_is_shown(shop: Shop) -> None:
    made = (
        await shop.producer.send("/tasks", '{"command":"render","payload":1,"metadata":{"trace":12345678901234567890}}')
    ).good(202)
    assert made["metadata"] == {"trace": 12345678901234567890}
    assert await shop.producer.task(made) == made
    claimed = await shop.worker.claim("render")
    assert (claimed["metadata"], claimed["command"]) == (made["metadata"], "render")


@on_sqlite
async def test_metadata_that_is_no_object_is_refused(shop: Shop) -> None:
    wrongs: tuple[object, ...] = ([], "x", 1, {"long": "x" * 20_000})
    for wrong in wrongs:
        answer = await shop.producer.post("/tasks", {"command": "render", "payload": 1, "metadata": wrong})
        assert "metadata" in refused(answer, 400, "invalid body", "metadata")["detail"]
    assert "metadata" not in await shop.producer.create("render", metadata=None)


@on_sqlite
async def test_a_command_and_a_payload_are_required(shop: Shop) -> None:
    for body, field in [
        ({}, "command"),
        ({"command": "", "payload": 1}, "command"),
        ({"payload": 1}, "command"),
        ({"command": "a"}, "payload"),
        ({"command": "a", "payload": None}, "payload"),
    ]:
        said = refused(await shop.producer.post("/tasks", body), 400, "invalid body", field)
        assert said["detail"] == f"{field}: is required"
    for command in (" ", "\t \n", "a\nb", "x" * 201, "a*", "*"):
        said = refused(
            await shop.producer.post("/tasks", {"command": command, "payload": 1}), 400, "invalid command", "command"
        )
        assert said["detail"].startswith("command: ")


@on_sqlite
async def test_a_command_may_have_any_name_and_the_queue_ignores_case(shop: Shop) -> None:
    for command in ("GENERATE_MASTER", "a/b c:d", "größe", "x" * 200, "it's; DROP--", "%2F", "render @home"):
        made = await shop.producer.create(command)
        held = await shop.worker.claim(command.swapcase() if command.isascii() else command)
        assert (held["id"], held["command"]) == (made["id"], command)


@on_sqlite
async def test_priority_is_clamped_to_0_to_9(shop: Shop) -> None:
    for asked, kept in ((-5, None), (0, None), (1, 1), (9, 9), (10, 9), (10**30, 9)):
        assert (await shop.producer.create(priority=asked)).get("priority") == kept


@on_sqlite
async def test_max_attempts_defaults_to_the_setting_and_has_a_bound(store_url: str) -> None:
    async with calling(store_url, {"tasks.max_attempts": 7}) as shop:
        for asked, kept in ((None, 7), (0, 7), (-3, 7), (1, 1), (1000, 1000), (5000, 1000)):
            assert (await shop.producer.create(maxAttempts=asked))["maxAttempts"] == kept


@on_sqlite
async def test_a_webhook_with_an_invalid_url_is_refused(shop: Shop) -> None:
    for url in ("x", "ftp://example.com/a", "http://", "//example.com", "http:///path", "javascript:alert(1)"):
        answer = await shop.producer.post("/tasks", {"command": "a", "payload": 1, "webhook": url})
        assert refused(answer, 400, "invalid webhook url", "webhook")["detail"]
    for url in ("", "  "):
        assert "webhook" not in await shop.producer.create(webhook=url)


# when ---------------------------------------------------------------------------------------------------------------------


async def test_a_delayed_task_waits_and_one_with_a_past_time_does_not(shop: Shop) -> None:
    for late in (
        {"delaySeconds": 3600},
        {"delaySeconds": 10 * 365 * 24 * 3600},
        {"runAt": at(days=2)},
        {"runAt": "8999-12-31T23:59:59+02:00"},
        {"runAt": at(hours=1), "delaySeconds": 0},
    ):
        made = await shop.producer.create("late", **late)
        assert made["lastKnownLocation"] == "DELAYED_ZSET"
        assert await shop.producer.task(made) == made
    await shop.worker.claims_nothing("late")
    for past in (
        {"delaySeconds": 0},
        {"runAt": at(hours=-1)},
        {"runAt": "0001-01-01T00:00:00Z"},
        {"runAt": "2020-01-01T00:00:00.123456789Z", "delaySeconds": 3600},
        {"runAt": ""},
    ):
        made = await shop.producer.create("now", **past)
        assert made["lastKnownLocation"] == "PENDING_LIST"
        assert "runAt" not in made
        assert (await shop.worker.claim("now"))["id"] == made["id"]


@on_sqlite
async def test_a_task_with_a_past_time_does_not_jump_the_queue(shop: Shop) -> None:
    first = await shop.producer.create()
    await shop.producer.create(runAt="1970-01-01T00:00:00Z")
    assert (await shop.worker.claim())["id"] == first["id"]


async def test_a_delayed_task_becomes_ready_in_its_time(shop: Shop) -> None:
    made = await shop.producer.create(delaySeconds=0.3)
    await shop.worker.claims_nothing()
    held = await shop.worker.claim(waitSeconds=10)
    assert held["id"] == made["id"]


@on_sqlite
async def test_invalid_times_are_refused(shop: Shop) -> None:
    for text in (
        "soon",
        "2026-01-01",
        "2026-01-01 00:00:00Z",
        "2026-01-01T00:00:00",
        "2026-13-01T00:00:00Z",
        "9999-01-01T00:00:00Z",
        "1",
    ):
        answer = await shop.producer.post("/tasks", {"command": "a", "payload": 1, "runAt": text})
        refused(answer, 400, "invalid 'runAt' (use RFC3339)", "runAt")
    for seconds in (-1, -0.5, -1e12):
        answer = await shop.producer.post("/tasks", {"command": "a", "payload": 1, "delaySeconds": seconds})
        refused(answer, 400, "invalid 'delaySeconds' (must be >= 0)", "delaySeconds")


# keys ---------------------------------------------------------------------------------------------------------------------


async def test_an_idempotency_key_gives_the_first_task_again_even_after_its_end(shop: Shop) -> None:
    first = await shop.producer.create(payload=1, idempotencyKey="k")
    assert await shop.producer.create(payload=1, idempotencyKey="k") == first
    again = await shop.producer.create("another", payload=2, idempotencyKey="k")
    assert (again["id"], again["command"], again["payload"]) == (first["id"], "render", "1")
    await shop.worker.claim()
    await shop.worker.complete(first)
    again = await shop.producer.create(idempotencyKey="k")
    assert (again["id"], again["status"]) == (first["id"], "COMPLETED")
    assert (await shop.producer.create(idempotencyKey="other"))["id"] != first["id"]


async def test_concurrent_creates_with_one_key_give_one_task(shop: Shop) -> None:
    for field in ("idempotencyKey", "uniqueKey"):
        made = await asyncio.gather(*[shop.producer.create(field, n, **{field: "k"}) for n in range(20)])
        assert len({task["id"] for task in made}) == 1
        assert len({task["payload"] for task in made}) == 1
        await shop.worker.claim(field)
        await shop.worker.claims_nothing(field)


async def test_a_unique_key_is_held_by_a_live_task_and_free_after_each_kind_of_end(shop: Shop) -> None:
    async def complete(task: dict[str, Any]) -> None:
        await shop.worker.claim("render")
        await shop.worker.complete(task)

    async def fail(task: dict[str, Any]) -> None:
        await shop.worker.claim("render")
        (await shop.worker.on(task, "result", status="FAILED", error="x")).good()

    async def die(task: dict[str, Any]) -> None:
        await shop.worker.claim("render")
        assert (await shop.worker.on(task, "nack")).good()["status"] == "dlq"

    async def cancel(task: dict[str, Any]) -> None:
        (await shop.producer.on(task, "cancel")).good()

    previous = ""
    for end in (complete, fail, die, cancel):
        task = await shop.producer.create(uniqueKey="k", maxAttempts=1)
        assert task["id"] != previous
        previous = task["id"]
        assert (await shop.producer.create("RENDER", uniqueKey="k"))["id"] == task["id"]
        assert (await shop.producer.create("other", uniqueKey="k"))["id"] != task["id"]
        await end(task)
    assert (await shop.producer.create(uniqueKey="k"))["id"] != previous


@on_sqlite
async def test_keys_have_a_bound(shop: Shop) -> None:
    for field in ("idempotencyKey", "uniqueKey"):
        for key in ("k" * 256, "a\nb"):
            answer = await shop.producer.post("/tasks", {"command": "a", "payload": 1, field: key})
            refused(answer, 400, "invalid body", field)
        assert (await shop.producer.create(**{field: "k" * 255}))["status"] == "PENDING"
        twice = [(await shop.producer.create("empty", **{field: ""}))["id"] for _ in range(2)]
        assert twice[0] != twice[1]


# many ---------------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_batch_answers_in_order_and_a_refused_task_does_not_stop_the_others(shop: Shop) -> None:
    body = {
        "tasks": [
            {"command": "a", "payload": 0, "idempotencyKey": "k"},
            {"command": " ", "payload": 1},
            {"payload": 2},
            {"command": "a", "payload": 3, "runAt": "soon"},
            {"command": "a", "payload": 4, "delaySeconds": -1},
            {"command": "a", "payload": 5, "webhook": "x"},
            {"command": 6, "payload": 6},
            7,
            {"command": "a"},
            {"command": "a", "payload": 9, "idempotencyKey": "k"},
            {"command": "b", "payload": {"n": 10}, "priority": 3},
        ]
    }
    results = (await shop.producer.post("/tasks/batch", body)).good()["results"]
    assert [each.get("error") for each in results] == [
        None,
        "invalid command",
        "invalid command",
        "invalid 'runAt' (use RFC3339)",
        "invalid 'delaySeconds' (must be >= 0)",
        "invalid webhook url",
        "invalid body",
        "invalid body",
        "invalid body",
        None,
        None,
    ]
    assert results[1]["detail"] == "command: must not be blank"
    assert results[8] == {"error": "invalid body", "detail": "payload: is required"}
    assert results[9]["task"]["id"] == results[0]["task"]["id"]
    assert (results[10]["task"]["payload"], results[10]["task"]["priority"]) == ('{"n": 10}', 3)
    assert results[10].keys() == {"task"}
    listed = (await shop.producer.get("/tasks")).good()["tasks"]
    assert {task["id"] for task in listed} == {results[0]["task"]["id"], results[10]["task"]["id"]}


@on_sqlite
async def test_a_batch_has_1_to_100_tasks(shop: Shop) -> None:
    bodies: list[dict[str, Any]] = [{}, {"tasks": []}, {"tasks": None}]
    for body in bodies:
        answer = await shop.producer.post("/tasks/batch", body)
        assert (answer.status, answer.json["error"], answer.json["field"]) == (400, "invalid body", "tasks")
    one = {"command": "a", "payload": 1}
    answer = await shop.producer.post("/tasks/batch", {"tasks": [one] * 101})
    refused(answer, 400, "batch size exceeds maximum of 100")
    results = (await shop.producer.post("/tasks/batch", {"tasks": [one] * 100})).good()["results"]
    assert len({each["task"]["id"] for each in results}) == 100


# cancelling ---------------------------------------------------------------------------------------------------------------


async def test_a_task_is_cancelled_before_and_while_it_runs_and_its_result_says_so(shop: Shop) -> None:
    waiting, running = await shop.producer.create("a"), await shop.producer.create("b")
    await shop.worker.claim("b")
    for task in (waiting, running):
        answer = (await shop.producer.post(f"/tasks/{task['id']}/cancel")).good()
        assert (answer["status"], answer["error"], answer["lastKnownLocation"]) == ("FAILED", "CANCELLED", "NONE")
        outcome = (await shop.producer.get(f"/tasks/{task['id']}/result")).good()
        assert (outcome["result"]["status"], outcome["result"]["error"]) == ("FAILED", "CANCELLED")
        refused(await shop.producer.post(f"/tasks/{task['id']}/cancel"), 409, "already finished")
    for verb in ("heartbeat", "nack", "abandon"):
        refused(await shop.worker.on(running, verb), 409, "not-in-progress")
    await shop.worker.claims_nothing("a")


@on_sqlite
async def test_a_finished_or_unknown_task_is_not_cancelled(shop: Shop) -> None:
    task = await shop.producer.create()
    await shop.worker.claim()
    await shop.worker.complete(task)
    refused(await shop.producer.post(f"/tasks/{task['id']}/cancel"), 409, "already finished")
    assert (await shop.producer.task(task))["status"] == "COMPLETED"
    refused(await shop.producer.post(f"/tasks/{NOBODY}/cancel"), 404, "not found")
