"""A worker that stops hands back the tasks that were on their way to it."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from chargehand.client import AsyncClient, Held, NewTask, Worker, task_stream
from tests.api.serving import serving, until


@dataclass
class LateServer:
    """A server that sends a second task after the client has closed the stream by its name."""

    knows_goodbye: bool
    url: str = ""
    goodbye: asyncio.Event = field(default_factory=asyncio.Event)
    sent: asyncio.Event = field(default_factory=asyncio.Event)
    given_back: set[str] = field(default_factory=set)
    connections: set[asyncio.Task[None]] = field(default_factory=set)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, path = await read_request(reader)
        if path.endswith("/claim/stream"):
            await self._stream(reader, writer)
        elif method == "DELETE":
            self.goodbye.set()
            await self.sent.wait()
            writer.write(plain(b"204 No Content" if self.knows_goodbye else b"404 Not Found"))
        else:
            self.given_back.add(path.split("/")[-2])
            writer.write(plain(b"200 OK", b'{"status":"requeued"}'))
        await writer.drain()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Chargehand-Stream: one\r\n\r\n")
        writer.write(chunk(b'{"id":"1","command":"work"}\n'))
        await self.goodbye.wait()
        writer.write(chunk(b'{"id":"2","command":"work"}\n'))
        await writer.drain()
        self.sent.set()
        if self.knows_goodbye:
            writer.write(chunk(b""))
        else:
            await reader.read()  # until the client hangs up


async def read_request(reader: asyncio.StreamReader) -> tuple[str, str]:
    """Read the body too: a connection that is closed before it was read is reset, and the answer may be lost."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = re.search(r"(?mi)^content-length: *(\d+)", head)
    await reader.readexactly(int(length[1]) if length else 0)
    method, path = head.split()[:2]
    return method, path


def plain(status: bytes, body: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    return b"HTTP/1.1 %b\r\nConnection: close\r\n%b\r\n%b" % (status, length, body)


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


@asynccontextmanager
async def late_server(knows_goodbye: bool) -> AsyncIterator[LateServer]:
    late = LateServer(knows_goodbye)
    listener = await asyncio.start_server(late.accept, "127.0.0.1", 0)
    late.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        yield late
        await asyncio.wait_for(asyncio.gather(*late.connections), 60)


@pytest.mark.parametrize("heard", [True, False], ids=["the server ends the stream", "the server knows no goodbye"])
async def test_tasks_that_arrive_on_a_stream_after_the_stop_are_handed_back(
    heard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_stream, "CLOSE_SECONDS", 60)
    async with late_server(heard) as server:
        begun: list[str] = []
        worker = Worker(server.url, concurrency=2, grace_seconds=0)

        @worker.task("work")
        async def work(task: Held) -> None:
            begun.append(task.id)
            await asyncio.sleep(60)

        working = asyncio.create_task(worker.serve())
        await until(lambda: begun)
        worker.stop()
        await asyncio.wait_for(working, 60)
    assert (begun, server.given_back) == (["1"], {"1", "2"})


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "polls"])
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_a_worker_that_stops_under_load_keeps_no_task(store_url: str, stream: bool) -> None:
    async with serving(store_url) as server, AsyncClient(server.url) as client:
        made = await client.tasks.create_many(NewTask("work", n) for n in range(300))
        done: list[str] = []
        for stop_at in (20, 60, 100, 140):
            await _work_until(server.url, stream, done, stop_at)
            # Tasks that were claimed for the closed stream are handed back in the background.
            await until(lambda: _none_in_progress(client))
            states = [(await client.tasks.get(each.task.id)).status for each in made if each.task]
            assert states.count("COMPLETED") == len(done) < 300


async def _none_in_progress(client: AsyncClient) -> bool:
    return [task async for task in client.tasks.find(status="IN_PROGRESS")] == []


async def _work_until(url: str, stream: bool, done: list[str], stop_at: int) -> None:
    worker = Worker(url, concurrency=8, stream=stream)

    @worker.task("work")
    async def work(task: Held) -> None:
        done.append(task.id)

    working = asyncio.create_task(worker.serve())
    await until(lambda: len(done) >= stop_at)
    worker.stop()
    await asyncio.wait_for(working, 10)
