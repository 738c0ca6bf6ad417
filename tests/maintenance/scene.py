"""A job at a real controller that waits for its machine, and the machine with the job's media in its drives."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.maintenance.machine import Machine
from tests.provisioning.guest import Script
from tests.provisioning.lab import RECIPE, Lab, lab

DISPATCHER = "provision-dispatcher.service"
SECRET = "swordfish-in-user-data"


@dataclass
class Scene:
    room: Lab
    machine: Machine
    job_id: str

    async def status(self) -> str:
        return str((await self.room.job(self.job_id))["status"])

    async def webhooks(self) -> list[dict[str, Any]]:
        return await self.room.told(self.job_id, "webhook")

    async def dispatched(self) -> Machine:
        ran = await self.machine.agent("dispatch")
        assert ran.code == 0, ran.said
        return self.machine


@asynccontextmanager
async def scene(
    store_url: str, tmp_path: Path, recipe: Mapping[str, Any] = RECIPE, **settings: Any
) -> AsyncIterator[Scene]:
    async with lab(
        store_url, tmp_path, script=Script(silent=True), settings={"provisioning.install_seconds": 60, **settings}
    ) as room:
        job_id = await room.waiting(recipe=recipe)
        machine = Machine(tmp_path)
        for number, drive in enumerate(room.bmc.system.drives.values()):
            async with room.api.session.get(drive.image) as response:
                machine.insert(**{f"sr{number}": await response.read()})
        yield Scene(room, machine, job_id)
