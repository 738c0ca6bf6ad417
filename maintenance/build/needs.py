"""Check that the tools for the build are installed, before it begins."""

import os
import shutil
from pathlib import Path

# A program or file, and the Debian package that contains it.
PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "dpkg-deb": "dpkg",
    "depmod": "kmod",
    "zstd": "zstd",
    "mksquashfs": "squashfs-tools",
    "grub-mkimage": "grub-common",
    "mformat": "mtools",
    "xorriso": "xorriso",
}
FILES = {"/usr/lib/grub/i386-pc/cdboot.img": "grub-pc-bin", "/usr/lib/grub/x86_64-efi/moddep.lst": "grub-efi-amd64-bin"}


def missing() -> list[str]:
    """Return the missing packages, sorted."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    programs = {package for program, package in PROGRAMS.items() if shutil.which(program, path=path) is None}
    return sorted(programs | {package for file, package in FILES.items() if not Path(file).exists()})
