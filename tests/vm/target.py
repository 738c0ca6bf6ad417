"""The Linux that the tests install: a Debian that boots by BIOS and UEFI, takes its first-boot configuration, and says hello.

Made once and kept in build/cache, under a name that changes with everything it is made of.
"""

import hashlib
from pathlib import Path

from maintenance.build.rootfs import EXCLUDED, SUITE
from maintenance.build.run import listed, run

TRIM = Path(__file__).with_name("trim.sh")
# fmt: off
PACKAGES = (
    "systemd", "systemd-sysv", "udev", "dbus", "kmod", "initramfs-tools", "zstd", "linux-image-cloud-amd64",
    "grub-pc-bin", "grub-efi-amd64-bin", "grub2-common", "cloud-init", "iproute2", "python3", "e2fsprogs",
)
# fmt: on


def cached(cache: Path) -> Path:
    said = "\n".join((SUITE, *PACKAGES, *EXCLUDED, TRIM.read_text()))
    image = cache / f"target-{hashlib.sha256(said.encode()).hexdigest()[:16]}.tar.zst"
    if not image.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = cache / f"part-{image.name}"
        # fmt: off
        run(
            "mmdebstrap", "--variant=minbase", "--architectures=amd64",
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED),
            '--aptopt=APT::Install-Recommends "false"', f"--customize-hook={TRIM}", f"--include={listed(PACKAGES)}",
            SUITE, part,
        )
        # fmt: on
        part.rename(image)
    return image
