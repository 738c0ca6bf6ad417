"""The load of streaming workers: tasks arrive on one connection, results go back on another, many at once."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import cast
from urllib.parse import urlsplit

import msgspec

from bench.client import Connection, Unexpected, connected
from bench.tasks_client import Wire, request
from chargehand.commands.bench.load import Timings, cpu_seconds

IN_FLIGHT = 100  # tasks that a worker holds at once
MOST_RESULTS = 100  # in a request
PATIENCE_SECONDS = 120.0


class _Task(msgspec.Struct):
    id: str


_task = msgspec.json.Decoder(_Task)


class TaskStream(asyncio.Protocol):
    """One streamed claim. Its body is chunked, with one task a line; a chunk may end within a line."""

    _transport: asyncio.Transport

    def __init__(self, came: Callable[[list[str]], None], failed: Callable[[Exception], None]) -> None:
        self._came = came
        self._failed = failed
        self._raw = b""
        self._line = b""
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def claim(self, asked: bytes) -> None:
        self._transport.write(asked)

    def data_received(self, data: bytes) -> None:
        self._raw += data
        if not self._answered:
            head, found, rest = self._raw.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self._failed(Unexpected(f"{head.decode()}\n{rest.decode(errors='replace')[:500]}"))
                return
            self._answered, self._raw = True, rest
        lines = (self._line + b"".join(self._chunks())).split(b"\n")
        self._line = lines.pop()
        if ids := [_task.decode(line).id for line in lines if line.strip()]:  # a blank line is a keep-alive
            self._came(ids)

    def _chunks(self) -> Iterator[bytes]:
        """Return the complete lines."""
        data, at = self._raw, 0
        while (begin := data.find(b"\r\n", at) + 2) > 1:
            length = int(data[at : begin - 2], 16)
            if not length:
                self._failed(Unexpected("the stream of tasks ended"))
                break
            if len(data) < begin + length + 2:
                break
            yield data[begin : begin + length]
            at = begin + length + 2
        self._raw = data[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._failed(exc or ConnectionError("the server closed the stream"))

    def close(self) -> None:
        self._transport.abort()


class Worker:
    def __init__(self, wire: Wire, results: Connection) -> None:
        self._wire = wire
        self._results = results
        self._some = asyncio.Event()
        self._taken: list[tuple[str, float]] = []
        self._broken: Exception | None = None

    async def work(self, asked: bytes, finished: Callable[[list[float]], None]) -> None:
        """Run until cancelled. Call `finished` with the time of each task of a batch, from its line to its stored result."""
        place = urlsplit(self._wire.url)
        _, stream = await asyncio.get_running_loop().create_connection(
            lambda: TaskStream(self._came, self._failed), place.hostname or "", place.port or 80
        )
        try:
            stream.claim(asked)
            while True:
                await self._some.wait()
                if self._broken:
                    raise self._broken
                batch, self._taken = self._taken[:MOST_RESULTS], self._taken[MOST_RESULTS:]
                if not self._taken:
                    self._some.clear()
                await self._report([task for task, _ in batch])
                now = time.perf_counter()
                finished([now - then for _, then in batch])
        finally:
            stream.close()

    def _came(self, ids: list[str]) -> None:
        now = time.perf_counter()
        self._taken += [(task, now) for task in ids]
        self._some.set()

    def _failed(self, error: Exception) -> None:
        self._broken = error
        self._some.set()

    async def _report(self, ids: list[str]) -> None:
        items = ",".join(f'{{"taskId":"{task}","status":"COMPLETED","result":{{"ok":true}}}}' for task in ids)
        body = f'{{"results":[{items}]}}'.encode()
        answer = await self._results.expect(request("tasks/batch/results", self._wire.worker, body), 200)
        if b'"error"' in answer.body:
            raise Unexpected(answer.body.decode(errors="replace")[:500])


async def drain(wire: Wire, command: str, workers: int, count: int) -> Timings:
    """Measure so many tasks of a command, from the first claim to the last result."""
    latencies: list[float] = []
    done = asyncio.Event()

    def finished(seconds: list[float]) -> None:
        latencies.extend(seconds)
        if len(latencies) >= count:
            done.set()

    body = msgspec.json.encode({"commands": [command], "leaseSeconds": 60, "maxInFlight": IN_FLIGHT})
    asked = request("tasks/claim/stream", wire.worker, body)
    async with connected(wire.url, workers) as connections:
        cpu, began = cpu_seconds(), time.perf_counter()
        working = [asyncio.create_task(Worker(wire, each).work(asked, finished)) for each in connections]
        all_done = asyncio.create_task(done.wait())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                ended, _ = await asyncio.wait([all_done, *working], return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()  # a worker ends only with an error
            return Timings(time.perf_counter() - began, latencies, cpu_seconds() - cpu)
        finally:
            for task in (all_done, *working):
                task.cancel()
            await asyncio.gather(all_done, *working, return_exceptions=True)
