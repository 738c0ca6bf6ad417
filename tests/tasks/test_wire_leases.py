"""Heartbeat, abandon and nack: what they change, and that a worker without the lease changes nothing."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from chargehand.engine.job import NewJob
from chargehand.engine.queue import Queue
from tests.api.serving import Answer, on_sqlite, until
from tests.tasks.calling import NOBODY, Caller, Shop, calling, refused

VERBS: list[tuple[str, dict[str, Any]]] = [
    ("heartbeat", {}),
    ("progress", {"percent": 1}),
    ("abandon", {}),
    ("nack", {"delaySeconds": 0}),
    ("result", {"status": "COMPLETED", "result": {}}),
    ("result", {"status": "FAILED", "error": "x", "artifacts": [{"name": "a", "contentBase64": "eA"}]}),
]
NO_BACKOFF = {"tasks.backoff_base_seconds": 0, "tasks.backoff_max_seconds": 900}


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[Shop]:
    async with calling(store_url, NO_BACKOFF) as opened:
        yield opened


async def unchanged(shop: Shop, task: dict[str, Any], caller: Caller, status: int, error: str, **fields: Any) -> None:
    """Assert that every verb, alone and in a batch of results, is refused with this error and changes nothing."""
    before = await shop.producer.task(task)
    events = (await shop.producer.get(f"/tasks/{task['id']}/events")).good()
    for verb, body in VERBS:
        said = refused(await caller.on(task, verb, **body, **fields), status, error)
        assert status != 409 or "nothing was changed" in said["detail"]
    for _, body in VERBS[-2:]:
        answer = await caller.post("/tasks/batch/results", {"results": [{"taskId": task["id"], **body, **fields}]})
        [one] = answer.good()["results"]
        assert (one["taskId"], one["error"], "result" in one) == (task["id"], error, False)
        assert status != 409 or "nothing was changed" in one["detail"]
    assert await shop.producer.task(task) == before
    assert (await shop.producer.get(f"/tasks/{task['id']}/events")).good() == events
    assert (await shop.producer.get(f"/tasks/{task['id']}/artifacts/a")).status == 404


# whose it is --------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_worker_that_does_not_own_the_task_changes_nothing(shop: Shop) -> None:
    task = await shop.producer.create()
    await shop.worker.claim()
    await unchanged(shop, task, shop.worker_2, 403, "not-owner")


@on_sqlite
async def test_a_task_that_nobody_holds_or_that_is_done_is_not_in_progress(shop: Shop) -> None:
    task = await shop.producer.create()
    for caller in (shop.worker, shop.worker_2):
        await unchanged(shop, task, caller, 409, "not-in-progress")
    await shop.worker.claim()
    await shop.worker.complete(task)
    for caller in (shop.worker, shop.worker_2):
        before = await shop.producer.task(task)
        for verb, body in VERBS:
            said = refused(await caller.on(task, verb, **body), 409, "not-in-progress")
            assert "COMPLETED" in said["detail"]
        assert await shop.producer.task(task) == before


async def test_a_worker_that_lost_its_lease_is_refused_and_changes_nothing(shop: Shop) -> None:
    task = await shop.producer.create()
    await shop.worker.claim(leaseSeconds=0.05)
    held = await shop.worker_2.claim(waitSeconds=10)
    assert (held["id"], held["attempts"]) == (task["id"], 2)
    await unchanged(shop, task, shop.worker, 409, "lease-lost")
    await shop.worker_2.complete(task)


async def test_a_lease_lapses_although_nobody_claims(shop: Shop) -> None:
    task = await shop.producer.create()
    await shop.worker.claim(leaseSeconds=0.05)

    async def given_back() -> bool:
        return bool((await shop.producer.task(task))["status"] == "PENDING")

    await until(given_back, 2.0)
    await unchanged(shop, task, shop.worker, 409, "not-in-progress")


async def test_a_worker_with_the_lease_of_an_earlier_claim_changes_nothing(shop: Shop) -> None:
    task = await shop.producer.create()
    first = await shop.worker.claim()
    (await shop.worker.on(task, "abandon", lease=first["lease"])).good()
    second = await shop.worker.claim()
    assert second["lease"] > first["lease"]
    await unchanged(shop, task, shop.worker, 409, "lease-lost", lease=first["lease"])
    await unchanged(shop, task, shop.worker, 409, "lease-lost", lease=77)
    await unchanged(shop, task, shop.worker_2, 403, "not-owner", lease=second["lease"])
    for verb, body in (VERBS[0], VERBS[1], VERBS[4]):
        assert (await shop.worker.on(task, verb, **body, lease=second["lease"])).status == 200


@on_sqlite
async def test_an_unknown_task_is_not_found(shop: Shop) -> None:
    for verb, body in VERBS:
        text = "task not found" if verb == "result" else "not-found"
        refused(await shop.worker.on({"id": NOBODY}, verb, **body), 404, text)


# heartbeat and abandon ----------------------------------------------------------------------------------------------------


@on_sqlite
async def test_heartbeats_renew_the_lease(shop: Shop) -> None:
    task = await shop.producer.create()
    await shop.worker.claim(leaseSeconds=0.5)
    assert (await shop.worker.on(task, "heartbeat", extendSeconds=100)).good() == {"ok": True}
    await shop.worker_2.claims_nothing(waitSeconds=1)
    held = await shop.producer.task(task)
    assert (held["status"], held["attempts"], held["workerId"]) == ("IN_PROGRESS", 1, "worker")


async def test_abandoning_costs_no_attempt_however_often(shop: Shop) -> None:
    task = await shop.producer.create(maxAttempts=1)
    for _ in range(4):
        held = await shop.worker.claim()
        assert held["attempts"] == 1
        assert (await shop.worker.on(task, "abandon")).good() == {"status": "requeued"}
        back = await shop.producer.task(task)
        assert (back["status"], back["lastKnownLocation"]) == ("PENDING", "PENDING_LIST")
        assert {"workerId", "leaseUntil", "lease", "attempts", "runAt", "error"}.isdisjoint(back)


@on_sqlite
async def test_abandon_reads_no_body(shop: Shop) -> None:
    for body in (b"", b"not json", b"[]", b'{"lease":"x"}', b"{}"):
        task = await shop.producer.create()
        await shop.worker.claim()
        assert (await shop.worker.send(f"/tasks/{task['id']}/abandon", body)).good() == {"status": "requeued"}
        await shop.worker.claim()
        await shop.worker.complete(task)


# nack and attempts --------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_five_attempts_are_five_runs_and_then_the_dead_letters(shop: Shop) -> None:
    task = await shop.producer.create()
    for run in range(1, 6):
        held = await shop.worker.claim(waitSeconds=5)
        assert (held["attempts"], held["maxAttempts"]) == (run, 5)
        answer = (await shop.worker.on(task, "nack", reason=f"broke {run}")).good()
        assert answer == {"status": "requeued" if run < 5 else "dlq", "delaySeconds": 0}
        if run < 5:
            assert "error" not in await shop.producer.task(task)
    await shop.worker.claims_nothing()
    dead = await shop.producer.task(task)
    assert (
        dead.items()
        >= {
            "status": "FAILED",
            "lastKnownLocation": "DLQ_SET",
            "attempts": 5,
            "error": "broke 5",
            "resultKey": "codeq:results",
        }.items()
    )
    assert {"workerId", "leaseUntil", "lease"}.isdisjoint(dead)


async def test_lapsed_leases_count_like_nacks(shop: Shop) -> None:
    task = await shop.producer.create(maxAttempts=2)
    for run in (1, 2):
        assert (await shop.worker.claim(leaseSeconds=0.05, waitSeconds=10))["attempts"] == run
    outcome = (await shop.producer.get(f"/tasks/{task['id']}/result?waitSeconds=10")).good()
    assert (outcome["task"]["attempts"], outcome["task"]["lastKnownLocation"]) == (2, "DLQ_SET")
    assert (outcome["result"]["status"], outcome["result"]["error"]) == ("FAILED", "LEASE_EXPIRED")


@on_sqlite
async def test_a_dead_letter_has_a_result_with_the_reason_or_a_default(shop: Shop) -> None:
    for reason, error in (("no disk", "no disk"), ("  ", "MAX_ATTEMPTS"), (None, "MAX_ATTEMPTS")):
        task = await shop.producer.create(maxAttempts=1)
        await shop.worker.claim()
        (await shop.worker.on(task, "nack", reason=reason)).good()
        outcome = (await shop.worker.get(f"/tasks/{task['id']}/result")).good()
        assert outcome["task"] == await shop.producer.task(task)
        result = outcome["result"]
        assert result.pop("completedAt") == outcome["task"]["updatedAt"]
        assert result == {"taskId": task["id"], "status": "FAILED", "error": error}


@on_sqlite
async def test_a_delay_is_applied_as_given_up_to_the_maximum(shop: Shop) -> None:
    for asked, applied in ((0, 0), (30, 30), (900, 900), (5000, 900), (1e12, 900)):
        task = await shop.producer.create(str(asked))
        await shop.worker.claim(str(asked))
        answer = (await shop.worker.on(task, "nack", delaySeconds=asked)).good()
        assert answer == {"status": "requeued", "delaySeconds": applied}
        back = await shop.producer.task(task)
        assert back["lastKnownLocation"] == ("DELAYED_ZSET" if applied else "PENDING_LIST")
        assert ("runAt" in back, back["attempts"]) == (applied > 0, 1)


@on_sqlite
async def test_without_a_delay_the_policy_sets_it(store_url: str) -> None:
    settings = {"tasks.backoff_policy": "linear", "tasks.backoff_base_seconds": 7, "tasks.backoff_max_seconds": 10}
    async with calling(store_url, settings) as shop:
        for fields in ({}, {"delaySeconds": None}, {"delaySeconds": -1}):
            task = await shop.producer.create()
            await shop.worker.claim()
            answer: Answer = await shop.worker.on(task, "nack", **fields)
            assert answer.good() == {"status": "requeued", "delaySeconds": 7}
        task = await shop.producer.create()
        for delay in (0, None):
            await shop.worker.claim()
            answer = await shop.worker.on(task, "nack", delaySeconds=delay)
        assert answer.good()["delaySeconds"] == 10


@on_sqlite
async def test_a_job_of_another_door_is_not_found_even_by_a_worker_of_the_same_name(shop: Shop) -> None:
    job_id = await shop.server.engine.submit(
        NewJob(shop.server.engine.new_id(), Queue("job", "acme", "q"), b"{}", max_attempts=2)
    )
    [job] = await shop.server.engine.claim((Queue("job", "acme", "q"),), "worker", 60)
    assert job.id == job_id.job_id
    for verb, body in VERBS:
        answer = await shop.worker.on({"id": job.id}, verb, **body)
        assert (answer.status, answer.json["error"]) in [(404, "not-found"), (404, "task not found")]
    assert await shop.server.engine.get(job.id) == job
