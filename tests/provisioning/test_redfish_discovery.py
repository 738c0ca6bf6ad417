"""Finding the registered machine at a BMC, and what it can do, whatever the BMC's habits."""

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


async def test_discovery_returns_the_identity_and_the_abilities_of_the_machine() -> None:
    async with FakeBmc(Habits(manufacturer="Dell Inc.", model="PowerEdge R650", sku="SN-1", serial="CN-board")) as bmc:
        facts = await discover(bmc)
    assert (facts.system, facts.managers) == ("/redfish/v1/Systems/1", ("/redfish/v1/Managers/BMC1",))
    assert (facts.vendor, facts.quirks, facts.model, facts.power) == ("dell", "dell-idrac", "PowerEdge R650", "Off")
    assert "ForceRestart" in facts.reset_types
    assert "Cd" in facts.boot_targets
    assert facts.boot_modes == ("UEFI", "Legacy")
    assert [slot.name for slot in facts.cds] == ["Cd1", "Cd2"]
    assert (facts.bios_version, facts.redfish_version) == ("2.1", "1.15.0")


async def test_facts_can_be_stored_and_loaded() -> None:
    async with FakeBmc() as bmc:
        facts = await discover(bmc)
    assert msgspec.json.decode(msgspec.json.encode(facts), type=MachineFacts) == facts


async def test_the_system_with_the_registered_serial_is_chosen_and_not_the_first() -> None:
    async with FakeBmc(Habits(systems=3)) as bmc:
        facts = await discover(bmc)
    assert facts.system == "/redfish/v1/Systems/3"
    assert facts.serial == "SN-1"


async def test_a_bmc_of_another_machine_is_refused_and_that_machine_is_named() -> None:
    async with FakeBmc(Habits(serial="SN-2")) as bmc:
        with pytest.raises(Mismatch, match=r"SN-1.*It has: serial SN-2") as caught:
            await discover(bmc)
    assert not caught.value.transient


async def test_a_wrong_uuid_is_refused_although_the_serial_matches() -> None:
    async with FakeBmc() as bmc:
        with pytest.raises(Mismatch):
            await discover(bmc, system_uuid="99999999-2222-3333-4444-555555555555")


async def test_a_wrong_serial_is_refused_although_the_uuid_matches() -> None:
    async with FakeBmc(Habits(serial="SN-2")) as bmc:
        with pytest.raises(Mismatch):
            await discover(bmc, system_uuid="11111111-2222-3333-4444-555555555555")


async def test_a_bmc_without_serials_is_identified_by_the_registered_uuid_in_any_notation() -> None:
    async with FakeBmc(Habits(serial=None, systems=2)) as bmc:
        facts = await discover(bmc, system_uuid="{11111111222233334444555555555555}")
    assert facts.system == "/redfish/v1/Systems/2"


async def test_a_bmc_that_reports_only_a_uuid_does_not_match_a_registered_serial() -> None:
    async with FakeBmc(Habits(serial=None)) as bmc:
        with pytest.raises(Mismatch, match="serial unknown, UUID 1111"):
            await discover(bmc, unidentified=True)


@pytest.mark.parametrize("serial", [None, "", "To be filled by O.E.M.", "0000000000", "Not Specified"])
async def test_a_bmc_that_reports_no_identity_is_refused_unless_registered_as_unidentified(serial: str | None) -> None:
    async with FakeBmc(Habits(serial=serial, uuid=None)) as bmc:
        with pytest.raises(Mismatch, match="unidentified"):
            await discover(bmc)
        assert (await discover(bmc, unidentified=True)).system == "/redfish/v1/Systems/1"


async def test_unidentified_does_not_apply_to_a_bmc_with_several_systems() -> None:
    async with FakeBmc(Habits(serial=None, uuid=None, systems=2)) as bmc:
        with pytest.raises(Mismatch):
            await discover(bmc, unidentified=True)


async def test_two_systems_with_the_same_serial_are_refused() -> None:
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


async def test_a_drive_without_media_types_is_classified_by_its_name() -> None:
    async with FakeBmc(Habits(slots=(("Thing", ()), ("DVD0", ())))) as bmc:
        assert [slot.name for slot in (await discover(bmc)).cds] == ["DVD0"]


async def test_a_bmc_without_drives_has_no_slots() -> None:
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


async def test_floppy_drives_and_upload_drives_of_a_lenovo_are_ignored() -> None:
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


async def test_circular_redirects_are_refused() -> None:
    async with FakeBmc(Habits(redirect="/redfish/v1/Systems/1")) as bmc:
        with pytest.raises(RedfishRefused, match="redirects"):
            await discover(bmc)
        assert len(bmc.calls("GET", "/Systems/1")) == 4


@pytest.mark.parametrize(
    ("body", "words"), [("huge", "over 4 MiB"), ("deep", "nested too deeply"), ("html", "not JSON")]
)
async def test_an_answer_that_is_not_json_is_refused(body: str, words: str) -> None:
    async with FakeBmc(Habits(body=body)) as bmc:  # type: ignore[arg-type]
        with pytest.raises(RedfishRefused, match=words):
            await discover(bmc)


async def test_a_server_that_is_not_a_bmc_is_recognised() -> None:
    async with FakeBmc(Habits(body="stranger")) as bmc:
        with pytest.raises(RedfishRefused, match="may not be a Redfish service"):
            await discover(bmc)


async def test_metadata_addresses_are_never_called() -> None:
    async with FakeBmc() as bmc:
        with pytest.raises(Untrusted, match="link-local"):
            await discover(bmc, address="http://169.254.169.254")


@pytest.mark.parametrize(
    "address", ["https://me:seCret99@bmc.example", "ftp://seCret99", "https://", "http://[seCret99"]
)
async def test_an_invalid_address_is_refused_without_repeating_it(address: str) -> None:
    async with FakeBmc() as bmc:
        with pytest.raises(RedfishRefused, match="address must be") as caught:
            await discover(bmc, address=address)
    assert "seCret99" not in str(caught.value)


async def test_resume_uses_stored_facts_after_one_request() -> None:
    async with FakeBmc() as bmc:
        facts = await discover(bmc)
        bmc.log.clear()
        async with machine(bmc) as it:
            await it.resume(facts)
            assert (await it.glance()).power == "Off"
        assert [call.path for call in bmc.calls("GET")] == ["/redfish/v1/", facts.system, facts.system]


async def test_resume_notices_that_the_machine_was_replaced() -> None:
    async with FakeBmc() as bmc:
        facts = await discover(bmc)
        bmc.system.serial = "SN-9"
        async with machine(bmc) as it:
            with pytest.raises(Mismatch, match="SN-9"):
                await it.resume(facts)
            with pytest.raises(RedfishError, match="not been discovered"):
                await it.reset()
        assert bmc.count("reset") == 0
