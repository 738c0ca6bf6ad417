"""A reader of the feed: one connection that returns bundle after bundle."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from tests.api.serving import Api

Line = dict[str, Any]


@dataclass(frozen=True)
class Bundle:
    name: str
    id: str
    lines: list[Line]


class Reader:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._content = response.content
        self.last_id = ""

    async def next(self, seconds: float = 10) -> Bundle:
        """Return the next bundle; skip pings."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(seconds):
            while True:
                read = await self._content.readline()
                if not read:
                    raise EOFError("the server ended the stream")
                line = read.decode().rstrip("\r\n")
                name, _, value = line.partition(": ")
                if line and name:
                    fields[name] = value
                elif "data" in fields:
                    self.last_id = fields["id"]
                    return Bundle(fields["event"], fields["id"], msgspec.json.decode(fields["data"])["lines"])

    async def until(self, wanted: Callable[[Line], bool]) -> list[Line]:
        """Return all lines up to the first that matches."""
        seen: list[Line] = []
        while True:
            for line in (await self.next()).lines:
                seen.append(line)
                if wanted(line):
                    return seen


@asynccontextmanager
async def following(api: Api, last_id: str = "") -> AsyncIterator[Reader]:
    """Follow the feed. A new reader's first bundle is a reset; one that resumes after an id gets none until something happens."""
    headers: Mapping[str, str] = {"Last-Event-ID": last_id} if last_id else {}
    async with api.session.get(f"{api.url}/engine/feed", headers={**api._headers, **headers}) as response:
        assert response.status == 200, await response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Reader(response)


def of(job_id: str, kind: str) -> Callable[[Line], bool]:
    return lambda line: line.get("job_id") == job_id and line["type"] == kind
