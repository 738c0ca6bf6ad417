"""Finding the task: on its own disc, behind another image, late, damaged, or not at all."""

from collections.abc import Callable
from pathlib import Path

import pytest

from chargehand.doors.provisioning.media import combined as media
from chargehand.doors.provisioning.media.iso import build_task_iso
from provision import iso9660, medium
from provision.errors import Exit, Trouble
from provision.places import Places

FILES = {
    "recipe.json": b'{"a": 1}\n',
    "recipe.schema.json": b"x" * 20_000,
    "user-data": b"",
    "report.json": b"{}",
    "network-config": bytes(range(256)) * 16,
}
EPOCH = 1_800_000_000


def iso(tmp_path: Path, label: str = "TASK") -> bytes:
    return build_task_iso(tmp_path / f"{label}.iso", FILES, label=label, epoch=EPOCH).path.read_bytes()


def combined(tmp_path: Path, maintenance: bytes = b"m" * 5000) -> bytes:
    boot = tmp_path / "boot.iso"
    boot.write_bytes(maintenance)
    built = build_task_iso(tmp_path / "t.iso", FILES, epoch=EPOCH)
    parts = media.combined(boot, built).parts
    return b"".join(source if isinstance(source, bytes) else source.read_bytes() for source, _, _ in parts)


def machine(tmp_path: Path, **drives: bytes) -> Places:
    root = tmp_path / "root"
    for name, content in drives.items():
        (root / "sys/block" / name).mkdir(parents=True, exist_ok=True)
        (root / "sys/block" / name / "removable").write_text("0\n")
        (root / "dev").mkdir(exist_ok=True)
        (root / "dev" / name).write_bytes(content)
    return Places(root)


def never(_seconds: float) -> None:
    raise AssertionError("there was no reason to wait")


def test_all_files_are_read_by_their_long_names(tmp_path: Path) -> None:
    content = iso(tmp_path)
    assert iso9660.files(lambda offset, count: content[offset : offset + count]) == FILES


def test_the_task_disc_is_found_by_its_label_among_others(tmp_path: Path) -> None:
    places = machine(tmp_path, sda=b"\0" * 100_000, sr0=iso(tmp_path, "MAINT"), sr1=iso(tmp_path), vda=b"")
    assert medium.find(places, 0, never) == ("/dev/sr1", FILES)


def test_a_stick_is_found_as_well(tmp_path: Path) -> None:
    places = machine(tmp_path, sr0=iso(tmp_path, "MAINT"), sdb=iso(tmp_path))
    assert medium.find(places, 0, never).device == "/dev/sdb"


def test_optical_drives_are_read_before_disks(tmp_path: Path) -> None:
    places = machine(tmp_path, sda=iso(tmp_path), sr0=iso(tmp_path), sdb=iso(tmp_path))
    (places.blocks / "sdb/removable").write_text("1\n")
    assert medium.devices(places) == ["/dev/sr0", "/dev/sdb", "/dev/sda"]
    assert medium.find(places, 0, never).device == "/dev/sr0"


@pytest.mark.parametrize("more", [0, 2048, 2048 * 10, 777])
def test_the_task_is_found_behind_the_maintenance_image_even_if_the_drive_adds_sectors(
    tmp_path: Path, more: int
) -> None:
    places = machine(tmp_path, sr0=combined(tmp_path, iso(tmp_path, "MAINT")) + bytes(more))
    assert medium.find(places, 0, never) == ("/dev/sr0", FILES)


def test_a_damaged_task_behind_an_image_is_not_used(tmp_path: Path) -> None:
    content = bytearray(combined(tmp_path))
    content[content.index(FILES["recipe.json"])] ^= 1
    with pytest.raises(Trouble, match=r"/dev/sr0 cannot be read.*digest differs") as caught:
        medium.find(machine(tmp_path, sr0=bytes(content)), -1, never)
    assert caught.value.code == Exit.MEDIUM_UNREADABLE


@pytest.mark.parametrize(
    "damage",
    [
        lambda image: image[: 17 * 2048],  # truncated after its label
        lambda image: image.replace(b"CD001", b"CD002", 2).replace(b"CD002", b"CD001", 1),
    ],
)
def test_an_unreadable_task_medium_is_another_error_than_a_missing_one(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(Trouble) as caught:
        medium.find(machine(tmp_path, sr0=damage(iso(tmp_path))), -1, never)
    assert caught.value.code == Exit.MEDIUM_UNREADABLE


def test_a_drive_that_appears_late_is_waited_for(tmp_path: Path) -> None:
    places = machine(tmp_path, sr0=b"")
    waits: list[float] = []

    def later(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            machine(tmp_path, sr1=iso(tmp_path))

    assert medium.find(places, 60, later).device == "/dev/sr1"
    assert len(waits) == 3


def test_the_error_without_a_medium_lists_the_drives(tmp_path: Path) -> None:
    with pytest.raises(Trouble, match=r"no medium with label TASK.*/dev/sr0, /dev/vda") as caught:
        medium.find(machine(tmp_path, vda=b"x" * 70_000, sr0=iso(tmp_path, "OTHER")), -1, never)
    assert caught.value.code == Exit.NO_MEDIUM
    with pytest.raises(Trouble, match="no drive at all"):
        medium.find(Places(tmp_path / "nothing"), -1, never)


def test_random_content_is_never_taken_for_a_task(tmp_path: Path) -> None:
    whole = combined(tmp_path)
    trailer = whole[-2048:]
    for bad in (
        b'{"offset": 0}',
        b'{"offset": -2048, "length": 4096, "sha256": "' + b"0" * 64 + b'"}',
        b'{"offset": 0, "length": 99999999999, "sha256": "' + b"0" * 64 + b'"}',
        b'{"offset": 1, "length": 1, "sha256": "' + b"0" * 64 + b'"}',
        b"[]",
        b"\xff",
    ):
        image = whole[:-2048] + (trailer[: len(medium.MAGIC)] + bad).ljust(2048, b"\0")
        with pytest.raises(iso9660.NotIso):
            medium.tail(lambda offset, count, image=image: image[offset : offset + count], len(image))  # type: ignore[misc]
