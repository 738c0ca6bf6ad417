"""SIGTERM stops a server without failed requests, and a server that cannot start says why in one line."""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import asyncpg
import msgspec
import pytest

from chargehand.store import open_store

from .receiver import Delivery, Receiver, always, hang
from .server import SECRET, Server, eventually, has_ended

pytestmark = pytest.mark.xdist_group("processes")

DRAIN_SECONDS = 8  # 5 for requests, then webhooks, then the writer


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Path:
    return tmp_path / "chargehand.db"


@pytest.fixture
async def server(sqlite_file: Path, tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(f"sqlite:///{sqlite_file}", tmp_path) as server:
        yield server


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver(SECRET) as receiver:
        yield receiver


async def ask(server: Server, method: str, path: str, body: object = None) -> tuple[int, Any]:
    async with aiohttp.ClientSession(server.url) as http, http.request(method, path, json=body) as response:
        return response.status, await response.json() if response.status != 204 else None


async def submit(server: Server, receiver: Receiver | None = None) -> str:
    webhook = receiver and {"url": f"{receiver.url}/hook"}
    status, body = await ask(server, "POST", "/engine/jobs", {"queue": "work", "payload": 1, "webhook": webhook})
    assert status == 202
    job_id: str = body["job_id"]
    return job_id


class HalfSent:
    """A POST of whose body the server has all but the last byte."""

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, path: str, body: object) -> AsyncIterator[Self]:
        half = cls()
        parts, half.body = urlsplit(url), msgspec.json.encode(body)
        half.reader, half.writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            head = f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(half.body)}\r\n"
            half.writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
            assert b" 100 " in await half.reader.readuntil(b"\r\n\r\n")
            half.writer.write(half.body[:-1])
            yield half
        finally:
            half.writer.close()
            await half.writer.wait_closed()

    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def finish(self) -> int:
        self.writer.write(self.body[-1:])
        answer = await self.reader.read()
        return int(answer.split()[1])


async def drained(server: Server) -> None:
    """Send SIGTERM to server and writer, as systemd does, and return when no connection is accepted any more."""
    [writer] = server.children()
    writer.terminate()
    server.terminate()

    async def is_closed() -> bool:
        try:
            await ask(server, "GET", "/healthz")
        except aiohttp.ClientConnectionError:
            return True
        return False

    await eventually(is_closed, 5, "connections are refused")


# The end of a server ------------------------------------------------------------------------------------------------


async def test_a_waiting_claim_is_answered_at_once_when_the_server_drains(server: Server) -> None:
    claim = {"queues": ["empty"], "wait_seconds": 60}
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ask(server, "POST", "/engine/claims", claim))

        async def waits() -> bool:
            async with aiohttp.ClientSession(server.url) as http, http.get("/metrics") as response:
                return "chargehand_claim_waiters 1.0" in await response.text()

        await eventually(waits, 5, "the worker waits")
        server.terminate()
        async with asyncio.timeout(2):
            assert (await waiting)[0] == 204
    assert await server.exit_code(DRAIN_SECONDS) == 0


async def test_a_draining_server_answers_running_requests_and_gives_out_no_jobs(server: Server) -> None:
    [writer] = server.children()
    job_id = await submit(server)
    claim, job = {"queues": ["work"], "wait_seconds": 60}, {"queue": "other", "payload": 1}
    async with (
        HalfSent.open(server.url, "/engine/claims", claim) as claiming,
        HalfSent.open(server.url, "/engine/jobs", job) as submitting,
    ):
        await drained(server)
        assert await claiming.finish() == 204
        assert await submitting.finish() == 202
    assert await server.exit_code(DRAIN_SECONDS) == 0
    assert has_ended(writer)
    await server.start()
    _, page = await ask(server, "GET", "/engine/jobs")
    assert [(job["queue"], job["state"]) for job in page["jobs"]] == [("other", "queued"), ("work", "queued")]
    assert page["jobs"][1]["id"] == job_id
    assert page["jobs"][1]["sequence"] == 1


async def test_a_client_that_never_completes_its_request_is_cut_off(sqlite_file: Path, tmp_path: Path) -> None:
    async with Server(f"sqlite:///{sqlite_file}", tmp_path, server_drain_seconds=0.5) as server:
        async with HalfSent.open(server.url, "/engine/jobs", {"queue": "work", "payload": 1}):
            server.terminate()
            assert await server.exit_code(within=5) == 0
        assert "requests cut off" in server.log


async def test_a_draining_server_waits_for_a_webhook_in_flight(server: Server, receiver: Receiver) -> None:
    answered = asyncio.Event()

    async def when_told(_: Delivery) -> int:
        await answered.wait()
        return 200

    receiver.answer = when_told
    job_id = await submit(server, receiver)
    await eventually(lambda: receiver.received, 5, "a webhook is on its way")
    await drained(server)
    answered.set()
    assert await server.exit_code(DRAIN_SECONDS) == 0
    await server.start()
    _, page = await ask(server, "GET", f"/engine/deliveries?job={job_id}")
    assert [(delivery["state"], delivery["tries"]) for delivery in page["deliveries"]] == [("delivered", 1)]


