"""One delivery, from its signature to its final state. For concurrency and order see test_lanes."""

import asyncio
import base64
import gzip
import hashlib
import hmac
import io
import json
import logging
import resource
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from chargehand.engine.delivery import DeliveryState, EndpointState, Take, endpoint_id
from chargehand.engine.guard import Guard
from chargehand.engine.job import SECOND, NewJob, Report
from chargehand.engine.moves import Broke
from chargehand.engine.queue import Queue
from chargehand.engine.store import Store
from chargehand.http.credentials import hash_password, hash_token, new_token, new_webhook_secret
from chargehand.observability.logs import configure_logs
from chargehand.store import open_store
from chargehand.webhooks.signature import standard_secret
from tests.api.serving import on_sqlite, serving, talking, until
from tests.conftest import Clock
from tests.store.given import get_endpoint
from tests.webhooks.desk import QUEUE, OpenDesk
from tests.webhooks.receiver import Hook, Receiver, Reply, after, answer, hang, raw, reset

SECRET = "whsec_" + base64.b64encode(b"the key that signs").decode()
OLD_SECRET = "the secret before, which is plain text"


def hmac_hex(signed: bytes) -> str:
    return hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()


def verify(hook: Hook, secret: str = SECRET) -> Any:
    return Webhook(standard_secret(secret)).verify(hook.body, dict(hook.headers))


# ── signed ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dialect", ["standard", "foreman", "codeq"])
async def test_every_dialect_is_verified_by_a_standard_webhooks_library(
    open_desk: OpenDesk, receiver: Receiver, dialect: str
) -> None:
    desk = open_desk(secret=SECRET)
    job_id = await desk.submit(receiver.url(), dialect=dialect)
    delivery = await desk.delivered(job_id)
    [hook] = receiver.hooks
    assert verify(hook)["data"]["job_id"] == job_id
    assert hook.id == delivery.id
    assert hook.headers["content-type"] == "application/json"
    assert (hook.job_id, hook.headers["X-Chargehand-Sequence"]) == (job_id, "1")


@on_sqlite
async def test_foreman_signs_the_body(open_desk: OpenDesk, receiver: Receiver) -> None:
    desk = open_desk(secret=SECRET)
    await desk.delivered(await desk.submit(receiver.url(), dialect="foreman"))
    [hook] = receiver.hooks
    assert hook.headers["X-Foreman-Signature"] == "sha256=" + hmac_hex(hook.body)


@on_sqlite
async def test_codeq_signs_the_timestamp_and_the_body(open_desk: OpenDesk, receiver: Receiver) -> None:
    desk = open_desk(secret=SECRET)
    await desk.delivered(await desk.submit(receiver.url(), dialect="codeq"))
    [hook] = receiver.hooks
    stamp = hook.headers["X-CodeQ-Timestamp"]
    assert abs(int(stamp) - time.time()) < 5
    assert hook.headers["X-CodeQ-Signature"] == hmac_hex(stamp.encode() + b"." + hook.body)


@on_sqlite
async def test_while_a_secret_is_replaced_both_the_old_and_the_new_one_verify(
    open_desk: OpenDesk, receiver: Receiver
) -> None:
    desk = open_desk(secret=SECRET, previous_secret=OLD_SECRET)
    await desk.delivered(await desk.submit(receiver.url()))
    [hook] = receiver.hooks
    verify(hook, SECRET)
    verify(hook, OLD_SECRET)
    with pytest.raises(WebhookVerificationError):
        verify(hook, "a third one")


@on_sqlite
async def test_webhooks_of_a_tenant_with_its_own_secret_are_signed_only_with_that(
    open_desk: OpenDesk, receiver: Receiver
) -> None:
    desk = open_desk(secret=SECRET, tenants={"acme": {"secret": "the secret of acme"}})
    await desk.delivered(await desk.submit(receiver.url("/acme"), tenant="acme"))
    await desk.delivered(await desk.submit(receiver.url("/other"), tenant="other"))
    [acme], [other] = receiver.at("/acme"), receiver.at("/other")
    verify(acme, "the secret of acme")
    verify(other, SECRET)
    for hook, wrong in ((acme, SECRET), (other, "the secret of acme")):
        with pytest.raises(WebhookVerificationError):
            verify(hook, wrong)


