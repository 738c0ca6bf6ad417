"""Bytes on a real disk: whole or not at all, stored once, and swept when no file refers to them."""

import asyncio
import fcntl
import hashlib
import os
import resource
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path

import pytest

from chargehand.engine.file import File
from chargehand.engine.ids import UlidMaker
from chargehand.engine.job import SECOND, State
from chargehand.engine.reads import FileFilter
from chargehand.engine.store import OldJobs, Store
from chargehand.errors import InvalidField, NotFound, StoreCorrupt, StoreFull, StoreUnavailable, TooLarge
from chargehand.files import PIECE_BYTES, Blob, Blobs, Files, checked_name
from chargehand.files.blobs import SWEEP_BATCH, InUse
from tests.conftest import Clock
from tests.store.given import TENANT, job_in

LARGE = os.urandom(PIECE_BYTES * 2 + 17)
PLENTY = 1 << 30
HOUR = 3600.0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "not made yet" / "files"


@pytest.fixture
def blobs(directory: Path) -> Blobs:
    return Blobs(directory)


def now() -> int:
    return time.time_ns() // 1000


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def kept(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {"lock"} if directory.exists() else set()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def make(directory: Path) -> None:
    directory.mkdir(parents=True)


async def in_chunks(content: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def swept(blobs: Blobs, in_use: InUse, older_than_seconds: float) -> int:
    return (await blobs.sweep(in_use, now() - int(older_than_seconds * SECOND))).blobs


async def pieces(blobs: Blobs, name: str, start: int = 0, end: int | None = None) -> list[bytes]:
    return [piece async for piece in blobs.read(name, start, end)]


async def content_of(blobs: Blobs, name: str, start: int = 0, end: int | None = None) -> bytes:
    return b"".join(await pieces(blobs, name, start, end))


async def nobody(names: list[str]) -> set[str]:
    return set()


def age(path: Path, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(path, (at, at))


# putting ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"x", LARGE], ids=["nothing", "one byte", "more than a piece"])
async def test_content_is_read_back_byte_for_byte(blobs: Blobs, directory: Path, content: bytes) -> None:
    blob = await blobs.put(content, PLENTY)
    assert blob == Blob(sha256(content), len(content))
    assert await content_of(blobs, blob.sha256) == content
    assert blobs.path(blob.sha256).read_bytes() == content
    assert kept(directory) == {blob.sha256}


@pytest.mark.parametrize("size", [1000, PIECE_BYTES, PIECE_BYTES + 1])
async def test_content_may_come_in_chunks_of_any_size(blobs: Blobs, size: int) -> None:
    blob = await blobs.put(in_chunks(LARGE, size), PLENTY)
    assert blob == Blob(sha256(LARGE), len(LARGE))
    assert await content_of(blobs, blob.sha256) == LARGE


async def test_only_the_user_of_the_process_may_read_the_files(blobs: Blobs, directory: Path) -> None:
    blob = await blobs.put(b"secret", PLENTY)
    assert (mode(directory), mode(directory / "lock"), mode(blobs.path(blob.sha256))) == (0o700, 0o600, 0o600)


async def test_the_same_content_is_on_the_disk_once(blobs: Blobs, directory: Path) -> None:
    put = await asyncio.gather(*[blobs.put(in_chunks(LARGE, 50_000), PLENTY) for _ in range(10)])
    assert len(set(put)) == 1
    assert kept(directory) == {put[0].sha256}
    assert await content_of(blobs, put[0].sha256) == LARGE


async def test_content_that_is_put_again_repairs_a_damaged_file(blobs: Blobs) -> None:
    blob = await blobs.put(b"precious", PLENTY)
    blobs.path(blob.sha256).write_bytes(b"prec")
    await blobs.put(b"precious", PLENTY)
    assert await content_of(blobs, blob.sha256) == b"precious"


async def test_the_bytes_are_synced_before_the_rename_and_the_directory_before_the_answer(
    blobs: Blobs, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[bool, bool]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        of_a_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append((of_a_directory, (directory / sha256(b"x")).exists()))

    make(directory)
    monkeypatch.setattr(os, "fsync", watched)
    await blobs.put(b"x", PLENTY)
    assert synced == [(False, False), (True, True)]


@pytest.mark.parametrize("chunk", [1000, len(LARGE)])
async def test_content_that_is_too_large_leaves_nothing_behind(blobs: Blobs, directory: Path, chunk: int) -> None:
    with pytest.raises(TooLarge, match=str(len(LARGE) - 1)):
        await blobs.put(in_chunks(LARGE, chunk), len(LARGE) - 1)
    assert kept(directory) == set()
    assert (await blobs.put(in_chunks(LARGE, chunk), len(LARGE))).size == len(LARGE)


async def test_content_that_is_too_large_is_not_read_to_its_end(blobs: Blobs) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b"x" * 10_000

    with pytest.raises(TooLarge):
        await blobs.put(endless(), 1_000_000)
    assert read * 10_000 < 1_000_000 + 2 * PIECE_BYTES


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_content_that_does_not_fit_on_the_disk_leaves_nothing_behind(blobs: Blobs, directory: Path) -> None:
    with no_file_larger_than(PIECE_BYTES), pytest.raises(StoreFull):
        await blobs.put(in_chunks(LARGE, 50_000), PLENTY)
    assert kept(directory) == set()
    assert (await blobs.put(LARGE, PLENTY)).size == len(LARGE)


async def test_a_disk_that_is_full_only_at_fsync_is_reported_as_full(
    blobs: Blobs, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    make(directory)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StoreFull, match="No space left"):
            await blobs.put(b"x", PLENTY)
    assert kept(directory) == set()


async def test_an_unusable_directory_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("a file")
    with pytest.raises(StoreUnavailable, match="in the way"):
        await Blobs(tmp_path / "in the way").put(b"x", PLENTY)


async def test_a_source_that_breaks_leaves_nothing_behind(blobs: Blobs, directory: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield LARGE
        raise ConnectionError("hung up")

    with pytest.raises(ConnectionError):
        await blobs.put(broken(), PLENTY)
    assert kept(directory) == set()


async def test_a_writer_that_is_cancelled_leaves_nothing_behind(blobs: Blobs, directory: Path) -> None:
    began = asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        yield LARGE
        began.set()
        await asyncio.get_running_loop().create_future()

    putting = asyncio.create_task(blobs.put(stalled(), PLENTY))
    await began.wait()
    assert len(kept(directory)) == 1
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert kept(directory) == set()


async def test_a_writer_cancelled_at_any_moment_leaves_all_or_nothing(blobs: Blobs, directory: Path) -> None:
    for moment in range(60):
        content = LARGE + bytes([moment])
        putting = asyncio.create_task(blobs.put(in_chunks(content, 100_000), PLENTY))
        await asyncio.sleep(moment / 20_000)
        putting.cancel()
        with suppress(asyncio.CancelledError):
            await putting
    for name in kept(directory):
        assert sha256((directory / name).read_bytes()) == name


@contextmanager
def held_up(directory: Path) -> Iterator[None]:
    """Hold the lock of the directory, as another process would."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


async def test_a_slow_disk_does_not_block_the_event_loop(blobs: Blobs, directory: Path) -> None:
    with held_up(directory):
        putting = asyncio.create_task(blobs.put(b"x", PLENTY))
        async with asyncio.timeout(5):
            while not kept(directory):  # noqa: ASYNC110 - a disk tells nobody
                await asyncio.sleep(0.001)
            for _ in range(50):
                await asyncio.sleep(0.001)
        assert not putting.done()
    assert (await putting).size == 1


async def test_all_work_on_the_disk_is_done_in_threads(
    blobs: Blobs, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[tuple[str, bool]] = set()

    def watched(name: str) -> None:
        function = getattr(os, name)

        def call(*arguments: object, **options: object) -> object:
            used.add((name, threading.current_thread() is threading.main_thread()))
            return function(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    for name in ("open", "mkdir", "rename", "fsync", "stat", "scandir", "unlink", "fdopen"):
        watched(name)
    blob = await blobs.put(LARGE, PLENTY)
    await content_of(blobs, blob.sha256)
    assert await swept(blobs, nobody, -1) == 1
    assert {name for name, _ in used} >= {"open", "rename", "fsync", "scandir", "unlink"}
    assert not [name for name, in_the_loop in used if in_the_loop]


# reading ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 0), (0, 1), (5, 9), (PIECE_BYTES - 1, PIECE_BYTES + 1), (len(LARGE) - 1, len(LARGE)), (17, None), (0, None)],
)
async def test_a_part_is_read_from_its_first_byte_to_its_last(blobs: Blobs, start: int, end: int | None) -> None:
    blob = await blobs.put(LARGE, PLENTY)
    assert await content_of(blobs, blob.sha256, start, end) == LARGE[start:end]


async def test_content_comes_in_pieces(blobs: Blobs) -> None:
    blob = await blobs.put(LARGE, PLENTY)
    assert [len(piece) for piece in await pieces(blobs, blob.sha256)] == [PIECE_BYTES, PIECE_BYTES, 17]


@pytest.mark.parametrize("name", ["0" * 64, "../../etc/passwd", "", "lock", "A" * 64])
async def test_unknown_content_is_not_found(blobs: Blobs, name: str) -> None:
    with pytest.raises(NotFound):
        await pieces(blobs, name)


async def test_truncated_content_raises_an_error(blobs: Blobs) -> None:
    blob = await blobs.put(LARGE, PLENTY)
    os.truncate(blobs.path(blob.sha256), PIECE_BYTES + 1)
    with pytest.raises(StoreCorrupt):
        await pieces(blobs, blob.sha256, 0, blob.size)


async def test_content_is_opened_only_if_all_of_it_is_there(blobs: Blobs) -> None:
    blob = await blobs.put(LARGE, PLENTY)
    with await blobs.open(blob.sha256, blob.size) as file:
        assert file.read() == LARGE
    os.truncate(blobs.path(blob.sha256), blob.size - 1)
    with pytest.raises(StoreCorrupt):
        await blobs.open(blob.sha256, blob.size)
    with pytest.raises(NotFound):
        await blobs.open("0" * 64, 1)


async def test_a_reader_gets_all_content_even_if_it_is_removed_meanwhile(blobs: Blobs) -> None:
    blob = await blobs.put(LARGE, PLENTY)
    async with aclosing(blobs.read(blob.sha256)) as reading:
        first = await anext(reading)
        assert await swept(blobs, nobody, -1) == 1
        assert first + b"".join([piece async for piece in reading]) == LARGE


# sweeping ---------------------------------------------------------------------------------------------------------------


async def test_old_content_without_a_reference_is_swept(blobs: Blobs, directory: Path) -> None:
    used, unused, young = [(await blobs.put(content, PLENTY)).sha256 for content in (b"used", b"unused", b"young")]
    for name in (used, unused):
        age(directory / name, HOUR + 1)

    async def in_use(names: list[str]) -> set[str]:
        assert set(names) == {used, unused}
        return {used}

    assert await swept(blobs, in_use, HOUR) == 1
    assert kept(directory) == {used, young}
    assert await swept(blobs, in_use, 2 * HOUR) == 0


async def test_old_drafts_of_dead_writers_are_swept(blobs: Blobs, directory: Path) -> None:
    await blobs.put(b"x", PLENTY)
    for name, seconds in (("draft-dead", HOUR + 1), ("draft-alive", 1), ("somebody else's", HOUR + 1)):
        (directory / name).write_text("half a file")
        age(directory / name, seconds)
    assert await swept(blobs, nobody, HOUR) == 1
    assert kept(directory) == {"draft-alive", "somebody else's", sha256(b"x")}


async def test_content_that_is_put_again_is_not_swept_as_old(blobs: Blobs, directory: Path) -> None:
    blob = await blobs.put(b"x", PLENTY)
    age(directory / blob.sha256, 2 * HOUR)
    await blobs.put(b"x", PLENTY)
    assert await swept(blobs, nobody, HOUR) == 0
    assert await content_of(blobs, blob.sha256) == b"x"


async def test_content_that_took_long_to_write_is_not_swept_as_old(blobs: Blobs, directory: Path) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield LARGE
        [draft] = kept(directory)
        age(directory / draft, 2 * HOUR)

    blob = await blobs.put(slow(), PLENTY)
    assert await swept(blobs, nobody, HOUR) == 0
    assert await content_of(blobs, blob.sha256) == LARGE


async def test_content_that_is_put_again_in_the_middle_of_a_sweep_is_kept(blobs: Blobs, directory: Path) -> None:
    """The sweep finds the content unused; then a writer puts it again; then the sweep comes to remove it."""
    blob = await blobs.put(b"x", PLENTY)
    age(directory / blob.sha256, 2 * HOUR)

    async def nobody_yet(names: list[str]) -> set[str]:
        await blobs.put(b"x", PLENTY)
        return set()

    assert await swept(blobs, nobody_yet, HOUR) == 0
    assert await content_of(blobs, blob.sha256) == b"x"


async def test_a_sweep_waits_for_a_writer_that_renames_the_content(blobs: Blobs, directory: Path) -> None:
    blob = await blobs.put(b"x", PLENTY)
    age(directory / blob.sha256, 2 * HOUR)
    with held_up(directory):
        sweeping = asyncio.create_task(swept(blobs, nobody, HOUR))
        await asyncio.sleep(0.05)
        assert not sweeping.done()
        os.utime(directory / blob.sha256)
    assert await sweeping == 0


async def test_concurrent_writers_and_sweeps_lose_no_content(blobs: Blobs) -> None:
    """Each content is put again just when it is old enough to be swept."""
    contents = (b"one", b"the other")

    async def put_in_turn() -> None:
        for number in range(60):
            content, other = contents[number % 2], contents[1 - number % 2]
            blob = await blobs.put(content, PLENTY)
            with suppress(FileNotFoundError):
                age(blobs.path(sha256(other)), 2 * HOUR)
            assert await content_of(blobs, blob.sha256) == content

    putting = asyncio.create_task(put_in_turn())
    count = 0
    while not putting.done():
        count += await swept(blobs, nobody, HOUR)
    await putting
    assert count


async def test_a_sweep_looks_up_references_in_batches(blobs: Blobs, directory: Path) -> None:
    make(directory)
    for number in range(SWEEP_BATCH * 2 + 1):
        (directory / sha256(str(number).encode())).touch()
    asked: list[int] = []

    async def in_use(names: list[str]) -> set[str]:
        asked.append(len(names))
        return set(names[:1])

    assert await swept(blobs, in_use, -1) == SWEEP_BATCH * 2 - 2
    assert asked == [SWEEP_BATCH, SWEEP_BATCH, 1]


async def test_a_sweep_without_a_directory_removes_nothing(blobs: Blobs) -> None:
    assert await swept(blobs, nobody, 0) == 0


# names ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "answer.txt", "größe 💥.json", "..hidden", "...", "a..b", "x" * 200, "'\"%$;"])
def test_a_name_may_be_any_file_name(name: str) -> None:
    assert checked_name("name", name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "/",
        "a\\b",
        "tab\there",
        "new\nline",
        "nul\x00",
        "x" * 201,
        "\u202etxt.exe",
        "\ud800",
        "\x7f",
    ],
)
def test_a_name_that_is_a_path_or_cannot_be_printed_is_refused(name: str) -> None:
    with pytest.raises(InvalidField, match="name"):
        checked_name("name", name)


# files ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(store: Store, blobs: Blobs) -> Files:
    return Files(store, blobs, UlidMaker())


async def read(files: Files, file: File, start: int = 0, end: int | None = None) -> bytes:
    return b"".join([piece async for piece in files.read(file, start, end)])


async def test_a_saved_file_can_be_found_and_read(files: Files, store: Store, clock: Clock) -> None:
    file = await files.save(TENANT, "a.txt", "text/plain", in_chunks(LARGE, 9999), job_id="job", purpose="batch")
    assert (file.name, file.media_type, file.size, file.sha256) == ("a.txt", "text/plain", len(LARGE), sha256(LARGE))
    assert (file.tenant, file.job_id, file.purpose, file.created_at) == (TENANT, "job", "batch", clock.now)
    assert await files.of_job("job", "a.txt") == await files.get(file.id, TENANT) == file
    assert await read(files, file) == LARGE
    assert await read(files, file, 3, 5) == LARGE[3:5]


async def test_a_file_that_is_refused_leaves_no_row_and_no_bytes(files: Files, store: Store, directory: Path) -> None:
    with pytest.raises(InvalidField, match="name"):
        await files.save(TENANT, "../a", "text/plain", b"x", purpose="batch")
    with pytest.raises(InvalidField, match="media_type"):
        await files.save(TENANT, "a", "text/plain\r\nset-cookie: x", b"x", purpose="batch")
    with pytest.raises(TooLarge):
        await files.save(TENANT, "a", "text/plain", b"xxx", purpose="batch", max_bytes=2)
    assert await store.list_files(FileFilter(TENANT)) == []
    assert kept(directory) == set()


async def test_a_file_whose_row_is_not_written_yet_survives_a_sweep(files: Files, blobs: Blobs) -> None:
    blob = await blobs.put(b"x", PLENTY)
    assert await files.sweep() == 0
    assert await content_of(blobs, blob.sha256) == b"x"


async def test_the_bytes_are_swept_after_the_last_file_that_refers_to_them(files: Files, directory: Path) -> None:
    one = await files.save(TENANT, "a", "text/plain", b"shared")
    two = await files.save("other", "b", "text/plain", b"shared")
    age(directory / one.sha256, 2 * HOUR)
    assert await files.sweep() == 0
    assert not await files.drop(one.id, "other")
    assert await files.drop(one.id, TENANT)
    assert await files.sweep() == 0
    assert await read(files, two) == b"shared"
    assert await files.drop(two.id)
    assert await files.sweep() == 1
    with pytest.raises(NotFound):
        await read(files, two)


async def test_the_bytes_of_a_pruned_job_are_swept(files: Files, store: Store, clock: Clock, directory: Path) -> None:
    job = await job_in(store, State.SUCCEEDED)
    file = await files.save(TENANT, "a", "text/plain", b"x", job_id=job.id)
    age(directory / file.sha256, 2 * HOUR)
    clock.advance(1000)
    assert await store.prune(OldJobs(100), 10) == 1
    assert await files.sweep() == 1
    assert kept(directory) == set()


async def test_a_file_of_a_job_saved_again_replaces_the_one_before(files: Files, store: Store, directory: Path) -> None:
    before = await files.save(TENANT, "a", "text/plain", b"before", job_id="job")
    after = await files.save(TENANT, "a", "text/plain", b"after", job_id="job")
    assert await store.list_files(FileFilter(job_id="job")) == [after]
    assert await read(files, after) == b"after"
    for name in (before.sha256, after.sha256):
        age(directory / name, 2 * HOUR)
    assert await files.sweep() == 1
    assert kept(directory) == {after.sha256}


async def test_a_reader_that_is_cancelled_while_its_file_is_opened_leaves_no_open_file(files: Files) -> None:
    file = await files.save(TENANT, "a.txt", "text/plain", b"bytes")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        reading = asyncio.create_task(anext(files.read(file)))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    async with asyncio.timeout(20):
        while len(os.listdir("/proc/self/fd")) > before:
            await asyncio.to_thread(int)  # wait for a thread, behind those that still open files


def test_a_reader_that_is_cancelled_twice_while_all_threads_are_busy_leaves_no_open_file(tmp_path: Path) -> None:
    blobs, before = Blobs(tmp_path / "files"), len(os.listdir("/proc/self/fd"))
    blob = asyncio.run(blobs.put(LARGE, PLENTY))
    free = threading.Event()

    async def cancel_twice() -> None:
        with ThreadPoolExecutor(1) as threads:
            asyncio.get_running_loop().set_default_executor(threads)
            content = blobs.read(blob.sha256)
            await anext(content)
            threads.submit(free.wait, 20)
            reading = asyncio.create_task(anext(content))
            for _ in range(2):
                await asyncio.sleep(0)
                reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            free.set()

    asyncio.run(cancel_twice())
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_loop_that_ends_while_a_thread_opens_a_file_leaves_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, before = Blobs(tmp_path / "files"), len(os.listdir("/proc/self/fd"))
    blob = asyncio.run(blobs.put(b"bytes", PLENTY))
    is_open, free = threading.Event(), threading.Event()

    def slow_fstat(descriptor: int, fstat: Callable[[int], os.stat_result] = os.fstat) -> os.stat_result:
        is_open.set()
        free.wait(20)
        return fstat(descriptor)

    monkeypatch.setattr(os, "fstat", slow_fstat)

    async def end_meanwhile() -> None:
        reading = asyncio.create_task(anext(blobs.read(blob.sha256)))
        await asyncio.to_thread(is_open.wait, 20)
        reading.cancel()
        asyncio.get_running_loop().call_later(0, free.set)

    asyncio.run(end_meanwhile())
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) == before
