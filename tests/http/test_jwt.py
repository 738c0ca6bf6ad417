import asyncio
import base64
import gzip
import hashlib
import hmac
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from aiohttp import web
from aiohttp.test_utils import TestServer
from joserfc.jwa import JWS_ALGORITHMS
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey

from chargehand.config import AuthConfig, load_config
from chargehand.errors import ChargehandError, ConfigError, Forbidden, Unauthenticated
from chargehand.http import jwt as jwt_module
from chargehand.http.jwt import Claims, JwtVerifier, jwt_verifier

NOW = 1_800_000_000.0
SECRET = "a shared secret of more than thirty-two bytes"
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
RSA_2 = RSAKey.generate_key(2048, {"kid": "rsa-2"})
P256 = ECKey.generate_key("P-256", {"kid": "p256"})
P384 = ECKey.generate_key("P-384", {"kid": "p384"})
ED25519 = OKPKey.generate_key("Ed25519", {"kid": "ed"})
SIGNERS = {algorithm.name: algorithm for algorithm in JWS_ALGORITHMS}


@dataclass
class Clock:
    at: float = NOW

    def __call__(self) -> float:
        return self.at


def part(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def good(**changes: Any) -> dict[str, Any]:
    claims = {"sub": "robot", "exp": NOW + 60, "iss": "https://issuer", "aud": "chargehand", **changes}
    return {name: value for name, value in claims.items() if value is not ...}


def sign(algorithm: str, key: Key | None, claims: Any, **header: Any) -> str:
    kid = {} if key is None or key.kid is None else {"kid": key.kid}
    head = {name: value for name, value in {"alg": algorithm, **kid, **header}.items() if value is not ...}
    signed = f"{part(head)}.{part(claims)}"
    return f"{signed}.{part(SIGNERS[algorithm].sign(signed.encode(), key))}"


def hs256(claims: Any, secret: str | bytes = SECRET, **header: Any) -> str:
    return sign("HS256", OctKey(secret if isinstance(secret, bytes) else secret.encode(), None), claims, **header)


def jwks(*keys: Key) -> dict[str, Any]:
    return {"keys": [key.as_dict(private=False) for key in keys]}


def settings(**auth: Any) -> AuthConfig:
    return load_config(environ={}, overrides={f"auth.{name}": value for name, value in auth.items()}).auth


def with_secret(clock: Clock | None = None, **auth: Any) -> JwtVerifier:
    clock = clock or Clock()
    verifier = jwt_verifier(settings(jwt_secret=SECRET, **auth), clock, clock)
    assert verifier is not None
    return verifier


def with_file(path: Path, *keys: Key, **auth: Any) -> JwtVerifier:
    path.write_text(json.dumps(jwks(*keys)))
    clock = Clock()
    auth = {"jwt_issuer": "https://issuer", "jwt_audience": "chargehand", **auth}
    verifier = jwt_verifier(settings(jwks_file=str(path), **auth), clock, clock)
    assert verifier is not None
    return verifier


async def refusal(verifier: JwtVerifier, token: str) -> str:
    with pytest.raises(Unauthenticated) as refused:
        await verifier.verify(token)
    return refused.value.message


@dataclass
class Issuer:
    """A real key server that counts how often it is asked."""

    document: Any = field(default_factory=lambda: jwks(RSA))
    status: int = 200
    asked: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    hold: asyncio.Event | None = None
    url: str = ""
    encoding: dict[str, str] = field(default_factory=dict)

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        self.reached.set()
        if self.hold is not None:
            await self.hold.wait()
        body = self.document if isinstance(self.document, bytes) else json.dumps(self.document).encode()
        return web.Response(body=body, status=self.status, headers={"location": self.url, **self.encoding})

    def verifier(self, clock: Clock) -> JwtVerifier:
        auth = settings(jwks_url=self.url, jwt_issuer="https://issuer", jwt_audience="chargehand")
        verifier = jwt_verifier(auth, lambda: NOW, clock)
        assert verifier is not None
        return verifier


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    app = web.Application()
    app.router.add_get("/keys", issuer.answer)
    async with TestServer(app) as server:
        issuer.url = str(server.make_url("/keys"))
        yield issuer
        if issuer.hold is not None:
            issuer.hold.set()


# ── signatures ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_token_signed_with_the_shared_secret_is_accepted() -> None:
    assert (await with_secret().verify(hs256(good()))).sub == "robot"


async def test_a_token_signed_with_another_secret_is_refused() -> None:
    assert "signature" in await refusal(with_secret(), hs256(good(), secret="another secret"))


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        ("RS256", RSA),
        ("RS384", RSA),
        ("RS512", RSA),
        ("ES256", P256),
        ("ES384", P384),
        ("EdDSA", ED25519),
        ("Ed25519", ED25519),
    ],
)
async def test_every_public_key_algorithm_is_accepted(tmp_path: Path, algorithm: str, key: Key) -> None:
    verifier = with_file(tmp_path / "jwks.json", RSA, P256, P384, ED25519)
    assert (await verifier.verify(sign(algorithm, key, good()))).sub == "robot"


