"""The deviations of real BMCs, each in a whole job: it succeeds in spite of the deviation, or fails with the right key.

What each habit means for a single request is tested in the test_redfish_* files.
"""

from pathlib import Path
from typing import Any

import pytest

from chargehand.doors.provisioning.taxonomy import Key
from tests.api.serving import on_sqlite
from tests.provisioning.bmc_habits import CD_AND_USB, ONE_CD, Habits
from tests.provisioning.guest import Script, task_files
from tests.provisioning.lab import MAINTENANCE, Lab, lab

WELL: dict[str, Habits] = {
    "one CD drive, so both media are one image": Habits(slots=ONE_CD),
    "one CD and one USB drive": Habits(slots=CD_AND_USB),
    "InsertMedia that requires TransferProtocolType": Habits(wants=("TransferProtocolType",)),
    "InsertMedia that refuses Inserted": Habits(refuses=("Inserted", "WriteProtected")),
    "InsertMedia that refuses without a message": Habits(wants=("TransferProtocolType",), mute=True),
    "drives that are patched": Habits(patch_only=True),
    "drives under the manager": Habits(media_under="manager"),
    "drives that show only the name of the file": Habits(abbreviates=True),
    "actions under other targets": Habits(odd_targets=True),
    "reset types in a separate resource": Habits(action_info=True, power="On"),
    "202 with a task monitor": Habits(task="succeeds"),
    "503 with Retry-After": Habits(busy=1, busy_status=503, retry_after="1"),
    "429 with Retry-After": Habits(busy=1, busy_status=429, retry_after="1"),
    "sessions that expire": Habits(session_requests=2),
    "ETags": Habits(etag="required"),
    "an override that lasts": Habits(override="continuous"),
    "an override in attributes of the manager": Habits(manufacturer="Dell Inc.", dell_attributes=True),
    "PowerState Off of a machine that is on": Habits(shows_power="Off"),
    "power that changes slowly": Habits(power="On", power_seconds=0.3),
    "a reset that answers 500 and is carried out": Habits(reset="error-done"),
    "a BMC that reboots with the machine": Habits(away_after=("reset",), away_seconds=0.5),
    "a BMC that reboots after an insert": Habits(away_after=("insert",), away_seconds=0.3),
    "a BMC that really fetches": Habits(fetches=True),
    "a second system beside it": Habits(systems=2),
}
BADLY: dict[str, tuple[Key, Habits, str]] = {
    "a reset that answers 200 and does nothing": (
        Key.REDFISH_RESET,
        Habits(reset="nothing", power="On"),
        "accepted 3 resets and carried out none",
    ),
    "PowerState On of a machine that is off, so that it is restarted": (
        Key.REDFISH_RESET,
        Habits(shows_power="On"),
        "accepted 3 resets and carried out none",
    ),
    "a restart that does not switch on a machine that is off": (
        Key.REDFISH_POLL,
        Habits(reset="nothing"),
        "the system's power is Off",
    ),
    "a reset that answers 500": (Key.REDFISH_RESET, Habits(reset="error", power="On"), "broke while resetting"),
    "no reset that would boot it": (Key.REDFISH_RESET, Habits(resets=("Nmi",)), "Nmi"),
    "a task that fails": (Key.REDFISH_MOUNT_MAINTENANCE, Habits(task="fails"), "The share could not be mounted."),
    "InsertMedia that requires an unknown parameter": (
        Key.REDFISH_MOUNT_MAINTENANCE,
        Habits(wants=("Ticket",)),
        "Ticket",
    ),
    "an insert without effect": (Key.REDFISH_MOUNT_MAINTENANCE, Habits(insert_silent=True), "does not show it"),
    "an override without effect": (
        Key.REDFISH_BOOT_OVERRIDE,
        Habits(override="ignored"),
        "but shows None",
    ),
    "a BMC that stays away": (Key.REDFISH_POLL, Habits(away_after=("reset",), away_seconds=1.2), "not back within"),
}
HURRIED: dict[str, Any] = {"provisioning.boot_seconds": 0.8, "provisioning.bmc_back_seconds": 0.8}


async def finished(room: Lab) -> dict[str, Any]:
    await room.register()
    return await room.reaches(await room.submit(), "complete")


def images(room: Lab) -> list[str]:
    return [drive.image for drive in room.bmc.system.drives.values() if drive.image]


@on_sqlite
@pytest.mark.parametrize("habit", WELL)
async def test_a_job_succeeds_in_spite_of_the_habit(store_url: str, tmp_path: Path, habit: str) -> None:
    habits = WELL[habit]
    async with lab(store_url, tmp_path, habits, settings={"provisioning.cleanup_seconds": 10}) as room:
        job = await finished(room)
        shown = [warning.partition(":")[0] for warning in job["warnings"]]
        assert (job["outcome"], shown) == ("succeeded", ["cleanup.reset"] if habits.shows_power else [])
        assert room.guest.imaged == [job["job_id"]]
        # A machine that is on but shown as off is only switched on at the end: the last reset does not happen, with a warning.
        assert [boot.cd for boot in room.guest.boots] == [True, False][: 1 if habits.shows_power else 2]
        assert images(room) == []
        assert not room.bmc.sessions or habits.away_after


@on_sqlite
@pytest.mark.parametrize("habit", BADLY)
async def test_a_job_fails_with_the_right_key_because_of_the_habit(store_url: str, tmp_path: Path, habit: str) -> None:
    key, habits, says = BADLY[habit]
    async with lab(
        store_url,
        tmp_path,
        habits,
        Script(silent=True),
        {**HURRIED, "provisioning.boot_seconds": 4} if habits.task else HURRIED,
    ) as room:
        job = await finished(room)
        assert (job["outcome"], job["failed_step"]) == ("failed", key), job["error"]
        told = [event["message"] for event in await room.events(job["job_id"])]
        assert any(says in text for text in (job["error"], *told)), told
        assert images(room) == []
        assert room.guest.imaged == []


@on_sqlite
async def test_a_single_drive_gets_one_image_with_the_maintenance_system_and_the_task(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, Habits(slots=ONE_CD), Script(silent=True)) as room:
        job_id = await room.waiting()
        [url] = images(room)
        assert url.endswith("/boot.iso")
        async with room.api.session.get(url) as response:
            image = await response.read()
        assert image.startswith(MAINTENANCE)
        assert job_id.encode() in task_files(image)["report.json"]


@on_sqlite
async def test_a_reset_is_not_sent_twice_to_a_bmc_that_does_not_answer(store_url: str, tmp_path: Path) -> None:
    async with lab(
        store_url, tmp_path, Habits(reset="hangs", power="On"), Script(), {"provisioning.redfish_timeout_seconds": 0.3}
    ) as room:
        job = await finished(room)
        assert job["outcome"] == "succeeded"
        assert room.bmc.count("reset") == 2  # one to begin, one at the end
        assert [boot.cd for boot in room.guest.boots] == [True, False]
