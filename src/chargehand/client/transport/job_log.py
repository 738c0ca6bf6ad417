"""The log of a job, read and followed. A connection that is lost is taken up again after the last event that was seen."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from chargehand.client.errors import ClientError, refused
from chargehand.client.transport.backoff import pause
from chargehand.client.transport.calls import last_look, read
from chargehand.client.transport.http import HttpTransport
from chargehand.client.transport.sse import Events, ServerEvent, TooLong

SILENCE_SECONDS = 45.0  # a job may have nothing to say for long; a new connection then costs nothing

Away = Callable[[ClientError], None]
Back = Callable[[], None]


class Numbered(Protocol):
    @property
    def sequence(self) -> int: ...


class Finishing(Protocol):
    @property
    def finished(self) -> bool: ...


Event = TypeVar("Event", bound=Numbered)
Job = TypeVar("Job", bound=Finishing)


class TokenLine(NamedTuple):
    """What a model server said: a line as it came."""

    data: bytes


class Again(NamedTuple):
    """There is a new connection: what is being said now comes from its first line on."""


class _RawEvents(msgspec.Struct):
    events: list[msgspec.Raw]


def nothing(_: ClientError | None = None) -> None:
    """For those who do not want to be told."""


class Log(Generic[Event, Job]):
    """`look` is for the job itself: a stream ends with the job, with the server, or because something on the way does not like
    streams, and only the job tells them apart."""

    def __init__(
        self,
        http: HttpTransport,
        path: str,
        event: type[Event],
        look: Callable[[], Awaitable[Job]],
        *,
        tokens: bool = False,
    ) -> None:
        self._http = http
        self._path = path
        self._decoder = msgspec.json.Decoder(event)
        self._look = look
        self._job: Job | None = None  # as it was last seen
        self._tokens = tokens

    async def read(self, after: int = 0) -> AsyncGenerator[Event, None]:
        """What happened until now."""
        while found := await self._page(after):
            for event in found:
                yield event
            after = found[-1].sequence

    async def watch(self, after: int = 0, away: Away = nothing, back: Back = nothing) -> AsyncGenerator[Event, None]:
        """Events as they happen, each once and in order, until the job has ended.

        A server that is away, or is started again, is waited for: `away` is told, at each try. Whoever wants to wait no longer
        raises there. `back` is told when it answers.
        """
        async with aclosing(self.news(after, away, back)) as news:
            async for each in news:
                if not isinstance(each, TokenLine | Again):
                    yield each

    async def end(self, timeout: float | None) -> Job | None:
        """The job once it has ended, else as it is when the time is over. None: it was never seen."""
        try:
            async with asyncio.timeout(timeout):
                async for _ in self.watch():
                    pass
        except TimeoutError:
            return await last_look(self._look()) or self._job
        return self._job

    async def news(
        self, after: int = 0, away: Away = nothing, back: Back = nothing
    ) -> AsyncGenerator[Event | TokenLine | Again, None]:
        """The same with what the model says in between."""
        failures = 0
        while True:
            try:
                job = self._job = await self._look()
                rest = await self._page(after, retries=0)
            except ClientError as error:
                if not error.away:
                    raise
                away(error)
                await asyncio.sleep(pause(failures))
                failures += 1
                continue
            back()
            for event in rest:
                after = event.sequence
                yield event
            if job.finished:
                if not rest:
                    return
                continue
            # Only now: what has happened already would else come in the midst of what is being said.
            yield Again()
            seen, began = after, time.monotonic()
            try:
                async with aclosing(self._follow(after, back)) as stream:
                    async for each in stream:
                        if not isinstance(each, TokenLine):
                            after = each.sequence
                        yield each
            except ClientError as error:
                if not error.away:
                    raise
            if after > seen or time.monotonic() - began >= SILENCE_SECONDS:
                failures = 0
            else:
                await asyncio.sleep(pause(failures))
                failures += 1

    async def _follow(self, after: int, began: Back) -> AsyncGenerator[Event | TokenLine, None]:
        """Until the stream ends, or nothing came for so long that the server may be gone without a word."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        query = {"tokens": "true"} if self._tokens else {}
        events = Events()
        async with self._http.stream(self._path, None, 2 * SILENCE_SECONDS, query=query, headers=headers) as answer:
            began()
            while arrived := await _within(SILENCE_SECONDS, answer.content.readany()):
                try:
                    found = [self._told(sent) for sent in events.read(arrived)]
                except (msgspec.DecodeError, TooLong) as error:
                    raise refused(502, "this is not a stream of events of a job", str(error)) from None
                for each in found:
                    yield each

    def _told(self, sent: ServerEvent) -> Event | TokenLine:
        return TokenLine(sent.data) if self._tokens and sent.name == "token" else self._decoder.decode(sent.data)

    async def _page(self, after: int, retries: int | None = None) -> list[Event]:
        _, told = await self._http.call("GET", self._path, safe=True, query={"after": str(after)}, retries=retries)
        try:
            return [self._decoder.decode(raw) for raw in read(told, _RawEvents).events]
        except msgspec.DecodeError as error:
            raise refused(502, "this is not the log of a job", str(error)) from None


async def _within(seconds: float, reading: Awaitable[bytes]) -> bytes:
    """Nothing, if nothing came."""
    try:
        async with asyncio.timeout(seconds):
            return await reading
    except TimeoutError:
        return b""