async def test_a_webhook_without_an_answer_is_sent_again_after_the_restart(server: Server, receiver: Receiver) -> None:
    receiver.answer = hang
    job_id = await submit(server, receiver)
    await eventually(lambda: receiver.received, 5, "a webhook is on its way")
    server.terminate()
    assert await server.exit_code(DRAIN_SECONDS) == 0
    receiver.answer = always(200)
    await server.start()
    await eventually(lambda: receiver.taken, 5, "the webhook has arrived")
    assert {(delivery.job_id, delivery.webhook_id) for delivery in receiver.received} == {
        (job_id, receiver.taken[0].webhook_id)
    }


# A start that is refused --------------------------------------------------------------------------------------------


async def refusal(store_url: str, folder: Path) -> str:
    """Return the one line that a server which cannot start prints."""
    server = Server(store_url, folder, "refused")
    await server.spawn()
    assert await server.exit_code(within=15) == 2, server.log
    [line] = server.log.splitlines()
    assert line.startswith("chargehand: ")
    return line


@pytest.fixture
async def left_file(sqlite_file: Path) -> Path:
    """Create the file of an earlier server."""
    store = await open_store(f"sqlite:///{sqlite_file}")
    await store.close()
    with closing(sqlite3.connect(sqlite_file)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return sqlite_file


def content(file: Path) -> bytes:
    return file.read_bytes()


def overwrite(file: Path, kept_bytes: int) -> None:
    file.write_bytes(content(file)[:kept_bytes].ljust(file.stat().st_size, b"\xa5"))


async def test_a_second_server_on_the_same_file_does_not_start(
    server: Server, sqlite_file: Path, tmp_path: Path
) -> None:
    line = await refusal(f"sqlite:///{sqlite_file}", tmp_path)
    assert f"another server (process {server.process.pid}) is using {sqlite_file}" in line
    assert "stop the other process, or use another file with --store" in line
    await submit(server)


async def test_a_file_of_a_newer_version_is_refused_and_not_changed(left_file: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(left_file)) as db, db:
        db.execute("INSERT INTO schema_migrations (version, name, applied_at) VALUES (9999, 'of the future', 0)")
    before = content(left_file)
    line = await refusal(f"sqlite:///{left_file}", tmp_path)
    assert "the database is at schema version 9999" in line
    assert "start the newer version of chargehand" in line
    assert content(left_file) == before


async def test_a_postgres_of_a_newer_version_is_refused(postgres_url: str, tmp_path: Path) -> None:
    store = await open_store(postgres_url)
    await store.close()
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(
        "INSERT INTO schema_migrations (version, name, applied_at) VALUES (9999, 'of the future', 0)"
    )
    await connection.close()
    line = await refusal(postgres_url, tmp_path)
    assert "the database is at schema version 9999" in line
    assert "start the newer version of chargehand" in line


@pytest.mark.parametrize("kept_bytes", [0, 4096], ids=["no database at all", "nothing but the first page"])
async def test_a_damaged_file_is_refused_and_not_changed(left_file: Path, tmp_path: Path, kept_bytes: int) -> None:
    overwrite(left_file, kept_bytes)
    before = content(left_file)
    line = await refusal(f"sqlite:///{left_file}", tmp_path)
    assert "restore the file from a backup; this one is left as it is" in line
    assert content(left_file) == before


def unwritable(folder: Path) -> Path:
    """Return a directory that even root cannot write: /proc."""
    place = folder / "read-only"
    place.mkdir(mode=0o500)
    return Path("/proc") if os.access(place, os.W_OK) else place


async def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    place = unwritable(tmp_path)
    line = await refusal(f"sqlite:///{place}/chargehand.db", tmp_path)
    assert f"{place}/chargehand.db" in line
    assert "check the directory, its permissions and the disk" in line


async def test_a_directory_that_cannot_be_created_is_refused(left_file: Path, tmp_path: Path) -> None:
    line = await refusal(f"sqlite:///{left_file}/chargehand.db", tmp_path)
    assert f"cannot make the directory {left_file}" in line
    assert "check the directory, its permissions and the disk" in line


async def test_the_file_of_a_stopped_server_is_complete_without_its_write_ahead_log(
    server: Server, sqlite_file: Path, tmp_path: Path
) -> None:
    """So a copy of this one file is a full backup."""
    job_id = await submit(server)
    server.terminate()
    assert await server.exit_code(DRAIN_SECONDS) == 0
    backup = tmp_path / "backup.db"
    shutil.copy(sqlite_file, backup)
    with closing(sqlite3.connect(backup)) as db:
        assert db.execute("SELECT id FROM jobs").fetchall() == [(job_id,)]
