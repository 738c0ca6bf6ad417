"""Result callbacks: one for every end of a task, signed in two ways, and retried as configured."""

import asyncio
import hashlib
import hmac
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web
from standardwebhooks.webhooks import Webhook

from chargehand.config import load_config
from chargehand.doors.tasks.door import TasksDoor
from chargehand.doors.tasks.names import BASE, task_queue
from chargehand.doors.tasks.policy import LEASE_EXPIRED, MAX_ATTEMPTS
from chargehand.doors.tasks.producer import ProducerApi
from chargehand.doors.tasks.wire import CreateTask
from chargehand.engine.delivery import Delivery, DeliveryState, Replay
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import SECOND, Job
from chargehand.engine.moves import Broke, RetryPolicy
from chargehand.engine.reads import DeliveryFilter
from chargehand.engine.store import Store
from chargehand.files import Blobs, Files
from chargehand.observability.metrics import Metrics
from chargehand.observability.tracing import Tracing
from chargehand.webhooks.egress import EgressPolicy
from chargehand.webhooks.outbound import Outbox
from chargehand.webhooks.signature import standard_secret
from tests.api.serving import Api, on_sqlite, serving, talking, until
from tests.conftest import Clock
from tests.webhooks.receiver import Hook, Receiver, answer, receiving

SECRET = "what only the receiver and we know"
SETTINGS: dict[str, Any] = {"webhooks.secret": SECRET, "tasks.backoff_base_seconds": 0}


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


def said(hook: Hook) -> dict[str, Any]:
    """Return the body of a callback, after verifying both signatures."""
    stamp = hook.headers["X-CodeQ-Timestamp"]
    signed = stamp.encode() + b"." + hook.body
    assert hook.headers["X-CodeQ-Signature"] == hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert abs(int(stamp) - time.time()) < 30
    Webhook(standard_secret(SECRET)).verify(hook.body, dict(hook.headers))
    assert hook.headers["Content-Type"] == "application/json"
    body: dict[str, Any] = msgspec.json.decode(hook.body)
    assert body.keys() == {"taskId", "eventType", "status", "result", "error", "artifacts", "completedAt"}
    return body


# Every end --------------------------------------------------------------------------------------------------------------


class Door:
    """A server without tokens: every caller is producer, worker and administrator in one."""

    def __init__(self, api: Api, store: Store, receiver: Receiver) -> None:
        self.api = api
        self.store = store
        self.receiver = receiver

    async def create(self, **fields: Any) -> str:
        body = {"command": "Render", "payload": {"n": 1}, "webhook": self.receiver.url("/done"), **fields}
        return cast(str, (await self.api.post(f"{BASE}/tasks", body)).good(202)["id"])

    async def claim(self, **fields: Any) -> str:
        return cast(str, (await self.api.post(f"{BASE}/tasks/claim", {"waitSeconds": 5, **fields})).good()["id"])

    async def on(self, task_id: str, verb: str, **fields: Any) -> Any:
        return (await self.api.post(f"{BASE}/tasks/{task_id}/{verb}", fields)).good()

    async def callbacks(self, task_id: str, count: int = 1) -> list[dict[str, Any]]:
        """Return the callbacks of a task once `count` are delivered, and assert that the outbox holds no other."""

        async def delivered() -> bool:
            found = await self.store.list_deliveries(DeliveryFilter(job_id=task_id))
            return len(found) >= count and all(each.state is DeliveryState.DELIVERED for each in found)

        await until(delivered)
        hooks = [hook for hook in self.receiver.at("/done") if hook.job_id == task_id]
        assert len(hooks) == len({hook.id for hook in hooks}) == count
        return [said(hook) for hook in hooks]


@asynccontextmanager
async def serving_door(store_url: str, receiver: Receiver, **settings: Any) -> AsyncIterator[Door]:
    async with serving(store_url, {**SETTINGS, **settings}) as server, talking(server) as api:
        yield Door(api, server.store, receiver)


