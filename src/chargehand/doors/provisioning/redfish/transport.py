"""One request to one BMC: checked by the egress policy, bounded in time and size, and never to another host.

This file decides only whether there was an answer. client.py interprets it and decides about retries.
"""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from chargehand import __version__
from chargehand.doors.provisioning.redfish.errors import RedfishError, RedfishRefused, RedfishUnreachable, Untrusted
from chargehand.doors.provisioning.redfish.facts import Bmc
from chargehand.doors.provisioning.redfish.messages import RedfishMessages, one_line, said
from chargehand.doors.provisioning.redfish.patience import retry_after
from chargehand.webhooks.egress import EgressPolicy, make_connector, refusal

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_VALUES = 50_000  # counted by commas and brackets: small values take many times the memory of their text
MAX_REDIRECTS = 3
CONNECT_SECONDS = 10.0
Observe = Callable[[str, str, float, bool], None]

_FINGERPRINT = re.compile(r"sha256:((?:[0-9a-f]{2}:?){31}[0-9a-f]{2})", re.IGNORECASE)
_KEEPS_METHOD = (307, 308)
_PROBLEMS = {RecursionError: "nested too deeply", OverflowError: f"made of more than {MAX_VALUES} values"}
_REDIRECTS = (301, 302, 303, *_KEEPS_METHOD)


class RedfishAnswer(msgspec.Struct, frozen=True):
    path: str
    status: int
    headers: Mapping[str, str]
    data: dict[str, Any]

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def etag(self) -> str:
        tag = self.headers.get("ETag") or self.data.get("@odata.etag")
        return tag if isinstance(tag, str) and tag.isprintable() else ""

    @property
    def said(self) -> RedfishMessages:
        return said(self.data)

    @property
    def retry_after_seconds(self) -> float | None:
        return retry_after(self.headers.get("Retry-After"), self.headers.get("Date"), time.time())


