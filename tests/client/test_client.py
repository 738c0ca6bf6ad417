"""The calls of a client against the real server, and against servers that do not answer."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from aiohttp import web
from multidict import CIMultiDict

from chargehand.app import Server
from chargehand.client import (
    AsyncClient,
    BadRequest,
    ClientError,
    NewTask,
    NoAnswer,
    NotDone,
    ServerFault,
    SignatureError,
    verify_webhook,
)
from chargehand.client.transport.backoff import pause
from chargehand.config import load_config
from chargehand.webhooks.signature import Dialect, Keys, sign
from tests.api.serving import serving
from tests.client.stub_server import Stub, stub


@pytest.fixture
async def server(store_url: str) -> AsyncIterator[Server]:
    async with serving(store_url) as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url) as opened:
        yield opened


async def test_a_task_from_its_creation_to_its_result(client: AsyncClient) -> None:
    payload = {"file": "cat.mp4", "large": 2**63 - 1, "text": "ü <&>"}
    created = await client.tasks.create("render_video", payload, priority=7, max_attempts=2)
    assert (created.status, created.priority, created.payload) == ("PENDING", 7, payload)
    assert await client.tasks.result(created.id) is None

    task = await client.tasks.claim(["Render_Video"], lease_seconds=30)
    assert task is not None
    assert (task.id, task.status, task.attempts, task.max_attempts) == (created.id, "IN_PROGRESS", 1, 2)
    await client.tasks.heartbeat(task.id, 60, lease=task.lease)
    await client.tasks.progress(task.id, 40, "so far", {"frame": 12}, lease=task.lease)
    read = await client.tasks.get(task.id)
    assert read.progress is not None
    assert (read.progress.percent, read.progress.message, read.progress.data) == (40, "so far", {"frame": 12})

    await client.tasks.complete(task.id, {"ok": True}, lease=task.lease)
    ended = await client.tasks.result(task.id, wait_seconds=5)
    assert ended is not None
    assert (ended[0].status, ended[1].status, ended[1].result) == ("COMPLETED", "COMPLETED", {"ok": True})


async def test_nack_abandon_and_fail(client: AsyncClient) -> None:
    task_id = (await client.tasks.create("work", {}, max_attempts=5)).id

    async def claim() -> int:
        [task] = await client.tasks.claim_many(10, ["work"])
        assert task.id == task_id
        return task.lease

    await client.tasks.abandon(task_id, lease=await claim())
    assert (await client.tasks.get(task_id)).attempts == 0
    nacked = await client.tasks.nack(task_id, delay_seconds=0, reason="broken", lease=await claim())
    assert (nacked.status, nacked.delay_seconds) == ("requeued", 0)
    await client.tasks.fail(task_id, "for good", lease=await claim())
    ended = await client.tasks.result(task_id)
    assert ended is not None
    assert (ended[0].status, ended[0].attempts, ended[1].error) == ("FAILED", 2, "for good")


async def test_an_old_lease_is_refused_with_the_servers_text(client: AsyncClient) -> None:
    task_id = (await client.tasks.create("work", {})).id
    old = await client.tasks.claim(["work"])
    assert old is not None
    await client.tasks.abandon(task_id, lease=old.lease)
    assert await client.tasks.claim(["work"]) is not None
    with pytest.raises(ClientError, match="409 lease-lost") as refused:
        await client.tasks.complete(task_id, {}, lease=old.lease)
    assert (refused.value.status, refused.value.text, refused.value.lease_lost) == (409, "lease-lost", True)
    assert "somebody else has the task now" in refused.value.detail


async def test_the_same_key_returns_the_same_task(client: AsyncClient) -> None:
    first = await client.tasks.create("work", {"n": 1}, idempotency_key="order-1")
    assert (await client.tasks.create("work", {"n": 1}, idempotency_key="order-1")).id == first.id
    unique = await client.tasks.create("work", {}, unique_key="only")
    assert (await client.tasks.create("work", {}, unique_key="only")).id == unique.id != first.id


async def test_tasks_of_a_batch_are_created_in_order_and_each_may_fail_alone(client: AsyncClient) -> None:
    made = await client.tasks.create_many([NewTask("work" if n != 120 else " ", n) for n in range(150)])
    assert [each.task.payload if each.task else None for each in made] == [*range(120), None, *range(121, 150)]
    assert made[120].error.startswith("invalid command")


async def test_a_task_for_later_is_not_claimed_now(client: AsyncClient) -> None:
    later = await client.tasks.create("work", {}, run_at=datetime.now(UTC) + timedelta(hours=1))
    delayed = await client.tasks.create("work", {}, delay_seconds=3600)
    assert later.run_at
    assert delayed.run_at
    assert await client.tasks.claim(["work"]) is None
    assert await client.tasks.claim_many(5, ["work"]) == []


async def test_a_cancelled_task_cannot_be_claimed_or_finished(client: AsyncClient) -> None:
    task_id = (await client.tasks.create("work", {})).id
    task = await client.tasks.claim(["work"])
    assert task is not None
    assert (await client.tasks.cancel(task_id)).status == "FAILED"
    with pytest.raises(ClientError) as refused:
        await client.tasks.heartbeat(task_id, 10, lease=task.lease)
    assert refused.value.lease_lost


async def test_an_unknown_task_raises_not_found_with_the_servers_text(client: AsyncClient) -> None:
    with pytest.raises(ClientError, match="404") as refused:
        await client.tasks.get("there/is no such?task")
    assert refused.value.status == 404


# ── no answer ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def faulty() -> AsyncIterator[Stub]:
    async with stub() as running:
        yield running


@pytest.mark.parametrize("given", ["", "mine"])
async def test_a_create_whose_answer_is_lost_is_repeated_with_the_same_key(faulty: Stub, given: str) -> None:
    faulty.faults["tasks"] = ["drop"]
    async with AsyncClient(faulty.url) as client:
        await client.tasks.create("work", {}, idempotency_key=given)
        await client.tasks.create("work", {}, idempotency_key=given)
    first, again, other = [body["idempotencyKey"] for word, body in faulty.bodies if word == "tasks"]
    assert first == again != ""
    assert (first == given) == (other == given) == bool(given)


async def test_an_error_says_that_an_earlier_try_may_have_arrived_though_the_last_did_not() -> None:
    async def hear_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        listener.close()
        writer.close()

    listener = await asyncio.start_server(hear_once, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with AsyncClient(f"http://127.0.0.1:{port}", retries=1) as client:
        with pytest.raises(NoAnswer, match="cannot be reached") as lost:
            await client.tasks.create("work", {})
        with pytest.raises(NoAnswer, match="cannot be reached") as never_left:
            await client.tasks.create("work", {})
    assert (lost.value.sent, never_left.value.sent) == (True, False)
    assert "may have done it" in lost.value.advice


async def test_a_call_that_is_not_idempotent_is_not_repeated(faulty: Stub) -> None:
    faulty.faults["claim"] = ["drop"]
    async with AsyncClient(faulty.url) as client:
        with pytest.raises(NoAnswer, match="no answer") as lost:
            await client.tasks.claim(["work"])
    assert (lost.value.status, lost.value.away, lost.value.sent, faulty.calls["claim"]) == (0, True, True, 1)
    assert "may have done it" in lost.value.advice
    assert lost.value.__notes__ == [lost.value.advice]


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_is_called_again_after_the_pause_that_it_asks_for(faulty: Stub, status: int) -> None:
    faulty.faults["tasks"] = [status, status]
    async with AsyncClient(faulty.url) as client:
        await client.tasks.create("work", {})
    assert (faulty.calls["tasks"], len(faulty.tasks)) == (3, 1)


async def test_a_call_gives_up_after_its_retries(faulty: Stub) -> None:
    faulty.faults["tasks"] = [429] * 10
    async with AsyncClient(faulty.url, retries=2) as client:
        with pytest.raises(ClientError, match="429 not now: a test"):
            await client.tasks.create("work", {})
    assert faulty.calls["tasks"] == 3


async def test_any_call_is_repeated_while_the_connection_is_refused(faulty: Stub) -> None:
    await faulty.stop()
    async with AsyncClient(faulty.url, retries=1) as client:
        since = time.monotonic()
        with pytest.raises(ClientError, match="the server cannot be reached"):
            await client.tasks.create("work", {})
        assert time.monotonic() - since >= 0.1
    await faulty.start()


async def test_an_answer_without_an_end_does_not_fill_the_memory(faulty: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chargehand.client.transport.http.MAX_ANSWER", 1000)
    async with AsyncClient(faulty.url, retries=0) as client:
        small = await client.tasks.create("work", "x" * 500)
        assert (await client.tasks.get(small.id)).payload == "x" * 500
        with pytest.raises(ServerFault, match="too large"):
            await client.tasks.create("work", "x" * 1000)


@asynccontextmanager
async def answering(*answers: web.Response | None) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that gives these answers in turn to any request; None: it hangs up. After the last it does not answer."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.method)
        if len(asked) > len(answers):
            await asyncio.Event().wait()
        if (given := answers[len(asked) - 1]) is None:
            assert request.transport is not None
            request.transport.abort()
        return given or web.Response()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


CANCELS: dict[str, Callable[[AsyncClient], Awaitable[object]]] = {
    "task": lambda client: client.tasks.cancel("1"),
    "model": lambda client: client.cancel("1"),
    "engine": lambda client: client.engine.cancel("1"),
    "machine": lambda client: client.provisioning.cancel("1"),
    "server": lambda client: client.provisioning.remove_server("1"),
}


@pytest.mark.parametrize("cancel", CANCELS.values(), ids=CANCELS)
async def test_a_cancel_whose_answer_is_lost_is_not_sent_again(
    cancel: Callable[[AsyncClient], Awaitable[object]],
) -> None:
    async with answering(None, None, None) as (url, asked), AsyncClient(url) as client:
        with pytest.raises(NoAnswer, match="no answer"):
            await cancel(client)
        assert len(asked) == 1


async def test_a_wait_for_a_task_survives_a_restart_of_the_server() -> None:
    ended = {"task": {"id": "1", "status": "FAILED"}, "result": {"taskId": "1", "status": "FAILED", "error": "no"}}
    answers = [
        None,
        None,  # aiohttp itself sends a GET a second time
        web.json_response({"error": "stopping"}, status=503, headers={"Retry-After": "0"}),
        web.json_response({"error": "result not found"}, status=404),
        web.json_response(ended),
    ]
    async with answering(*answers) as (url, asked), AsyncClient(url, retries=0) as client:
        _, result = await client.tasks.wait("1", timeout=20)
        assert (result.error, len(asked)) == ("no", 5)
    async with (
        answering(web.json_response({"error": "task not found"}, status=404)) as (url, _),
        AsyncClient(url) as client,
    ):
        with pytest.raises(ClientError, match="404"):
            await client.tasks.wait("1", timeout=20)


WAITS: dict[str, Callable[[AsyncClient], Awaitable[object]]] = {
    "task": lambda client: client.tasks.wait("1", timeout=0.1),
    "model": lambda client: client.wait("1", timeout=0.1),
    "engine": lambda client: client.engine.wait("1", timeout=0.1),
    "machine": lambda client: client.provisioning.wait("1", timeout=0.1),
}


@pytest.fixture(params=["silent", "gone"])
def nobody(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server that accepts connections and never answers, or of one that is not running."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        if request.param == "gone":
            listening.close()
            yield "http://127.0.0.1:1"
        else:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
async def test_a_wait_ends_at_its_timeout_though_the_server_does_not_answer(
    nobody: str, wait: Callable[[AsyncClient], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chargehand.client.transport.calls.LAST_READ_SECONDS", 0.1)
    async with AsyncClient(nobody) as client, asyncio.timeout(5):
        with pytest.raises(NotDone, match=r"(?i)unknown") as waited:
            await wait(client)
    job = waited.value.job
    assert (job.job_id if hasattr(job, "job_id") else job.id) == "1"


async def test_a_chat_whose_server_falls_silent_keeps_the_id_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chargehand.client.transport.calls.LAST_READ_SECONDS", 0.1)
    job = {"id": "17", "state": "working"}
    for answers in [[], [web.json_response(job)]]:
        made = web.json_response({"job_id": "17"}, status=202)
        async with answering(made, *answers) as (url, _), AsyncClient(url) as client, asyncio.timeout(5):
            with pytest.raises(NotDone, match="working" if answers else "unknown") as waited:
                await client.chat("a", "go", timeout=0.3)
        assert waited.value.job.id == "17"


async def test_a_token_from_a_file_may_have_a_line_break_at_its_end(faulty: Stub) -> None:
    async with AsyncClient(faulty.url, " token\n") as client:
        assert (await client.tasks.create("work", {})).status == "PENDING"


async def test_a_token_or_key_with_a_control_character_raises_a_client_error(faulty: Stub) -> None:
    async with AsyncClient(faulty.url, "to\nken") as client:
        with pytest.raises(BadRequest, match="Authorization cannot be sent"):
            await client.tasks.create("work", {})
    async with AsyncClient(faulty.url) as client:
        with pytest.raises(BadRequest, match="Idempotency-Key cannot be sent"):
            await client.submit("a", "go", idempotency_key="order\r\n17")
    assert faulty.calls == {}


def test_the_pause_that_a_server_asks_for_is_bounded() -> None:
    assert pause(0, lambda: 0.0) == pause(0, lambda: 0.0, asked=0) == 0.1
    assert pause(3, lambda: 0.0, asked=7) == 7
    assert pause(3, lambda: 0.0, asked=999_999_999) == 60


async def test_url_and_token_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHARGEHAND_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("CHARGEHAND_TOKEN", "t")
    assert AsyncClient().url == "http://127.0.0.1:1"
    monkeypatch.delenv("CHARGEHAND_URL")
    assert AsyncClient().url == "http://127.0.0.1:8484"


def test_a_server_may_run_where_the_variables_of_clients_are_set() -> None:
    variables = ["URL", "TOKEN", "TASK_ID", "COMMAND", "ATTEMPT"]
    load_config(environ={f"CHARGEHAND_{name}": "x" for name in variables})


# ── webhooks ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("codeq_only", [False, True])
def test_a_webhook_is_accepted_only_with_a_good_signature(codeq_only: bool) -> None:
    body = msgspec.json.encode({"taskId": "1"})
    headers: dict[str, Any] = sign("codeq", Keys("secret"), "id", 1000, body)
    dialect: Dialect = "standard"
    if codeq_only:
        headers = {name: value for name, value in headers.items() if name.startswith("X-CodeQ")}
        dialect = "codeq"
    assert verify_webhook("secret", headers, body, dialect=dialect, now=1010) == {"taskId": "1"}
    assert verify_webhook(["new", "secret"], headers, body, dialect=dialect, now=1010) == {"taskId": "1"}
    for secret, sent, now in [("other", body, 1010), ("secret", body + b" ", 1010), ("secret", body, 2000)]:
        with pytest.raises(SignatureError):
            verify_webhook(secret, headers, sent, dialect=dialect, now=now)
    with pytest.raises(SignatureError):
        verify_webhook("secret", {}, body, dialect=dialect, now=1010)


def test_a_recorded_webhook_is_not_accepted_under_another_id() -> None:
    seen = sign("codeq", Keys("secret"), "id", 1000, b"{}")
    assert verify_webhook("secret", seen, b"{}", now=1010) == {}
    with pytest.raises(SignatureError, match="no signature matches"):
        verify_webhook("secret", {**seen, "webhook-id": "another"}, b"{}", now=1010)
    without = {name: value for name, value in seen.items() if name != "webhook-signature"}
    for headers in (without, {**without, "webhook-id": "another"}):
        with pytest.raises(SignatureError, match="webhook-signature is missing"):
            verify_webhook("secret", headers, b"{}", now=1010)
    for twice in (
        CIMultiDict([("Webhook-Id", "another"), *seen.items()]),
        CIMultiDict([*seen.items(), ("Webhook-Id", "another")]),
    ):
        with pytest.raises(SignatureError, match="two headers webhook-id"):
            verify_webhook("secret", twice, b"{}", now=1010)