async def _completed(door: Door, task_id: str) -> None:
    await door.claim()
    artifacts = [{"name": "a.txt", "url": "https://files.example/a.txt"}]
    await door.on(task_id, "result", status="COMPLETED", result={"big": 2**60 + 1}, artifacts=artifacts)


async def _failed(door: Door, task_id: str) -> None:
    await door.claim()
    await door.on(task_id, "result", status="FAILED", error="cannot be done")


async def _batch(door: Door, task_id: str) -> None:
    await door.claim()
    results = [
        {"taskId": task_id, "status": "COMPLETED", "result": {"n": 2}},
        {"taskId": task_id, "status": "FAILED", "error": "and the same once more"},
    ]
    done = (await door.api.post(f"{BASE}/tasks/batch/results", {"results": results})).good()["results"]
    assert ["error" in each for each in done] == [False, True]


async def _nacked(door: Door, task_id: str) -> None:
    for last in (False, True):
        await door.claim()
        assert (await door.on(task_id, "nack", delaySeconds=0, reason="broken"))["status"] == (
            "dlq" if last else "requeued"
        )


async def _nacked_without_a_word(door: Door, task_id: str) -> None:
    for _ in range(2):
        await door.claim()
        await door.on(task_id, "nack", delaySeconds=0)


async def _lapsed(door: Door, task_id: str) -> None:
    for _ in range(2):
        await door.claim(leaseSeconds=0.05)


async def _cancelled_while_it_waits(door: Door, task_id: str) -> None:
    await door.on(task_id, "cancel")


async def _cancelled_while_it_runs(door: Door, task_id: str) -> None:
    await door.claim()
    await door.on(task_id, "cancel")


async def _cancelled_by_an_administrator(door: Door, task_id: str) -> None:
    await door.claim()
    (await door.api.post(f"/engine/jobs/{task_id}/cancel")).good()


End = Callable[[Door, str], Awaitable[None]]
ENDS: dict[End, dict[str, Any]] = {
    _completed: {
        "status": "COMPLETED",
        "result": {"big": 2**60 + 1},
        "artifacts": [{"name": "a.txt", "url": "https://files.example/a.txt"}],
    },
    _failed: {"status": "FAILED", "error": "cannot be done"},
    _batch: {"status": "COMPLETED", "result": {"n": 2}},
    _nacked: {"status": "FAILED", "error": "broken"},
    _nacked_without_a_word: {"status": "FAILED", "error": MAX_ATTEMPTS},
    _lapsed: {"status": "FAILED", "error": LEASE_EXPIRED},
    _cancelled_while_it_waits: {"status": "FAILED", "error": "CANCELLED"},
    _cancelled_while_it_runs: {"status": "FAILED", "error": "CANCELLED"},
    _cancelled_by_an_administrator: {"status": "FAILED", "error": "CANCELLED"},
}


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_every_end_of_a_task_makes_one_callback(store_url: str, receiver: Receiver, end: End) -> None:
    async with serving_door(store_url, receiver) as door:
        task_id = await door.create(maxAttempts=2)
        await end(door, task_id)
        [body] = await door.callbacks(task_id)
        ended = (await door.api.get(f"{BASE}/tasks/{task_id}/result?waitSeconds=5")).good()["result"]
    assert body == {
        "taskId": task_id,
        "eventType": "Render",
        "result": None,
        "error": "",
        "artifacts": [],
        "completedAt": ended["completedAt"],
        **ENDS[end],
    }
    assert len(receiver.hooks) == 1


