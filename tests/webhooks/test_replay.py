"""Replay and rotation: what an attacker can do with a captured delivery, and that all receivers verify while a secret changes."""

import time
from collections.abc import Mapping

import pytest

from chargehand.client import verify_webhook
from chargehand.webhooks.signature import Keys, SignatureError, sign
from tests.api.serving import on_sqlite
from tests.webhooks.desk import OpenDesk
from tests.webhooks.receiver import Hook, Receiver

OLD, NEW = "whsec_b2xkIHNlY3JldCBvZiB0aGUgcmVjZWl2ZXI=", "whsec_bmV3IHNlY3JldCBvZiB0aGUgcmVjZWl2ZXI="
DIALECTS = pytest.mark.parametrize("dialect", ["standard", "foreman", "codeq"])


async def seen(open_desk: OpenDesk, receiver: Receiver, dialect: str = "standard", **settings: str) -> Hook:
    desk = open_desk(**settings)
    await desk.delivered(await desk.submit(receiver.url(), dialect=dialect))
    await desk.close()  # else it would also send the delivery that the next desk is to sign
    return receiver.hooks.pop()


def refused(hook: Hook, headers: Mapping[str, str] = {}, *, body: bytes | None = None, later: float = 0) -> str:
    given = {name.lower(): value for name, value in hook.headers.items()} | dict(headers)
    with pytest.raises(SignatureError) as error:
        verify_webhook(NEW, given, hook.body if body is None else body, now=time.time() + later)
    return str(error.value)


@DIALECTS
@on_sqlite
async def test_a_captured_delivery_can_only_be_replayed_unchanged_and_within_the_tolerance(
    open_desk: OpenDesk, receiver: Receiver, dialect: str
) -> None:
    hook = await seen(open_desk, receiver, dialect, secret=NEW)
    again = [verify_webhook(NEW, hook.headers, hook.body)["data"]["job_id"] for _ in range(2)]
    assert (
        again == [hook.job_id] * 2
    )  # the signature is still valid: receivers recognise a replay by the id, which is signed
    assert refused(hook, {"webhook-id": "01M7GN7MRA74BM74N1QCQJG1JM"}) == "no signature matches"
    assert refused(hook, body=hook.body + b" ") == "no signature matches"
    assert refused(hook, body=hook.body.replace(b"queued", b"failed")) == "no signature matches"
    assert "too old" in refused(hook, later=400)
    fresh = str(int(time.time()) + 400)
    assert refused(hook, {"webhook-timestamp": fresh}, later=400) == "no signature matches"
    assert "future" in refused(hook, later=-400)


@DIALECTS
@on_sqlite
async def test_every_receiver_can_verify_while_a_secret_is_replaced(
    open_desk: OpenDesk, receiver: Receiver, dialect: str
) -> None:
    """Whether the receivers get the new secret first, or the server."""
    before = await seen(open_desk, receiver, dialect, secret=OLD)
    verify_webhook([NEW, OLD], before.headers, before.body)  # a receiver that got the new secret first
    between = await seen(open_desk, receiver, dialect, secret=NEW, previous_secret=OLD)
    for known in (OLD, NEW, [NEW, OLD]):
        verify_webhook(known, between.headers, between.body)
    after = await seen(open_desk, receiver, dialect, secret=NEW)
    verify_webhook([NEW, OLD], after.headers, after.body)
    with pytest.raises(SignatureError):  # the old secret no longer verifies
        verify_webhook(OLD, after.headers, after.body)


@on_sqlite
async def test_every_fact_in_the_unsigned_headers_is_also_in_the_signed_body(
    open_desk: OpenDesk, receiver: Receiver
) -> None:
    hook = await seen(open_desk, receiver, secret=NEW)
    ours = {name for name in hook.headers if name.lower().startswith("x-chargehand-")}
    forged = dict(hook.headers) | dict.fromkeys(ours, "forged")
    said = verify_webhook(NEW, forged, hook.body)["data"]
    assert (said["job_id"], str(said["sequence"])) == (hook.job_id, hook.headers["X-Chargehand-Sequence"])


def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    body = b"[" * 1_000_000
    headers = sign("standard", Keys(NEW), "01M7GN7MRA74BM74N1QCQJG1JM", int(time.time()), body)
    with pytest.raises(SignatureError, match="nested too deeply"):
        verify_webhook(NEW, headers, body)
