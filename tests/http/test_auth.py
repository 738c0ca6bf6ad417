import asyncio
import base64
import hashlib
import json
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from chargehand.config import load_config
from chargehand.errors import ChargehandError, ConfigError, TooManyRequests, Unauthenticated
from chargehand.http.application import Application
from chargehand.http.auth import PASSWORD_CHECKS, PASSWORD_QUEUE, Caller, Gate, Passwords, Remembered
from chargehand.http.credentials import hash_password, hash_token
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route

NOW = 1_800_000_000.0
TOKEN = "ch_a-token-for-tests"
SECRET = "a shared secret of more than thirty-two bytes"


@dataclass
class Clock:
    at: float = NOW

    def __call__(self) -> float:
        return self.at


def asking(authorization: str | None, path: str = "/jobs") -> Request:
    headers = {} if authorization is None else {"authorization": authorization}
    return Request("GET", path, {"host": "localhost", **headers})


class Door:
    """An application with one protected and one public route; it records its callers."""

    def __init__(self, clock: Clock | None = None, **auth: Any) -> None:
        clock = clock or Clock()
        config = load_config(environ={}, overrides={f"auth.{name}": value for name, value in auth.items()})
        self.gate = Gate(config, now=clock, clock=clock)
        self.seen: list[Caller] = []
        routes = [
            Route("GET", "/jobs", self._handle, "closed", scope="jobs:read"),
            Route("GET", "/health", self._handle, "open", scope=None),
        ]
        self.app = Application(routes, self.gate, lambda *_: lambda *_: None)

    async def _handle(self, req: Request, _: Response) -> None:
        self.seen.append(req.caller)

    async def get(self, authorization: str | None = None, path: str = "/jobs") -> Response:
        return await self.app(asking(authorization, path))

    async def admitted(self, authorization: str | None = None, path: str = "/jobs") -> Caller:
        result = await self.get(authorization, path)
        assert result.status == 200, result.data
        return self.seen[-1]

    async def refused(self, status: int, authorization: str | None = None) -> str:
        before = len(self.seen)
        result = await self.get(authorization)
        assert result.status == status, result.data
        assert len(self.seen) == before
        return str(json.loads(result.data)["detail"])


def token(secret: str = TOKEN, **settings: Any) -> dict[str, Any]:
    return {"name": "ci", "hash": hash_token(secret), **settings}


def cheap_hash(password: str) -> str:
    salt = b"0123456789abcdef"
    digest = hashlib.scrypt(password.encode(), salt=salt, n=16, r=8, p=1, dklen=32)
    return f"scrypt:16:8:1:{base64.b64encode(salt).decode()}:{base64.b64encode(digest).decode()}"


def user(password: str = "pw", **settings: Any) -> dict[str, Any]:
    return {"name": "ops", "password_hash": cheap_hash(password), **settings}


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def hs256(**claims: Any) -> str:
    return "Bearer " + jwt.encode(
        {"alg": "HS256"}, {"sub": "robot", "exp": NOW + 3600, **claims}, OctKey.import_key(SECRET)
    )


# ── what a caller may do ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("held", "asked", "allowed"),
    [
        ({"*"}, "anything:at:all", True),
        ({"jobs:read"}, "jobs:read", True),
        ({"jobs:read"}, "jobs:write", False),
        ({"jobs:*"}, "jobs:read", True),
        ({"jobs:*"}, "jobs:read:own", True),
        ({"jobs:*"}, "jobs", False),
        ({"jobs:*"}, "jobsite:read", False),
        ({"jobs*"}, "jobs:read", False),
        ({"jobs:read"}, "jobs:read:own", False),
        (set(), "jobs:read", False),
    ],
)
def test_scopes_allow_what_they_name(held: set[str], asked: str, allowed: bool) -> None:
    assert Caller("x", "default", frozenset(held)).may(asked) is allowed


# ── open mode, public routes ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("header", [None, "Bearer junk", "Basic junk", "junk", "Bearer a.b.c"])
async def test_open_mode_lets_everybody_do_everything_and_ignores_a_token(header: str | None) -> None:
    caller = await Door().admitted(header)
    assert (caller.subject, caller.tenant) == ("anonymous", "default")
    assert caller.scopes == caller.event_types == {"*"}


async def test_open_mode_is_rate_limited() -> None:
    door = Door(rate_per_second=1.0, rate_burst=1)
    await door.admitted()
    await door.refused(429)


@pytest.mark.parametrize("header", [None, "Bearer junk", f"Bearer {TOKEN}"])
async def test_a_public_route_checks_nothing_and_its_caller_has_no_scopes(header: str | None) -> None:
    caller = await Door(tokens=[token()]).admitted(header, "/health")
    assert caller == Caller("anonymous", "")
    assert not caller.may("jobs:read")