@on_sqlite
@pytest.mark.parametrize("dialect", ["standard", "foreman", "codeq"])
async def test_without_a_secret_nothing_is_signed(open_desk: OpenDesk, receiver: Receiver, dialect: str) -> None:
    desk = open_desk()
    delivery = await desk.delivered(await desk.submit(receiver.url(), dialect=dialect))
    [hook] = receiver.hooks
    assert hook.id == delivery.id
    assert not [name for name in hook.headers if "signature" in name.lower()]


async def test_every_try_has_the_same_id_and_body_and_its_own_timestamp(
    open_desk: OpenDesk, receiver: Receiver
) -> None:
    receiver.script.append(answer(500))
    desk = open_desk(secret=SECRET)
    job_id = await desk.submit(receiver.url())
    await desk.tried(job_id)
    stamp = int(receiver.hooks[0].headers["webhook-timestamp"])
    await until(lambda: int(time.time()) > stamp)
    desk.clock.advance(60)
    await desk.delivered(job_id)
    first, second = receiver.hooks
    assert (first.id, first.body) == (second.id, second.body)
    assert int(second.headers["webhook-timestamp"]) > stamp
    assert [hook.headers["X-Chargehand-Attempt"] for hook in (first, second)] == ["1", "2"]
    verify(first)
    verify(second)


async def test_every_try_has_the_same_body_even_if_the_job_has_changed(open_desk: OpenDesk, receiver: Receiver) -> None:
    receiver.script.append(answer(500))
    desk = open_desk(secret=SECRET)
    job_id = await desk.submit(receiver.url(), on=("failed",))
    [job] = await desk.engine.claim((QUEUE,), "worker", 60)
    await desk.engine.broke(Guard.held(job), Broke("it is broken", final=True))
    await desk.tried(job_id)
    await desk.engine.requeue(Guard.seen(job))
    desk.clock.advance(60)
    await desk.delivered(job_id)
    first, second = receiver.hooks
    assert json.loads(first.body)["data"]["error"] == "it is broken"
    assert second.body == first.body


@on_sqlite
async def test_a_url_is_called_as_it_was_given(open_desk: OpenDesk, receiver: Receiver) -> None:
    desk = open_desk()
    target = "/a%2Fb/%7Ec?signature=x%2Fy%3D%2B&d=1+2&e=%e2%82%ac"
    await desk.delivered(await desk.submit(receiver.url(target)))
    assert [hook.target for hook in receiver.hooks] == [target]


# ── retries ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_delivery_is_retried_with_full_jitter_until_it_is_accepted(
    open_desk: OpenDesk, receiver: Receiver
) -> None:
    desk = open_desk(max_attempts=20, backoff_base_seconds=10, backoff_max_seconds=100)
    receiver.script.extend([answer(500)] * 10)
    job_id = await desk.submit(receiver.url())
    shares = []
    for times, most in enumerate((10, 20, 40, 80, 100, 100, 100, 100, 100, 100), start=1):
        delivery = await desk.tried(job_id, times)
        assert delivery.state is DeliveryState.PENDING
        pause = (delivery.due_at - desk.clock.now) / SECOND
        assert 0 <= pause <= most
        shares.append(pause / most)
        desk.clock.now = delivery.due_at
    assert min(shares) < 0.4
    assert max(shares) > 0.6
    delivery = await desk.delivered(job_id)
    assert delivery.tries == len(receiver.hooks) == 11


async def test_a_report_may_set_its_own_retry_schedule(open_desk: OpenDesk, receiver: Receiver) -> None:
    desk = open_desk(max_attempts=20)
    receiver.otherwise = answer(500)
    job_id = await desk.submit(receiver.url(), max_attempts=2, backoff_base_seconds=1000.0, backoff_max_seconds=2000.0)
    delivery = await desk.tried(job_id)
    assert 0 < delivery.due_at - desk.clock.now <= 1000 * SECOND
    desk.clock.advance(1001)
    assert (await desk.dead(job_id)).reason == "gave up after 2 tries: answered 500"


