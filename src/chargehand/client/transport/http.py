"""One HTTP call with a timeout, repeated only where that cannot do a thing twice."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypedDict

import aiohttp
import msgspec

from chargehand.client.errors import CUT, NO_TLS, UNTRUSTED, ClientError, NoAnswer, refusal, refused
from chargehand.client.transport.backoff import LONGEST_ASKED_SECONDS, Random, pause
from chargehand.client.transport.forks import leak, watch_forks

MAX_ANSWER = 256 << 20  # more than any server sends; a broken one must not fill the memory
MAX_REFUSAL = 1 << 20


class CallOptions(TypedDict, total=False):
    """What a call may have besides its body. Without `timeout` and `retries`, or with None, those of the client hold."""

    query: Mapping[str, str]
    headers: Mapping[str, str]
    timeout: float | None
    retries: int | None


class HttpTransport:
    """The connections of one client. The first call opens the session, so that it belongs to the loop of the calls."""

    def __init__(
        self, url: str, token: str, *, timeout: float = 30.0, retries: int = 4, chance: Random = random.random
    ) -> None:
        self._url = url.rstrip("/")
        token = token.strip()  # a token from a file ends with a line break
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.timeout = timeout
        self._retries = retries
        self._chance = chance
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the session
        self.may_have_changed = False  # whether the server may have done anything but reads for this client
        watch_forks(self)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def forked(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            leak(session)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        safe: bool,
        query: Mapping[str, str] = {},
        headers: Mapping[str, str] = {},
        timeout: float | None = None,
        retries: int | None = None,
    ) -> tuple[int, bytes]:
        """Return status and body of a good answer, else raise ClientError. `safe`: this may be sent twice."""
        left = self._retries if retries is None else retries
        data = None if body is None else msgspec.json.encode(body)
        limits = aiohttp.ClientTimeout(total=timeout or self.timeout, sock_connect=10)
        failures, unsure, changes = 0, False, method != "GET"
        while True:
            try:
                async with self._answer(method, path, data, limits, query, headers, safe) as answer:
                    content = await _bounded(answer, MAX_ANSWER)
                self.may_have_changed = self.may_have_changed or changes
                return answer.status, content
            except ClientError as error:
                sent_before = unsure
                unsure = unsure or (changes and may_have_been_done(error))
                self.may_have_changed = self.may_have_changed or unsure
                if failures >= left or not _repeatable(error, safe):
                    if sent_before and not error.sent:  # the last try did not arrive; an earlier one may have
                        raise NoAnswer(error.text, error.detail, cause=error.cause) from None
                    raise
                await asyncio.sleep(pause(failures, self._chance, asked=error.retry_after_seconds))
                failures += 1

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        body: Any,
        silence_seconds: float,
        *,
        query: Mapping[str, str] = {},
        headers: Mapping[str, str] = {},
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open an endless answer, which is broken after `silence_seconds` without a byte. Without a body it is a GET."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=silence_seconds)
        method, data = ("GET", None) if body is None else ("POST", msgspec.json.encode(body))
        async with self._answer(method, path, data, limits, query, headers) as answer:
            yield answer

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        data: bytes | None,
        timeout: aiohttp.ClientTimeout,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        safe: bool = True,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        kind = {} if data is None else {"Content-Type": "application/json"}
        headers = {**self._headers, **kind, **headers}
        for name, value in headers.items():
            if not value.isprintable():
                raise refused(
                    400, f"the header {name} cannot be sent", "it has a line break or another control character"
                )
        try:
            # Following a redirect could turn a POST into a GET, or lose the token: it is raised as an error instead.
            async with self._connections().request(
                method,
                self._url + path,
                data=data,
                headers=headers,
                params=query,
                timeout=timeout,
                allow_redirects=False,
                middlewares=() if safe else (_once_only,),
            ) as answer:
                if answer.status >= 300:
                    raise refusal(answer.status, await _bounded(answer, MAX_REFUSAL), answer.headers.get("Retry-After"))
                yield answer
        except aiohttp.ClientConnectorCertificateError as error:
            why = str(error.certificate_error)
            raise NoAnswer("the certificate of the server is not trusted", why, sent=False, cause=UNTRUSTED) from None
        except aiohttp.ClientConnectorSSLError as error:
            raise NoAnswer("the server does not speak TLS", str(error.os_error), sent=False, cause=NO_TLS) from None
        except aiohttp.ClientConnectorError as error:
            raise NoAnswer("the server cannot be reached", str(error.os_error), sent=False) from None
        except aiohttp.ClientPayloadError:
            raise NoAnswer("the connection broke in the middle of the answer") from None
        except aiohttp.InvalidURL:
            raise refused(400, f"{self._url!r} is not a URL") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(error) from None

    def _connections(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:  # a session of another loop cannot be used, or closed, here
            self._loop = loop
            # No limit: callers limit their calls themselves, and a stream must not wait for a connection of another.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session


async def _once_only(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep aiohttp from repeating a DELETE when the connection breaks: it does so only for errors of its own types."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
        raise _no_answer(error) from None


def _no_answer(error: Exception) -> NoAnswer:
    cause = CUT if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError) else ""
    return NoAnswer("no answer", str(error) or type(error).__name__, cause=cause)


async def _bounded(answer: aiohttp.ClientResponse, most: int) -> bytes:
    if (answer.content_length or 0) <= most:
        pieces = bytearray()
        async for piece in answer.content.iter_any():
            pieces += piece
            if len(pieces) > most:
                break
        else:
            return bytes(pieces)
    raise refused(502, "the answer is too large", f"more than {most} bytes")


def may_have_been_done(error: ClientError) -> bool:
    return error.sent and not 0 < error.status < 500 and not _asks_back(error)


def _asks_back(error: ClientError) -> bool:
    """A 503 with Retry-After means that the server did nothing; without it, the server may have failed half-way."""
    return error.status == 503 and error.retry_after_seconds is not None


def _repeatable(error: ClientError, safe: bool) -> bool:
    # If the server asks for a longer pause than the client would make, the caller gets the error at once.
    if (error.retry_after_seconds or 0) > LONGEST_ASKED_SECONDS or error.cause in (UNTRUSTED, NO_TLS):
        return False
    if error.status == 429 or not error.sent:
        return True  # the server did not begin with it
    return _asks_back(error) or (safe and error.away)