async def test_a_public_route_is_not_rate_limited() -> None:
    door = Door(tokens=[token()], rate_per_second=1.0, rate_burst=1)
    for _ in range(5):
        await door.admitted(path="/health")


# ── bearer tokens ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
async def test_a_known_token_identifies_its_caller(scheme: str) -> None:
    settings: dict[str, Any] = {
        "tenant": "acme",
        "scopes": ["jobs:*"],
        "event_types": ["a", "b"],
        "worker_group": "gpu",
    }
    caller = await Door(tokens=[token(**settings)]).admitted(f"{scheme} {TOKEN}")
    assert caller == Caller(
        "ci", "acme", frozenset({"jobs:*"}), frozenset({"a", "b"}), worker_group="gpu", rate_key="token:ci"
    )


async def test_each_of_many_tokens_identifies_its_own_caller() -> None:
    door = Door(tokens=[token(f"secret-{number}", name=f"token-{number}") for number in range(50)])
    for number in range(50):
        assert (await door.admitted(f"Bearer secret-{number}")).subject == f"token-{number}"


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (None, "missing Authorization header; send `Authorization: Bearer <token>`"),
        ("", "missing Authorization header"),
        ("Bearer", "invalid Authorization header"),
        ("Bearer  ", "invalid Authorization header"),
        (TOKEN, "invalid Authorization header"),
        (f"Digest {TOKEN}", "scheme is not accepted"),
        (f"Token {TOKEN}", "scheme is not accepted"),
        (basic("ci", TOKEN), "scheme is not accepted"),
        ("Bearer junk", "unknown token"),
        ("Bearer a.b.c", "unknown token"),
        ("Bearer t\xf6ken", "unknown token"),
        (f"Bearer {TOKEN}x", "unknown token"),
        (f"Bearer {TOKEN[:-1]}", "unknown token"),
        (f"Bearer {TOKEN},Bearer {TOKEN}", "unknown token"),
        (f"Bearer {hash_token(TOKEN)}", "unknown token"),
    ],
)
async def test_invalid_credentials_get_401_with_the_reason(header: str | None, says: str) -> None:
    door = Door(tokens=[token()])
    assert says in await door.refused(401, header)
    assert (await door.get(header)).headers["www-authenticate"].startswith("Bearer")


async def test_a_token_without_the_scope_gets_403_which_names_the_scope() -> None:
    says = await Door(tokens=[token(scopes=["jobs:write"])]).refused(403, f"Bearer {TOKEN}")
    assert says == "missing scope: this needs `jobs:read`"


async def test_a_digest_that_only_begins_like_a_known_one_is_refused() -> None:
    known = hash_token(TOKEN)
    door = Door(tokens=[{"name": "ci", "hash": known[:-1] + ("1" if known.endswith("0") else "0")}])
    assert "unknown token" in await door.refused(401, f"Bearer {TOKEN}")


def test_two_tokens_with_the_same_hash_are_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="same hash"):
        Door(tokens=[token(name="one"), token(name="two")])


# ── rates ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_too_many_requests_get_429_with_the_time_to_wait() -> None:
    clock = Clock()
    door = Door(clock, tokens=[token()], rate_per_second=0.1, rate_burst=2)
    await door.admitted(f"Bearer {TOKEN}")
    await door.admitted(f"Bearer {TOKEN}")
    result = await door.get(f"Bearer {TOKEN}")
    assert result.status == 429
    assert result.headers["retry-after"] == "10"
    assert json.loads(result.data)["code"] == "rate_limited"
    clock.at += 10
    await door.admitted(f"Bearer {TOKEN}")


async def test_a_token_with_its_own_rate_is_limited_to_that() -> None:
    tokens = [token("slow", name="slow"), token("fast", name="fast", rate_per_second=100.0)]
    door = Door(tokens=tokens, rate_per_second=1.0)
    for _ in range(2):
        await door.admitted("Bearer slow")
    await door.refused(429, "Bearer slow")
    for _ in range(200):
        await door.gate.admit(asking("Bearer fast"), "jobs:read")
    await door.refused(429, "Bearer fast")


async def test_requests_that_are_forbidden_count_too() -> None:
    door = Door(tokens=[token(scopes=[])], rate_per_second=1.0, rate_burst=1)
    await door.refused(403, f"Bearer {TOKEN}")
    await door.refused(429, f"Bearer {TOKEN}")


async def test_a_new_jwt_of_the_same_subject_shares_its_bucket() -> None:
    door = Door(jwt_secret=SECRET, rate_per_second=1.0, rate_burst=1)
    await door.admitted(hs256(scope="*", jti="1"))
    await door.refused(429, hs256(scope="*", jti="2"))