@on_sqlite
@pytest.mark.parametrize(("asked", "given"), [("7", 7), ("0", 0), ("86400", 90)])
async def test_retry_after_is_honoured_up_to_the_longest_pause(
    open_desk: OpenDesk, receiver: Receiver, asked: str, given: int
) -> None:
    desk = open_desk(backoff_base_seconds=0, backoff_max_seconds=90)
    receiver.script.append(answer(503, {"Retry-After": asked}))
    job_id = await desk.submit(receiver.url())
    if given:
        assert (await desk.tried(job_id)).due_at == desk.clock.now + given * SECOND
        desk.clock.advance(given)
    await desk.delivered(job_id)


async def test_retry_after_pauses_the_whole_endpoint_and_no_other(open_desk: OpenDesk, receiver: Receiver) -> None:
    desk = open_desk(backoff_base_seconds=0)
    receiver.script.append(answer(429, {"Retry-After": "60"}))
    await desk.tried(await desk.submit(receiver.url()))
    later = await desk.submit(receiver.url())
    desk.clock.advance(59)
    await desk.settle_down(receiver, receiver.url())
    assert len(receiver.at("/hook")) == 1
    desk.clock.advance(1)
    await desk.delivered(later)


@on_sqlite
@pytest.mark.parametrize("value", ["Wed, 21 Oct 2026 07:28:00 GMT", "soon", "-1", "\u00b2", "9" * 5000])
@pytest.mark.parametrize("status", [200, 503])
async def test_a_retry_after_that_is_not_a_number_of_seconds_is_ignored(
    open_desk: OpenDesk, receiver: Receiver, status: int, value: str
) -> None:
    desk = open_desk(backoff_base_seconds=0)
    receiver.script.append(answer(status, {"Retry-After": value}))
    delivery = await desk.delivered(await desk.submit(receiver.url()))
    tries = await desk.store.list_tries(delivery.id)
    assert [made.status for made in reversed(tries)] == ([200] if status == 200 else [503, 200])


@on_sqlite
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_failure_and_its_target_is_never_called(
    open_desk: OpenDesk, receiver: Receiver, status: int
) -> None:
    desk = open_desk(backoff_base_seconds=0, max_attempts=2)
    receiver.otherwise = answer(status, {"Location": receiver.url("/target")})
    delivery = await desk.dead(await desk.submit(receiver.url()))
    reason = f"answered {status}: redirects are not followed; register the final URL"
    assert delivery.reason == f"gave up after 2 tries: {reason}"
    assert {hook.path for hook in receiver.hooks} == {"/hook"}


@on_sqlite
@pytest.mark.parametrize(
    ("broken", "error"),
    [
        pytest.param(reset, "closed the connection", id="reset"),
        pytest.param(raw(b""), "closed the connection", id="closed"),
        pytest.param(raw(b"SSH-2.0-OpenSSH_9.6\r\n"), "is not HTTP", id="another protocol"),
        pytest.param(raw(b"HTTP/1.1 200 OK\r\nContent-Length: no\r\n\r\n"), "is not HTTP", id="bad length"),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000), "the head of the answer is over", id="header without end"
        ),
        pytest.param(raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12"), "", id="body cut short"),
    ],
)
async def test_a_delivery_is_retried_after_a_broken_or_malformed_answer(
    open_desk: OpenDesk, receiver: Receiver, broken: Reply, error: str
) -> None:
    desk = open_desk(backoff_base_seconds=0)
    receiver.script.append(broken)
    delivery = await desk.delivered(await desk.submit(receiver.url()))
    *_, first = await desk.store.list_tries(delivery.id)
    if error:
        assert error in first.error
        assert first.status is None


@on_sqlite
async def test_a_delivery_is_retried_if_the_receiver_cannot_be_reached(open_desk: OpenDesk, receiver: Receiver) -> None:
    desk = open_desk(backoff_base_seconds=0, max_attempts=2)
    with_nobody_there = receiver.url().replace(str(receiver.port), "9")  # discard: no server listens there
    delivery = await desk.dead(await desk.submit(with_nobody_there))
    assert delivery.reason.startswith("gave up after 2 tries: cannot connect to 127.0.0.1:9: ")


