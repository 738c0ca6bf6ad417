"""The end of a pipeline that writes a whole disk, run as a program: DISK HEAD.

The first MiB is written to the file HEAD and not to the disk. Without it a disk has no partition table and no boot sector: if the
writing is interrupted, even by a power cut, nothing boots from half an image. The agent writes it after it verified the digest.
"""

import os
import sys

HEAD = 1 << 20
PIECE = 4 << 20


def main(disk: str, head: str) -> None:
    # An existing device that is not in use: no O_CREAT, and O_EXCL makes the kernel check that.
    handle = os.open(disk, os.O_WRONLY | os.O_EXCL)
    try:
        with open(head, "wb") as file:
            file.write(sys.stdin.buffer.read(HEAD))
        os.lseek(handle, HEAD, os.SEEK_SET)
        while piece := sys.stdin.buffer.read(PIECE):
            view = memoryview(piece)
            while view:
                view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2])
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: {error.strerror}")
