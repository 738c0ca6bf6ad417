"""One call over HTTP: bounded, and repeated only where a repetition cannot do anything twice."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from chargehand.client.errors import CUT, NO_ANSWER, NO_TLS, UNTRUSTED, ClientError, refusal
from chargehand.client.waits import Random, pause

BASE = "/v1/codeq"
LONGEST_RETRY_AFTER = 60.0  # who asks for more than this is told at once


class Transport:
    """The connections of one client. Opened by the first call, so that it belongs to the loop that makes the calls."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        base: str = BASE,
        timeout: float = 30.0,
        retries: int = 4,
        chance: Random = random.random,
    ) -> None:
        self._url = url.rstrip("/") + base
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout = timeout
        self._retries = retries
        self._chance = chance
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

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
        """Status and body of a good answer, else ClientError. `safe`: it does no harm to send this twice."""
        left = self._retries if retries is None else retries
        data = None if body is None else msgspec.json.encode(body)
        failures = 0
        while True:
            try:
                return await self._once(method, path, data, query, headers, timeout or self._timeout)
            except ClientError as error:
                if failures >= left or not _repeatable(error, safe):
                    raise
                asked = error.retry_after_seconds
                await asyncio.sleep(pause(failures, self._chance) if asked is None else asked)
                failures += 1

    async def _once(
        self,
        method: str,
        path: str,
        data: bytes | None,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        timeout: float,
    ) -> tuple[int, bytes]:
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=10)
        async with self._answer(method, path, data, limits, query, headers) as answer:
            return answer.status, await answer.read()

    @asynccontextmanager
    async def stream(
        self, path: str, body: Any, silence_seconds: float, *, headers: Mapping[str, str] = {}
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer without an end; it counts as broken after so long a silence. Without a body it is a GET."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=silence_seconds)
        method, data = ("GET", None) if body is None else ("POST", msgspec.json.encode(body))
        async with self._answer(method, path, data, limits, headers=headers) as answer:
            yield answer

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        data: bytes | None,
        timeout: aiohttp.ClientTimeout,
        query: Mapping[str, str] = {},
        headers: Mapping[str, str] = {},
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        kind = {} if data is None else {"Content-Type": "application/json"}
        try:
            # A redirect would make a GET of a POST, or lose the token: the error shows it instead.
            async with self._connections().request(
                method,
                self._url + path,
                data=data,
                headers={**self._headers, **kind, **headers},
                params=query,
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                if answer.status >= 300:
                    raise refusal(answer.status, await answer.read(), answer.headers.get("Retry-After"))
                yield answer
        except aiohttp.ClientConnectorCertificateError as error:
            why = str(error.certificate_error)
            raise ClientError(NO_ANSWER, "not trusted", why, sent=False, cause=UNTRUSTED) from None
        except aiohttp.ClientConnectorSSLError as error:
            raise ClientError(NO_ANSWER, "no TLS", str(error.os_error), sent=False, cause=NO_TLS) from None
        except aiohttp.ClientConnectorError as error:
            raise ClientError(NO_ANSWER, "the server cannot be reached", str(error.os_error), sent=False) from None
        except aiohttp.ClientPayloadError:
            raise ClientError(NO_ANSWER, "the answer broke off") from None
        except aiohttp.InvalidURL:
            raise ClientError(400, f"{self._url!r} is not a URL") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            cause = CUT if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError) else ""
            raise ClientError(NO_ANSWER, "no answer", str(error) or type(error).__name__, cause=cause) from None

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            # As many connections as there are calls at once; who calls is bounded, and a stream must not wait for others.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session


def _repeatable(error: ClientError, safe: bool) -> bool:
    if (error.retry_after_seconds or 0) > LONGEST_RETRY_AFTER or error.cause in (UNTRUSTED, NO_TLS):
        return False
    if error.status == 429 or not error.sent:
        return True  # it was turned away at the door
    # 503 with Retry-After is a server that says that it did nothing; without, it may have fallen over half-way.
    asked_back = error.status == 503 and error.retry_after_seconds is not None
    return asked_back or (safe and error.away)