@pytest.mark.parametrize(("algorithm", "key"), [("PS256", RSA), ("ES512", ECKey.generate_key("P-521", {"kid": "x"}))])
async def test_other_algorithms_are_refused_even_with_a_known_key(tmp_path: Path, algorithm: str, key: Key) -> None:
    verifier = with_file(tmp_path / "jwks.json", RSA, key)
    assert "algorithm" in await refusal(verifier, sign(algorithm, key, good()))


async def test_a_changed_payload_is_refused(tmp_path: Path) -> None:
    head, _, signature = sign("RS256", RSA, good()).split(".")
    token = f"{head}.{part(good(sub='admin'))}.{signature}"
    assert "signature" in await refusal(with_file(tmp_path / "jwks.json", RSA), token)


@pytest.mark.parametrize("name", ["none", "None", "NONE"])
async def test_an_unsigned_token_is_refused(tmp_path: Path, name: str) -> None:
    token = f"{part({'alg': name})}.{part(good())}."
    assert "algorithm" in await refusal(with_secret(), token)
    assert "algorithm" in await refusal(with_file(tmp_path / "jwks.json", RSA), token)


@pytest.mark.parametrize("also_a_secret", [False, True])
async def test_a_public_key_does_not_serve_as_hs256_secret(tmp_path: Path, also_a_secret: bool) -> None:
    verifier = with_file(tmp_path / "jwks.json", RSA, **({"jwt_secret": SECRET} if also_a_secret else {}))
    for public in (RSA.as_pem(private=False), RSA.as_der(private=False), json.dumps(RSA.as_dict()).encode()):
        signed = f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{part(good())}"
        token = f"{signed}.{part(hmac.digest(public, signed.encode(), hashlib.sha256))}"
        assert await refusal(verifier, token)


async def test_a_symmetric_key_in_a_key_set_is_ignored(tmp_path: Path) -> None:
    shared = OctKey.import_key({"kty": "oct", "k": part(SECRET.encode()), "kid": "oct"})
    verifier = with_file(tmp_path / "jwks.json", RSA, shared)
    assert "algorithm" in await refusal(verifier, hs256(good(), kid="oct"))


async def test_a_key_is_used_only_with_the_algorithm_it_was_published_for(tmp_path: Path) -> None:
    key = RSAKey.generate_key(2048, {"kid": "only-512", "alg": "RS512"})
    verifier = with_file(tmp_path / "jwks.json", key)
    assert await verifier.verify(sign("RS512", key, good()))
    assert "key set" in await refusal(verifier, sign("RS256", RSA, good(), kid="only-512"))


async def test_an_encryption_key_is_not_used_for_signatures(tmp_path: Path) -> None:
    key = RSAKey.generate_key(2048, {"kid": "enc", "use": "enc"})
    assert "key set" in await refusal(
        with_file(tmp_path / "jwks.json", RSA, key), sign("RS256", RSA_2, good(), kid="enc")
    )


