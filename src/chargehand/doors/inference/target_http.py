"""Requests to a target: one session, answers with a bound, and errors that say whether the target was reached."""

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any, TypeVar

import aiohttp
import msgspec
from yarl import URL

from chargehand.doors.inference.wire import UNREADABLE

CONNECT_TIMEOUT_SECONDS = 5.0
READ_BYTES = 256 * 1024
LIST_BYTES = 4 << 20  # of a list of models, and of any other answer about the target itself

T = TypeVar("T")


class TargetUnreachable(Exception):
    """A connection to the target could not be made."""


class Gone(Exception):
    """The liveness probe found the target away while a request to it was open."""


class Unfit(aiohttp.ClientError):
    """The target's answer cannot be used: it is too large, or not what was asked for."""


NO_ANSWER = (TargetUnreachable, TimeoutError, aiohttp.ClientError, OSError)  # what a request may raise


class Small(msgspec.Struct, frozen=True):
    """An answer that was read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class TargetHttp:
    def __init__(self, url: str, api_key: str, unreachable: Callable[[str], None]) -> None:
        self.url = url
        self._api_key = api_key
        self._unreachable = unreachable  # called with the reason when a connection cannot be made
        self._session: aiohttp.ClientSession | None = None

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_request_headers_sent.append(_sent)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),  # the ledger bounds them
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,  # not asked for; and a few bytes could become gigabytes
                trust_env=False,
                read_bufsize=READ_BYTES,
                max_line_size=65536,
                max_field_size=65536,
                headers={"Authorization": f"Bearer {self._api_key}"} if self._api_key else {},
                skip_auto_headers=("User-Agent", "Accept-Encoding"),
                trace_configs=[trace],
            )
        return self._session

    @contextlib.asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        sent: Callable[[], None] | None = None,
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; its answer is read as it comes. `sent` is called once the request is on a live connection."""
        timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_TIMEOUT_SECONDS)
        if isinstance(body, bytes | memoryview) and len(body) > READ_BYTES:
            headers = {**(headers or {}), "Content-Length": str(len(body))}
            body = _pieces(body)
        # Encoded: aiohttp sends the path as it is, and resolves no ".." in it.
        request = self._open_session.request(
            method, URL(f"{self.url}{path}", encoded=True), data=body, headers=headers, allow_redirects=False, timeout=timeout,
            trace_request_ctx=sent,
        )  # fmt: skip
        try:
            response = await request
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self._unreachable(f"no connection: {describe(error)}")
            raise TargetUnreachable(describe(error)) from None
        try:
            yield response
        finally:
            response.close() if not response.content.at_eof() else response.release()

    async def ask(
        self, method: str, path: str, body: bytes | None = None, *, timeout_seconds: float, headers: Mapping[str, str] | None = None,
        max_bytes: int = LIST_BYTES,
    ) -> Small:  # fmt: skip
        async with self.open(method, path, body, headers, timeout_seconds=timeout_seconds) as response:
            return Small(response.status, response.headers, await read_whole(response, max_bytes))

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()


async def read_whole(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Return the whole answer, or raise Unfit as soon as it is over `max_bytes`."""
    content = bytearray()
    while piece := await response.content.readany():
        content += piece
        if len(content) > max_bytes:
            raise Unfit(f"the answer is over {max_bytes} bytes")
    return bytes(content)


def read_json(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise Unfit(f"the answer is not what it should be: {error}") from None


async def _pieces(body: bytes | memoryview) -> AsyncIterator[memoryview]:
    """Send a large body (images have megabytes) by pieces, so that other requests get their turn, and without a copy."""
    view = memoryview(body)
    for start in range(0, len(view), READ_BYTES):
        yield view[start : start + READ_BYTES]


async def _sent(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx()


def describe(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        return os.strerror(error.os_error.errno)
    return " ".join(str(error).split())[:300] or type(error).__name__
