"""What the parts of a client share: a call is a path, a body, and the type of the reply."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, TypeVar, Unpack
from urllib.parse import quote

import msgspec

from chargehand.client.errors import ClientError, refused
from chargehand.client.transport.http import CallOptions, HttpTransport

PAGE = 100
LARGEST_PAGE = 500  # that a server gives
LAST_READ_SECONDS = 2.0

Reply = TypeVar("Reply")


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
        member: str = "",
        **options: Unpack[CallOptions],
    ) -> Reply:
        """Return the reply, or with `member` the only member of it that is read."""
        _, reply = await self._http.call(method, self.base + path, body, safe=safe, **options)
        return decode(reply, kind, member)

    async def _get(self, path: str, kind: type[Reply], *, member: str = "", **options: Unpack[CallOptions]) -> Reply:
        return await self._call("GET", path, kind, safe=True, member=member, **options)

    async def _items(
        self,
        path: str,
        member: str,
        kind: type[list[Reply]],
        by: Mapping[str, Any],
        *,
        before: str = "",
        limit: int | None = None,
        cursor: str = "cursor",
    ) -> AsyncGenerator[Reply, None]:
        """Yield the items of a list, which are the `member` of each page. Fetch a page when the caller asks for an item of it, until
        there is no other or there were `limit` items. A page may be short, even empty, and not be the last one."""
        query = {name: str(value) for name, value in by.items() if value}
        after: str | None = before
        left = limit
        while after is not None and (left is None or left > 0):
            size = PAGE if left is None else min(left, LARGEST_PAGE)
            asked = {**query, "limit": str(size), **({cursor: after} if after else {})}
            page = await self._get(path, _object(member, kind), query=asked)
            items = getattr(page, member)
            for item in items:
                yield item
            after = page.next
            left = None if left is None else left - len(items)


def decode(reply: bytes, kind: type[Reply], member: str = "") -> Reply:
    whole: Any = kind
    try:
        if not member:
            return msgspec.json.decode(reply, type=kind)
        value: Reply = getattr(msgspec.json.decode(reply, type=_object(member, whole)), member)
        return value
    except msgspec.DecodeError as error:
        raise refused(502, "this is not an answer of a Chargehand server", str(error)) from None


@cache
def _object(member: str, kind: Any) -> Any:
    """The type of a reply of which one member is read, and `next`, the cursor of the next page; None: this is the last."""
    return msgspec.defstruct("Reply", [(member, kind), ("next", str | None, None)])


def path_of(things: str, name: str, verb: str = "") -> str:
    return f"/{things}/{quote(name, safe='')}{verb}"


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


def filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are neither empty nor zero nor false, where these are the defaults."""
    return {name: value for name, value in fields.items() if value}


def instant(at: datetime | str) -> str:
    if isinstance(at, str):
        return at
    if at.tzinfo is None:
        raise ValueError("an instant needs a time zone: datetime.now(UTC) + …")
    return at.isoformat()
