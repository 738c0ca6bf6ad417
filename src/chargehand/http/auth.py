"""Authentication and authorization: the gate that every request passes."""

import asyncio
import base64
import hashlib
import hmac
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from chargehand.config import Config, Token, User
from chargehand.errors import ConfigError, Forbidden, TooManyRequests, Unauthenticated
from chargehand.http.credentials import PasswordHash, parse_token_hash
from chargehand.http.jwt import LEEWAY_SECONDS, Claims, jwt_verifier
from chargehand.http.neighbours import asked_by_another_site, is_local_name, names_of, places_of
from chargehand.http.rate import RateLimiter
from chargehand.http.request import Request
from chargehand.http.scopes import SCOPES

REMEMBER_SECONDS = 300.0
REMEMBERED = 4096
PASSWORD_CHECKS = 2  # in parallel; each keeps a core busy for a fifth of a second
PASSWORD_QUEUE = 32  # checks running or waiting

TOKEN_USER = "token"  # noqa: S105 - the name, of HTTP Basic
_EVERYTHING = frozenset({"*"})
_OUR_SCOPES = frozenset({"*", *(scope.partition(":")[0] for scope in SCOPES)})  # the part before the colon
_OTHER_NAME = (
    "without [auth] this server can be called by an IP address, as localhost, or by the name in a public_url: "
    "the Host of this request is another name; configure [auth] to allow it"
)
_OTHER_SITE = (
    "a page of another site made the browser send this request (see Sec-Fetch-Site or Origin): without a token in a header "
    "only pages of this server may do so"
)
_HINT = "send `Authorization: Bearer <token>`"

Clock = Callable[[], float]
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Caller:
    subject: str
    tenant: str
    scopes: frozenset[str] = frozenset()
    event_types: frozenset[str] = frozenset()
    worker_group: str = ""
    role: str = ""
    rate_key: str = ""  # callers with the same key share one bucket
    rate_per_second: float = 0.0  # 0: no limit
    stranger: bool = False  # has a valid JWT, but none of its scopes is one of this server's
    until: float = math.inf  # the date when the JWT is not valid any more

    def may(self, scope: str) -> bool:
        """Does the caller hold this scope? `*` allows everything, `jobs:*` everything that begins with `jobs:`."""
        held = self.scopes
        return scope in held or "*" in held or any(each.endswith(":*") and scope.startswith(each[:-1]) for each in held)


