"""Backup and restore with the commands of docs/operations.md as they are written, while the server works."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from tests.e2e.server import Server

PAGE = Path(__file__).parent.parent.parent / "docs/operations.md"
AUTHORS_FILE = b"what was kept with a job"


def commands(store: str, which: str) -> str:
    [block] = re.findall(rf"<!-- {store}: {which} -->\n```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(block)


def run(script: str, folder: Path, environ: dict[str, str], user: int | None = None) -> None:
    text = "set -eu\n" + script.replace(".venv/bin/python", sys.executable)
    done = subprocess.run(
        ["bash", "-c", text], cwd=folder, env=os.environ | environ, capture_output=True, timeout=60, user=user
    )
    assert done.returncode == 0, done.stderr.decode()


async def postgres_programs(url: str) -> Path:
    """Return the programs of the server's own version: an older pg_dump refuses a newer server."""
    connection = await asyncpg.connect(url)
    try:
        command = await connection.fetchval("SELECT setting FROM pg_config WHERE name = 'BINDIR'")
    finally:
        await connection.close()
    return Path(command)


class Caller:
    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self.accepted: list[str] = []

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        async with self._http.request(method, path, json=body) as response:
            assert response.status < 300, await response.text()
            return await response.json()

    async def submit(self) -> str:
        job = str((await self.call("POST", "/engine/jobs", {"queue": "q", "payload": len(self.accepted)}))["job_id"])
        self.accepted.append(job)
        return job

    async def claim(self) -> dict[str, Any]:
        [job] = (await self.call("POST", "/engine/claims", {"queues": ["q"], "wait_seconds": 10}))["jobs"]
        return dict(job)

    async def finish(self) -> str:
        job = await self.claim()
        await self.call("POST", f"/engine/jobs/{job['id']}/succeed", {"lease": job["lease"], "result": {"kept": True}})
        return str(job["id"])

    async def upload(self) -> str:
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", AUTHORS_FILE, filename="lines.jsonl")
        async with self._http.post("/v1/files", data=form) as response:
            assert response.status == 200, await response.text()
            return str((await response.json())["id"])

    async def keep_submitting(self, enough: asyncio.Event) -> None:
        while True:
            await self.submit()
            if len(self.accepted) > 20:
                enough.set()


@pytest.mark.xdist_group("processes")
async def test_a_restore_has_everything_that_was_acknowledged_before_the_backup(store_url: str, tmp_path: Path) -> None:
    store = "postgres" if store_url.startswith("postgresql:") else "sqlite"
    (tmp_path / "data").mkdir()
    url = store_url if store == "postgres" else "sqlite:///data/chargehand.db"
    environ = {"DATABASE": store_url}
    if store == "postgres":
        environ["PATH"] = f"{await postgres_programs(store_url)}:{os.environ['PATH']}"
    server = Server(url, tmp_path, provisioning_enabled=False)
    async with server, aiohttp.ClientSession(server.url) as http:
        caller = Caller(http)
        await caller.submit()
        finished = await caller.finish()
        file = await caller.upload()
        enough = asyncio.Event()
        busy = asyncio.create_task(caller.keep_submitting(enough))
        await enough.wait()
        before = list(caller.accepted)
        await asyncio.to_thread(run, commands(store, "backup"), tmp_path, environ)
        assert [path for path in (tmp_path / "backup").rglob("*") if path.stat().st_mode & 0o077] == []
        done = len(caller.accepted)
        assert done > len(before), "the server went on meanwhile"
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
        late = await caller.submit()
        await server.kill_with_writer()

        run(commands(store, "restore"), tmp_path, environ)

        await server.start()
        for job in before:
            assert (await caller.call("GET", f"/engine/jobs/{job}"))["state"] in ("queued", "succeeded")
        assert (await caller.call("GET", f"/engine/jobs/{finished}"))["result"] == {"kept": True}
        events = (await caller.call("GET", f"/engine/jobs/{finished}/events"))["events"]
        assert [event["move"] for event in events] == ["submit", "claim", "succeed"]
        async with http.get(f"/v1/files/{file}/content") as response:
            assert await response.read() == AUTHORS_FILE
        async with http.get(f"/engine/jobs/{late}") as response:
            assert response.status == 404, "it came after the backup"
        assert await caller.finish() in before, "and the work goes on, oldest first"
