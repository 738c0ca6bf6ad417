"""Read and follow the events of a job. A lost connection is opened again after the last event that was read."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from chargehand.client.errors import ClientError, refused
from chargehand.client.transport.backoff import pause
from chargehand.client.transport.calls import Calls, decode, last_read
from chargehand.client.transport.http import HttpTransport
from chargehand.client.transport.sse import EventParser, ServerEvent, TooLong

SILENCE_SECONDS = 45.0  # a job may have no news for long; a new connection then costs nothing

Away = Callable[[ClientError], None]
Back = Callable[[], None]


class Numbered(Protocol):
    @property
    def sequence(self) -> int: ...


class Finishing(Protocol):
    @property
    def finished(self) -> bool: ...


AnyEvent = TypeVar("AnyEvent", bound=Numbered)
AnyJob = TypeVar("AnyJob", bound=Finishing)


class TokenLine(NamedTuple):
    """A line of the model server, as it came."""

    data: bytes


class Reconnected(NamedTuple):
    """There is a new connection, which repeats the running attempt's tokens from the first on."""


def ignore(_: ClientError | None = None) -> None:
    """The default of `away` and `back`."""


class JobLog(Generic[AnyEvent, AnyJob]):
    """`read_job` tells why a stream ended: because the job did, the server stopped, or something between them cut it off."""

    def __init__(
        self,
        http: HttpTransport,
        path: str,
        event: type[AnyEvent],
        read_job: Callable[[], Awaitable[AnyJob]],
        *,
        tokens: bool = False,
    ) -> None:
        self._http = http
        self._path = path
        self._decoder = msgspec.json.Decoder(event)
        self._read_job = read_job
        self._job: AnyJob | None = None  # as it was last read
        self._tokens = tokens

    async def read(self, after: int = 0) -> AsyncGenerator[AnyEvent, None]:
        """The events until now."""
        while found := await self._page(after):
            for event in found:
                yield event
            after = found[-1].sequence

    async def watch(self, after: int = 0, away: Away = ignore, back: Back = ignore) -> AsyncGenerator[AnyEvent, None]:
        """Yield events as they happen, each once and in order, until the job has ended.

        While the server is away or restarts, try again: `away` is called at each failed try, and may raise to end the wait.
        `back` is called when the server answers.
        """
        async with aclosing(self.follow(after, away, back)) as news:
            async for each in news:
                if not isinstance(each, TokenLine | Reconnected):
                    yield each

    async def end(self, timeout: float | None) -> AnyJob | None:
        """The job once it has ended, or as it is after the timeout. None: it could not be read."""
        try:
            async with asyncio.timeout(timeout):
                async for _ in self.watch():
                    pass
        except TimeoutError:
            return await last_read(self._read_job()) or self._job
        return self._job

    async def follow(
        self, after: int = 0, away: Away = ignore, back: Back = ignore
    ) -> AsyncGenerator[AnyEvent | TokenLine | Reconnected, None]:
        """`watch`, with the model's tokens in between."""
        failures = 0
        while True:
            try:
                job = self._job = await self._read_job()
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
            # After the events of the past, which would else come between the tokens.
            yield Reconnected()
            before, began = after, time.monotonic()
            try:
                async with aclosing(self._stream(after, back)) as stream:
                    async for each in stream:
                        if not isinstance(each, TokenLine):
                            after = each.sequence
                        yield each
            except ClientError as error:
                if not error.away:
                    raise
            if after > before or time.monotonic() - began >= SILENCE_SECONDS:
                failures = 0
            else:
                await asyncio.sleep(pause(failures))
                failures += 1

    async def _stream(self, after: int, opened: Back) -> AsyncGenerator[AnyEvent | TokenLine, None]:
        """Until the stream ends, or nothing came for so long that the server may be gone."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        query = {"tokens": "true"} if self._tokens else {}
        parser = EventParser()
        async with self._http.stream(self._path, None, 2 * SILENCE_SECONDS, query=query, headers=headers) as answer:
            opened()
            while arrived := await _within(SILENCE_SECONDS, answer.content.readany()):
                try:
                    found = [self._decoded(event) for event in parser.read(arrived)]
                except (msgspec.DecodeError, TooLong) as error:
                    raise refused(502, "this is not a stream of events of a job", str(error)) from None
                for each in found:
                    yield each

    def _decoded(self, event: ServerEvent) -> AnyEvent | TokenLine:
        return TokenLine(event.data) if self._tokens and event.name == "token" else self._decoder.decode(event.data)

    async def _page(self, after: int, retries: int | None = None) -> list[AnyEvent]:
        _, reply = await self._http.call("GET", self._path, safe=True, query={"after": str(after)}, retries=retries)
        try:
            return [self._decoder.decode(raw) for raw in decode(reply, list[msgspec.Raw], "events")]
        except msgspec.DecodeError as error:
            raise refused(502, "this is not the log of a job", str(error)) from None


class JobCalls(Calls, Generic[AnyEvent, AnyJob]):
    """The calls that follow a job: the same for every door but for their types."""

    def _log(self, job_id: str) -> JobLog[AnyEvent, AnyJob]:
        raise NotImplementedError

    def events(self, job_id: str, after: int = 0) -> AsyncGenerator[AnyEvent, None]:
        """The events until now."""
        return self._log(job_id).read(after)

    def watch(
        self, job_id: str, after: int = 0, *, away: Away = ignore, back: Back = ignore
    ) -> AsyncGenerator[AnyEvent, None]:
        """The events as they happen, each once and in order, until the job has ended. Waits while the server is away."""
        return self._log(job_id).watch(after, away, back)


async def _within(seconds: float, reading: Awaitable[bytes]) -> bytes:
    """What arrives, or nothing after the timeout."""
    try:
        async with asyncio.timeout(seconds):
            return await reading
    except TimeoutError:
        return b""
