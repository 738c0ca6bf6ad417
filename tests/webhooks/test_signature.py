import base64
import hashlib
import hmac
import time
from datetime import UTC, datetime
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from chargehand.webhooks.signature import Dialect, Keys, SignatureError, sign, standard_secret, verify

DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
NOW = 1_770_000_000
BODY = '{"state":"done","result":"schön"}'.encode()
TEXT_SECRET = "correct horse battery staple"
CODED_SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
SIGNATURE_HEADERS = {"standard": "webhook-signature", "foreman": "X-Foreman-Signature", "codeq": "X-CodeQ-Signature"}

dialects = st.sampled_from(DIALECTS)
secrets = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: not text.startswith("whsec_"))


def hex_hmac(secret: str, message: bytes) -> str:
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def accepted_by_the_library(secret: str, headers: dict[str, str], body: bytes) -> bool:
    try:
        Webhook(standard_secret(secret)).verify(body, headers, json_parse=False)
    except WebhookVerificationError:
        return False
    return True


@pytest.mark.parametrize("dialect", DIALECTS)
def test_without_a_secret_only_id_and_timestamp_are_sent(dialect: Dialect) -> None:
    assert sign(dialect, Keys(), "dlv_1", NOW, BODY) == {"webhook-id": "dlv_1", "webhook-timestamp": str(NOW)}


@pytest.mark.parametrize("secret", [TEXT_SECRET, CODED_SECRET])
def test_foreman_signs_the_body_with_the_secret_as_configured(secret: str) -> None:
    headers = sign("foreman", Keys(secret, "old"), "dlv_1", NOW, BODY)
    assert headers["X-Foreman-Signature"] == "sha256=" + hex_hmac(secret, BODY)
    assert set(headers) == {"webhook-id", "webhook-timestamp", "webhook-signature", "X-Foreman-Signature"}


@pytest.mark.parametrize("secret", [TEXT_SECRET, CODED_SECRET])
def test_codeq_signs_timestamp_and_body_with_the_secret_as_configured(secret: str) -> None:
    headers = sign("codeq", Keys(secret, "old"), "dlv_1", NOW, BODY)
    assert headers["X-CodeQ-Timestamp"] == str(NOW)
    assert headers["X-CodeQ-Signature"] == hex_hmac(secret, b"%d." % NOW + BODY)


@pytest.mark.parametrize("secret", [TEXT_SECRET, CODED_SECRET, CODED_SECRET.rstrip("=")])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_standard_webhooks_library_accepts_every_dialect(dialect: Dialect, secret: str) -> None:
    headers = sign(dialect, Keys(secret), "dlv_1", int(time.time()), BODY)
    assert accepted_by_the_library(secret, headers, BODY)
    assert not accepted_by_the_library(secret, headers, BODY + b" ")
    assert not accepted_by_the_library("another", headers, BODY)


@pytest.mark.parametrize("secret", [TEXT_SECRET, CODED_SECRET])
def test_signatures_of_a_standard_webhooks_library_are_accepted(secret: str) -> None:
    signature = Webhook(standard_secret(secret)).sign("msg_1", datetime.fromtimestamp(NOW, UTC), BODY.decode())
    headers = {"Webhook-Id": "msg_1", "Webhook-Timestamp": str(NOW), "Webhook-Signature": signature}
    verify("standard", [secret], headers, BODY, NOW)
    with pytest.raises(SignatureError):
        verify("standard", ["another"], headers, BODY, NOW)


def test_receivers_with_the_old_or_the_new_secret_accept_while_it_is_replaced() -> None:
    headers = sign("standard", Keys("new secret", "old secret"), "dlv_1", int(time.time()), BODY)
    assert len(headers["webhook-signature"].split(" ")) == 2
    assert accepted_by_the_library("new secret", headers, BODY)
    assert accepted_by_the_library("old secret", headers, BODY)
    assert not accepted_by_the_library("older secret", headers, BODY)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_receiver_that_knows_two_secrets_accepts_either(dialect: Dialect) -> None:
    for signer in ("new secret", "old secret"):
        verify(dialect, ["new secret", "old secret"], sign(dialect, Keys(signer), "dlv_1", NOW, BODY), BODY, NOW)