@on_sqlite
async def test_a_try_without_an_answer_times_out(open_desk: OpenDesk, receiver: Receiver) -> None:
    desk = open_desk(timeout_seconds=0.1, backoff_base_seconds=0)
    receiver.script.append(hang)
    delivery = await desk.delivered(await desk.submit(receiver.url()))
    *_, first = await desk.store.list_tries(delivery.id)
    assert first.error == "no answer within 0.1 s"


@on_sqlite
async def test_a_try_with_a_slow_answer_times_out(open_desk: OpenDesk, receiver: Receiver) -> None:
    async def drip(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        return await hang(request)

    desk = open_desk(timeout_seconds=0.1, max_attempts=1)
    receiver.otherwise = drip
    assert "no answer within 0.1 s" in (await desk.dead(await desk.submit(receiver.url()))).reason


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@on_sqlite
async def test_only_the_beginning_of_an_endless_answer_is_read(open_desk: OpenDesk, receiver: Receiver) -> None:
    sent = 0
    hung_up = asyncio.Event()

    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"\x00more" * 13_000)
                sent += 65_000
        finally:
            hung_up.set()

    desk = open_desk(answer_bytes=100)
    receiver.script.append(endless)
    delivery = await desk.delivered(await desk.submit(receiver.url()))
    [made] = await desk.store.list_tries(delivery.id)
    assert made.answer == "\ufffdmore" * 20
    async with asyncio.timeout(5):
        await hung_up.wait()
    assert sent < 16 << 20  # the size of the buffers of two sockets


@pytest.mark.parametrize(
    "piece",
    [
        b"X-More: more\r\n" * 4000,  # headers without end
        b"x" * 65_000,  # one header without end
        b"HTTP/1.1 102 Processing\r\n\r\n" * 2000,  # interim answers (1xx)
    ],
    ids=["many", "long", "processing"],
)
@on_sqlite
async def test_a_head_without_end_is_cut_off(open_desk: OpenDesk, receiver: Receiver, piece: bytes) -> None:
    hung_up = asyncio.Event()

    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        transport = request.transport
        transport.write(b"" if piece.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\nX-Long: ")
        try:
            while not transport.is_closing():
                transport.write(piece)
                while transport.get_write_buffer_size() and not transport.is_closing():  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.001)
        finally:
            hung_up.set()
        return web.Response()

    desk = open_desk(max_attempts=1, timeout_seconds=1)
    receiver.otherwise = endless
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    delivery = await desk.dead(await desk.submit(receiver.url()))
    async with asyncio.timeout(10):
        await hung_up.wait()
    assert delivery.reason.startswith("gave up after 1 tries: ")
    assert len(delivery.reason) < 1000
    assert time.monotonic() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


