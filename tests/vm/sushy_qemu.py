"""sushy-emulator with a systems driver that runs QEMU, so that machines really boot. `python -m tests.vm.sushy_qemu --config FILE`.

SUSHY_QEMU_SYSTEMS is a list of machines in the format of qemu.Spec. When this process ends, for whatever reason, they end too.
"""

import signal
import socket
import sys
from typing import Any

import flask
from sushy_tools import error  # type: ignore[import-untyped]
from sushy_tools.emulator import main  # type: ignore[import-untyped]
from sushy_tools.emulator.resources.systems import fakedriver  # type: ignore[import-untyped]
from sushy_tools.emulator.resources.systems.base import AbstractSystemsDriver  # type: ignore[import-untyped]

from tests.vm.qemu import GUEST_SEES_HOST, Qemu, QmpError, Spec

_resolve = socket.getaddrinfo


class QemuDriver(AbstractSystemsDriver):  # type: ignore[misc]
    _config: dict[str, Any]

    @classmethod
    def initialize(cls, config: dict[str, Any], logger: Any, *_: Any) -> "type[QemuDriver]":
        super().initialize(config, logger)
        return cls

    def __init__(self) -> None:
        drives = tuple(self._config["SUSHY_EMULATOR_VMEDIA_DEVICES"])
        specs = [Spec(**said) for said in self._config["SUSHY_QEMU_SYSTEMS"]]
        self.machines = {spec.uuid: Qemu(spec, drives) for spec in specs}

    @property
    def driver(self) -> str:
        return "<qemu>"

    @property
    def systems(self) -> list[str]:
        return list(self.machines)

    def _machine(self, identity: str) -> Qemu:
        try:
            return self.machines[identity]
        except KeyError:
            raise error.NotFound(f"there is no system {identity}") from None

    def uuid(self, identity: str) -> str:
        return self._machine(identity).spec.uuid

    def name(self, identity: str) -> str:
        return self._machine(identity).spec.name

    def get_boot_device(self, identity: str) -> str:
        return self._machine(identity).boot_from

    def set_boot_device(self, identity: str, boot_source: str) -> None:
        """Set the boot device. The emulator does not pass "Once" on, so it is read from the request itself."""
        machine = self._machine(identity)
        if boot_source not in ("Cd", "Hdd"):
            raise error.BadRequest(f"a machine here does not boot from {boot_source}")
        machine.boot_from = boot_source
        boot = (flask.request.json or {}).get("Boot") or {}
        machine.once = boot.get("BootSourceOverrideEnabled") == "Once"

    def get_boot_mode(self, identity: str) -> str:
        return "UEFI" if self._machine(identity).spec.uefi else "Legacy"

    def set_boot_mode(self, identity: str, boot_mode: str) -> None:
        if boot_mode != self.get_boot_mode(identity):
            raise error.BadRequest(f"this machine boots by {self.get_boot_mode(identity)} only")

    def get_nics(self, _identity: str) -> list[dict[str, str]]:
        return []

    def get_power_state(self, identity: str) -> str:
        return "On" if self._machine(identity).on else "Off"

    def set_power_state(self, identity: str, state: str) -> None:
        machine = self._machine(identity)
        match state:
            case "On" | "ForceOn":
                machine.start()
            case "ForceOff":
                machine.stop()
            case "ForceRestart" | "GracefulRestart":
                # As with libvirt: a machine that is off stays off.
                if machine.on:
                    machine.stop()
                    machine.start()
            case "GracefulShutdown" if machine.on:
                machine.command("system_powerdown")
            case "Nmi" if machine.on:
                machine.command("inject-nmi")

    def get_boot_image(self, identity: str, device: str) -> tuple[str | None, bool, bool]:
        file = self._machine(identity).media.get(device)
        return file, True, bool(file)

    def set_boot_image(
        self, identity: str, device: str, boot_image: str | None = None, write_protected: bool = True
    ) -> None:
        machine = self._machine(identity)
        if device not in machine.drives:
            raise error.BadRequest(f"there is no drive {device}")
        try:
            machine.insert(device, boot_image)
        except (QmpError, OSError) as failed:
            raise error.FishyError(str(failed)) from None


def _as_here(host: Any, *others: Any, **more: Any) -> Any:
    return _resolve("127.0.0.1" if host == GUEST_SEES_HOST else host, *others, **more)


def _end(_number: int, _frame: Any) -> None:
    sys.exit(0)


if __name__ == "__main__":
    # One URL for the emulator, which downloads media here, and for the guests, which report here.
    socket.getaddrinfo = _as_here
    fakedriver.FakeDriver = QemuDriver  # selected by SUSHY_EMULATOR_FAKE_DRIVER
    main.cleanup_zombies = signal.SIG_DFL  # the emulator's own handler would reap our machines' processes
    signal.signal(signal.SIGTERM, _end)
    try:
        main.main()
    finally:
        for machine in main.app.systems.machines.values():
            machine.closed = True
            machine.stop()
