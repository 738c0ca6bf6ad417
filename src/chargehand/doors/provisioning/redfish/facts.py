"""The values that a caller gives to the client and gets from it. Facts are stored with the job, so all of it is plain data."""

from typing import Literal

import msgspec


class Bmc(msgspec.Struct, frozen=True):
    """Where a BMC is, how it is opened, and which machine must be behind it."""

    address: str
    username: str
    password: str
    serial: str
    system_uuid: str | None = None
    vendor: str | None = None
    tls: str = "verify"  # or "insecure", or "sha256:<hex of the certificate>"
    unidentified: bool = False  # a BMC that reports neither serial nor UUID is taken at its word

    def __repr__(self) -> str:
        return f"Bmc(address={self.address!r}, username={self.username!r}, serial={self.serial!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("address", self.address), ("serial", self.serial)]


class VirtualDrive(msgspec.Struct, frozen=True):
    """A virtual drive."""

    path: str
    name: str
    kind: Literal["cd", "usb"]


class MachineFacts(msgspec.Struct, frozen=True):
    """What a BMC turned out to be."""

    system: str
    managers: tuple[str, ...] = ()
    vendor: str = "other"
    manufacturer: str = ""
    model: str = ""
    serial: str = ""
    uuid: str = ""
    bios_version: str = ""
    redfish_version: str = ""
    power: str = "Unknown"
    reset_types: tuple[str, ...] = ()
    boot_targets: tuple[str, ...] = ()
    boot_modes: tuple[str, ...] = ()
    slots: tuple[VirtualDrive, ...] = ()
    quirks: str = ""

    @property
    def cds(self) -> tuple[VirtualDrive, ...]:
        return tuple(slot for slot in self.slots if slot.kind == "cd")

    @property
    def usbs(self) -> tuple[VirtualDrive, ...]:
        return tuple(slot for slot in self.slots if slot.kind == "usb")


class Glance(msgspec.Struct, frozen=True):
    """What one look at the system shows, for telling whether it has booted since the last."""

    power: str
    last_reset_at: str = ""
    boot_progress: str = ""
    override: str = ""  # "Once" until the firmware has used it up; only some BMCs show that


_POWER = {
    state.lower(): state for state in ("On", "Off", "PoweringOn", "PoweringOff", "Resetting", "Standby", "Paused")
} | {"reset": "Resetting", "poweron": "On", "poweroff": "Off"}


def power_of(shown: object) -> str:
    """The power state in the standard's spelling; BMCs have their own."""
    return _POWER.get(str(shown or "").replace(" ", "").replace("_", "").lower(), "Unknown")