def test_signatures_of_unknown_versions_are_ignored() -> None:
    headers = sign("standard", Keys(TEXT_SECRET), "dlv_1", NOW, BODY)
    headers["webhook-signature"] = f"v1a,abcd nonsense  v1, {headers['webhook-signature']}"
    verify("standard", [TEXT_SECRET], headers, BODY, NOW)


def test_foreman_signatures_are_accepted_with_and_without_prefix_and_in_any_case() -> None:
    digest = hex_hmac(TEXT_SECRET, BODY)
    for form in (f"sha256={digest}", digest, digest.upper(), f"SHA256={digest.upper()}"):
        verify("foreman", [TEXT_SECRET], {"X-Foreman-Signature": form}, BODY, NOW)


@pytest.mark.parametrize("dialect", ["standard", "codeq"])
@pytest.mark.parametrize(("age", "reason"), [(301, "too old"), (-301, "in the future"), (300, None), (-300, None)])
def test_the_timestamp_must_be_within_the_tolerance(dialect: Dialect, age: int, reason: str | None) -> None:
    headers = sign(dialect, Keys(TEXT_SECRET), "dlv_1", NOW, BODY)
    if reason is None:
        verify(dialect, [TEXT_SECRET], headers, BODY, NOW + age)
    else:
        with pytest.raises(SignatureError, match=reason):
            verify(dialect, [TEXT_SECRET], headers, BODY, NOW + age)


def test_only_foreman_ignores_the_timestamp() -> None:
    headers = sign("foreman", Keys(TEXT_SECRET), "dlv_1", NOW, BODY)
    verify("foreman", [TEXT_SECRET], headers, BODY, NOW + 1_000_000)


@pytest.mark.parametrize(
    "stamp", ["", "now", "1e9", "-1", "+1", " 1770000000", "\u0661770000000", "9" * 5000, "1770000000.5"]
)
@pytest.mark.parametrize(("dialect", "header"), [("standard", "webhook-timestamp"), ("codeq", "X-CodeQ-Timestamp")])
def test_a_timestamp_is_plain_digits(dialect: Dialect, header: str, stamp: str) -> None:
    headers = sign(dialect, Keys(TEXT_SECRET), "dlv_1", NOW, BODY) | {header: stamp}
    with pytest.raises(SignatureError, match=header.lower()):
        verify(dialect, [TEXT_SECRET], headers, BODY, NOW)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_header_that_is_missing_is_named(dialect: Dialect) -> None:
    headers = sign(dialect, Keys(TEXT_SECRET), "dlv_1", NOW, BODY)
    del headers[SIGNATURE_HEADERS[dialect]]
    with pytest.raises(SignatureError, match=f"{SIGNATURE_HEADERS[dialect].lower()} is missing"):
        verify(dialect, [TEXT_SECRET], headers, BODY, NOW)


@pytest.mark.parametrize("none", [[], [""], ["", ""], ""])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_verify_without_a_secret_raises(dialect: Dialect, none: list[str] | str) -> None:
    empty_key = {SIGNATURE_HEADERS[dialect]: hex_hmac("", BODY)}
    with pytest.raises(SignatureError, match="no secret"):
        verify(dialect, none, sign(dialect, Keys("x"), "dlv_1", NOW, BODY) | empty_key, BODY, NOW)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_empty_secret_in_the_list_is_ignored(dialect: Dialect) -> None:
    signed = {"standard": b"dlv_1.%d." % NOW + BODY, "foreman": BODY, "codeq": b"%d." % NOW + BODY}[dialect]
    forged = hmac.digest(b"", signed, "sha256")
    text = "v1," + base64.b64encode(forged).decode() if dialect == "standard" else forged.hex()
    headers = sign(dialect, Keys(TEXT_SECRET), "dlv_1", NOW, BODY) | {SIGNATURE_HEADERS[dialect]: text}
    with pytest.raises(SignatureError, match="no signature matches"):
        verify(dialect, [TEXT_SECRET, ""], headers, BODY, NOW)


