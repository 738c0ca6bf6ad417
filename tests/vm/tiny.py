"""Small images for tests that do not boot the installed system, some with one defect."""

import io
import struct
import subprocess
import tarfile
from pathlib import Path

# A stand-in for GRUB: a program that does nothing and succeeds. An ELF file of one segment with `exit(0)`.
_EXIT = bytes.fromhex("31ff b83c000000 0f05".replace(" ", ""))
_SIZE = 64 + 56 + len(_EXIT)
_NOTHING = (
    b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0x400078, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    + struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, _SIZE, _SIZE, 0x1000)
    + _EXIT
)


def tree(*, grub: bool = True, cloud_is_a_file: bool = False) -> bytes:
    files: dict[str, bytes] = {
        "etc/os-release": b"ID=tiny\n",
        "etc/default/keep": b"",
        "usr/lib/keep": b"",
        "dev/keep": b"",
        "boot/vmlinuz-1": b"no kernel",
    }
    if grub:
        files |= {"usr/sbin/grub-install": _NOTHING, "usr/sbin/update-grub": _NOTHING, "usr/lib/grub/i386-pc/keep": b""}
    if cloud_is_a_file:
        files["var/lib/cloud"] = b"in the way of a folder"
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    return made.getvalue()


def wim(folder: Path) -> bytes:
    """Return a Windows image without Windows in it."""
    (folder / "volume").mkdir()
    (folder / "volume" / "readme.txt").write_text("nothing to boot here")
    file = folder / "image.wim"
    subprocess.run(
        ["wimlib-imagex", "capture", str(folder / "volume"), str(file), "empty"], check=True, capture_output=True
    )
    return file.read_bytes()
