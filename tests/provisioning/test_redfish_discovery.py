"""Finding the machine on record behind a BMC, and what it can do, whatever the BMC's habits."""

from typing import Any

import msgspec
import pytest

from chargehand.doors.provisioning.redfish.errors import Mismatch, RedfishError, RedfishRefused, Untrusted
from chargehand.doors.provisioning.redfish.facts import MachineFacts
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import CD, CD_AND_USB, ONE_CD, Habits
from tests.provisioning.machines import machine


async def discover(bmc: FakeBmc, **changes: Any) -> MachineFacts:
    async with machine(bmc, **changes) as it:
        return await it.discover()


async def test_discovery_tells_what_the_machine_is_and_can_do() -> None:
    async with FakeBmc(Habits(manufacturer="Dell Inc.", model="PowerEdge R650", sku="SN-1", serial="CN-board")) as bmc:
        facts = await discover(bmc)
    assert (facts.system, facts.managers) == ("/redfish/v1/Systems/1", ("/redfish/v1/Managers/BMC1",))
    assert (facts.vendor, facts.quirks, facts.model, facts.power) == ("dell", "dell-idrac", "PowerEdge R650", "Off")
    assert "ForceRestart" in facts.reset_types
    assert "Cd" in facts.boot_targets
    assert facts.boot_modes == ("UEFI", "Legacy")
    assert [slot.name for slot in facts.cds] == ["Cd1", "Cd2"]
    assert (facts.bios_version, facts.redfish_version) == ("2.1", "1.15.0")


async def test_facts_survive_being_stored() -> None:
    async with FakeBmc() as bmc:
        facts = await discover(bmc)
    assert msgspec.json.decode(msgspec.json.encode(facts), type=MachineFacts) == facts


async def test_the_system_with_the_serial_is_taken_and_not_the_first() -> None:
    async with FakeBmc(Habits(systems=3)) as bmc:
        facts = await discover(bmc)
    assert facts.system == "/redfish/v1/Systems/3"
    assert facts.serial == "SN-1"


async def test_a_bmc_of_another_machine_is_refused_with_what_it_is() -> None:
    async with FakeBmc(Habits(serial="SN-2")) as bmc:
        with pytest.raises(Mismatch, match=r"SN-1.*It has: serial SN-2") as caught:
            await discover(bmc)
    assert not caught.value.transient


async def test_another_uuid_than_the_one_on_record_is_refused_though_the_serial_fits() -> None:
    async with FakeBmc() as bmc:
        with pytest.raises(Mismatch):
            await discover(bmc, system_uuid="99999999-2222-3333-4444-555555555555")


async def test_another_serial_than_the_one_on_record_is_refused_though_the_uuid_fits() -> None:
    async with FakeBmc(Habits(serial="SN-2")) as bmc:
        with pytest.raises(Mismatch):
            await discover(bmc, system_uuid="11111111-2222-3333-4444-555555555555")


async def test_a_bmc_without_serials_is_known_by_the_uuid_on_record_in_any_spelling() -> None:
    async with FakeBmc(Habits(serial=None, systems=2)) as bmc:
        facts = await discover(bmc, system_uuid="{11111111222233334444555555555555}")
    assert facts.system == "/redfish/v1/Systems/2"


async def test_a_bmc_that_reports_only_a_uuid_does_not_pass_for_a_serial() -> None:
    async with FakeBmc(Habits(serial=None)) as bmc:
        with pytest.raises(Mismatch, match="serial unknown, UUID 1111"):
            await discover(bmc, unidentified=True)


@pytest.mark.parametrize("serial", [None, "", "To be filled by O.E.M.", "0000000000", "Not Specified"])
async def test_a_bmc_that_reports_nothing_is_refused_unless_the_record_says_so(serial: str | None) -> None:
    async with FakeBmc(Habits(serial=serial, uuid=None)) as bmc:
        with pytest.raises(Mismatch, match="unidentified"):
            await discover(bmc)
        assert (await discover(bmc, unidentified=True)).system == "/redfish/v1/Systems/1"


async def test_of_several_systems_none_is_taken_unidentified() -> None:
    async with FakeBmc(Habits(serial=None, uuid=None, systems=2)) as bmc:
        with pytest.raises(Mismatch):
            await discover(bmc, unidentified=True)


async def test_two_systems_of_one_serial_are_not_guessed_between() -> None:
    async with FakeBmc(Habits(systems=2)) as bmc:
        bmc.state.systems[0].serial = "SN-1"
        with pytest.raises(Mismatch, match="2 systems"):
            await discover(bmc)
        facts = await discover(bmc, system_uuid="11111111-2222-3333-4444-555555555555")
    assert facts.system == "/redfish/v1/Systems/2"


async def test_a_manager_that_the_system_does_not_name_is_found_by_what_it_manages() -> None:
    async with FakeBmc(Habits(managed_by=False, media_under="manager", systems=2)) as bmc:
        facts = await discover(bmc)
    assert facts.managers == ("/redfish/v1/Managers/BMC2",)
    assert len(facts.cds) == 2


