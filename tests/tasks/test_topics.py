"""Topics over HTTP, and what they do: policies found by command, limits of queues."""

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.app import Server
from chargehand.config import load_config
from chargehand.doors.tasks.names import task_queue
from chargehand.doors.tasks.topics import MAX_BODY, RECORD, Policy, Topics, tier
from chargehand.engine.chores import Chores
from chargehand.engine.job import QueueLimits, QueueSettings, Rate
from chargehand.engine.record import PutRecord
from chargehand.http.credentials import hash_token
from chargehand.http.weight import READ_BYTES
from tests.api.serving import HURRY, Answer, Api, on_sqlite, serving, talking, until

PATH = "/v1/codeq/admin/topics"
POLICY: dict[str, Any] = {"priorityTiers": [9, 0, 5], "maxAttempts": 3}


@dataclass
class Node:
    server: Server
    topics: Topics
    api: Api

    async def put(self, name: str, api: Api | None = None, **fields: Any) -> Answer:
        return await (api or self.api).call("PUT", f"{PATH}/{name}", POLICY | fields)

    async def settings(self, name: str) -> QueueSettings | None:
        queue = task_queue("default", name)
        return {each.queue: each for each in await self.server.store.list_queue_settings()}.get(queue)


@asynccontextmanager
async def node(store_url: str, settings: Mapping[str, Any] = {}) -> AsyncIterator[Node]:
    """A server whose topics are loaded only when a test says so. The tasks door is off: it would load its own at any time."""
    own = {"store.url": store_url, "tasks.enabled": False}
    config = load_config(environ={}, overrides={**HURRY, **own, **settings})
    async with AsyncExitStack() as stack:
        server = await Server.open(config)
        stack.push_async_callback(server.close)
        topics = Topics(server.engine, config)
        await topics.load()
        await server.start(topics.routes())
        yield Node(server, topics, await stack.enter_async_context(talking(server)))


@pytest.fixture
async def one(store_url: str) -> AsyncIterator[Node]:
    async with node(store_url) as running:
        yield running


# the wire ---------------------------------------------------------------------------------------------------------------


async def test_a_topic_is_made_once_and_shown_with_its_tiers_in_order(one: Node) -> None:
    made = (await one.put("render", retentionSeconds=60, deadLetterTopicRef="render-dead", maxConsumers=7)).good(201)
    created_at = made.pop("createdAt")
    assert made.pop("updatedAt") == created_at
    assert made == {
        "topicId": "default.render",
        "tenantId": "default",
        "topicName": "render",
        "version": 1,
        "policy": {
            "priorityTiers": [0, 5, 9],
            "maxAttempts": 3,
            "deadLetterTopicRef": "render-dead",
            "retentionSeconds": 60,
            "maxConsumers": 7,
        },
    }
    shown = (await one.api.get(f"{PATH}/render")).good()
    assert (shown["version"], shown["createdAt"], shown["policy"]) == (1, created_at, made["policy"])
    assert (await one.api.get(PATH)).good() == {"topics": [shown]}
    assert (await one.api.get(PATH, {"X-Request-Id": "mine"})).headers["x-request-id"] == "mine"


async def test_the_version_grows_with_every_change_and_only_with_changes(one: Node) -> None:
    assert (await one.put("render")).good(201)["version"] == 1
    assert (await one.put("render", priorityTiers=[0, 5, 9])).good()["version"] == 1
    changed = (await one.put("render", maxAttempts=4)).good()
    assert (changed["version"], changed["policy"]["maxAttempts"]) == (2, 4)
    assert (await one.put("render")).good()["version"] == 3


async def test_spelling_does_not_make_another_topic(one: Node) -> None:
    assert (await one.put("GENERATE_MASTER")).good(201)["topicName"] == "GENERATE_MASTER"
    assert (await one.put("generate_master", maxAttempts=4)).good()["topicName"] == "GENERATE_MASTER"
    assert (await one.api.get(f"{PATH}/Generate_Master")).good()["version"] == 2


