"""A virtual machine room: a controller that can be killed, BMCs, machines that really boot, and a server that installed systems call
when they come up.
"""

import asyncio
import hashlib
import io
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
from aiohttp import web

from tests.e2e.server import Server, eventually
from tests.vm.qemu import GUEST_SEES_HOST, Spec, qmp

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "cache"
ISO = ROOT / "build" / "maintenance.iso"
IMAGE = "os-images/linux"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Vc3Rpbmcgb25seSwgbm90IGEga2V5IG9mIGFueWJvZHk operator@test"
TOKEN = "cht_"  # the beginning of a job's token, which must not be shown
SOON = 600.0  # an install under emulation takes two minutes on an idle machine
TWO_CDS = {
    "Cd": {"Name": "Virtual CD", "MediaTypes": ["CD", "DVD"]},
    "Cd2": {"Name": "Second virtual CD", "MediaTypes": ["CD", "DVD"]},
}
ONE_CD = {"Cd": TWO_CDS["Cd"]}
BIOS_BOOT = {"size": "1M", "type_guid": "ef02", "format": "none", "label": "bios"}
SETTINGS: dict[str, Any] = {
    "provisioning_poll_seconds": 0.5,
    "provisioning_lease_seconds": 3,
    "provisioning_silence_seconds": 300,
    "provisioning_key": "a key for tests of more than thirty-two bytes",
    "server_max_body_bytes": 1 << 29,
}

Json = dict[str, Any]


class Controller(Server):
    """A controller whose public URL is the address by which QEMU guests reach it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        data = {"server_data_dir": folder / "data", "provisioning_maintenance_iso": ISO}
        super().__init__(f"sqlite:///{folder}/jobs.db", folder, **{**SETTINGS, **data, **settings})
        self.port = int(self.url.rpartition(":")[2])
        self.environ["CHARGEHAND_PROVISIONING_PUBLIC_URL"] = self.public_url

    async def ready(self, within: float = 90) -> None:
        """Wait longer: beside three booting machines a start is slow."""
        await super().ready(within)

    @property
    def public_url(self) -> str:
        return f"http://{GUEST_SEES_HOST}:{self.port}"

    @property
    def image(self) -> str:
        return f"{GUEST_SEES_HOST}:{self.port}/{IMAGE}"


@dataclass
class Place:
    folder: Path
    machine: Spec
    bmc_url: str
    controller: Controller
    http: aiohttp.ClientSession
    greetings_port: int
    greetings: list[Json] = field(default_factory=list)

    # requests -------------------------------------------------------------------------------------------------------------

    async def call(self, method: str, path: str, body: Any = None) -> Json:
        async with self.http.request(method, f"{self.controller.url}{path}", json=body) as response:
            said = await response.text()
            assert response.status < 300, f"{method} {path}: {response.status} {said}"
            answer: Json = json.loads(said) if said else {}
            return answer

    async def register(self, serial: str = "") -> None:
        body = {"bmc_address": self.bmc_url, "system_uuid": self.machine.uuid, "vendor": "sushy"}
        await self.call("PUT", f"/api/v1/servers/{serial or self.machine.serial}", body)

    async def push(self, image: Path | bytes, kind: str = "application/vnd.oci.image.layer.v1.tar") -> str:
        """Push the content as the only layer of an image; return its digest."""
        data = image if isinstance(image, bytes) else await asyncio.to_thread(image.read_bytes)
        layer = await self._blob(data, kind + ("+zstd" if data.startswith(b"\x28\xb5\x2f\xfd") else ""))
        config = await self._blob(b"{}", "application/vnd.oci.image.config.v1+json")
        of_manifest = "application/vnd.oci.image.manifest.v1+json"
        manifest = {"schemaVersion": 2, "mediaType": of_manifest, "config": config, "layers": [layer]}
        url = f"{self.controller.url}/v2/{IMAGE}/manifests/1"
        async with self.http.put(url, data=json.dumps(manifest), headers={"Content-Type": of_manifest}) as response:
            assert response.status == 201, await response.text()
        return str(layer["digest"])

    async def _blob(self, data: bytes, kind: str) -> Json:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        url = f"{self.controller.url}/v2/{IMAGE}/blobs/uploads/?digest={digest}"
        async with self.http.post(url, data=io.BytesIO(data)) as response:
            assert response.status == 201, await response.text()
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    def recipe(self, **changes: Any) -> Json:
        users = f"users:\n  - name: keeper\n    ssh_authorized_keys:\n      - {KEY}\n"
        url = f"http://{GUEST_SEES_HOST}:{self.greetings_port}/{self.machine.serial}"
        files = f"write_files:\n  - path: /etc/greeting\n    content: {url}\n"
        return {
            "task_target": "install-linux.target",
            "target_disk": {"min_size": "1G", "transport": "virtio"},
            "wipe": True,
            "oci_url": f"{self.controller.image}:1",
            "partition_layout": [
                *([] if self.machine.uefi else [BIOS_BOOT]),
                {"size": "64M", "type_guid": "ef00", "format": "vfat", "label": "esp", "mountpoint": "/boot/efi"},
                {"size": "128M", "type_guid": "8200", "format": "swap", "label": "swap"},
                {"size": "100%", "type_guid": "8304", "format": "ext4", "label": "root", "mountpoint": "/"},
            ],
            "hostname": f"{self.machine.name}.example.com",
            "user_data": f"#cloud-config\n{users}{files}",
            **changes,
        }

    async def submit(self, recipe: Json | None = None, serial: str = "") -> str:
        body = {"server_serial": serial or self.machine.serial, "recipe": recipe or self.recipe()}
        return str((await self.call("POST", "/api/v1/jobs", body))["job_id"])

    async def job(self, job_id: str) -> Json:
        return await self.call("GET", f"/api/v1/jobs/{job_id}")

    async def events(self, job_id: str) -> list[Json]:
        found: list[Json] = (await self.call("GET", f"/api/v1/jobs/{job_id}/events"))["events"]
        return found

    # waiting --------------------------------------------------------------------------------------------------------------

    async def complete(self, job_id: str, within: float = SOON) -> Json:
        async def there() -> Json | None:
            job = await self.job(job_id)
            return job if job["status"] == "complete" else None

        try:
            found: Json = await eventually(there, within, "the job is complete")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self.story(job_id)}") from None
        # To keep the log and the consoles, run with `--basetemp=DIR -o tmp_path_retention_policy=all`.
        (self.folder / "story.txt").write_text(await self.story(job_id))
        return found

    async def greeted(self, within: float = SOON) -> Json:
        await eventually(lambda: self.greetings, within, lambda: f"the disk boots by itself:\n{self.console()[-4000:]}")
        return self.greetings[-1]

    async def until_on_console(self, text: str, within: float = SOON) -> None:
        await eventually(lambda: text in self.console(), within, lambda: f"{text!r}:\n{self.console()[-4000:]}")

    async def told(self, job_id: str, text: str, within: float = SOON) -> None:
        """Wait until a line of the job's log contains the text."""

        async def said() -> bool:
            return any(text in event["message"] for event in await self.events(job_id))

        try:
            await eventually(said, within, f"the log says {text!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self.story(job_id)}") from None

    # checks ---------------------------------------------------------------------------------------------------------------

    @property
    def boots(self) -> int:
        return len(list(Path(self.machine.folder).glob("serial-*.log")))

    def console(self, boot: int = 0) -> str:
        """Return the serial output of a boot, by default the last."""
        log = self.machine.serial_log(boot or self.boots)
        return log.read_text(errors="replace") if log.exists() else ""

    async def story(self, job_id: str) -> str:
        lines = [
            f"{event['time']} {event['level']} {event['step']}: {event['message']}"
            for event in await self.events(job_id)
        ]
        return "\n".join((*lines, "console:", self.console()[-6000:]))

    def disk_is_untouched(self) -> bool:
        """Is the disk's file still sparse, without any written block?"""
        disk = self.machine.disk
        return not disk.exists() or disk.stat().st_blocks == 0

    def link(self, up: bool) -> None:
        qmp(self.machine.commands, "set_link", {"name": "nic", "up": up})

    async def reports(self, job_id: str) -> list[Json]:
        return [event for event in await self.events(job_id) if event["kind"] == "webhook"]


