"""What the parts of a client share: a call is a path, a body, and the type of the reply."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from chargehand.client.errors import ClientError, refused
from chargehand.client.transport.http import HttpTransport

PAGE = 100
LARGEST_PAGE = 500  # that a server gives
LAST_READ_SECONDS = 2.0

Reply = TypeVar("Reply")


class Page(Protocol):
    """A page of any list: its items have a name of their own, `next` is the cursor of the next page; None: this is the last."""

    @property
    def next(self) -> str | None: ...


AnyPage = TypeVar("AnyPage", bound=Page)


class Calls:
    """One part of the API. Reads are repeated when they fail; other calls only where that cannot do a thing twice."""

    base: ClassVar[str] = ""

    def __init__(self, transport: HttpTransport) -> None:
        self._http = transport

    async def _call(
        self,
        method: str,
        path: str,
        kind: type[Reply],
        body: Any = None,
        *,
        safe: bool,
        query: Mapping[str, str] = {},
        headers: Mapping[str, str] = {},
        timeout: float | None = None,
        retries: int | None = None,
    ) -> Reply:
        _, reply = await self._http.call(
            method, self.base + path, body, safe=safe, query=query, headers=headers, timeout=timeout, retries=retries
        )
        return decode(reply, kind)

    async def _get(
        self,
        path: str,
        kind: type[Reply],
        query: Mapping[str, str] = {},
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> Reply:
        return await self._call("GET", path, kind, safe=True, query=query, timeout=timeout, retries=retries)

    async def _pages(
        self,
        path: str,
        kind: type[AnyPage],
        by: Mapping[str, Any],
        *,
        before: str = "",
        limit: int | None = None,
        cursor: str = "cursor",
    ) -> AsyncGenerator[AnyPage, None]:
        """Fetch a page when the caller asks for it, until there is no other or `limit` items were asked for."""
        query = {name: str(value) for name, value in by.items() if value}
        after: str | None = before
        left = limit
        while after is not None and (left is None or left > 0):
            size = PAGE if left is None else min(left, LARGEST_PAGE)
            page = await self._get(path, kind, {**query, "limit": str(size), **({cursor: after} if after else {})})
            yield page
            after = page.next
            left = None if left is None else left - size


def decode(reply: bytes, kind: type[Reply]) -> Reply:
    try:
        return msgspec.json.decode(reply, type=kind)
    except msgspec.DecodeError as error:
        raise refused(502, "this is not an answer of a Chargehand server", str(error)) from None


async def last_read(reading: Awaitable[Reply]) -> Reply | None:
    """Read once more after a timeout; None if the server does not answer at once."""
    try:
        async with asyncio.timeout(LAST_READ_SECONDS):
            return await reading
    except TimeoutError:
        return None
    except ClientError as error:
        if not error.away:
            raise
        return None


def key_header(key: str) -> dict[str, str]:
    """Make a key where the caller gives none, so that a request whose answer is lost can be repeated without a second job."""
    return {"Idempotency-Key": key or new_key()}


def new_key() -> str:
    return str(uuid.uuid4())


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the caller gave a value; the server has defaults for the others."""
    return {name: value for name, value in fields.items() if value is not None and value != "" and value != ()}


def instant(at: datetime | str) -> str:
    if isinstance(at, str):
        return at
    if at.tzinfo is None:
        raise ValueError("an instant needs a time zone: datetime.now(UTC) + …")
    return at.isoformat()