class RedfishTransport:
    def __init__(self, bmc: Bmc, policy: EgressPolicy, timeout_seconds: float) -> None:
        self._bmc = bmc
        self._policy = policy
        self._timeout_seconds = timeout_seconds
        self._hidden: dict[str, str] = {bmc.password: "***"} if bmc.password else {}
        self._http: aiohttp.ClientSession | None = None
        self._known_origin: URL | None = None

    def hide(self, secret: str, instead: str = "***") -> None:
        """Remove this text from all errors from now on, even if the BMC repeats it."""
        if secret:
            self._hidden[secret] = instead

    def clean(self, text: str) -> str:
        for secret in sorted(self._hidden, key=len, reverse=True):
            text = text.replace(secret, self._hidden[secret])
        return one_line(text)

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> RedfishAnswer:
        """Return the answer, whatever its status. Redirects are followed only on the same host, because credentials are sent."""
        url = self._located(path)
        trust = _ssl(self._bmc.tls, url.scheme)
        data = None if body is None else msgspec.json.encode(body)
        given = {**(headers or {}), **({} if data is None else {"Content-Type": "application/json"})}
        for _ in range(MAX_REDIRECTS + 1):
            status, answered, content = await self._send(method, url, data, given, trust)
            target = answered.get("Location")
            if status not in (_REDIRECTS if method == "GET" else _KEEPS_METHOD) or not target:
                return RedfishAnswer(url.raw_path_qs, status, answered, self._decode(method, url, status, content))
            url = self._redirected(target, url)
        raise RedfishRefused(f"{method} {self._shown(url)}: more than {MAX_REDIRECTS} redirects, one after another")

    def _located(self, link: str) -> URL:
        """Return the URL of a BMC's link on the registered host: many BMCs write another host name into their links."""
        try:
            url = URL(link, encoded=True)
            path = url.raw_path_qs if url.absolute else link
            if not path.startswith("/") or not path.isprintable():
                raise ValueError
            return self._origin().join(URL(path, encoded=True)).with_fragment(None)
        except ValueError:
            raise RedfishRefused(f"the BMC sent an invalid link: {one_line(link)[:100]!r}") from None

    def _redirected(self, target: str, base: URL) -> URL:
        """Return the target of a redirect, or raise Untrusted if it is another host: unlike a link, a redirect means that."""
        try:
            url = base.join(URL(target, encoded=True))
            same = url.origin() == self._origin()
        except ValueError:
            raise RedfishRefused(f"the BMC redirects to an invalid URL: {one_line(target)[:100]!r}") from None
        if not same:
            raise Untrusted(
                f"the BMC redirects to {url.host}:{url.port} ({url.scheme}), and credentials are sent to no other host: if "
                "that is its right address, register it"
            )
        return url.with_fragment(None)

    def _origin(self) -> URL:
        if self._known_origin is None:
            self._known_origin = _origin(self._bmc.address)
        return self._known_origin

    async def _send(
        self, method: str, url: URL, data: bytes | None, headers: Mapping[str, str], trust: bool | aiohttp.Fingerprint
    ) -> tuple[int, Mapping[str, str], bytes]:
        try:
            async with self._session().request(
                method, url, data=data, headers=headers, allow_redirects=False, ssl=trust
            ) as response:
                content = await self._read(response, method, url)
                return response.status, response.headers, content
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise self._failure(error, method, url) from None

    async def _read(self, response: aiohttp.ClientResponse, method: str, url: URL) -> bytes:
        content = bytearray()
        async for chunk in response.content.iter_any():
            content += chunk
            if len(content) > MAX_BODY_BYTES:
                response.close()  # reading the rest to reuse the connection is not worth it
                if method != "GET":
                    return b""  # the status is enough, the body is not used
                raise RedfishRefused(f"{method} {self._shown(url)}: the answer is over {MAX_BODY_BYTES >> 20} MiB long")
        return bytes(content)

    def _failure(self, error: Exception, method: str, url: URL) -> RedfishError:
        what = f"{method} {self._shown(url)}"
        if (reason := refusal(error)) is not None:
            return Untrusted(f"the egress policy forbids the BMC's address: {reason}")
        if isinstance(error, aiohttp.ServerFingerprintMismatch):
            return Untrusted(f"the BMC's certificate is not the one on record: it is sha256:{error.got.hex()}")
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return Untrusted(f"the BMC's certificate is not trusted: {self.clean(str(error.certificate_error))}")
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return RedfishUnreachable(f"{what}: no connection to the BMC: {self.clean(_reason(error))}")
        if isinstance(error, TimeoutError):
            return RedfishUnreachable(f"{what}: no answer within {self._timeout_seconds:g} s", unclear=True)
        if isinstance(error, aiohttp.InvalidURL):
            return RedfishRefused(f"{what}: invalid URL")
        return RedfishUnreachable(f"{what}: the connection broke: {self.clean(_reason(error))}", unclear=True)

    def _decode(self, method: str, url: URL, status: int, content: bytes) -> dict[str, Any]:
        try:
            if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
                raise OverflowError
            data = msgspec.json.decode(content) if content.strip() else {}
        except (OverflowError, RecursionError, msgspec.DecodeError, UnicodeDecodeError) as error:
            # Such as an HTML page of a web server in front: for errors and writes the status is enough.
            if status >= 300 or method != "GET":
                return {}
            problem = _PROBLEMS.get(type(error), "not JSON")
            raise RedfishRefused(f"{method} {self._shown(url)}: the answer is {problem}", status=status) from None
        return data if isinstance(data, dict) else {}

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            connect = min(CONNECT_SECONDS, self._timeout_seconds)
            self._http = aiohttp.ClientSession(
                connector=make_connector(self._policy, limit=4, limit_per_host=4),
                timeout=aiohttp.ClientTimeout(total=self._timeout_seconds, sock_connect=connect),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                skip_auto_headers=("Content-Type",),  # none for a POST without a body
                # Ask for uncompressed bodies, although not all BMCs comply.
                headers={
                    "User-Agent": f"chargehand/{__version__}",
                    "Accept": "application/json",
                    "Accept-Encoding": "identity",
                    "OData-Version": "4.0",
                },
            )
        return self._http

    def _shown(self, url: URL) -> str:
        return self.clean(url.raw_path)


def _origin(address: str) -> URL:
    try:
        url = URL(address if "://" in address else f"https://{address}")
        if url.scheme not in ("http", "https") or not url.host or url.user or url.password:
            raise ValueError
        return url.origin()
    except ValueError:
        # Without the address: it may hold a password.
        raise RedfishRefused(
            "the BMC's address must be http:// or https:// with a host, without user name and password"
        ) from None


def _ssl(tls: str, scheme: str) -> bool | aiohttp.Fingerprint:
    if tls == "verify":
        return True
    if tls == "insecure":
        return False
    pinned = _FINGERPRINT.fullmatch(tls)
    if pinned is None:
        raise RedfishRefused(
            'tls must be "verify", "insecure" or "sha256:" with the 64 hex digits of the certificate\'s digest'
        )
    if scheme != "https":
        raise Untrusted("the registration names a certificate, but the BMC's address is http://, which has none")
    return aiohttp.Fingerprint(bytes.fromhex(pinned[1].replace(":", "")))


def _reason(error: Exception) -> str:
    cause = getattr(error, "os_error", None)
    return str(getattr(cause, "strerror", None) or cause or error) or type(error).__name__
