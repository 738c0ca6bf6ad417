"""What a topic's policy does: copying of dead tasks, retention, attempts, priorities and concurrency."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from chargehand.doors.tasks.names import KIND, queue_name
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import Job
from chargehand.engine.moves import Broke, Lapsed
from chargehand.engine.reads import JobFilter
from chargehand.engine.store import Store
from tests.api.serving import on_sqlite, until
from tests.tasks.calling import Shop, calling

POLICY: dict[str, Any] = {"priorityTiers": list(range(10)), "maxAttempts": 5}


@asynccontextmanager
async def a_shop(store_url: str, topics: dict[str, dict[str, Any]], **settings: Any) -> AsyncIterator[Shop]:
    async with calling(store_url, {"tasks.backoff_base_seconds": 0, **settings}) as shop:
        for name, policy in topics.items():
            (await shop.boss.put(f"/admin/topics/{name}", {**POLICY, **policy})).good(201)
        yield shop


def to(topic: str, **policy: Any) -> dict[str, Any]:
    return {"deadLetterTopicRef": topic, "maxAttempts": 1, **policy}


async def copies(store: Store, topic: str = "graveyard", tenant: str = "acme") -> list[Job]:
    """Return the copies, newest first."""
    jobs = await store.list_jobs(JobFilter(tenant, KIND, queue_name(topic), limit=500))
    found = [await store.get_job(job.id) for job in jobs]
    return [job for job in found if job is not None]


# Dead letters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["nack", "lapse"])
async def test_a_task_that_dies_is_copied_to_the_topic_it_names(store_url: str, way: str) -> None:
    async with a_shop(store_url, {"render": to("graveyard")}) as shop:
        payload = {"big": 2**60 + 1, "text": "ä"}
        task = await shop.producer.create("Render", payload, priority=7, metadata={"trace": "abc"})
        claimed = await shop.worker.claim("render", **({"leaseSeconds": 0.05} if way == "lapse" else {}))
        if way == "nack":
            assert (await shop.worker.on(claimed, "nack", reason="broken")).good()["status"] == "dlq"
        copy = await shop.worker.claim("graveyard", waitSeconds=5)
        assert copy["id"] != task["id"]
        assert (copy["command"], copy["priority"], copy["attempts"]) == ("graveyard", 7, 1)
        assert (copy["payload"], copy["metadata"]) == (task["payload"], {"trace": "abc"})

        async def dead() -> bool:
            return bool((await shop.producer.task(task))["status"] == "FAILED")

        await until(dead)
        letters = (await shop.boss.get("/admin/dlq")).good()["tasks"]
        assert [letter["id"] for letter in letters] == [task["id"]]
        assert len(await copies(shop.server.store)) == 1


@pytest.mark.parametrize("end", ["COMPLETED", "FAILED", "cancel", "retry", "abandon"])
async def test_a_task_that_does_not_die_is_not_copied(store_url: str, end: str) -> None:
    async with a_shop(store_url, {"render": to("graveyard", maxAttempts=2)}) as shop:
        task = await shop.producer.create()
        await shop.worker.claim()
        match end:
            case "cancel":
                (await shop.producer.on(task, "cancel")).good()
            case "retry":
                assert (await shop.worker.on(task, "nack")).good()["status"] == "requeued"
            case "abandon":
                (await shop.worker.on(task, "abandon")).good()
            case _:
                (await shop.worker.on(task, "result", status=end, result={}, error="no")).good()
        assert await copies(shop.server.store) == []


@pytest.mark.parametrize("outcome", [Broke("broken"), Lapsed()], ids=["nack", "lapse"])
async def test_a_decided_death_that_is_not_written_leaves_no_copy(store_url: str, outcome: Broke | Lapsed) -> None:
    """If a result or a heartbeat comes between the decision and its write, there is neither an end nor a copy."""
    async with a_shop(store_url, {"render": to("graveyard")}) as shop:
        engine = shop.server.engine
        job = await running(shop, engine)
        judged = await engine._decide(job, outcome)
        assert judged.move == "fail"
        await engine.succeed(Guard.held(job), b"{}")
        assert await shop.server.store.write(judged) is None
        assert await copies(shop.server.store) == []


async def test_two_nodes_that_notice_the_same_death_make_one_copy(postgres_url: str) -> None:
    topics = {"render": to("graveyard")}
    async with a_shop(postgres_url, topics) as one, calling(postgres_url) as other:
        job = await running(one, one.server.engine)
        nodes = (one.server, other.server) * 5
        judged = await asyncio.gather(*[node.engine._decide(job, Broke("broken")) for node in nodes])
        moved = await asyncio.gather(*[node.store.write(each) for node, each in zip(nodes, judged, strict=True)])
        assert sum(each is not None for each in moved) == 1
        [copy] = await copies(one.server.store)
        assert copy.payload == b'{"n": 1}'


async def test_a_dead_letter_that_is_requeued_and_dies_again_is_copied_again(store_url: str) -> None:
    async with a_shop(store_url, {"render": to("graveyard")}) as shop:
        task = await shop.producer.create()
        for turn in (1, 2):
            await shop.worker.claim("render")
            assert (await shop.worker.on(task, "nack")).good()["status"] == "dlq"
            assert len(await copies(shop.server.store)) == turn
            (await shop.boss.post(f"/admin/dlq/{task['id']}/requeue", {"payload": {"turn": turn}})).good()
        assert [job.payload for job in await copies(shop.server.store)] == [b'{"turn": 1}', b'{"n": 1}']


@on_sqlite
async def test_the_copy_follows_the_policy_of_its_own_topic(store_url: str) -> None:
    graveyard = {"maxAttempts": 2, "priorityTiers": [1, 3], "retentionSeconds": 60}
    async with a_shop(store_url, {"render": to("graveyard"), "graveyard": graveyard}) as shop:
        await die(shop, priority=9)
        [copy] = await copies(shop.server.store)
        assert (copy.max_attempts, copy.priority) == (2, 3)
        await shop.worker.complete(await shop.worker.claim("graveyard"))
        assert await shop.server.engine.purge(copy.tenant, KIND, (copy.id,)) == 1


@on_sqlite
async def test_chained_dead_letter_topics_and_even_a_cycle_make_one_copy_per_death(store_url: str) -> None:
    topics = {"render": to("second"), "second": to("third"), "third": to("render")}
    async with a_shop(store_url, topics) as shop:
        await die(shop)
        for name, following in [("second", "third"), ("third", "render")]:
            task = await shop.worker.claim(name)
            assert (await shop.worker.on(task, "nack")).good()["status"] == "dlq"
            assert len([job for job in await copies(shop.server.store, following) if not job.finished]) == 1
        assert len((await shop.boss.get("/admin/dlq")).good()["tasks"]) == 3


@on_sqlite
async def test_the_topic_of_another_tenant_with_the_same_name_is_not_applied(store_url: str) -> None:
    async with a_shop(store_url, {"render": to("graveyard")}) as shop:
        task = await shop.other_producer.create(maxAttempts=1)
        await shop.other_worker.claim()
        assert (await shop.other_worker.on(task, "nack")).good()["status"] == "dlq"
        for tenant in ("acme", "globex"):
            assert await copies(shop.server.store, tenant=tenant) == []


async def running(shop: Shop, engine: Engine) -> Job:
    task = await shop.producer.create()
    await shop.worker.claim("render")
    return await engine.get(task["id"])


async def die(shop: Shop, **fields: Any) -> dict[str, Any]:
    task = await shop.producer.create(**fields)
    await shop.worker.claim("render")
    assert (await shop.worker.on(task, "nack")).good()["status"] == "dlq"
    return task


# The rest of a policy ---------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_topic_sets_max_attempts_unless_the_task_does(store_url: str) -> None:
    async with a_shop(store_url, {"render": {"maxAttempts": 2}}) as shop:
        task = await shop.producer.create("RENDER")
        assert task["maxAttempts"] == 2
        for status in ("requeued", "dlq"):
            await shop.worker.claim()
            assert (await shop.worker.on(task, "nack", delaySeconds=0)).good()["status"] == status
        assert (await shop.producer.create(maxAttempts=7))["maxAttempts"] == 7
        assert (await shop.producer.create("other"))["maxAttempts"] == 5


@on_sqlite
async def test_a_topic_sets_the_allowed_priorities(store_url: str) -> None:
    async with a_shop(store_url, {"render": {"priorityTiers": [2, 5]}}) as shop:
        given = {asked: (await shop.producer.create(priority=asked)).get("priority", 0) for asked in (0, 2, 4, 5, 9)}
        assert given == {0: 2, 2: 2, 4: 2, 5: 5, 9: 5}
        assert [(await shop.worker.claim())["priority"] for _ in range(5)] == [5, 5, 2, 2, 2]


async def test_a_topic_limits_how_many_of_its_tasks_are_in_progress_at_once(store_url: str) -> None:
    async with a_shop(store_url, {"render": {"maxConsumers": 2}}) as shop:
        for _ in range(6):
            await shop.producer.create()
        many = await asyncio.gather(*[shop.worker.post("/tasks/claim", {"commands": ["render"]}) for _ in range(8)])
        tasks = [answer.json for answer in many if answer.status == 200]
        assert len(tasks) == 2
        await shop.worker.claims_nothing()
        waiting = asyncio.create_task(shop.worker_2.claim(waitSeconds=5))
        await shop.worker.complete(tasks[0])
        await waiting
        await shop.worker.claims_nothing()
        (await shop.boss.put("/admin/topics/render", POLICY)).good()
        batch = (await shop.worker.post("/tasks/claim/batch", {"count": 10})).good()["tasks"]
        assert len(batch) == 3


@pytest.mark.parametrize("end", ["result", "nack", "cancel"])
async def test_a_topic_sets_how_long_its_tasks_are_kept_after_their_end(store_url: str, end: str) -> None:
    settings = {"retention.interval_seconds": 1}
    async with a_shop(store_url, {"render": {"retentionSeconds": 1, "maxAttempts": 1}}, **settings) as shop:
        task = await shop.producer.create()
        other = await shop.producer.create("other")
        assert (await shop.worker.claim("render"))["id"] == task["id"]
        await shop.worker.claim("other")
        await shop.worker.complete(other)
        match end:
            case "result":
                await shop.worker.complete(task)
            case "nack":
                (await shop.worker.on(task, "nack")).good()
            case "cancel":
                (await shop.producer.on(task, "cancel")).good()
        assert (await shop.producer.get(f"/tasks/{task['id']}/result")).status == 200

        async def gone() -> bool:
            return (await shop.producer.get(f"/tasks/{task['id']}")).status == 404

        await until(gone)
        assert (await shop.producer.get(f"/tasks/{other['id']}/result")).status == 200
