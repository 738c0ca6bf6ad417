"""A machine with an empty disk becomes one that boots by itself, with the name, the user and the key that the recipe gave it."""

from pathlib import Path

import pytest

from tests.vm.place import KEY, TWO_CDS, Place, a_place

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]


async def install(place: Place, image: Path) -> None:
    await place.push(image)
    await place.register()
    job_id = await place.submit()
    job = await place.complete(job_id)
    assert (job["outcome"], job["warnings"]) == ("succeeded", []), await place.story(job_id)
    assert len(await place.reports(job_id)) == 1
    hello = await place.greeted()
    assert hello["hostname"] in (place.machine.name, f"{place.machine.name}.example.com")
    assert KEY in hello["keys"]
    assert hello["serial"] == place.machine.serial
    assert hello["uefi"] is place.machine.uefi
    assert place.boots == 2


async def test_by_bios_with_two_drives(tmp_path: Path, image: Path) -> None:
    async with a_place(tmp_path, TWO_CDS) as place:
        await install(place, image)