async def test_a_move_that_does_not_end_the_task_makes_no_callback(store_url: str, receiver: Receiver) -> None:
    async with serving_door(store_url, receiver) as door:
        task_id = await door.create(maxAttempts=5)
        for verb, fields in [("heartbeat", {}), ("progress", {"percent": 5}), ("nack", {"delaySeconds": 0})]:
            if verb == "heartbeat":
                await door.claim()
            await door.on(task_id, verb, **fields)
        await door.claim()
        await door.on(task_id, "abandon")
        assert await door.store.list_deliveries(DeliveryFilter(job_id=task_id)) == []
        silent = await door.create(webhook="  ")
        await door.on(silent, "cancel")
        assert await door.store.list_deliveries(DeliveryFilter(job_id=silent)) == []


async def test_a_requeued_dead_letter_that_succeeds_makes_another_callback(store_url: str, receiver: Receiver) -> None:
    async with serving_door(store_url, receiver) as door:
        task_id = await door.create(maxAttempts=1)
        await door.claim()
        await door.on(task_id, "nack", reason="broken")
        assert [body["status"] for body in await door.callbacks(task_id)] == ["FAILED"]
        (await door.api.post(f"{BASE}/admin/dlq/{task_id}/requeue", {"payload": {"n": 2}})).good()
        assert await door.claim() == task_id
        await door.on(task_id, "result", status="COMPLETED", result={"n": 2})
        bodies = await door.callbacks(task_id, 2)
        assert [(body["status"], body["result"], body["error"]) for body in bodies] == [
            ("FAILED", None, "broken"),
            ("COMPLETED", {"n": 2}, ""),
        ]


async def test_a_requeued_dead_letter_that_dies_again_makes_another_callback(
    store_url: str, receiver: Receiver
) -> None:
    async with serving_door(store_url, receiver) as door:
        task_id = await door.create(maxAttempts=1)
        for turn in (1, 2, 3):
            await door.claim()
            await door.on(task_id, "nack", reason=f"broken {turn}")
            errors = [body["error"] for body in await door.callbacks(task_id, turn)]
            assert errors == [f"broken {n + 1}" for n in range(turn)]
            (await door.api.post(f"{BASE}/admin/dlq/{task_id}/requeue")).good()


async def test_a_late_callback_describes_the_end_that_it_was_made_for(store_url: str, receiver: Receiver) -> None:
    """The task went on since, but the body is the same, byte for byte, as at the first try."""
    receiver.otherwise = answer(500)
    quick = {"tasks.result_webhook_base_backoff_seconds": 0.02, "tasks.result_webhook_max_backoff_seconds": 0.02}
    async with serving_door(store_url, receiver, **quick, **{"tasks.result_webhook_max_attempts": 1000}) as door:
        task_id = await door.create(maxAttempts=1)
        await door.claim()
        await door.on(task_id, "nack", reason="broken")
        await until(lambda: receiver.hooks)
        (await door.api.post(f"{BASE}/admin/dlq/{task_id}/requeue")).good()
        await door.claim()
        await door.on(task_id, "result", status="COMPLETED", result={"n": 2})
        receiver.otherwise = answer(200)

        async def delivered() -> bool:
            found = await door.store.list_deliveries(DeliveryFilter(job_id=task_id))
            return len(found) == 2 and all(each.state is DeliveryState.DELIVERED for each in found)

        await until(delivered)
    by_id: dict[str, set[bytes]] = {}
    for hook in receiver.hooks:
        said(hook)
        by_id.setdefault(hook.id, set()).add(hook.body)
    bodies = [msgspec.json.decode(body) for copies in by_id.values() for body in copies]
    assert sorted((body["status"], body["error"], body["result"]) for body in bodies) == [
        ("COMPLETED", "", {"n": 2}),
        ("FAILED", "broken", None),
    ]


@on_sqlite
async def test_each_tenant_has_its_own_secret(store_url: str, receiver: Receiver) -> None:
    """While a secret is being replaced, the old one still signs for Standard Webhooks."""
    tenants = {"default": {"secret": SECRET, "previous_secret": "the one before"}}
    settings = {"webhooks.secret": "everybody's", "webhooks.tenants": tenants}
    async with serving_door(store_url, receiver, **settings) as door:
        task_id = await door.create()
        await door.on(task_id, "cancel")
        await door.callbacks(task_id)
        [hook] = receiver.hooks
        Webhook(standard_secret("the one before")).verify(hook.body, dict(hook.headers))


