"""Windows: where the .wim is stored, the boot files, and the boot configuration in a real hive."""

import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision import bcd
from provision.errors import Exit, Trouble
from provision.layout import MIB, esp_of, read_layout, windows_of
from provision.partition import check_boots
from provision.places import Places
from provision.plan import Command, execute
from provision.windows import (
    any_case,
    copy_boot_files,
    firmware_entry,
    grow_plan,
    has_entry,
    image_windows,
    split,
    unattend_plan,
    volume_plan,
)
from tests.maintenance.hive import empty_hive

G = 1 << 30
LAYOUT: list[dict[str, Any]] = [
    {"size": "512M", "type_guid": "ef00", "format": "vfat", "label": "ESP"},
    {"size": "16M", "type_guid": "0c01", "format": "none"},
    {"size": "60G", "type_guid": "0700", "format": "ntfs", "label": "Windows"},
    {"size": "1G", "type_guid": "2700", "format": "ntfs", "label": "Recovery"},
]
DISK = uuid.UUID("11223344-5566-7788-99aa-bbccddeeff00")
PART = uuid.UUID("aabbccdd-eeff-0011-2233-445566778899")
LOADER_FILE = "\\EFI\\Microsoft\\Boot\\bootmgfw.efi"
LOADER = "{6f1d3b1c-0000-5000-8000-000000000001}"


def argvs(plan: Any) -> list[list[str]]:
    return [list(action.argv) for action in plan if isinstance(action, Command)]


def test_the_partitions_for_windows_and_for_booting_are_found() -> None:
    parts = read_layout(LAYOUT)
    esp = esp_of(parts)
    assert esp is not None
    assert (esp.number, windows_of(parts).number) == (1, 3)
    with pytest.raises(Trouble, match="label Windows"):
        windows_of(read_layout([{**LAYOUT[2], "label": "C"}, LAYOUT[3]]))


def test_the_wim_is_stored_at_the_end_of_its_partition() -> None:
    front = split(60 * G, 5 * G, "/dev/sda3")
    assert front % MIB == 0
    assert 5 * G + 64 * MIB < 60 * G - front < 5 * G + 200 * MIB
    with pytest.raises(Trouble, match="too small") as caught:
        split(9 * G, 5 * G, "/dev/sda3")
    assert caught.value.code == Exit.DISK


