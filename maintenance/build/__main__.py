"""`python -m maintenance.build`: a bootable image of the maintenance system, for BIOS and UEFI, the same bytes each time."""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from maintenance.build import iso, needs, rootfs, tree
from maintenance.build.archive import Entry, newc
from maintenance.build.run import BuildFailed

ROOT = Path(__file__).parents[2]
LEVEL = "-15"


def main() -> int:
    options = argparse.ArgumentParser(prog="maintenance.build", description=__doc__)
    options.add_argument("--output", type=Path, default=ROOT / "build/maintenance.iso", help="the image to write")
    options.add_argument("--cache", type=Path, default=ROOT / "build/cache", help="where the packages' files are kept")
    asked = options.parse_args()
    if packages := needs.missing():
        sys.stderr.write(f"Missing on this machine: {', '.join(packages)}\nOn Debian: apt install {' '.join(packages)}\n")
        return 1
    began = time.monotonic()
    try:
        build(asked.output, asked.cache)
    except BuildFailed as error:
        sys.stderr.write(f"{error}\n")
        return 1
    data = asked.output.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    sys.stdout.write(f"{asked.output}: {len(data) / 1e6:.1f} MB in {time.monotonic() - began:.0f} s, sha256 {digest}\n")
    return 0


def build(output: Path, cache: Path) -> None:
    root = rootfs.cached(cache)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix="iso-") as folder:
        work = Path(folder)
        entries, kernel = tree.entries(root, work / "modules")
        _compress(entries, work / "initrd.zst")
        made = work / "made.iso"
        iso.make(kernel, work / "initrd.zst", made, work)
        made.replace(output)


def _compress(entries: list[Entry], target: Path) -> None:
    # With threads the result does not depend on how many there are; without them it would be another one.
    with subprocess.Popen(["zstd", "-q", LEVEL, "-T2", "-o", str(target)], stdin=subprocess.PIPE) as zstd:  # noqa: S607
        assert zstd.stdin is not None  # noqa: S101
        for piece in newc(entries):
            zstd.stdin.write(piece)
    if zstd.returncode:
        raise BuildFailed(f"zstd ended with {zstd.returncode}")


if __name__ == "__main__":
    sys.exit(main())
