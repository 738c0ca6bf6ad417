"""The Linux that the tests install: a Debian that boots by BIOS and UEFI, applies its first-boot configuration, and calls the test.

Built once and cached in build/cache, under a name that depends on everything it is built from.
"""

import hashlib
import os
import subprocess
from pathlib import Path

from tests.vm.place import CACHE

TRIM = Path(__file__).with_name("trim.sh")
SUITE = "bookworm"
# fmt: off
PACKAGES = (
    "systemd", "systemd-sysv", "udev", "dbus", "kmod", "initramfs-tools", "zstd", "linux-image-cloud-amd64",
    "grub-pc-bin", "grub-efi-amd64-bin", "grub2-common", "cloud-init", "iproute2", "python3", "e2fsprogs",
)
EXCLUDED = ("doc", "man", "locale", "i18n", "info", "zoneinfo", "bash-completion", "lintian", "bug")
# fmt: on


def cached(cache: Path) -> Path:
    said = "\n".join((SUITE, *PACKAGES, *EXCLUDED, TRIM.read_text()))
    image = cache / f"target-{hashlib.sha256(said.encode()).hexdigest()[:16]}.tar.zst"
    if not image.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = cache / f"part-{os.getpid()}-{image.name}"  # another process may build it too: the last one wins
        # fmt: off
        subprocess.run(
            [
                "mmdebstrap", "--variant=minbase", "--architectures=amd64",
                *(f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in EXCLUDED),
                '--aptopt=APT::Install-Recommends "false"', f"--customize-hook={TRIM}", f"--include={','.join(PACKAGES)}",
                SUITE, str(part),
            ],
            check=True, capture_output=True,
        )
        # fmt: on
        part.rename(image)
    return image


if __name__ == "__main__":
    print(cached(CACHE))
