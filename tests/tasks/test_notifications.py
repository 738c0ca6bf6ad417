"""Notifications to workers: when they are sent, to whom, with what body, and what never happens. On real servers."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from standardwebhooks.webhooks import Webhook

from chargehand.doors.tasks.names import BASE, task_queue
from chargehand.doors.tasks.notifier import BELL
from chargehand.engine.job import NewJob
from chargehand.engine.records import Records
from chargehand.webhooks.signature import SignatureError, standard_secret, verify
from tests.api.serving import on_sqlite, until
from tests.tasks.subscribing import PATH, Desk, a_token, said, subscribing
from tests.webhooks.receiver import Receiver, after_seconds, answer, hang, receiving

SECRET = "a secret of the tenant"
ONE_SECOND: dict[str, Any] = {"minIntervalSeconds": 1}


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


@pytest.fixture
async def desk(store_url: str, receiver: Receiver) -> AsyncIterator[Desk]:
    settings = {"webhooks.secret": SECRET, "tasks.backoff_base_seconds": 0}  # a task is ready at once after a lapse
    async with subscribing(store_url, receiver, settings) as opened:
        yield opened


# what is said -----------------------------------------------------------------------------------------------------------


async def test_a_notification_is_the_documented_one(desk: Desk) -> None:
    await desk.subscribe("/hook", "Generate_Master")
    await desk.create("generate_MASTER")
    [hook] = await desk.notified()
    body = said(hook)
    assert list(body) == ["eventType", "available", "queueDepth", "claimUrl", "sentAt", "notificationId"]
    sent_at = datetime.strptime(body["sentAt"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert abs(sent_at.timestamp() - time.time()) < 10
    assert body == body | {
        "eventType": "Generate_Master",
        "available": True,
        "queueDepth": 1,
        "claimUrl": "/v1/codeq/tasks/claim",
    }
    assert body["notificationId"].startswith("ntf-")
    assert hook.headers["content-type"] == "application/json"
    claimed = await desk.api.post(body["claimUrl"], {"commands": [body["eventType"]]})
    assert claimed.good()["command"] == "generate_MASTER"


async def test_a_notification_is_signed_in_both_ways(desk: Desk) -> None:
    await desk.subscribe()
    await desk.create()
    [hook] = await desk.notified()
    verify("codeq", [SECRET], hook.headers, hook.body, time.time())
    assert Webhook(standard_secret(SECRET)).verify(hook.body, dict(hook.headers)) == said(hook)
    assert hook.id == said(hook)["notificationId"]
    assert hook.headers["X-CodeQ-Timestamp"] == hook.headers["webhook-timestamp"]
    with pytest.raises(SignatureError):
        verify("codeq", [SECRET], hook.headers, hook.body + b" ", time.time())


@on_sqlite
async def test_each_tenants_own_secret_signs(store_url: str, receiver: Receiver) -> None:
    tokens = [a_token(name, name, "codeq:*") for name in ("acme", "umbrella")]
    settings = {"auth.tokens": tokens, "webhooks.tenants": {"acme": {"secret": "of acme"}}, "webhooks.secret": SECRET}
    async with subscribing(store_url, receiver, settings) as desk:
        for tenant, secret in (("acme", "of acme"), ("umbrella", SECRET)):
            theirs = Desk(desk.server, desk.api.of(tenant), receiver)
            await theirs.subscribe(f"/{tenant}")
            await theirs.create()
            [hook] = await theirs.notified(1, f"/{tenant}")
            verify("codeq", [secret], hook.headers, hook.body, time.time())


async def test_a_notification_has_the_true_depth_and_its_own_id(desk: Desk) -> None:
    await desk.subscribe("/hook", "render", **ONE_SECOND)
    await desk.create()
    await desk.notified()
    await desk.claim()
    tasks = {"tasks": [{"command": "render", "payload": {}}] * 90}
    (await desk.api.post(f"{BASE}/tasks/batch", tasks)).good()
    first, second = [said(hook) for hook in await desk.notified(2)]
    assert first["queueDepth"] == 1
    assert second["queueDepth"] == 90
    assert first["notificationId"] != second["notificationId"]


@on_sqlite
async def test_a_long_queue_is_counted_to_its_end(desk: Desk) -> None:
    tasks = {"tasks": [{"command": "render", "payload": {}}] * 100}
    await asyncio.gather(*[desk.api.post(f"{BASE}/tasks/batch", tasks) for _ in range(13)])
    await desk.subscribe()
    await desk.create(delaySeconds=0.1)
    [hook] = await desk.notified()
    assert said(hook)["queueDepth"] == 1301


@on_sqlite
async def test_a_notification_carries_the_trace_when_tracing_is_on(store_url: str, receiver: Receiver) -> None:
    async with subscribing(store_url, receiver, {"tracing.endpoint": receiver.url("/v1/traces")}) as desk:
        await desk.subscribe()
        await desk.create()
        [hook] = await desk.notified()
        assert hook.headers["traceparent"].startswith("00-")
    async with subscribing(store_url, receiver) as desk:
        await desk.subscribe("/plain", "other")
        await desk.create("other")
        [hook] = await desk.notified(1, "/plain")
        assert "traceparent" not in hook.headers


# when -------------------------------------------------------------------------------------------------------------------


async def test_only_the_first_task_in_an_empty_queue_is_notified(desk: Desk) -> None:
    await desk.subscribe(**ONE_SECOND)
    await desk.create()
    await desk.notified()
    for _ in range(5):
        await desk.create()
    await asyncio.sleep(1.1)  # so that the interval is not the reason for no notification
    await desk.create()
    await desk.settled()
    assert len(desk.receiver.at("/hook")) == 1
    for _ in range(7):
        await desk.claim()
    await desk.create()
    assert len(await desk.notified(2)) == 2


async def test_a_delayed_task_is_notified_when_it_becomes_ready_and_not_before(desk: Desk) -> None:
    await desk.subscribe()
    began = time.monotonic()
    await desk.create(delaySeconds=0.5)
    await desk.notified()
    assert 0.5 < time.monotonic() - began < 5


async def test_a_delayed_task_is_notified_even_if_other_tasks_wait(desk: Desk) -> None:
    await desk.subscribe(**ONE_SECOND)
    await desk.create()
    await desk.notified()
    await desk.create(delaySeconds=0.3)
    hooks = await desk.notified(2)
    assert said(hooks[1])["queueDepth"] == 2


@pytest.mark.parametrize("way", ["nack", "nack later", "abandon", "lapse"])
async def test_a_task_that_returns_to_the_queue_is_notified(desk: Desk, way: str) -> None:
    await desk.subscribe(**ONE_SECOND)
    await desk.create()
    await desk.notified()
    task_id = await desk.claim(leaseSeconds=1 if way == "lapse" else 60)
    if way == "abandon":
        assert (await desk.on(task_id, "abandon")).status == 200
    elif way.startswith("nack"):
        assert (await desk.on(task_id, "nack", delaySeconds=0 if way == "nack" else 1)).status == 200
    hooks = await desk.notified(2)
    assert said(hooks[1])["queueDepth"] == 1


async def test_the_first_subscriber_is_not_notified_of_tasks_that_wait_already(desk: Desk) -> None:
    await desk.create()
    await desk.create("Other")
    await desk.subscribe()
    await desk.subscribe("/all", "*")
    await desk.settled()
    assert desk.receiver.at("/hook") == []
    assert {said(hook)["eventType"] for hook in desk.receiver.at("/all")}.isdisjoint({"render", "other"})
    await desk.claim()
    await desk.create()
    await desk.notified()


async def test_a_second_subscriber_does_not_hide_work_from_the_first(desk: Desk) -> None:
    await desk.subscribe(**ONE_SECOND)
    await desk.create()
    await desk.notified()
    await desk.claim()
    await desk.create()
    await desk.subscribe("/second")
    assert len(await desk.notified(2)) == 2


async def test_a_paused_queue_notifies_nobody_until_it_is_resumed(desk: Desk) -> None:
    queue = "/engine/queues/task/render"
    await desk.subscribe()
    (await desk.api.call("PUT", queue, {"paused": True})).good()
    await desk.create()
    await desk.create(delaySeconds=0.05)
    await desk.settled()
    assert desk.receiver.at("/hook") == []
    (await desk.api.call("PUT", queue, {})).good()
    hooks = await desk.notified()
    assert said(hooks[0])["queueDepth"] == 2


# who --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 100])
async def test_fanout_notifies_every_subscriber_once(desk: Desk, count: int) -> None:
    for number in range(count):
        await desk.subscribe(f"/{number}")
    await desk.create()
    await until(lambda: len({hook.path for hook in desk.receiver.hooks}) == count)
    await desk.settled()
    told = Counter(hook.path for hook in desk.receiver.hooks if not hook.path.startswith("/marker"))
    assert told == {f"/{number}": 1 for number in range(count)}


@pytest.mark.parametrize("count", [1, 2, 100])
async def test_a_group_is_notified_once_through_each_member_in_turn(desk: Desk, count: int) -> None:
    for number in range(count):
        await desk.subscribe(f"/{number}", deliveryMode="group", groupId="pool", **ONE_SECOND)
    edges = min(3, count + 1)
    for edge in range(edges):
        await desk.create()
        await times(desk.receiver, edge + 1)
        await desk.claim()
    await desk.settled()
    assert notified(desk) == [f"/{edge % count}" for edge in range(edges)]


@pytest.mark.parametrize("count", [1, 2, 100])
async def test_hash_notifies_the_same_subscriber_within_a_minute(desk: Desk, count: int) -> None:
    for number in range(count):
        await desk.subscribe(f"/{number}", deliveryMode="hash", **ONE_SECOND)
    await until(lambda: time.time() % 60 < 50, 20)  # two edges a second apart must fall into the same minute
    minute = int(time.time() // 60)
    for edge in range(2):
        await desk.create()
        await times(desk.receiver, edge + 1)
        await desk.claim()
    assert notified(desk) == [f"/{minute % count}"] * 2


async def test_every_group_and_every_lone_subscriber_is_notified_separately(desk: Desk) -> None:
    for path, fields in (
        ("/a1", {"deliveryMode": "group", "groupId": "a"}),
        ("/a2", {"deliveryMode": "group", "groupId": "a"}),
        ("/b1", {"deliveryMode": "group", "groupId": "b"}),
        ("/f1", {}),
        ("/f2", {}),
        ("/h1", {"deliveryMode": "hash"}),
    ):
        await desk.subscribe(path, **fields)
    await desk.create()
    await until(lambda: len(notified(desk)) >= 5)
    await desk.settled()
    assert sorted(notified(desk)) == ["/a1", "/b1", "/f1", "/f2", "/h1"]


async def test_a_star_subscription_is_for_every_command_and_others_are_for_their_own(desk: Desk) -> None:
    await desk.subscribe("/all", "*", **ONE_SECOND)
    await desk.subscribe("/thumb", "thumb")
    await desk.create("Render")
    await desk.notified(1, "/all")
    await desk.create("Thumb")
    assert [said(hook)["eventType"] for hook in await desk.notified(1, "/thumb")] == ["thumb"]
    assert {said(hook)["eventType"] for hook in await desk.notified(2, "/all")} == {"render", "thumb"}


@on_sqlite
async def test_tenants_are_notified_of_their_own_work_only(store_url: str, receiver: Receiver) -> None:
    tokens = [a_token(name, name, "codeq:*") for name in ("acme", "umbrella")]
    async with subscribing(store_url, receiver, {"auth.tokens": tokens}) as desk:
        acme, umbrella = [Desk(desk.server, desk.api.of(name), receiver) for name in ("acme", "umbrella")]
        await acme.subscribe("/acme")
        await umbrella.subscribe("/umbrella")
        await acme.create()
        await acme.notified(1, "/acme")
        await acme.settled()
        assert receiver.at("/umbrella") == []


# how often --------------------------------------------------------------------------------------------------------------


async def test_a_notification_waits_for_the_end_of_the_interval_if_there_is_still_work(desk: Desk) -> None:
    await desk.subscribe(minIntervalSeconds=2)
    await desk.create()
    await desk.notified()
    began = time.monotonic()
    for _ in range(3):
        await desk.claim()
        await desk.create()
    hooks = await desk.notified(2)
    assert time.monotonic() - began > 1.8
    assert said(hooks[1])["queueDepth"] == 1
    await asyncio.sleep(2.1)  # the task still waits, but its worker was notified: nothing more is sent
    await desk.settled()
    assert len(desk.receiver.at("/hook")) == 2


async def test_after_the_interval_nobody_is_notified_of_work_that_is_gone(desk: Desk) -> None:
    await desk.subscribe(minIntervalSeconds=2)
    await desk.create()
    await desk.notified()
    await desk.claim()
    await desk.create()

    async def owed() -> bool:
        record = await Records(desk.server.store).get(BELL, "default", "render")
        return record is not None and bool(msgspec.json.decode(record.body).get("owed"))

    await until(owed)
    await desk.claim()
    await asyncio.sleep(2.1)
    await desk.settled()
    assert len(desk.receiver.at("/hook")) == 1


async def test_the_interval_of_a_subscriber_holds_for_all_its_commands_together(desk: Desk) -> None:
    await desk.subscribe("/hook", "render", "thumb", **ONE_SECOND)
    await desk.create()
    await desk.notified()
    began = time.monotonic()
    await desk.create("thumb")
    assert [said(hook)["eventType"] for hook in await desk.notified(2)] == ["render", "thumb"]
    assert time.monotonic() - began > 0.8


# ends and restarts ------------------------------------------------------------------------------------------------------


async def test_a_subscriber_that_expired_or_left_is_not_notified(desk: Desk) -> None:
    await desk.subscribe("/short", ttlSeconds=1)
    left = await desk.subscribe("/left")
    await desk.subscribe("/stays")
    assert (await desk.api.call("DELETE", f"{PATH}/{left}")).status == 204
    await asyncio.sleep(1.1)
    await desk.create()
    await desk.notified(1, "/stays")
    await desk.settled()
    assert notified(desk) == ["/stays"]


async def test_a_subscriber_that_renews_is_notified(desk: Desk) -> None:
    subscription = await desk.subscribe(ttlSeconds=2)
    (await desk.api.post(f"{PATH}/{subscription}/heartbeat", {"ttlSeconds": 60})).good()
    await asyncio.sleep(2.1)
    await desk.create()
    await desk.notified()


async def test_subscribers_and_their_past_notifications_survive_a_restart(store_url: str, receiver: Receiver) -> None:
    async with subscribing(store_url, receiver) as desk:
        for name in ("one", "two"):
            await desk.subscribe(f"/{name}", deliveryMode="group", groupId="pool", **ONE_SECOND)
        await desk.create()
        await desk.notified(1, "/one")
    async with subscribing(store_url, receiver) as desk:
        await desk.settled()
        assert notified(desk) == ["/one"]  # the task was notified before the restart
        await desk.claim()
        await desk.create()
        await desk.notified(1, "/two")  # it is this member's turn
    async with subscribing(store_url, receiver) as desk:
        await desk.create("render", delaySeconds=0.2)
        await until(lambda: len(notified(desk)) == 3)


async def test_work_that_became_ready_while_no_server_ran_is_notified_after_the_start(
    store_url: str, receiver: Receiver
) -> None:
    async with subscribing(store_url, receiver) as desk:
        await desk.subscribe()
        await desk.create(delaySeconds=1)
    assert receiver.hooks == []
    await asyncio.sleep(1)
    async with subscribing(store_url, receiver) as desk:
        await desk.notified()


async def test_two_nodes_notify_a_group_once(postgres_url: str, receiver: Receiver) -> None:
    async with subscribing(postgres_url, receiver) as one, subscribing(postgres_url, receiver) as two:
        for number in range(4):
            node = (one, two)[number % 2]
            await node.subscribe(f"/{number}", deliveryMode="group", groupId="pool", **ONE_SECOND)
        await one.subscribe("/all")
        await until(lambda: {len(node.notifier.book.ids) for node in (one, two)} == {5})
        for edge in range(4):
            await (one, two)[edge % 2].create()
            await times(receiver, edge + 1)
            await one.settled()
            await two.settled()
            await (two, one)[edge % 2].claim()
        assert members(receiver) == ["/0", "/1", "/2", "/3"]


async def test_a_task_created_on_one_node_is_notified_to_a_subscriber_of_another(
    postgres_url: str, receiver: Receiver
) -> None:
    slow = {"engine.poll_seconds": 600}
    deaf = {"tasks.enabled": False}  # a node that notifies nobody itself
    async with subscribing(postgres_url, receiver, slow) as one, subscribing(postgres_url, receiver, deaf) as two:
        await one.subscribe()
        await one.settled(looks=0)
        queue = task_queue("default", "render")
        await two.server.engine.submit(NewJob(two.server.engine.new_id(), queue, b"{}"))
        await one.notified()  # by the hint from the other node: nothing is polled before the test gives up


# whatever receivers do --------------------------------------------------------------------------------------------------


async def test_a_slow_subscriber_holds_up_neither_the_producer_nor_the_others(
    store_url: str, receiver: Receiver
) -> None:
    async with subscribing(store_url, receiver, {"webhooks.timeout_seconds": 60}) as desk, receiving() as quick:
        receiver.script.extend([hang] * 20)
        for number in range(20):
            await desk.subscribe(f"/slow/{number}")
        await desk.create()
        await until(lambda: len(receiver.hooks) == 16)  # the server sends no more than this at once to one host
        other = Desk(desk.server, desk.api, quick)
        await other.subscribe("/quick", "thumb")
        async with asyncio.timeout(20):
            await desk.create("thumb")
            await other.notified(1, "/quick")
        assert len(receiver.hooks) == 16


async def test_a_failed_notification_is_counted_and_not_retried(desk: Desk) -> None:
    desk.receiver.otherwise = answer(500)
    await desk.subscribe("/bad")
    await desk.create()
    await desk.notified(1, "/bad")
    desk.receiver.otherwise = answer(204)
    await desk.subscribe("/good", "thumb")
    await desk.create("thumb")
    await desk.notified(1, "/good")
    await desk.settled()
    assert len(desk.receiver.at("/bad")) == 1
    metrics = (await desk.api.get("/metrics")).body.decode()
    for command, outcome in (("render", "failure"), ("thumb", "success")):
        labels = f'command="{command}",kind="queue_ready",outcome="{outcome}"'
        assert f"codeq_webhook_deliveries_total{{{labels}}} 1.0" in metrics
    assert 'codeq_subscriptions_active{command="render"} 1.0' in metrics


@on_sqlite
async def test_a_late_answer_and_a_dead_receiver_are_failures(desk: Desk) -> None:
    desk.receiver.script.append(after_seconds(30, answer(200)))
    await desk.subscribe("/late")
    (await desk.api.post(PATH, {"callbackUrl": "http://127.0.0.1:1/", "eventTypes": ["render"]})).good(201)
    await desk.create()

    async def failures() -> bool:
        metrics = (await desk.api.get("/metrics")).body.decode()
        return 'command="render",kind="queue_ready",outcome="failure"} 2.0' in metrics

    await until(failures)


async def times(receiver: Receiver, count: int) -> None:
    await until(lambda: len(members(receiver)) == count)


def notified(desk: Desk) -> list[str]:
    return members(desk.receiver)


def members(receiver: Receiver) -> list[Any]:
    """Return the paths that were notified, in order, without those that only the tests need."""
    return [hook.path for hook in receiver.hooks if not hook.path.startswith(("/marker", "/all", "/v1"))]
