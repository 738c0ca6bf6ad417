"""`python -m maintenance.build`: build a bootable image of the maintenance system for BIOS and UEFI, reproducibly."""

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from maintenance.build import iso, needs, rootfs, tree
from maintenance.build.archive import newc, write_tar
from maintenance.build.run import BuildFailed, started

ROOT = Path(__file__).parents[2]


def main() -> int:
    options = argparse.ArgumentParser(prog="maintenance.build", description=__doc__)
    options.add_argument("--output", type=Path, default=ROOT / "build/maintenance.iso", help="the image to write")
    options.add_argument("--cache", type=Path, default=ROOT / "build/cache", help="where the packages' files are kept")
    asked = options.parse_args()
    if packages := needs.missing():
        sys.stderr.write(
            f"Missing on this machine: {', '.join(packages)}\nOn Debian: apt install {' '.join(packages)}\n"
        )
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
        found = tree.read(root, work / "modules")
        initrd, system, made = work / "initrd.zst", work / "system.squashfs", work / "made.iso"
        with _fed("zstd", "-q", "-15", "-o", initrd) as pipe:
            for piece in newc(found.first):
                pipe.write(piece)
        # Small blocks: only the needed parts of a file are unpacked.
        options = (
            "-tar -comp zstd -Xcompression-level 12 -b 128K -root-uid 0 -root-gid 0 -root-mode 0755 -quiet -no-progress"
        )
        with _fed("mksquashfs", "-", system, *options.split()) as pipe:
            write_tar(found.system, pipe)
        iso.make(found.kernel, initrd, system, made, work)
        made.replace(output)


@contextmanager
def _fed(*command: str | Path) -> Iterator[IO[bytes]]:
    """Yield the standard input of a program, and wait for its end."""
    with suppress(BrokenPipeError), started(*command) as process:
        assert process.stdin is not None  # noqa: S101
        yield process.stdin
    if process.returncode:
        raise BuildFailed(f"{command[0]} ended with {process.returncode}")


if __name__ == "__main__":
    sys.exit(main())