async def test_a_key_inside_the_token_is_ignored(tmp_path: Path) -> None:
    token = sign("RS256", RSA_2, good(), kid=..., jwk=RSA_2.as_dict(private=False))
    assert "signature" in await refusal(with_file(tmp_path / "jwks.json", RSA), token)


async def test_without_kid_the_only_fitting_key_is_used_and_several_are_not_tried(tmp_path: Path) -> None:
    token = sign("RS256", RSA, good(), kid=...)
    assert await with_file(tmp_path / "one.json", RSA, P256).verify(token)
    assert "key set" in await refusal(with_file(tmp_path / "two.json", RSA, RSA_2), token)


async def test_critical_extensions_are_refused() -> None:
    assert "critical" in await refusal(with_secret(), hs256(good(), crit=["b64"], b64=False))


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"5",
        b'"alg"',
        b"[]",
        b"{}",
        b'{"alg":5}',
        b'{"alg":"HS256","kid":7}',
        b"\xff",
        b"[" * 20_000,
        b'{"a":' * 9999,
    ],
)
async def test_a_malformed_header_is_refused(head: bytes) -> None:
    assert "header" in await refusal(with_secret(), f"{part(head)}.{part(good())}.AAAA")


@pytest.mark.parametrize("payload", [b"", b"5", b"[]", b"not json", b"\xff", b'{"a":' * 50_000])
async def test_a_signed_payload_that_is_no_object_is_refused(payload: bytes) -> None:
    assert "payload" in await refusal(with_secret(), hs256(payload))


@pytest.mark.parametrize("token", ["..", "a.b.c", "é.é.é", "!.!.!"])
async def test_junk_with_two_dots_is_refused(token: str) -> None:
    assert await refusal(with_secret(), token)


# ── claims ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_all_claims_are_returned() -> None:
    claims = await with_secret().verify(
        hs256(
            good(
                sub="w-1", scope="codeq:claim codeq:nack", scopes=["x"], tid="acme", eventTypes=["a", "*"],
                workerGroup="gpu", role="ADMIN", tenant="ignored", anything={"else": 1},
            )
        )
    )  # fmt: skip
    assert claims == Claims(
        exp=NOW + 60, sub="w-1", scope="codeq:claim codeq:nack", scopes=("x",), event_types=("a", "*"), worker_group="gpu",
        role="ADMIN", tenant="acme",
    )  # fmt: skip


async def test_an_expired_token_is_refused_after_a_leeway_of_thirty_seconds() -> None:
    clock = Clock()
    verifier = with_secret(clock)
    clock.at = NOW + 60 + 29.9
    assert await verifier.verify(hs256(good()))
    clock.at = NOW + 60 + 30
    assert "expired" in await refusal(verifier, hs256(good()))


async def test_a_token_is_refused_before_its_time_with_the_same_leeway() -> None:
    verifier = with_secret()
    assert await verifier.verify(hs256(good(nbf=NOW + 30)))
    assert "not valid yet" in await refusal(verifier, hs256(good(nbf=NOW + 30.1)))


async def test_a_token_without_exp_is_refused() -> None:
    assert "exp" in await refusal(with_secret(), hs256(good(exp=...)))


@pytest.mark.parametrize("exp", ["4102444800", True, None, [], float("nan"), float("inf"), 10**400])
async def test_an_exp_that_is_no_date_is_refused(exp: Any) -> None:
    assert await refusal(with_secret(), hs256(good(exp=exp)))


@pytest.mark.parametrize("sub", [..., "", None, 5, "x" * 256])
async def test_a_token_without_a_subject_is_refused(sub: Any) -> None:
    assert "sub" in await refusal(with_secret(), hs256(good(sub=sub, tid="acme")))


@pytest.mark.parametrize(
    "claims",
    [
        {"scope": ["a"]},
        {"scopes": "a"},
        {"eventTypes": "*"},
        {"workerGroup": 1},
        {"role": []},
        {"nbf": "0"},
        {"nbf": None},
        {"nbf": True},
        {"iss": 5},
        {"iss": None},
        {"aud": 5},
        {"aud": [5]},
        {"aud": {}},
    ],
)
async def test_a_claim_of_the_wrong_type_is_named(claims: dict[str, Any]) -> None:
    assert next(iter(claims)) in await refusal(with_secret(), hs256(good(**claims)))