# ── JWTs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_jwt_identifies_the_caller_by_its_claims() -> None:
    header = hs256(
        tid="acme", scope="jobs:read  codeq:claim", scopes=["x"], eventTypes=["*"], workerGroup="gpu", role="ADMIN"
    )
    assert await Door(jwt_secret=SECRET).admitted(header) == Caller(
        subject="robot",
        tenant="acme",
        scopes=frozenset({"jobs:read", "codeq:claim", "x"}),
        event_types=frozenset({"*"}),
        worker_group="gpu",
        role="ADMIN",
        rate_key="jwt:acme:robot",
        until=NOW + 3600 + 30,
    )


async def test_static_tokens_work_beside_jwts_even_with_two_dots() -> None:
    door = Door(jwt_secret=SECRET, tokens=[token("my.static.token")])
    assert (await door.admitted("Bearer my.static.token")).subject == "ci"
    assert (await door.admitted(hs256(scope="*"))).subject == "robot"
    assert "unknown token" in await door.refused(401, "Bearer neither")


async def test_a_jwt_without_scope_allows_nothing() -> None:
    assert "jobs:read" in await Door(jwt_secret=SECRET).refused(403, hs256())


async def test_conflicting_tenant_claims_get_403() -> None:
    header = hs256(scope="*", tid="acme", tenantId="other")
    assert await Door(jwt_secret=SECRET).refused(403, header) == "invalid tenant claims"


async def test_a_jwt_that_was_accepted_before_still_expires() -> None:
    clock = Clock()
    door = Door(clock, jwt_secret=SECRET)
    header = hs256(scope="*", exp=NOW + 100)
    await door.admitted(header)
    clock.at = NOW + 129
    await door.admitted(header)
    clock.at = NOW + 130
    assert "expired" in await door.refused(401, header)


async def test_a_verified_jwt_is_cached_and_verified_again_after_five_minutes(tmp_path: Path) -> None:
    clock = Clock()
    keys = tmp_path / "jwks.json"
    old, new = RSAKey.generate_key(2048, {"kid": "old"}), RSAKey.generate_key(2048, {"kid": "new"})
    keys.write_text(json.dumps({"keys": [old.as_dict(private=False)]}))
    door = Door(clock, jwks_file=str(keys), jwt_issuer="i", jwt_audience="a")
    claims = {"sub": "robot", "scope": "*", "iss": "i", "aud": "a", "exp": NOW + 100_000}
    header = "Bearer " + jwt.encode({"alg": "RS256", "kid": "old"}, claims, old)
    await door.admitted(header)
    keys.write_text(json.dumps({"keys": [new.as_dict(private=False)]}))
    clock.at += 299
    await door.admitted(header)
    clock.at += 1
    assert "key set" in await door.refused(401, header)


# ── passwords ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_password_of_basic_auth_is_a_token_if_the_name_is_token() -> None:
    door = Door(tokens=[token()])
    assert await door.admitted(basic("token", TOKEN)) == await door.admitted(f"Bearer {TOKEN}")
    for name, password in (("token", "ch_another"), ("token", "✓"), ("token", ""), ("somebody", TOKEN)):
        await door.refused(401, basic(name, password))


@pytest.mark.parametrize("scheme", ["Basic", "basic"])
async def test_the_right_password_identifies_its_user(scheme: str) -> None:
    door = Door(users=[user("p:w ✓", tenant="acme", scopes=["jobs:*"])])
    header = basic("ops", "p:w ✓").replace("Basic", scheme)
    for _ in range(2):
        assert await door.admitted(header) == Caller(
            "ops", "acme", frozenset({"jobs:*"}), frozenset({"*"}), rate_key="user:ops"
        )


@pytest.mark.parametrize(
    ("name", "password"), [("ops", "wrong"), ("ops", ""), ("nobody", "pw"), ("", ""), ("OPS", "pw")]
)
async def test_a_wrong_password_and_an_unknown_name_get_the_same_answer(name: str, password: str) -> None:
    door = Door(users=[user()])
    for _ in range(2):
        assert await door.refused(401, basic(name, password)) == "wrong name or password"
    await door.admitted(basic("ops", "pw"))


@pytest.mark.parametrize("credentials", ["!!!", "b3Bz", "/w==", "\xf6"])
async def test_credentials_that_are_not_name_and_password_get_401(credentials: str) -> None:
    assert "name:password" in await Door(users=[user()]).refused(401, f"Basic {credentials}")


def test_a_malformed_password_hash_is_a_configuration_error_that_does_not_repeat_it() -> None:
    with pytest.raises(ConfigError, match=r"auth\.users: ops: .*scrypt:<n>") as refused:
        Door(users=[{"name": "ops", "password_hash": "scrypt:SENTINEL"}])
    assert "SENTINEL" not in str(refused.value)