@on_sqlite
async def test_a_compressed_answer_is_not_decompressed(open_desk: OpenDesk, receiver: Receiver) -> None:
    bomb = gzip.compress(bytes(64 << 20), compresslevel=1)
    receiver.otherwise = answer(200, {"Content-Encoding": "gzip"}, bomb)
    desk = open_desk(answer_bytes=1024)
    tracemalloc.start()
    try:
        delivery = await desk.delivered(await desk.submit(receiver.url()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    [made] = await desk.store.list_tries(delivery.id)
    assert len(made.answer) <= 1024
    assert peak < 8 << 20


async def test_an_internal_error_is_recorded_with_the_try_and_does_not_open_the_breaker(
    open_desk: OpenDesk, receiver: Receiver
) -> None:
    desk = open_desk(breaker_failures=2, max_attempts=1)
    report = Report(receiver.url(), endpoint_id("default", receiver.url()))
    jobs = [
        NewJob(desk.engine.new_id(), Queue("unknown", "default", "q"), b"null", reports=(report,)) for _ in range(4)
    ]
    for job in jobs:
        await desk.engine.submit(job)
        delivery = await desk.dead(job.id)
        assert delivery.reason == "gave up after 1 tries: internal: KeyError"
    await desk.delivered(await desk.submit(receiver.url()))


# ── the end of a delivery, and after it ───────────────────────────────────────────────────────────────────────────────


async def test_a_delivery_is_dead_after_its_last_try_and_can_be_replayed_with_the_same_id(
    open_desk: OpenDesk, receiver: Receiver
) -> None:
    desk = open_desk(max_attempts=3, backoff_base_seconds=0)
    receiver.otherwise = answer(500, body=b"out of order")
    job_id = await desk.submit(receiver.url())
    delivery = await desk.dead(job_id)
    assert delivery.reason == "gave up after 3 tries: answered 500"
    tries = await desk.store.list_tries(delivery.id)
    assert [(made.number, made.status, made.answer) for made in tries] == [
        (3, 500, "out of order"),
        (2, 500, "out of order"),
        (1, 500, "out of order"),
    ]

    receiver.otherwise = answer(204)
    assert await desk.outbox.replay_delivery(delivery)
    assert (await desk.delivered(job_id)).tries == 4
    assert len({hook.id for hook in receiver.hooks}) == 1


async def test_all_dead_deliveries_of_an_endpoint_can_be_replayed_at_once(
    open_desk: OpenDesk, receiver: Receiver
) -> None:
    desk = open_desk(max_attempts=1)
    receiver.otherwise = answer(500)
    jobs = [await desk.submit(receiver.url()) for _ in range(5)]
    [await desk.dead(job_id) for job_id in jobs]
    elsewhere = await desk.submit(receiver.url("/elsewhere"))
    await desk.dead(elsewhere)
    receiver.otherwise = answer(200)
    endpoint = await get_endpoint(desk.store, endpoint_id("default", receiver.url()))
    assert endpoint is not None
    assert await desk.outbox.replay_endpoint(endpoint) == 5
    [await desk.delivered(job_id) for job_id in jobs]
    assert (await desk.delivery(elsewhere)).state is DeliveryState.DEAD


async def test_410_gone_disables_the_endpoint_and_holds_later_deliveries_until_it_is_resumed(
    open_desk: OpenDesk, receiver: Receiver
) -> None:
    desk = open_desk()
    receiver.script.append(answer(410))
    first = await desk.dead(await desk.submit(receiver.url()))
    assert first.reason == "the endpoint answered 410 Gone and is disabled"
    endpoint = await get_endpoint(desk.store, first.endpoint_id)
    assert endpoint is not None
    assert (endpoint.state, endpoint.reason) == (EndpointState.DISABLED, first.reason)

    held = await desk.submit(receiver.url())
    await desk.settle_down(receiver, receiver.url())
    assert len(receiver.at("/hook")) == 1
    assert (await desk.delivery(held)).state is DeliveryState.PENDING

    await desk.outbox.resume_endpoint(endpoint)
    await desk.delivered(held)


async def test_410_gone_stops_deliveries_that_were_already_taken(open_desk: OpenDesk, receiver: Receiver) -> None:
    desk = open_desk(max_in_flight_per_endpoint=1)
    go_on = asyncio.Event()
    receiver.script.append(after(go_on, answer(410)))
    first = await desk.submit(receiver.url())
    await until(lambda: receiver.hooks)
    others = [await desk.submit(receiver.url()) for _ in range(5)]
    go_on.set()
    await desk.dead(first)
    await desk.settle_down(receiver, receiver.url())
    assert [hook.job_id for hook in receiver.at("/hook")] == [first]
    assert {(await desk.delivery(job_id)).state for job_id in others} == {DeliveryState.PENDING}


async def test_a_paused_endpoint_receives_nothing_until_it_is_resumed(tmp_path: Path, receiver: Receiver) -> None:
    settings = {"webhooks.max_in_flight_per_endpoint": 1}
    async with serving(f"sqlite:///{tmp_path}/jobs.db", settings) as server, talking(server) as api:
        go_on = asyncio.Event()
        receiver.script.append(after(go_on, answer(200)))
        jobs = [await api.submit(webhook={"url": receiver.url()}) for _ in range(5)]
        await until(lambda: receiver.hooks)
        place = f"/engine/endpoints/{endpoint_id('default', receiver.url())}"
        paused = (await api.post(f"{place}/pause")).good()
        assert (paused["state"], paused["reason"]) == ("paused", "paused by anonymous")

        go_on.set()
        for _ in range(3):  # deliveries to another path still arrive
            before = len(receiver.at("/elsewhere"))
            await api.submit(webhook={"url": receiver.url("/elsewhere")})
            await until(lambda before=before: len(receiver.at("/elsewhere")) > before)  # type: ignore[misc]
        assert len(receiver.at("/hook")) == 1

        assert (await api.post(f"{place}/resume")).good()["state"] == "active"
        await until(lambda: {hook.job_id for hook in receiver.at("/hook")} == set(jobs))


async def test_a_delivery_that_is_too_old_is_dead(tmp_path: Path, receiver: Receiver) -> None:
    settings = {
        "webhooks.give_up_seconds": 0.3,
        "webhooks.timeout_seconds": 0.2,
        "webhooks.max_attempts": 1000,
        "retention.interval_seconds": 0.05,
    }
    receiver.otherwise = answer(500)
    async with serving(f"sqlite:///{tmp_path}/jobs.db", settings) as server, talking(server) as api:
        job_id = await api.submit(webhook={"url": receiver.url()})
        [delivery] = await api.deliveries(f"job={job_id}&state=dead")
        assert delivery["reason"] == "gave up: not delivered within 0 s"


# ── senders that crash ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_delivery_that_was_taken_and_never_settled_is_taken_again_after_its_lease(
    open_desk: OpenDesk, receiver: Receiver, store: Store, clock: Clock
) -> None:
    target = endpoint_id("default", receiver.url())
    report = Report(receiver.url(), target)
    job = NewJob("01M7GN7MRA74BM74N1QCQJG1JM", QUEUE, b"null", reports=(report,))
    await store.write(job)
    taken = await store.write(Take(target, 10, lease_seconds=60))
    assert len(taken.ids) == 1
    desk = open_desk(poll_seconds=3600)  # only now, because it polls as soon as it runs
    clock.advance(59)
    await desk.settle_down(receiver, receiver.url())
    assert not receiver.at("/hook")
    clock.advance(1)
    desk.outbox.nudge(target)
    await desk.delivered(job.id)


async def test_a_restart_on_sqlite_frees_the_leases_of_the_previous_process(tmp_path: Path, receiver: Receiver) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    target = endpoint_id("default", receiver.url())
    store = await open_store(url)
    report = Report(receiver.url(), target)
    await store.write(NewJob("01M7GN7MRA74BM74N1QCQJG1JM", QUEUE, b"null", reports=(report,)))
    taken = await store.write(Take(target, 10, lease_seconds=3600))
    await store.close()
    async with serving(url):
        await until(lambda: receiver.hooks)
    assert receiver.hooks[0].id == taken.ids[0]


# ── forbidden addresses ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_forbidden_address_is_never_connected_to(tmp_path: Path, receiver: Receiver, host: str) -> None:
    token = new_token()
    settings = {
        "server.listen": "0.0.0.0:0",
        "auth.tokens": [{"name": "me", "hash": hash_token(token)}],
        "webhooks.allow_networks": [],
    }
    async with serving(f"sqlite:///{tmp_path}/jobs.db", settings) as server, talking(server, token) as api:
        url = receiver.url(host=host)
        refused = await api.post("/engine/jobs", {"queue": "q", "payload": 1, "webhook": {"url": url}})
        assert "loopback or private" in refused.problem(422, "egress.refused", "webhook.url")["detail"]

        # As if the name had resolved elsewhere when the job was submitted.
        report = Report(url, endpoint_id("default", url))
        job = NewJob(server.engine.new_id(), QUEUE, b"null", reports=(report,))
        await server.engine.submit(job)
        [delivery] = await api.deliveries(f"job={job.id}&state=dead")
        assert delivery["reason"].startswith("refused by policy: ")
        assert "loopback or private" in delivery["reason"]
        assert delivery["tries"] == 1
    assert receiver.connections == 0


async def test_allow_networks_permits_a_private_network(tmp_path: Path, receiver: Receiver) -> None:
    token = new_token()
    settings = {
        "server.listen": "0.0.0.0:0",
        "auth.tokens": [{"name": "me", "hash": hash_token(token)}],
        "webhooks.allow_networks": ["127.0.0.0/8"],
    }
    async with serving(f"sqlite:///{tmp_path}/jobs.db", settings) as server, talking(server, token) as api:
        await api.submit(webhook={"url": receiver.url()})
        await until(lambda: receiver.hooks)


# ── what logs and views show ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_webhook_carries_the_trace_of_the_request_that_submitted_the_job(
    tmp_path: Path, receiver: Receiver
) -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=opaque"}
    async with serving(f"sqlite:///{tmp_path}/jobs.db") as server, talking(server) as api:
        job = {"queue": "q", "payload": 1, "webhook": {"url": receiver.url()}}
        (await api.post("/engine/jobs", job, trace)).good(202)
        await until(lambda: receiver.hooks)
    assert {name: receiver.hooks[0].headers[name] for name in trace} == trace


