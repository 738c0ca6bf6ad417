"""A server with jobs of every door in every state, endpoints that answer and one that does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.e2e.server import Server, eventually
from tests.provisioning.sushy import FIRST, emulator

Json = dict[str, Any]
SECRET = "by which machines report"
RECIPE: Json = {
    "task_target": "install-linux.target",
    "target_disk": "/dev/sda",
    "wipe": True,
    "oci_url": "127.0.0.1:8484/os-images/debian:13",
    "partition_layout": [
        {"size": "512M", "type_guid": "ef00", "format": "vfat", "label": "esp", "mountpoint": "/boot/efi"},
        {"size": "100%", "type_guid": "8304", "format": "ext4", "label": "root", "mountpoint": "/"},
    ],
}
SETTINGS: Json = {
    "inference_embedded": "on",
    "webhooks_max_attempts": 2,
    "webhooks_timeout_seconds": 5,
    "webhooks_breaker_failures": 3,
    "webhooks_breaker_seconds": 600,
    "engine_lease_seconds": 60,
}


def a_step(name: str, *after: str | Json, queue: str = "", **more: Any) -> Json:
    body = {"queue": queue or f"flow-{name}", "payload": {}}
    return {"name": name, "door": "engine", "body": body, "after": after, **more}


RELEASE = (
    a_step("checkout"),
    a_step("build", "checkout"),
    a_step("lint", "checkout"),
    a_step("test", "build"),
    a_step("explain-the-style", {"step": "lint", "on": "failed"}),
    a_step("publish", "test", {"step": "lint", "on": "finished"}),
    a_step("undo", {"step": "publish", "on": "failed"}),
    {
        "name": "announce",
        "door": "tasks",
        "body": {"command": "announce", "payload": {}},
        "after": ["publish", "explain-the-style"],
        "need": "any",
    },
    a_step("tidy-up", {"step": "announce", "on": "finished"}, {"step": "checkout", "on": "succeeded"}),
)


@dataclass
class Scene:
    server: Server
    http: aiohttp.ClientSession
    hooks: str  # URL of a receiver that answers
    broken: str  # URL of one that does not
    lost: str  # URL of one that does not either, and is rarely called
    bmc: str = ""  # BMC of a machine, if there is one
    jobs: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.server.url

    async def call(self, method: str, path: str, body: Any = None, headers: Json | None = None) -> Any:
        async with self.http.request(method, f"{self.url}{path}", json=body, headers=headers) as response:
            said = await response.text()
            assert response.status < 300, f"{method} {path}: {response.status} {said}"
            return await response.json(content_type=None) if said else None

    async def chat(self, text: str, webhook: str = "", **more: Any) -> str:
        body = {"model": "tiny-stories", "messages": [{"role": "user", "content": text}], **more}
        if webhook:
            body["state_webhook_url"] = webhook
        return str((await self.call("POST", "/jobs", body))["job_id"])

    async def task(self, command: str, **more: Any) -> str:
        made = await self.call("POST", "/v1/codeq/tasks", {"command": command, "payload": {"n": 1}, **more})
        return str(made["id"])

    async def engine_job(self, queue: str, **more: Any) -> str:
        made = await self.call("POST", "/engine/jobs", {"queue": queue, "payload": {"n": 1}, **more})
        return str(made["job_id"])

    async def flow(self, name: str, *steps: Json) -> str:
        return str((await self.call("POST", "/engine/flows", {"name": name, "steps": steps}))["job_id"])

    async def step_of(self, flow_id: str, name: str) -> Json:
        steps = (await self.call("GET", f"/engine/flows/{flow_id}"))["steps"]
        return next(step for step in steps if step["name"] == name)

    async def finish(self, queue: str, move: str = "succeed", **more: Any) -> None:
        """Claim the next job of a queue of the engine, and end it."""
        [job] = (await self.call("POST", "/engine/claims", {"queues": [queue]}))["jobs"]
        await self.call("POST", f"/engine/jobs/{job['id']}/{move}", {"lease": job["lease"], **more})

    async def ended(self, job_id: str) -> Json:
        async def there() -> Json | None:
            job: Json = await self.call("GET", f"/engine/jobs/{job_id}")
            return job if job["finished_at"] else None

        found: Json = await eventually(there, 30, f"{job_id} ends")
        return found

    async def fill(self) -> None:
        """Create jobs of every kind."""
        done = [await self.chat(f"Tell me a story about a {what}.", self.hooks) for what in ("fox", "boat", "bell")]
        self.jobs["done"] = done[0]
        self.jobs["failed"] = await self.chat("To nobody.", model="there-is-no-such-model")
        self.jobs["waiting"] = await self.task("greet", webhook=self.hooks)
        self.jobs["later"] = await self.task("report", delaySeconds=3600)
        self.jobs["engine"] = await self.engine_job("thumbnails", webhook={"url": self.broken})
        for _ in range(3):
            await self.engine_job("thumbnails", webhook={"url": self.broken})
        await self.engine_job("invoices", webhook={"url": self.lost})
        await self._die("mailbox")
        await self._flows()
        schedule = {"name": "nightly", "cron": "0 3 * * *", "command": "report", "payload": {"n": 1}}
        await self.call("POST", "/v1/codeq/schedules", schedule)
        server = {"bmc_address": "https://127.0.0.1:9", "bmc_username": "admin", "bmc_password": "not told"}
        await self.call("PUT", "/api/v1/servers/RACK1-07", server)
        for job_id in (*done, self.jobs["failed"]):
            await self.ended(job_id)
        await eventually(self._a_dead_delivery, 30, "a delivery is given up")
        if self.bmc:
            await self._install("RACK1-08")

    async def _flows(self) -> None:
        """Flows of several doors: one at work, one that failed, and one too large to be drawn."""
        self.jobs["flow"] = at_work = await self.flow("release", *RELEASE)
        await self.finish("flow-checkout")
        await self.finish("flow-build")
        await self.finish("flow-lint", "fail", error="line 3 is too long")
        await self.call("POST", "/engine/claims", {"queues": ["flow-test"]})
        self.jobs["step"] = (await self.step_of(at_work, "publish"))["job_id"]
        self.jobs["flow-failed"] = await self.flow("nightly", a_step("measure"), a_step("report", "measure"))
        await self.finish("flow-measure", "fail", error="the sensor in the attic does not answer")
        rows = [a_step(f"part-{n}", *([f"part-{n - 100}"] if n >= 100 else []), queue="parts") for n in range(700)]
        self.jobs["flow-large"] = await self.flow("reindex", *rows)
        for _ in range(3):
            await self.finish("parts")

    async def _a_dead_delivery(self) -> bool:
        return bool((await self.call("GET", "/engine/deliveries?state=dead"))["deliveries"])

    async def _install(self, serial: str) -> None:
        """Begin to provision a machine and stop halfway."""
        server = {"bmc_address": self.bmc, "system_uuid": FIRST.uuid, "vendor": "sushy"}
        await self.call("PUT", f"/api/v1/servers/{serial}", server)
        await self.call("POST", f"/api/v1/servers/{serial}/probe")
        order = {"server_serial": serial, "recipe": RECIPE}
        self.jobs["machine"] = made = (await self.call("POST", "/api/v1/jobs", order))["job_id"]

        async def waits() -> bool:
            job = await self.call("GET", f"/api/v1/jobs/{made}")
            return bool(job["progress"]["step"] == "wait")

        await eventually(waits, 30, "the machine is to report")
        for step in (
            {"step": "partition.service", "finished": True},
            {"step": "image-linux.service", "percent": 40, "message": "31 MiB of 78"},
        ):
            await self.call("POST", f"/api/v1/status-webhook/{serial}/progress", step, {"X-Webhook-Secret": SECRET})

    async def _die(self, command: str) -> None:
        """Create a dead letter: a task whose only attempt failed."""
        self.jobs["dead"] = await self.task(command, maxAttempts=1)
        claim = {"commands": [command], "workerId": "worker-7", "leaseSeconds": 60}
        task = await self.call("POST", "/v1/codeq/tasks/claim", claim)
        nack = {"workerId": "worker-7", "reason": "the mailbox is full", "delaySeconds": 0}
        await self.call("POST", f"/v1/codeq/tasks/{task['id']}/nack", nack)


@asynccontextmanager
async def a_scene(folder: Path, store: str = "", *, metal: bool = False, **settings: Any) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        bmc = ""
        if metal:
            bmc = stack.enter_context(emulator(folder, [FIRST])).url
            iso = folder / "maintenance.iso"
            iso.write_bytes(b"a stand-in")
            settings |= {"provisioning_maintenance_iso": iso, "provisioning_webhook_secret": SECRET}
        hooks = await stack.enter_async_context(_receiver(200))
        broken = await stack.enter_async_context(_receiver(503))
        lost = await stack.enter_async_context(_receiver(500))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        data = {"server_data_dir": folder / "data"}
        server = Server(store or f"sqlite:///{folder}/jobs.db", folder, **{**SETTINGS, **data, **settings})
        await stack.enter_async_context(server)
        yield Scene(server, http, f"{hooks}/stories", f"{broken}/ledger", f"{lost}/invoices", bmc)


@asynccontextmanager
async def _receiver(status: int) -> AsyncIterator[str]:
    async def answer(_request: web.Request) -> web.Response:
        await asyncio.sleep(0)
        return web.Response(status=status, text="taken" if status < 300 else "the ledger is closed for the night")

    app = web.Application()
    app.router.add_post("/{rest:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
