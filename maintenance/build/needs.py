"""What the build needs of the machine it runs on, said before anything is begun."""

import os
import shutil
from pathlib import Path

# What is looked for, and the Debian package that brings it.
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
    """The packages to install, in the order of the alphabet."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    programs = {package for program, package in PROGRAMS.items() if shutil.which(program, path=path) is None}
    return sorted(programs | {package for file, package in FILES.items() if not Path(file).exists()})
