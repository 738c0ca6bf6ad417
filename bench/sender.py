"""The bare client that deliveries are compared with: aiohttp in a loop, configured as in the outbox, and nothing else.

`python -m bench.sender URL COUNT IN_FLIGHT BODY_BYTES` prints what it took.
"""

import itertools
import sys

import aiohttp
import msgspec
import uvloop

from bench.report import Sample
from chargehand.commands.bench.load import quantiles, repeat

HEADERS = {  # as many and as long as the headers of a delivery
    "webhook-id": "01JZZZZZZZZZZZZZZZZZZZZZZZ",
    "webhook-timestamp": "1800000000",
    "webhook-signature": "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=",
    "X-Chargehand-Job": "01JZZZZZZZZZZZZZZZZZZZZZZZ",
    "X-Chargehand-Sequence": "1",
    "X-Chargehand-Attempt": "1",
}


async def main(url: str, count: int, in_flight: int, body_bytes: int) -> None:
    body, numbers = b"x" * body_bytes, itertools.count()
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("Accept", "Accept-Encoding"),
        headers={"User-Agent": "bench/1.0.0", "Content-Type": "application/json"},
    ) as session:

        async def send(_: int) -> None:
            # To as many paths as the outbox has endpoints.
            async with session.post(f"{url}/{next(numbers) % 8}", data=body, headers=HEADERS) as response:
                await response.read()
                response.raise_for_status()

        load = await repeat(range(in_flight), send, count=count)
    sample = Sample(count, load.seconds, *quantiles(load.latencies), client_cpu=load.client_cpu)
    print(msgspec.json.encode(sample).decode())


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], *map(int, sys.argv[2:])))
