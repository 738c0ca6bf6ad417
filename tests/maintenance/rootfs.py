"""A file tree for chroot: a shell, and a stand-in for GRUB that records its arguments and what it saw."""

import io
import re
import subprocess
import tarfile
from pathlib import Path

GRUB = """#!/bin/sh
echo "$(basename "$0") $*" >> /grub-was-asked
[ -e /proc/self/mounts ] && [ -e /dev/null ] && [ -d /sys/block ] && echo sees >> /grub-was-asked
exit 0
"""


def rootfs() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        _add(tar, "etc/hosts", b"127.0.0.1\tlocalhost\n")
        _add(tar, "etc/os-release", b"ID=test\n", owner=1234)
        _add(tar, "usr/bin/su", b"x", 0o4755)
        _add(tar, "boot/vmlinuz-6.1", b"a kernel, as far as anybody here looks")
        _add(tar, "var/log/old", b"from the image\n")
        _add(tar, "usr/lib/grub/i386-pc/modinfo.sh", b"")
        for name in ("grub-install", "update-grub"):
            _add(tar, f"usr/sbin/{name}", GRUB.encode(), 0o755)
        for path in ("/bin/sh", *_libraries("/bin/sh"), "/usr/bin/basename", *_libraries("/usr/bin/basename")):
            if path.lstrip("/") not in tar.getnames():
                _add(tar, path.lstrip("/"), Path(path).read_bytes(), 0o755)
        for name in ("proc", "sys", "dev", "run", "tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
    return made.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644, owner: int = 0) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.uid, entry.gid, entry.mtime = len(content), mode, owner, owner, 1_700_000_000
    tar.addfile(entry, io.BytesIO(content))


def _libraries(program: str) -> list[str]:
    listed = subprocess.run(["ldd", program], capture_output=True, check=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", listed)
