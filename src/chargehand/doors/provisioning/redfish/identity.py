"""Find the registered machine among a BMC's systems. A mistake here erases another machine's disk."""

import re
from typing import Any

from chargehand.doors.provisioning.redfish.errors import Mismatch
from chargehand.doors.provisioning.redfish.facts import Bmc
from chargehand.doors.provisioning.redfish.messages import one_line
from chargehand.doors.provisioning.redfish.quirks import quirks_of, vendor_of
from chargehand.doors.provisioning.redfish.resources import text
from chargehand.doors.provisioning.redfish.transport import RedfishAnswer

# Placeholders of boards without a serial.
_BLANK = re.compile(
    r"|none|null|n/?a|unknown|not specified|not available|to be filled by o\.?e\.?m\.?|default string|"
    r"system serial number|0+|0?123456789|x+|\.+",
    re.IGNORECASE,
)
_BLANK_UUIDS = ("0" * 32, "f" * 32, "03000200040005000006000700080009")


def serials(data: dict[str, Any]) -> tuple[str, ...]:
    """Return the serials that a system reports: one, or both if the hardware has two and either may be registered."""
    fields = quirks_of(vendor_of(text(data, "Manufacturer"), text(data, "Model")), text(data, "Model")).serials
    shown = (text(data, field) for field in fields)
    return tuple(serial for serial in shown if not _BLANK.fullmatch(serial))


def uuid_of(data: dict[str, Any]) -> str:
    uuid = _plain(text(data, "UUID"))
    return "" if uuid in _BLANK_UUIDS else uuid


def choose(bmc: Bmc, systems: list[RedfishAnswer]) -> RedfishAnswer:
    """Return the system that is the registered machine, or raise Mismatch with what was found instead."""
    fitting = [system for system in systems if is_it(bmc, system.data)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise Mismatch(
            f"{len(fitting)} systems of the BMC report the serial {bmc.serial}: register the right one with its system_uuid"
        )
    silent = [system for system in systems if not serials(system.data) and not uuid_of(system.data)]
    if len(systems) == 1 and silent:
        if bmc.unidentified:
            return systems[0]
        raise Mismatch(
            'the BMC reports neither serial nor UUID: if it is the right machine, register it with "unidentified": true'
        )
    found = "; ".join(_describe(system.data) for system in systems[:4]) or "none"
    wanted = f"serial {bmc.serial}" + (f" and UUID {bmc.system_uuid}" if bmc.system_uuid else "")
    raise Mismatch(one_line(f"the BMC has no system with {wanted}. It has: {found}"))


def is_it(bmc: Bmc, data: dict[str, Any]) -> bool:
    """Is this the registered machine? Serial or UUID must match, and neither may contradict the registration."""
    wanted = _plain(bmc.system_uuid or "")
    shown = uuid_of(data)
    said = [serial.lower() for serial in serials(data)]
    if (wanted and shown and wanted != shown) or (said and bmc.serial.lower() not in said):
        return False
    # A virtual machine often has no serial, and is registered by its UUID.
    return bool(said) or bool(shown and shown in (wanted, _plain(bmc.serial)))


def check(bmc: Bmc, data: dict[str, Any]) -> None:
    """Raise Mismatch unless a known system is still the registered machine."""
    silent = not serials(data) and not uuid_of(data)
    if not is_it(bmc, data) and not (silent and bmc.unidentified):
        raise Mismatch(one_line(f"the system is no longer {bmc.serial}: it is {_describe(data)}"))


def _describe(data: dict[str, Any]) -> str:
    names = " or ".join(serials(data)) or "unknown"
    return f"serial {names}, UUID {text(data, 'UUID') or 'unknown'}"


def _plain(uuid: str) -> str:
    return uuid.replace("-", "").strip("{}").lower()
