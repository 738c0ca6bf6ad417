"""A failure on a machine is reported once, with the key of the step and its log; the machine stays as it is for inspection."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vm import tiny
from tests.vm.place import TOKEN, Json, Place, a_place

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]

WINDOWS = {
    "task_target": "install-windows.target",
    "partition_layout": [
        {"size": "100M", "type_guid": "ef00", "format": "vfat", "label": "ESP"},
        {"size": "100%", "type_guid": "0700", "format": "ntfs", "label": "Windows"},
    ],
    "unattend_xml": "<?xml version='1.0'?><unattend xmlns='urn:schemas-microsoft-com:unattend'/>",
}


def windows(place: Place) -> Json:
    recipe = place.recipe(**WINDOWS)
    return {name: value for name, value in recipe.items() if name not in ("user_data", "hostname")}


async def failed(place: Place, recipe: Json, step: str) -> Json:
    await place.register()
    job_id = await place.submit(recipe)
    job = await place.complete(job_id)
    assert (job["outcome"], job["failed_step"]) == ("failed", f"workflow.{step}"), await place.story(job_id)
    [report] = await place.reports(job_id)
    assert report["data"]["exit_code"] > 0
    assert "error: " in job["progress"]["log_tail"], "the end of its log tells why"
    assert TOKEN not in place.console()
    assert place.boots == 1, "nobody reset the machine: what it has to show is still there"
    return job


async def test_a_machine_without_a_matching_disk_fails_and_no_disk_is_touched(tmp_path: Path, image: Path) -> None:
    async with a_place(tmp_path) as place:
        await failed(place, place.recipe(target_disk={"serial": "ANOTHER"}), "partition")
        assert place.disk_is_untouched()


async def test_an_image_that_is_not_in_the_registry_fails(tmp_path: Path, image: Path) -> None:
    async with a_place(tmp_path) as place:
        await failed(place, place.recipe(), "image-linux")


async def test_an_image_with_a_wrong_digest_fails(tmp_path: Path, image: Path) -> None:
    async with a_place(tmp_path) as place:
        digest = await place.push(tiny.tree())
        (stored,) = (tmp_path / "data" / "registry" / "blobs").rglob(digest.removeprefix("sha256:"))
        data = bytearray(stored.read_bytes())
        data[-1] ^= 1
        stored.chmod(0o600)
        stored.write_bytes(data)
        await failed(place, place.recipe(), "image-linux")
        with place.machine.disk.open("rb") as disk:
            disk.seek(194 << 20)
            assert not any(disk.read(1 << 20)), "no file system is left that could be taken for an installed one"


async def test_an_image_without_a_boot_loader_fails(tmp_path: Path, image: Path) -> None:
    async with a_place(tmp_path) as place:
        await place.push(tiny.tree(grub=False))
        await failed(place, place.recipe(), "bootloader-linux")


async def test_an_image_without_a_place_for_the_first_boot_configuration_fails(tmp_path: Path, image: Path) -> None:
    async with a_place(tmp_path) as place:
        await place.push(tiny.tree(cloud_is_a_file=True))
        await failed(place, place.recipe(), "config-drive")


@pytest.mark.parametrize(("step", "made"), [("image-windows", None), ("bootloader-windows", tiny.wim)])
async def test_a_windows_image_without_windows_fails(
    tmp_path: Path, image: Path, step: str, made: Callable[[Path], bytes] | None
) -> None:
    async with a_place(tmp_path, metal={"uefi": True}) as place:
        await place.push(made(tmp_path) if made else b"no .wim at all" * 1000, "application/octet-stream")
        await failed(place, windows(place), step)


async def test_a_machine_with_another_serial_is_not_touched(tmp_path: Path, image: Path) -> None:
    async with a_place(tmp_path, metal={"dmi_serial": "ANOTHER"}) as place:
        await place.push(tiny.tree())
        await failed(place, place.recipe(), "dispatcher")
        assert place.disk_is_untouched()
