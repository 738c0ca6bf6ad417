"""The one-time boot from CD: set, verified and cleared, in whatever way a BMC supports."""

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


async def test_an_override_that_the_bmc_accepts_and_ignores_is_an_error() -> None:
    async with FakeBmc(Habits(override="ignored")) as bmc, machine(bmc) as it:
        with pytest.raises(RedfishError, match=r"accepted the boot override Cd, but shows None \(Disabled\)"):
            await ready(it)


async def test_a_system_that_cannot_boot_from_cd_is_refused_with_the_targets_it_offers() -> None:
    async with FakeBmc(Habits(targets=("Pxe", "Hdd"))) as bmc, machine(bmc) as it:
        with pytest.raises(RedfishRefused, match="it offers Pxe, Hdd"):
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


async def test_a_dell_without_those_attributes_gets_the_standard_override() -> None:
    async with FakeBmc(Habits(manufacturer="Dell Inc.")) as bmc, machine(bmc) as it:
        await ready(it)
        await it.reset()
        assert bmc.boots[-1].cd


async def test_the_boot_mode_can_be_requested() -> None:
    async with FakeBmc() as bmc, machine(bmc) as it:
        facts = await it.discover()
        await it.boot_from_cd(facts.cds[0], mode="Legacy")
        assert bmc.system.mode == "Legacy"


async def test_setting_or_clearing_an_override_that_is_so_already_writes_nothing() -> None:
    async with FakeBmc() as bmc, machine(bmc) as it:
        facts = await ready(it)
        await it.boot_from_cd(facts.cds[0])
        assert bmc.count("override") == 1
        await it.clear_override()
        await it.clear_override()
        assert bmc.count("override") == 2


@pytest.mark.parametrize("clears", ["disabled", "none", "hdd"])
async def test_an_override_is_cleared_in_a_way_that_the_bmc_supports(clears: Any) -> None:
    async with FakeBmc(Habits(clears=clears, power="On")) as bmc, machine(bmc) as it:
        await ready(it)
        if clears == "hdd":
            bmc.system.enabled = "Continuous"
        await it.clear_override()
        await it.reset()
        assert not bmc.boots[-1].cd


async def test_an_override_that_cannot_be_cleared_is_an_error_with_the_message_of_the_bmc() -> None:
    async with FakeBmc(Habits(clears="never")) as bmc, machine(bmc) as it:
        await ready(it)
        with pytest.raises(RedfishRefused, match="cannot be cleared like this"):
            await it.clear_override()


async def test_a_permanent_override_set_by_others_is_replaced_by_a_one_time_override() -> None:
    async with FakeBmc() as bmc, machine(bmc) as it:
        facts = await it.discover()
        bmc.system.enabled, bmc.system.target = "Continuous", "Cd"
        await it.boot_from_cd(facts.cds[0])
        assert bmc.system.enabled == "Once"


async def test_setting_the_override_is_retried_on_a_busy_bmc() -> None:
    time = Time()
    habits = Habits(busy=2, busy_methods=("PATCH",), retry_after="4")
    async with FakeBmc(habits) as bmc, machine(bmc, time) as it:
        await ready(it)
        assert bmc.count("override") == 1
    assert time.slept == [4, 4]