async def test_a_topic_is_deleted_only_with_the_deletion_policy_and_deleting_again_is_no_error(one: Node) -> None:
    await one.put("render")
    for query in ("", "?deletionPolicy=delete", "?deletionPolicy=Retain"):
        refused = await one.api.call("DELETE", f"{PATH}/render{query}")
        assert (refused.status, refused.json["error"]) == (400, "deletionPolicy=Delete is required")
    for _ in range(2):
        assert (await one.api.call("DELETE", f"{PATH}/render?deletionPolicy=Delete")).status == 204
    assert (await one.api.get(f"{PATH}/render")).json["error"] == "topic not found"
    assert (await one.put("render")).good(201)["version"] == 1


@on_sqlite
async def test_an_invalid_policy_is_refused(one: Node, subtests: pytest.Subtests) -> None:
    good = msgspec.json.encode(POLICY)
    wrong = {
        "empty": b"",
        "unknown member": msgspec.json.encode(POLICY | {"extra": 1}),
        "a second value": good + b"{}",
        "wrong type": msgspec.json.encode(POLICY | {"maxAttempts": "3"}),
        "no object": b"[]",
        "not JSON": b"{",
        "too large": b" " * MAX_BODY + good,
    }
    for name, data in wrong.items():
        with subtests.test(name):
            refused = await one.api.call("PUT", f"{PATH}/render", data=io.BytesIO(data))
            assert refused.status == 400
            assert refused.json["error"].startswith("invalid request body: ")
    fits = io.BytesIO(b" " * (READ_BYTES - len(good)) + good)
    assert (await one.api.call("PUT", f"{PATH}/render", data=fits)).status == 201


@on_sqlite
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("priorityTiers", [[], list(range(11)), [-1], [11], [1, 1], [10**30]]),
        ("maxAttempts", [0, -1, 101, 10**30]),
        ("retentionSeconds", [-1, 2_147_483_648]),
        ("maxConsumers", [-1, 10_001]),
        ("deadLetterTopicRef", ["render", "RENDER", "a.b", "-a", "a-", "a b", "x" * 201]),
    ],
)
async def test_a_value_out_of_range_is_refused_and_its_field_is_named(
    one: Node, field: str, values: list[Any], subtests: pytest.Subtests
) -> None:
    for value in values:
        with subtests.test(value=value):
            refused = await one.put("render", **{field: value})
            assert (refused.status, refused.json["field"]) == (422, field)
            assert refused.json["error"].startswith(f"{field}: ")
    assert (await one.api.get(f"{PATH}/render")).status == 404


@on_sqlite
async def test_both_ends_of_every_range_are_accepted(one: Node) -> None:
    low: dict[str, Any] = {
        "priorityTiers": [0],
        "maxAttempts": 1,
        "retentionSeconds": 0,
        "maxConsumers": 0,
        "deadLetterTopicRef": "",
    }
    high: dict[str, Any] = {"priorityTiers": list(range(1, 11)), "maxAttempts": 100, "retentionSeconds": 2_147_483_647}
    assert (await one.put("low", **low)).good(201)["policy"] == low
    (await one.put("high", **high, maxConsumers=10_000, deadLetterTopicRef="x" * 200)).good(201)


@pytest.mark.parametrize("name", ["-a", "a-", "a.b", "a%20b", "%C3%BC", "a%00", "x" * 201])
async def test_a_name_that_no_topic_can_have_is_refused(one: Node, name: str) -> None:
    refused = await one.put(name)
    assert (refused.status, refused.json["field"]) == (422, "topicName")
    assert (await one.api.get(f"{PATH}/{name}")).status == 404
    assert (await one.api.call("DELETE", f"{PATH}/{name}?deletionPolicy=Delete")).status == 204


