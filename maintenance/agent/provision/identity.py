"""Check that the task is for this machine, before anything is written: a mistake erases another machine's disk."""

import uuid
from collections.abc import Mapping
from typing import Any

from provision.errors import Exit, Trouble
from provision.journal import say
from provision.places import Places

# Placeholders that vendors use in place of a serial number.
_NONE = {
    "",
    "0",
    "none",
    "null",
    "n/a",
    "na",
    "unknown",
    "default",
    "default string",
    "not specified",
    "not applicable",
    "not available",
    "to be filled by o.e.m.",
    "to be filled by oem",
    "o.e.m.",
    "oem",
    "system serial number",
    "serial number",
    "chassis serial number",
    "0123456789",
    "123456789",
    "1234567890",
}


def usable(serial: str) -> str:
    """Return the serial number, or "" if it is a placeholder."""
    found = serial.strip()
    repeated = len(set(found)) == 1
    return "" if found.lower() in _NONE or repeated else found


def usable_uuid(text: str) -> uuid.UUID | None:
    try:
        found = uuid.UUID(text.strip())
    except ValueError:
        return None
    return None if len(set(found.bytes)) == 1 else found


def check(places: Places, report: Mapping[str, Any]) -> None:
    """Raise Trouble unless serial or UUID match the registration and neither contradicts it, as the controller does: boards are
    swapped, and UUIDs are copied."""
    own, known = usable_uuid(_read(places, "product_uuid")), serials(places)
    wanted = str(report.get("server_serial") or "").strip()
    named = usable_uuid(str(report.get("system_uuid") or "")) or usable_uuid(wanted)
    fits = wanted.casefold() in known
    serial = usable(_read(places, "product_serial"))
    seen = f"this machine has serial {serial or 'none'} and UUID {own or 'none'}"
    # Firmware and BMCs do not agree on the byte order of the first three fields.
    if named is not None and own is not None and own.bytes not in (named.bytes, named.bytes_le):
        raise Trouble(f"the task is for the machine with UUID {named}; {seen}", Exit.WRONG_MACHINE)
    known_by_uuid = named is not None and own is not None
    contradicted = bool(known) and bool(usable(wanted)) and usable_uuid(wanted) is None
    if not fits and (contradicted or not known_by_uuid):
        raise Trouble(f"the task is for the machine with serial {wanted or 'none'}; {seen}", Exit.WRONG_MACHINE)
    say(f"this is the machine with {f'UUID {named}' if known_by_uuid else f'serial {wanted}'}")


def serials(places: Places) -> set[str]:
    """Return all serials by which this machine may be registered: of the system, the chassis, the board. Some boards join several
    with dots."""
    found = (usable(_read(places, f"{part}_serial")) for part in ("product", "chassis", "board"))
    return {usable(part).casefold() for each in found for part in (each, *each.split("."))} - {""}


def _read(places: Places, name: str) -> str:
    try:
        return (places.dmi / name).read_text(errors="replace")
    except OSError:
        return ""
