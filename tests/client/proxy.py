"""A proxy that drops answers and cuts streams."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web


@asynccontextmanager
async def cutting(url: str, after_bytes: int, streams: int = 1_000_000) -> AsyncIterator[tuple[str, list[str]]]:
    """A proxy that drops the first answer to each POST, and cuts the first `streams` event streams after so many bytes."""
    lost: set[str] = set()
    resumed: list[str] = []

    async def forward(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        async with session.request(request.method, url + request.path_qs, data=body, headers=request.headers) as answer:
            if answer.content_type == "text/event-stream":
                resumed.append(request.headers["Last-Event-ID"])
                response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
                await response.prepare(request)
                if len(resumed) > streams:
                    async for piece in answer.content.iter_any():
                        await response.write(piece)
                    return response
                await response.write(await _some(answer.content, after_bytes))
                return _cut(request, response)
            said = await answer.read()
            if request.method == "POST" and request.path not in lost:
                lost.add(request.path)
                return _cut(request, web.Response())
            return web.Response(status=answer.status, body=said, content_type=answer.content_type)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(app)
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}", resumed
        finally:
            await runner.cleanup()


def _cut(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return response


async def _some(content: aiohttp.StreamReader, count: int) -> bytes:
    """Return so many bytes, or those before the end."""
    try:
        return await content.readexactly(count)
    except asyncio.IncompleteReadError as ended:
        return ended.partial
