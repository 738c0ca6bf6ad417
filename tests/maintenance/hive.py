"""An empty Windows registry hive for hivexsh, as there is no tool that creates one."""

import struct

PAGE = 4096


def empty_hive() -> bytes:
    nothing = 0xFFFFFFFF
    name = b"root"
    root_at, owner_at = 32, 32 + 88
    root = struct.pack(
        "<2sHQ15IHH", b"nk", 0x2C, 0, 0, 0, 0, 0, nothing, nothing, 0, nothing, owner_at, nothing, 0, 0, 0, 0, 0, len(name), 0
    )  # fmt: skip
    owner = struct.pack("<2sHIIII", b"sk", 0, owner_at, owner_at, 1, 20) + bytes(20)
    cells = _cell(root + name, 88) + _cell(owner, 48)
    free = PAGE - 32 - len(cells)
    page = struct.pack("<4sIIQQI", b"hbin", 0, PAGE, 0, 0, 0) + cells + struct.pack("<i", free) + bytes(free - 4)
    head = bytearray(PAGE)
    struct.pack_into("<4sIIQIIIIIII", head, 0, b"regf", 1, 1, 0, 1, 5, 0, 1, root_at, PAGE, 1)
    checksum = 0
    for (word,) in struct.iter_unpack("<I", bytes(head[:508])):
        checksum ^= word
    struct.pack_into("<I", head, 508, checksum)
    return bytes(head) + page


def _cell(content: bytes, size: int) -> bytes:
    return struct.pack("<i", -size) + content.ljust(size - 4, b"\0")
