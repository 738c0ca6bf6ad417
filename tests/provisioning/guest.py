"""A machine that boots from its drives and acts as the maintenance system does: it reads the task from the medium, asks whether it may
work, reports its steps as progress, and reports its outcome once.
"""

import asyncio
import contextlib
import io
import json
import uuid
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pycdlib

from provision.medium import tail
from tests.provisioning.bmc_habits import Boot

LINUX = (
    "provision-dispatcher.service",
    "partition.service",
    "image-linux.service",
    "bootloader-linux.service",
    "config-drive.service",
)


@dataclass
class Script:
    """How the machine behaves."""

    fails_at: str = ""  # a unit
    silent: bool = False  # boots and never reports
    stops_at: str = ""  # a unit after which it reports nothing more
    reports: bool = True  # sends the final report
    progress: bool = True
    steps: tuple[str, ...] = LINUX
    step_seconds: float = 0.0


@dataclass
class Guest:
    script: Script = field(default_factory=Script)
    boots: list[Boot] = field(default_factory=list)
    imaged: list[str] = field(default_factory=list)  # jobs for which the disk was written
    refused: list[str] = field(default_factory=list)
    answers: list[tuple[int, Any]] = field(default_factory=list)
    task: dict[str, bytes] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)

    async def boot(self, boot: Boot) -> None:
        self.boots.append(boot)
        if not boot.cd or self.script.silent:
            return
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
                await self._run(session, boot)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.trouble.append(repr(error))
            raise

    async def before(self, what: str) -> None:
        """Called before each step and before the report, for tests that override it."""

    async def _run(self, session: aiohttp.ClientSession, boot: Boot) -> None:
        images = {drive: await fetch(session, url) for drive, url in boot.images.items() if url}
        await self.work(session, next(files for image in images.values() if (files := task_files(image))))

    async def work(self, session: aiohttp.ClientSession, task: dict[str, bytes]) -> None:
        """Do what the maintenance system does once it has found its task."""
        self.task = task
        report = json.loads(self.task["report.json"])
        headers = {"Authorization": f"Bearer {report['token']}"}
        boot_id = str(uuid.uuid4())
        status: dict[str, Any] = {"status": "success", "delivery_id": str(uuid.uuid4()), "job_id": report["job_id"]}
        for number, step in enumerate(self.script.steps):
            await self.before(step)
            if self.script.progress:
                said = {
                    "step": step,
                    "percent": 50,
                    "message": f"at {step}",
                    "boot_id": boot_id,
                    "log_tail": f"log of {step}\n",
                }
                answer = await say(session, report["progress_url"], said, headers)
                if answer[0] == 409:
                    self.refused.append(answer[1]["reason"])
                    return
            if number == 1:
                self.imaged.append(report["job_id"])
            await asyncio.sleep(self.script.step_seconds)
            if step == self.script.stops_at:
                return
            if step == self.script.fails_at:
                status |= {"status": "failed", "failed_step": step, "exit_code": 3, "log_tail": f"{step}: no such disk"}
                break
            if self.script.progress:
                await say(
                    session, report["progress_url"], {"step": step, "finished": True, "boot_id": boot_id}, headers
                )
        if self.script.reports:
            await self.before("report")
            self.answers.append(await say(session, report["status_url"], status, headers))


async def fetch(session: aiohttp.ClientSession, url: str) -> bytes:
    """Fetch as a BMC does: again, when the connection breaks."""
    for _ in range(400):
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(url) as response:
                assert response.status == 200, (url, response.status)
                return await response.read()
        await asyncio.sleep(0.05)
    raise AssertionError(f"{url} was never reached")


async def say(
    session: aiohttp.ClientSession, url: str, said: dict[str, Any], headers: dict[str, str]
) -> tuple[int, Any]:
    """Send a report as systemd does: again until it is answered."""
    for _ in range(400):
        try:
            async with session.post(url, json=said, headers=headers) as response:
                if response.status < 500:
                    return response.status, await response.json()
        except (aiohttp.ClientError, TimeoutError):
            pass
        await asyncio.sleep(0.05)
    raise AssertionError(f"{url} was never reached")


def task_files(image: bytes) -> dict[str, bytes]:
    """Return the files of a task medium, alone or at the end of a combined one; none for any other image."""
    image = tail(lambda offset, count: image[offset : offset + count], len(image)) or image
    iso = pycdlib.PyCdlib()
    try:
        iso.open_fp(io.BytesIO(image))
    except pycdlib.pycdlibexception.PyCdlibException:
        return {}
    try:
        files: dict[str, bytes] = {}
        for child in iso.list_children(joliet_path="/"):
            if child is not None and child.is_file():
                name = child.file_identifier().decode("utf-16-be").removesuffix(";1")
                content = io.BytesIO()
                iso.get_file_from_iso_fp(content, joliet_path=f"/{name}")
                files[name] = content.getvalue()
        return files if "report.json" in files else {}
    finally:
        iso.close()
