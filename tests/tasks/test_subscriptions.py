"""Subscriptions over HTTP: their fields, refusals, owners, and how long they last."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from chargehand.doors.tasks.subscription import SUBSCRIPTION, SubscriptionTerms
from chargehand.doors.tasks.subscriptions import MAX_ACTIVE
from chargehand.engine.job import SECOND
from chargehand.engine.record import PutRecord
from chargehand.engine.records import Records
from tests.api.serving import Answer, Api, on_sqlite, until
from tests.tasks.subscribing import PATH, Desk, a_token, subscribing
from tests.webhooks.receiver import Receiver, receiving

URL = "http://127.0.0.1:9/hook?key=a-secret"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


@pytest.fixture
async def desk(store_url: str, receiver: Receiver) -> AsyncIterator[Desk]:
    async with subscribing(store_url, receiver) as opened:
        yield opened


@pytest.fixture
async def many(store_url: str, receiver: Receiver) -> AsyncIterator[Api]:
    """A server with tokens; the client has none."""
    tokens = [
        a_token("ada"),
        a_token("bob"),
        a_token("eve", "umbrella"),
        a_token("admin", scopes="codeq:admin"),
        a_token("else-admin", "umbrella", "codeq:admin"),
        a_token("producer", scopes="codeq:produce"),
        a_token("claimer", scopes="codeq:claim"),
        a_token("typeless", event_types=[]),
        a_token("typed", event_types=["Render", "Thumb"]),
        a_token("pooled", worker_group="pool"),
    ]
    async with subscribing(store_url, receiver, {"auth.tokens": tokens}) as opened:
        yield opened.api


def refused(answer: Answer, status: int, text: str) -> dict[str, Any]:
    assert (answer.status, answer.json["error"]) == (status, text), answer.body
    found: dict[str, Any] = answer.json
    return found


def seconds_left(answer: dict[str, Any]) -> float:
    return (datetime.fromisoformat(answer["expiresAt"]) - datetime.now().astimezone()) / timedelta(seconds=1)


async def shown(api: Api, **fields: Any) -> dict[str, Any]:
    made = (await api.post(PATH, {"callbackUrl": URL, **fields})).good(201)
    found: dict[str, Any] = (await api.get(f"{PATH}/{made['subscriptionId']}")).good()
    return found


# made -------------------------------------------------------------------------------------------------------------------


async def test_a_subscription_is_made_with_the_documented_defaults(desk: Desk) -> None:
    made = (await desk.api.post(PATH, {"callbackUrl": URL})).good(201)
    assert made.keys() == {"subscriptionId", "expiresAt"}
    assert 290 < seconds_left(made) < 301
    view = (await desk.api.get(f"{PATH}/{made['subscriptionId']}")).good()
    assert view.pop("createdAt") < view["expiresAt"]
    assert view == made | {
        "callbackUrl": "http://127.0.0.1:9/hook",
        "eventTypes": ["*"],
        "deliveryMode": "fanout",
        "groupId": "",
        "ttlSeconds": 300,
        "minIntervalSeconds": 5,
        "owner": "anonymous",
    }


@on_sqlite
@pytest.mark.parametrize(
    ("asked", "kept"), [(0, 300), (-1, 300), (None, 300), (1, 1), (86_400, 86_400), (86_401, 86_400), (10**30, 86_400)]
)
async def test_a_time_to_live_is_limited_to_a_day(desk: Desk, asked: int | None, kept: int) -> None:
    view = await shown(desk.api, ttlSeconds=asked)
    assert view["ttlSeconds"] == kept
    assert kept - 10 < seconds_left(view) < kept + 1


@on_sqlite
@pytest.mark.parametrize(("asked", "kept"), [(0, 5), (-7, 5), (None, 5), (1, 1), (10**30, 86_400)])
async def test_an_interval_is_limited_to_a_day(desk: Desk, asked: int | None, kept: int) -> None:
    assert (await shown(desk.api, minIntervalSeconds=asked))["minIntervalSeconds"] == kept


@on_sqlite
async def test_the_defaults_can_be_set(store_url: str, receiver: Receiver) -> None:
    settings = {"tasks.subscription_ttl_seconds": 77, "tasks.subscription_min_interval_seconds": 9}
    async with subscribing(store_url, receiver, settings) as desk:
        view = await shown(desk.api)
        assert (view["ttlSeconds"], view["minIntervalSeconds"]) == (77, 9)


@on_sqlite
async def test_an_invalid_subscription_is_refused(desk: Desk, subtests: pytest.Subtests) -> None:
    good = {"callbackUrl": URL}
    for body, text in (
        ({}, "invalid callback url"),
        ({"callbackUrl": None}, "invalid callback url"),
        ({"callbackUrl": "  "}, "invalid callback url"),
        ({"callbackUrl": "ftp://worker.example/"}, "invalid callback url"),
        ({"callbackUrl": "https://"}, "invalid callback url"),
        ({"callbackUrl": "/hook"}, "invalid callback url"),
        ({"callbackUrl": "http://169.254.169.254/latest/meta-data"}, "invalid callback url"),
        ({"callbackUrl": 5}, "invalid body"),
        (good | {"deliveryMode": "everybody"}, "invalid deliveryMode"),
        (good | {"deliveryMode": "GROUP", "groupId": "g"}, "invalid deliveryMode"),
        (good | {"deliveryMode": "group"}, "groupId is required"),
        (good | {"deliveryMode": "group", "groupId": "  "}, "groupId is required"),
        (good | {"deliveryMode": "group", "groupId": "g" * 201}, "invalid body"),
        (good | {"ttlSeconds": "300"}, "invalid body"),
        (good | {"ttlSeconds": 1.5}, "invalid body"),
        (good | {"minIntervalSeconds": []}, "invalid body"),
        (good | {"eventTypes": "render"}, "invalid body"),
        (good | {"eventTypes": [""]}, "invalid body"),
        (good | {"eventTypes": ["r" * 201]}, "invalid body"),
        (good | {"eventTypes": ["a\x00"]}, "invalid body"),
        (good | {"eventTypes": [str(number) for number in range(101)]}, "invalid body"),
        ([], "invalid body"),
    ):
        with subtests.test(body=str(body)[:100]):
            assert refused(await desk.api.post(PATH, body), 400, text)["detail"]
    assert refused(await desk.api.call("POST", PATH, data=b"{"), 400, "invalid body")["detail"]
    assert refused(await desk.api.call("POST", PATH), 400, "invalid body")["detail"]
    assert (await desk.api.get(PATH)).good() == {"subscriptions": []}


@on_sqlite
async def test_unknown_members_are_ignored(desk: Desk) -> None:
    assert (await desk.api.post(PATH, {"callbackUrl": URL, "colour": "red"})).status == 201


@on_sqlite
async def test_a_url_that_the_operator_forbids_is_refused(store_url: str, receiver: Receiver) -> None:
    async with subscribing(store_url, receiver, {"webhooks.deny_networks": ["127.0.0.0/8"]}) as desk:
        problem = refused(await desk.api.post(PATH, {"callbackUrl": URL}), 400, "invalid callback url")
        assert "deny_networks" in problem["detail"]
        assert "a-secret" not in str(problem)


# with tokens ------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_only_workers_with_the_scope_may_subscribe(many: Api) -> None:
    body = {"callbackUrl": URL}
    refused(await many.post(PATH, body), 401, "missing Authorization header")
    refused(await many.of("producer").post(PATH, body), 403, "missing scope")
    refused(await many.of("claimer").post(PATH, body), 403, "missing scope")
    refused(await many.of("typeless").post(PATH, body), 401, "missing eventTypes")


@on_sqlite
async def test_event_types_must_be_among_those_of_the_token(many: Api) -> None:
    typed = many.of("typed")
    assert (
        (await shown(typed))["eventTypes"] == (await shown(typed, eventTypes=[]))["eventTypes"] == ["Render", "Thumb"]
    )
    assert (await shown(typed, eventTypes=[" Thumb ", "Thumb"]))["eventTypes"] == ["Thumb"]
    for asked in (["Thumb", "other"], ["*"], ["thumb"]):
        refused(await typed.post(PATH, {"callbackUrl": URL, "eventTypes": asked}), 403, "event type not allowed")
    assert (await shown(many.of("ada"), eventTypes=["anything"]))["eventTypes"] == ["anything"]


@on_sqlite
async def test_a_tokens_worker_group_is_the_only_one_its_bearer_can_join(many: Api) -> None:
    pooled = many.of("pooled")
    for asked, mode, group in (
        ({}, "group", "pool"),
        ({"groupId": "pool"}, "group", "pool"),
        ({"deliveryMode": "group"}, "group", "pool"),
        ({"deliveryMode": "fanout"}, "fanout", ""),
        ({"deliveryMode": "hash", "groupId": "pool"}, "hash", ""),
    ):
        view = await shown(pooled, **asked)
        assert (view["deliveryMode"], view["groupId"]) == (mode, group), asked
    for more in ({}, {"deliveryMode": "group"}, {"deliveryMode": "fanout"}):
        refused(await pooled.post(PATH, {"callbackUrl": URL, "groupId": "another", **more}), 403, "groupId not allowed")
    view = await shown(many.of("ada"), deliveryMode="group", groupId="another")
    assert (view["deliveryMode"], view["groupId"]) == ("group", "another")


async def test_only_its_owner_and_administrators_see_and_end_a_subscription(many: Api) -> None:
    ids = {name: (await shown(many.of(name)))["subscriptionId"] for name in ("ada", "bob", "eve")}

    async def listed(name: str) -> set[str]:
        return {each["subscriptionId"] for each in (await many.of(name).get(PATH)).good()["subscriptions"]}

    assert [await listed(name) for name in ids] == [{ids["ada"]}, {ids["bob"]}, {ids["eve"]}]
    assert await listed("admin") == {ids["ada"], ids["bob"]}
    assert await listed("else-admin") == {ids["eve"]}
    one = f"{PATH}/{ids['ada']}"
    for stranger in ("bob", "eve", "else-admin"):
        refused(await many.of(stranger).get(one), 404, "not-found")
        refused(await many.of(stranger).call("DELETE", one), 404, "not-found")
    for stranger in ("bob", "eve"):
        refused(await many.of(stranger).post(f"{one}/heartbeat"), 404, "not-found")
    refused(await many.of("producer").get(one), 403, "missing scope")
    assert (await many.of("admin").get(one)).good()["owner"] == "ada"
    assert (await many.of("ada").call("DELETE", one)).status == 204
    refused(await many.of("ada").get(one), 404, "not-found")
    refused(await many.of("ada").call("DELETE", one), 404, "not-found")
    assert (await many.of("admin").call("DELETE", f"{PATH}/{ids['bob']}")).status == 204
    assert await listed("admin") == set()


# kept and renewed -------------------------------------------------------------------------------------------------------


async def test_a_heartbeat_renews_a_subscription_for_the_old_or_the_given_time(desk: Desk) -> None:
    made = (await desk.api.post(PATH, {"callbackUrl": URL, "ttlSeconds": 50})).good(201)
    path = f"{PATH}/{made['subscriptionId']}/heartbeat"
    longer = (await desk.api.post(path, {"ttlSeconds": 500})).good()
    assert longer.keys() == {"subscriptionId", "expiresAt"}
    assert longer["subscriptionId"] == made["subscriptionId"]
    assert 490 < seconds_left(longer) < 501
    bodies: tuple[Any, ...] = (None, {}, {"ttlSeconds": 0}, {"ttlSeconds": "much"}, [])
    for body in bodies:
        assert 490 < seconds_left((await desk.api.post(path, body)).good()) < 501
    assert 490 < seconds_left((await desk.api.call("POST", path, data=b"{nonsense")).good()) < 501
    assert seconds_left((await desk.api.post(path, {"ttlSeconds": 10**9})).good()) < 86_401


async def test_many_heartbeats_at_once_are_all_answered(desk: Desk) -> None:
    made = (await desk.api.post(PATH, {"callbackUrl": URL})).good(201)
    path = f"{PATH}/{made['subscriptionId']}/heartbeat"
    answers = await asyncio.gather(*[desk.api.post(path) for _ in range(5)])
    assert {answer.status for answer in answers} == {200}


async def test_an_expired_subscription_is_removed(desk: Desk) -> None:
    made = (await desk.api.post(PATH, {"callbackUrl": URL, "ttlSeconds": 2})).good(201)
    path = f"{PATH}/{made['subscriptionId']}"
    assert (await desk.api.get(path)).status == 200
    assert desk.notifier.active() == {("default", "*"): 1}

    async def gone() -> bool:
        return not await Records(desk.server.store).list(SUBSCRIPTION)

    await until(gone)
    assert seconds_left(made) < 0
    for answer in (await desk.api.get(path), await desk.api.post(f"{path}/heartbeat")):
        refused(answer, 404, "not-found")
    assert (await desk.api.get(PATH)).good() == {"subscriptions": []}
    assert desk.notifier.active() == {}


async def test_a_renewed_subscription_outlives_its_first_expiry(desk: Desk) -> None:
    made = (await desk.api.post(PATH, {"callbackUrl": URL, "ttlSeconds": 2})).good(201)
    other = (await desk.api.post(PATH, {"callbackUrl": URL, "ttlSeconds": 2})).good(201)
    path = f"{PATH}/{made['subscriptionId']}"
    (await desk.api.post(f"{path}/heartbeat", {"ttlSeconds": 60})).good()

    async def other_gone() -> bool:
        return (await desk.api.get(f"{PATH}/{other['subscriptionId']}")).status == 404

    await until(other_gone)
    assert seconds_left((await desk.api.get(path)).good()) > 50


async def test_subscriptions_survive_a_restart(store_url: str, receiver: Receiver) -> None:
    async with subscribing(store_url, receiver) as desk:
        before = await shown(desk.api, eventTypes=["Render"], deliveryMode="group", groupId="g")
    async with subscribing(store_url, receiver) as desk:
        assert (await desk.api.get(PATH)).good() == {"subscriptions": [before]}
        await until(lambda: desk.notifier.active() == {("default", "render"): 1})


async def test_an_unreadable_record_does_not_stop_other_subscriptions(desk: Desk) -> None:
    due_at = await desk.server.store.now() + 600 * SECOND
    await desk.server.store.write(PutRecord(SUBSCRIPTION, "default", "sub-odd", b'{"colour":"red"}', 0, due_at))
    await desk.settled()
    refused(await desk.api.get(f"{PATH}/sub-odd"), 404, "not-found")
    refused(await desk.api.post(f"{PATH}/sub-odd/heartbeat"), 404, "not-found")
    assert len((await desk.api.get(PATH)).good()["subscriptions"]) == 1  # the one that `settled` made


@on_sqlite
async def test_a_tenant_has_a_thousand_subscriptions_at_most(desk: Desk) -> None:
    store = desk.server.store
    due_at = await store.now() + 600 * SECOND
    body = msgspec.json.encode(SubscriptionTerms("somebody", URL, ("x",), "fanout", "", 600, 5))
    names = [f"sub-{number:04}" for number in range(MAX_ACTIVE)]
    await asyncio.gather(*[store.write(PutRecord(SUBSCRIPTION, "default", n, body, 0, due_at)) for n in names])
    problem = refused(await desk.api.post(PATH, {"callbackUrl": URL}), 429, "too many subscriptions")
    assert str(MAX_ACTIVE) in problem["detail"]
    assert (await desk.api.call("DELETE", f"{PATH}/sub-0007")).status == 204
    assert (await desk.api.post(PATH, {"callbackUrl": URL})).status == 201
