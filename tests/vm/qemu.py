"""One machine: a QEMU process for each boot, its drives, and its serial output in a file for each boot.

Each boot is a new process, also after a reset by the guest: only then a one-time boot device is used once with UEFI too, and the
power state visibly changes.
"""

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GUEST_SEES_HOST = "10.0.2.2"  # the address of this machine's loopback in QEMU's network
FIRMWARE = Path("/usr/share/OVMF/OVMF_CODE_4M.fd")
VARIABLES = Path("/usr/share/OVMF/OVMF_VARS_4M.fd")
CPU = "Nehalem"  # an old CPU: newer instructions, which libraries use if they can, are slow under emulation
RESET_SECONDS = 2.0  # how long the power is off when the guest resets the machine
QMP_SECONDS = 10.0


class QmpError(Exception):
    pass


@dataclass(frozen=True)
class Spec:
    """The description of a machine. It is written into the emulator's settings as JSON."""

    name: str
    uuid: str
    serial: str
    folder: str
    uefi: bool = False
    disk_gib: int = 4
    memory_mib: int = 1024
    cpus: int = (
        1  # several machines run in parallel: more virtual processors than cores would wait for each other's locks
    )
    dmi_uuid: str = ""  # if the machine reports another serial than its BMC, as with crossed cables
    dmi_serial: str = ""

    @property
    def disk(self) -> Path:
        return Path(self.folder) / "disk.raw"

    def serial_log(self, boot: int) -> Path:
        return Path(self.folder) / f"serial-{boot}.log"

    @property
    def commands(self) -> Path:
        return Path(self.folder) / "qmp"

    @property
    def events(self) -> Path:
        return Path(self.folder) / "qmp-events"


def qmp(socket_path: Path, command: str, arguments: Mapping[str, Any] | None = None) -> Any:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(QMP_SECONDS)
        connection.connect(str(socket_path))
        with connection.makefile("rw") as wire:
            wire.readline()
            for name, given in (("qmp_capabilities", None), (command, arguments)):
                wire.write(json.dumps({"execute": name, **({"arguments": given} if given else {})}) + "\n")
                wire.flush()
                answer: dict[str, Any] = {}
                while "return" not in answer:
                    answer = json.loads(wire.readline())
                    if "error" in answer:
                        raise QmpError(answer["error"]["desc"])
    return answer["return"]


@dataclass
class Qemu:
    spec: Spec
    drives: tuple[str, ...]
    media: dict[str, str] = field(default_factory=dict)
    boot_from: str = "Hdd"
    once: bool = False
    boots: int = 0
    process: "subprocess.Popen[bytes] | None" = None
    closed: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def on(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        with self.lock:
            if self.on or self.closed:
                return
            self.boots += 1
            with (Path(self.spec.folder) / "qemu.log").open("ab") as log:
                self.process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            if self.once:
                self.once, self.boot_from = False, "Hdd"
            threading.Thread(target=self._watch, args=(self.process,), daemon=True).start()

    def stop(self) -> None:
        with self.lock:
            process, self.process = self.process, None
            if process is not None:
                process.kill()
                process.wait()

    def command(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        return qmp(self.spec.commands, name, arguments)

    def insert(self, drive: str, file: str | None) -> None:
        with self.lock:
            if file:
                self.media[drive] = file
            else:
                self.media.pop(drive, None)
            if self.on and file:
                self.command("blockdev-change-medium", {"id": drive, "filename": file, "format": "raw", "force": True})
            elif self.on:
                self.command("eject", {"id": drive, "force": True})

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for the end of this boot. After a reset by the guest, start the next."""
        reason = self._why(process)
        process.wait()
        if reason == "guest-reset":
            time.sleep(RESET_SECONDS)
            with self.lock:
                if self.process is process:
                    self.start()

    def _why(self, process: "subprocess.Popen[bytes]") -> str:
        while process.poll() is None:
            try:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(str(self.spec.events))
                    with connection.makefile("rw") as wire:
                        wire.write('{"execute": "qmp_capabilities"}\n')
                        wire.flush()
                        reason = ""
                        for line in wire:
                            said = json.loads(line)
                            if said.get("event") == "SHUTDOWN":
                                reason = str(said["data"]["reason"])
                        return reason
            except OSError:
                time.sleep(0.05)
        return ""

    def _command(self) -> list[str]:
        spec = self.spec
        folder = Path(spec.folder)
        if not spec.disk.exists():
            with spec.disk.open("wb") as disk:
                disk.truncate(spec.disk_gib << 30)
        for path in (spec.commands, spec.events):
            path.unlink(missing_ok=True)
        first = {"Cd": 1, "Hdd": 2} if self.boot_from == "Cd" else {"Cd": 2, "Hdd": 1}
        # fmt: off
        command = [
            "qemu-system-x86_64", "-name", spec.name, "-M", "q35" if spec.uefi else "pc", "-accel", "tcg,thread=multi", "-cpu", CPU,
            "-smp", str(spec.cpus), "-m", str(spec.memory_mib), "-display", "none", "-vga", "none", "-no-reboot",
            "-smbios", f"type=1,manufacturer=Chargehand,product=Virtual metal,serial={spec.dmi_serial or spec.serial},uuid={spec.dmi_uuid or spec.uuid}",
            "-qmp", f"unix:{spec.commands},server=on,wait=off", "-qmp", f"unix:{spec.events},server=on,wait=off",
            "-serial", f"file:{spec.serial_log(self.boots)}",
            "-drive", f"if=none,id=disk,file={spec.disk},format=raw,cache=unsafe,discard=unmap,detect-zeroes=unmap",
            "-device", f"virtio-blk-pci,drive=disk,serial=DISK-{spec.serial[:12]},bootindex={first['Hdd']}",
            "-netdev", "user,id=net", "-device", f"virtio-net-pci,netdev=net,id=nic,romfile=,mac={_mac(spec.uuid)}",
        ]
        if spec.uefi:
            variables = folder / "variables.fd"
            if not variables.exists():
                shutil.copy(VARIABLES, variables)
            command += [
                "-drive", f"if=pflash,format=raw,readonly=on,file={FIRMWARE}",
                "-drive", f"if=pflash,format=raw,file={variables}",
            ]
        for number, drive in enumerate(self.drives):
            file = self.media.get(drive)
            medium = f",format=raw,file={file}" if file else ""
            bus = f"bus=ide.{number}" if spec.uefi else f"bus=ide.1,unit={number}"
            boots = f",bootindex={first['Cd']}" if number == 0 else ""
            command += [
                "-drive", f"if=none,id=drive-{drive},media=cdrom,readonly=on{medium}",
                "-device", f"ide-cd,id={drive},drive=drive-{drive},{bus}{boots}",
            ]
        # fmt: on
        return command


def _mac(uuid: str) -> str:
    digits = uuid.replace("-", "")[-6:]
    return ":".join(("52:54:00", digits[0:2], digits[2:4], digits[4:6]))
