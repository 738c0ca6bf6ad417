"""Deviations of hardware from the standard, one row for each kind, and the closed set of vendors for metrics.

A row is only for what cannot be discovered. Which payload a BMC accepts, where its actions and its drives are, is discovered
(see virtual_media.py and walk.py), because it changes from one firmware to the next.
"""

import re
from typing import Final

import msgspec

VENDORS: Final = ("dell", "hpe", "supermicro", "lenovo", "sushy", "other")

_NAMES = {
    "dell": r"\bdell\b|poweredge|idrac",
    "hpe": r"\bhpe?\b|hewlett|proliant",
    "supermicro": r"super ?micro",
    "lenovo": r"\blenovo\b|thinksystem",
    "sushy": r"\bsushy\b",
}


class Quirks(msgspec.Struct, frozen=True):
    name: str
    vendor: str
    model: str = ""  # a pattern; empty matches all models of the vendor
    serials: tuple[str, ...] = ("SerialNumber",)  # properties of the System, any of which may be the serial
    cd_targets: tuple[str, ...] = ("Cd", "UsbCd")  # names for the boot override, best first
    usb_targets: tuple[str, ...] = ("Usb", "Floppy")
    names_mode: bool = False  # the override must name the boot mode too
    skip_slots: str = ""  # a pattern for drives that accept no URL
    dell_attributes: bool = False  # the virtual CD is a boot device only by attributes of the manager
    only_continuous: bool = False  # an override is never cleared by a boot, so it is set back to the disk


GENERIC: Final = Quirks("generic", "other")

ROWS: Final = (
    # PowerEdge with iDRAC 8 and 9. The service tag, which is the serial in DMI, is the SKU; SerialNumber is the board's.
    # "Cd" means a drive that PowerEdge no longer has: the virtual one is VCD-DVD, in the attributes of the iDRAC.
    Quirks("dell-idrac", "dell", serials=("SKU", "SerialNumber"), names_mode=True, dell_attributes=True),
    # ProLiant with iLO 5 and 6: one CD/DVD and one Floppy/USBStick; the mode is the firmware's and cannot be written.
    Quirks("hpe-ilo", "hpe"),
    # X11, X12, H11, H12: the virtual CD is a USB device to the firmware ("UsbCd"), and an override that does not say UEFI
    # falls back to legacy.
    Quirks("supermicro", "supermicro", cd_targets=("UsbCd", "Cd"), names_mode=True),
    # ThinkSystem with XCC: EXT1 to EXT4 take a URL; RDOC and Remote are for files uploaded to the XCC and for its console.
    Quirks("lenovo-xcc", "lenovo", skip_slots=r"^(?:RDOC|Remote)"),
    # sushy-emulator ignores "Once" and always answers "Continuous".
    Quirks("sushy-emulator", "sushy", only_continuous=True),
)  # fmt: skip


def vendor_of(*names: str | None) -> str:
    """Return the vendor's name from the closed set, by the first text that matches one."""
    for name in names:
        for vendor, pattern in _NAMES.items():
            if name and re.search(pattern, name, re.IGNORECASE):
                return vendor
    return "other"


def quirks_of(vendor: str, model: str) -> Quirks:
    for row in ROWS:
        if row.vendor == vendor and re.search(row.model, model, re.IGNORECASE):
            return row
    return GENERIC


def quirks_named(name: str) -> Quirks:
    """Return the row that stored facts name, or the generic one if it no longer exists."""
    return next((row for row in ROWS if row.name == name), GENERIC)