class Gate:
    """Admits callers that authenticate; if no [auth] is configured, it admits everybody with all scopes.

    `now` is the date, by which tokens expire; `clock` is monotonic.
    """

    def __init__(self, config: Config, *, now: Clock = time.time, clock: Clock = time.monotonic) -> None:
        auth, rate = config.auth, config.auth.rate_per_second
        self._everybody = None if config.has_auth else _everybody(rate)
        public = (config.provisioning.public_url, config.tasks.public_url)
        self._names, self._places = names_of(public), places_of(public)
        self._nobody = self._everybody or Caller("anonymous", tenant="")
        self._tokens = _by_digest(auth.tokens, rate)
        self._jwt = jwt_verifier(auth, now, clock)
        self._jwt_callers: Remembered[Caller] = Remembered(REMEMBERED, now)
        self._passwords = Passwords(auth.users, rate, clock) if auth.users else None
        self._limiter = RateLimiter(clock)
        self._rate = rate
        self._burst = auth.rate_burst
        self._now = now

    async def admit(self, req: Request, scope: str | None) -> None:
        """Set `req.caller` or raise. A scope of None admits everybody, "" any authenticated caller; the handler may check more."""
        if scope is None:
            req.caller = self._nobody
            return
        header = None if self._everybody else _authorization(req)
        if not _is_token(header) and asked_by_another_site(req, self._places):
            raise Forbidden(_OTHER_SITE)
        if self._everybody and not is_local_name(req.get_header("host") or "", self._names):
            raise Forbidden(_OTHER_NAME)
        caller = self._everybody or self._by_token(header) or await self._identify(header)
        self._take_turn(caller)
        if scope and not caller.may(scope):
            raise Forbidden(f"missing scope: this needs `{scope}`")
        req.caller = caller

    async def known(self, token: str) -> Caller:
        """Return the caller of a bearer token that came otherwise than in a header, or raise."""
        caller = self._everybody or await self._bearer(token)
        self._take_turn(caller)
        return caller

    def _by_token(self, header: str | None) -> Caller | None:
        """Return the caller of a configured token, or None. Most requests have one, so this is the fast path without awaits."""
        if header is None or not header.startswith("Bearer "):
            return None
        return self._holder_of(_digest(header[7:].strip()))

    def _holder_of(self, digest: bytes) -> Caller | None:
        entry = self._tokens.get(digest[:8])
        return entry[1] if entry is not None and hmac.compare_digest(entry[0], digest) else None

    def _take_turn(self, caller: Caller) -> None:
        wait = self._limiter.take(caller.rate_key, caller.rate_per_second, self._burst)
        if wait:
            message = f"more than {caller.rate_per_second:g} requests a second; wait {wait:.1f} seconds"
            raise TooManyRequests(message, retry_after_seconds=wait)

    async def _identify(self, header: str | None) -> Caller:
        if not header:
            raise Unauthenticated(f"missing Authorization header; {_HINT}", short="missing Authorization header")
        scheme, _, credentials = header.partition(" ")
        credentials = credentials.strip()
        # The message does not repeat what was sent: if the scheme is missing, that is the token.
        if not credentials:
            raise Unauthenticated(
                f"invalid Authorization header: a scheme and a token are expected; {_HINT}",
                short="invalid Authorization format",
            )
        if token := _token(scheme, credentials):
            return await self._bearer(token)
        match scheme.lower():
            case "basic" if self._passwords is not None:
                return await self._passwords.check(credentials)
        raise Unauthenticated(
            f"this Authorization scheme is not accepted here; {_HINT}", short="invalid Authorization format"
        )

    async def _bearer(self, token: str) -> Caller:
        digest = _digest(token)
        if (holder := self._holder_of(digest)) is not None:
            return holder
        if self._jwt is None or token.count(".") != 2:
            raise Unauthenticated("unknown token", short="invalid token")
        caller = self._jwt_callers.get(digest)
        if caller is None:
            claims = await self._jwt.verify(token)
            caller = _from_claims(claims, self._rate)
            # Not cached until a distant `exp`: a key that its issuer withdraws must soon stop working.
            until = min(caller.until, self._now() + REMEMBER_SECONDS)
            self._jwt_callers.put(digest, caller, until)
        return caller


class Passwords:
    """HTTP Basic. scrypt is slow by design: results are cached, and few checks run in parallel, in threads."""

    def __init__(self, users: Iterable[User], rate: float, clock: Clock) -> None:
        self._users = {user.name: (_password_hash(user), _from_user(user, rate)) for user in users}
        self._stranger = (PasswordHash.of_nobody(), None)
        self._key = os.urandom(32)  # so that the cached digests are useless for guessing passwords elsewhere
        self._clock = clock
        self._right: Remembered[Caller] = Remembered(REMEMBERED, clock)
        # A separate cache, so that a flood of wrong passwords cannot evict the right ones.
        self._wrong: Remembered[bool] = Remembered(REMEMBERED, clock)
        self._turns = asyncio.Semaphore(PASSWORD_CHECKS)
        self._queued = 0

    async def check(self, credentials: str) -> Caller:
        key = hmac.digest(self._key, credentials.encode("latin-1"), "sha256")
        caller = self._recall(key)
        if caller is not None:
            return caller
        name, password = _split(credentials)
        if self._queued >= PASSWORD_QUEUE:
            raise TooManyRequests("too many passwords are being checked; try again", retry_after_seconds=1)
        self._queued += 1
        try:
            async with self._turns:
                return self._recall(key) or await self._compare(key, name, password)
        finally:
            self._queued -= 1

    def _recall(self, key: bytes) -> Caller | None:
        if self._wrong.get(key):
            raise Unauthenticated("wrong name or password")
        return self._right.get(key)

    async def _compare(self, key: bytes, name: str, password: str) -> Caller:
        stored, caller = self._users.get(name, self._stranger)
        matches = await asyncio.to_thread(stored.matches, password)
        until = self._clock() + REMEMBER_SECONDS
        if caller is None or not matches:
            self._wrong.put(key, True, until)
            raise Unauthenticated("wrong name or password")
        self._right.put(key, caller, until)
        return caller