async def test_issuer_and_audience_are_checked_with_a_secret_only_when_set() -> None:
    token = hs256(good(iss="https://elsewhere", aud=["a", "b"]))
    assert await with_secret().verify(token)
    assert "issuer" in await refusal(with_secret(jwt_issuer="https://issuer"), token)
    assert "audience" in await refusal(with_secret(jwt_audience="chargehand"), token)
    assert await with_secret(jwt_audience="b").verify(token)


@pytest.mark.parametrize("audience", ["worker", "producer", ["other", "producer"]])
async def test_a_token_for_one_of_several_audiences_is_accepted(tmp_path: Path, audience: Any) -> None:
    token = hs256(good(aud=audience))
    assert await with_secret(jwt_audience=["worker", "producer"]).verify(token)
    by_key = with_file(tmp_path / "jwks.json", RSA, jwt_audience=["worker", "producer"])
    assert await by_key.verify(sign("RS256", RSA, good(aud=audience)))


@pytest.mark.parametrize("audience", [..., "other", [], "", "work", {"worker": 1}, "worker,producer"])
async def test_a_token_for_none_of_several_audiences_is_refused(audience: Any) -> None:
    assert "aud" in await refusal(with_secret(jwt_audience=["worker", "producer"]), hs256(good(aud=audience)))


@pytest.mark.parametrize(
    "changes", [{"iss": ...}, {"iss": "https://issuer/"}, {"aud": ...}, {"aud": []}, {"aud": "charge"}]
)
async def test_issuer_and_audience_are_always_checked_with_a_key_set(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert await refusal(with_file(tmp_path / "jwks.json", RSA), sign("RS256", RSA, good(**changes)))


def test_a_key_set_without_issuer_and_audience_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        with_file(tmp_path / "jwks.json", RSA, jwt_audience="")


def test_a_public_key_in_place_of_the_secret_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="public key") as refused:
        jwt_verifier(settings(jwt_secret=RSA.as_pem(private=False).decode()), Clock(), Clock())
    assert "BEGIN" not in str(refused.value)


@pytest.mark.parametrize("name", ["tid", "tenantId", "tenant_id", "organizationId", "organization_id"])
async def test_each_name_of_the_tenant_claim_is_understood(name: str) -> None:
    assert (await with_secret().verify(hs256(good(**{name: "acme"})))).tenant == "acme"


async def test_tenant_claims_that_agree_are_accepted() -> None:
    assert (await with_secret().verify(hs256(good(tid="acme", tenant_id="acme")))).tenant == "acme"


@pytest.mark.parametrize(
    "claims",
    [
        {"tid": "acme", "tenantId": "other"},
        {"tenant_id": "acme", "organization_id": "other"},
        {"tid": "acme", "tenantId": 5},
        {"tid": "acme", "tenantId": None},
        {"tid": ""},
        {"tid": "Acme"},
        {"tid": "a"},
        {"tid": "acme\n"},
        {"tid": "a" * 64},
        {"tid": ["acme"]},
        {"tid": {"acme": 1}},
        {"sub": "alice@example.com"},
        {"sub": "7f1c"},
        {"sub": "a" * 60},
        {"tid": "sub-robot"},
    ],
)
async def test_tenant_claims_that_conflict_or_are_malformed_are_forbidden(claims: dict[str, Any]) -> None:
    with pytest.raises(Forbidden, match=r"^invalid tenant claims$"):
        await with_secret().verify(hs256(good(**claims)))


async def test_without_a_tenant_claim_the_subject_has_a_tenant_of_its_own() -> None:
    assert (await with_secret().verify(hs256(good(sub="robot")))).tenant == "sub-robot"
    assert (await with_secret().verify(hs256(good(sub="a" * 59)))).tenant == "sub-" + "a" * 59


async def test_a_bad_tenant_does_not_hide_that_the_token_has_expired() -> None:
    assert "expired" in await refusal(with_secret(), hs256(good(tid="???", exp=NOW - 100)))


