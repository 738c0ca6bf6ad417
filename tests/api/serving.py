"""Run a whole server inside the test's process, on a free port and with short delays, and a client that calls it."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import aiohttp
import msgspec
import pytest

from chargehand.app import Server
from chargehand.config import load_config

# For tests whose result does not depend on the kind of store.
on_sqlite = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)

HURRY: Mapping[str, Any] = {
    "server.listen": "127.0.0.1:0",
    "server.drain_seconds": 1,
    "engine.poll_seconds": 0.02,
    "engine.backoff_base_seconds": 0,
    "webhooks.backoff_base_seconds": 0.01,
    "webhooks.backoff_max_seconds": 0.05,
    "webhooks.timeout_seconds": 2,
    "webhooks.allow_networks": ["127.0.0.0/8"],  # the test receivers listen here, also in tests with auth
    "webhooks.breaker_failures": 1000,
    "inference.embedded": "off",
    "provisioning.enabled": False,  # its runner waits for work, and some tests count the waiters
}


@asynccontextmanager
async def serving(store_url: str, settings: Mapping[str, Any] = {}) -> AsyncIterator[Server]:
    config = load_config(environ={}, overrides={**HURRY, "store.url": store_url, **settings})
    server = await Server.open(config)
    try:
        await server.start()
        yield server
    finally:
        await server.close()


async def exchange(server: Server, request: bytes) -> tuple[int, bytes]:
    """Send these very bytes and return the status and the whole answer: for requests that no client would send."""
    reader, writer = await asyncio.open_connection(*server.http.addresses[0])
    try:
        writer.write(request.replace(b"\r\n", b"\r\nHost: localhost\r\nConnection: close\r\n", 1))
        async with asyncio.timeout(5):
            answer = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    return int(answer[9:12]), answer


async def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Call the condition, a function or a coroutine function, until its result is true, and return that result."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < end, f"still {found!r} after {seconds:g} s: {inspect.getsource(condition).strip()}"
        await asyncio.sleep(0.005)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] in ("application/json", "application/problem+json")
        return msgspec.json.decode(self.body)

    def good(self, status: int = 200) -> Any:
        assert self.status == status, self.body
        return self.json

    def problem(self, status: int, code: str, field: str | None = None) -> dict[str, Any]:
        """Assert that the answer is a refusal in the shape that all refusals have, and return it."""
        assert (self.status, self.headers.get("content-type")) == (status, "application/problem+json"), self.body
        problem: dict[str, Any] = self.json
        assert problem.keys() >= {"type", "title", "status", "code", "detail"}
        assert problem["title"]
        assert problem["detail"]
        assert (problem["status"], problem["code"], problem.get("field")) == (status, code, field), problem
        return problem


class Api:
    def __init__(self, url: str, session: aiohttp.ClientSession, token: str = "") -> None:
        self.url = url
        self.session = session
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def of(self, token: str) -> "Api":
        """Return a client of the same server with another token."""
        return Api(self.url, self.session, token)

    async def call(
        self, method: str, path: str, json: Any = None, *, data: Any = None, headers: Mapping[str, str] = {}
    ) -> Answer:
        async with self.session.request(
            method, self.url + path, json=json, data=data, headers={**self._headers, **headers}, allow_redirects=False
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, headers: Mapping[str, str] = {}) -> Answer:
        return await self.call("GET", path, headers=headers)

    async def post(self, path: str, json: Any = None, headers: Mapping[str, str] = {}) -> Answer:
        return await self.call("POST", path, json, headers=headers)

    # the life of a job

    async def submit(self, **fields: Any) -> str:
        answer = await self.post("/engine/jobs", {"queue": "q", "payload": None} | fields)
        return cast(str, answer.good(202)["job_id"])

    async def claim(self, **fields: Any) -> dict[str, Any]:
        [job] = (await self.post("/engine/claims", {"queues": ["q"]} | fields)).good()["jobs"]
        return cast(dict[str, Any], job)

    async def move(self, job: Mapping[str, Any], move: str, **fields: Any) -> Answer:
        return await self.post(f"/engine/jobs/{job['id']}/{move}", {"lease": job["lease"]} | fields)

    async def job(self, job_id: str) -> Any:
        return (await self.get(f"/engine/jobs/{job_id}")).good()

    async def deliveries(self, query: str, count: int = 1) -> list[dict[str, Any]]:
        """Return the deliveries that match the query, once there are exactly `count` of them."""

        async def listed() -> list[dict[str, Any]] | None:
            found: list[dict[str, Any]] = (await self.get(f"/engine/deliveries?limit=500&{query}")).good()["deliveries"]
            return found if len(found) == count else None

        return cast(list[dict[str, Any]], await until(listed))


@asynccontextmanager
async def talking(server: Server, token: str = "") -> AsyncIterator[Api]:
    timeout = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield Api(server.url, session, token)
