"""The Redfish client against a BMC that we did not write: sushy-emulator, with simulated machines."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from chargehand.doors.provisioning.redfish.errors import Mismatch, RedfishRefused
from chargehand.doors.provisioning.redfish.facts import Bmc
from chargehand.doors.provisioning.redfish.machine import Machine
from tests.provisioning.certificates import make_certificate
from tests.provisioning.machines import LOCAL
from tests.provisioning.sushy import FIRST, PASSWORD, SECOND, USER, Emulator, Fake, emulator

THIRD = Fake("aaaaaaaa-0000-4000-8000-000000000003", "third", "On")


@pytest.fixture(scope="module")
def sushy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator(tmp_path_factory.mktemp("sushy"), (FIRST, SECOND, THIRD)) as running:
        yield running


@pytest.fixture
async def media() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{name}.iso", _iso)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def _iso(request: web.Request) -> web.Response:
    return web.Response(body=b"\0" * 65536) if request.match_info["name"] != "away" else web.Response(status=404)


def machine(sushy: Emulator, fake: Fake, **changes: Any) -> Machine:
    given = {
        "address": sushy.url,
        "username": "",
        "password": "",
        "serial": fake.name,
        "system_uuid": fake.uuid,
        **changes,
    }
    return Machine(Bmc(**given), policy=LOCAL, timeout_seconds=10, random=Random(7), patience_seconds=10)


async def test_the_system_with_the_registered_uuid_is_chosen_and_not_the_first(sushy: Emulator) -> None:
    async with machine(sushy, SECOND) as it:
        facts = await it.discover()
    assert (facts.uuid, facts.vendor, facts.quirks, facts.power) == (SECOND.uuid, "sushy", "sushy-emulator", "On")
    assert [(slot.name, slot.kind) for slot in facts.slots] == [("Cd", "cd"), ("Cd2", "cd")]
    assert "ForceRestart" in facts.reset_types
    assert "Cd" in facts.boot_targets
    assert facts.managers == (f"/redfish/v1/Managers/{SECOND.uuid}",)


async def test_a_machine_that_the_emulator_does_not_have_is_refused(sushy: Emulator) -> None:
    async with machine(sushy, FIRST, system_uuid="aaaaaaaa-0000-4000-8000-00000000000f") as it:
        with pytest.raises(Mismatch):
            await it.discover()


async def test_a_machine_is_booted_from_two_images_and_left_clean(sushy: Emulator, media: str) -> None:
    maintenance, task = f"{media}/maintenance.iso", f"{media}/task.iso"
    async with machine(sushy, FIRST) as it:
        facts = await it.discover()
        assert (await it.glance()).power == "Off"
        await it.insert(facts.cds[0], maintenance)
        await it.insert(facts.cds[1], task)
        await it.insert(facts.cds[1], task)  # already inserted
        assert await _shown(sushy, FIRST, "VirtualMedia/Cd", "Image") == maintenance
        assert await _shown(sushy, FIRST, "VirtualMedia/Cd2", "Image") == task
        await it.boot_from_cd(facts.cds[0])
        assert (await _shown(sushy, FIRST, "", "Boot"))["BootSourceOverrideTarget"] == "Cd"
        assert await it.reset() == "On"
        assert (await it.glance()).power == "On"
        assert [await it.eject(slot) for slot in facts.cds] == [True, True]
        assert [await it.eject(slot) for slot in facts.cds] == [False, False]
        assert not await _shown(sushy, FIRST, "VirtualMedia/Cd", "Inserted")
        await it.clear_override()
        assert (await _shown(sushy, FIRST, "", "Boot"))["BootSourceOverrideTarget"] == "Hdd"


async def test_a_machine_that_is_on_is_restarted(sushy: Emulator) -> None:
    async with machine(sushy, SECOND) as it:
        await it.discover()
        assert await it.reset() == "ForceRestart"
        assert (await it.glance()).power == "On"


async def test_a_machine_is_switched_off_and_on_again(sushy: Emulator) -> None:
    async with machine(sushy, THIRD) as it:
        await it.discover()
        await it.power_off()
        assert (await it.glance()).power == "Off"
        assert await it.reset() == "On"
        assert (await it.glance()).power == "On"


async def test_another_image_replaces_the_one_that_is_there(sushy: Emulator, media: str) -> None:
    async with machine(sushy, THIRD) as it:
        slot = (await it.discover()).cds[0]
        await it.insert(slot, f"{media}/one.iso")
        await it.insert(slot, f"{media}/two.iso")
        assert await _shown(sushy, THIRD, "VirtualMedia/Cd", "Image") == f"{media}/two.iso"
        assert await it.eject(slot, only=lambda image: image.endswith("one.iso")) is False
        assert await it.eject(slot, only=lambda image: image.endswith("two.iso")) is True


async def test_an_image_that_does_not_exist_is_refused_with_the_message_of_the_emulator(
    sushy: Emulator, media: str
) -> None:
    async with machine(sushy, THIRD) as it:
        slot = (await it.discover()).cds[1]
        with pytest.raises(RedfishRefused, match="Cannot download virtual media: got error 404") as caught:
            await it.insert(slot, f"{media}/away.iso")
    assert caught.value.status == 400


async def test_a_machine_is_used_with_stored_facts(sushy: Emulator) -> None:
    async with machine(sushy, SECOND) as it:
        facts = await it.discover()
    async with machine(sushy, SECOND) as it:
        await it.resume(facts)
        assert (await it.glance()).power == "On"
    async with machine(sushy, FIRST) as it:
        with pytest.raises(Mismatch):
            await it.resume(facts)


async def test_an_emulator_with_a_password_and_its_own_certificate_is_used(tmp_path: Path) -> None:
    certificate = tmp_path / "bmc.pem"
    digest = make_certificate(certificate)
    with emulator(tmp_path, devices=None, auth=True, certificate=certificate) as running:
        pinned = {"username": USER, "tls": f"sha256:{digest}"}
        async with machine(running, FIRST, password=PASSWORD, **pinned) as it:
            facts = await it.discover()
        assert [(slot.name, slot.kind) for slot in facts.slots] == [("Cd", "cd"), ("Floppy", "usb")]
        async with machine(running, FIRST, password="wrong", **pinned) as it:
            with pytest.raises(RedfishRefused, match="user name and password"):
                await it.discover()


async def _shown(sushy: Emulator, fake: Fake, resource: str, key: str) -> Any:
    """Return a property as the emulator shows it to another client than the one under test."""
    url = f"{sushy.url}/redfish/v1/Systems/{fake.uuid}/{resource}".rstrip("/")
    async with aiohttp.ClientSession() as http, http.get(url) as response:
        return (await response.json())[key]
