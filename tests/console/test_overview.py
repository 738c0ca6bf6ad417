"""The overview: doors by state, the last hour, deliveries, and the caller."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chargehand.http.credentials import hash_token
from tests.api.serving import Api, on_sqlite, serving, talking, until
from tests.webhooks.receiver import Receiver, after, answer

pytestmark = on_sqlite

TOKENS = [
    {
        "name": name,
        "hash": hash_token(f"token-of-{name}"),
        "tenant": name,
        "scopes": ["jobs:read", "jobs:write", "work"],
    }
    for name in ("acme", "umbrella")
]


async def overview(api: Api) -> Any:
    return (await api.get("/engine/overview")).good()


def door(whole: Any, kind: str = "job") -> Any:
    [found] = [each for each in whole["doors"] if each["kind"] == kind]
    return found


async def test_the_overview_of_a_new_server_has_zeros_for_every_enabled_door(api: Api) -> None:
    whole = await overview(api)
    assert [each["kind"] for each in whole["doors"]] == ["inference", "task", "job", "flow"]
    for each in whole["doors"]:
        assert (each["waiting"], each["running"], each["oldest_at"]) == (0, {}, None)
        assert each["hour"] == dict.fromkeys(("submitted", "ended", "failed", "waiting", "running"), [0] * 60)
    assert whole["deliveries"]["pending"] == whole["deliveries"]["dead"] == whole["deliveries"]["endpoints"] == 0
    assert whole["auth"] is False


async def test_jobs_are_counted_by_the_state_that_callers_see_and_by_minute(api: Api) -> None:
    for _ in range(3):
        await api.submit()
    job = await api.claim()

    async def counted() -> Any:
        found = door(await overview(api))
        return found if found["waiting"] == 2 and found["running"] else None

    found = await until(counted)
    assert found["running"] == {"running:claimed": 1}
    assert found["oldest_at"] is not None
    assert sum(found["hour"]["submitted"][-2:]) == 3
    (await api.move(job, "fail", error="broke")).good()
    assert sum(door(await overview(api))["hour"]["failed"][-2:]) == 1


async def test_failing_deliveries_are_pending_and_delivered_ones_are_in_the_hour(api: Api, receiver: Receiver) -> None:
    await api.submit(webhook={"url": receiver.url()})

    async def told() -> Any:
        found = (await overview(api))["deliveries"]
        return found if sum(found["hour"]["ended"]) == 1 and not found["pending"] else None

    found = await until(told)
    assert (found["endpoints"], found["pending"], found["dead"]) == (1, 0, 0)


@pytest.fixture
async def nobody(store_url: str) -> AsyncIterator[Api]:
    async with serving(store_url, {"auth.tokens": TOKENS}) as server, talking(server) as api:
        yield api


async def test_a_tenant_sees_its_own_numbers_and_its_identity(nobody: Api) -> None:
    acme, umbrella = nobody.of("token-of-acme"), nobody.of("token-of-umbrella")
    await acme.submit()

    async def seen() -> Any:
        whole = await overview(acme)
        return whole if door(whole)["waiting"] == 1 else None

    whole = await until(seen)
    assert whole["me"] == {"subject": "acme", "tenant": "acme", "scopes": ["jobs:read", "jobs:write", "work"]}
    assert whole["auth"] is True
    other = await overview(umbrella)
    assert door(other)["waiting"] == 0
    assert sum(door(other)["hour"]["submitted"]) == 0
    assert (await nobody.get("/engine/overview")).status == 401


async def test_a_tenant_sees_only_its_own_deliveries_in_flight(nobody: Api, receiver: Receiver) -> None:
    acme, umbrella = nobody.of("token-of-acme"), nobody.of("token-of-umbrella")
    taken = asyncio.Event()
    receiver.otherwise = after(taken, answer(200))
    await acme.submit(webhook={"url": receiver.url()})

    async def under_way() -> bool:
        return bool((await overview(acme))["deliveries"]["in_flight"] == 1)

    await until(under_way)
    assert (await overview(umbrella))["deliveries"]["in_flight"] == 0
    taken.set()
