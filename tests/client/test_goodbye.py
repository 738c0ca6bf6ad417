"""A worker that stops owes the server every task that was on its way to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from chargehand.client import AsyncClient, Held, NewTask, Worker
from tests.api.serving import serving, until


@dataclass
class LateServer:
    """Sends a second task when the reader has said already that it leaves: it could not know earlier."""

    url: str = ""
    goodbye: asyncio.Event = field(default_factory=asyncio.Event)
    given_back: set[str] = field(default_factory=set)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path = head.split()[:2]
        if path.endswith("/claim/stream"):
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Chargehand-Stream: one\r\n\r\n")
            writer.write(chunk(b'{"id":"1","command":"work"}\n'))
            await self.goodbye.wait()
            writer.write(chunk(b'{"id":"2","command":"work"}\n') + chunk(b""))
        elif (method, path.split("/")[-1]) == ("DELETE", "one"):
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            self.goodbye.set()
        else:
            self.given_back.add(path.split("/")[-2])
            body = b'{"status":"requeued"}'
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


@asynccontextmanager
async def late_server() -> AsyncIterator[LateServer]:
    late = LateServer()
    listener = await asyncio.start_server(late.answer, "127.0.0.1", 0)
    late.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        yield late


async def test_what_a_stream_still_brings_after_the_stop_is_given_back() -> None:
    async with late_server() as server:
        begun: list[str] = []
        worker = Worker(server.url, concurrency=2, grace_seconds=0)

        @worker.task("work")
        async def work(task: Held) -> None:
            begun.append(task.id)
            await asyncio.sleep(60)

        working = asyncio.create_task(worker.serve())
        await until(lambda: begun)
        worker.stop()
        await asyncio.wait_for(working, 10)
    assert (begun, server.given_back) == (["1"], {"1", "2"})


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "polls"])
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_a_worker_leaves_nothing_behind_when_it_stops_under_load(store_url: str, stream: bool) -> None:
    async with serving(store_url) as server, AsyncClient(server.url) as client:
        made = await client.tasks.create_many(NewTask("work", n) for n in range(300))
        done: list[str] = []
        for stop_at in (20, 60, 100, 140):
            await _work_until(server.url, stream, done, stop_at)
            states = [(await client.tasks.get(each.task.id)).status for each in made if each.task]
            assert states.count("IN_PROGRESS") == 0
            assert states.count("COMPLETED") == len(done) < 300


async def _work_until(url: str, stream: bool, done: list[str], stop_at: int) -> None:
    worker = Worker(url, concurrency=8, stream=stream)

    @worker.task("work")
    async def work(task: Held) -> None:
        done.append(task.id)

    working = asyncio.create_task(worker.serve())
    await until(lambda: len(done) >= stop_at)
    worker.stop()
    await asyncio.wait_for(working, 10)
