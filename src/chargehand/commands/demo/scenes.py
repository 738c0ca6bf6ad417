"""The scenes of the demo, with a real server, a real small model and a real receiver of webhooks.

A state is printed when its webhook arrives and its signature was checked, and the target goes away because its process is killed.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from chargehand.app import Server
from chargehand.commands.text import paint
from chargehand.config import load_config
from chargehand.doors.inference.embedded.process import Embedded
from chargehand.errors import ConfigError
from chargehand.http.credentials import new_webhook_secret
from chargehand.webhooks.signature import SignatureError, verify

PATIENCE_SECONDS = 60.0
BATCH_LINES = 12
STYLES = {"step": "bold", "webhook": "cyan", "answer": "green"}
PROMPT = "Tell me a short story about a little dog."


class GaveUp(Exception):
    """A scene did not happen in time; the text says which."""


@contextlib.asynccontextmanager
async def in_time(what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield
    except TimeoutError:
        advice = "this machine may be too slow or too busy for it; `chargehand doctor` checks the rest"
        raise GaveUp(f"the demo has waited {PATIENCE_SECONDS:g} s for {what}: {advice}") from None


class Printer:
    """Prints what happens: lines for people, or one JSON object a line."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._began = time.monotonic()

    def say(self, what: str, text: str, **facts: Any) -> None:
        seconds = time.monotonic() - self._began
        if self._as_json:
            line = msgspec.json.encode({"seconds": round(seconds, 3), "what": what, "text": text, **facts}).decode()
        else:
            indent = "\n" if what == "step" else "  "
            line = indent + paint(f"{seconds:5.1f} s  {text}", STYLES.get(what, ""))
        print(line, flush=True)


class DemoReceiver:
    """Receives state webhooks, checks their signatures, and remembers the states of each job."""

    def __init__(self, secret: str, printer: Printer) -> None:
        self._secret = secret
        self._printer = printer
        self._received: dict[str, list[dict[str, Any]]] = {}
        self._arrived = asyncio.Event()

    async def start(self) -> str:
        app = web.Application()
        app.router.add_post("/hook", self._receive)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}/hook"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            verify("foreman", [self._secret], request.headers, body, time.time())
            verify("standard", [self._secret], request.headers, body, time.time())
        except SignatureError as error:
            self._printer.say("webhook", f"a webhook with a bad signature was refused: {error}")
            return web.Response(status=401)
        told = msgspec.json.decode(body)
        self._received.setdefault(told["job_id"], []).append(told)
        before = f"{told['previous_state']} -> " if told["previous_state"] else ""
        self._printer.say(
            "webhook", f"webhook, signature good: {before}{told['state']}, attempt {told['attempt']}", body=told
        )
        self._arrived.set()
        return web.Response()

    async def until(self, job_id: str, state: str) -> dict[str, Any]:
        async with in_time(f"job {job_id} to be {state}"):
            while True:
                heard = {told["state"]: told for told in self._received.get(job_id, ())}
                if state in heard:
                    return heard[state]
                if "failed" in heard:
                    raise GaveUp(f"the demo's job {job_id} failed: {heard['failed'].get('error')}")
                self._arrived.clear()
                await self._arrived.wait()


async def play(as_json: bool) -> None:
    if reason := Embedded.available():
        raise ConfigError(f"the demo needs the embedded model, which cannot run here: {reason}")
    printer, secret = Printer(as_json), new_webhook_secret()
    receiver = DemoReceiver(secret, printer)
    hook = await receiver.start()
    with tempfile.TemporaryDirectory(prefix="chargehand-demo-") as directory:
        config = load_config(
            environ={},
            overrides={
                "server.listen": "127.0.0.1:0",
                "server.data_dir": Path(directory),
                "server.drain_seconds": 2,
                "webhooks.secret": secret,
                "inference.embedded": "on",
                "inference.probe_seconds": 0.5,
                "inference.targets": [],
            },
        )
        server = await Server.open(config)
        try:
            await server.start()
            async with aiohttp.ClientSession(server.url) as http:
                await Demo(server, http, receiver, printer, hook).run()
        finally:
            await server.close()
            await receiver.stop()


