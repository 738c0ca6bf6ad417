"""Reading tasks: lists, the progress that workers report, and the log of a task as JSON and live."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from chargehand.engine.guard import Guard
from chargehand.engine.moves import Note
from tests.api.serving import on_sqlite, until
from tests.tasks.calling import Caller, Shop, calling, refused


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[Shop]:
    async with calling(store_url) as opened:
        yield opened


# lists --------------------------------------------------------------------------------------------------------------------


async def listed(caller: Caller, query: str = "") -> list[str]:
    return [task["id"] for task in (await caller.get(f"/tasks{query}")).good()["tasks"]]


async def test_tasks_are_listed_newest_first_by_command_and_status(shop: Shop) -> None:
    done, failed, cancelled, running, waiting = [(await shop.producer.create(c))["id"] for c in "abcde"]
    await shop.worker.claim("a")
    await shop.worker.complete({"id": done})
    await shop.worker.claim("b")
    (await shop.worker.on({"id": failed}, "result", status="FAILED", error="x")).good()
    (await shop.producer.on({"id": cancelled}, "cancel")).good()
    await shop.worker.claim("d")
    everything = [waiting, running, cancelled, failed, done]
    for caller in (shop.producer, shop.worker):
        assert await listed(caller) == everything
    for query, expected in [
        ("?status=PENDING", [waiting]),
        ("?status=IN_PROGRESS", [running]),
        ("?status=COMPLETED", [done]),
        ("?status=FAILED", [cancelled, failed]),
        ("?command=A", [done]),
        ("?command=a&status=PENDING", []),
        ("?command=b&status=FAILED", [failed]),
    ]:
        assert await listed(shop.producer, query) == expected, query


async def test_the_next_page_of_a_list_begins_where_the_last_one_ended(shop: Shop) -> None:
    made = [(await shop.producer.create())["id"] for _ in range(5)]
    seen: list[str] = []
    query = "?limit=2"
    while True:
        page = (await shop.producer.get(f"/tasks{query}")).good()
        seen += [task["id"] for task in page["tasks"]]
        if page["next"] is None:
            break
        query = f"?limit=2&cursor={page['next']}"
    assert seen == made[::-1]


@on_sqlite
async def test_the_list_of_a_command_has_no_other_command_whose_name_begins_alike(shop: Shop) -> None:
    made = await shop.producer.create("render")
    await shop.producer.create("render @home")
    await shop.producer.create("rendering")
    assert await listed(shop.producer, "?command=render") == [made["id"]]


@on_sqlite
async def test_queries_that_make_no_sense_are_refused(shop: Shop) -> None:
    refused(await shop.producer.get("/tasks?status=DONE"), 400, "invalid status", "status")
    for query, field in (("limit=0", "limit"), ("limit=501", "limit"), ("limit=x", "limit"), ("cursor=x", "cursor")):
        answer = await shop.producer.get(f"/tasks?{query}")
        assert (answer.status, answer.json["field"]) == (400, field)


# progress -----------------------------------------------------------------------------------------------------------------


async def test_a_progress_report_that_is_too_large_is_refused(shop: Shop) -> None:
    """The log of a task is read a thousand lines at a time."""
    await shop.producer.create()
    task = await shop.worker.claim("render")
    assert (await shop.worker.on(task, "progress", data="x" * 60_000)).status == 200
    assert (await shop.worker.on(task, "progress", data="x" * 70_000)).status == 413
    assert len((await shop.producer.task(task))["progress"]["data"]) == 60_000


async def test_progress_is_shown_while_a_task_runs_and_removed_with_its_attempt(shop: Shop) -> None:
    task = await shop.producer.create()
    await shop.worker.claim()
    assert "progress" not in await shop.producer.task(task)
    for percent, message, data in ((10, "", None), (55.5, "half", {"frames": 12345678901234567890})):
        told = await shop.worker.on(task, "progress", percent=percent, message=message, data=data)
        assert told.good() == {"ok": True}
    progress = (await shop.producer.task(task))["progress"]
    assert progress.pop("updatedAt")
    assert progress == {"percent": 55.5, "message": "half", "data": {"frames": 12345678901234567890}}
    (await shop.worker.on(task, "nack", delaySeconds=0)).good()
    assert "progress" not in await shop.producer.task(task)
    await shop.worker.claim()
    assert "progress" not in await shop.producer.task(task)
    (await shop.worker.on(task, "progress", percent=0)).good()
    assert (await shop.producer.task(task))["progress"]["percent"] == 0
    await shop.worker.complete(task)
    assert "progress" not in await shop.producer.task(task)


@on_sqlite
async def test_progress_has_bounds(shop: Shop) -> None:
    task = await shop.producer.create()
    await shop.worker.claim()
    for body, field in (
        ({"percent": -1}, "percent"),
        ({"percent": 101}, "percent"),
        ({"message": "x" * 10_001}, "message"),
    ):
        refused(await shop.worker.on(task, "progress", **body), 400, "invalid body", field)


# the log ------------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_the_log_says_what_happened(shop: Shop) -> None:
    task = await shop.producer.create(maxAttempts=2)
    await shop.worker.claim()
    (await shop.worker.on(task, "progress", percent=5, message="on it")).good()
    (await shop.worker.on(task, "nack", delaySeconds=0, reason="hiccup")).good()
    await shop.worker_2.claim()
    (await shop.worker_2.on(task, "nack", reason="no disk")).good()
    for caller in (shop.producer, shop.worker):
        events = (await caller.get(f"/tasks/{task['id']}/events")).good()["events"]
        assert [each["sequence"] for each in events] == [1, 2, 3, 4, 5, 6]
        assert [(each["move"], each["status"]) for each in events] == [
            ("submit", "PENDING"),
            ("claim", "IN_PROGRESS"),
            ("note", "IN_PROGRESS"),
            ("retry", "PENDING"),
            ("claim", "IN_PROGRESS"),
            ("fail", "FAILED"),
        ]
        assert events[1]["message"] == "claimed by worker"
        assert (events[2]["progress"]["percent"], events[2]["progress"]["message"]) == (5, "on it")
        assert (events[3]["level"], events[3]["error"]) == ("warn", "hiccup")
        assert (events[5]["level"], events[5]["error"], events[5]["attempt"]) == ("error", "no disk", 2)
        assert events[5]["message"].endswith("(dead letter)")


@on_sqlite
async def test_a_long_log_is_read_in_pages_and_its_end_is_not_lost(shop: Shop) -> None:
    task = await shop.producer.create(maxAttempts=2)
    await shop.worker.claim()
    notes = [Note(Guard(task["id"], "acme", "task", None, None), step="progress", message=str(n)) for n in range(1100)]
    await asyncio.gather(*[shop.server.engine.note(note) for note in notes])
    path = f"/tasks/{task['id']}/events"
    first = (await shop.producer.get(path)).good()["events"]
    assert [each["sequence"] for each in first] == list(range(1, 1001))
    rest = (await shop.producer.get(f"{path}?after=1000")).good()["events"]
    assert [each["sequence"] for each in rest] == list(range(1001, 1103))
    answer = await shop.producer.get(f"{path}?after=-1")
    assert (answer.status, answer.json["field"]) == (400, "after")
    (await shop.worker.on(task, "nack", delaySeconds=0)).good()
    await shop.worker_2.claim()
    refused(await shop.worker.on(task, "heartbeat"), 409, "lease-lost")
    (await shop.worker_2.on(task, "abandon")).good()
    await shop.worker.claim()
    refused(await shop.worker_2.on(task, "heartbeat"), 409, "lease-lost")
    (await shop.worker.on(task, "nack", reason="the end")).good()
    letter = (await shop.boss.get(f"/admin/dlq/{task['id']}")).good()
    assert letter["events"][-1]["error"] == "the end"


async def followed(caller: Caller, task: dict[str, Any], **headers: str) -> list[tuple[str, int, dict[str, Any]]]:
    """Return all events of a stream until it ends."""
    answer = await caller.get(f"/tasks/{task['id']}/events", {"Accept": "text/event-stream", **headers})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.body.decode().strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields["event"], int(fields["id"]), msgspec.json.decode(fields["data"])))
    return found


async def test_the_log_is_followed_live_to_its_end_and_resumed_after_a_break(shop: Shop) -> None:
    task = await shop.producer.create()
    following = asyncio.create_task(followed(shop.producer, task))
    await until(lambda: task["id"] in shop.server.engine._watchers)
    await shop.worker.claim()
    (await shop.worker.on(task, "progress", percent=50)).good()
    await shop.worker.complete(task)
    events = await asyncio.wait_for(following, 10)
    assert [(name, seq) for name, seq, _ in events] == [("submit", 1), ("claim", 2), ("progress", 3), ("succeed", 4)]
    plain = (await shop.producer.get(f"/tasks/{task['id']}/events")).good()["events"]
    assert [data for _, _, data in events] == plain
    for after in (0, 2, 3):
        assert await followed(shop.worker, task, **{"Last-Event-ID": str(after)}) == events[after:]
    answer = await shop.producer.get(
        f"/tasks/{task['id']}/events", {"Accept": "text/event-stream", "Last-Event-ID": "x"}
    )
    assert answer.status == 400
    assert "Last-Event-ID" in answer.json["error"]
