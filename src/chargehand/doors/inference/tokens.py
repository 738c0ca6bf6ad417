"""Following a job with its tokens: the log and what the running attempt says, as one stream of server-sent events."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator

from chargehand.doors.inference.running import RunningAttempts
from chargehand.doors.inference.stream import AnswerStream, Cut
from chargehand.doors.inference.views import ENDS
from chargehand.engine.engine import Engine
from chargehand.engine.job import Job
from chargehand.http import sse
from chargehand.http.jobs import JobResource

MAX_UNSENT = 256  # events that wait for a slow reader


async def follow_with_tokens(
    engine: Engine, jobs: JobResource, running: RunningAttempts, job: Job, after: int
) -> AsyncGenerator[sse.Event, None]:
    """Yield the job's events and the tokens of its attempts in the order in which they come."""
    news: asyncio.Queue[sse.Event] = asyncio.Queue(maxsize=MAX_UNSENT)
    following = asyncio.create_task(_put_events(engine, jobs, running, job, after, news))
    try:
        while not (following.done() and news.empty()):
            getting = asyncio.ensure_future(news.get())
            try:
                await asyncio.wait({getting, following}, return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    yield getting.result()
            finally:
                getting.cancel()
        following.result()  # raises what went wrong, if something did
    finally:
        following.cancel()


async def _put_events(
    engine: Engine, jobs: JobResource, running: RunningAttempts, job: Job, after: int, news: "asyncio.Queue[sse.Event]"
) -> None:
    tokens = _TokenReader(news)
    stop = running.follow(job.id, tokens.begin)
    try:
        async for event in engine.watch(job.id, after, job.tenant):
            if event.move in ENDS:
                await tokens.end()  # all tokens come before the event that ends the attempt
            await news.put(jobs.sent(event))
            tokens.read_next()
    finally:
        stop()
        tokens.cancel()


class _TokenReader:
    """Reads the answers of a job's attempts, each from its first token, one after the other."""

    def __init__(self, news: "asyncio.Queue[sse.Event]") -> None:
        self._news = news
        self._coming: deque[AnswerStream] = deque()
        self._reading: tuple[AnswerStream, asyncio.Task[None]] | None = None

    def begin(self, stream: AnswerStream) -> None:
        self._coming.append(stream)
        self.read_next()

    def read_next(self) -> None:
        if self._reading is None and self._coming:
            stream = self._coming.popleft()
            self._reading = stream, asyncio.create_task(self._put_tokens(stream))

    async def end(self) -> None:
        """Put the rest of a closed answer. An open one belongs to a later attempt than the event that ends one."""
        if self._reading is not None and self._reading[0].closed:
            await asyncio.wait({self._reading[1]})
            self._reading = None

    def cancel(self) -> None:
        if self._reading is not None:
            self._reading[1].cancel()

    async def _put_tokens(self, stream: AnswerStream) -> None:
        with contextlib.suppress(Cut):
            async for line in stream.lines():
                if line.strip():
                    await self._news.put(sse.Event("token", line))
