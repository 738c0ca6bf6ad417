"""What the parts of a client share: a call is a path, a body, and the type of what comes back."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from chargehand.client.errors import ClientError, refused
from chargehand.client.transport.http import HttpTransport

PAGE = 100
LOOK_SECONDS = 2.0

Answer = TypeVar("Answer")


class Page(Protocol):
    """A page of any list: its items have a name of their own, `next` is the cursor of the next page; None: this is the last."""

    @property
    def next(self) -> str | None: ...


AnyPage = TypeVar("AnyPage", bound=Page)


class Calls:
    """One part of the API. Reads are repeated until they are answered; anything else only where that cannot do it twice."""

    base: ClassVar[str] = ""

    def __init__(self, transport: HttpTransport) -> None:
        self._http = transport

    async def _call(
        self,
        method: str,
        path: str,
        kind: type[Answer],
        body: Any = None,
        *,
        safe: bool,
        query: Mapping[str, str] = {},
        headers: Mapping[str, str] = {},
        timeout: float | None = None,
        retries: int | None = None,
    ) -> Answer:
        _, told = await self._http.call(
            method, self.base + path, body, safe=safe, query=query, headers=headers, timeout=timeout, retries=retries
        )
        return read(told, kind)

    async def _get(
        self,
        path: str,
        kind: type[Answer],
        query: Mapping[str, str] = {},
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> Answer:
        return await self._call("GET", path, kind, safe=True, query=query, timeout=timeout, retries=retries)

    async def _pages(
        self, path: str, kind: type[AnyPage], by: Mapping[str, Any], cursor: str = "cursor"
    ) -> AsyncGenerator[AnyPage, None]:
        """As many as are asked for: the next one is fetched when it is."""
        after: str | None = ""
        query = {"limit": str(PAGE), **{name: str(value) for name, value in by.items() if value}}
        while after is not None:
            page = await self._get(path, kind, {**query, cursor: after} if after else query)
            yield page
            after = page.next


def read(told: bytes, kind: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(told, type=kind)
    except msgspec.DecodeError as error:
        raise refused(502, "this is not an answer of a Chargehand server", str(error)) from None


async def last_look(asked: Awaitable[Answer]) -> Answer | None:
    """For those whose time is over: None, if the server does not answer at once."""
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            return await asked
    except TimeoutError:
        return None
    except ClientError as error:
        if not error.away:
            raise
        return None


def key_header(key: str) -> dict[str, str]:
    """A key is made where none is given, so that an answer that was lost is asked for again without a second job."""
    return {"Idempotency-Key": key or new_key()}


def new_key() -> str:
    return str(uuid.uuid4())


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What was said: the rest is left to the server."""
    return {name: value for name, value in fields.items() if value is not None and value != "" and value != ()}


def instant(at: datetime | str) -> str:
    if isinstance(at, str):
        return at
    if at.tzinfo is None:
        raise ValueError("an instant needs a time zone: datetime.now(UTC) + …")
    return at.isoformat()
