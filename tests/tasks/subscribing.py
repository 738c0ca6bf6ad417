"""A server with its tasks door, a receiver that workers share, and helpers to see which workers were notified."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import msgspec

from chargehand.app import Server
from chargehand.doors.tasks.names import BASE
from chargehand.doors.tasks.notifier import Notifier
from chargehand.doors.tasks.subscription import SUBSCRIPTION
from chargehand.engine.record import PutRecord
from chargehand.engine.records import Records
from chargehand.http.credentials import hash_token
from tests.api.serving import Answer, Api, serving, talking, until
from tests.webhooks.receiver import Hook, Receiver

PATH = f"{BASE}/workers/subscriptions"
_numbers = count()


def a_token(name: str, tenant: str = "acme", scopes: str = "codeq:subscribe", **fields: Any) -> dict[str, Any]:
    """The token's text is its name."""
    hashed = hash_token(name)
    return {"name": name, "hash": hashed, "tenant": tenant, "scopes": scopes.split(), "event_types": ["*"], **fields}


@dataclass
class Desk:
    server: Server
    api: Api
    receiver: Receiver

    @property
    def notifier(self) -> Notifier:
        assert self.server.tasks is not None
        return self.server.tasks._notifier

    async def subscribe(self, path: str = "/hook", *event_types: str, **fields: Any) -> str:
        body = {"callbackUrl": self.receiver.url(path), "eventTypes": event_types or ("render",), **fields}
        return cast(str, (await self.api.post(PATH, body)).good(201)["subscriptionId"])

    async def create(self, command: str = "render", **fields: Any) -> str:
        answer = await self.api.post(f"{BASE}/tasks", {"command": command, "payload": {"n": 1}, **fields})
        return cast(str, answer.good(202)["id"])

    async def claim(self, command: str = "render", **fields: Any) -> str:
        answer = await self.api.post(f"{BASE}/tasks/claim", {"commands": [command], **fields})
        return cast(str, answer.good()["id"])

    async def on(self, task_id: str, verb: str, **fields: Any) -> Answer:
        return await self.api.post(f"{BASE}/tasks/{task_id}/{verb}", fields)

    async def notified(self, how_often: int = 1, path: str = "/hook") -> list[Hook]:
        """Return the notifications sent to this path, once there are at least `how_often` of them."""
        await until(lambda: len(self.receiver.at(path)) >= how_often)
        return self.receiver.at(path)

    async def settled(self, looks: int = 2) -> None:
        """Wait until all due notifications are sent: the server looked at all queues, and then sent a later one."""
        for _ in range(looks):
            await self.looked()
        name = f"marker-{next(_numbers)}"
        await self.subscribe(f"/{name}", name)
        await self.create(name)
        await self.notified(1, f"/{name}")
        await until(lambda: not self.notifier._sending)

    async def looked(self) -> None:
        """Wait until the server begins to look at every queue: it first removes the subscriptions that expired."""
        store = self.server.store
        name = f"expired-{next(_numbers)}"
        await store.write(PutRecord(SUBSCRIPTION, "default", name, b"", 0, due_at=1))

        async def removed() -> bool:
            return await Records(store).get(SUBSCRIPTION, "default", name) is None

        await until(removed)


@asynccontextmanager
async def subscribing(
    store_url: str, receiver: Receiver, settings: Mapping[str, Any] = {}, token: str = ""
) -> AsyncIterator[Desk]:
    async with serving(store_url, settings) as server, talking(server, token) as api:
        yield Desk(server, api, receiver)


def said(hook: Hook) -> dict[str, Any]:
    return cast(dict[str, Any], msgspec.json.decode(hook.body))
