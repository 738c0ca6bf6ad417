"""JSON Web Tokens: checks the signature and the claims of a token, and fetches the keys that this needs.

The algorithm decides where the key comes from, and no key serves two kinds: HS256 is checked with the shared secret only,
the others with the public keys of a JWKS only. So there is no key for a token that was "signed" by HS256 with a public key,
or not signed at all.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
from joserfc.errors import ClaimError, JoseError
from joserfc.jwa import JWS_ALGORITHMS
from joserfc.jwk import JWKRegistry, Key, OctKey, RSAKey
from joserfc.jwt import ClaimsOption, JWTClaimsRegistry
from joserfc.util import urlsafe_b64decode

from chargehand.config import AuthConfig, Secret, Tenant
from chargehand.errors import ConfigError, Forbidden, Unauthenticated
from chargehand.observability.logs import get_logger

LEEWAY_SECONDS = 30
JWKS_MAX_AGE_SECONDS = 300.0
JWKS_REFETCH_SECONDS = 30.0  # for a key that is not there, or after a failure
JWKS_FIRST_RETRY_SECONDS = 5.0  # as long as there are no keys at all
JWKS_TIMEOUT_SECONDS = 5.0
JWKS_MAX_BYTES = 1024 * 1024
JWKS_MAX_KEYS = 256  # the check of a key (is it on its curve, is its modulus of sound length) takes time

TENANT_CLAIMS = ("tid", "tenantId", "tenant_id", "organizationId", "organization_id")
OF_SUBJECTS = "sub-"  # in front of a subject that is its own tenant

_PUBLIC_KEY_ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "EdDSA", "Ed25519")
_ALGORITHMS = {a.name: a for a in JWS_ALGORITHMS if a.name in ("HS256", *_PUBLIC_KEY_ALGORITHMS)}

# The claims that joserfc checks, and what it means if one of them is wrong.
_REFUSALS = {
    "exp": "the JWT has expired; get a new one",
    "nbf": "the JWT is not valid yet (nbf)",
    "iss": "the JWT is from another issuer (iss)",
    "aud": "the JWT is meant for another audience (aud)",
}

Keys = Mapping[tuple[str | None, str], Key]  # (kid, algorithm); a token without kid finds a key that is the only choice
T = TypeVar("T")

log = get_logger(__name__)


class Header(msgspec.Struct, frozen=True):
    alg: str
    kid: str | None = None
    crit: Any = None


class Claims(msgspec.Struct, frozen=True):
    """The claims that callers of this module use, once they are checked."""

    exp: float
    sub: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    scope: str = ""
    scopes: tuple[str, ...] = ()
    event_types: tuple[str, ...] = msgspec.field(name="eventTypes", default=())
    worker_group: str = msgspec.field(name="workerGroup", default="")
    role: str = ""
    tenant: str = ""  # made of TENANT_CLAIMS, whatever a claim of this name says


class Jwks(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


_header_decoder = msgspec.json.Decoder(Header)
_body_decoder = msgspec.json.Decoder(dict[str, Any])
_jwks_decoder = msgspec.json.Decoder(Jwks)


class KeySource(Protocol):
    async def find(self, kid: str | None, algorithm: str) -> Key | None: ...


def jwt_verifier(auth: AuthConfig, now: Callable[[], float], clock: Callable[[], float]) -> "JwtVerifier | None":
    jwks: KeySource | None = None
    if auth.jwks_url:
        jwks = JwksUrl(auth.jwks_url, clock)
    elif auth.jwks_file:
        jwks = JwksFile(Path(auth.jwks_file))
    return JwtVerifier(auth, jwks, now) if jwks or auth.jwt_secret else None


class JwtVerifier:
    def __init__(self, auth: AuthConfig, jwks: KeySource | None, now: Callable[[], float]) -> None:
        if jwks is not None and not (auth.jwt_issuer and auth.jwt_audience):
            raise ConfigError("a JWKS needs auth.jwt_issuer and auth.jwt_audience: its keys sign tokens for others too")
        self._secret = _secret_key(auth.jwt_secret) if auth.jwt_secret else None
        self._jwks = jwks
        expected = {"iss": [auth.jwt_issuer] if auth.jwt_issuer else [], "aud": list(auth.jwt_audience)}
        options: dict[str, ClaimsOption] = {
            name: {"essential": True, "values": values} for name, values in expected.items() if values
        }
        self._registry = JWTClaimsRegistry(lambda: int(now()), LEEWAY_SECONDS, **options)

    async def verify(self, token: str) -> Claims:
        signed, _, signature = token.rpartition(".")
        head, _, body = signed.partition(".")
        header = _decode(head, _header_decoder, "header")
        if header.crit is not None:
            raise Unauthenticated("the JWT has critical extensions, and none is understood here")
        key = await self._key(header)
        if not _is_signed(header.alg, key, signed, signature):
            raise Unauthenticated("the signature of the JWT is wrong")
        raw = _decode(body, _body_decoder, "payload")
        claims = _convert(raw)
        self._check({name: raw[name] for name in _REFUSALS if name in raw})
        return msgspec.structs.replace(claims, tenant=tenant_of(raw))

    async def _key(self, header: Header) -> Key:
        if header.alg == "HS256" and self._secret is not None:
            return self._secret
        if header.alg in _PUBLIC_KEY_ALGORITHMS and self._jwks is not None:
            key = await self._jwks.find(header.kid, header.alg)
            if key is None:
                raise Unauthenticated("the JWT is signed with a key that is not in the key set")
            return key
        raise Unauthenticated("the JWT is signed with an algorithm that is not accepted here")

    def _check(self, claims: dict[str, Any]) -> None:
        try:
            self._registry.validate(claims)
        except ClaimError as error:
            raise Unauthenticated(_REFUSALS.get(error.claim, f"the JWT lacks a claim: {error.claim}")) from None


def tenant_of(claims: Mapping[str, Any]) -> str:
    """Return the tenant on which all tenant claims agree; without such a claim, a tenant made of the subject.

    Users often choose their subject themselves. The prefix, which no tenant claim may have, keeps them from choosing the name of a
    tenant of the configuration or of another token.
    """
    named = [claims[name] for name in TENANT_CLAIMS if name in claims]
    try:
        (tenant,) = set(msgspec.convert(named or [claims["sub"]], list[Tenant]))
        if named and tenant.startswith(OF_SUBJECTS):
            raise ValueError
        return tenant if named else msgspec.convert(OF_SUBJECTS + tenant, Tenant)
    except (msgspec.ValidationError, ValueError):
        raise Forbidden("invalid tenant claims") from None


class JwksUrl:
    """Keys fetched from a URL, at most once in JWKS_REFETCH_SECONDS, however many tokens name unknown keys."""

    def __init__(self, url: str, clock: Callable[[], float]) -> None:
        self._url = url
        self._clock = clock
        self._keys: Keys = {}
        self._stale_at = self._ask_again_at = clock()
        self._lock = asyncio.Lock()

    async def find(self, kid: str | None, algorithm: str) -> Key | None:
        if self._wants_refresh(kid, algorithm):
            async with self._lock:
                # Those who waited for the lock share what the first one fetched, or its failure.
                if self._wants_refresh(kid, algorithm):
                    await self._refresh()
        if not self._keys:
            raise Unauthenticated(
                "the JWT cannot be checked: the key set is not available now; try again",
                retry_after_seconds=max(0.0, self._ask_again_at - self._clock()),
            )
        return self._keys.get((kid, algorithm))

    def _wants_refresh(self, kid: str | None, algorithm: str) -> bool:
        now = self._clock()
        return now >= self._ask_again_at and (now >= self._stale_at or (kid, algorithm) not in self._keys)

    async def _refresh(self) -> None:
        try:
            self._keys = await asyncio.to_thread(index, await self._fetch())
            self._stale_at = self._clock() + JWKS_MAX_AGE_SECONDS
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            # The old keys stay: an issuer that is down for a while must not lock everybody out.
            log.warning("jwks_refresh_failed", host=urlsplit(self._url).hostname, error=type(error).__name__)
        wait = JWKS_REFETCH_SECONDS if self._keys else JWKS_FIRST_RETRY_SECONDS
        self._ask_again_at = self._clock() + wait

    async def _fetch(self) -> bytes:
        timeout = aiohttp.ClientTimeout(total=JWKS_TIMEOUT_SECONDS)
        async with (
            # Not decompressed: a few bytes must not become a gigabyte.
            aiohttp.ClientSession(timeout=timeout, raise_for_status=True, auto_decompress=False) as session,
            session.get(self._url, headers={"Accept-Encoding": "identity"}, allow_redirects=False) as answer,
        ):
            document = bytearray()
            async for chunk in answer.content.iter_any():
                document += chunk
                if len(document) > JWKS_MAX_BYTES:
                    raise ValueError("the key set is too large")
            return bytes(document)


class JwksFile:
    """Keys in a file, read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._keys: Keys = {}
        try:
            self._reload()
        except (OSError, ValueError) as error:
            raise ConfigError(f"auth.jwks_file cannot be used: {error}") from None

    async def find(self, kid: str | None, algorithm: str) -> Key | None:
        try:
            await asyncio.to_thread(self._reload)
        except (OSError, ValueError) as error:
            # Perhaps the file is half written. The stamp is unchanged, so the next call reads it again.
            log.warning("jwks_reload_failed", path=str(self._path), error=type(error).__name__)
        return self._keys.get((kid, algorithm))

    def _reload(self) -> None:
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp == self._stamp:
            return
        if status.st_size > JWKS_MAX_BYTES:
            raise ValueError("the key set is too large")
        self._keys = index(self._path.read_bytes())
        self._stamp = stamp


