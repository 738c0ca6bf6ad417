"""For administrators: counts, pausing and limiting a command, dead letters, cleanup."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chargehand.doors.tasks.names import BASE
from tests.api.serving import on_sqlite, until
from tests.tasks.calling import NOBODY, Caller, Shop, calling, refused
from tests.webhooks.receiver import answer as answering
from tests.webhooks.receiver import receiving

LATER = "2999-01-01T00:00:00Z"


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[Shop]:
    async with calling(store_url) as opened:
        yield opened


async def depth(shop: Shop, command: str) -> dict[str, Any]:
    counted: dict[str, Any] = (await shop.boss.get(f"/admin/queues/{command}")).good()
    return counted


# counts -------------------------------------------------------------------------------------------------------------------


async def test_everything_is_counted_label_by_label(shop: Shop) -> None:
    assert (await shop.boss.get("/admin/queues")).good() == {}
    for priority in (0, 0, 9):
        await shop.producer.create("Render", priority=priority)
    await shop.producer.create("Render", delaySeconds=100)
    await shop.producer.create("mix")
    await shop.worker.claim("mix")
    await shop.dead_letter("burn")
    await shop.other_producer.create("render")
    assert (await shop.boss.get("/admin/queues")).good() == {
        "codeq:q:render:acme:pending:0": 2,
        "codeq:q:render:acme:pending:9": 1,
        "codeq:q:render:acme:inprog": 0,
        "codeq:q:render:acme:delayed": 1,
        "codeq:q:mix:acme:inprog": 1,
        "codeq:q:mix:acme:delayed": 0,
        "codeq:q:burn:acme:dlq": 1,
    }


@on_sqlite
async def test_one_command_is_counted_in_any_spelling(shop: Shop) -> None:
    await shop.producer.create("Render")
    await shop.producer.create("render", delaySeconds=100)
    await shop.producer.create("rendering")
    await shop.dead_letter("RENDER", priority=9)
    zero = {"delayed": 0, "dlq": 0, "inProgress": 0, "maxInProgress": None, "paused": False, "ready": 0}
    for spelt in ("render", "RENDER"):
        assert await depth(shop, spelt) == {**zero, "command": spelt, "ready": 1, "delayed": 1, "dlq": 1}
    await shop.worker.claim("render")
    assert await depth(shop, "render") == {**zero, "command": "render", "inProgress": 1, "delayed": 1, "dlq": 1}
    assert await depth(shop, "unknown") == {**zero, "command": "unknown"}


# pausing and limiting -----------------------------------------------------------------------------------------------------


async def test_a_paused_command_is_not_claimed_until_it_is_resumed(shop: Shop) -> None:
    made = await shop.producer.create()
    paused = (await shop.boss.put("/admin/queues/Render", {"paused": True})).good()
    assert (paused["paused"], paused["ready"]) == (True, 1)
    await shop.worker.claims_nothing("render")
    await shop.worker.claims_nothing()
    waiting = asyncio.create_task(shop.worker.claim("render", waitSeconds=15))
    await until(lambda: shop.server.engine.wakeups.waiting)
    assert (await shop.boss.put("/admin/queues/render", {"maxInProgress": 5})).good()["paused"] is True
    on = (await shop.boss.put("/admin/queues/render", {"paused": False})).good()
    assert (on["paused"], on["maxInProgress"]) == (False, 5)
    assert (await waiting)["id"] == made["id"]


async def test_a_limited_command_has_no_more_tasks_in_progress_than_its_limit(shop: Shop) -> None:
    for _ in range(3):
        await shop.producer.create()
    limited = (await shop.boss.put("/admin/queues/render", {"maxInProgress": 2})).good()
    assert limited["maxInProgress"] == 2
    held = (await shop.worker.post("/tasks/claim/batch", {"count": 10})).good()["tasks"]
    assert len(held) == 2
    await shop.worker.claims_nothing("render")
    waiting = asyncio.create_task(shop.worker.claim("render", waitSeconds=15))
    await until(lambda: shop.server.engine.wakeups.waiting)
    await shop.worker.complete(held[0])
    assert (await waiting)["id"] not in {task["id"] for task in held}
    assert (await depth(shop, "render"))["inProgress"] == 2


@on_sqlite
async def test_settings_that_make_no_sense_are_refused(shop: Shop) -> None:
    for body, field in [
        ({"paused": "yes"}, "paused"),
        ({"maxInProgress": 0}, "maxInProgress"),
        ({"max_in_progress": 1}, "max_in_progress"),
    ]:
        refused(await shop.boss.put("/admin/queues/render", body), 400, "invalid body", field)
    refused(await shop.boss.put("/admin/queues/*", {}), 400, "invalid command", "command")


# dead letters -------------------------------------------------------------------------------------------------------------


async def letters(shop: Shop, query: str = "") -> list[str]:
    return [task["id"] for task in (await shop.boss.get(f"/admin/dlq{query}")).good()["tasks"]]


async def test_dead_letters_are_listed_newest_first_and_nothing_else_is(shop: Shop) -> None:
    first, second, third = [(await shop.dead_letter(command))["id"] for command in ("a", "B", "a")]
    failed = await shop.producer.create("c")
    await shop.worker.claim("c")
    (await shop.worker.on(failed, "result", status="FAILED", error="x")).good()
    (await shop.producer.on(await shop.producer.create("d"), "cancel")).good()
    assert await letters(shop) == [third, second, first]
    assert await letters(shop, "?command=A") == [third, first]
    assert await letters(shop, "?command=b") == [second]
    page = (await shop.boss.get("/admin/dlq?limit=2")).good()
    assert await letters(shop, f"?limit=2&cursor={page['next']}") == [first]
    for query, field in (("limit=0", "limit"), ("cursor=x", "cursor")):
        said = await shop.boss.get(f"/admin/dlq?{query}")
        assert (said.status, said.json["field"]) == (400, field)


@on_sqlite
async def test_a_dead_letter_is_read_with_its_payload_and_its_log(shop: Shop) -> None:
    dead = await shop.dead_letter(payload={"n": 9007199254740993}, reason="no disk")
    letter = (await shop.boss.get(f"/admin/dlq/{dead['id']}")).good()
    assert letter["task"] == dead
    assert (dead["payload"], dead["error"]) == ('{"n": 9007199254740993}', "no disk")
    events = letter["events"]
    assert [each["move"] for each in events] == ["submit", "claim", "fail"]
    assert events[-1]["error"] == "no disk"


async def test_a_requeued_dead_letter_has_all_its_attempts_again(shop: Shop) -> None:
    dead = await shop.dead_letter()
    back = (await shop.boss.post(f"/admin/dlq/{dead['id']}/requeue")).good()
    assert (back["status"], back["lastKnownLocation"], back["payload"]) == ("PENDING", "PENDING_LIST", '{"n": 1}')
    assert {"attempts", "error", "resultKey"}.isdisjoint(back)
    refused(await shop.producer.get(f"/tasks/{dead['id']}/result"), 404, "result not found")
    refused(await shop.boss.post(f"/admin/dlq/{dead['id']}/requeue"), 404, "not found")
    assert (await shop.worker.claim())["attempts"] == 1
    await shop.worker.complete(dead)
    assert (await shop.producer.get(f"/tasks/{dead['id']}/result")).good()["result"]["status"] == "COMPLETED"
    assert await letters(shop) == []


async def test_a_dead_letter_is_requeued_with_a_mended_payload(shop: Shop) -> None:
    dead = await shop.dead_letter()
    body = '{"payload": {"n": 12345678901234567890} }'
    back = (await shop.boss.send(f"/admin/dlq/{dead['id']}/requeue", body)).good()
    assert back["payload"] == '{"n": 12345678901234567890}'
    assert (await shop.worker.claim())["payload"] == back["payload"]
    log = (await shop.boss.get(f"/tasks/{dead['id']}/events")).good()["events"]
    assert [each["message"] for each in log if each["move"] == "requeue"] == ["requeued by boss with another payload"]


@on_sqlite
async def test_a_misspelt_field_neither_requeues_nor_purges(shop: Shop) -> None:
    dead = await shop.dead_letter()
    refused(await shop.boss.post(f"/admin/dlq/{dead['id']}/requeue", {"payloud": 1}), 400, "invalid body", "payloud")
    for what in ("purge", "requeue"):
        refused(await shop.boss.post(f"/admin/dlq/{what}", {"comand": "x"}), 400, "invalid body", "comand")
    assert await letters(shop) == [dead["id"]]


async def test_a_dead_letter_is_not_requeued_while_another_task_has_its_unique_key(shop: Shop) -> None:
    dead = await shop.dead_letter(uniqueKey="k")
    await shop.producer.create(uniqueKey="k")
    said = refused(await shop.boss.post(f"/admin/dlq/{dead['id']}/requeue"), 409, "not requeued")
    assert "uniqueKey" in said["detail"]
    assert (await shop.boss.post("/admin/dlq/requeue", {})).good() == {"count": 0}
    assert await letters(shop) == [dead["id"]]


async def test_dead_letters_are_requeued_and_purged_by_command_and_number(shop: Shop) -> None:
    dead = [(await shop.dead_letter(command))["id"] for command in ("a", "a", "b", "a", "a @x")]
    assert (await shop.boss.post("/admin/dlq/requeue", {"command": "B", "limit": 1})).good() == {"count": 1}
    assert (await shop.producer.task({"id": dead[2]}))["status"] == "PENDING"
    assert (await shop.boss.post("/admin/dlq/purge", {"command": "a"})).good() == {"count": 3}
    assert await letters(shop) == [dead[4]]
    for gone in (dead[0], dead[1], dead[3]):
        refused(await shop.producer.get(f"/tasks/{gone}"), 404, "not found")
    refused(await shop.boss.post("/admin/dlq/purge", {}), 400, "invalid body", "command")
    assert (await shop.boss.post("/admin/dlq/purge", {"command": "*"})).good() == {"count": 1}
    assert await letters(shop) == []
    assert (await shop.producer.task({"id": dead[2]}))["status"] == "PENDING"


async def test_a_command_whose_name_begins_like_another_is_separate(shop: Shop) -> None:
    a, like_a = [await shop.dead_letter(command) for command in ("a", "a @x")]
    assert (await shop.boss.post("/admin/dlq/requeue", {"command": "a", "limit": 1})).good() == {"count": 1}
    assert await letters(shop) == [like_a["id"]]
    listed = (await shop.producer.get("/tasks?command=a&limit=1")).good()["tasks"]
    assert [task["id"] for task in listed] == [a["id"]]


@on_sqlite
async def test_one_dead_letter_is_removed_for_good(shop: Shop) -> None:
    dead, alive = await shop.dead_letter(), await shop.producer.create()
    removed = await shop.boss.delete(f"/admin/dlq/{dead['id']}")
    assert (removed.status, removed.body) == (204, b"")
    for task_id in (dead["id"], NOBODY):
        refused(await shop.boss.delete(f"/admin/dlq/{task_id}"), 404, "not found")
    for answer in (
        await shop.boss.delete(f"/admin/dlq/{alive['id']}"),
        await shop.boss.get(f"/admin/dlq/{alive['id']}"),
        await shop.boss.post(f"/admin/dlq/{alive['id']}/requeue"),
    ):
        assert refused(answer, 404, "not found")["detail"] == "the task exists, but it is not a dead letter"


async def test_a_dead_letter_stays_until_its_callback_is_delivered(shop: Shop) -> None:
    async with receiving() as receiver:
        receiver.otherwise = answering(500)
        dead = await shop.dead_letter(webhook=receiver.url())
        await until(lambda: receiver.hooks)
        said = refused(await shop.boss.delete(f"/admin/dlq/{dead['id']}"), 409, "not removed")
        assert "callback" in said["detail"]
        assert (await shop.boss.post("/admin/dlq/purge", {"command": "*"})).good() == {"count": 0}


@on_sqlite
async def test_dead_letters_are_counted_by_command_beside_the_page(shop: Shop) -> None:
    for command in ("a", "B", "b"):
        await shop.dead_letter(command)
    page = (await shop.boss.get("/admin/dlq?limit=1&command=a")).good()
    assert (len(page["tasks"]), page["counts"]) == (1, {"a": 1, "b": 2})
    assert (await shop.other_boss.get("/admin/dlq")).good()["counts"] == {}


# workers ------------------------------------------------------------------------------------------------------------------


async def workers(caller: Caller) -> dict[str, list[tuple[str, int]]]:
    seen = (await caller.get("/admin/workers")).good()["workers"]
    return {each["workerId"]: [(it["command"], it["waiting"]) for it in each["commands"]] for each in seen}


@on_sqlite
async def test_workers_that_asked_for_work_are_listed_for_their_tenant(shop: Shop) -> None:
    task = await shop.producer.create("Render")
    await shop.worker.claim("Render", "mix")
    await shop.other_worker.claims_nothing("burn")
    assert await workers(shop.boss) == {"worker": [("mix", 0), ("render", 0)]}
    assert await workers(shop.other_boss) == {"other-worker": [("burn", 0)]}
    [before] = (await shop.boss.get("/admin/workers")).good()["workers"]
    assert (before["lastHeartbeatAt"], before["allTenants"]) == (None, False)
    await shop.worker.on(task, "heartbeat")
    [after] = (await shop.boss.get("/admin/workers")).good()["workers"]
    assert after["lastHeartbeatAt"] == after["lastSeenAt"] > before["lastSeenAt"]
    refused(await shop.worker.get("/admin/workers"), 401, "unauthorized. Admin only")


@on_sqlite
async def test_a_worker_that_waits_for_work_is_shown_as_waiting(shop: Shop) -> None:
    waiting = asyncio.create_task(shop.worker.claim("render", waitSeconds=10))
    await until(lambda: _waits(shop, 1))
    await shop.producer.create("render")
    await waiting
    assert await workers(shop.boss) == {"worker": [("render", 0)]}


@on_sqlite
async def test_a_worker_with_an_open_stream_is_shown_as_waiting_until_it_leaves(shop: Shop) -> None:
    api = shop.worker.api
    path = api.url + f"{BASE}/tasks/claim/stream"
    async with api.session.post(path, json={"commands": ["render"]}, headers=api._headers) as response:
        assert await response.content.readline() == b"\n"
        assert await workers(shop.boss) == {"worker": [("render", 1)]}
        response.close()
    await until(lambda: _waits(shop, 0))


async def _waits(shop: Shop, count: int) -> bool:
    return await workers(shop.boss) == {"worker": [("render", count)]}


# cleaning up --------------------------------------------------------------------------------------------------------------


async def test_cleanup_removes_finished_tasks_and_never_live_ones(shop: Shop) -> None:
    done = [await shop.producer.create("done") for _ in range(3)]
    for task in done:
        await shop.worker.claim("done")
        await shop.worker.complete(task)
    live = [await shop.producer.create("a"), await shop.producer.create("b", delaySeconds=100)]
    await shop.producer.create("c")
    live.append(await shop.worker.claim("c"))
    now = (await shop.boss.post("/admin/tasks/cleanup")).good()
    assert (now["deleted"], now["limit"]) == (0, 0)  # none of them is old enough
    assert len(now["before"]) == len(LATER)
    some = (await shop.boss.post("/admin/tasks/cleanup", {"before": LATER, "limit": 2})).good()
    assert some == {"deleted": 2, "before": LATER, "limit": 2}
    rest = (await shop.boss.post("/admin/tasks/cleanup", {"before": LATER})).good()
    assert rest == {"deleted": 1, "before": LATER, "limit": 0}
    for task in done:
        refused(await shop.producer.get(f"/tasks/{task['id']}"), 404, "not found")
    for task in live:
        assert (await shop.producer.task(task))["status"] in ("PENDING", "IN_PROGRESS")
    assert (await shop.worker.claim("a"))["id"] == live[0]["id"]


@on_sqlite
async def test_cleanup_ignores_a_bad_body_but_refuses_a_bad_instant(shop: Shop) -> None:
    for body in ("", "not json", "[]", '{"limit":"x"}', "{}", '{"before":null,"limit":-5}'):
        assert (await shop.boss.send("/admin/tasks/cleanup", body)).good()["deleted"] == 0
    for before in ("yesterday", "2026-01-01"):
        answer = await shop.boss.post("/admin/tasks/cleanup", {"before": before})
        refused(answer, 400, "invalid 'before' (use RFC3339)", "before")


@on_sqlite
async def test_tasks_that_are_kept_for_ever_are_not_cleaned_up(store_url: str) -> None:
    async with calling(store_url, {"retention.finished_seconds": 0}) as shop:
        task = await shop.producer.create()
        await shop.worker.claim()
        await shop.worker.complete(task)
        assert (await shop.boss.post("/admin/tasks/cleanup")).good()["deleted"] == 0
        assert (await shop.producer.task(task))["status"] == "COMPLETED"