@asynccontextmanager
async def a_place(
    folder: Path, drives: Mapping[str, Any] = TWO_CDS, *, metal: Mapping[str, Any] = {}, **settings: Any
) -> AsyncIterator[Place]:
    name = re.sub(r"[^a-z0-9]", "", folder.name.lower())[:20] or "node"
    (folder / "m").mkdir()
    spec = Spec(name, str(uuid4()), f"SN-{name}", str(folder / "m"), **metal)
    controller = Controller(folder, **settings)
    greetings: list[Json] = []

    async def hear(request: web.Request) -> web.Response:
        greetings.append(await request.json())
        return web.Response()

    app = web.Application()
    app.router.add_post("/{rest:.*}", hear)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port: int = runner.addresses[0][1]
    try:
        async with controller, emulator(folder, spec, drives) as url, aiohttp.ClientSession() as http:
            yield Place(folder, spec, url, controller, http, port, greetings)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def emulator(folder: Path, spec: Spec, drives: Mapping[str, Any]) -> AsyncIterator[str]:
    for name in ("state", "tmp"):
        (folder / name).mkdir()
    settings: dict[str, Any] = {
        "SUSHY_EMULATOR_LISTEN_IP": "127.0.0.1",
        "SUSHY_EMULATOR_LISTEN_PORT": 0,
        "SUSHY_EMULATOR_FAKE_DRIVER": True,
        "SUSHY_EMULATOR_STATE_DIR": str(folder / "state"),
        "SUSHY_EMULATOR_VMEDIA_DEVICES": {name: dict(drive) for name, drive in drives.items()},
        "SUSHY_QEMU_SYSTEMS": [asdict(spec)],
    }
    config, log = folder / "sushy.conf", folder / "sushy.log"
    config.write_text("".join(f"{key} = {value!r}\n" for key, value in settings.items()))
    command = [sys.executable, "-m", "tests.vm.sushy_qemu", "--config", str(config)]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: ASYNC220 - it is started, not waited for
            command,
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "TMPDIR": str(folder / "tmp")},
            stdout=output,
            stderr=output,
        )
    try:

        def listening() -> str:
            assert process.poll() is None, log.read_text()[-2000:]
            found = re.search(r"Running on (http://127\.0\.0\.1:\d+)", log.read_text())
            return found[1] if found else ""

        yield await eventually(listening, 30, "sushy-emulator listens")
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 20)