class Demo:
    def __init__(
        self, server: Server, http: aiohttp.ClientSession, receiver: DemoReceiver, printer: Printer, hook: str
    ) -> None:
        self._server = server
        self._http = http
        self._receiver = receiver
        self._say: Callable[..., None] = printer.say
        self._hook = hook

    async def run(self) -> None:
        began = time.monotonic()
        model = await self._model()
        self._say("step", f"1. A job for {model}, reported by webhooks", server=self._server.url)
        await self._one_job(model)
        self._say("step", "2. The target goes away in the middle of a job, and comes back")
        await self._away(model)
        self._say("step", f"3. A batch of {BATCH_LINES} lines in OpenAI's format")
        await self._batch(model)
        self._say("step", f"That was all, in {time.monotonic() - began:.0f} s. `make run` starts a server that stays.")

    async def _model(self) -> str:
        """The better of the two embedded models, if it is installed."""
        async with in_time("the embedded model"):
            while True:
                names: list[str] = [each["name"] for each in (await self._get("/api/tags")).get("models") or []]
                if names:
                    return next((name for name in names if name.startswith("smollm2")), names[0])
                await asyncio.sleep(0.1)

    async def _submit(self, model: str) -> str:
        body = {
            "model": model,
            "prompt": PROMPT,
            "options": {"num_predict": 48, "temperature": 0},
            "state_webhook_url": self._hook,
        }
        async with self._http.post("/jobs", json=body) as response:
            job_id: str = (await response.json())["job_id"]
            self._say("call", f"POST /jobs -> {response.status} {job_id}", job_id=job_id)
        return job_id

    async def _one_job(self, model: str) -> None:
        job_id = await self._submit(model)
        told = await self._receiver.until(job_id, "done")
        self._answer(told)

    def _answer(self, told: dict[str, Any]) -> None:
        result = told["result"]
        speed = result.get("eval_count", 0) / max(result.get("eval_duration", 0) / 1e9, 1e-9)
        text = " ".join(result["response"].split())
        self._say("answer", f"“{text[:150]}…” ({result.get('eval_count')} tokens, {speed:.0f} a second)")

    async def _away(self, model: str) -> None:
        embedded = self._server.inference.embedded if self._server.inference else None
        if embedded is None:
            return
        job_id = await self._submit(model)
        await self._receiver.until(job_id, "working")
        if embedded.pid is not None:
            os.kill(embedded.pid, signal.SIGKILL)
            self._say("call", f"kill -9 {embedded.pid}, the process that runs the model, in mid-answer")
        await self._until_away()
        job = await self._get(f"/jobs/{job_id}")
        self._say(
            "call", f"GET /jobs/… -> {job['state']}, waiting for: {job['waiting_for']} ({job['waiting']})", job=job
        )
        told = await self._receiver.until(job_id, "done")
        self._say("answer", f"the target came back, the job ran again, and its attempt is still {told['attempt']}")

    async def _until_away(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                while (await self._get("/targets"))["targets"][0]["state"] == "up":  # noqa: ASYNC110 - over HTTP
                    await asyncio.sleep(0.02)

    async def _batch(self, model: str) -> None:
        lines = [
            {
                "custom_id": f"line-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": model,
                    "max_tokens": 12,
                    "messages": [{"role": "user", "content": f"Count from {number}"}],
                },
            }
            for number in range(BATCH_LINES)
        ]
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", b"\n".join(map(msgspec.json.encode, lines)), filename="lines.jsonl")
        file = await self._post("/v1/files", form)
        batch = await self._post("/v1/batches", {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"})  # fmt: skip
        self._say("call", f"POST /v1/batches -> {batch['id']}", batch=batch)
        shown = -1
        async with in_time("the batch"):
            while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
                counts = batch["request_counts"]
                if counts["completed"] // 4 > shown:
                    shown = counts["completed"] // 4
                    self._say("call", f"{batch['status']}: {counts['completed']} of {counts['total']}", counts=counts)
                await asyncio.sleep(0.1)
                batch = await self._get(f"/v1/batches/{batch['id']}")
        async with self._http.get(f"/v1/files/{batch['output_file_id']}/content") as response:
            output = (await response.read()).splitlines()
        self._say("answer", f"{batch['status']}: the results file has {len(output)} lines", status=batch["status"])

    async def _get(self, path: str) -> dict[str, Any]:
        async with self._http.get(path) as response:
            said: dict[str, Any] = await response.json(content_type=None)
            return said

    async def _post(self, path: str, body: Any) -> dict[str, Any]:
        sent = {"data": body} if isinstance(body, aiohttp.FormData) else {"json": body}
        async with self._http.post(path, **sent) as response:
            said: dict[str, Any] = await response.json(content_type=None)
            if response.status >= 400:
                raise ConfigError(f"{path} answered {response.status}: {said}")
            return said