@on_sqlite
async def test_topics_are_for_administrators_and_belong_to_their_tenant(store_url: str) -> None:
    def token(name: str, *scopes: str) -> dict[str, Any]:
        return {"name": name, "hash": hash_token(name), "tenant": name.split("-")[0], "scopes": list(scopes)}

    tokens = [token("acme-admin", "codeq:admin"), token("acme-maker", "codeq:produce"), token("umbrella-admin", "*")]
    async with node(store_url, {"auth.tokens": tokens}) as one:
        acme, maker, umbrella = (one.api.of(each["name"]) for each in tokens)
        (await one.put("render", acme)).good(201)
        for refused in (await one.put("render", maker), await maker.get(PATH), await maker.get(f"{PATH}/render")):
            assert (refused.status, refused.json["error"]) == (401, "unauthorized. Admin only")
        assert (await maker.call("DELETE", f"{PATH}/render?deletionPolicy=Delete")).status == 401
        assert (await one.api.get(PATH)).json["error"] == "missing Authorization header"
        assert (await umbrella.get(f"{PATH}/render")).status == 404
        assert (await umbrella.get(PATH)).good() == {"topics": []}
        assert (await umbrella.call("DELETE", f"{PATH}/render?deletionPolicy=Delete")).status == 204
        assert (await acme.get(f"{PATH}/render")).good()["topicId"] == "acme.render"
        assert one.topics.policy("umbrella", "render") is None
        assert one.topics.policy("acme", "render") is not None


async def test_concurrent_changes_of_a_topic_are_all_applied(one: Node) -> None:
    answers = await asyncio.gather(*[one.put("render", maxAttempts=1 + n) for n in range(20)])
    assert sorted(answer.status for answer in answers) == [200] * 19 + [201]
    assert sorted(answer.json["version"] for answer in answers) == list(range(1, 21))
    last = max((answer.json for answer in answers), key=lambda topic: topic["version"])
    assert (await one.api.get(f"{PATH}/render")).good()["policy"] == last["policy"]
    policy = one.topics.policy("default", "render")
    assert policy is not None
    assert policy.max_attempts == last["policy"]["maxAttempts"]


async def test_when_two_nodes_put_a_topic_at_once_one_creates_it_and_the_other_changes_it(postgres_url: str) -> None:
    async with node(postgres_url) as one, node(postgres_url) as two:
        for n in range(20):
            both = await asyncio.gather(one.put(f"t{n}", maxAttempts=1), two.put(f"t{n}", maxAttempts=2))
            assert sorted((answer.status, answer.json["version"]) for answer in both) == [(200, 2), (201, 1)]


# what they do -----------------------------------------------------------------------------------------------------------


async def test_a_policy_holds_at_once_however_the_command_is_spelt(one: Node) -> None:
    assert one.topics.policy("default", "GENERATE_MASTER") is None
    await one.put("generate_master", retentionSeconds=5)
    assert one.topics.policy("default", " Generate_MASTER ") == Policy((0, 5, 9), 3, retention_seconds=5)
    assert one.topics.policy("other", "generate_master") is None
    await one.api.call("DELETE", f"{PATH}/GENERATE_MASTER?deletionPolicy=Delete")
    assert one.topics.policy("default", "generate_master") is None


async def test_max_consumers_limits_the_queue_and_leaves_a_pause_as_it_is(one: Node) -> None:
    queue = task_queue("default", "render")
    await one.server.engine.set_queue(QueueSettings(queue, paused=True))
    await one.put("Render", maxConsumers=2)
    assert await one.settings("render") == QueueSettings(queue, True, 2)
    await one.put("Render", maxConsumers=3)
    assert await one.settings("render") == QueueSettings(queue, True, 3)
    await one.put("Render", maxConsumers=0)
    assert await one.settings("render") == QueueSettings(queue, True, None)


async def test_deleting_a_topic_removes_its_limit(one: Node) -> None:
    await one.put("render", maxConsumers=2)
    await one.api.call("DELETE", f"{PATH}/render?deletionPolicy=Delete")
    settings = await one.settings("render")
    assert settings is None or settings.max_running is None


async def test_a_queue_whose_topic_never_had_a_limit_is_left_alone(one: Node) -> None:
    limited = QueueSettings(task_queue("default", "render"), False, 4)
    await one.server.engine.set_queue(limited)
    await one.put("render")
    await one.put("render", maxAttempts=9)
    await one.api.call("DELETE", f"{PATH}/render?deletionPolicy=Delete")
    await one.topics.load()
    assert await one.settings("render") == limited


