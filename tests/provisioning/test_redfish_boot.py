"""The one-time boot from CD: set, seen to be set, and cleared, in whatever way a BMC knows."""

from typing import Any

import pytest

from chargehand.doors.provisioning.redfish.errors import RedfishError, RedfishRefused
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import Boot, Habits
from tests.provisioning.machines import ISO, Time, machine, ready


@pytest.mark.parametrize(
    ("habits", "target"),
    [
        (Habits(), "Cd"),
        (Habits(etag="required"), "Cd"),
        (Habits(etag="strong"), "Cd"),
        (Habits(etag="broken"), "Cd"),
        (Habits(etag="hidden"), "Cd"),
        (Habits(wants_mode=True), "Cd"),
        (Habits(manufacturer="Supermicro", targets=("None", "Cd", "UsbCd")), "UsbCd"),
        (Habits(manufacturer="Supermicro", refuses_mode=True), "Cd"),
        (Habits(override="continuous"), "Cd"),
        (Habits(redirect="same"), "Cd"),
    ],
)
async def test_the_next_boot_is_from_the_cd_and_the_one_after_is_not(habits: Habits, target: str) -> None:
    boots: list[Boot] = []

    async def on_boot(boot: Boot) -> None:
        boots.append(boot)

    async with FakeBmc(habits, on_boot) as bmc, machine(bmc) as it:
        await ready(it)
        assert bmc.system.target == target
        await it.reset()
        await it.clear_override()
        await it.reset()
    assert [boot.cd for boot in boots] == [True, False]
    assert boots[0].images == {"Cd1": ISO}


async def test_an_override_that_is_taken_and_ignored_is_an_error_and_not_a_surprise() -> None:
    async with FakeBmc(Habits(override="ignored")) as bmc, machine(bmc) as it:
        with pytest.raises(RedfishError, match=r"took the boot override to Cd, but reads it back as None \(Disabled\)"):
            await ready(it)


async def test_a_system_that_cannot_boot_from_cd_is_refused_with_what_it_can() -> None:
    async with FakeBmc(Habits(targets=("Pxe", "Hdd"))) as bmc, machine(bmc) as it:
        with pytest.raises(RedfishRefused, match="it knows Pxe, Hdd"):
            await ready(it)


async def test_a_dell_boots_its_virtual_cd_by_its_own_attributes() -> None:
    habits = Habits(manufacturer="Dell Inc.", dell_attributes=True, media_under="manager")
    async with FakeBmc(habits) as bmc, machine(bmc) as it:
        await ready(it)
        assert bmc.system.attributes["ServerBoot.1.FirstBootDevice"] == "VCD-DVD"
        await it.reset()
        assert bmc.boots[-1].cd
        await it.clear_override()
        assert bmc.system.attributes["ServerBoot.1.BootOnce"] == "Disabled"


async def test_a_dell_without_those_attributes_is_told_as_the_standard_has_it() -> None:
    async with FakeBmc(Habits(manufacturer="Dell Inc.")) as bmc, machine(bmc) as it:
        await ready(it)
        await it.reset()
        assert bmc.boots[-1].cd


async def test_a_mode_can_be_asked_for() -> None:
    async with FakeBmc() as bmc, machine(bmc) as it:
        facts = await it.discover()
        await it.boot_from_cd(facts.cds[0], mode="Legacy")
        assert bmc.system.mode == "Legacy"


async def test_setting_and_clearing_what_is_so_already_writes_nothing() -> None:
    async with FakeBmc() as bmc, machine(bmc) as it:
        facts = await ready(it)
        await it.boot_from_cd(facts.cds[0])
        assert bmc.count("override") == 1
        await it.clear_override()
        await it.clear_override()
        assert bmc.count("override") == 2


@pytest.mark.parametrize("clears", ["disabled", "none", "hdd"])
async def test_an_override_is_cleared_in_the_way_the_bmc_knows(clears: Any) -> None:
    async with FakeBmc(Habits(clears=clears, power="On")) as bmc, machine(bmc) as it:
        await ready(it)
        if clears == "hdd":
            bmc.system.enabled = "Continuous"
        await it.clear_override()
        await it.reset()
        assert not bmc.boots[-1].cd


async def test_an_override_that_cannot_be_cleared_is_an_error_with_what_the_bmc_said() -> None:
    async with FakeBmc(Habits(clears="never")) as bmc, machine(bmc) as it:
        await ready(it)
        with pytest.raises(RedfishRefused, match="cannot be cleared like this"):
            await it.clear_override()


async def test_a_lasting_override_of_somebody_elses_becomes_one_for_once() -> None:
    async with FakeBmc() as bmc, machine(bmc) as it:
        facts = await it.discover()
        bmc.system.enabled, bmc.system.target = "Continuous", "Cd"
        await it.boot_from_cd(facts.cds[0])
        assert bmc.system.enabled == "Once"


async def test_a_busy_bmc_is_asked_again_for_the_override() -> None:
    time = Time()
    habits = Habits(busy=2, busy_methods=("PATCH",), retry_after="4")
    async with FakeBmc(habits) as bmc, machine(bmc, time) as it:
        await ready(it)
        assert bmc.count("override") == 1
    assert time.slept == [4, 4]
