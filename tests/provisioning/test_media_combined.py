"""One image of two: the maintenance part stays what it was, and the task is found behind it."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.doors.provisioning.media.combined import MAGIC, Combined, ImagePart, find_task
from chargehand.doors.provisioning.media.iso import Built, IsoError, build_task_iso
from chargehand.doors.provisioning.taxonomy import Key
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


def assembled(parts: list[ImagePart]) -> bytes:
    image = b""
    for source, start, length in parts:
        assert start == len(image)
        assert length > 0
        assert len(content(source)) == length
        image += content(source)
    return image


def search(image: bytes) -> tuple[int, int, str] | None:
    return find_task(lambda offset, count: image[offset : offset + count], len(image))


@pytest.mark.parametrize("tail", [b"", b"not a whole sector"])
def test_the_task_is_found_behind_a_maintenance_image_of_any_size(task: Built, maintenance: Path, tail: bytes) -> None:
    with maintenance.open("ab") as file:
        file.write(tail)
    combined = Combined(maintenance, task)
    image = assembled(combined.parts())
    assert len(image) == combined.size
    assert combined.size % SECTOR == 0
    assert image.startswith(maintenance.read_bytes())
    found = search(image)
    assert found is not None
    offset, length, sha256 = found
    assert offset % SECTOR == 0
    assert image[offset : offset + length] == task.path.read_bytes()
    assert sha256 == task.sha256 == hashlib.sha256(image[offset : offset + length]).hexdigest()


def test_others_read_the_combined_image_as_the_maintenance_image(
    tmp_path: Path, task: Built, maintenance: Path
) -> None:
    path = tmp_path / "combined.iso"
    path.write_bytes(assembled(Combined(maintenance, task).parts()))
    assert {name: read.content for name, read in read_joliet(path, tmp_path).items()} == MAINTENANCE


@pytest.mark.tools("xorriso")
def test_xorriso_reads_the_combined_image_as_the_maintenance_image(
    tmp_path: Path, task: Built, maintenance: Path
) -> None:
    image = assembled(Combined(maintenance, task).parts())
    path = tmp_path / "combined.iso"
    path.write_bytes(image)
    there = tmp_path / "there"
    told = xorriso("-osirrox", "on", "-indev", str(path), "-pvd_info", "-extract", "/", str(there))
    assert {file.name: file.read_bytes() for file in there.iterdir()} == MAINTENANCE
    there.chmod(0o755)
    assert "Volume Id    : MAINT" in told
    offset, length, _ = search(image) or (0, 0, "")
    cut = tmp_path / "cut.iso"
    cut.write_bytes(image[offset : offset + length])
    assert "Volume Id    : TASK" in xorriso("-indev", str(cut), "-pvd_info")


def test_any_range_is_served_from_its_parts(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("ranges")
    boot = directory / "boot.iso"
    boot.write_bytes(os.urandom(5000))
    task = build_task_iso(directory / "task.iso", TASK, epoch=EPOCH)
    combined = Combined(boot, task)
    image = assembled(combined.parts())

    @given(st.integers(0, combined.size), st.integers(0, combined.size))
    def every_range(one: int, two: int) -> None:
        start, end = sorted((one, two))
        pieces = combined.pieces(start, end)
        got = b"".join(content(source)[at : at + length] for source, at, length in pieces)
        assert got == image[start:end]

    every_range()


def test_the_etag_is_that_of_both_parts(tmp_path: Path, task: Built, maintenance: Path) -> None:
    before = Combined(maintenance, task).etag
    assert Combined(maintenance, task).etag == before
    other = build_task_iso(tmp_path / "other.iso", {"recipe.json": b"[]"}, epoch=EPOCH)
    replaced = tmp_path / "replaced.iso"
    replaced.write_bytes(maintenance.read_bytes())
    assert len({before, Combined(maintenance, other).etag, Combined(replaced, task).etag}) == 3
    assert before[0] == before[-1] == '"'


def test_a_maintenance_image_that_is_not_there_cannot_be_served(tmp_path: Path, task: Built) -> None:
    with pytest.raises(IsoError, match="No such file") as caught:
        Combined(tmp_path / "absent.iso", task)
    assert caught.value.key is Key.ISO_SERVE


def test_a_medium_without_a_task_has_none(maintenance: Path) -> None:
    assert search(maintenance.read_bytes()) is None
    assert search(b"") is None
    assert search(bytes(SECTOR * 40)) is None


def test_a_few_sectors_that_a_drive_adds_do_not_hide_the_task(task: Built, maintenance: Path) -> None:
    image = assembled(Combined(maintenance, task).parts())
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
def test_a_trailer_that_lies_is_none(said: object) -> None:
    trailer = (MAGIC + json.dumps(said).encode()).ljust(SECTOR, b"\0")
    assert search(bytes(SECTOR * 4) + trailer) is None
    assert search(bytes(SECTOR * 4) + (MAGIC + b"{").ljust(SECTOR, b"\0")) is None
