"""A server with its tasks door, and callers of two tenants that call it over HTTP as codeQ's clients do."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from chargehand.app import Server
from chargehand.doors.tasks.names import BASE
from tests.api.serving import Answer, Api, serving, talking
from tests.engine.given import until_met
from tests.tasks.subscribing import a_token

WORK = "codeq:claim codeq:heartbeat codeq:abandon codeq:nack codeq:result codeq:subscribe"
SECRET = "a shared secret of more than thirty-two bytes"
TOKENS = [
    a_token("producer", scopes="codeq:produce"),
    a_token("worker", scopes=WORK),
    a_token("worker-2", scopes=WORK),
    a_token("boss", scopes="codeq:admin"),
    a_token("other-producer", "globex", scopes="codeq:produce"),
    a_token("other-worker", "globex", scopes=WORK),
    a_token("other-boss", "globex", scopes="codeq:admin"),
]
PAYLOAD = {"n": 1}
NOBODY = "01HZZZZZZZZZZZZZZZZZZZZZZZ"  # an id that no task has


class Caller:
    """The calls that the bearer of one token can make."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def get(self, path: str, headers: Mapping[str, str] = {}) -> Answer:
        return await self.api.get(BASE + path, headers)

    async def post(self, path: str, body: Any = None, headers: Mapping[str, str] = {}) -> Answer:
        return await self.api.post(BASE + path, body, headers)

    async def send(self, path: str, body: str | bytes, method: str = "POST") -> Answer:
        """Send these very bytes: for bodies that no encoder would write."""
        data = body.encode() if isinstance(body, str) else body
        return await self.api.call(method, BASE + path, data=data, headers={"Content-Type": "application/json"})

    async def put(self, path: str, body: Any) -> Answer:
        return await self.api.call("PUT", BASE + path, body)

    async def delete(self, path: str) -> Answer:
        return await self.api.call("DELETE", BASE + path)

    async def create(self, command: str = "render", payload: Any = PAYLOAD, **fields: Any) -> dict[str, Any]:
        answer = await self.post("/tasks", {"command": command, "payload": payload, **fields})
        return cast(dict[str, Any], answer.good(202))

    async def claim(self, *commands: str, **fields: Any) -> dict[str, Any]:
        answer = await self.post("/tasks/claim", {**({"commands": commands} if commands else {}), **fields})
        return cast(dict[str, Any], answer.good())

    async def claims_nothing(self, *commands: str, **fields: Any) -> None:
        answer = await self.post("/tasks/claim", {**({"commands": commands} if commands else {}), **fields})
        assert (answer.status, answer.body) == (204, b"")

    async def on(self, task: Mapping[str, Any], verb: str, **fields: Any) -> Answer:
        return await self.post(f"/tasks/{task['id']}/{verb}", fields)

    async def complete(self, task: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        body = {"status": "COMPLETED", "result": {"ok": True}, **fields}
        return cast(dict[str, Any], (await self.on(task, "result", **body)).good())

    async def task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        return cast(dict[str, Any], (await self.get(f"/tasks/{task['id']}")).good())


class Shop:
    """A server and its callers; `other_…` are of another tenant."""

    def __init__(self, server: Server, api: Api) -> None:
        self.server = server
        self.nobody = Caller(api)
        self.producer, self.other_producer = self.by("producer"), self.by("other-producer")
        self.worker, self.worker_2, self.other_worker = self.by("worker"), self.by("worker-2"), self.by("other-worker")
        self.boss, self.other_boss = self.by("boss"), self.by("other-boss")

    def by(self, token: str) -> Caller:
        return Caller(self.nobody.api.of(token))

    async def dead_letter(self, command: str = "render", reason: str = "broken", **fields: Any) -> dict[str, Any]:
        """Return a task that ran out of attempts."""
        task = await self.producer.create(command, maxAttempts=1, **fields)
        await self.worker.claim(command)
        answer = await self.worker.on(task, "nack", reason=reason)
        assert answer.good() == {"status": "dlq", "delaySeconds": 0}
        return await self.producer.task(task)


@asynccontextmanager
async def calling(store_url: str, settings: Mapping[str, Any] = {}) -> AsyncIterator[Shop]:
    auth = {"auth.tokens": TOKENS, "auth.jwt_secret": SECRET}
    async with serving(store_url, {**auth, **settings}) as server, talking(server) as api:
        yield Shop(server, api)


@asynccontextmanager
async def two_nodes(store_url: str) -> AsyncIterator[tuple[Shop, Shop]]:
    async with calling(store_url) as one, calling(store_url) as other:
        await until_met(one.server.store, other.server.store)
        yield one, other


def a_jwt(sub: str = "robot", secret: str = SECRET, **claims: Any) -> str:
    """Return an HS256 token; a claim whose value is `...` is left out."""
    said = {"sub": sub, "exp": time.time() + 600, **claims}
    body = {name: value for name, value in said.items() if value is not ...}
    signed = f"{_part({'alg': 'HS256', 'typ': 'JWT'})}.{_part(body)}"
    signature = hmac.digest(secret.encode(), signed.encode(), hashlib.sha256)
    return f"{signed}.{_text(signature)}"


def _part(value: Any) -> str:
    return _text(json.dumps(value).encode())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def refused(answer: Answer, status: int, error: str, field: str | None = None) -> dict[str, Any]:
    """Assert that the answer is a refusal in the shape of this wire, with the text that codeQ's clients compare."""
    assert (answer.status, answer.headers.get("content-type")) == (status, "application/json"), answer.body
    assert answer.headers["x-request-id"]
    said: dict[str, Any] = answer.json
    assert (said["error"], said.get("field")) == (error, field), said
    return said