# ── keys behind a URL ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_key_set_is_fetched_once_and_kept_for_five_minutes(issuer: Issuer) -> None:
    clock = Clock()
    verifier = issuer.verifier(clock)
    for _ in range(10):
        await verifier.verify(sign("RS256", RSA, good()))
    clock.at += 299
    await verifier.verify(sign("RS256", RSA, good()))
    assert issuer.asked == 1
    clock.at += 1
    await verifier.verify(sign("RS256", RSA, good()))
    assert issuer.asked == 2


async def test_unknown_keys_do_not_cause_one_fetch_each(issuer: Issuer) -> None:
    clock = Clock()
    verifier = issuer.verifier(clock)
    for number in range(20):
        await refusal(verifier, sign("RS256", RSA, good(), kid=f"made-up-{number}"))
    assert issuer.asked == 1
    for _ in range(3):
        clock.at += 30
        for number in range(20):
            await refusal(verifier, sign("RS256", RSA, good(), kid=f"made-up-{number}"))
    assert issuer.asked == 4


async def test_concurrent_callers_share_one_fetch(issuer: Issuer) -> None:
    issuer.hold = asyncio.Event()
    verifier = issuer.verifier(Clock())
    checks = [asyncio.create_task(verifier.verify(sign("RS256", RSA, good()))) for _ in range(50)]
    await issuer.reached.wait()
    issuer.hold.set()
    assert {claims.sub for claims in await asyncio.gather(*checks)} == {"robot"}
    assert issuer.asked == 1


async def test_a_caller_that_disconnects_does_not_cancel_the_fetch_of_the_others(issuer: Issuer) -> None:
    issuer.hold = asyncio.Event()
    verifier = issuer.verifier(Clock())
    first, second = (asyncio.create_task(verifier.verify(sign("RS256", RSA, good()))) for _ in range(2))
    await issuer.reached.wait()
    first.cancel()
    issuer.hold.set()
    assert (await second).sub == "robot"


async def test_rotated_keys_are_picked_up_when_the_first_token_brings_one(issuer: Issuer) -> None:
    clock = Clock()
    verifier = issuer.verifier(clock)
    await verifier.verify(sign("RS256", RSA, good()))
    issuer.document = jwks(RSA, RSA_2)
    clock.at += 31
    assert await verifier.verify(sign("RS256", RSA_2, good()))
    assert issuer.asked == 2


async def test_a_withdrawn_key_is_refused_after_the_next_refresh(issuer: Issuer) -> None:
    clock = Clock()
    verifier = issuer.verifier(clock)
    await verifier.verify(sign("RS256", RSA, good()))
    issuer.document = jwks(RSA_2)
    clock.at += 300
    assert "key set" in await refusal(verifier, sign("RS256", RSA, good()))


@pytest.mark.parametrize("broken", ["status", "redirect", "junk", "empty", "huge", "deep", "many", "bomb"])
async def test_a_failed_refresh_keeps_the_old_keys_and_is_retried(issuer: Issuer, broken: str) -> None:
    clock = Clock()
    verifier = issuer.verifier(clock)
    await verifier.verify(sign("RS256", RSA, good()))
    new = json.dumps(jwks(RSA_2)).encode()
    issuer.status = {"status": 500, "redirect": 302}.get(broken, 200)
    issuer.document = {
        "junk": b"<html>",
        "empty": {"keys": []},
        "huge": new + b" " * 1024 * 1024,
        "deep": b'{"keys": [{"kty": ' + b"[" * 500_000,
        "many": {"keys": jwks(RSA_2)["keys"] * 257},
        "bomb": gzip.compress(new + b" " * 100_000_000),
    }.get(broken, b"")
    issuer.encoding = {"Content-Encoding": "gzip"} if broken == "bomb" else {}
    clock.at += 300
    with structlog.testing.capture_logs() as logs:
        assert await verifier.verify(sign("RS256", RSA, good()))
        assert await verifier.verify(sign("RS256", RSA, good()))
    assert [line["event"] for line in logs] == ["jwks_refresh_failed"]
    assert issuer.asked == 2
    issuer.status, issuer.document, issuer.encoding = 200, new, {}
    clock.at += 30
    assert await verifier.verify(sign("RS256", RSA_2, good()))


