"""Is this the machine that the task is for? Asked before anything is written, since a wrong answer is somebody else's disk."""

import uuid
from collections.abc import Mapping
from typing import Any

from provision.errors import Exit, Trouble
from provision.journal import say
from provision.places import Places

# What vendors leave in place of a serial number.
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
    """The serial number, or nothing where it is one that a thousand machines share."""
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
    """Where the record names a UUID that decides, as it does for the controller; else the serial number does. A serial number that
    differs is another machine all the same: boards are swapped and UUIDs are copied."""
    serial, own = usable(_read(places, "product_serial")), usable_uuid(_read(places, "product_uuid"))
    wanted = str(report.get("server_serial") or "").strip()
    named = usable_uuid(str(report.get("system_uuid") or ""))
    seen = f"this machine has serial {serial or 'none'} and UUID {own or 'none'}"
    if serial and usable(wanted) and serial.casefold() != wanted.casefold():
        raise Trouble(f"the task is for the machine with serial {wanted}; {seen}", Exit.WRONG_MACHINE)
    if named is not None and own is not None:
        # Firmware and BMCs do not agree on the byte order of the first three fields.
        if own.bytes not in (named.bytes, named.bytes_le):
            raise Trouble(f"the task is for the machine with UUID {named}; {seen}", Exit.WRONG_MACHINE)
        say(f"this is the machine with UUID {named}")
        return
    if not serial or not usable(wanted):
        raise Trouble(f"the task is for the machine with serial {wanted or 'none'}; {seen}", Exit.WRONG_MACHINE)
    say(f"this is the machine with serial {serial}")


def _read(places: Places, name: str) -> str:
    try:
        return (places.dmi / name).read_text(errors="replace")
    except OSError:
        return ""
