"""A small tasks server in memory, for what the real one does not do on demand: drop answers, be busy, behave as codeQ.

`Stub(codeq=True)` has no streams, no lease numbers, no progress and no cancel, like codeQ.
"""

import asyncio
import contextlib
import secrets
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

BASE = "/v1/codeq"


@dataclass
class Kept:
    id: str
    command: str
    payload: str
    status: str = "PENDING"
    attempts: int = 0
    lease: int = 0
    until: float = 0.0
    run_at: float = 0.0
    result: dict[str, Any] | None = None
    error: str = ""
    runs: int = 0
    progress: list[dict[str, Any]] = field(default_factory=list)


class Stub:
    def __init__(self, codeq: bool = False, port: int = 0) -> None:
        self.codeq = codeq
        self.port = port
        self.tasks: dict[str, Kept] = {}
        self.calls: Counter[str] = Counter()
        self.bodies: list[tuple[str, Any]] = []
        self.streams = 0
        self.left: set[str] = set()  # names of streams that the client closed
        # By the last part of the path: how the next such calls fail, a status, or "drop" to do the work and hang up.
        self.faults: dict[str, list[int | str]] = {}
        self.takes_repeats = False  # a result that it has already, under the same lease, is answered as the first time
        self.in_flight_peak = 0
        self._news = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, command: str, payload: Any = None, **members: Any) -> Kept:
        kept = Kept(str(uuid.uuid4()), command, msgspec.json.encode(payload).decode(), **members)
        self.tasks[kept.id] = kept
        return kept

    def counts(self) -> Counter[str]:
        return Counter(task.status for task in self.tasks.values())

    async def start(self) -> None:
        app = web.Application(middlewares=[self._faulty], client_max_size=64 << 20)
        route = app.router.add_post
        route(f"{BASE}/tasks", self._create)
        route(f"{BASE}/tasks/claim", self._claim)
        route(f"{BASE}/tasks/claim/batch", self._claim_batch)
        if not self.codeq:
            route(f"{BASE}/tasks/claim/stream", self._stream)
            app.router.add_delete(f"{BASE}/tasks/claim/stream/{{name}}", self._leave)
            route(f"{BASE}/tasks/{{id}}/progress", self._owned(self._progress))
        route(f"{BASE}/tasks/batch/results", self._results)
        route(f"{BASE}/tasks/{{id}}/heartbeat", self._owned(self._beat))
        route(f"{BASE}/tasks/{{id}}/abandon", self._owned(self._abandon))
        route(f"{BASE}/tasks/{{id}}/nack", self._owned(self._nack))
        route(f"{BASE}/tasks/{{id}}/result", self._owned(self._result))
        route(f"{BASE}/workers/subscriptions", self._subscribe)
        route(f"{BASE}/workers/subscriptions/{{id}}/heartbeat", self._subscribe)
        app.router.add_delete(f"{BASE}/workers/subscriptions/{{id}}", self._unsubscribe)
        app.router.add_get(f"{BASE}/tasks/{{id}}", self._get)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    # the wire

    @web.middleware
    async def _faulty(self, request: web.Request, handler: Any) -> web.StreamResponse:
        word = request.path.rsplit("/", 1)[1]
        self.calls[word] += 1
        if request.body_exists:
            self.bodies.append((word, await request.json()))
        faults = self.faults.get(word)
        fault = faults.pop(0) if faults else None
        if isinstance(fault, int):
            headers = {"Retry-After": "0"} if fault in (429, 503) else {}
            return web.json_response({"error": "not now", "detail": "a test"}, status=fault, headers=headers)
        answer: web.StreamResponse = await handler(request)
        if fault == "drop" and request.transport is not None:
            request.transport.abort()
        return answer

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        kept = self.add(body["command"], body["payload"])
        await self.tell()
        return web.json_response(self._view(kept), status=202)

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._view(self.tasks[request.match_info["id"]]))

    async def _subscribe(self, _: web.Request) -> web.Response:
        return web.json_response({"subscriptionId": "sub-1"}, status=201)

    async def _unsubscribe(self, _: web.Request) -> web.Response:
        return web.Response(status=204)

    async def _claim(self, request: web.Request) -> web.Response:
        body = await request.json()
        until = time.monotonic() + body.get("waitSeconds", 0)
        while not (taken := self._take(body, 1)):
            left = min(until - time.monotonic(), 0.1)
            if left <= 0:
                return web.Response(status=204)
            await self._news_or(left)
        return web.json_response(self._view(taken[0]))

    async def _claim_batch(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert 1 <= body["count"] <= 10
        taken = self._take(body, body["count"])
        return web.json_response({"tasks": [*map(self._view, taken)]}) if taken else web.Response(status=204)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        name = secrets.token_hex(4)
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "X-Chargehand-Stream": name})
        await answer.prepare(request)
        mine: dict[str, int] = {}
        self.streams += 1
        try:
            while name not in self.left and request.transport is not None and not request.transport.is_closing():
                running = sum(self.tasks[id].lease == n and self._held(self.tasks[id]) for id, n in mine.items())
                for kept in self._take(body, body["maxInFlight"] - running):
                    mine[kept.id] = kept.lease
                    await answer.write(msgspec.json.encode(self._view(kept)) + b"\n")
                await answer.write(b"\n")
                await self._news_or(0.05)
        except ConnectionError:
            pass
        finally:
            self.streams -= 1
        return answer

    async def _leave(self, request: web.Request) -> web.Response:
        self.left.add(request.match_info["name"])
        return web.Response(status=204)

    def _owned(self, handler: Callable[[Kept, Any], dict[str, Any]]) -> Any:
        async def checked(request: web.Request) -> web.Response:
            kept = self.tasks.get(request.match_info["id"])
            body = await request.json() if request.body_exists else {}
            if kept is None:
                return web.json_response({"error": "task not found"}, status=404)
            if self.takes_repeats and kept.result == body:
                return web.json_response({"taskId": kept.id, "status": kept.status})
            if problem := self._problem(kept, body):
                return web.json_response({"error": problem}, status=409)
            told = handler(kept, body)
            await self.tell()
            return web.json_response(told)

        return checked

    async def _results(self, request: web.Request) -> web.Response:
        told: list[dict[str, Any]] = []
        for body in (await request.json())["results"]:
            kept = self.tasks[body["taskId"]]
            problem = self._problem(kept, body)
            told.append({"taskId": kept.id} | ({"error": problem} if problem else {"result": self._result(kept, body)}))
        await self.tell()
        return web.json_response({"results": told})

    def _problem(self, kept: Kept, body: Any) -> str:
        assert not (self.codeq and "lease" in body), "codeQ does not number leases"
        if not self._held(kept):
            return "not-in-progress"
        return "" if self.codeq or body.get("lease") == kept.lease else "lease-lost"

    def _beat(self, kept: Kept, body: Any) -> dict[str, Any]:
        kept.until = time.monotonic() + body["extendSeconds"]
        return {"ok": True}

    def _abandon(self, kept: Kept, _body: Any) -> dict[str, Any]:
        kept.status, kept.attempts = "PENDING", kept.attempts - 1
        return {"status": "requeued"}

    def _nack(self, kept: Kept, body: Any) -> dict[str, Any]:
        kept.error = body["reason"]
        kept.status = "PENDING" if kept.attempts < 5 else "FAILED"
        kept.run_at = time.monotonic() + body.get("delaySeconds", 0)
        return {"status": "requeued", "delaySeconds": body.get("delaySeconds", 0)}

    def _result(self, kept: Kept, body: Any) -> dict[str, Any]:
        assert isinstance(body.get("result"), dict) if body["status"] == "COMPLETED" else body["error"]
        kept.status, kept.result, kept.error = body["status"], body, body.get("error", "")
        kept.runs += 1
        return {"taskId": kept.id, "status": kept.status, "result": body.get("result")}

    def _progress(self, kept: Kept, body: Any) -> dict[str, Any]:
        kept.progress.append({name: value for name, value in body.items() if name != "lease"})
        return {"ok": True}

    # the queue

    def _held(self, kept: Kept) -> bool:
        return kept.status == "IN_PROGRESS" and kept.until > time.monotonic()

    def _take(self, body: Any, count: int) -> list[Kept]:
        now = time.monotonic()
        wanted = {command.lower() for command in body["commands"]}
        taken: list[Kept] = []
        for kept in self.tasks.values():
            if len(taken) >= count:
                break
            lapsed = kept.status == "IN_PROGRESS" and kept.until <= now
            if (lapsed or (kept.status == "PENDING" and kept.run_at <= now)) and kept.command.lower() in wanted:
                kept.status, kept.until = "IN_PROGRESS", now + body["leaseSeconds"]
                kept.attempts += 1
                kept.lease += 1
                taken.append(kept)
        self.in_flight_peak = max(self.in_flight_peak, sum(map(self._held, self.tasks.values())))
        return taken

    def _view(self, kept: Kept) -> dict[str, Any]:
        view = {"id": kept.id, "command": kept.command, "payload": kept.payload, "status": kept.status}
        numbered = {} if self.codeq else {"lease": kept.lease}
        return {**view, "attempts": kept.attempts, **numbered}

    async def tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def _news_or(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait()


@contextlib.asynccontextmanager
async def stub(codeq: bool = False) -> AsyncIterator[Stub]:
    server = Stub(codeq)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
