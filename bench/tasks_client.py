"""The load on the tasks door: leaner than `bench.client`, because the server beside ours may be faster than a client in Python.

An operation is a generator: it yields a request and is sent the answer, and returns whether it was done. It is driven straight
from `data_received`, without a future and a task switch a request.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from bench.client import Answer, Unexpected
from chargehand.commands.bench.load import Timings, cpu_seconds

Operation = Generator[bytes, Answer, bool]


class Wire(NamedTuple):
    """A server with codeQ's API, and the tokens to call it."""

    url: str
    producer: str
    worker: str


def request(path: str, token: str, body: bytes) -> bytes:
    head = f"POST /v1/codeq/{path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def expected(answer: Answer, *statuses: int) -> Answer:
    if answer.status not in statuses:
        raise Unexpected(f"answered {answer.status}: {answer.body.decode(errors='replace')[:500]}")
    return answer


class Budget:
    """How long and how often: the limits that all connections of a run share."""

    def __init__(self, seconds: float, count: int | None) -> None:
        self._until = time.perf_counter() + seconds
        self._left = count if count is not None else sys.maxsize

    def take(self, now: float) -> bool:
        if now >= self._until or not self._left:
            return False
        self._left -= 1
        return True

    def give_back(self) -> None:
        self._left += 1


class Runner(asyncio.Protocol):
    """A kept-alive connection that does one operation after the other."""

    _transport: asyncio.Transport
    _begin: Callable[[], Operation]
    _budget: Budget
    _latencies: list[float]
    _operation: Operation

    def __init__(self) -> None:
        self._received = b""
        self._began = 0.0
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def run(self, begin: Callable[[], Operation], budget: Budget, latencies: list[float]) -> "asyncio.Future[None]":
        self._begin, self._budget, self._latencies = begin, budget, latencies
        self._done = asyncio.get_running_loop().create_future()
        self._next(time.perf_counter())
        return self._done

    def _next(self, now: float) -> None:
        if not self._budget.take(now):
            if self._done is not None and not self._done.done():
                self._done.set_result(None)
            return
        self._began = now
        self._operation = self._begin()
        self._transport.write(next(self._operation))

    def data_received(self, data: bytes) -> None:
        data = self._received + data if self._received else data
        end = data.find(b"\r\n\r\n") + 4
        at = data.find(b"ength: ", 0, end) + 7  # "content-length" in either spelling
        length = int(data[at : data.find(b"\r", at)]) if at > 6 else 0
        if end < 4 or len(data) < end + length:
            self._received = data
            return
        self._received = b""
        try:
            self._transport.write(self._operation.send(Answer(int(data[9:12]), data[end:])))
        except StopIteration as end:
            now = time.perf_counter()
            if end.value:
                self._latencies.append(now - self._began)
            else:
                self._budget.give_back()
            self._next(now)
        except Unexpected as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionError("the server closed the connection"))

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    def close(self) -> None:
        self._done = None
        self._transport.abort()


@asynccontextmanager
async def runners(url: str, count: int) -> AsyncIterator[list[Runner]]:
    opened = [await _open(url) for _ in range(count)]
    try:
        yield opened
    finally:
        for runner in opened:
            runner.close()


async def drive(
    opened: Sequence[Runner], begin: Callable[[], Operation], *, seconds: float = 3600.0, count: int | None = None
) -> Timings:
    """Let all connections do the operation over and over, until the time is over or it was done `count` times."""
    latencies: list[float] = []
    cpu, began = cpu_seconds(), time.perf_counter()
    budget = Budget(seconds, count)
    await asyncio.gather(*[runner.run(begin, budget, latencies) for runner in opened])
    return Timings(time.perf_counter() - began, latencies, cpu_seconds() - cpu)


async def _open(url: str) -> Runner:
    place = urlsplit(url)
    _, runner = await asyncio.get_running_loop().create_connection(Runner, place.hostname or "", place.port or 80)
    return runner
