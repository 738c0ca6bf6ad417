"""The task medium: other programs can read it, the same content gives the same bytes, and it is written atomically."""

import hashlib
import os
import resource
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chargehand.doors.provisioning.media.contents import recipe_files
from chargehand.doors.provisioning.media.iso import MAX_BYTES, MAX_FILES, IsoError, build_task_iso
from chargehand.doors.provisioning.recipe.recipe import check
from chargehand.doors.provisioning.taxonomy import Key
from tests.provisioning.iso_readers import blkid, read_joliet, read_rock_ridge, xorriso

EPOCH = 1_700_000_000
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "recipes"

FILES = {
    **recipe_files(check((EXAMPLES / "linux.json").read_bytes()), "01JOB"),
    "report.json": b'{"url": "http://127.0.0.1/", "token": "t"}',
    "empty": b"",
    "a-b.txt": b"1",  # these two have the same name for a reader without Rock Ridge and Joliet
    "a_b.txt": b"2",
    "many.dots.in-a.name": b"3",
    "x" * 64: b"4",
    "x" * 63 + "y": b"5",
    "sector": bytes(2048),
    "large": bytes(range(256)) * 1000,
}


def test_seven_zip_reads_the_joliet_tree(tmp_path: Path) -> None:
    built = build_task_iso(tmp_path / "task.iso", FILES, epoch=EPOCH)
    found = read_joliet(built.path, tmp_path)
    assert {name: read.content for name, read in found.items()} == FILES
    assert {read.date for read in found.values()} == {EPOCH}


def test_seven_zip_reads_the_rock_ridge_tree(tmp_path: Path) -> None:
    built = build_task_iso(tmp_path / "task.iso", FILES, epoch=EPOCH)
    found = read_rock_ridge(built.path, tmp_path)
    assert {name: read.content for name, read in found.items()} == FILES
    assert {(read.mode, read.date) for read in found.values()} == {("-r--r--r--", EPOCH)}


@pytest.mark.tools("xorriso")
def test_xorriso_reads_the_task_medium(tmp_path: Path) -> None:
    built = build_task_iso(tmp_path / "task.iso", FILES, epoch=EPOCH)
    there = tmp_path / "there"
    xorriso("-osirrox", "on", "-indev", str(built.path), "-extract", "/", str(there))
    assert {path.name: path.read_bytes() for path in there.iterdir()} == FILES
    for path in there.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o444
        assert path.stat().st_mtime == EPOCH
    there.chmod(0o755)  # it was read-only, and pytest could not remove it
    listed = xorriso("-indev", str(built.path), "-lsl", "/")
    assert listed.count("-r--r--r--    1 0        0 ") == len(FILES)  # owned by root
    about = xorriso("-indev", str(built.path), "-pvd_info")
    assert "Volume Id    : TASK" in about
    written = time.strftime("%Y%m%d%H%M%S00", time.gmtime(EPOCH))
    assert about.count(written) == 3


@pytest.mark.tools("blkid")
def test_the_task_medium_is_found_by_its_label(tmp_path: Path) -> None:
    found = blkid(build_task_iso(tmp_path / "task.iso", FILES, epoch=EPOCH).path)
    assert (found["TYPE"], found["LABEL"]) == ("iso9660", "TASK")


CONTROLS = ["a\0b", "a\nb", "\x1b[2J", "\u202egnp.exe", "a\x7f", "user-data\n"]
names = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9_-])?", fullmatch=True)


