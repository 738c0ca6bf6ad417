"""The measured server: the product, with one more route whose handler does nothing.

`python -m bench.server STORE_URL DATA_DIR SETTINGS` prints its URL and ends with its standard input. SETTINGS is JSON.
"""

import asyncio
import sys

import msgspec
import uvloop

from bench.client import TOKEN
from chargehand.app import Server
from chargehand.collector import calm_collector, tend_collector
from chargehand.config import load_config
from chargehand.http.credentials import hash_token
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, read_body
from chargehand.observability.logs import configure_logs

NOTHING = b'{"job_id":"01JZZZZZZZZZZZZZZZZZZZZZZZ"}'


async def do_nothing(req: Request, resp: Response) -> None:
    await read_body(req, 1 << 20)
    resp.status = 202
    resp.content_type = "application/json"
    resp.data = NOTHING


EMPTY = Route("POST", "/bench/empty", do_nothing, "Does nothing", "jobs:write", hidden=True)


async def main(store_url: str, data_dir: str, settings: str) -> None:
    config = load_config(
        environ={},
        overrides={
            "server.listen": "127.0.0.1:0",
            "server.data_dir": data_dir,
            "store.url": store_url,
            "auth.tokens": [{"name": "bench", "hash": hash_token(TOKEN)}],
            "webhooks.allow_networks": ["127.0.0.0/8"],
            "webhooks.secret": "whsec_YmVuY2htYXJrLXNlY3JldC1vZi0zMi1ieXRlcy1sb25n",
            "log.level": "error",
            "inference.embedded": "off",
            **msgspec.json.decode(settings),
        },
    )
    configure_logs(config.log.level, "json")
    server = await Server.open(config)
    await server.start(extra_routes=[EMPTY])
    calm_collector()
    tending = asyncio.create_task(tend_collector())
    print(server.url, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    tending.cancel()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