async def test_an_issuer_that_does_not_answer_is_not_waited_for(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwt_module, "JWKS_TIMEOUT_SECONDS", 0.05)
    issuer.hold = asyncio.Event()
    assert "not available" in await refusal(issuer.verifier(Clock()), sign("RS256", RSA, good()))


async def test_without_any_keys_the_caller_gets_retry_after_and_the_fetch_is_retried(
    issuer: Issuer,
) -> None:
    clock = Clock()
    verifier = issuer.verifier(clock)
    issuer.status = 503
    for _ in range(3):
        with pytest.raises(Unauthenticated) as refused:
            await verifier.verify(sign("RS256", RSA, good()))
        assert refused.value.retry_after_seconds == 5
    assert issuer.asked == 1
    issuer.status = 200
    clock.at += 5
    assert await verifier.verify(sign("RS256", RSA, good()))


async def test_an_unusable_key_does_not_affect_the_others(issuer: Issuer) -> None:
    bad: list[Any] = [
        {"kty": "EC", "crv": "P-9000", "x": "AA", "y": "AA", "kid": "curve"},
        {"kty": "RSA", "kid": "no-modulus"},
        {"kty": "RSA", "kid": "weak", "n": part(b"\xc1" + b"\x01" * 127), "e": "AQAB"},
        {"kty": "PQC", "kid": "future"},
        {"kid": "nothing"},
        {"kty": ["RSA"]},
    ]
    issuer.document = {"keys": [*bad, *jwks(RSA)["keys"]]}
    with structlog.testing.capture_logs():
        verifier = issuer.verifier(Clock())
        assert await verifier.verify(sign("RS256", RSA, good()))
        assert "key set" in await refusal(verifier, sign("RS256", RSA, good(), kid="weak"))


# ── keys in a file ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_key_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    verifier = with_file(path, RSA)
    assert "key set" in await refusal(verifier, sign("RS256", RSA_2, good()))
    path.write_text(json.dumps(jwks(RSA_2)))
    os.utime(path, ns=(1, 1))
    assert await verifier.verify(sign("RS256", RSA_2, good()))
    assert "key set" in await refusal(verifier, sign("RS256", RSA, good()))


async def test_a_half_written_or_missing_key_file_keeps_the_old_keys(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    verifier = with_file(path, RSA)
    with structlog.testing.capture_logs() as logs:
        path.write_text('{"keys": [')
        assert await verifier.verify(sign("RS256", RSA, good()))
        path.unlink()
        assert await verifier.verify(sign("RS256", RSA, good()))
    assert [line["event"] for line in logs] == ["jwks_reload_failed"] * 2
    path.write_text(json.dumps(jwks(RSA_2)))
    assert await verifier.verify(sign("RS256", RSA_2, good()))


@pytest.mark.parametrize("content", [None, "", "{}", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "AAAA"}]}'])
def test_a_useless_key_file_is_a_configuration_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "jwks.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"auth\.jwks_file"):
        jwt_verifier(settings(jwks_file=str(path), jwt_issuer="i", jwt_audience="a"), Clock(), Clock())


def test_without_secret_and_keys_there_is_nothing_to_verify_with() -> None:
    assert jwt_verifier(settings(), Clock(), Clock()) is None


async def test_no_refusal_repeats_the_token_or_the_secret() -> None:
    token = hs256(good(tid="SENTINEL", exp=NOW - 100, role=["SENTINEL"]))
    for bad in (token, token[:-5], hs256(good(tid="SENTINEL")), hs256({"sub": 5, "exp": "SENTINEL"}), "SENTINEL.x.y"):
        with pytest.raises(ChargehandError) as refused:
            await with_secret().verify(bad)
        shown = f"{refused.value!r} {with_secret()!r}"
        assert "SENTINEL" not in shown
        assert SECRET not in shown
        assert not any(piece and piece in shown for piece in bad.split(".") if len(piece) > 3)
