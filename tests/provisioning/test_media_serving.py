"""Media as BMCs fetch them: over real sockets, in ranges, with signed URLs, and never a mixture of two versions."""

import asyncio
import contextlib
import hashlib
import http.client
import os
import socket
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
import uvloop

from chargehand.doors.provisioning.media.serving import MediaServer
from chargehand.doors.provisioning.media.source import SPAN_BYTES, MediaPart, MediaSource
from chargehand.doors.provisioning.media.urls import MediaUrls
from chargehand.errors import Forbidden
from chargehand.http.application import Application
from chargehand.http.connection import Bounds
from chargehand.http.request import Request
from chargehand.http.server import HttpServer
from chargehand.http.spans import PIECE_BYTES
from tests.conftest import Clock

T = TypeVar("T")
JOB = "01JZZZZZZZZZZZZZZZZZZZZZZZ"
KEY = b"k" * 32
HOUR = 3600.0
Note = tuple[str, str, int, int, bool]


class Everybody:
    async def admit(self, req: Request, scope: str | None) -> None:
        assert scope is None


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Served:
    """A media server in its own thread, on the event loop that the product uses."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self.sources: dict[str, MediaSource] = {}
        self.notes: list[Note] = []
        self.ended = threading.Event()
        self.urls = MediaUrls(KEY, lambda: f"http://127.0.0.1:{self.port}", clock)
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.server = HttpServer(Bounds(8192, 30, 30, 30, 100, 5, stall_seconds=1.0))
        app = Application(
            MediaServer(self.urls, self.find, self.fetched).routes(), Everybody(), lambda *_: lambda *_: None
        )
        self.call(self.server.start(app, "127.0.0.1", 0))
        self.port = self.server.addresses[0][1]

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout=20)

    async def find(self, job_id: str, name: str) -> MediaSource | None:
        return self.sources.get(name) if job_id == JOB else None

    def fetched(self, job_id: str, name: str, first: int, count: int, whole: bool) -> None:
        again = any(note[:3] == (job_id, name, first) for note in self.notes)
        self.notes.append((job_id, name, first, count, whole))
        if whole or again:
            self.ended.set()

    def put(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        self.source(name, [(path, 0, len(content))])
        return path

    def source(self, name: str, parts: list[MediaPart]) -> None:
        size = sum(length for _, _, length in parts)
        self.sources[name] = MediaSource(size, f'"{hashlib.sha256(name.encode()).hexdigest()}"', parts)

    def path(self, name: str) -> str:
        return urlsplit(self.urls.url(JOB, name, HOUR)).path

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, headers=named)
            answer = connection.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, told, answer.read())
        finally:
            connection.close()

    def get(self, name: str, method: str = "GET", **headers: str) -> Answer:
        return self.ask(self.path(name), method, **headers)

    def begun(self, name: str) -> socket.socket:
        """Return a connection that has sent its request and read nothing yet, with a small buffer."""
        asking = socket.socket()
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        asking.settimeout(20)
        asking.connect(("127.0.0.1", self.port))
        asking.sendall(f"GET {self.path(name)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return asking

    def stop(self) -> None:
        self.call(self.server.drain())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def served(tmp_path: Path, clock: Clock) -> Iterator[Served]:
    served = Served(tmp_path, clock)
    yield served
    served.stop()


def read_all(asking: socket.socket) -> bytes:
    pieces = []
    while piece := asking.recv(1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


def read_answer(asking: socket.socket, size: int, slow_seconds: float = 0.0) -> bytes:
    """Return the body of an answer, read slowly for a while."""
    with asking.makefile("rb", buffering=0) as reader:
        while read_line(reader) != b"\r\n":
            pass
        body, got = memoryview(bytearray(size)), 0
        until = time.monotonic() + slow_seconds
        while got < size:
            slow = time.monotonic() < until
            count = reader.readinto(body[got : got + 65536] if slow else body[got:])
            assert count, "the answer broke off"
            got += count
            if slow:
                time.sleep(0.02)
        return bytes(body)


def read_line(reader: socket.SocketIO) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += reader.read(1) or b"\n"
    return line


def eventually(happened: Any) -> None:
    until = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.01)


# What is served


def test_a_medium_is_served_whole_with_the_headers_that_bmcs_need(served: Served) -> None:
    content = os.urandom(3 * PIECE_BYTES + 17)
    served.put("task.iso", content)
    answer = served.get("task.iso")
    assert (answer.status, answer.body) == (200, content)
    assert answer.headers["content-length"] == str(len(content))
    assert answer.headers["content-type"] == "application/x-iso9660-image"
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["etag"] == served.sources["task.iso"].etag
    assert served.urls.url(JOB, "task.iso", HOUR).endswith("/task.iso")


def test_head_returns_the_same_headers_and_does_not_count_as_a_fetch(served: Served) -> None:
    served.put("task.iso", b"x" * 1000)
    answer, told = served.get("task.iso", "HEAD"), served.get("task.iso").headers
    assert (answer.status, answer.body) == (200, b"")
    assert {**answer.headers, "date": ""} == {**told, "date": ""}
    assert served.get("task.iso", "HEAD", Range="bytes=0-1").headers["content-length"] == "1000"
    eventually(lambda: len(served.notes) == 2)  # of the one GET


def test_ranges_are_served_and_those_outside_the_medium_are_refused(served: Served) -> None:
    content = os.urandom(2 * PIECE_BYTES)
    served.put("task.iso", content)
    size = len(content)
    for asked, start, end in (
        ("0-0", 0, 1),
        ("0-", 0, size),
        ("100-", 100, size),
        (f"{PIECE_BYTES - 1}-{PIECE_BYTES}", PIECE_BYTES - 1, PIECE_BYTES + 1),
        ("-2048", size - 2048, size),
        (f"0-{size * 9}", 0, size),
    ):
        part = served.get("task.iso", Range=f"bytes={asked}")
        assert (part.status, part.body) == (206, content[start:end]), asked
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
        assert part.headers["content-length"] == str(end - start)
    for asked in (f"{size}-", "5-2", "-0", "-", "x-y", "\xb2-\xb3"):
        refused = served.get("task.iso", Range=f"bytes={asked}")
        assert (refused.status, refused.headers["content-range"]) == (416, f"bytes */{size}"), asked
    for ignored in ("lines=0-3", "bytes=0-3,7-9"):
        assert served.get("task.iso", Range=ignored).body == content


def test_conditional_requests_are_honoured(served: Served) -> None:
    served.put("task.iso", b"0123456789")
    etag = served.sources["task.iso"].etag
    unchanged = served.get("task.iso", If_None_Match=f'"other", {etag}')
    assert (unchanged.status, unchanged.body) == (304, b"")
    assert served.get("task.iso", If_None_Match='"other"').body == b"0123456789"
    assert served.get("task.iso", Range="bytes=0-3", If_Range=etag).body == b"0123"
    assert served.get("task.iso", Range="bytes=0-3", If_Range='"other"').body == b"0123456789"


def test_a_medium_of_several_parts_reads_as_one_from_any_offset(served: Served) -> None:
    first, second = os.urandom(PIECE_BYTES + 5), os.urandom(700)
    (served.folder / "a").write_bytes(first)
    (served.folder / "b").write_bytes(second)
    parts: list[MediaPart] = [
        (served.folder / "a", 3, len(first) - 3),
        (bytes(100), 0, 100),
        (served.folder / "b", 0, 500),
        (b"trailer", 1, 6),
    ]
    served.source("both.iso", parts)
    whole = first[3:] + bytes(100) + second[:500] + b"railer"
    assert served.get("both.iso").body == whole
    edges = [0, 1, len(first) - 4, len(first) - 3, len(first) + 96, len(first) + 97, len(first) + 597, len(whole) - 1]
    for start in edges:
        for end in edges:
            if start <= end:
                assert served.get("both.iso", Range=f"bytes={start}-{end}").body == whole[start : end + 1]


def test_large_parts_read_as_one_from_any_offset(served: Served) -> None:
    first, second = os.urandom(3 * SPAN_BYTES + 5), os.urandom(2 * SPAN_BYTES)
    (served.folder / "a").write_bytes(first)
    (served.folder / "b").write_bytes(second)
    padding = bytes(PIECE_BYTES + 1)
    parts: list[MediaPart] = [
        (served.folder / "a", 3, len(first) - 3),
        (padding, 0, len(padding)),
        (served.folder / "b", 0, len(second)),
        (b"trailer", 0, 7),
    ]
    served.source("both.iso", parts)
    whole = first[3:] + padding + second + b"trailer"
    assert served.get("both.iso").body == whole
    middle = len(first) - 3 + len(padding)
    for start in (0, 1, PIECE_BYTES, SPAN_BYTES, middle - 1, middle):
        for end in (start + SPAN_BYTES, start + SPAN_BYTES + PIECE_BYTES, start + 2 * SPAN_BYTES, len(whole)):
            part = served.get("both.iso", Range=f"bytes={start}-{end - 1}")
            assert part.body == whole[start:end], (start, end)


def test_parts_that_do_not_make_up_the_size_are_refused() -> None:
    with pytest.raises(ValueError, match="do not make up"):
        MediaSource(10, '"x"', [(b"123", 0, 3)])
    with pytest.raises(ValueError, match="do not make up"):
        MediaSource(5, '"x"', [(b"123", 0, 5)])


def test_curl_resumes_an_interrupted_download(served: Served, curl: str) -> None:
    content = os.urandom(1 << 20)
    served.put("task.iso", content)
    half = served.folder / "half"
    half.write_bytes(content[:400_000])
    url = served.urls.url(JOB, "task.iso", HOUR)
    subprocess.run([curl, "-sSf", "-C", "-", "-o", half, url], check=True, timeout=20)
    assert half.read_bytes() == content


# Who is served


def test_a_url_is_valid_for_one_medium_of_one_job_only(served: Served) -> None:
    served.put("task.iso", b"x")
    served.put("other.iso", b"y")
    _, _, job_id, permit, name = served.path("task.iso").split("/")
    expiry, _, signature = permit.partition("-")
    for path in (
        f"/media/{job_id}/{permit}/other.iso",
        f"/media/01JYYYYYYYYYYYYYYYYYYYYYYY/{permit}/{name}",
        f"/media/{job_id}/{int(expiry) + 1}-{signature}/{name}",
        f"/media/{job_id}/0{expiry}-{signature}/{name}",
        f"/media/{job_id}/{expiry}-{signature[:-1]}/{name}",
        f"/media/{job_id}/{expiry}-{'A' * 24}/{name}",
        f"/media/{job_id}/{expiry}-{signature}%C3%A9/{name}",
        f"/media/{job_id}/-/{name}",
    ):
        for method in ("GET", "HEAD"):
            refused = served.ask(path, method)
            assert (refused.status, refused.headers["content-type"]) == (403, "application/problem+json"), path
    assert served.ask(f"/media/{job_id}/{permit}/..%2F{name}").status == 404
    assert served.ask(f"/media/{job_id}/{permit}/{name}").body == b"x"


def test_an_expired_url_is_refused_with_the_same_message_as_a_wrong_one(served: Served, clock: Clock) -> None:
    served.put("task.iso", b"x")
    path = served.path("task.iso")
    clock.advance(HOUR - 1)
    assert served.ask(path).status == 200
    clock.advance(1)
    expired = served.ask(path)
    assert expired.status == 403
    assert expired.body == served.ask(path.replace("-", "-x", 1)[:-10] + "/task.iso").body
    assert served.get("task.iso").status == 200


def test_a_missing_medium_is_not_found(served: Served) -> None:
    gone = served.put("gone.iso", b"x" * 100)
    gone.unlink()
    short = served.put("short.iso", b"x" * 100)
    short.write_bytes(b"x" * 99)
    served.source("half.iso", [(served.put("here.iso", b"here"), 0, 4), (gone, 0, 100)])
    for name in ("gone.iso", "short.iso", "half.iso", "unknown.iso"):
        for method in ("GET", "HEAD"):
            answer = served.get(name, method)
            assert answer.status == 404
            assert str(served.folder).encode() not in answer.body
    assert not served.notes


def test_urls_are_compared_without_their_permit(clock: Clock) -> None:
    urls = MediaUrls(KEY, lambda: "https://Controller.example:8484/prefix/", clock)
    one = urls.url(JOB, "task.iso", HOUR)
    clock.advance(7)
    other = urls.url(JOB, "task.iso", HOUR)
    assert one != other
    assert urls.same(one, other)
    assert urls.same(one, other.replace("Controller", "CONTROLLER"))
    assert not urls.same(one, urls.url(JOB, "maintenance.iso", HOUR))
    assert not urls.same(one, urls.url("01JYYYYYYYYYYYYYYYYYYYYYYY", "task.iso", HOUR))
    assert not urls.same(one, other.replace("https", "http"))
    assert urls.same("http://elsewhere/x.iso", "http://elsewhere/x.iso")
    assert not urls.same("http://elsewhere/x.iso", one)
    assert not urls.same("", one)


def test_our_urls_for_a_job_are_recognised_after_our_address_changed(clock: Clock) -> None:
    urls = MediaUrls(KEY, lambda: "https://old.example/prefix", clock)
    url = urls.url(JOB, "task.iso", 1.0)
    clock.advance(HOUR)
    moved = MediaUrls(KEY, lambda: "http://new.example:8484", clock)
    assert moved.is_ours(url, JOB)
    assert not moved.is_ours(url, "01JYYYYYYYYYYYYYYYYYYYYYYY")
    assert not moved.is_ours(url.replace("task", "other"), JOB)
    assert not MediaUrls(b"x" * 32, lambda: "", clock).is_ours(url, JOB)
    for other in ("", "http://[", "http://elsewhere/x.iso", f"http://new.example/media/{JOB}/1-x/task.iso", url + "?a"):
        assert not moved.is_ours(other, JOB)


def test_names_with_odd_characters_are_signed_and_found(served: Served, clock: Clock) -> None:
    for name in ("a b.iso", "ä.iso", "50%.iso", "-.iso"):
        served.put(name, name.encode())
        assert served.get(name).body == name.encode()
        assert served.urls.is_ours(served.urls.url(JOB, name, HOUR), JOB)
    with pytest.raises(Forbidden):
        served.urls.check(JOB, "\ud800", "\ud800")


# Who fetched what


def test_the_first_bytes_and_the_end_of_an_answer_are_reported(served: Served) -> None:
    """The caller stays connected: of one that hangs up with the last byte it is unknown whether it read all of it."""
    size = 2 * PIECE_BYTES + 5
    served.put("task.iso", bytes(size))
    for headers, told in (
        ({}, [(0, PIECE_BYTES, False), (0, size, True)]),
        ({"Range": "bytes=10-19"}, [(10, 10, False)] * 2),
        ({"Range": "bytes=0-9"}, [(0, 10, False)] * 2),
    ):
        served.notes.clear()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)) as connection:
            connection.request("GET", served.path("task.iso"), headers=headers)
            connection.getresponse().read()
            eventually(lambda: len(served.notes) == 2)  # the caller may have all of it before the end is recorded
        assert [note[2:] for note in served.notes] == told


def test_reading_stops_when_the_caller_disconnects(served: Served) -> None:
    size = 64 << 20
    path = served.folder / "large.iso"
    with path.open("wb") as file:
        file.truncate(size)
    served.source("large.iso", [(path, 0, size)])
    asking = served.begun("large.iso")
    asking.recv(1000)
    asking.close()
    assert served.ended.wait(10)
    assert served.notes[0][3:] == (PIECE_BYTES, False)
    assert served.notes[-1][3] < size
    assert not served.notes[-1][4]
    assert len(served.notes) == 2


# A reader that stops, a file that changes


def test_a_caller_that_stops_reading_is_cut_off_and_costs_bounded_memory(served: Served) -> None:
    size = 64 << 20
    path = served.folder / "large.iso"
    with path.open("wb") as file:
        file.truncate(size)
    served.source("large.iso", [(path, 0, size)])
    tracemalloc.start()
    try:
        began = time.monotonic()
        with served.begun("large.iso") as asking:
            assert served.ended.wait(10)
            assert 0.9 < time.monotonic() - began < 8
            peak = tracemalloc.get_traced_memory()[1]
            assert len(read_all(asking)) < size
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    assert not served.notes[-1][4]


def test_a_caller_that_reads_slowly_is_not_cut_off(served: Served) -> None:
    size = 16 << 20
    path = served.put("large.iso", os.urandom(size))
    with served.begun("large.iso") as asking:
        assert (
            read_answer(asking, size, slow_seconds=2.5) == path.read_bytes()
        )  # longer than the limit for a reader that stalls


@pytest.mark.parametrize("change", ["truncated", "overwritten"])
def test_a_file_that_changes_breaks_the_answer_off(served: Served, change: str) -> None:
    size = 32 << 20
    path = served.put("large.iso", os.urandom(size))
    with served.begun("large.iso") as asking:
        eventually(lambda: served.notes)
        if change == "truncated":
            os.truncate(path, size // 2)
        else:
            with path.open("r+b") as file:
                file.write(b"other")
        received = read_all(asking)
    assert b"content-length: %d" % size in received[:1000]
    assert len(received) < size
    assert served.ended.wait(10)
    assert not served.notes[-1][4]


def test_a_file_that_is_replaced_or_removed_does_not_disturb_its_readers(served: Served) -> None:
    content = os.urandom(32 << 20)
    path = served.put("large.iso", content)
    with served.begun("large.iso") as asking:
        eventually(lambda: served.notes)
        other = served.folder / "other"
        other.write_bytes(bytes(len(content)))
        other.rename(path)
        path.unlink()
        assert read_answer(asking, len(content)) == content


def test_no_file_stays_open(served: Served) -> None:
    def opened() -> int:
        links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        return sum(1 for link in links if link.exists() and link.resolve().parent == served.folder)

    path = served.put("task.iso", bytes(1 << 20))
    served.source("half.iso", [(path, 0, 1 << 20), (served.folder / "missing", 0, 1)])
    for name, headers in (
        ("task.iso", {}),
        ("task.iso", {"Range": "bytes=5-9"}),
        ("task.iso", {"Range": "bytes=9999999-"}),
        ("half.iso", {}),
    ):
        for method in ("GET", "HEAD"):
            served.get(name, method, **headers)
    eventually(lambda: not opened())