# How often, and how late ------------------------------------------------------------------------------------------------


class Clockwork:
    """The door and the outbox on a clock that only the test moves."""

    def __init__(self, store: Store, clock: Clock, folder: Path, webhooks: dict[str, Any], **tasks: Any) -> None:
        overrides = {f"tasks.{name}": value for name, value in tasks.items()}
        hurry = {"webhooks.timeout_seconds": 600, "webhooks.breaker_failures": 1000, "webhooks.secret": SECRET}
        config = load_config(environ={}, overrides={**hurry, **webhooks, **overrides})
        self.store = store
        self.clock = clock
        self.engine = Engine(store, policy=RetryPolicy(0, 0), now=clock)
        policy, metrics = EgressPolicy(allow_local=True), Metrics()
        files = Files(store, Blobs(folder), self.engine.new_id)
        door = TasksDoor(self.engine, config, files, policy, Tracing(), metrics)
        [self._producer] = [part for part in door._parts if isinstance(part, ProducerApi)]
        self.outbox = Outbox(
            store, config.webhooks, policy, TasksDoor.webhooks, metrics, Tracing(), poll_seconds=0.01,
            random=Random(7), clock=lambda: clock.now / SECOND,
        )  # fmt: skip
        self.engine.on_move(self.outbox.on_move)
        self._running = asyncio.create_task(self.outbox.run())

    async def dead_letter(self, url: str) -> str:
        asked = CreateTask("render", msgspec.Raw(b"1"), webhook=url, max_attempts=1)
        job: Job = await self._producer.create("default", asked, key=None)
        [claimed] = await self.engine.claim((task_queue("default", "render"),), "worker", 60)
        await self.engine.broke(Guard.held(claimed), Broke("broken"))
        return job.id

    async def tried(self, job_id: str, times: int) -> Delivery:
        async def found() -> Delivery | None:
            [delivery] = await self.store.list_deliveries(DeliveryFilter(job_id=job_id))
            return delivery if delivery.tries >= times else None

        delivery = cast(Delivery, await until(found))
        assert delivery.tries == times
        return delivery

    async def pending(self, job_ids: list[str], tries: list[float]) -> list[Delivery]:
        """Return the deliveries that wait for another try, once every try that the receiver saw is settled."""

        async def settled() -> list[Delivery] | None:
            found = [each for id in job_ids for each in await self.store.list_deliveries(DeliveryFilter(job_id=id))]
            return found if sum(each.tries for each in found) == len(tries) >= len(job_ids) else None

        found = cast(list[Delivery], await until(settled))
        return [each for each in found if each.state is DeliveryState.PENDING]

    async def close(self) -> None:
        self.engine.drain()
        await self.outbox.drain(0.1)
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


@pytest.fixture
async def clockwork(store: Store, clock: Clock, tmp_path: Path) -> AsyncIterator[Callable[..., Clockwork]]:
    opened: list[Clockwork] = []

    def make(webhooks: dict[str, Any] | None = None, **tasks: Any) -> Clockwork:
        opened.append(Clockwork(store, clock, tmp_path / "files", webhooks or {}, **tasks))
        return opened[-1]

    yield make
    for each in opened:
        await each.close()


