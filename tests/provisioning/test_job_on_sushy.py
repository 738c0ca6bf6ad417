"""A whole job on a BMC that we did not write: sushy-emulator as a process. This test acts as its machine, which boots the images that the
emulator downloaded.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.api.serving import on_sqlite, until
from tests.provisioning.guest import Guest, Script, task_files
from tests.provisioning.lab import Lab, lab
from tests.provisioning.sushy import FIRST, SECOND, emulator

SERIAL = "RACK-1"


class Machine:
    """Gets its power and its drives from the emulator, and boots when it is switched on to boot from CD."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.system: dict[str, Any] = {}
        self.boots: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def hear(self, request: web.Request) -> web.Response:
        before, self.system = self.system.get("power_state"), await request.json()
        if self.system["power_state"] == "On" and before not in (None, "On") and not self.system.get("pending_power"):
            self.boots.append(self.system.get("boot_device", "Hdd"))
            if self.boots[-1] == "Cd":
                task = asyncio.create_task(self._boot())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return web.Response()

    async def _boot(self) -> None:
        images = [Path(image[0]) for image in self.system["boot_image"].values() if image[0]]
        read = [await asyncio.to_thread(_files, image) for image in images]
        task = next(files for files in read if files)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
            await self.guest.work(session, task)

    @property
    def inserted(self) -> list[str]:
        return [image[0] for image in (self.system.get("boot_image") or {}).values() if image[0]]


def _files(image: Path) -> dict[str, bytes]:
    return task_files(image.read_bytes())


@asynccontextmanager
async def a_machine(guest: Guest) -> AsyncIterator[tuple[Machine, str]]:
    machine = Machine(guest)
    app = web.Application()
    app.router.add_put("/{rest:.*}", machine.hear)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield machine, f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def register(room: Lab, url: str, uuid: str) -> None:
    body = {"bmc_address": url, "system_uuid": uuid, "vendor": "sushy"}
    (await room.api.call("PUT", f"/api/v1/servers/{SERIAL}", body)).good()


@on_sqlite
@pytest.mark.parametrize("power", ["Off", "On"])
async def test_a_machine_behind_sushy_emulator_is_provisioned(store_url: str, tmp_path: Path, power: str) -> None:
    fake = FIRST if power == "Off" else SECOND
    async with lab(store_url, tmp_path) as room, a_machine(room.guest) as (machine, url):
        with emulator(tmp_path, notify_url=url) as bmc:
            await register(room, bmc.url, fake.uuid)
            probe = (await room.api.post(f"/api/v1/servers/{SERIAL}/probe")).good()
            assert probe["ok"], probe
            assert [slot["kind"] for slot in probe["facts"]["slots"]] == ["cd", "cd"]
            job_id = await room.submit(SERIAL)
            job = await room.reaches(job_id, "complete", 30)
            assert (job["outcome"], job["warnings"]) == ("succeeded", [])
            assert room.guest.imaged == [job_id]
            await until(lambda: not machine.inserted)

            async def came_back() -> bool:
                # The emulator carries out pending changes when the system is read.
                async with room.api.session.get(f"{bmc.url}/redfish/v1/Systems/{fake.uuid}") as response:
                    await response.read()
                return len(machine.boots) == 2

            await until(came_back)
            assert machine.boots == ["Cd", "Hdd"]


@on_sqlite
async def test_with_the_single_default_drive_of_sushy_emulator_the_task_is_in_the_same_image(
    store_url: str, tmp_path: Path
) -> None:
    async with (
        lab(store_url, tmp_path, script=Script(fails_at="image-linux.service")) as room,
        a_machine(room.guest) as (machine, url),
    ):
        one = {"Cd": {"Name": "Virtual CD", "MediaTypes": ["CD", "DVD"]}}
        with emulator(tmp_path, devices=one, notify_url=url) as bmc:
            await register(room, bmc.url, FIRST.uuid)
            job_id = await room.submit(SERIAL)
            job = await room.reaches(job_id, "complete", 30)
            assert (job["outcome"], job["failed_step"]) == ("failed", "workflow.image-linux")
            assert room.guest.imaged == [job_id]
            await until(lambda: not machine.inserted)
            assert machine.boots == ["Cd"], "the machine waits for whoever looks at it"


@on_sqlite
async def test_a_machine_with_another_uuid_than_the_registered_one_is_not_touched(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path) as room, a_machine(room.guest) as (machine, url):
        with emulator(tmp_path, notify_url=url) as bmc:
            await register(room, bmc.url, "bbbbbbbb-0000-4000-8000-000000000009")
            job = await room.reaches(await room.submit(SERIAL), "complete", 30)
            assert (job["outcome"], job["failed_step"]) == ("failed", "redfish.discover")
            assert (machine.boots, machine.inserted) == ([], [])
