"""A server, a BMC and a machine together: a test submits a recipe and checks the result at all three."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from chargehand.app import Server
from tests.api.serving import Answer, Api, serving, talking, until
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import PASSWORD, USER, Habits
from tests.provisioning.guest import Guest, Script, task_files

SERIAL = "SN-1"
SECRET = "the shared secret of all machines"
FAILED = {"status": "failed", "failed_step": "partition.service"}
MAINTENANCE = b"the maintenance system's image, as far as these tests are concerned" * 100
RECIPE: dict[str, Any] = {
    "task_target": "install-linux.target",
    "target_disk": "/dev/vda",
    "wipe": True,
    "oci_url": "127.0.0.1:5000/os-images/debian:12",
    "partition_layout": [
        {"size": "512M", "type_guid": "ef00", "format": "vfat", "label": "ESP", "mountpoint": "/boot/efi"},
        {"size": "100%", "type_guid": "8300", "format": "ext4", "label": "root", "mountpoint": "/"},
    ],
    "hostname": "n1",
    "user_data": "#cloud-config\npassword: swordfish-in-user-data\n",
}
QUICK: dict[str, Any] = {
    "provisioning.enabled": True,
    "provisioning.poll_seconds": 0.03,
    "provisioning.boot_seconds": 3,
    "provisioning.bmc_back_seconds": 2,
    "provisioning.fetch_seconds": 10,
    "provisioning.install_seconds": 10,
    "provisioning.silence_seconds": 10,
    "provisioning.cleanup_seconds": 2,
    "provisioning.redfish_timeout_seconds": 1,
    "provisioning.lease_seconds": 5,
    "provisioning.webhook_secret": SECRET,
}


@dataclass
class Lab:
    server: Server
    api: Api
    bmc: FakeBmc
    guest: Guest
    open: Callable[[], AbstractAsyncContextManager[Server]]
    life: AsyncExitStack = field(default_factory=AsyncExitStack)  # of the server only

    async def stop(self) -> None:
        await self.life.aclose()

    async def start(self) -> None:
        """Start the server again, with the same store and settings; at the same address if the settings have a port."""
        self.server = await self.life.enter_async_context(self.open())
        self.api.url = self.server.url

    async def waiting(self, serial: str = SERIAL, recipe: Mapping[str, Any] = RECIPE, **fields: Any) -> str:
        """Register a server and return a job of it that waits for its machine's report."""
        await self.register(serial)
        job_id = await self.submit(serial, recipe, **fields)
        await self.waits(job_id)
        return job_id

    async def register(self, serial: str = SERIAL, **fields: Any) -> Any:
        body = {"bmc_address": self.bmc.url, "bmc_username": USER, "bmc_password": PASSWORD, **fields}
        answer = await self.api.call("PUT", f"/api/v1/servers/{serial}", body)
        assert answer.status in (200, 201), answer.body
        return answer.json

    async def submit(self, serial: str = SERIAL, recipe: Mapping[str, Any] = RECIPE, **fields: Any) -> str:
        answer = await self.api.post("/api/v1/jobs", {"server_serial": serial, "recipe": recipe, **fields})
        return cast(str, answer.good(202)["job_id"])

    async def job(self, job_id: str) -> dict[str, Any]:
        return cast(dict[str, Any], (await self.api.get(f"/api/v1/jobs/{job_id}")).good())

    async def events(self, job_id: str) -> list[dict[str, Any]]:
        return cast(list[dict[str, Any]], (await self.api.get(f"/api/v1/jobs/{job_id}/events")).good()["events"])

    async def reaches(self, job_id: str, status: str, seconds: float = 15) -> dict[str, Any]:
        seen: list[Any] = []

        async def there() -> Any:
            job = await self.job(job_id)
            seen[:] = [job]
            return job if job["status"] == status else None

        try:
            return cast(dict[str, Any], await until(there, seconds))
        except AssertionError:
            events = await self.events(job_id)
            lines = [f"{event['level']} {event['step']} {event['message']}" for event in events]
            raise AssertionError(f"{seen}\n" + "\n".join(lines) + f"\n{self.guest.trouble}") from None

    async def waits(self, job_id: str) -> dict[str, Any]:
        """Wait until the controller waits for the machine."""

        async def there() -> Any:
            job = await self.job(job_id)
            return job if job["deadlines"].keys() & {"webhook.wait", "redfish.reset"} else None

        return cast(dict[str, Any], await until(there))

    async def on_medium(self) -> dict[str, Any]:
        """Return report.json of the task medium in the drives: where to report, and with which token."""
        for drive in self.bmc.system.drives.values():
            async with self.api.session.get(drive.image) as response:
                if files := task_files(await response.read()):
                    return cast(dict[str, Any], json.loads(files["report.json"]))
        raise AssertionError("no task medium is in any drive")

    async def told(self, job_id: str, kind: str) -> list[dict[str, Any]]:
        return [event for event in await self.events(job_id) if event["kind"] == kind]

    async def shown(self, job_id: str) -> list[str]:
        """Return the statuses that callers saw, in order; one that was shown twice is in it twice."""
        changes = [event for event in await self.events(job_id) if event["kind"] in ("transition", "outcome")]
        seen = [changes[0]["status"]]
        for event in changes[1:]:
            if event["kind"] == "outcome" or event["status"] != seen[-1]:
                seen.append(event["status"])
        return seen

    async def report(
        self, status: Mapping[str, Any], serial: str = SERIAL, secret: str | None = SECRET, **headers: str
    ) -> Answer:
        given = {**({"X-Webhook-Secret": secret} if secret is not None else {}), **headers}
        return await self.api.post(f"/api/v1/status-webhook/{serial}", status, given)


@asynccontextmanager
async def lab(
    store_url: str,
    folder: Path,
    habits: Habits | None = None,
    script: Script | None = None,
    settings: Mapping[str, Any] = {},
    token: str = "",
    bmc_class: type[FakeBmc] = FakeBmc,
) -> AsyncIterator[Lab]:
    iso = folder / "maintenance.iso"
    iso.write_bytes(MAINTENANCE)
    given = {
        **QUICK,
        "server.data_dir": str(folder / "data"),
        "provisioning.maintenance_iso": str(iso),
        "provisioning.key": "a key for tests of more than thirty-two bytes",
        **settings,
    }
    guest = Guest(script or Script())
    async with AsyncExitStack() as stack:
        bmc = await stack.enter_async_context(bmc_class(habits, guest.boot))
        life = await stack.enter_async_context(AsyncExitStack())
        server = await life.enter_async_context(serving(store_url, given))
        api = await stack.enter_async_context(talking(server, token))
        yield Lab(server, api, bmc, guest, lambda: serving(store_url, given), life)


async def failed(room: Lab) -> str:
    job_id = await room.waiting()
    (await with_its_token(room, FAILED)).good()
    await room.reaches(job_id, "complete")
    return job_id


async def as_machine(room: Lab, said: dict[str, Any], where: str = "") -> Answer:
    """Report with the shared secret, without a tenant's token."""
    machine = Api(room.api.url, room.api.session)
    return await machine.post(f"/api/v1/status-webhook/{SERIAL}{where}", said, {"X-Webhook-Secret": SECRET})


async def with_its_token(room: Lab, said: dict[str, Any]) -> Answer:
    machine = room.api.of((await room.on_medium())["token"])
    return await machine.post(f"/api/v1/status-webhook/{SERIAL}", said)
