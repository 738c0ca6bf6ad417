"""`chargehand listen` prints each webhook whole, and ends when it should."""

import asyncio
import json
import os
import re
from asyncio.subprocess import Process
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.commands.running import chargehand, ended, running

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.timeout(60)]


async def where(process: Process) -> str:
    assert process.stderr is not None
    found = re.search(r"http://\S+", (await process.stderr.readline()).decode())
    assert found is not None
    return found[0]


async def test_listen_ends_when_its_output_is_closed() -> None:
    reading, writing = os.pipe()
    async with running("", "listen", "--port", "0", stdout=writing) as process, aiohttp.ClientSession() as session:
        url = await where(process)
        os.close(reading)
        os.close(writing)
        async with session.post(url, json={"number": 1}) as answer:
            assert answer.status == 200
        told = await ended(process, seconds=20)
    assert told.code == 1
    assert told.err == "", "no traceback"


async def test_listen_stops_after_count_webhooks_though_more_come_at_once() -> None:
    body = json.dumps({"filling": "x" * 5000}).encode()
    head = f"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with running("", "listen", "--port", "0", "--count", "3", "--json") as process:
        address = urlsplit(await where(process))
        lines = [await asyncio.open_connection(address.hostname, address.port) for _ in range(20)]
        for reader, writer in lines:
            writer.write(head)
            assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n", "each is being heard"
        for _, writer in lines:
            writer.write(body)
        told = (await ended(process, seconds=20)).good()
        answers = [await rest(reader) for reader, _ in lines]
        for _, writer in lines:
            writer.close()
    assert [each["body"]["filling"] for each in told.objects] == ["x" * 5000] * 3
    assert sum(b" 200 " in each for each in answers) == 3, "who is not heard is not told otherwise"


async def rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_an_invalid_port_is_refused() -> None:
    told = (await chargehand("", "listen", "--port", "70000")).good(2)
    assert "invalid value for '--port': Input should be less than or equal to 65535" in told.err
    assert told.err.count("\n") == 1