class Remembered(Generic[V]):
    """A cache of the `size` most recently used values, each with an expiry."""

    def __init__(self, size: int, clock: Clock) -> None:
        self._size = size
        self._clock = clock
        self._entries: OrderedDict[bytes, tuple[float, V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        until, value = entry
        if until <= self._clock():
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return value

    def put(self, key: bytes, value: V, until: float) -> None:
        self._entries[key] = (until, value)
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)


def _everybody(rate: float) -> Caller:
    return Caller("anonymous", "default", _EVERYTHING, _EVERYTHING, rate_key="anonymous", rate_per_second=rate)


def _by_digest(tokens: Iterable[Token], default_rate: float) -> dict[bytes, tuple[bytes, Caller]]:
    """Return digests and callers by the first bytes of the digest; a lookup must then compare the whole digest."""
    found: dict[bytes, tuple[bytes, Caller]] = {}
    for token in tokens:
        digest = _token_digest(token)
        if digest[:8] in found:
            raise ConfigError(f"auth.tokens: {token.name} and {found[digest[:8]][1].subject} have the same hash")
        found[digest[:8]] = (digest, _from_token(token, default_rate))
    return found


def _token_digest(token: Token) -> bytes:
    try:
        return parse_token_hash(token.hash)
    except ValueError as error:
        raise ConfigError(f"auth.tokens: {token.name}: {error}") from None


def _password_hash(user: User) -> PasswordHash:
    try:
        return PasswordHash.parse(user.password_hash.reveal())
    except ValueError as error:
        raise ConfigError(f"auth.users: {user.name}: {error}") from None


def _from_token(token: Token, default_rate: float) -> Caller:
    return Caller(
        subject=token.name,
        tenant=token.tenant,
        scopes=frozenset(token.scopes),
        event_types=frozenset(token.event_types),
        worker_group=token.worker_group,
        rate_key=f"token:{token.name}",
        rate_per_second=token.rate_per_second or default_rate,
    )


def _from_user(user: User, rate: float) -> Caller:
    return Caller(
        subject=user.name,
        tenant=user.tenant,
        scopes=frozenset(user.scopes),
        event_types=_EVERYTHING,
        rate_key=f"user:{user.name}",
        rate_per_second=rate,
    )


def _from_claims(claims: Claims, rate: float) -> Caller:
    scopes = frozenset((*claims.scope.split(), *claims.scopes))
    return Caller(
        subject=claims.sub,
        tenant=claims.tenant,
        scopes=scopes,
        event_types=frozenset(claims.event_types),
        worker_group=claims.worker_group,
        role=claims.role,
        rate_key=f"jwt:{claims.tenant}:{claims.sub}",  # by subject, so that a new token does not bring a new bucket
        rate_per_second=rate,
        stranger=not any(scope.partition(":")[0] in _OUR_SCOPES for scope in scopes),
        until=claims.exp + LEEWAY_SECONDS,
    )


def _digest(token: str) -> bytes:
    """Return the SHA-256 of a token. A lookup by the token itself would reveal, by its timing, how much of a guess is right;
    nobody can guess towards a digest. Hashing takes less than a microsecond.
    """
    return hashlib.sha256(token.encode("latin-1")).digest()


def _authorization(req: Request) -> str | None:
    """Return the Authorization header, or x-api-key, which Anthropic's clients send instead, as a bearer token."""
    if given := req.get_header("authorization"):
        return given
    key = req.get_header("x-api-key")
    return f"Bearer {key}" if key else None


def _is_token(header: str | None) -> bool:
    """Is this a bearer token? Browsers remember the credentials of all other schemes and send them by themselves."""
    return header is not None and header[:7].lower() == "bearer "


def token_of(req: Request) -> str:
    """Return the token in the Authorization header, or ""."""
    scheme, _, credentials = (req.get_header("authorization") or "").partition(" ")
    return _token(scheme, credentials.strip())


def _token(scheme: str, credentials: str) -> str:
    """Return a bearer token, or "". Registry clients can only send a name and a password: for the name `token` that is one."""
    if scheme.lower() == "bearer":
        return credentials
    if scheme.lower() != "basic":
        return ""
    try:
        name, password = _split(credentials)
    except Unauthenticated:
        return ""
    return password if name == TOKEN_USER and password.isascii() else ""


def _split(credentials: str) -> tuple[str, str]:
    try:
        name, colon, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except ValueError:
        colon = ""
    if not colon:
        raise Unauthenticated("invalid Basic credentials: base64 of `name:password` is expected")
    return name, password