@given(
    st.dictionaries(names, st.binary(max_size=5000), min_size=1, max_size=MAX_FILES), st.integers(315532800, 2**31 - 1)
)
@settings(max_examples=25)
def test_both_trees_return_the_files_that_were_written(files: dict[str, bytes], epoch: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        built = build_task_iso(scratch / "task.iso", files, epoch=epoch)
        for found in (read_joliet(built.path, scratch), read_rock_ridge(built.path, scratch)):
            assert {name: read.content for name, read in found.items()} == files
            assert {read.date for read in found.values()} == {epoch}


def test_identical_content_gives_identical_bytes(tmp_path: Path) -> None:
    one = build_task_iso(tmp_path / "one.iso", FILES, epoch=EPOCH)
    two = build_task_iso(tmp_path / "two.iso", dict(reversed(FILES.items())), epoch=EPOCH)
    assert one.path.read_bytes() == two.path.read_bytes()
    assert one.sha256 == two.sha256 == hashlib.sha256(one.path.read_bytes()).hexdigest()
    assert one.size == one.path.stat().st_size
    other = build_task_iso(tmp_path / "other.iso", {**FILES, "empty": b"!"}, epoch=EPOCH)
    later = build_task_iso(tmp_path / "later.iso", FILES, epoch=EPOCH + 1)
    assert len({one.sha256, other.sha256, later.sha256}) == 3


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/St_Johns"])
def test_the_image_does_not_depend_on_clock_and_time_zone(tmp_path: Path, zone: str) -> None:
    """Build in another process, whose clock is set to 2001."""
    script = (
        "import sys, time; time.time = lambda: 1e9\n"
        "from pathlib import Path\n"
        "from chargehand.doors.provisioning.media.iso import build_task_iso\n"
        "print(build_task_iso(Path(sys.argv[1]), {'x' * 64: b'x', 'recipe.json': b'{}'}, epoch=1700000000).sha256)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "then.iso")]
    then = subprocess.run(
        command, env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=True, timeout=60
    )
    now = build_task_iso(tmp_path / "now.iso", {"recipe.json": b"{}", "x" * 64: b"x"}, epoch=EPOCH)
    assert then.stdout.strip() == now.sha256


def test_parallel_builds_do_not_disturb_each_other(tmp_path: Path) -> None:
    def build(number: int, turn: int) -> str:
        files = {**FILES, "number": str(number).encode()}
        return build_task_iso(tmp_path / f"{turn}-{number}.iso", files, epoch=EPOCH + number * 1000).sha256

    alone = [build(number, 0) for number in range(16)]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(build, range(16), [1] * 16))
        same_path = list(threads.map(build, [5] * 16, [2] * 16))
    assert together == alone
    assert set(same_path) == {alone[5]}
    assert hashlib.sha256((tmp_path / "2-5.iso").read_bytes()).hexdigest() == alone[5]
    assert len(list(tmp_path.iterdir())) == 16 + 16 + 1


def test_the_largest_recipe_takes_less_than_a_second_and_ten_mebibytes(tmp_path: Path) -> None:
    files = {**FILES, "user-data": bytes(1 << 20), "unattend.xml": bytes(1 << 20), "ks.cfg": bytes(1 << 18)}
    started = time.process_time()
    built = build_task_iso(tmp_path / "task.iso", files, epoch=EPOCH)
    assert time.process_time() - started < 1.0
    assert built.size < MAX_BYTES


def test_only_its_owner_can_read_the_task_medium(tmp_path: Path) -> None:
    built = build_task_iso(tmp_path / "task.iso", FILES, epoch=EPOCH)
    assert stat.S_IMODE(built.path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc/passwd",
        "a\\b",
        ".hidden",
        "-rf",
        "A",
        "é",
        "a b",
        "a;1",
        "a.",
        "x" * 65,
        *CONTROLS,
    ],
    ids=ascii,
)
def test_a_hostile_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(IsoError) as caught:
        build_task_iso(tmp_path / "task.iso", {"recipe.json": b"{}", name: b""}, epoch=EPOCH)
    assert caught.value.key is Key.ISO_BUILD
    assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("label", ["", "task", "TASK\n", "T" * 17, "A/B"], ids=ascii)
def test_a_hostile_label_is_refused(tmp_path: Path, label: str) -> None:
    with pytest.raises(IsoError, match="label"):
        build_task_iso(tmp_path / "task.iso", FILES, label=label, epoch=EPOCH)


def test_too_many_or_too_large_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IsoError, match=f"at most {MAX_BYTES}"):
        build_task_iso(tmp_path / "task.iso", {"a": bytes(MAX_BYTES + 1)}, epoch=EPOCH)
    with pytest.raises(IsoError, match=f"at most {MAX_BYTES}"):  # with the overhead of the image
        build_task_iso(tmp_path / "task.iso", {"a": bytes(MAX_BYTES)}, epoch=EPOCH)
    with pytest.raises(IsoError, match="1 to 64"):
        build_task_iso(tmp_path / "task.iso", {f"f{n}": b"" for n in range(MAX_FILES + 1)}, epoch=EPOCH)
    with pytest.raises(IsoError, match="1 to 64"):
        build_task_iso(tmp_path / "task.iso", {}, epoch=EPOCH)
    with pytest.raises(IsoError, match="1980"):
        build_task_iso(tmp_path / "task.iso", FILES, epoch=0)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "absent" / "task.iso", tmp_path / "file" / "task.iso"):
        with pytest.raises(IsoError, match="could not be written to"):
            build_task_iso(path, FILES, epoch=EPOCH)


def build_in_a_process(path: Path, *before: str, limit: int | None = None) -> str:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from chargehand.doors.provisioning.media.iso import IsoError, build_task_iso\n"
        "try:\n"
        "    build_task_iso(Path(sys.argv[1]), {'a': bytes(1 << 20)}, epoch=1700000000)\n"
        "except IsoError as error:\n"
        "    print(error, *[path.name for path in Path(sys.argv[1]).parent.iterdir()], sep='|')\n"
    )

    def bound() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [*before, sys.executable, "-c", script, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=bound).stdout.strip()


def test_a_failed_build_keeps_the_earlier_medium(tmp_path: Path) -> None:
    path = tmp_path / "task.iso"
    path.write_bytes(b"the one before")
    told = build_in_a_process(path, limit=100_000)
    assert told == f"the task medium could not be written to {tmp_path}: File too large|task.iso"
    assert path.read_bytes() == b"the one before"


@pytest.mark.tools("unshare", "mount")
def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """Use a file system of 256 KiB, in its own namespace."""
    apart = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=256k none "$0" && exec "$@"', str(tmp_path)]
    tried = subprocess.run([*apart, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.fail(f"no file system can be mounted in a namespace here: {tried.stderr.strip()}")
    told = build_in_a_process(tmp_path / "task.iso", *apart)
    assert told == f"the task medium could not be written to {tmp_path}: No space left on device"