async def test_a_drive_that_does_not_say_what_it_takes_goes_by_its_name() -> None:
    async with FakeBmc(Habits(slots=(("Thing", ()), ("DVD0", ())))) as bmc:
        assert [slot.name for slot in (await discover(bmc)).cds] == ["DVD0"]


async def test_a_bmc_without_drives_is_told_as_such() -> None:
    async with FakeBmc(Habits(slots=())) as bmc:
        assert (await discover(bmc)).slots == ()


async def test_a_single_cd_drive_is_found() -> None:
    async with FakeBmc(Habits(slots=ONE_CD)) as bmc:
        facts = await discover(bmc)
    assert [(slot.name, slot.kind) for slot in facts.slots] == [("Cd1", "cd")]


async def test_a_cd_and_a_usb_drive_are_told_apart() -> None:
    async with FakeBmc(Habits(slots=tuple(reversed(CD_AND_USB)))) as bmc:
        facts = await discover(bmc)
    assert [(slot.name, slot.kind) for slot in facts.slots] == [("Cd1", "cd"), ("RemovableDisk", "usb")]


async def test_drives_under_the_manager_are_found() -> None:
    async with FakeBmc(Habits(media_under="manager", systems=2)) as bmc:
        facts = await discover(bmc)
    assert [slot.path for slot in facts.slots] == [f"/redfish/v1/Managers/BMC2/VirtualMedia/Cd{n}" for n in (1, 2)]


async def test_a_floppy_is_no_drive_for_us_and_uploads_to_a_lenovo_are_not_either() -> None:
    slots = (("RDOC1", CD), ("EXT1", CD), ("Floppy1", ("Floppy",)))
    async with FakeBmc(Habits(manufacturer="Lenovo", slots=slots)) as bmc:
        facts = await discover(bmc)
    assert [slot.name for slot in facts.slots] == ["EXT1"]


async def test_values_of_an_action_are_found_in_its_action_info() -> None:
    async with FakeBmc(Habits(action_info=True, resets=("On", "PowerCycle"))) as bmc:
        assert (await discover(bmc)).reset_types == ("On", "PowerCycle")


async def test_a_redirect_on_the_same_host_is_followed() -> None:
    async with FakeBmc(Habits(redirect="same")) as bmc:
        assert (await discover(bmc)).serial == "SN-1"


async def test_credentials_follow_no_redirect_to_another_host() -> None:
    async with FakeBmc() as other, FakeBmc(Habits(redirect=f"{other.url}/redfish/v1/Systems/1")) as bmc:
        with pytest.raises(Untrusted, match="no other host"):
            await discover(bmc)
        assert other.log == []


async def test_redirects_in_a_circle_end() -> None:
    async with FakeBmc(Habits(redirect="/redfish/v1/Systems/1")) as bmc:
        with pytest.raises(RedfishRefused, match="redirects"):
            await discover(bmc)
        assert len(bmc.calls("GET", "/Systems/1")) == 4


@pytest.mark.parametrize(
    ("body", "words"), [("huge", "over 4 MiB"), ("deep", "nested too deeply"), ("html", "not JSON")]
)
async def test_an_answer_that_is_no_resource_is_refused_in_plain_words(body: str, words: str) -> None:
    async with FakeBmc(Habits(body=body)) as bmc:  # type: ignore[arg-type]
        with pytest.raises(RedfishRefused, match=words):
            await discover(bmc)


async def test_a_server_that_is_no_bmc_is_told_apart() -> None:
    async with FakeBmc(Habits(body="stranger")) as bmc:
        with pytest.raises(RedfishRefused, match="no Redfish service"):
            await discover(bmc)


async def test_metadata_addresses_are_never_called() -> None:
    async with FakeBmc() as bmc:
        with pytest.raises(Untrusted, match="link-local"):
            await discover(bmc, address="http://169.254.169.254")


@pytest.mark.parametrize(
    "address", ["https://me:seCret99@bmc.example", "ftp://seCret99", "https://", "http://[seCret99"]
)
async def test_an_address_that_is_none_is_refused_without_repeating_it(address: str) -> None:
    async with FakeBmc() as bmc:
        with pytest.raises(RedfishRefused, match="address must be") as caught:
            await discover(bmc, address=address)
    assert "seCret99" not in str(caught.value)


async def test_a_restart_goes_on_with_stored_facts_after_one_look() -> None:
    async with FakeBmc() as bmc:
        facts = await discover(bmc)
        bmc.log.clear()
        async with machine(bmc) as it:
            await it.resume(facts)
            assert (await it.glance()).power == "Off"
        assert [call.path for call in bmc.calls("GET")] == ["/redfish/v1/", facts.system, facts.system]


async def test_a_restart_finds_that_the_machine_was_exchanged() -> None:
    async with FakeBmc() as bmc:
        facts = await discover(bmc)
        bmc.system.serial = "SN-9"
        async with machine(bmc) as it:
            with pytest.raises(Mismatch, match="SN-9"):
                await it.resume(facts)
            with pytest.raises(RedfishError, match="not discovered"):
                await it.reset()
        assert bmc.count("reset") == 0
