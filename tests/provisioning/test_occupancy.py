"""A machine has one job at a time, whatever its server records say, and while they are changed."""

from pathlib import Path

import pytest

from chargehand.doors.provisioning.job.occupancy import spot_of
from chargehand.doors.provisioning.redfish.facts import MachineFacts
from tests.api.serving import on_sqlite
from tests.provisioning.bmc_habits import USER, Habits
from tests.provisioning.guest import Script
from tests.provisioning.lab import RECIPE, SERIAL, lab

UUID = "11111111-2222-3333-4444-555555555555"
ALIAS = "ANOTHER-NAME"
SILENT = Script(silent=True)


async def test_a_machine_that_is_registered_twice_has_one_job_at_a_time(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path, Habits(serial=None), SILENT) as room:
        for serial in (SERIAL, ALIAS):
            await room.register(serial, system_uuid=UUID)
        first = await room.submit()
        await room.waits(first)
        images = [room.bmc.image(drive) for drive in room.bmc.system.drives]
        second = await room.reaches(await room.submit(ALIAS), "complete")
        assert (second["outcome"], second["failed_step"]) == ("failed", "conflict.active_job")
        assert first in second["error"]
        assert SERIAL in second["error"]
        assert [room.bmc.image(drive) for drive in room.bmc.system.drives] == images
        assert room.bmc.count("reset") == 1
        (await room.report({"status": "success"})).good()
        assert (await room.reaches(first, "complete"))["outcome"] == "succeeded"
        # The machine is free now, also for the other record.
        third = await room.submit(ALIAS)
        await room.waits(third)
        (await room.report({"status": "success"}, ALIAS)).good()
        assert (await room.reaches(third, "complete"))["outcome"] == "succeeded"


@on_sqlite
async def test_the_address_of_a_server_cannot_be_changed_while_a_job_works_on_it(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        elsewhere = {"bmc_address": "http://127.0.0.1:1", "bmc_username": "operator", "bmc_password": "x"}
        for body in (elsewhere, {"bmc_address": room.bmc.url, "bmc_username": USER, "system_uuid": UUID}):
            refused = await room.api.call("PUT", f"/api/v1/servers/{SERIAL}", body)
            assert (refused.status, refused.json["error"]) == (409, "conflict.active_job")
        await room.register(labels={"rack": "3"})  # the same machine, and its password again
        (await room.report({"status": "success"})).good()
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], job["warnings"]) == ("succeeded", [])
        assert (await room.api.call("PUT", f"/api/v1/servers/{SERIAL}", elsewhere)).status == 200


@on_sqlite
async def test_the_task_medium_is_removed_with_the_end_of_the_job_unless_media_are_kept(
    store_url: str, tmp_path: Path
) -> None:
    media = tmp_path / "data" / "provisioning"
    async with lab(store_url, tmp_path) as room:
        await room.register()
        await room.reaches(await room.submit(), "complete")
        assert list(media.rglob("*.iso")) == []
    async with lab(store_url, tmp_path, settings={"provisioning.media_keep_seconds": 3600}) as room:
        await room.register()
        job_id = await room.submit()
        await room.reaches(job_id, "complete")
        assert [path.parent.name for path in media.rglob("*.iso")] == [job_id]


@on_sqlite
async def test_ejecting_the_image_of_somebody_else_is_logged(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        next(iter(room.bmc.system.drives.values())).image = "http://elsewhere.example/rescue.iso?key=hush"
        await room.register()
        job_id = await room.submit(recipe=RECIPE)
        await room.reaches(job_id, "complete")
        [told] = [event for event in await room.events(job_id) if "taken out" in event["message"]]
        assert told["level"] == "warn"
        assert "http://elsewhere.example/rescue.iso" in told["message"]
        assert "hush" not in told["message"]


@on_sqlite
async def test_the_error_that_delays_a_step_is_shown_while_it_is_retried(store_url: str, tmp_path: Path) -> None:
    settings = {"provisioning.boot_seconds": 5, "provisioning.poll_seconds": 0.1}
    async with lab(store_url, tmp_path, Habits(away_after=("insert",), away_seconds=20), settings=settings) as room:
        await room.register()
        job_id = await room.submit()
        job = await room.reaches(job_id, "complete")
        assert job["failed_step"] in ("redfish.mount.maintenance", "redfish.mount.task")
        assert job["progress"]["trouble"] == ""
        assert any("again in" in event["message"] for event in await room.events(job_id))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (MachineFacts("/S/1", serial="A", uuid=UUID), MachineFacts("/S/1", serial="a", uuid=UUID.upper()), True),
        (
            MachineFacts("/S/1", serial="A", uuid=UUID),
            MachineFacts("/S/1", serial="B", uuid=UUID),
            False,
        ),  # boards of one kind
        (MachineFacts("/S/1", uuid=UUID), MachineFacts("/S/2", uuid=UUID), True),
        (MachineFacts("/S/1"), MachineFacts("/S/1"), False),  # without serial and UUID the address counts
        (MachineFacts("/S/1", uuid="00000000-0000-0000-0000-000000000000"), MachineFacts("/S/1"), False),
    ],
)
def test_machines_are_compared_by_serial_and_uuid(one: MachineFacts, other: MachineFacts, same: bool) -> None:
    assert (spot_of("http://bmc-1", one).machine == spot_of("http://bmc-2", other).machine) is same


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://BMC-1", "https://bmc-1:443/", True),
        ("https://bmc-1", "https://bmc-2", False),
        ("https://bmc-1", "https://bmc-1:8443", False),  # one address with many BMCs, by port
    ],
)
def test_places_are_compared_by_address_and_system(one: str, other: str, same: bool) -> None:
    of = [spot_of(one, MachineFacts("/S/1", serial="A")), spot_of(other, MachineFacts("/S/1/", serial="B"))]
    assert (of[0].place == of[1].place) is same
    assert (
        spot_of(one, MachineFacts("/S/1")).place != spot_of(one, MachineFacts("/S/2")).place
    )  # two systems behind one BMC