@pytest.mark.parametrize(
    ("settings", "pauses"),
    [
        ({}, [2, 4, 8, 16]),
        ({"result_webhook_max_attempts": 8}, [2, 4, 8, 16, 32, 60, 60]),
        ({"result_webhook_base_backoff_seconds": 3, "result_webhook_max_backoff_seconds": 7}, [3, 6, 7, 7]),
        ({"result_webhook_max_attempts": 1}, []),
    ],
    ids=["as promised", "more often", "other pauses", "once"],
)
async def test_a_failing_callback_is_retried_with_growing_pauses_then_given_up_and_can_be_replayed(
    clockwork: Callable[..., Clockwork], receiver: Receiver, settings: dict[str, Any], pauses: list[float]
) -> None:
    receiver.otherwise = answer(500)
    desk = clockwork(**settings)
    job_id = await desk.dead_letter(receiver.url())
    jitter = set()
    for number, pause in enumerate(pauses, 1):
        delivery = await desk.tried(job_id, number)
        assert delivery.state is DeliveryState.PENDING
        waits = (delivery.due_at - desk.clock.now) / SECOND
        assert pause <= waits <= pause * 1.25
        jitter.add(waits / pause)
        desk.clock.now = delivery.due_at - 1
        desk.outbox.nudge(delivery.endpoint_id)
        # Three polls: a try that comes too early would be one too many, and there is no event to wait for.
        await asyncio.sleep(0.03)
        assert (await desk.tried(job_id, number)).tries == number
        desk.clock.now = delivery.due_at
        desk.outbox.nudge(delivery.endpoint_id)
    dead = await desk.tried(job_id, len(pauses) + 1)
    assert dead.state is DeliveryState.DEAD
    assert dead.reason == f"gave up after {len(pauses) + 1} tries: answered 500"
    assert len(jitter) == len(pauses)

    receiver.otherwise = answer(200)
    assert await desk.store.write(Replay(dead.tenant, dead.id)) == 1
    desk.outbox.nudge(dead.endpoint_id)
    assert (await desk.tried(job_id, len(pauses) + 2)).state is DeliveryState.DELIVERED
    assert len({(hook.id, hook.body) for hook in receiver.hooks}) == 1
    assert [int(hook.headers["X-Chargehand-Attempt"]) for hook in receiver.hooks] == list(range(1, len(pauses) + 3))
    assert said(receiver.hooks[-1])["error"] == "broken"


@on_sqlite
async def test_callbacks_to_a_receiver_that_is_down_for_a_while_arrive_as_soon_as_their_policy_promises(
    clockwork: Callable[..., Clockwork], receiver: Receiver
) -> None:
    desk = clockwork(webhooks={"webhooks.breaker_failures": 5})
    began, down_seconds, tries = desk.clock.now, 12, list[float]()

    async def down_at_first(request: web.BaseRequest) -> web.StreamResponse:
        tries.append((desk.clock.now - began) / SECOND)
        return await answer(503 if tries[-1] < down_seconds else 200)(request)

    async def another(endpoint_id: str) -> None:
        count = len(tries)
        desk.outbox.nudge(endpoint_id)
        await until(lambda: len(tries) > count)

    receiver.otherwise = down_at_first
    jobs = [await desk.dead_letter(receiver.url()) for _ in range(4)]
    while pending := await desk.pending(jobs, tries):
        _, seconds = desk.outbox.breaker(pending[0].endpoint_id)
        desk.clock.now = max(min(each.due_at for each in pending), desk.clock.now + math.ceil(seconds * SECOND))
        await another(pending[0].endpoint_id)
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert max(gaps) <= 8 * 1.25  # the third pause, and its jitter
    assert tries[-1] <= down_seconds + 8 * 1.25


@on_sqlite
@pytest.mark.parametrize("status", [302, 400, 404, 429, 503])
async def test_a_callback_whose_answer_is_not_2xx_is_retried(
    clockwork: Callable[..., Clockwork], receiver: Receiver, status: int
) -> None:
    receiver.script.append(answer(status))
    desk = clockwork()
    job_id = await desk.dead_letter(receiver.url())
    delivery = await desk.tried(job_id, 1)
    assert delivery.state is DeliveryState.PENDING
    desk.clock.now = delivery.due_at
    desk.outbox.nudge(delivery.endpoint_id)
    assert (await desk.tried(job_id, 2)).state is DeliveryState.DELIVERED
