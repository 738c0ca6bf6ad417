"""Unusual cases: a network cable that is pulled, a foreign installer that sends no report."""

import io
from pathlib import Path

import pycdlib
import pytest

from tests.vm import tiny
from tests.vm.place import a_place

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]

# Wait eight seconds by the BIOS's clock, then reset by the keyboard controller, like an installer at its end.
WAIT_AND_REBOOT = bytes.fromhex("fb b97a00 ba0012 b486 cd15 b0fe e664 f4 ebfd".replace(" ", ""))


async def test_a_report_without_a_network_is_sent_again(tmp_path: Path, image: Path) -> None:
    async with a_place(tmp_path) as place:
        await place.push(tiny.tree())
        await place.register()
        job_id = await place.submit(place.recipe(on_success="leave"))
        await place.until_on_console("Starting config-drive.service")
        place.link(up=False)
        await place.until_on_console("provision-success.service: Scheduled restart job")
        assert await place.reports(job_id) == []
        place.link(up=True)
        job = await place.complete(job_id)
        assert job["outcome"] == "succeeded", await place.story(job_id)
        assert len(await place.reports(job_id)) == 1


async def test_a_job_with_a_foreign_installer_is_done_when_the_machine_reboots(tmp_path: Path, image: Path) -> None:
    media = tmp_path / "data" / "media"
    media.mkdir(parents=True)
    iso = pycdlib.PyCdlib()
    iso.new(interchange_level=3, vol_ident="INSTALLER")
    boot = WAIT_AND_REBOOT.ljust(2048, b"\0")
    iso.add_fp(io.BytesIO(boot), len(boot), "/BOOT.;1")
    iso.add_eltorito("/BOOT.;1", bootcatfile="/BOOT.CAT;1")
    iso.write(str(media / "installer.iso"))
    iso.close()
    async with a_place(tmp_path) as place:
        await place.register()
        recipe = {
            "task_target": "install-esxi.target",
            "wipe": True,
            "installer_iso": "installer.iso",
            "ks_cfg": "reboot\n",
        }
        job = await place.complete(await place.submit(recipe), 120)
        assert (job["outcome"], job["warnings"]) == ("succeeded", [])
        assert place.boots == 2, "the controller did not reset it once more"
