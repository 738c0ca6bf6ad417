"""Create the boot configuration of Windows without Windows: a registry hive on the EFI system partition.

The image contains a template. What `bcdboot` adds on a running Windows is added here by hivexsh, with commands on its standard
input: the boot manager's entry, and one for the installed Windows, each with its partition.
"""

import struct
import uuid
from collections.abc import Iterable, Mapping

from provision.run import run

BOOT_MANAGER = "{9dea862c-5cdd-4e70-acc1-f32b344d4795}"
GLOBAL_SETTINGS = "{7ea2e1ac-2e61-4728-aaa3-896d9d0a9f0e}"
LOADER_SETTINGS = "{6efb52bf-1766-41db-a6b3-0ee5eff72bd7}"
BOOT_MANAGER_TYPE = 0x10100002
LOADER_TYPE = 0x10200003

SZ, BINARY, MULTI = 1, 3, 7

Element = tuple[int, bytes]  # the registry's type, and the value


def text(value: str) -> Element:
    return SZ, f"{value}\0".encode("utf-16-le")


def names(*values: str) -> Element:
    return MULTI, ("".join(f"{value}\0" for value in values) + "\0").encode("utf-16-le")


def number(value: int) -> Element:
    return BINARY, struct.pack("<Q", value)


def partition(disk: uuid.UUID, part: uuid.UUID) -> Element:
    """Encode a GPT partition by its GUIDs: no options, then a device of kind 6 with 72 bytes, of which the last 16 are empty."""
    device = struct.pack("<IIII16sII16s16x", 6, 0, 72, 0, part.bytes_le, 0, 0, disk.bytes_le)
    return BINARY, bytes(16) + device


def boot_manager(esp: Element, loader: str) -> dict[str, Element]:
    return {
        "11000001": esp,
        "12000002": text("\\EFI\\Microsoft\\Boot\\bootmgfw.efi"),
        "12000004": text("Windows Boot Manager"),
        "12000005": text("en-US"),
        "14000006": names(GLOBAL_SETTINGS),
        "23000003": text(loader),
        "24000001": names(loader),
        "25000004": number(0),  # timeout in seconds: there is nothing to choose
    }


def windows_loader(system: Element) -> dict[str, Element]:
    return {
        "11000001": system,
        "12000002": text("\\Windows\\system32\\winload.efi"),
        "12000004": text("Windows"),
        "12000005": text("en-US"),
        "14000006": names(LOADER_SETTINGS),
        "21000001": system,
        "22000002": text("\\Windows"),
        "25000020": number(0),  # NX: opt in, the default of Windows
        "250000c2": number(1),  # the standard boot menu
    }


def script(present: Iterable[str], loader: str, esp: Element, system: Element) -> str:
    """Return commands for hivexsh. `present`: the hive's objects; one that is created anew is deleted first."""
    here = {name.lower() for name in present}
    lines: list[str] = []
    objects = (
        (BOOT_MANAGER, BOOT_MANAGER_TYPE, boot_manager(esp, loader)),
        (loader, LOADER_TYPE, windows_loader(system)),
    )
    for name, kind, elements in objects:
        if name.lower() in here:
            lines += [f"cd \\Objects\\{name}", "del"]
        lines += ["cd \\Objects", f"add {name}", f"cd \\Objects\\{name}", "add Description", "add Elements"]
        lines += [f"cd \\Objects\\{name}\\Description", *_values({"Type": (4, struct.pack("<I", kind))})]
        for element, value in elements.items():
            lines += [f"cd \\Objects\\{name}\\Elements", f"add {element}"]
            lines += [f"cd \\Objects\\{name}\\Elements\\{element}", *_values({"Element": value})]
    return "\n".join([*lines, "commit", ""])


def _values(values: Mapping[str, Element]) -> list[str]:
    lines = [f"setval {len(values)}"]
    for name, (kind, data) in values.items():
        lines += [name, f"hex:{kind}:{data.hex(',')}"]
    return lines


def write(hive: str, loader: str, esp: Element, system: Element) -> None:
    """Write the entries into `hive`, a copy of the image's template."""
    listed = run(["hivexsh", hive], stdin=b"cd \\Objects\nls\n").output.split()
    run(["hivexsh", "-w", hive], stdin=script(listed, loader, esp, system).encode())
