"""One stream: Hello first, then messages. Each is handled beside the others and answered when that is done, in whatever order.

A message that waits for work waits as long as the stream lives. All others are few at a time, so a client that sends faster than we
answer is held back by its connection.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, NoReturn, Protocol

import grpc

from chargehand.doors.tasks.errors import whole_text
from chargehand.doors.tasks.grpc.messages import EVENT, Wire
from chargehand.errors import ChargehandError, Forbidden, StoreError, TooManyRequests, Unauthenticated
from chargehand.http.auth import Caller
from chargehand.observability.logs import get_logger

HELLO_SECONDS = 10.0
CHECK_SECONDS = 900.0  # how often the token of a stream is checked again, besides at its own end
MAX_WAITING = 1000  # messages of one stream that wait for work
TURNS = 100  # messages of one stream that are handled at once
ANSWERS = 100  # answers that wait until the client reads

log = get_logger(__name__)
Message = Any  # a class that protobuf made at run time
Known = Callable[[str], Awaitable[Caller]]  # returns the caller whose token it is, or raises


class Answer(NamedTuple):
    message: Message
    take_back: Callable[[], Awaitable[None]] | None = None  # if the client is gone before it is sent


class Speaker(Protocol):
    """One side's part of a conversation."""

    wire: Wire
    waits: frozenset[str]  # the messages that wait for work

    def greet(self, caller: Caller, hello: Message) -> Message: ...
    async def handle(self, kind: str, message: Message) -> Answer | None: ...


class Conversation:
    def __init__(self, speaker: Speaker, known: Known, now: Callable[[], float] = time.time) -> None:
        self._speaker = speaker
        self._known = known
        self._now = now
        self._check_at = 0.0
        self._answers: asyncio.Queue[Answer | None] = asyncio.Queue(ANSWERS)
        self._turns = asyncio.Semaphore(TURNS)
        self._waiting: set[asyncio.Task[None]] = set()
        self._under_way: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._stopped = False

    async def run(self, events: AsyncIterator[Message], context: Any) -> AsyncGenerator[Message, None]:
        token, greeting = await self._greet(events, context)
        yield greeting
        self._reading = asyncio.create_task(self._read(events))
        finishing = asyncio.create_task(self._finish(self._reading))
        over = False
        try:
            while (answer := await self._next(token, context)) is not None:
                yield answer.message
            over = True
        finally:
            if not over:
                self._reading.cancel()
                await asyncio.shield(self._take_back())
            await finishing
        if self._stopped:
            await _end(context, grpc.StatusCode.UNAVAILABLE, "the server stops; connect again")

    def stop(self) -> None:
        """Answer what was read, then end the stream."""
        self._stopped = True
        if self._reading is not None:
            self._reading.cancel()

    # Hello ------------------------------------------------------------------------------------------------------------

    async def _greet(self, events: AsyncIterator[Message], context: Any) -> tuple[str, Message]:
        try:
            first = await asyncio.wait_for(anext(events, None), HELLO_SECONDS)
        except TimeoutError:
            await _end(context, grpc.StatusCode.DEADLINE_EXCEEDED, f"no Hello came within {HELLO_SECONDS:g} s")
        if first is None or first.WhichOneof(EVENT) != "hello":
            await _end(context, grpc.StatusCode.FAILED_PRECONDITION, "first event must be Hello")
        token = first.hello.token.strip()
        caller = await self._caller(token, context)
        try:
            return token, self._speaker.greet(caller, first.hello)
        except ChargehandError as error:
            await _end(context, grpc.StatusCode.UNAUTHENTICATED, f"auth failed: {whole_text(error)}")

    async def _caller(self, token: str, context: Any) -> Caller:
        try:
            caller = await self._known(token)
            self._check_at = min(self._now() + CHECK_SECONDS, caller.until + 1)
            return caller
        except Unauthenticated as error:
            await _end(context, grpc.StatusCode.UNAUTHENTICATED, f"auth failed: {error.short or error.message}")
        except TooManyRequests as error:
            await _end(context, grpc.StatusCode.RESOURCE_EXHAUSTED, error.message)
        except ChargehandError as error:
            await _end(context, grpc.StatusCode.UNAVAILABLE, error.message)

    # answers ----------------------------------------------------------------------------------------------------------

    async def _next(self, token: str, context: Any) -> Answer | None:
        while True:
            left = self._check_at - self._now()
            if left <= 0:  # however much there is to answer
                await self._caller(token, context)
                continue
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self._answers.get(), left)

    async def _take_back(self) -> None:
        """The client is gone: take back what it was not sent."""
        while (answer := await self._answers.get()) is not None:
            if answer.take_back is not None:
                await answer.take_back()

    # messages ---------------------------------------------------------------------------------------------------------

    async def _read(self, events: AsyncIterator[Message]) -> None:
        async for event in events:
            kind = event.WhichOneof(EVENT)
            if kind in self._speaker.waits:
                self._wait(kind, getattr(event, kind))
            else:
                await self._turns.acquire()
                task = self._start(self._under_way, self._take_turn(kind, kind and getattr(event, kind)))
                task.add_done_callback(lambda _: self._turns.release())

    async def _finish(self, reading: asyncio.Task[None]) -> None:
        """When nothing more is read, nobody waits for work any more, and the rest is answered."""
        await asyncio.wait({reading})
        for task in self._waiting:
            task.cancel()
        while tasks := self._waiting | self._under_way:
            await asyncio.wait(tasks)
        await self._answers.put(None)

    def _wait(self, kind: str, message: Message) -> None:
        if len(self._waiting) < MAX_WAITING:
            self._start(self._waiting, self._take_turn(kind, message))
        else:
            refused = self._error("ResourceExhausted", f"{MAX_WAITING} messages of this stream wait for work already")
            self._start(self._under_way, self._answers.put(Answer(refused)))

    def _start(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    async def _take_turn(self, kind: str | None, message: Message) -> None:
        answer = await self._answer(kind, message)
        if answer is None:
            return
        try:
            await self._answers.put(answer)
        except asyncio.CancelledError:
            if answer.take_back is not None:
                await answer.take_back()
            raise

    async def _answer(self, kind: str | None, message: Message) -> Answer | None:
        if kind == "hello":
            return Answer(self._error("FailedPrecondition", "already-authenticated"))
        if kind is None:
            return Answer(self._error("InvalidArgument", "unknown-event"))
        try:
            return await self._speaker.handle(kind, message)
        except ChargehandError as error:
            return Answer(self._error(_code_of(error), whole_text(error)))
        except Exception as error:
            log.exception("a message of a stream broke", kind=kind)
            return Answer(self._error("Internal", f"an internal error: {type(error).__name__}"))

    def _error(self, code: str, message: str) -> Message:
        wire = self._speaker.wire
        return wire.Answer(error=wire.ServerError(code=code, message=message))


def _code_of(error: ChargehandError) -> str:
    status = getattr(error, "http_status", error.status)
    if isinstance(error, Forbidden) or status in (401, 403):
        return "PermissionDenied"
    if status == 429:
        return "ResourceExhausted"
    return "Unavailable" if isinstance(error, StoreError) or status == 503 else "InvalidArgument"


async def _end(context: Any, status: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(status, text)
    raise AssertionError("abort raises")