def index(document: bytes) -> Keys:
    """Return the keys of a JWKS by (kid, algorithm). Raise ValueError if none of them can be used."""
    try:
        entries = _jwks_decoder.decode(document).keys
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ValueError("it is not a JWKS document") from None
    if len(entries) > JWKS_MAX_KEYS:
        raise ValueError(f"it holds over {JWKS_MAX_KEYS} keys")
    keys = [key for key in map(_public_key, entries) if key is not None]
    fits = [(name, key) for name in _PUBLIC_KEY_ALGORITHMS for key in keys if _fits(name, key)]
    if not fits:
        raise ValueError("it holds no key for " + ", ".join(_PUBLIC_KEY_ALGORITHMS))
    found: dict[tuple[str | None, str], Key] = {(key.kid, name): key for name, key in fits if key.kid}
    alone = Counter(name for name, _ in fits)
    found.update({(None, name): key for name, key in fits if alone[name] == 1})
    return found


def _public_key(entry: dict[str, Any]) -> Key | None:
    if entry.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    try:
        key = JWKRegistry.import_key(entry)
    except Exception as error:  # joserfc lets KeyError and more through; one bad key must not cost the others
        log.warning("jwks_key_skipped", error=type(error).__name__)
        return None
    if isinstance(key, RSAKey) and not 2048 <= key.raw_value.key_size <= 16384:
        log.warning("jwks_key_skipped", error="an RSA key of less than 2048 bits, or more than 16384")
        return None
    return key


def _fits(algorithm: str, key: Key) -> bool:
    try:
        _ALGORITHMS[algorithm].check_key(key)
    except JoseError:
        return False
    return True


def _secret_key(secret: Secret) -> Key:
    try:
        return OctKey.import_key(secret.reveal())
    except ValueError:
        raise ConfigError("auth.jwt_secret is a public key; those belong into a JWKS") from None


def _is_signed(algorithm: str, key: Key, signed: str, signature: str) -> bool:
    try:
        # Not through joserfc's registry: that warns at each token that says EdDSA, and most issuers still do.
        return _ALGORITHMS[algorithm].verify(signed.encode("ascii"), urlsafe_b64decode(signature.encode("ascii")), key)
    except (JoseError, ValueError):
        return False


def _decode(part: str, decoder: "msgspec.json.Decoder[T]", name: str) -> T:
    try:
        return decoder.decode(urlsafe_b64decode(part.encode("ascii")))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise Unauthenticated(f"the {name} of the JWT cannot be read") from None


def _convert(claims: dict[str, Any]) -> Claims:
    try:
        return msgspec.convert(claims, Claims)
    except msgspec.ValidationError as error:
        raise Unauthenticated(f"the JWT lacks a claim or has a wrong one: {error}") from None
