"""Install GRUB from the installed system's own packages, in its own tree.

It is installed for the firmware that this machine booted with, and for the other kind too if the layout has a partition for it
and the image has the files: a disk that boots both ways survives a change of firmware settings.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.errors import Exit, Trouble
from provision.fstab import fstab
from provision.image import chosen, uuid_of
from provision.journal import say
from provision.layout import BIOS_BOOT, Partition, check_linux_boots, device_of, esp_of, read_layout
from provision.mounts import bound, system
from provision.places import Places
from provision.plan import Action, Command, Plan, WriteFile, execute
from provision.recipe import Recipe
from provision.rooted import inside

BOOTLOADER_ID = "linux"
CONSOLE = re.compile(r"console=(ttyS[0-9]+(?:,[0-9a-z]+)?)")
KERNELS = ("vmlinuz*", "vmlinux*", "Image*")
MOST = 900.0  # seconds for one command; the unit's timeout is longer
DROP_IN = "/etc/default/grub.d/60-provision.cfg"

_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True)
class Grub:
    """The parts of GRUB that the image contains."""

    install: str  # grub-install or grub2-install
    config: tuple[str, ...]  # the command that writes the configuration
    bios: bool
    efi: bool


def bootloader_linux(places: Places, recipe: Recipe) -> None:
    if recipe.get("image_format") == "raw-disk":
        say("the image brings its own boot loader: nothing is done")
        return
    disk = chosen(places)
    parts = read_layout(recipe["partition_layout"])
    with system(disk, parts, places.target) as target:
        table = fstab(parts, lambda part: uuid_of(device_of(disk, part.number)))
        execute([WriteFile(target, "/etc/fstab", table.encode())])
        grub = look(target)
        steps = plan(target, disk, parts, grub, efi=places.efi.is_dir(), console=serial_console(places))
        with bound(target):
            execute(steps)


def look(target: Path) -> Grub:
    if not any(path for pattern in KERNELS for path in inside(target, "/boot").glob(pattern)):
        raise Trouble("the image holds no kernel in /boot", Exit.IMAGE)
    install = next((name for name in ("grub-install", "grub2-install") if _program(target, name)), "")
    if not install:
        raise Trouble("the image holds no grub-install: add GRUB's packages to it", Exit.IMAGE)
    new = install.startswith("grub2")
    config: tuple[str, ...] = ("update-grub",)
    if not _program(target, "update-grub"):
        config = (
            ("grub2-mkconfig", "-o", "/boot/grub2/grub.cfg") if new else ("grub-mkconfig", "-o", "/boot/grub/grub.cfg")
        )
    modules = inside(target, "/usr/lib/grub")
    return Grub(install, config, (modules / "i386-pc").is_dir(), (modules / "x86_64-efi").is_dir())


def _program(target: Path, name: str) -> bool:
    return any(inside(target, f"{folder}/{name}").is_file() for folder in _FOLDERS)


def serial_console(places: Places) -> str:
    """Return the serial console of this system, which the installed one is to use too, or ""."""
    try:
        found = CONSOLE.findall(places.at("/proc/cmdline").read_text())
    except OSError:
        return ""
    return str(found[-1]) if found else ""


def plan(target: Path, disk: str, parts: Sequence[Partition], grub: Grub, *, efi: bool, console: str) -> Plan:
    esp = esp_of(parts)
    bios_boot = any(part.type == BIOS_BOOT for part in parts)
    check_linux_boots(parts, efi=efi)
    if efi and not grub.efi:
        raise Trouble("the image holds no GRUB for UEFI (/usr/lib/grub/x86_64-efi)", Exit.IMAGE)
    if not efi and not grub.bios:
        raise Trouble("the image holds no GRUB for BIOS (/usr/lib/grub/i386-pc)", Exit.IMAGE)
    actions: list[Action] = []
    if console:
        actions.append(WriteFile(target, DROP_IN, _drop_in(console)))
    if bios_boot and grub.bios:
        actions.append(_inside(target, grub.install, "--target=i386-pc", "--recheck", disk))
    if esp is not None and grub.efi:
        # Red Hat's refuses UEFI without --force, to protect its signed GRUB.
        force = ("--force",) if grub.install.startswith("grub2") else ()
        common = (grub.install, "--target=x86_64-efi", f"--efi-directory={esp.mountpoint}", "--recheck", *force)
        # As \EFI\BOOT\BOOTX64.EFI it boots without an entry in the firmware; with an entry it boots first.
        actions.append(_inside(target, *common, "--removable", "--no-nvram"))
        if efi:
            actions.append(_inside(target, *common, f"--bootloader-id={BOOTLOADER_ID}", may_fail=True))
    actions.append(_inside(target, *grub.config))
    return actions


def _inside(target: Path, *argv: str, may_fail: bool = False) -> Command:
    return Command(("chroot", str(target), *argv), timeout=MOST, may_fail=may_fail)


def _drop_in(console: str) -> bytes:
    port, _, line = console.partition(",")
    unit, speed = port.removeprefix("ttyS"), next(iter(re.findall(r"^[0-9]+", line)), "115200")
    return (
        f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX console=tty0 console={console}"\n'
        f'GRUB_TERMINAL="console serial"\n'
        f'GRUB_SERIAL_COMMAND="serial --unit={unit} --speed={speed}"\n'
    ).encode()
