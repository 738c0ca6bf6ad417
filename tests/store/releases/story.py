"""The requests to a server before its database becomes a fixture: jobs of all doors and two tenants, in every state.

Everything goes through HTTP, so that the release itself writes all rows. The last calls are not answered on purpose: their
jobs wait for this node or run at it when it is killed.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from chargehand.http.credentials import hash_token
from tests.api.serving import Api, until
from tests.inference.conformance import OllamaTarget
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import PASSWORD, USER
from tests.provisioning.lab import RECIPE
from tests.webhooks.receiver import Receiver

ACME, GLOBEX = "acme", "globex"
KEY = "a key for tests of more than thirty-two bytes"
TOKENS = [{"name": name, "hash": hash_token(name), "tenant": name, "scopes": ["*"]} for name in (ACME, GLOBEX)]
HOUR = 3600
BATCH_PRIORITY = 1
HELD = "held"  # its answers never come
AWAY = "hf.co/acme/Away-7B:Q4_K_M"  # only a target that is away may have it
OTHER_SERIAL = "SN-2:b+c"


@dataclass
class World:
    """The server's surroundings."""

    target: OllamaTarget
    bmc: FakeBmc
    other_bmc: FakeBmc
    receiver: Receiver


class Caller(Api):
    """A tenant; its token's text is its name."""

    def of(self, token: str) -> "Caller":
        return Caller(self.url, self.session, token)

    async def said(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}) -> Any:
        answer = await self.call(method, path, body, headers=headers)
        assert answer.status < 300, (method, path, answer.status, answer.body)
        return json.loads(answer.body) if answer.body else None

    async def task(self, command: str, **fields: Any) -> Any:
        return await self.said("POST", "/v1/codeq/tasks", {"command": command, "payload": {"n": 1}, **fields})

    async def claim_task(self, command: str) -> Any:
        return await self.said("POST", "/v1/codeq/tasks/claim", {"commands": [command], "leaseSeconds": HOUR})

    async def leased(self, queue: str, **fields: Any) -> dict[str, Any]:
        """Return a job of the engine's API that a worker holds."""
        await self.submit(queue=queue, **fields)
        return await self.claim(queues=[queue], owner="worker-1", lease_seconds=HOUR)


async def tell(url: str, session: aiohttp.ClientSession, world: World) -> None:
    acme, globex = Caller(url, session, ACME), Caller(url, session, GLOBEX)
    for caller in (acme, globex):
        await engine_jobs(caller, world)
        await tasks(caller, world)
    await provisioning(acme, world)
    await inference(acme, globex, world)


async def engine_jobs(caller: Caller, world: World) -> None:
    # Several names look like other notations of queues, and must not be parsed as those.
    await caller.submit(queue="waiting", payload={"n": 1}, priority=5, metadata={"order": 17})
    await caller.submit(queue="a/b/c @d", payload={"n": 2})
    await caller.submit(queue="delayed", delay_seconds=HOUR)
    await caller.submit(queue="deadline", deadline_seconds=HOUR, max_attempts=7)
    await caller.post("/engine/jobs", {"queue": "keyed", "payload": 1}, {"Idempotency-Key": "order-17"})
    held = await caller.leased("leased")
    await caller.said("POST", f"/engine/jobs/{held['id']}/note", {"lease": held["lease"], "message": "half of it"})
    await caller.move(await caller.leased("broken", max_attempts=3), "retry", error="the first try broke")
    await caller.move(await caller.leased("failed"), "fail", error="it cannot be done")
    await caller.move(await caller.leased("succeeded"), "succeed", result={"sum": 42})
    cancelled = await caller.submit(queue="cancelled")
    await caller.said("POST", f"/engine/jobs/{cancelled}/cancel")
    await caller.submit(queue="paused/by/us")
    await caller.said("PUT", "/engine/queues/job/paused/by/us", {"paused": True})
    await caller.said("PUT", "/engine/queues/job/limited", {"max_running": 1})
    await caller.leased("limited")
    await caller.submit(queue="limited")
    for path in ("delivered", "dead", "later"):
        webhook = {"url": world.receiver.url(f"/{path}"), "on": ["succeeded"]}
        await caller.move(await caller.leased("reports", webhook=webhook), "succeed")
    await caller.deliveries("state=delivered")
    await caller.deliveries("state=dead")
    await until(lambda: len(world.receiver.at("/later")))