def test_the_volume_is_created_small_and_grows_after_the_image_is_applied() -> None:
    part = windows_of(read_layout(LAYOUT))
    assert argvs(volume_plan(part, "/dev/sda3", 10 * G, 512)) == [
        ["wipefs", "--all", "--force", "/dev/sda3"],
        ["mkfs.ntfs", "--fast", "--force", "--quiet", "-L", "Windows", "/dev/sda3", str(10 * G // 512)],
    ]
    assert argvs(volume_plan(part, "/dev/sda3", 10 * G, 4096))[1][-1] == str(10 * G // 4096)
    assert argvs(grow_plan("/dev/sda3"))[0] == ["ntfsresize", "--force", "--force", "/dev/sda3"]
    [entry] = argvs(firmware_entry("/dev/sda", 1))
    assert entry[:6] == ["efibootmgr", "--create", "--disk", "/dev/sda", "--part", "1"]


LISTED = f"""\
BootCurrent: 0001
BootOrder: 0003,0001
Boot0001* UEFI QEMU DVD-ROM\tPciRoot(0x0)/Pci(0x1f,0x2)/Sata(0,65535,0)
Boot0003* Windows Boot Manager\tHD(1,GPT,{str(PART).upper()},0x800,0x32000)/File({LOADER_FILE})
"""


def test_a_second_run_adds_no_second_entry_to_the_firmware() -> None:
    assert has_entry(LISTED, PART)
    assert not has_entry(LISTED, DISK)
    assert not has_entry(LISTED.replace("Windows Boot Manager", "another"), PART)
    assert not has_entry("EFI variables are not supported on this system.\n", PART)


def test_windows_on_a_machine_that_booted_by_bios_is_refused_by_every_step_that_would_write(tmp_path: Path) -> None:
    places = Places(tmp_path)
    recipe = {"task_target": "install-windows.target", "wipe": True, "partition_layout": LAYOUT}
    steps: tuple[Callable[[], None], ...] = (
        lambda: check_boots(places, recipe, read_layout(LAYOUT)),
        lambda: image_windows(places, recipe, lambda *_: None),
    )
    for step in steps:
        with pytest.raises(Trouble, match="booted by BIOS and Windows") as caught:
            step()
        assert caught.value.code == Exit.DISK
    places.efi.mkdir(parents=True)
    check_boots(places, recipe, read_layout(LAYOUT))
    with pytest.raises(Trouble, match="no EFI system partition"):
        check_boots(places, recipe, read_layout(LAYOUT[1:]))


def windows_tree(root: Path, template: bytes = b"template") -> Path:
    for name, content in {
        "WINDOWS/Boot/EFI/bootmgfw.efi": b"MZ manager",
        "WINDOWS/Boot/EFI/en-US/bootmgfw.efi.mui": b"words",
        "WINDOWS/Boot/Fonts/wgl4_boot.ttf": b"font",
        "WINDOWS/System32/config/BCD-Template": template,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def test_the_boot_files_are_copied_from_the_image_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    system, boot = windows_tree(tmp_path / "c"), tmp_path / "esp"
    boot.mkdir()
    for _ in range(2):
        assert copy_boot_files(system, boot) == boot / "EFI/Microsoft/Boot/BCD"
        found = {str(path.relative_to(boot)): path.read_bytes() for path in boot.rglob("*") if path.is_file()}
        assert found == {
            "EFI/Boot/bootx64.efi": b"MZ manager",
            "EFI/Microsoft/Boot/bootmgfw.efi": b"MZ manager",
            "EFI/Microsoft/Boot/en-US/bootmgfw.efi.mui": b"words",
            "EFI/Microsoft/Boot/Fonts/wgl4_boot.ttf": b"font",
            "EFI/Microsoft/Boot/BCD": b"template",
        }
    with pytest.raises(Trouble, match="does not look like Windows"):
        copy_boot_files(tmp_path / "esp", tmp_path / "other")


def test_the_answer_file_is_written_where_setup_reads_it_first(tmp_path: Path) -> None:
    system = windows_tree(tmp_path)
    execute(unattend_plan(system, b"<unattend/>"))
    path = any_case(system, "windows/panther/UNATTEND.xml")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"<unattend/>", 0o600)


def test_a_partition_is_encoded_by_its_guids_as_in_windows() -> None:
    kind, data = bcd.partition(DISK, PART)
    assert (kind, len(data)) == (3, 88)
    assert data[:32] == bytes(16) + bytes.fromhex("06000000000000004800000000000000")
    assert data[32:48] == bytes.fromhex("ddccbbaaffee11002233445566778899")
    assert data[48:56] == bytes(8)  # a GPT
    assert data[56:72] == bytes.fromhex("443322116655887799aabbccddeeff00")
    assert data[72:] == bytes(16)


def shell(hive: Path, script: str, *options: str) -> str:
    done = subprocess.run(["hivexsh", *options, str(hive)], input=script.encode(), capture_output=True, check=True)
    return done.stdout.decode("latin-1")


def value(hive: Path, key: str, name: str) -> str:
    return shell(hive, f"cd {key}\nlsval {name}\n").strip()


@pytest.mark.tools("hivexsh")
def test_the_boot_configuration_is_written_into_a_hive_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    hive = tmp_path / "BCD"
    hive.write_bytes(empty_hive())
    stale = f"\\Objects\\{bcd.BOOT_MANAGER}"
    shell(
        hive,
        f"add Objects\ncd \\Objects\nadd {bcd.GLOBAL_SETTINGS}\nadd {bcd.BOOT_MANAGER}\ncd {stale}\nadd Stale\ncommit\n",
        "-w",
    )
    esp, system = bcd.partition(DISK, DISK), bcd.partition(DISK, PART)
    for _ in range(2):
        bcd.write(str(hive), LOADER, esp, system)
        objects = set(shell(hive, "cd \\Objects\nls\n").split())
        assert objects == {bcd.GLOBAL_SETTINGS, bcd.BOOT_MANAGER, LOADER}
        assert set(shell(hive, f"cd {stale}\nls\n").split()) == {"Description", "Elements"}
        loader = f"\\Objects\\{LOADER}"
        assert set(shell(hive, f"cd {loader}\\Elements\nls\n").split()) == set(bcd.windows_loader(system))
        assert int(value(hive, f"{loader}\\Description", "Type"), 0) == 0x10200003
        assert int(value(hive, f"{stale}\\Description", "Type"), 0) == 0x10100002
        assert value(hive, f"{loader}\\Elements\\12000002", "Element").endswith("\\Windows\\system32\\winload.efi")
        assert value(hive, f"{stale}\\Elements\\23000003", "Element") == LOADER
        # Raw bytes, followed by a line break.
        assert shell(hive, f"cd {loader}\\Elements\\21000001\nlsval Element\n").encode("latin-1")[:88] == system[1]