class Watched(ThreadPoolExecutor):
    """Counts its runs, and how many are parallel."""

    def __init__(self) -> None:
        super().__init__(max_workers=16)
        self.count = self.running = self.peak = 0
        self._counting = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        def watched() -> Any:
            with self._counting:
                self.count += 1
                self.running += 1
                self.peak = max(self.peak, self.running)
            try:
                return fn(*args, **kwargs)
            finally:
                with self._counting:
                    self.running -= 1

        return super().submit(watched)


def passwords(clock: Clock, stored: str) -> Passwords:
    config = load_config(environ={}, overrides={"auth.users": [{"name": "ops", "password_hash": stored}]})
    return Passwords(config.auth.users, 0.0, clock)


def credentials(password: str) -> str:
    return basic("ops", password).removeprefix("Basic ")


async def test_checking_a_password_does_not_block_the_event_loop() -> None:
    check = asyncio.create_task(passwords(Clock(), hash_password("pw")).check(credentials("pw")))
    turns = 0
    while not check.done():
        turns += 1
        await asyncio.sleep(0)
    assert (await check).subject == "ops"
    assert turns > 100


async def test_at_most_two_passwords_are_checked_in_parallel() -> None:
    asyncio.get_running_loop().set_default_executor(executor := Watched())
    door = passwords(Clock(), hash_password("pw"))
    tries = [door.check(credentials(f"wrong-{number}")) for number in range(PASSWORD_CHECKS * 2)]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Unauthenticated}
    assert executor.count == PASSWORD_CHECKS * 2
    assert executor.peak == PASSWORD_CHECKS


async def test_a_flood_of_passwords_gets_429_and_leaves_nothing_behind() -> None:
    door = passwords(Clock(), cheap_hash("pw"))
    tries = [door.check(credentials(f"wrong-{number}")) for number in range(PASSWORD_QUEUE + 10)]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(TooManyRequests) == 10
    assert (await door.check(credentials("pw"))).subject == "ops"


async def test_the_result_of_a_password_check_is_cached_for_five_minutes() -> None:
    asyncio.get_running_loop().set_default_executor(executor := Watched())
    clock = Clock()
    door = passwords(clock, cheap_hash("pw"))
    for expected in (2, 4):
        for _ in range(5):
            assert (await door.check(credentials("pw"))).subject == "ops"
            with pytest.raises(Unauthenticated):
                await door.check(credentials("wrong"))
        assert executor.count == expected
        clock.at += 300


async def test_concurrent_requests_with_one_password_need_few_checks() -> None:
    asyncio.get_running_loop().set_default_executor(executor := Watched())
    door = passwords(Clock(), cheap_hash("pw"))
    callers = await asyncio.gather(*(door.check(credentials("pw")) for _ in range(PASSWORD_QUEUE)))
    assert {caller.subject for caller in callers} == {"ops"}
    assert executor.count <= PASSWORD_CHECKS


# ── bounds and secrets ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_cache_is_bounded_and_evicts_the_least_recently_used_first() -> None:
    kept: Remembered[int] = Remembered(3, Clock())
    for number in range(3):
        kept.put(bytes([number]), number, NOW + 1)
    assert kept.get(b"\0") == 0
    kept.put(b"x", 9, NOW + 1)
    assert len(kept) == 3
    assert [kept.get(key) for key in (b"\0", b"\1", b"\2", b"x")] == [0, None, 2, 9]


def test_a_cached_value_expires() -> None:
    clock = Clock()
    kept: Remembered[int] = Remembered(3, clock)
    kept.put(b"a", 1, NOW + 1)
    clock.at += 1
    assert kept.get(b"a") is None
    assert len(kept) == 0


@pytest.mark.parametrize(
    "header",
    [
        "SENTINEL",
        "Bearer SENTINEL",
        "SENTINEL x",
        "Bearer SENTINEL.SENTINEL.SENTINEL",
        basic("SENTINEL", "SENTINEL"),
        "Basic SENTINEL",
        hs256(scope="SENTINEL", role="SENTINEL"),
        hs256(tid="SENTINEL"),
        hs256(exp="SENTINEL"),
    ],
)
async def test_no_answer_error_repr_or_log_contains_a_secret(header: str) -> None:
    door = Door(tokens=[token()], users=[user()], jwt_secret=SECRET)
    with structlog.testing.capture_logs() as logs, pytest.raises(ChargehandError) as refused:
        await door.gate.admit(asking(header), "jobs:read")
    shown = " ".join(
        [
            (await door.get(header)).data.decode(),
            *traceback.format_exception(refused.value),
            repr(vars(door.gate)),
            repr(logs),
        ]
    )
    for secret in ("SENTINEL", header, *header.split(), SECRET, TOKEN, "scrypt:16"):
        assert secret in ("Bearer", "Basic", "x") or secret not in shown
