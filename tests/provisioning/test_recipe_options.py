"""The options of a recipe: what happens to the machine after the job, and how long to wait for its report."""

from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import on_sqlite
from tests.provisioning.bmc_habits import Habits
from tests.provisioning.guest import Script
from tests.provisioning.lab import FAILED, RECIPE, lab

SILENT = Script(silent=True)
UPDATE = {
    "task_target": "supermicro-update.target",
    "firmware_url": "http://10.0.0.1/bios.bin",
    "env": {"USER_FIRMWARE_SHA256": "0" * 64},
}


@on_sqlite
@pytest.mark.parametrize(
    ("wish", "said", "power", "boots"),
    [
        ({}, {"status": "success"}, "On", [True, False]),
        ({"on_success": "power-off"}, {"status": "success"}, "Off", [True]),
        ({"on_success": "leave"}, {"status": "success"}, "On", [True]),
        ({}, FAILED, "On", [True]),
        ({"on_failure": "reboot"}, FAILED, "On", [True, False]),
        ({"on_failure": "power-off"}, FAILED, "Off", [True]),
    ],
    ids=["reboot", "power off", "leave", "failed: leave", "failed: reboot", "failed: power off"],
)
async def test_after_the_job_the_machine_is_rebooted_switched_off_or_left_as_the_recipe_says(
    store_url: str, tmp_path: Path, wish: dict[str, str], said: dict[str, str], power: str, boots: list[bool]
) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting(recipe={**RECIPE, **wish})
        (await room.report(said)).good()
        job = await room.reaches(job_id, "complete")
        assert job["warnings"] == []
        assert room.bmc.system.power == power
        assert [boot.cd for boot in room.guest.boots] == boots
        assert [drive.image for drive in room.bmc.system.drives.values()] == ["", ""]


@on_sqlite
@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        (UPDATE, {"provisioning.maintenance_seconds": 0.3}),
        (RECIPE, {"provisioning.install_seconds": 0.3}),
    ],
    ids=["maintenance", "install"],
)
async def test_each_kind_of_work_has_its_own_time_limit(
    store_url: str, tmp_path: Path, recipe: dict[str, Any], settings: dict[str, float]
) -> None:
    async with lab(store_url, tmp_path, script=SILENT, settings=settings) as room:
        await room.register()
        job = await room.reaches(await room.submit(recipe=recipe), "complete")
        assert (job["failed_step"], job["error"]) == ("webhook.wait", "no report of success or failure within 0.3 s")


@on_sqlite
async def test_a_recipe_may_set_another_time_limit(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, script=SILENT, settings={"provisioning.fetch_seconds": 1000}) as room:
        job_id = await room.waiting(recipe={**RECIPE, "timeout_minutes": 2})
        job = await room.job(job_id)
        reset = next(step for step in job["progress"]["steps"] if step["step"] == "poll")["began_at"]
        began, until_at = (_seconds(text) for text in (reset, job["deadlines"]["webhook.wait"]))
        assert 119 <= until_at - began <= 122


def _seconds(text: str) -> float:
    hours, minutes, seconds = text.removesuffix("Z").partition("T")[2].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


@on_sqlite
async def test_the_image_of_somebody_else_is_not_ejected_at_the_end(store_url: str, tmp_path: Path) -> None:
    """Somebody has replaced our image by another one during the job."""
    async with lab(store_url, tmp_path, Habits(), SILENT) as room:
        job_id = await room.waiting()
        room.bmc.system.drives["Cd1"].image = "http://10.9.8.7/rescue.iso"
        (await room.report({"status": "success"})).good()
        assert (await room.reaches(job_id, "complete"))["warnings"] == []
        assert [drive.image for drive in room.bmc.system.drives.values()] == ["http://10.9.8.7/rescue.iso", ""]
