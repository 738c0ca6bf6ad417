"""ESXi: there is no maintenance system and no report. The installer reboots the machine when it is done, and the BMC shows that."""

from pathlib import Path
from typing import Any

import pytest

from chargehand.doors.provisioning.job.waiting import rebooted, since_reset
from chargehand.doors.provisioning.redfish.facts import Glance
from tests.api.serving import on_sqlite, until
from tests.provisioning.bmc_habits import Habits
from tests.provisioning.guest import Script
from tests.provisioning.lab import Lab, lab

RECIPE: dict[str, Any] = {
    "task_target": "install-esxi.target",
    "wipe": True,
    "installer_iso": "esxi.iso",
    "ks_cfg": "vmaccepteula\nrootpw swordfish-in-kickstart\nreboot\n",
}
INSTALLER = b"the installer's image" * 1000


async def begun(room: Lab, tmp_path: Path) -> str:
    media = tmp_path / "data" / "media"
    media.mkdir(parents=True, exist_ok=True)
    (media / "esxi.iso").write_bytes(INSTALLER)
    await room.register()
    return await room.submit(recipe=RECIPE)


@on_sqlite
async def test_the_installers_own_reboot_ends_the_job_without_another_reset(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        job_id = await begun(room, tmp_path)
        await room.waits(job_id)
        assert "installer.iso" in room.bmc.image("Cd1")
        await until(lambda: room.server.provisioning and room.bmc.count("reset") == 1)
        await _seen(room, job_id)
        await room.bmc.guest_reboots()
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], job["warnings"]) == ("succeeded", [])
        assert room.bmc.count("reset") == 1, "the installed system was left to boot"
        assert [room.bmc.image(drive) for drive in room.bmc.system.drives] == ["", ""]


@on_sqlite
async def test_an_installer_that_never_reboots_fails_the_job_at_the_deadline(store_url: str, tmp_path: Path) -> None:
    settings = {"provisioning.install_seconds": 1}
    habits = Habits(fetches=True)
    async with lab(store_url, tmp_path, habits, Script(silent=True), settings) as room:
        job = await room.reaches(await begun(room, tmp_path), "complete")
        assert (job["outcome"], job["failed_step"]) == ("failed", "webhook.wait")
        assert job["failure"]["reason"] == "no_report"


@on_sqlite
async def test_a_report_of_the_kickstart_ends_the_job_before_the_reboot(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        job_id = await begun(room, tmp_path)
        await room.waits(job_id)
        (await room.report({"status": "success"})).good()
        job = await room.reaches(job_id, "complete")
        assert job["outcome"] == "succeeded"


@on_sqlite
async def test_a_missing_installer_image_fails_with_iso_serve(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        job = await room.reaches(await room.submit(recipe=RECIPE), "complete")
        assert (job["outcome"], job["failed_step"]) == ("failed", "iso.serve")
        assert "esxi.iso" in job["error"]
        assert room.bmc.count("insert") == 0


async def _seen(room: Lab, job_id: str) -> None:
    """Wait until the controller has read the power at least once since the machine booted."""
    looks = len(room.bmc.calls("GET", room.bmc.system.id))
    await until(lambda: len(room.bmc.calls("GET", room.bmc.system.id)) > looks + 1)


@pytest.mark.parametrize(
    ("before", "seen", "expected"),
    [
        (Glance("Off"), Glance("On"), True),
        (Glance("PoweringOn"), Glance("On"), True),
        (Glance("On"), Glance("On"), False),
        (Glance("On"), Glance("Off"), False),  # not on again yet
        (Glance("On"), Glance("Unknown"), False),
        (Glance("On", "10:00"), Glance("On", "11:00"), True),
        (Glance("On", "10:00"), Glance("On", ""), False),  # the time is not shown
        (Glance("On", "", "OSRunning"), Glance("On", "", "MemoryInitializationStarted"), True),
        (Glance("On", "", "MemoryInitializationStarted"), Glance("On", "", "OSRunning"), False),
    ],
)
def test_a_reboot_is_recognised_by_power_reset_time_or_boot_progress(
    before: Glance, seen: Glance, expected: bool
) -> None:
    assert rebooted(before, seen) is expected


@pytest.mark.parametrize(
    ("before", "seen", "expected"),
    [
        (Glance("On", "09:00"), Glance("On", "10:00"), False),
        (Glance("On", "09:00", "OSRunning"), Glance("On", "10:00", "MemoryInitializationStarted"), False),
        (Glance("On", "10:00"), Glance("On", "11:00"), True),
        (Glance("Off", "09:00"), Glance("On", "09:00"), True),  # a BMC that never updates the time
    ],
)
def test_our_own_reset_shown_late_is_not_taken_for_the_installers_reboot(
    before: Glance, seen: Glance, expected: bool
) -> None:
    assert rebooted(before, seen, unreset="09:00") is expected


@on_sqlite
async def test_an_unreachable_bmc_is_logged_once_while_the_installer_works(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        job_id = await begun(room, tmp_path)
        await room.waits(job_id)
        await _seen(room, job_id)
        known, room.bmc.system.id = room.bmc.system.id, "moved"
        looks = len(room.bmc.calls("GET", known))
        await until(lambda: len(room.bmc.calls("GET", known)) > looks + 3)
        lines = [each for each in await room.events(job_id) if "cannot look at the power" in each["message"]]
        assert len(lines) == 1


def test_boot_progress_from_before_our_reset_is_not_taken_for_the_installers_reboot() -> None:
    shown = ["OSRunning", "MemoryInitializationStarted", "OSRunning", "BusInitializationStarted"]
    before: Glance | None = None
    reboots = []
    for progress in shown:
        seen = since_reset(before, Glance("On", "", progress))
        reboots.append(before is not None and rebooted(before, seen))
        before = seen
    assert reboots == [False, False, False, True]
