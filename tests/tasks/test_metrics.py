"""Every metric of codeQ's, with its labels, and what increases it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from chargehand.doors.tasks import metrics
from chargehand.doors.tasks.metrics import MAX_HELD, TaskMetrics
from chargehand.engine.job import QueueCount, State
from chargehand.engine.moves import Moved
from chargehand.engine.queue import Queue
from tests.api.serving import on_sqlite, until
from tests.tasks.calling import TOKENS, Shop, calling
from tests.tasks.subscribing import a_token
from tests.webhooks.receiver import Receiver, answer, receiving

Samples = dict[str, dict[tuple[str, ...], float]]
SETTINGS = {
    "auth.tokens": [*TOKENS, a_token("prometheus", scopes="metrics")],
    "tasks.backoff_base_seconds": 0,
    "tasks.subscription_min_interval_seconds": 0.01,
    "tasks.result_webhook_max_attempts": 2,
    "tasks.result_webhook_base_backoff_seconds": 0.01,
}
LABELS = {
    "codeq_task_created_total": ("command",),
    "codeq_task_claimed_total": ("command",),
    "codeq_task_completed_total": ("command", "status"),
    "codeq_task_processing_latency_seconds_bucket": ("command", "status", "le"),
    "codeq_task_processing_latency_seconds_count": ("command", "status"),
    "codeq_task_processing_latency_seconds_sum": ("command", "status"),
    "codeq_lease_expired_total": ("command",),
    "codeq_webhook_deliveries_total": ("kind", "command", "outcome"),
    "codeq_rate_limit_hits_total": ("scope", "operation"),
    "codeq_queue_depth": ("command", "queue"),
    "codeq_dlq_depth": ("command",),
    "codeq_subscriptions_active": ("command",),
}
BOUNDS = [
    "0.1",
    "0.25",
    "0.5",
    "1.0",
    "2.5",
    "5.0",
    "10.0",
    "30.0",
    "60.0",
    "120.0",
    "300.0",
    "600.0",
    "1800.0",
    "3600.0",
    "+Inf",
]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


@dataclass
class Counted:
    shop: Shop

    async def read(self) -> str:
        found = await self.shop.by("prometheus").api.get("/metrics")
        assert found.status == 200
        return found.body.decode()

    async def all(self) -> Samples:
        """Return the metrics of this door, by name and by the values of the labels in the order of LABELS."""
        return of_the_door(await self.read())

    async def of(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the samples of this metric that are not 0."""
        return {labels: value for labels, value in (await self.all()).get(name, {}).items() if value}

    async def becomes(self, name: str, expected: dict[tuple[str, ...], float]) -> None:
        async def as_expected() -> bool:
            return await self.of(name) == expected

        await until(as_expected)