async def test_a_limit_that_an_operator_sets_stays_until_the_topic_changes(one: Node) -> None:
    await one.put("render", maxConsumers=2)
    queue = task_queue("default", "render")
    await one.server.engine.set_queue(QueueSettings(queue, False, 8))
    await one.topics.load()
    assert await one.settings("render") == QueueSettings(queue, False, 8)
    await one.put("render", maxConsumers=2, maxAttempts=9)
    assert await one.settings("render") == QueueSettings(queue, False, 2)


async def test_a_server_loads_the_topics_at_its_start_and_sets_a_limit_that_a_crash_left_out(store_url: str) -> None:
    queue = task_queue("default", "render")
    async with node(store_url) as one:
        await one.put("render", maxConsumers=2)
        await one.server.engine.set_queue(QueueSettings(queue))
    async with node(store_url) as two:
        assert two.topics.policy("default", "RENDER") == Policy((0, 5, 9), 3, max_consumers=2)
        assert await two.settings("render") == QueueSettings(queue, False, 2)


async def test_an_unreadable_topic_does_not_stop_others_from_loading(one: Node) -> None:
    newer = msgspec.json.encode({"name": "b", "policy": POLICY | {"new": 1}, "other": 2})
    await one.server.store.write(PutRecord(RECORD, "default", "a", b"{"))
    await one.server.store.write(PutRecord(RECORD, "default", "b", newer))
    await one.topics.load()
    assert one.topics.policy("default", "a") is None
    assert one.topics.policy("default", "b") == Policy((9, 0, 5), 3)


async def test_another_node_learns_of_a_change_and_of_a_deletion(postgres_url: str) -> None:
    async with node(postgres_url) as one, node(postgres_url) as two:
        running = asyncio.create_task(Chores(two.topics.chores()).run())
        try:
            await one.put("render", maxAttempts=8)
            await until(lambda: two.topics.policy("default", "render"))
            await one.put("render", maxAttempts=9)
            await until(lambda: two.topics.policy("default", "render") == Policy((0, 5, 9), 9))
            await one.api.call("DELETE", f"{PATH}/render?deletionPolicy=Delete")
            await until(lambda: two.topics.policy("default", "render") is None)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_limit_that_another_node_set_too_late_is_removed(postgres_url: str) -> None:
    queue = task_queue("default", "render")
    async with node(postgres_url) as one, node(postgres_url) as two:
        for end in (one.put("render", maxConsumers=0), one.api.call("DELETE", f"{PATH}/render?deletionPolicy=Delete")):
            await one.put("render", maxConsumers=2)
            await two.topics.load()
            await end
            # As the other node would, if it were slow.
            await one.server.engine.set_queue(QueueSettings(queue, True, 2))
            await two.topics.load()
            assert await one.settings("render") == QueueSettings(queue, True, None)


async def test_the_door_creates_tasks_by_the_policy_of_their_topic_and_claims_no_more_than_its_limit(
    store_url: str,
) -> None:
    async with serving(store_url) as server, talking(server) as api:
        policy = POLICY | {"maxAttempts": 7, "maxConsumers": 1}
        (await api.call("PUT", f"{PATH}/render", policy)).good(201)
        tasks = [
            (await api.post("/v1/codeq/tasks", {"command": "Render", "payload": 1, "priority": priority})).good(202)
            for priority in (8, 4)
        ]
        assert [(task["maxAttempts"], task.get("priority", 0)) for task in tasks] == [(7, 5), (7, 0)]
        claim = {"commands": ["RENDER"], "leaseSeconds": 60}
        claimed = (await api.post("/v1/codeq/tasks/claim", claim)).good()
        assert claimed["id"] == tasks[0]["id"]
        assert (await api.post("/v1/codeq/tasks/claim", claim)).status == 204
        (await api.call("PUT", f"{PATH}/render", policy | {"maxConsumers": 2})).good()
        assert (await api.post("/v1/codeq/tasks/claim", claim)).good()["id"] == tasks[1]["id"]


@pytest.mark.parametrize(
    ("tiers", "expected"),
    [
        ((0, 5, 9), [0, 0, 0, 0, 0, 5, 5, 5, 5, 9]),
        ((3, 6), [3] * 6 + [6] * 4),
        ((10,), [9] * 10),
        ((), list(range(10))),
    ],
)
def test_a_priority_moves_to_the_tier_below_it_or_to_the_lowest(tiers: tuple[int, ...], expected: list[int]) -> None:
    assert [tier(Policy(tiers, 1), priority) for priority in range(10)] == expected
    assert tier(None, 4) == 4


