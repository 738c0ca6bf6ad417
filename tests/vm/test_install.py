"""A machine with an empty disk is installed and boots by itself, with the name, the user and the key of the recipe."""

from pathlib import Path

import pytest

from tests.e2e.server import eventually
from tests.vm.place import KEY, ONE_CD, TOKEN, TWO_CDS, Place, a_place

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1500)]


async def installed(place: Place, job_id: str) -> None:
    job = await place.complete(job_id)
    assert (job["outcome"], job["warnings"]) == ("succeeded", []), await place.story(job_id)
    assert len(await place.reports(job_id)) == 1
    hello = await place.greeted()
    assert hello["hostname"] in (place.machine.name, f"{place.machine.name}.example.com")
    assert KEY in hello["keys"]
    assert hello["serial"] == place.machine.serial
    assert hello["uefi"] is place.machine.uefi
    assert place.boots == 2
    assert TOKEN not in place.console(1)


async def begun(place: Place, image: Path) -> str:
    await place.push(image)
    await place.register()
    return await place.submit()


async def test_a_machine_is_installed_by_uefi_with_a_single_virtual_drive(tmp_path: Path, image: Path) -> None:
    async with a_place(tmp_path, ONE_CD, metal={"uefi": True}) as place:
        await installed(place, await begun(place, image))


async def test_a_machine_is_installed_by_bios_with_two_drives_while_the_controller_is_killed(
    tmp_path: Path, image: Path
) -> None:
    async with a_place(tmp_path, TWO_CDS) as place:
        job_id = await begun(place, image)
        await eventually(lambda: "image-linux.service" in place.console(), 300, "the image is being written")
        await place.controller.kill_with_writer()
        await place.controller.start()
        await installed(place, job_id)
