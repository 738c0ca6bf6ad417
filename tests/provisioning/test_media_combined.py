"""The combined image: its maintenance part is unchanged, and the task is found after it."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from chargehand.doors.provisioning.media.combined import MAGIC, combined
from chargehand.doors.provisioning.media.iso import Built, IsoError, build_task_iso
from chargehand.doors.provisioning.media.source import MediaPart
from chargehand.doors.provisioning.taxonomy import Key
from provision.iso9660 import NotIso
from provision.medium import tail
from tests.provisioning.iso_readers import SECTOR, read_joliet, xorriso

EPOCH = 1_700_000_000
TASK = {"recipe.json": b"{}", "user-data": b"#cloud-config\n"}
MAINTENANCE = {"vmlinuz": bytes(range(256)) * 300, "initrd": b"initrd" * 1000}


@pytest.fixture
def task(tmp_path: Path) -> Built:
    return build_task_iso(tmp_path / "task.iso", TASK, epoch=EPOCH)


@pytest.fixture
def maintenance(tmp_path: Path) -> Path:
    return build_task_iso(tmp_path / "maintenance.iso", MAINTENANCE, label="MAINT", epoch=EPOCH).path


def content(source: Path | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()


def assembled(parts: Sequence[MediaPart]) -> bytes:
    image = b""
    for source, start, length in parts:
        assert start == 0
        assert length > 0
        assert len(content(source)) == length
        image += content(source)
    return image


def search(image: bytes) -> bytes | None:
    """Find the task as the maintenance system does."""
    return tail(lambda offset, count: image[offset : offset + count], len(image))


@pytest.mark.parametrize("more", [b"", b"not a whole sector"])
def test_the_task_is_found_after_a_maintenance_image_of_any_size(task: Built, maintenance: Path, more: bytes) -> None:
    with maintenance.open("ab") as file:
        file.write(more)
    source = combined(maintenance, task)
    image = assembled(source.parts)
    assert len(image) == source.size
    assert source.size % SECTOR == 0
    assert image.startswith(maintenance.read_bytes())
    assert search(image) == task.path.read_bytes()
    assert image.index(task.path.read_bytes()) % SECTOR == 0
    assert task.sha256.encode() in image[-SECTOR:]


def test_seven_zip_reads_the_combined_image_as_the_maintenance_image(
    tmp_path: Path, task: Built, maintenance: Path
) -> None:
    path = tmp_path / "combined.iso"
    path.write_bytes(assembled(combined(maintenance, task).parts))
    assert {name: read.content for name, read in read_joliet(path, tmp_path).items()} == MAINTENANCE


@pytest.mark.tools("xorriso")
def test_xorriso_reads_the_combined_image_as_the_maintenance_image(
    tmp_path: Path, task: Built, maintenance: Path
) -> None:
    image = assembled(combined(maintenance, task).parts)
    path = tmp_path / "combined.iso"
    path.write_bytes(image)
    there = tmp_path / "there"
    told = xorriso("-osirrox", "on", "-indev", str(path), "-pvd_info", "-extract", "/", str(there))
    assert {file.name: file.read_bytes() for file in there.iterdir()} == MAINTENANCE
    there.chmod(0o755)
    assert "Volume Id    : MAINT" in told
    cut = tmp_path / "cut.iso"
    cut.write_bytes(search(image) or b"")
    assert "Volume Id    : TASK" in xorriso("-indev", str(cut), "-pvd_info")


def test_the_etag_depends_on_both_parts(tmp_path: Path, task: Built, maintenance: Path) -> None:
    before = combined(maintenance, task).etag
    assert combined(maintenance, task).etag == before
    other = build_task_iso(tmp_path / "other.iso", {"recipe.json": b"[]"}, epoch=EPOCH)
    replaced = tmp_path / "replaced.iso"
    replaced.write_bytes(maintenance.read_bytes())
    assert len({before, combined(maintenance, other).etag, combined(replaced, task).etag}) == 3
    assert before[0] == before[-1] == '"'


def test_a_missing_maintenance_image_is_an_error(tmp_path: Path, task: Built) -> None:
    with pytest.raises(IsoError, match="No such file") as caught:
        combined(tmp_path / "absent.iso", task)
    assert caught.value.key is Key.ISO_SERVE


def test_no_task_is_found_on_a_medium_without_one(maintenance: Path) -> None:
    assert search(maintenance.read_bytes()) is None
    assert search(b"") is None
    assert search(bytes(SECTOR * 40)) is None


def test_the_task_is_found_although_the_drive_adds_sectors(task: Built, maintenance: Path) -> None:
    image = assembled(combined(maintenance, task).parts)
    assert search(image + bytes(SECTOR * 3)) == search(image) is not None
    assert search(image + bytes(512)) == search(image)


@pytest.mark.parametrize(
    "said",
    [
        {"offset": 0, "length": SECTOR * 5, "sha256": "0" * 64},  # beyond the trailer
        {"offset": 1, "length": 1, "sha256": "0" * 64},
        {"offset": -SECTOR, "length": SECTOR, "sha256": "0" * 64},
        {"offset": 0, "length": 0, "sha256": "0" * 64},
        {"offset": True, "length": 1, "sha256": "0" * 64},
        {"offset": 0.0, "length": 1, "sha256": "0" * 64},
        {"offset": 0, "length": 1, "sha256": "0" * 63},
        {"offset": 0, "length": 1, "sha256": None},
        {"offset": 0, "length": 1},
        [],
        "…",
    ],
    ids=str,
)
def test_an_invalid_trailer_is_refused(said: object) -> None:
    for text in (json.dumps(said).encode(), b"{"):
        with pytest.raises(NotIso):
            search(bytes(SECTOR * 4) + (MAGIC + text).ljust(SECTOR, b"\0"))
