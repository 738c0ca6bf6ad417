"""aiohttp's server with its Python parser, as a process: `python -m tests.http.aiohttp_echo` prints its port and runs until killed."""

import asyncio
import json
from hashlib import sha256
from urllib.parse import unquote

from aiohttp import web


async def echo(request: web.BaseRequest) -> web.Response:
    headers: dict[str, str] = {}
    for raw_name, raw_value in request.raw_headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        separator = "; " if name == "cookie" else ", "
        headers[name] = f"{headers[name]}{separator}{value}" if name in headers else value
    path, _, query = request.raw_path.partition("#")[0].partition("?")
    body = await request.read()
    seen = [request.method, unquote(path), query, headers, len(body), sha256(body).hexdigest()]
    return web.Response(headers={"x-seen": json.dumps(seen)})


async def main() -> None:
    runner = web.ServerRunner(web.Server(echo))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
