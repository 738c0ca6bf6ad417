"""Files are private whatever the directory, the umask and the version that created them. With a real server and umask 0."""

import asyncio
import base64
import hashlib
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.server import Server, eventually

pytestmark = pytest.mark.xdist_group("processes")


def open_files(folder: Path) -> dict[str, str]:
    """Return files that others may read or write, and directories of the server that others may enter."""
    found = {}
    for path in folder.rglob("*"):
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            continue
        if mode & 0o077:
            found[path.name] = stat.filemode(mode)
    return found


def a_server(data: Path) -> Server:
    server = Server(f"sqlite:///{data}/chargehand.db", data.parent, server_data_dir=data)
    server._command = ["sh", "-c", 'umask 0 && exec "$@"', "sh", *server._command]
    return server


@asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[dict[str, str]]:
    """Check many times for files open to others, and collect them."""
    seen: dict[str, str] = {}

    async def look() -> None:
        while True:
            seen.update(open_files(folder))
            await asyncio.sleep(0.002)

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()


async def test_no_file_of_the_server_can_be_read_by_others(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    async with watched(data) as seen, a_server(data) as server, aiohttp.ClientSession(server.url) as http:
        await use_every_way_to_the_disk(http)
        made = {path.relative_to(data).parts[0] for path in data.rglob("*")}
        sqlite = {f"chargehand.db{suffix}" for suffix in ("", "-wal", "-shm", ".lock")}
        assert made >= {*sqlite, "files", "registry", "provisioning.key"}
        assert open_files(data) == {}
    assert seen == {}
    assert stat.S_IMODE(data.stat().st_mode) == 0o755  # owned by the operator


async def use_every_way_to_the_disk(http: aiohttp.ClientSession) -> None:
    async def call(path: str, body: Any) -> Any:
        async with http.post(path, json=body) as response:
            assert response.status < 300, await response.text()
            return await response.json()

    task = await call("/v1/codeq/tasks", {"command": "c", "payload": {"secret": 1}})
    await call("/v1/codeq/tasks/claim", {"commands": ["c"]})
    artifact = {"name": "a.txt", "contentBase64": base64.b64encode(b"secret" * 9999).decode()}
    result = {"status": "COMPLETED", "result": {}, "artifacts": [artifact]}
    await call(f"/v1/codeq/tasks/{task['id']}/result", result)
    form = aiohttp.FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", b"{}", filename="lines.jsonl")
    async with http.post("/v1/files", data=form) as response:
        assert response.status == 200
    blob = b"of an image"
    digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
    async with http.post("/v2/os/linux/blobs/uploads/") as response:
        location = response.headers["Location"]
    async with http.put(location, params={"digest": digest}, data=blob) as response:
        assert response.status == 201
    async with http.post("/v2/os/linux/blobs/uploads/") as response:  # started, and never completed
        assert response.status == 202


async def test_files_of_an_older_version_are_made_private_at_the_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    async with a_server(data):
        pass
    data.chmod(0o755)
    for path in data.iterdir():
        if path.is_file():
            path.chmod(0o644)
    (data / "chargehand.db-wal").touch(0o644)  # as after a kill
    assert {"chargehand.db", "chargehand.db-wal", "provisioning.key"} <= open_files(data).keys()
    async with a_server(data):
        await eventually(lambda: not open_files(data), 10, lambda: f"still open: {open_files(data)}")