def test_a_string_is_one_secret_and_not_a_list_of_letters() -> None:
    verify("foreman", "abc", sign("foreman", Keys("abc"), "dlv_1", NOW, BODY), BODY, NOW)
    with pytest.raises(SignatureError):
        verify("foreman", "abc", sign("foreman", Keys("a"), "dlv_1", NOW, BODY), BODY, NOW)


@pytest.mark.parametrize(
    "secret", ["whsec_", "whsec_===", "whsec_not base64", "whsec_a", "whsec_ü", "whsec_YWJj-ZGVm-YWJj-ZGVm-"]
)
def test_a_whsec_secret_that_is_not_base64_is_refused_and_not_shown(secret: str) -> None:
    for use in (Keys, standard_secret, lambda text: Keys("good", text)):
        with pytest.raises(ValueError, match=r"^a secret that begins with whsec_ must continue in base64$"):
            use(secret)


def test_keys_do_not_show_their_secrets() -> None:
    shown = repr(Keys(TEXT_SECRET, CODED_SECRET))
    assert TEXT_SECRET not in shown
    assert CODED_SECRET not in shown
    assert "kkkk" not in shown


@given(dialects, secrets, st.binary(), st.integers(0, 10**11))
def test_verify_accepts_what_sign_made(dialect: Dialect, secret: str, body: bytes, timestamp: int) -> None:
    headers = {name.upper(): value for name, value in sign(dialect, Keys(secret), "dlv_1", timestamp, body).items()}
    verify(dialect, [secret], headers, body, timestamp)
    verify("standard", [standard_secret(secret)], headers, body, timestamp)


@given(dialects, secrets, secrets, st.binary(), st.binary())
def test_another_secret_or_another_body_does_not_verify(
    dialect: Dialect, secret: str, other: str, body: bytes, changed: bytes
) -> None:
    headers = sign(dialect, Keys(secret), "dlv_1", NOW, body)
    # HMAC pads short keys with zeros, so these are the same key.
    if other.rstrip("\0") != secret.rstrip("\0"):
        with pytest.raises(SignatureError):
            verify(dialect, [other], headers, body, NOW)
    if changed != body:
        with pytest.raises(SignatureError):
            verify(dialect, [secret], headers, changed, NOW)


junk = st.text(st.characters(), max_size=80) | st.sampled_from(["v1,", "v1,=", "sha256=", ",", "v1,\udc80", "\ud800"])


@given(dialects, junk, st.dictionaries(st.sampled_from(["webhook-id", "webhook-timestamp", "X-CodeQ-Timestamp"]), junk))
def test_malformed_headers_are_a_signature_error_and_nothing_else(
    dialect: Dialect, signature: str, others: dict[str, str]
) -> None:
    headers = sign(dialect, Keys(TEXT_SECRET), "dlv_1", NOW, BODY) | {SIGNATURE_HEADERS[dialect]: signature} | others
    with pytest.raises(SignatureError) as refused:
        verify(dialect, [TEXT_SECRET, CODED_SECRET], headers, BODY, NOW)
    assert TEXT_SECRET not in str(refused.value)


@given(dialects, st.dictionaries(st.text(st.characters()), st.text(st.characters())), st.binary())
def test_foreign_headers_are_a_signature_error_and_nothing_else(
    dialect: Dialect, headers: dict[str, str], body: bytes
) -> None:
    with pytest.raises(SignatureError):
        verify(dialect, [TEXT_SECRET], headers, body, NOW)
