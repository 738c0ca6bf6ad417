"""A real server, monitored by a small Prometheus. Both have the same clock, which only the test advances."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp

from chargehand.app import Server
from chargehand.config import load_config
from chargehand.doors.tasks.names import BASE
from chargehand.store import open_store
from tests.api.serving import HURRY, Answer, Api, talking
from tests.conftest import Clock
from tests.observability.alerting import Alert, Prometheus, load_rules
from tests.webhooks.receiver import Receiver

SCRAPE_SECONDS = 30.0
LONG = 86_400
HERE = {"job": "chargehand", "instance": "here:8484"}


@dataclass
class Watched:
    server: Server
    api: Api
    receiver: Receiver
    clock: Clock
    prometheus: Prometheus
    beside: list["asyncio.Task[Answer]"] = field(default_factory=list)  # requests in the background

    async def tick(self) -> list[Alert]:
        """Advance the clock by half a minute, scrape /metrics, evaluate the rules, and return what fires."""
        self.clock.advance(SCRAPE_SECONDS)
        at = self.clock.now / 1_000_000
        try:
            answer = await self.api.get("/metrics")
            text = answer.body.decode() if answer.status == 200 else None
        except aiohttp.ClientError:
            text = None
        self.prometheus.scraped(at, text)
        return self.prometheus.evaluate(at)

    # ordinary work ------------------------------------------------------------------------------------------------------

    async def create(self, command: str = "Render", **fields: Any) -> str:
        answer = await self.api.post(f"{BASE}/tasks", {"command": command, "payload": {}, **fields})
        return cast(str, answer.good(202)["id"])

    async def create_many(self, count: int, command: str = "Render", **fields: Any) -> None:
        tasks = [{"command": command, "payload": {}, **fields}] * min(count, 100)
        results = (await self.api.post(f"{BASE}/tasks/batch", {"tasks": tasks})).good()["results"]
        assert all("task" in result for result in results)
        if count > 100:
            await self.create_many(count - 100, command, **fields)

    async def claim(self, command: str = "Render", **fields: Any) -> str:
        answer = await self.api.post(f"{BASE}/tasks/claim", {"commands": [command], **fields})
        return cast(str, answer.good()["id"])

    async def claim_many(self, count: int, command: str = "Render", **fields: Any) -> list[str]:
        ids: list[str] = []
        while len(ids) < count:
            asked = {"commands": [command], "count": min(10, count - len(ids)), **fields}
            found = (await self.api.post(f"{BASE}/tasks/claim/batch", asked)).good()["tasks"]
            ids += [task["id"] for task in found]
        return ids

    async def on(self, task_id: str, verb: str, **fields: Any) -> Answer:
        return await self.api.post(f"{BASE}/tasks/{task_id}/{verb}", fields)

    async def complete(self, task_id: str) -> None:
        (await self.on(task_id, "result", status="COMPLETED", result={"ok": True})).good()

    async def fail(self, task_id: str) -> None:
        (await self.on(task_id, "result", status="FAILED", error="no")).good()

    async def bury(self, task_id: str) -> None:
        assert (await self.on(task_id, "nack", reason="no")).good()["status"] == "dlq"

    async def subscribe(self, *event_types: str) -> None:
        asked = {"callbackUrl": self.receiver.url("/worker"), "eventTypes": event_types, "ttlSeconds": LONG}
        (await self.api.post(f"{BASE}/workers/subscriptions", asked)).good(201)


@asynccontextmanager
async def nothing(_folder: Path) -> AsyncIterator[dict[str, Any]]:
    yield {}


@dataclass
class Story:
    """`begin` runs once, `step` before every scrape. `labels` are those of the alerts that must fire."""

    labels: list[dict[str, str]]
    begin: Callable[[Watched], Awaitable[object]] | None = None
    step: Callable[[Watched, int], Awaitable[object]] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    # Other servers, such as a target, and the settings that point to them.
    beside: Callable[[Path], AbstractAsyncContextManager[dict[str, Any]]] = nothing


@asynccontextmanager
async def watching(store_url: str, receiver: Receiver, settings: Mapping[str, Any] = {}) -> AsyncIterator[Watched]:
    clock = Clock()
    # Some hours ago, so that what is due by this clock is due by the server's own too.
    clock.now = (int(time.time()) - 12 * 3600) * 1_000_000
    config = load_config(environ={}, overrides={**HURRY, "store.url": store_url, **settings})
    server = Server(config, await open_store(store_url, clock=clock))
    try:
        await server.start()
        async with talking(server) as api:
            world = Watched(server, api, receiver, clock, Prometheus(load_rules()))
            yield world
            for request in world.beside:
                request.cancel()
            await asyncio.gather(*world.beside, return_exceptions=True)
    finally:
        await server.close()
