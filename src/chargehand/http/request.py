"""A request as handlers see it: its head, its body as it arrives, and a signal when the caller disconnects."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote

if TYPE_CHECKING:
    from chargehand.http.auth import Caller
    from chargehand.http.room import Room

T = TypeVar("T")


class Disconnected(Exception):
    """The caller disconnected: there is nobody left to answer."""


class Source(Protocol):
    """Supplies the rest of a body: the connection."""

    def want_body(self) -> None:
        """The handler waits for more of the body."""

    def body_taken(self) -> None:
        """The handler has read what had arrived."""


class Request:
    __slots__ = (
        "_body",
        "_cut",
        "_leaving",
        "_params",
        "_source",
        "_waiter",
        "caller",
        "client_names",
        "content_length",
        "gone",
        "headers",
        "is_whole",
        "method",
        "path",
        "query_string",
        "room",
        "scheme",
        "version",
    )

    caller: "Caller"  # set by the gate
    room: "Room"  # set for routes that take a body

    def __init__(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        version: str = "1.1",
        scheme: str = "http",
        client_names: tuple[str, ...] = (),
        source: Source | None = None,
    ) -> None:
        path, _, self.query_string = target.partition("?")
        self.method = method
        self.path = unquote(path) if "%" in path else path
        self.headers = headers  # by lower-case name; repeated headers are joined by commas
        self.version = version
        self.scheme = scheme
        self.client_names = client_names  # of the caller's certificate
        length = headers.get("content-length")
        self.content_length = None if length is None else int(length)
        self.gone = False  # whether the caller has disconnected
        self.is_whole = source is None  # whether all of the body has arrived
        self._body: bytes | bytearray = body  # what has arrived and the handler has not read yet
        self._cut = False
        self._source = source
        self._waiter: asyncio.Future[None] | None = None
        self._leaving: list[asyncio.Future[None]] = []
        self._params: dict[str, str | list[str]] | None = None

    # the head ---------------------------------------------------------------------------------------------------------

    def get_header(self, name: str) -> str | None:
        """Return the value of a header; its name may be in any case."""
        return self.headers.get(name.lower())

    @property
    def content_type(self) -> str | None:
        return self.headers.get("content-type")

    @property
    def params(self) -> dict[str, str | list[str]]:
        """The decoded query string; a repeated name has a list of values."""
        if self._params is None:
            params: dict[str, str | list[str]] = {}
            for name, value in parse_qsl(self.query_string, keep_blank_values=True):
                known = params.get(name)
                if known is None:
                    params[name] = value
                elif isinstance(known, list):
                    known.append(value)
                else:
                    params[name] = [known, value]
            self._params = params
        return self._params

    def get_param(self, name: str) -> str | None:
        """Return the last value of a name in the query string."""
        value = self.params.get(name)
        return value[-1] if isinstance(value, list) else value

    @property
    def base_url(self) -> str:
        """The URL by which the caller reached this server, according to the proxies' headers."""
        get = self.headers.get
        forwarded = {
            name.strip().lower(): value.strip().strip('"')
            for name, _, value in (pair.partition("=") for pair in get("forwarded", "").partition(",")[0].split(";"))
        }
        proto, host = (get(f"x-forwarded-{name}", "").partition(",")[0].strip() for name in ("proto", "host"))
        scheme = forwarded.get("proto") or proto or self.scheme
        return f"{scheme.lower()}://{forwarded.get('host') or host or get('host', '')}"

    # the body ---------------------------------------------------------------------------------------------------------

    async def next_piece(self) -> bytes:
        """Return what has arrived of the body since the last call, or wait for more; b"" at its end.

        Raise Disconnected if the caller disconnects before the end.
        """
        while not self._body:
            if self.is_whole:
                return b""
            if self._cut or self._source is None:
                raise Disconnected("the body was cut off")
            self._source.want_body()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.take()

    def take(self) -> bytes:
        """Return what has arrived and was not read yet."""
        taken, self._body = self._body, b""
        if self._source is not None:
            self._source.body_taken()
        return taken if isinstance(taken, bytes) else bytes(taken)

    async def pieces(self) -> AsyncIterator[bytes]:
        while piece := await self.next_piece():
            yield piece

    # called by the connection -----------------------------------------------------------------------------------------

    @property
    def is_awaited(self) -> bool:
        """Is the handler waiting for more of the body?"""
        return self._waiter is not None

    @property
    def buffered(self) -> int:
        return len(self._body)

    def add(self, piece: bytes) -> None:
        if not self._body:
            self._body = piece  # most bodies come in one piece, which is not copied
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += piece  # not a list: pieces of two bytes would take twenty times their size
        self._wake()

    def complete(self) -> None:
        self.is_whole = True
        self._wake()

    def cut(self) -> None:
        """The rest of the body will never come."""
        self._cut = not self.is_whole
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # disconnecting ----------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        self.gone = True
        for future in self._leaving:
            if not future.done():
                future.set_result(None)
        self._leaving.clear()

    def leaving(self) -> "asyncio.Future[None]":
        """Return a new future that is done once the caller has disconnected."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.gone:
            future.set_result(None)
        else:
            self._leaving.append(future)
        return future

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result; if the caller disconnects first, cancel the work and raise Disconnected."""
        doing = asyncio.ensure_future(work)
        leaving = self.leaving()
        try:
            both: set[asyncio.Future[Any]] = {doing, leaving}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                doing.cancel()
                await asyncio.wait({doing})
            if doing.cancelled():
                raise Disconnected("the caller hung up")
            return doing.result()
        finally:
            leaving.cancel()
            doing.cancel()
