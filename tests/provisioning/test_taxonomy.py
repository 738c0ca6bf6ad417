"""Every key of the taxonomy, by a real failure: what an operator reads then, and that the machine is left clean."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chargehand.doors.provisioning.taxonomy import UNITS, Key, Phase
from tests.api.serving import on_sqlite
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import ONE_CD, TWO_CDS, Habits
from tests.provisioning.guest import LINUX, Script
from tests.provisioning.lab import RECIPE, SERIAL, Lab, lab
from tests.provisioning.stubborn import KeepsItsMedia, ResetsOnce, SecondDriveJams

WINDOWS_RECIPE: dict[str, Any] = {
    "task_target": "install-windows.target",
    "target_disk": "/dev/vda",
    "wipe": True,
    "oci_url": "127.0.0.1:5000/os-images/windows:2022",
    "partition_layout": [
        {"size": "512M", "type_guid": "ef00", "format": "vfat", "label": "ESP"},
        {"size": "100%", "type_guid": "0700", "format": "ntfs", "label": "Windows"},
    ],
    "unattend_xml": "<unattend/>",
}
WINDOWS = ("provision-dispatcher.service", "partition.service", "image-windows.service", "bootloader-windows.service")


@dataclass(frozen=True)
class Trouble:
    """What is wrong, and what the error must say."""

    says: str
    habits: Habits = field(default_factory=Habits)
    script: Script = field(default_factory=Script)
    settings: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=lambda: RECIPE)
    bmc_class: type[FakeBmc] = FakeBmc
    unit: str = ""
    reason: str = ""


def fails_at(unit: str, steps: tuple[str, ...] = LINUX, recipe: Mapping[str, Any] = RECIPE) -> Trouble:
    return Trouble(
        f"{unit} failed with exit code 3", script=Script(fails_at=unit, steps=steps), recipe=recipe, unit=unit
    )


FAILURES: dict[Key, Trouble] = {
    Key.ISO_BUILD: Trouble("cannot be made"),  # see `spoil`
    Key.ISO_SERVE: Trouble("cannot be served: No such file", settings={"provisioning.maintenance_iso": "/no/such.iso"}),
    Key.REDFISH_DISCOVER: Trouble("SN-1", Habits(serial="SN-OF-ANOTHER")),
    Key.REDFISH_MOUNT_MAINTENANCE: Trouble(
        "Could not fetch", Habits(fetches=True), settings={"provisioning.public_url": "http://127.0.0.1:1"}
    ),
    Key.REDFISH_MOUNT_TASK: Trouble("second drive is jammed", bmc_class=SecondDriveJams),
    Key.REDFISH_BOOT_OVERRIDE: Trouble("offers no boot override to a cd drive", Habits(targets=("None", "Pxe", "Hdd"))),
    Key.REDFISH_RESET: Trouble("accepted 3 resets and carried out none", Habits(reset="nothing", power="On")),
    Key.REDFISH_POLL: Trouble(
        "not back within 0.3 s after the reset",
        Habits(away_after=("reset",), away_seconds=0.7),
        Script(silent=True),
        {"provisioning.bmc_back_seconds": 0.3, "provisioning.cleanup_seconds": 10},
    ),
    Key.WORKFLOW_DISPATCHER: fails_at("provision-dispatcher.service"),
    Key.WORKFLOW_PARTITION: fails_at("partition.service"),
    Key.WORKFLOW_IMAGE_LINUX: fails_at("image-linux.service"),
    Key.WORKFLOW_BOOTLOADER_LINUX: fails_at("bootloader-linux.service"),
    Key.WORKFLOW_CONFIG_DRIVE: fails_at("config-drive.service"),
    Key.WORKFLOW_IMAGE_WINDOWS: fails_at("image-windows.service", WINDOWS, WINDOWS_RECIPE),
    Key.WORKFLOW_BOOTLOADER_WINDOWS: fails_at("bootloader-windows.service", WINDOWS, WINDOWS_RECIPE),
    Key.WEBHOOK_WAIT: Trouble(
        "no report of success or failure within 0.3 s",
        script=Script(reports=False),
        settings={"provisioning.install_seconds": 0.3},
        reason="no_report",
    ),
}
REFUSALS: dict[Key, tuple[int, str, dict[str, Any]]] = {
    Key.VALIDATION_SCHEMA: (400, "/recipe/wipe", {"server_serial": SERIAL, "recipe": {**RECIPE, "wipe": False}}),
    Key.VALIDATION_SERVER: (404, "", {"server_serial": "SN-UNKNOWN", "recipe": RECIPE}),
    Key.CONFLICT_ACTIVE_JOB: (409, "", {"server_serial": SERIAL, "recipe": RECIPE}),
}
WARNINGS: dict[Key, Trouble] = {
    Key.CLEANUP_UNMOUNT: Trouble(
        "A console holds the drive", bmc_class=KeepsItsMedia, settings={"provisioning.cleanup_seconds": 0.3}
    ),
    Key.CLEANUP_RESET: Trouble("Not a second time", bmc_class=ResetsOnce),
}


def spoil(key: Key, folder: Path) -> None:
    """Put a file where the directory of task media should be: unlike permissions, this stops root too."""
    if key is Key.ISO_BUILD:
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data" / "provisioning").write_text("in the way")


def ejected(room: Lab) -> bool:
    return not any(drive.image for drive in room.bmc.system.drives.values())


def test_every_key_of_the_taxonomy_is_provoked_here() -> None:
    assert {*FAILURES, *REFUSALS, *WARNINGS} == set(Key)
    assert {key for key in FAILURES if key.entry.phase is Phase.WORKFLOW} == set(UNITS.values())


@on_sqlite
@pytest.mark.parametrize("key", FAILURES)
async def test_a_job_that_fails_says_where_and_what_to_do_and_leaves_the_machine_in_order(
    store_url: str, tmp_path: Path, key: Key
) -> None:
    trouble = FAILURES[key]
    given = (trouble.habits, trouble.script, trouble.settings)
    async with lab(store_url, tmp_path, *given, bmc_class=trouble.bmc_class) as room:
        spoil(key, tmp_path)
        await room.register()
        job_id = await room.submit(recipe=trouble.recipe)
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], job["failed_step"], job["warnings"]) == ("failed", key, [])
        assert trouble.says in job["error"]
        assert job["failure"] == {
            "failed_step": key,
            "unit": trouble.unit,
            "message": job["error"],
            "reason": trouble.reason,
            "meaning": key.entry.meaning,
            "advice": key.entry.advice,
            "can_retry": key.entry.can_retry,
        }
        events = await room.events(job_id)
        [told] = [event for event in events if event["kind"] == "outcome" and event["status"] == "failed"]
        assert (told["level"], told["step"]) == ("error", key)
        assert trouble.says in told["message"]
        assert events[-1]["status"] == "complete"
        assert ejected(room)
        assert room.bmc.system.enabled == "Disabled"
        assert (await room.api.get(f"/api/v1/servers/{SERIAL}")).good()["active_job"] is None
        if key.entry.phase is Phase.WORKFLOW:
            assert job["progress"]["log_tail"] == f"{trouble.unit}: no such disk"
            [heard] = [event for event in events if event["kind"] == "webhook"]
            assert (heard["step"], heard["data"]["failed_step"]) == (trouble.unit, trouble.unit)


@on_sqlite
@pytest.mark.parametrize("key", REFUSALS)
async def test_a_request_that_cannot_become_a_job_is_refused_with_its_key(
    store_url: str, tmp_path: Path, key: Key
) -> None:
    status, pointer, body = REFUSALS[key]
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        await room.waiting()
        refused = await room.api.post("/api/v1/jobs", body)
        assert (refused.status, refused.json["error"]) == (status, key)
        assert refused.json["message"]
        assert pointer in [detail["path"] for detail in refused.json["details"]] or not pointer
        assert len((await room.api.get("/api/v1/jobs")).good()["jobs"]) == 1


@on_sqlite
@pytest.mark.parametrize("key", WARNINGS)
async def test_a_failed_cleanup_step_is_a_warning_and_the_outcome_stands(
    store_url: str, tmp_path: Path, key: Key
) -> None:
    trouble = WARNINGS[key]
    async with lab(store_url, tmp_path, settings=trouble.settings, bmc_class=trouble.bmc_class) as room:
        await room.register()
        job_id = await room.submit()
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], job["failed_step"], job["error"]) == ("succeeded", None, None)
        [warning] = job["warnings"]
        assert warning.startswith(f"{key}: ")
        assert trouble.says in warning
        warned = [event for event in await room.events(job_id) if event["level"] == "warn"]
        assert {event["step"] for event in warned} == {key}
        assert trouble.says in warned[-1]["message"]
        assert ejected(room) is (key is not Key.CLEANUP_UNMOUNT)


@on_sqlite
async def test_a_full_disk_fails_with_iso_build(store_url: str, tmp_path: Path) -> None:
    """/dev/full stands for a full disk: every write to it fails with ENOSPC."""
    async with lab(store_url, tmp_path, Habits(slots=ONE_CD)) as room:
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / "provisioning").symlink_to("/dev/full")
        await room.register()
        job = await room.reaches(await room.submit(), "complete")
        assert (job["outcome"], job["failed_step"]) == ("failed", Key.ISO_BUILD)


@on_sqlite
@pytest.mark.parametrize(
    ("habits", "record", "says"),
    [
        (Habits(), {"bmc_password": "wrong"}, "password"),
        (Habits(), {"bmc_address": "http://127.0.0.1:1"}, "no connection to the BMC"),
        (Habits(), {"system_uuid": "99999999-2222-3333-4444-555555555555"}, "UUID"),
        (Habits(serial=None, uuid=None), {}, "unidentified"),
        (Habits(slots=()), {}, "no virtual CD drive"),
        (Habits(slots=TWO_CDS, body="html"), {}, "JSON"),
        (Habits(redirect="http://169.254.169.254/"), {}, "redirects to 169.254.169.254"),
    ],
    ids=["wrong password", "nobody there", "another UUID", "no identity", "no drive", "no JSON", "redirect"],
)
async def test_an_unusable_bmc_fails_with_redfish_discover_and_is_not_changed(
    store_url: str, tmp_path: Path, habits: Habits, record: dict[str, Any], says: str
) -> None:
    async with lab(store_url, tmp_path, habits, settings={"provisioning.boot_seconds": 0.4}) as room:
        await room.register(**record)
        job = await room.reaches(await room.submit(), "complete")
        assert (job["outcome"], job["failed_step"]) == ("failed", Key.REDFISH_DISCOVER)
        assert says in job["error"]
        assert [room.bmc.count(what) for what in ("insert", "override", "reset")] == [0, 0, 0]
