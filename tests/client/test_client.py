"""The calls of a client against the real server, and what it does when there is no answer."""

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from chargehand.app import Server
from chargehand.client import Client, ClientError, NewTask, SignatureError, verify_webhook
from chargehand.config import load_config
from chargehand.webhooks.signature import Keys, sign
from tests.api.serving import serving
from tests.client.stub import Stub, stub


@pytest.fixture
async def server(store_url: str) -> AsyncIterator[Server]:
    async with serving(store_url) as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url) as opened:
        yield opened


async def test_a_task_from_its_creation_to_its_result(client: Client) -> None:
    payload = {"file": "cat.mp4", "large": 2**63 - 1, "text": "ü <&>"}
    created = await client.create("render_video", payload, priority=7, max_attempts=2)
    assert (created.status, created.priority, created.payload) == ("PENDING", 7, payload)
    assert await client.result(created.id) is None

    task = await client.claim(["Render_Video"], lease_seconds=30)
    assert task is not None
    assert (task.id, task.status, task.attempts, task.max_attempts) == (created.id, "IN_PROGRESS", 1, 2)
    await client.heartbeat(task.id, 60, lease=task.lease)
    await client.progress(task.id, 40, "so far", {"frame": 12}, lease=task.lease)
    read = await client.get(task.id)
    assert read.progress is not None
    assert (read.progress.percent, read.progress.message, read.progress.data) == (40, "so far", {"frame": 12})

    await client.complete(task.id, {"ok": True}, lease=task.lease)
    ended = await client.result(task.id, wait_seconds=5)
    assert ended is not None
    assert (ended[0].status, ended[1].status, ended[1].result) == ("COMPLETED", "COMPLETED", {"ok": True})


async def test_nack_abandon_and_fail(client: Client) -> None:
    task_id = (await client.create("work", {}, max_attempts=5)).id

    async def claim() -> int:
        [task] = await client.claim_many(10, ["work"])
        assert task.id == task_id
        return task.lease

    await client.abandon(task_id, lease=await claim())
    assert (await client.get(task_id)).attempts == 0
    nacked = await client.nack(task_id, delay_seconds=0, reason="broken", lease=await claim())
    assert (nacked.status, nacked.delay_seconds) == ("requeued", 0)
    await client.fail(task_id, "for good", lease=await claim())
    ended = await client.result(task_id)
    assert ended is not None
    assert (ended[0].status, ended[0].attempts, ended[1].error) == ("FAILED", 2, "for good")


async def test_an_old_lease_is_refused_with_the_servers_words(client: Client) -> None:
    task_id = (await client.create("work", {})).id
    old = await client.claim(["work"])
    assert old is not None
    await client.abandon(task_id, lease=old.lease)
    assert await client.claim(["work"]) is not None
    with pytest.raises(ClientError, match="409 lease-lost") as refused:
        await client.complete(task_id, {}, lease=old.lease)
    assert (refused.value.status, refused.value.text, refused.value.lease_lost) == (409, "lease-lost", True)
    assert "somebody else has the task now" in refused.value.detail


async def test_keys_find_the_task_that_is_there(client: Client) -> None:
    first = await client.create("work", {"n": 1}, idempotency_key="order-1")
    assert (await client.create("work", {"n": 1}, idempotency_key="order-1")).id == first.id
    unique = await client.create("work", {}, unique_key="only")
    assert (await client.create("work", {}, unique_key="only")).id == unique.id != first.id


async def test_many_are_created_in_their_order_and_each_on_its_own(client: Client) -> None:
    made = await client.create_many([NewTask("work" if n != 120 else " ", n) for n in range(150)])
    assert [each.task.payload if each.task else None for each in made] == [*range(120), None, *range(121, 150)]
    assert made[120].error.startswith("invalid command")