def of_the_door(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("codeq_"):
                assert sample.labels.keys() == {*LABELS[sample.name]}
                values = tuple(sample.labels[name] for name in LABELS[sample.name])
                found.setdefault(sample.name, {})[values] = sample.value
    return found


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[Shop]:
    async with calling(store_url, SETTINGS) as opened:
        yield opened


@pytest.fixture
def counted(shop: Shop) -> Counted:
    return Counted(shop)


# tasks ------------------------------------------------------------------------------------------------------------------


async def test_a_task_is_counted_when_it_is_created_claimed_and_completed(shop: Shop, counted: Counted) -> None:
    task = await shop.producer.create("Render")
    await shop.worker.claim("Render")
    await shop.worker.complete(task)
    found = await counted.all()
    assert found["codeq_task_created_total"] == {("Render",): 1}
    assert found["codeq_task_claimed_total"] == {("Render",): 1}
    assert found["codeq_task_completed_total"] == {("Render", "COMPLETED"): 1, ("Render", "FAILED"): 0}
    assert found["codeq_task_processing_latency_seconds_count"] == {("Render", "COMPLETED"): 1}
    assert 0 < found["codeq_task_processing_latency_seconds_sum"]["Render", "COMPLETED"] < 10
    assert [bound for _, _, bound in found["codeq_task_processing_latency_seconds_bucket"]] == BOUNDS


async def test_a_duplicate_is_not_counted(shop: Shop, counted: Counted) -> None:
    for key in ("a", "a", "b"):
        await shop.producer.create("Render", idempotencyKey=key)
    assert await counted.of("codeq_task_created_total") == {("Render",): 2}


async def test_a_batch_counts_each_of_its_tasks(shop: Shop, counted: Counted) -> None:
    tasks = [{"command": "Render", "payload": 1}] * 3 + [{"command": " ", "payload": 1}]
    created = (await shop.producer.post("/tasks/batch", {"tasks": tasks})).good()["results"]
    claimed = (await shop.worker.post("/tasks/claim/batch", {"count": 10})).good()["tasks"]
    results: list[dict[str, Any]] = [{"taskId": task["id"], "status": "COMPLETED", "result": {}} for task in claimed]
    results[0] |= {"status": "FAILED", "error": "no", "result": None}
    (await shop.worker.post("/tasks/batch/results", {"results": results})).good()
    assert ["task" in result for result in created] == [True] * 3 + [False]
    assert await counted.of("codeq_task_created_total") == {("Render",): 3}
    assert await counted.of("codeq_task_claimed_total") == {("Render",): 3}
    ends = {("Render", "COMPLETED"): 2.0, ("Render", "FAILED"): 1.0}
    assert await counted.of("codeq_task_completed_total") == ends
    assert await counted.of("codeq_task_processing_latency_seconds_count") == ends


async def test_only_the_last_nack_counts_as_an_end(shop: Shop, counted: Counted) -> None:
    task = await shop.producer.create("Render", maxAttempts=2)
    for status in ("requeued", "dlq"):
        await shop.worker.claim("Render")
        assert (await shop.worker.on(task, "nack", delaySeconds=0)).good()["status"] == status
        dead = float(status == "dlq")
        assert (await counted.all())["codeq_task_completed_total"]["Render", "FAILED"] == dead
        assert (await counted.all())["codeq_dlq_depth"]["Render",] == dead
        assert (await counted.all())["codeq_queue_depth"]["Render", "dlq"] == dead
    assert await counted.of("codeq_task_claimed_total") == {("Render",): 2}
    assert await counted.of("codeq_task_processing_latency_seconds_count") == {("Render", "FAILED"): 1}
    assert await counted.of("codeq_lease_expired_total") == {}


async def test_a_lapsed_lease_is_counted_and_the_last_one_is_a_dead_letter(shop: Shop, counted: Counted) -> None:
    await shop.producer.create("Render", maxAttempts=2)
    for lapsed in (1.0, 2.0):
        await shop.worker.claim("Render", leaseSeconds=0.01, waitSeconds=5)
        await counted.becomes("codeq_lease_expired_total", {("Render",): lapsed})
    await counted.becomes("codeq_dlq_depth", {("Render",): 1})
    assert await counted.of("codeq_task_completed_total") == {("Render", "FAILED"): 1}


async def test_an_abandoned_task_has_not_ended_and_a_cancelled_one_has(shop: Shop, counted: Counted) -> None:
    task = await shop.producer.create("Render")
    await shop.worker.claim("Render")
    (await shop.worker.on(task, "abandon")).good()
    assert await counted.of("codeq_task_completed_total") == {}
    (await shop.producer.on(task, "cancel")).good()
    assert await counted.of("codeq_task_completed_total") == {("Render", "FAILED"): 1}
    assert await counted.of("codeq_dlq_depth") == {}


# webhooks and limits ----------------------------------------------------------------------------------------------------


async def test_callbacks_are_counted_by_their_final_outcome(shop: Shop, counted: Counted, receiver: Receiver) -> None:
    name = "codeq_webhook_deliveries_total"
    receiver.script.append(answer(500))  # and the second try is good
    await shop.worker.complete(await _claimed(shop, webhook=receiver.url()))
    await counted.becomes(name, {("task_result", "Render", "success"): 1})
    receiver.otherwise = answer(500)
    await shop.worker.complete(await _claimed(shop, webhook=receiver.url()))
    good, bad = ("task_result", "Render", "success"), ("task_result", "Render", "failure")
    await counted.becomes(name, {good: 1, bad: 1})
    assert len(receiver.hooks) == 4


async def test_notifications_are_counted_by_outcome(shop: Shop, counted: Counted, receiver: Receiver) -> None:
    name = "codeq_webhook_deliveries_total"
    await _subscribe(shop, receiver)
    good, bad = ("queue_ready", "Render", "success"), ("queue_ready", "Render", "failure")
    task = await shop.producer.create("Render")
    await counted.becomes(name, {good: 1})
    await shop.worker.claim("Render")
    await shop.worker.complete(task)
    receiver.otherwise = answer(500)
    await shop.producer.create("Render")
    await counted.becomes(name, {good: 1, bad: 1})


@on_sqlite
async def test_requests_over_a_limit_are_counted_by_scope_and_operation(store_url: str) -> None:
    limits = {f"tasks.{who}_{what}": 1 for who in ("producer", "worker", "admin") for what in ("per_minute", "burst")}
    async with calling(store_url, {**SETTINGS, **limits}) as shop:
        statuses = []
        for _ in range(3):
            create = {"command": "Render", "payload": 1}
            statuses += [
                (await shop.producer.post("/tasks", create)).status,
                (await shop.producer.post("/tasks/batch", {"tasks": [create]})).status,
                (await shop.worker.post("/tasks/claim", {})).status,
                (await shop.worker.post("/tasks/claim/batch", {"count": 1})).status,
                (await shop.boss.post("/admin/tasks/cleanup", {})).status,
            ]
        assert statuses == [202, 429, 200, 429, 200] + [429] * 10
        hits = await Counted(shop).of("codeq_rate_limit_hits_total")
        assert hits == {("producer", "create_task"): 5, ("worker", "claim"): 5, ("admin", "cleanup"): 2}


# gauges -----------------------------------------------------------------------------------------------------------------


async def test_a_depth_is_the_sum_over_all_tenants(shop: Shop, counted: Counted) -> None:
    for caller in (shop.producer, shop.other_producer):
        await caller.create("Render")
        await caller.create("Render")
        await caller.create("Render", delaySeconds=600)
    await shop.other_worker.claim("Render")
    await shop.dead_letter("Index")
    found = await counted.all()
    render = {("Render", "ready"): 3, ("Render", "delayed"): 2, ("Render", "in_progress"): 1, ("Render", "dlq"): 0}
    index = {("Index", "ready"): 0, ("Index", "delayed"): 0, ("Index", "in_progress"): 0, ("Index", "dlq"): 1}
    assert found["codeq_queue_depth"] == render | index
    assert found["codeq_dlq_depth"] == {("Render",): 0, ("Index",): 1}


async def test_a_queue_that_is_empty_again_is_shown_as_0(shop: Shop, counted: Counted) -> None:
    letter = await shop.dead_letter("Index")
    assert await counted.of("codeq_dlq_depth") == {("Index",): 1}
    assert (await shop.boss.delete(f"/admin/dlq/{letter['id']}")).status == 204
    assert (await counted.all())["codeq_dlq_depth"] == {("Index",): 0}


async def test_subscriptions_are_counted_while_they_last(shop: Shop, counted: Counted, receiver: Receiver) -> None:
    made = await _subscribe(shop, receiver)
    await _subscribe(shop, receiver)
    await _subscribe(shop, receiver, eventTypes=["*"])
    assert await counted.of("codeq_subscriptions_active") == {("render",): 2, ("*",): 1}
    await shop.producer.create("Render")  # from here on the server knows how producers spell the command
    assert await counted.of("codeq_subscriptions_active") == {("Render",): 2, ("*",): 1}
    assert (await shop.worker.delete(f"/workers/subscriptions/{made}")).status == 204
    assert await counted.of("codeq_subscriptions_active") == {("Render",): 1, ("*",): 1}
    assert {command for command, _ in (await counted.all())["codeq_queue_depth"]} == {"Render"}


# the label of a command -------------------------------------------------------------------------------------------------


async def test_a_command_is_labelled_as_the_first_producer_spelt_it(shop: Shop, counted: Counted) -> None:
    await shop.producer.create(" Render ")
    await shop.producer.create("RENDER")
    await shop.worker.claim("render")
    assert await counted.of("codeq_task_created_total") == {("Render",): 2}
    assert await counted.of("codeq_task_claimed_total") == {("Render",): 1}
    assert await counted.of("codeq_queue_depth") == {("Render", "ready"): 1, ("Render", "in_progress"): 1}


async def test_tasks_of_a_schedule_are_labelled_as_the_schedule_spells_the_command(
    shop: Shop, counted: Counted
) -> None:
    asked = {"name": "nightly", "cron": "0 3 * * *", "command": "Render", "payload": {}}
    (await shop.producer.post("/schedules", asked)).good(201)
    (await shop.producer.post("/schedules/nightly/run")).good(202)
    assert await counted.of("codeq_task_created_total") == {("Render",): 1}


async def test_after_a_restart_a_command_has_the_same_label(store_url: str) -> None:
    async with calling(store_url, SETTINGS) as shop:
        first, _ = await shop.producer.create("Render"), await shop.producer.create("Render")
    async with calling(store_url, SETTINGS) as shop:
        await shop.worker.claim("Render")
        await shop.worker.complete(first)
        found = await Counted(shop).all()
        assert found["codeq_task_claimed_total"] == {("Render",): 1}
        assert found["codeq_task_completed_total"] == {("Render", "COMPLETED"): 1, ("Render", "FAILED"): 0}
        assert {command for command, _ in found["codeq_queue_depth"]} == {"Render"}


async def test_a_node_that_only_serves_workers_has_the_same_label_as_one_that_only_serves_producers(
    postgres_url: str,
) -> None:
    async with calling(postgres_url, SETTINGS) as taking, calling(postgres_url, SETTINGS) as working:
        task = await taking.producer.create("Render")
        await working.worker.claim("Render", waitSeconds=5)
        await working.worker.complete(task)
        assert await Counted(taking).of("codeq_task_created_total") == {("Render",): 1}
        assert await Counted(working).of("codeq_task_claimed_total") == {("Render",): 1}
        assert await Counted(working).of("codeq_task_completed_total") == {("Render", "COMPLETED"): 1}


@on_sqlite
async def test_counters_begin_at_0_so_that_the_first_count_is_an_increase(shop: Shop, counted: Counted) -> None:
    await shop.producer.create("Render")
    found = await counted.all()
    assert found["codeq_task_claimed_total"] == {("Render",): 0}
    assert found["codeq_task_completed_total"] == {("Render", "COMPLETED"): 0, ("Render", "FAILED"): 0}
    assert found["codeq_lease_expired_total"] == {("Render",): 0}


@on_sqlite
async def test_commands_beyond_the_bound_are_counted_together(
    shop: Shop, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_COMMANDS", 2)
    for command in ("A", "B", "C", "D", "D"):
        await shop.producer.create(command)
    assert await counted.of("codeq_task_created_total") == {("A",): 1, ("B",): 1, ("other",): 3}
    assert await counted.of("codeq_queue_depth") == {("A", "ready"): 1, ("B", "ready"): 1, ("other", "ready"): 3}


def test_metrics_that_nobody_reads_are_counted_in_bounded_memory() -> None:
    tasks = TaskMetrics(CollectorRegistry())
    moved = Moved("j", Queue("task", "acme", "render"), "claim", State.RUNNING, "", 1, 2, 0, 0, 0)
    other = Queue("task", "globex", "render")
    for _ in range(MAX_HELD - 1):
        tasks.on_move(moved)
    assert tasks.strange([QueueCount(other, {5: 1}, 0, 0, 0)]) == [other]
    for _ in range(3):
        tasks.on_move(moved)
    assert tasks.strange([]) == []
    [claimed] = [sample for family in tasks.claimed.collect() for sample in family.samples]
    assert (claimed.labels, claimed.value) == ({"command": "render"}, MAX_HELD + 2)


def test_gauges_of_commands_with_unknown_spelling_are_bounded() -> None:
    registry = CollectorRegistry()
    counts = [QueueCount(Queue("task", "acme", f"c{n}"), {5: 1}, 0, 0, None) for n in range(2 * metrics.MAX_COMMANDS)]
    TaskMetrics(registry).show(counts, {}, {("acme", f"s{n}"): 1 for n in range(10)})
    ready = [
        sample for family in registry.collect() for sample in family.samples if sample.labels.get("queue") == "ready"
    ]
    assert len(ready) == metrics.MAX_COMMANDS + 1
    assert sum(sample.value for sample in ready) == len(counts)
    assert (
        registry.get_sample_value("codeq_queue_depth", {"command": "other", "queue": "ready"}) == metrics.MAX_COMMANDS
    )
    assert registry.get_sample_value("codeq_subscriptions_active", {"command": "other"}) == 10


def test_jobs_of_other_doors_are_not_counted() -> None:
    tasks = TaskMetrics(CollectorRegistry())
    tasks.on_move(Moved("j", Queue("job", "acme", "q"), "submit", State.QUEUED, "", 0, 1, 0, 0, 0))
    assert tasks.strange([]) == []
    assert [sample for family in tasks.created.collect() for sample in family.samples] == []


async def _claimed(shop: Shop, **fields: Any) -> dict[str, Any]:
    await shop.producer.create("Render", **fields)
    return await shop.worker.claim("Render")


async def _subscribe(shop: Shop, receiver: Receiver, **fields: Any) -> str:
    asked = {"callbackUrl": receiver.url("/worker"), "eventTypes": ["render"], **fields}
    made: str = (await shop.worker.post("/workers/subscriptions", asked)).good(201)["subscriptionId"]
    return made
