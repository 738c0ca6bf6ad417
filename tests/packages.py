"""The programs that tests start: whether they are there, and how they are installed."""

import shutil
from collections.abc import Iterable

# With their packages in Debian.
PACKAGES = {
    "blkid": "util-linux",
    "debugfs": "e2fsprogs",
    "hivexsh": "libhivex-bin",
    "kubectl": "kubernetes-client",
    "losetup": "util-linux",
    "lsblk": "util-linux",
    "mkfs.btrfs": "btrfs-progs",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.ntfs": "ntfs-3g",
    "mkfs.vfat": "dosfstools",
    "mkfs.xfs": "xfsprogs",
    "mmdebstrap": "mmdebstrap",
    "mount": "mount",
    "nsenter": "util-linux",
    "ntfs-3g": "ntfs-3g",
    "ntfsresize": "ntfs-3g",
    "partx": "util-linux",
    "pgbouncer": "pgbouncer",
    "podman": "podman",
    "runc": "runc",
    "sfdisk": "fdisk",
    "skopeo": "skopeo",
    "systemd-analyze": "systemd",
    "systemd-nspawn": "systemd-container",
    "umount": "mount",
    "unshare": "util-linux",
    "wimlib-imagex": "wimtools",
    "wipefs": "util-linux",
    "xorriso": "xorriso",
    "xz": "xz-utils",
    "zstd": "zstd",
}

# Those that Debian has not: Go builds them.
MODULES = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.19.0",
    "kustomize": "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1",
}


def missing(programs: Iterable[str]) -> str:
    """Return a sentence about those that are not installed, or nothing."""
    absent = [name for name in programs if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)} ({'; '.join(_commands(absent))})" if absent else ""


def _commands(programs: list[str]) -> list[str]:
    packages = sorted({PACKAGES[name] for name in programs if name in PACKAGES})
    commands = [f"on Debian: apt install {' '.join(packages)}"] if packages else []
    return commands + [f"go install {MODULES[name]}" for name in programs if name in MODULES]