async def test_a_task_for_later_is_not_claimed_now(client: Client) -> None:
    later = await client.create("work", {}, run_at=datetime.now(UTC) + timedelta(hours=1))
    delayed = await client.create("work", {}, delay_seconds=3600)
    assert later.run_at
    assert delayed.run_at
    assert await client.claim(["work"]) is None
    assert await client.claim_many(5, ["work"]) == []


async def test_a_cancelled_task_is_nobodys(client: Client) -> None:
    task_id = (await client.create("work", {})).id
    task = await client.claim(["work"])
    assert task is not None
    assert (await client.cancel(task_id)).status == "FAILED"
    with pytest.raises(ClientError) as refused:
        await client.heartbeat(task_id, 10, lease=task.lease)
    assert refused.value.lease_lost


async def test_what_is_not_there_is_said_in_the_servers_words(client: Client) -> None:
    with pytest.raises(ClientError, match="404") as refused:
        await client.get("there/is no such?task")
    assert refused.value.status == 404


# ── no answer ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def faulty() -> AsyncIterator[Stub]:
    async with stub() as running:
        yield running


async def test_an_answer_that_is_lost_is_asked_for_again_only_with_a_key(faulty: Stub) -> None:
    async with Client(faulty.url) as client:
        faulty.faults["tasks"] = ["drop"]
        with pytest.raises(ClientError, match="no answer") as lost:
            await client.create("work", {})
        assert (lost.value.status, lost.value.away, len(faulty.tasks)) == (0, True, 1)
        faulty.faults["tasks"] = ["drop"]
        await client.create("work", {}, idempotency_key="k")
        assert faulty.calls["tasks"] == 3


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_is_asked_again_when_it_says_so(faulty: Stub, status: int) -> None:
    faulty.faults["tasks"] = [status, status]
    async with Client(faulty.url) as client:
        await client.create("work", {})
    assert (faulty.calls["tasks"], len(faulty.tasks)) == (3, 1)


async def test_tries_have_an_end(faulty: Stub) -> None:
    faulty.faults["tasks"] = [429] * 10
    async with Client(faulty.url, retries=2) as client:
        with pytest.raises(ClientError, match="429 not now: a test"):
            await client.create("work", {})
    assert faulty.calls["tasks"] == 3


async def test_a_server_that_is_not_there_is_waited_for_whatever_is_asked(faulty: Stub) -> None:
    await faulty.stop()
    async with Client(faulty.url, retries=1) as client:
        since = time.monotonic()
        with pytest.raises(ClientError, match="the server cannot be reached"):
            await client.create("work", {})
        assert time.monotonic() - since >= 0.1
    await faulty.start()


async def test_url_and_token_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHARGEHAND_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("CHARGEHAND_TOKEN", "t")
    assert Client().url == "http://127.0.0.1:1"
    monkeypatch.delenv("CHARGEHAND_URL")
    assert Client().url == "http://127.0.0.1:8484"


def test_a_server_may_run_where_the_variables_of_clients_are_set() -> None:
    variables = ["URL", "TOKEN", "TASK_ID", "COMMAND", "ATTEMPT"]
    load_config(environ={f"CHARGEHAND_{name}": "x" for name in variables})


# ── webhooks ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("codeq_only", [False, True])
def test_a_webhook_is_believed_only_with_a_good_signature(codeq_only: bool) -> None:
    body = msgspec.json.encode({"taskId": "1"})
    headers: dict[str, Any] = sign("codeq", Keys("secret"), "id", 1000, body)
    if codeq_only:
        headers = {name: value for name, value in headers.items() if name.startswith("X-CodeQ")}
    assert verify_webhook("secret", headers, body, now=1010) == {"taskId": "1"}
    assert verify_webhook(["new", "secret"], headers, body, now=1010) == {"taskId": "1"}
    for secret, sent, now in [("other", body, 1010), ("secret", body + b" ", 1010), ("secret", body, 2000)]:
        with pytest.raises(SignatureError):
            verify_webhook(secret, headers, sent, now=now)
    with pytest.raises(SignatureError):
        verify_webhook("secret", {}, body, now=1010)
