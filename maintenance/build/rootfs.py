"""Install the Debian packages of the maintenance system into a tar file, which is cached for each list of packages."""

import hashlib
from pathlib import Path

from maintenance.build.run import listed, run

SUITE = "bookworm"
KERNEL_HOOK = Path(__file__).with_name("kernel.sh")
KERNEL = "kernel"  # the folder in the tar file for the kernel; the hook fills it

# fmt: off
PACKAGES = (
    "systemd", "systemd-sysv", "systemd-resolved", "udev", "dbus", "kmod", "busybox-static", "procps", "util-linux", "mount",
    "fdisk", "e2fsprogs", "dosfstools", "xfsprogs", "btrfs-progs", "ntfs-3g", "wimtools", "libhivex-bin", "efibootmgr",
    "python3", "python3-jsonschema", "tar", "gzip", "xz-utils", "zstd", "iproute2", "ca-certificates",
)
EXCLUDED = (
    "/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/i18n/*", "/usr/share/info/*", "/usr/share/zoneinfo/*",
    "/usr/share/bash-completion/*", "/usr/share/zsh/*", "/usr/share/lintian/*", "/usr/share/bug/*", "/usr/lib/x86_64-linux-gnu/gconv/*",
)
# fmt: on


def key() -> str:
    """Return a key that changes with everything that changes the tar file, except new versions of packages."""
    said = "\n".join((SUITE, *PACKAGES, *EXCLUDED, KERNEL_HOOK.read_text()))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def cached(cache: Path) -> Path:
    """Return the tar file, created if it does not exist. Delete it to get newer packages."""
    tar = cache / f"rootfs-{key()}.tar"
    if not tar.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = tar.with_suffix(".part.tar")
        run(
            "mmdebstrap",
            "--variant=essential",
            "--architectures=amd64",
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED),
            '--aptopt=APT::Install-Recommends "false"',
            f"--customize-hook={KERNEL_HOOK}",
            f"--include={listed(PACKAGES)}",
            SUITE,
            part,
        )
        part.rename(tar)
    return tar
