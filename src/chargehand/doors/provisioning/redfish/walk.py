"""Discover a BMC from its root: the registered system, its managers, its drives and its actions."""

import re
from typing import Any, Literal

from chargehand.doors.provisioning.redfish.client import RedfishClient
from chargehand.doors.provisioning.redfish.errors import RedfishRefused
from chargehand.doors.provisioning.redfish.facts import Bmc, MachineFacts, VirtualDrive, power_of
from chargehand.doors.provisioning.redfish.identity import choose
from chargehand.doors.provisioning.redfish.quirks import Quirks, quirks_of, vendor_of
from chargehand.doors.provisioning.redfish.resources import action, link, links, members, part, text, texts
from chargehand.doors.provisioning.redfish.transport import RedfishAnswer

RESET = "ComputerSystem.Reset"
_OPTICAL = ("CD", "DVD")
_USB = "USBSTICK"


async def walk(client: RedfishClient, bmc: Bmc) -> MachineFacts:
    root = await client.root()
    collection = link(root.data, "Systems")
    if not collection:
        raise RedfishRefused(
            "the service at the BMC's address names no systems in its root: it may not be a Redfish service"
        )
    systems = [answer async for answer in members(client, collection)]
    system = choose(bmc, systems)
    data = system.data
    model = text(data, "Model")
    vendor = vendor_of(bmc.vendor, text(data, "Manufacturer"), text(root.data, "Vendor"), model)
    quirks = quirks_of(vendor, model)
    client.vendor = vendor
    managers = await _managers(client, root, system, len(systems))
    reset = await action(client, data, RESET)
    boot = part(data, "Boot")
    return MachineFacts(
        system=system.path,
        managers=tuple(manager.path for manager in managers),
        vendor=vendor,
        manufacturer=text(data, "Manufacturer"),
        model=model,
        serial=text(data, "SerialNumber"),
        uuid=text(data, "UUID"),
        bios_version=text(data, "BiosVersion"),
        redfish_version=text(root.data, "RedfishVersion"),
        power=power_of(data.get("PowerState")),
        reset_types=reset.allowed.get("ResetType", ()) if reset else (),
        boot_targets=texts(boot.get("BootSourceOverrideTarget@Redfish.AllowableValues")),
        boot_modes=texts(boot.get("BootSourceOverrideMode@Redfish.AllowableValues"))
        or ((text(boot, "BootSourceOverrideMode"),) if text(boot, "BootSourceOverrideMode") else ()),
        slots=await _slots(client, [system, *managers], quirks),
        quirks=quirks.name,
    )


async def _managers(
    client: RedfishClient, root: RedfishAnswer, system: RedfishAnswer, systems: int
) -> list[RedfishAnswer]:
    """Return the managers that the system names; else those that name the system; else, if there is only one system, all."""
    named = links(part(system.data, "Links"), "ManagedBy")
    if named:
        return [answer for path in named[:8] if (answer := await client.find(path)) is not None]
    collection = link(root.data, "Managers")
    every = [answer async for answer in members(client, collection)] if collection else []
    mine = [each for each in every if system.path in links(part(each.data, "Links"), "ManagerForServers")]
    return mine or (every if systems == 1 else [])


async def _slots(client: RedfishClient, owners: list[RedfishAnswer], quirks: Quirks) -> tuple[VirtualDrive, ...]:
    """Return the drives of the first owner that has any. They are not merged: many BMCs list the same drives under both."""
    seen: set[str] = set()
    for owner in owners:
        collection = link(owner.data, "VirtualMedia")
        if not collection or collection in seen:
            continue
        seen.add(collection)
        found = [slot async for each in members(client, collection) if (slot := _slot(each, quirks)) is not None]
        if found:
            return tuple(sorted(found, key=lambda slot: slot.kind))  # "cd" before "usb", else in the BMC's own order
    return ()


def _slot(answer: RedfishAnswer, quirks: Quirks) -> VirtualDrive | None:
    name = text(answer.data, "Id") or answer.path.rstrip("/").rpartition("/")[2]
    if quirks.skip_slots and re.search(quirks.skip_slots, name):
        return None
    kind = _kind(answer.data, name)
    return VirtualDrive(answer.path, name, kind) if kind else None


def _kind(data: dict[str, Any], name: str) -> Literal["cd", "usb"] | None:
    media = [media.upper() for media in texts(data.get("MediaTypes"))]
    if not media:  # no types are listed, so decide by the name
        return "cd" if re.search(r"cd|dvd|ext\d", name, re.IGNORECASE) else None
    if any(optical in media for optical in _OPTICAL):
        return "cd"
    return "usb" if _USB in media else None