@given(st.sets(st.integers(0, 10), min_size=1, max_size=10), st.integers(0, 9), st.integers(0, 9))
def test_tiers_keep_the_order_of_priorities_and_are_priorities(tiers: set[int], one: int, other: int) -> None:
    policy = Policy(tuple(sorted(tiers)), 1)
    low, high = tier(policy, min(one, other)), tier(policy, max(one, other))
    assert 0 <= low <= high <= 9
    assert {low, high} <= {min(each, 9) for each in tiers}


LIMITS: dict[str, Any] = {
    "rate": {"count": 100, "seconds": 60.0},
    "perKey": {"maxConsumers": 1, "rate": {"count": 5, "seconds": 1.0}},
}


async def test_a_topic_limits_its_command_and_each_key_in_it_and_a_waiting_task_says_so(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        shown = (await api.call("PUT", f"{PATH}/render", POLICY | LIMITS)).good(201)
        assert {name: shown["policy"][name] for name in LIMITS} == LIMITS
        made = [
            (await api.post("/v1/codeq/tasks", {"command": "render", "payload": 1, "limitKey": key})).good(202)
            for key in ("acme", "acme", "globex")
        ]
        assert made[0]["limitKey"] == "acme"
        claim = {"commands": ["render"], "count": 10, "leaseSeconds": 60}
        claimed = (await api.post("/v1/codeq/tasks/claim/batch", claim)).good()["tasks"]
        assert sorted(task["limitKey"] for task in claimed) == ["acme", "globex"]
        waiting = (await api.get(f"/v1/codeq/tasks/{made[1]['id']}")).good()
        assert waiting["waitingFor"] == "limit: 1 of the key acme at once"
        running = (await api.get(f"/v1/codeq/tasks/{made[0]['id']}")).good()
        assert "waitingFor" not in running
        assert (await api.get(f"/engine/jobs/{made[1]['id']}")).good()["waiting_for"] == waiting["waitingFor"]


async def test_limits_that_a_topic_no_longer_says_are_removed_and_those_of_an_operator_stay(one: Node) -> None:
    queue = task_queue("default", "render")
    limits = QueueLimits(Rate(100, 60), 1, Rate(5, 1))
    await one.server.engine.set_queue(QueueSettings(queue, True, 7))
    await one.put("render", **LIMITS)
    assert await one.settings("render") == QueueSettings(queue, True, 7, limits)
    await one.put("render", **LIMITS, maxConsumers=2)
    await one.put("render", maxConsumers=2)
    assert await one.settings("render") == QueueSettings(queue, True, 2)
    await one.put("render", **LIMITS)
    assert await one.settings("render") == QueueSettings(queue, True, None, limits)
    await one.api.call("DELETE", f"{PATH}/render?deletionPolicy=Delete")
    assert await one.settings("render") == QueueSettings(queue, True)


async def test_a_server_sets_limits_at_its_start_that_a_crash_left_out(store_url: str) -> None:
    queue = task_queue("default", "render")
    async with node(store_url) as one:
        await one.put("render", **LIMITS)
        await one.server.engine.set_queue(QueueSettings(queue))
    async with node(store_url) as two:
        assert await two.settings("render") == QueueSettings(queue, limits=QueueLimits(Rate(100, 60), 1, Rate(5, 1)))


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"rate": {"count": 0}}, "rate.count"),
        ({"rate": {"count": 10_001}}, "rate.count"),
        ({"rate": {"count": 1, "seconds": 0}}, "rate.seconds"),
        ({"rate": {}}, "rate"),
        ({"perKey": {"maxConsumers": -1}}, "perKey.maxConsumers"),
        ({"perKey": {"maxConsumer": 1}}, "maxConsumer"),
    ],
)
async def test_limits_out_of_range_are_refused_and_their_field_is_named(
    one: Node, limits: dict[str, Any], field: str
) -> None:
    refused = await one.put("render", **limits)
    assert refused.status == 400
    assert field in refused.json["error"]
