"""POST /tasks/claim, one and many: who gets which task, in which order, and how long a claim waits."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.api.serving import on_sqlite, until
from tests.tasks.calling import TOKENS, WORK, Shop, calling, refused
from tests.tasks.subscribing import a_token


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[Shop]:
    some = a_token("some", scopes=WORK, event_types=["render", "Mix"])
    async with calling(store_url, {"auth.tokens": [*TOKENS, some]}) as opened:
        yield opened


def left(task: dict[str, Any]) -> float:
    """Return the seconds left of the lease."""
    return (datetime.fromisoformat(task["leaseUntil"]) - datetime.now(UTC)).total_seconds()


async def test_a_claimed_task_shows_its_worker_and_its_lease(shop: Shop) -> None:
    made = await shop.producer.create(priority=3)
    held = await shop.worker.claim()
    assert (
        held.items()
        >= {
            "id": made["id"],
            "status": "IN_PROGRESS",
            "lastKnownLocation": "INPROG_SET",
            "workerId": "worker",
            "attempts": 1,
            "maxAttempts": 5,
            "priority": 3,
            "payload": '{"n": 1}',
            "createdAt": made["createdAt"],
        }.items()
    )
    assert len(held["leaseUntil"]) == len("2026-01-01T00:00:00Z")  # whole seconds, as codeQ has them
    assert 290 < left(held) <= 300
    assert await shop.producer.task(made) == held
    await shop.worker.claims_nothing()


@on_sqlite
async def test_a_lease_is_as_long_as_asked_for_within_bounds(store_url: str) -> None:
    async with calling(store_url, {"tasks.lease_seconds": 40, "engine.max_lease_seconds": 1000}) as shop:
        for asked, length in ((None, 40), (0, 40), (-5, 40), (100, 100), (5000, 1000), (1e12, 1000), (90.5, 90.5)):
            await shop.producer.create()
            held = await shop.worker.claim(leaseSeconds=asked)
            assert length - 10 < left(held) <= length
            beat = await shop.worker.on(held, "heartbeat", extendSeconds=asked)
            assert beat.good() == {"ok": True}
            assert length - 10 < left(await shop.producer.task(held)) <= length


# in which order -----------------------------------------------------------------------------------------------------------


async def test_tasks_come_by_priority_then_age_over_all_commands_named(shop: Shop) -> None:
    wanted = [("a", 0), ("b", 5), ("c", 9), ("a", 9), ("c", 5), ("b", 0), ("z", 9)]
    made = [(await shop.producer.create(command, priority=priority))["id"] for command, priority in wanted]
    claimed = [(await shop.worker.claim("b", "a", "C", "nothing"))["id"] for _ in range(6)]
    assert claimed == [made[n] for n in (2, 3, 1, 4, 0, 5)]
    await shop.worker.claims_nothing("a", "b", "c")
    assert (await shop.worker.claim("z"))["id"] == made[6]


async def test_a_star_claims_every_command_of_the_tenant_by_priority_then_age(shop: Shop) -> None:
    made = []
    for command, priority in (("zeta", 0), ("alpha", 0), ("beta", 7), ("UPPER", 7)):
        made.append((await shop.producer.create(command, priority=priority))["id"])
    await shop.other_producer.create("alpha", priority=9)
    claimed = [(await shop.worker.claim())["id"] for _ in range(4)]
    assert claimed == [made[n] for n in (2, 3, 0, 1)]
    await shop.worker.claims_nothing()


@on_sqlite
async def test_an_abandoned_task_goes_behind_its_peers(shop: Shop) -> None:
    first, second = await shop.producer.create(), await shop.producer.create()
    assert (await shop.worker.claim())["id"] == first["id"]
    (await shop.worker.on(first, "abandon")).good()
    assert [(await shop.worker.claim())["id"] for _ in range(2)] == [second["id"], first["id"]]


# event types --------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_worker_claims_only_what_its_token_allows(shop: Shop) -> None:
    some = shop.by("some")
    for command in ("other", "mix", "render"):
        await shop.producer.create(command)
    for path, more in (("/tasks/claim", {}), ("/tasks/claim/batch", {"count": 3}), ("/tasks/claim/stream", {})):
        for commands in (["other"], ["render", "other"], ["RENDER"], ["mix"]):
            said = refused(await some.post(path, {"commands": commands, **more}), 403, "event type not allowed")
            assert "the token does not have" in said["detail"]
    held = [await some.claim(), await some.claim(commands=[])]
    assert [task["command"] for task in held] == ["mix", "render"]  # those that the token allows, oldest first
    await some.claims_nothing()
    await some.claims_nothing("render", "Mix")


@on_sqlite
async def test_invalid_commands_are_refused(shop: Shop) -> None:
    for command in ("", " ", "*", "a*"):
        said = refused(await shop.worker.post("/tasks/claim", {"commands": [command]}), 400, "invalid body", "commands")
        assert "commands: " in said["detail"]
    refused(await shop.worker.post("/tasks/claim", {"commands": ["a"] * 101}), 400, "invalid body", "commands")


# many ---------------------------------------------------------------------------------------------------------------------


async def test_a_batch_claims_up_to_its_count_in_order(shop: Shop) -> None:
    made = [(await shop.producer.create(priority=priority))["id"] for priority in (0, 9, 0, 9)]
    answer = (await shop.worker.post("/tasks/claim/batch", {"count": 3, "leaseSeconds": 100})).good()
    assert answer.keys() == {"tasks"}
    assert [task["id"] for task in answer["tasks"]] == [made[n] for n in (1, 3, 0)]
    assert all(task["workerId"] == "worker" and left(task) > 90 for task in answer["tasks"])
    rest = (await shop.worker.post("/tasks/claim/batch", {"count": 10, "commands": ["render"]})).good()["tasks"]
    assert [task["id"] for task in rest] == [made[2]]
    empty = await shop.worker.post("/tasks/claim/batch", {"count": 10})
    assert (empty.status, empty.body) == (204, b"")


@on_sqlite
async def test_a_batch_claims_1_to_10_tasks(shop: Shop) -> None:
    for body in ({}, {"count": 0}, {"count": -1}):
        refused(await shop.worker.post("/tasks/claim/batch", body), 400, "invalid body", "count")
    refused(await shop.worker.post("/tasks/claim/batch", {"count": 11}), 400, "count exceeds maximum of 10", "count")


# waiting ------------------------------------------------------------------------------------------------------------------


async def waiting(shop: Shop, *commands: str, **fields: Any) -> "asyncio.Task[dict[str, Any]]":
    """Return a claim that is already waiting."""
    claiming = asyncio.create_task(shop.worker.claim(*commands, **{"waitSeconds": 15, **fields}))
    await until(lambda: shop.server.engine.wakeups.waiting)
    return claiming


async def test_a_waiting_claim_is_woken_by_a_create(shop: Shop) -> None:
    for commands in (["render"], ["other", "render"], []):
        claiming = await waiting(shop, *commands)
        began = time.monotonic()
        made = await shop.producer.create()
        assert (await claiming)["id"] == made["id"]
        assert time.monotonic() - began < 2


async def test_a_waiting_claim_is_woken_by_a_nack_without_delay_by_an_abandon_and_by_a_requeue(shop: Shop) -> None:
    made = await shop.producer.create(maxAttempts=2)
    await shop.worker_2.claim()
    for verb, fields in (("abandon", {}), ("nack", {"delaySeconds": 0})):
        claiming = await waiting(shop)
        began = time.monotonic()
        (await shop.worker_2.on(made, verb, **fields)).good()
        assert (await claiming)["id"] == made["id"]
        assert time.monotonic() - began < 2
        if verb == "abandon":
            (await shop.worker.on(made, "abandon")).good()
            await shop.worker_2.claim()
    assert (await shop.worker.on(made, "nack")).good()["status"] == "dlq"
    claiming = await waiting(shop, "render")
    (await shop.boss.post(f"/admin/dlq/{made['id']}/requeue")).good()
    assert (await claiming)["id"] == made["id"]


@on_sqlite
async def test_a_waiting_claim_gets_nothing_when_its_time_is_over(shop: Shop) -> None:
    began = time.monotonic()
    await shop.worker.claims_nothing("render", waitSeconds=0.4)
    assert 0.3 < time.monotonic() - began < 5
    for wait in (0, -1, None):
        began = time.monotonic()
        await shop.worker.claims_nothing("render", waitSeconds=wait)
        assert time.monotonic() - began < 2


@on_sqlite
async def test_a_wait_has_a_bound(store_url: str) -> None:
    async with calling(store_url, {"engine.max_wait_seconds": 0.3}) as shop:
        began = time.monotonic()
        await shop.worker.claims_nothing(waitSeconds=1_000_000)
        assert time.monotonic() - began < 5


async def test_concurrent_claimers_share_the_tasks(shop: Shop) -> None:
    for _ in range(10):
        await shop.producer.create()
    claims = [shop.worker.post("/tasks/claim", {}) for _ in range(15)]
    answers = await asyncio.gather(*claims)
    got = [answer.json["id"] for answer in answers if answer.status == 200]
    assert len(got) == len(set(got)) == 10
    assert [answer.status for answer in answers].count(204) == 5
