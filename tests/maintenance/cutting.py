"""A proxy that drops the first connections after a given number of bytes of the answer, and later ones never."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

WHOLE = 1 << 60


@asynccontextmanager
async def cutting(address: str, cuts: Sequence[int], *, hold: bool = False) -> AsyncIterator[str]:
    """Yield the proxy's address. `cuts`: for each connection, the bytes after which it is closed, or with `hold` sends no more."""
    host, _, port = address.rpartition(":")
    left = list(cuts)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limit = left.pop(0) if left else WHOLE
        there, back = await asyncio.open_connection(host, int(port))
        forth = asyncio.create_task(_copy(reader, back, WHOLE))
        try:
            await _copy(there, writer, limit)
            if hold and limit < WHOLE:
                await asyncio.Event().wait()
        finally:
            forth.cancel()
            back.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            writer.close()  # here, because a task that is cancelled before it starts runs no code

        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(ended)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int) -> None:
    with suppress(OSError):
        while limit > 0 and (data := await reader.read(min(65_536, limit))):
            writer.write(data)
            await writer.drain()
            limit -= len(data)