async def test_no_view_shows_the_query_of_a_url(tmp_path: Path, receiver: Receiver) -> None:
    settings = {"webhooks.max_attempts": 1}
    nonsense = [raw(b"nonsense\r\n\r\n"), raw(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n")]
    receiver.script.extend([answer(200), answer(500), answer(302, {"Location": "/"}), reset, *nonsense])
    async with serving(f"sqlite:///{tmp_path}/jobs.db", settings) as server, talking(server) as api:
        for number in range(6):
            job_id = await api.submit(webhook={"url": receiver.url(f"/{number}?token=hush")})
            await api.deliveries(f"job={job_id}&state={'dead' if number else 'delivered'}")
        assert [hook.target for hook in receiver.hooks] == [f"/{number}?token=hush" for number in range(6)]
        deliveries = await api.deliveries("", 6)
        assert {delivery["url"] for delivery in deliveries} == {receiver.url(f"/{number}") for number in range(6)}
        views = ["/engine/deliveries", "/engine/endpoints", "/engine/jobs", "/metrics"]
        for delivery in deliveries:
            views += [f"/engine/deliveries/{delivery['id']}", f"/engine/endpoints/{delivery['endpoint_id']}"]
            views += [f"/engine/jobs/{delivery['job_id']}", f"/engine/jobs/{delivery['job_id']}/events"]
        assert [view for view in views if b"hush" in (await api.get(view)).body] == []


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Collect all log lines of every level."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    stream = io.StringIO()
    configure_logs("debug", "json", stream)
    yield stream
    root.setLevel(level)
    root.handlers[:] = handlers
    structlog.reset_defaults()


async def test_no_secret_is_ever_logged(tmp_path: Path, receiver: Receiver, logged: io.StringIO) -> None:
    token, webhook_secret, tenant_secret = new_token(), new_webhook_secret(), new_webhook_secret()
    password_hash = hash_password("open sesame")
    secrets = [token, webhook_secret, tenant_secret, "open sesame", password_hash, "hush", "j" * 40]
    settings = {
        "auth.tokens": [{"name": "me", "hash": hash_token(token)}],
        "auth.users": [{"name": "me", "password_hash": password_hash}],
        "auth.jwt_secret": "j" * 40,
        "webhooks.secret": webhook_secret,
        "webhooks.tenants": {"default": {"secret": tenant_secret}},
        "webhooks.max_attempts": 1,
    }
    async with serving(f"sqlite:///{tmp_path}/jobs.db", settings) as server, talking(server, token) as api:
        receiver.script.extend([answer(200), answer(500), raw(b"nonsense\r\n\r\n"), reset])
        urls = [receiver.url(f"/{number}?token=hush") for number in range(4)]
        for url in [*urls, urls[0].replace(str(receiver.port), "9")]:
            job_id = await api.submit(webhook={"url": url})
            await api.deliveries(f"job={job_id}&state={'delivered' if url is urls[0] else 'dead'}")
        with_password = {"url": receiver.url().replace("//", "//me:hush@")}
        answers = [
            await api.post("/engine/jobs", {"queue": "q", "payload": 1, "webhook": with_password}),
            await api.get("/engine/jobs?token=hush"),
            await api.get("/hush"),
            await api.of("hush").get("/engine/jobs"),
            await api.of("").get("/engine/jobs", {"Authorization": "hush"}),
            await api.of("").get("/engine/jobs", {"Authorization": "Basic " + base64.b64encode(b"me:hush").decode()}),
        ]
        assert [answer.status for answer in answers] == [422, 400, 404, 401, 401, 401]
    lines = logged.getvalue().splitlines()
    assert [line for line in lines if json.loads(line)["event"] == "a delivery failed"]
    assert [(secret, line) for line in lines for secret in secrets if secret in line] == []