async def tasks(caller: Caller, world: World) -> None:
    await caller.task("Render", priority=4, maxAttempts=9)
    await caller.task("render", delaySeconds=HOUR)
    await caller.task("unique", uniqueKey="only-one", idempotencyKey="task-17")
    await caller.task("resize")
    await caller.claim_task("resize")
    dead = await caller.task("dead", maxAttempts=1)
    await caller.claim_task("dead")
    await caller.said("POST", f"/v1/codeq/tasks/{dead['id']}/nack", {"reason": "broken for good"})
    done = await caller.task("done", webhook=world.receiver.url("/later-task"))
    await caller.claim_task("done")
    result = {"status": "COMPLETED", "result": {"ok": True}}
    await caller.said("POST", f"/v1/codeq/tasks/{done['id']}/result", result)
    await caller.task("paused")
    await caller.said("PUT", "/v1/codeq/admin/queues/paused", {"paused": True})
    policy = {"priorityTiers": [1, 5], "maxAttempts": 4, "retentionSeconds": HOUR, "maxConsumers": 2}
    await caller.said("PUT", "/v1/codeq/admin/topics/Encode", policy)
    await caller.task("encode", priority=7)
    schedule = {"cron": "30 2 1 1 *", "command": "nightly", "payload": {"n": 1}, "timezone": "Europe/Berlin"}
    await caller.said("PUT", "/v1/codeq/schedules/new-year", schedule)
    subscription = {"callbackUrl": world.receiver.url("/bell"), "eventTypes": ["quiet"], "ttlSeconds": HOUR}
    await caller.said("POST", "/v1/codeq/workers/subscriptions", subscription)


async def provisioning(caller: Caller, world: World) -> None:
    for serial, bmc in (("SN-1", world.bmc), (OTHER_SERIAL, world.other_bmc)):
        server = {"bmc_address": bmc.url, "bmc_username": USER, "bmc_password": PASSWORD}
        await caller.said("PUT", f"/api/v1/servers/{serial}", server)
    await caller.said("PUT", f"/engine/queues/provision/{OTHER_SERIAL}", {"paused": True})
    await caller.said("POST", "/api/v1/jobs", {"server_serial": OTHER_SERIAL, "recipe": RECIPE})
    body = {"server_serial": "SN-1", "recipe": RECIPE}
    cancelled = (await caller.said("POST", "/api/v1/jobs", body))["job_id"]
    await caller.said("POST", f"/api/v1/jobs/{cancelled}/cancel")

    async def ended() -> bool:
        return bool((await caller.job(cancelled))["finished_at"])

    await until(ended)
    job_id = (await caller.said("POST", "/api/v1/jobs", body))["job_id"]

    async def waits() -> bool:
        return "webhook.wait" in (await caller.said("GET", f"/api/v1/jobs/{job_id}"))["deadlines"]

    await until(waits)


async def inference(acme: Caller, globex: Caller, world: World) -> None:
    done = await _ask(acme, "ready", state_webhook_url=world.receiver.url("/later-answer"), webhook_events=["done"])

    async def answered() -> bool:
        return bool((await acme.job(done))["state"] == "succeeded")

    await until(answered)
    for caller in (acme, globex):
        await _ask(caller, AWAY, max_attempts=1000)
        await _ask(caller, "Registry.Ollama.ai/library/Ready", delay_seconds=HOUR)
    await stay_on_the_line(acme, world)
    lines = [
        {"custom_id": f"line-{n}", "method": "POST", "url": "/v1/chat/completions", "body": _chat(HELD)}
        for n in range(3)
    ]
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", "\n".join(map(json.dumps, lines)).encode(), filename="lines.jsonl")
    file = (await acme.call("POST", "/v1/files", data=form)).good()
    batch = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    await acme.said("POST", "/v1/batches", batch)
    await acme.said("PUT", f"/engine/queues/inference/{AWAY}", {"max_running": 3})

    async def lines_wait() -> bool:
        jobs = (await acme.said("GET", "/engine/jobs?kind=inference&limit=500"))["jobs"]
        return [job["priority"] for job in jobs].count(BATCH_PRIORITY) == len(lines)

    await until(lines_wait)


async def stay_on_the_line(caller: Caller, world: World) -> None:
    """Callers that hold a connection have jobs for this node only. One of these runs beside another job, one is queued."""
    world.target.habits.hold = asyncio.Event()
    await _ask(caller, HELD)
    for _ in range(2):
        asyncio.get_running_loop().create_task(_hang(caller))

    async def all_wait() -> bool:
        jobs = (await caller.said("GET", "/engine/jobs?kind=inference&limit=500"))["jobs"]
        return sorted(job["state"] for job in jobs if job["queue"].startswith(HELD)) == ["queued", "running", "running"]

    await until(all_wait)


async def _ask(caller: Caller, model: str, **fields: Any) -> str:
    return str((await caller.said("POST", "/jobs", {**_chat(model), **fields}))["job_id"])


async def _hang(caller: Caller) -> None:
    """Wait until the server is killed, or the story ends."""
    try:
        await caller.call("POST", "/api/chat", _chat(HELD))
    except (aiohttp.ClientError, TimeoutError):
        return


def _chat(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "one two three"}]}
