"""The values that callers pass to the client and get from it. Facts are stored with the job, so they are plain data."""

from typing import Literal

import msgspec


class Bmc(msgspec.Struct, frozen=True):
    """The address and credentials of a BMC, and the identity of its machine."""

    address: str
    username: str
    password: str
    serial: str
    system_uuid: str | None = None
    vendor: str | None = None
    tls: str = "verify"  # or "insecure", or "sha256:<hex of the certificate>"
    unidentified: bool = False  # accept a BMC that reports neither serial nor UUID

    def __repr__(self) -> str:
        return f"Bmc(address={self.address!r}, username={self.username!r}, serial={self.serial!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("address", self.address), ("serial", self.serial)]


class VirtualDrive(msgspec.Struct, frozen=True):
    """A virtual CD or USB drive of a BMC."""

    path: str
    name: str
    kind: Literal["cd", "usb"]


class MachineFacts(msgspec.Struct, frozen=True):
    """What `discover` found out about a machine."""

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
    """The state of a system from one request, to decide whether it has booted since the last."""

    power: str
    last_reset_at: str = ""
    boot_progress: str = ""
    override: str = ""  # "Once" until the firmware has used it; only some BMCs show that


_POWER = {
    state.lower(): state for state in ("On", "Off", "PoweringOn", "PoweringOff", "Resetting", "Standby", "Paused")
} | {"reset": "Resetting", "poweron": "On", "poweroff": "Off"}


def power_of(shown: object) -> str:
    """Return the power state in the standard's spelling, from any of the BMCs' own."""
    return _POWER.get(str(shown or "").replace(" ", "").replace("_", "").lower(), "Unknown")
