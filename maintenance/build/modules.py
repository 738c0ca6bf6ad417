"""The kernel modules that servers need, and their dependencies."""

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from maintenance.build.rootfs import KERNEL
from maintenance.build.run import BuildFailed, run

# fmt: off
STORAGE = (
    "ahci", "ata_piix", "ata_generic", "nvme", "megaraid_sas", "mpt3sas", "hpsa", "smartpqi", "aacraid", "virtio_blk", "virtio_scsi",
    "vmw_pvscsi", "sr_mod", "sd_mod", "sg", "usb_storage", "uas", "xhci_pci", "ehci_pci", "uhci_hcd", "vmd", "dm_mod", "raid1",
)
NETWORK = (
    "e1000", "e1000e", "igb", "igc", "ixgbe", "i40e", "ice", "bnxt_en", "bnx2x", "tg3", "mlx4_en", "mlx5_core", "r8169", "sfc", "qede",
    "be2net", "virtio_net", "vmxnet3", "af_packet", "cdc_ether", "rndis_host",
)
FILE_SYSTEMS = (
    "isofs", "udf", "vfat", "ext4", "xfs", "btrfs", "squashfs", "overlay", "loop", "fuse", "efivarfs",
    "nls_cp437", "nls_ascii", "nls_iso8859_1", "nls_utf8",
)
OTHERS = (
    "virtio_pci", "virtio_rng", "qemu_fw_cfg", "hid_generic", "usbhid", "ipmi_si", "ipmi_devintf", "autofs4", "dmi_sysfs",
    "crc32c_intel", "sha256_ssse3", "unix", "ipv6", "efi_pstore",
)
# fmt: on
FIRST = (*STORAGE, "virtio_pci", "usbhid", "isofs", "squashfs", "loop", "overlay")  # to find and read the medium
WANTED = (*STORAGE, *NETWORK, *FILE_SYSTEMS, *OTHERS)
ABOUT = ("modules.builtin", "modules.builtin.modinfo", "modules.order")


class Modules:
    """All modules of the kernel's package, unpacked into a folder."""

    def __init__(self, tar: tarfile.TarFile, folder: Path) -> None:
        prefix = f"./{KERNEL}/lib/modules/"
        for member in tar:
            if member.name.startswith(prefix) and member.isfile():
                target = folder / "lib/modules" / member.name.removeprefix(prefix)
                target.parent.mkdir(parents=True, exist_ok=True)
                source = tar.extractfile(member)
                target.write_bytes(source.read() if source else b"")
        versions = sorted(path.name for path in (folder / "lib/modules").iterdir())
        if len(versions) != 1:
            raise BuildFailed(f"one kernel is expected, not {versions}")
        self.version = versions[0]
        self._folder = folder / "lib/modules" / self.version
        run("depmod", "-b", folder, self.version)

    def choose(self, wanted: Sequence[str], root: Path) -> Path:
        """Write the system's /lib/modules/VERSION with these modules and their dependencies."""
        folder = root / "lib/modules" / self.version
        for name in (*_closure(self._folder, wanted), *ABOUT):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((self._folder / name).read_bytes())
        run("depmod", "-b", root, self.version)
        return folder


def _closure(folder: Path, wanted: Sequence[str]) -> list[str]:
    """Return the paths of the modules and their dependencies. A built-in one has no file."""
    needs: dict[str, list[str]] = {}
    by_name: dict[str, str] = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[path] = others.split()
        by_name[_name(path)] = path
    built_in = {_name(line) for line in (folder / "modules.builtin").read_text().splitlines()}
    soft = dict(_soft(folder))
    unknown = [name for name in wanted if name not in by_name and name not in built_in]
    if unknown:
        raise BuildFailed(f"this kernel has no module {', '.join(unknown)}")
    found: set[str] = set()
    names = list(wanted)
    while names:
        name = names.pop()
        if name in by_name and by_name[name] not in found:
            found.add(by_name[name])
            names += [_name(other) for other in needs[by_name[name]]] + soft.get(name, [])
    return sorted(found)


def _soft(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for line in (folder / "modules.softdep").read_text().splitlines():
        match line.split():
            case ["softdep", name, *others]:
                yield name.replace("-", "_"), [other.replace("-", "_") for other in others if not other.endswith(":")]


def _name(path: str) -> str:
    return path.rpartition("/")[2].partition(".ko")[0].replace("-", "_")
