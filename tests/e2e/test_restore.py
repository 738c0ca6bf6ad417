"""A PostgreSQL that was saved under load and restored elsewhere, with the commands of docs/operations.md as they are written:
a server on it has all that was acknowledged before, finishes it, and repeats webhooks under the ids that receivers know."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.store.given import sql

from .receiver import Delivery, Receiver
from .server import SECRET, Database, Server, eventually
from .test_backup import commands, postgres_programs, run

pytestmark = [pytest.mark.xdist_group("processes")]

SETTINGS = {"provisioning_enabled": False, "webhooks_timeout_seconds": 0.2}


class Callers:
    def __init__(self, server: Server, http: aiohttp.ClientSession, receiver: Receiver) -> None:
        self.accepted: list[str] = []
        self._url = server.url
        self._http = http
        self._receiver = receiver

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        async with self._http.request(method, self._url + path, json=body) as response:
            text = await response.text()
            assert response.status < 300, text
            return msgspec.json.decode(text or "{}")

    async def submit(self, queue: str, hook: str = "hook") -> str:
        webhook = {"url": f"{self._receiver.url}/{hook}", "on": ["succeeded"]}
        body = {"queue": queue, "payload": 1, "webhook": webhook}
        job_id = str((await self.call("POST", "/engine/jobs", body))["job_id"])
        self.accepted.append(job_id)
        return job_id

    async def claim(self, *queues: str) -> list[dict[str, Any]]:
        found = await self.call("POST", "/engine/claims", {"queues": queues, "wait_seconds": 1})
        return list(found.get("jobs", []))

    async def finish(self, *queues: str) -> None:
        for job in await self.claim(*queues):
            await self.call("POST", f"/engine/jobs/{job['id']}/succeed", {"lease": job["lease"]})

    async def submit_on(self) -> None:
        while True:
            await self.submit("busy")

    async def finish_on(self, *queues: str) -> None:
        while True:
            await self.finish(*queues)

    async def states(self, job_ids: list[str]) -> set[str]:
        return {(await self.call("GET", f"/engine/jobs/{job_id}"))["state"] for job_id in job_ids}


@contextlib.asynccontextmanager
async def meanwhile(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in done), done


class Story:
    """Jobs come and go all the time. A worker dies with one of them, and one has a webhook that is only accepted after the point."""

    def __init__(self, server: Server, http: aiohttp.ClientSession, receiver: Receiver) -> None:
        self._callers = Callers(server, http, receiver)
        self._http = http
        self._receiver = receiver
        self._accepting = False
        receiver.answer = self._answer

    async def _answer(self, delivery: Delivery) -> int:
        return 200 if self._accepting or not delivery.url.endswith("/later") else 500

    def _ids(self, job_id: str, among: list[Delivery]) -> set[str]:
        return {each.webhook_id for each in among if each.job_id == job_id}

    @contextlib.asynccontextmanager
    async def under_load(self) -> AsyncIterator[None]:
        """Let what is saved within begin: it must have all that was acknowledged up to here."""
        callers, receiver = self._callers, self._receiver
        held = await callers.submit("held")
        self._later = await callers.submit("busy", "later")
        async with meanwhile(callers.submit_on(), callers.finish_on("busy"), callers.finish_on("busy")):
            await eventually(lambda: len(receiver.taken) > 20, 20, "webhooks are delivered")
            await eventually(lambda: self._ids(self._later, receiver.received), 10, "one is not accepted")
            assert [job["id"] for job in await callers.claim("held")] == [held]
            self._before = list(callers.accepted)
            yield

    async def goes_on(self) -> None:
        """What happens now, nothing that was saved can know."""
        self._accepting = True
        await eventually(lambda: self._ids(self._later, self._receiver.taken), 10, "the webhook is accepted")
        self._late = await self._callers.submit("busy")

    async def continues(self, url: str, folder: Path) -> None:
        receiver = self._receiver
        deliveries = await sql(url, "SELECT id, job_id, seq, state FROM deliveries")
        known = {(job_id, seq): webhook_id for webhook_id, job_id, seq, _ in deliveries}
        done = {webhook_id for webhook_id, _, _, state in deliveries if state == "delivered"}
        assert done
        first = len(receiver.received)
        async with Server(url, folder, "restored", **SETTINGS) as server:
            callers = Callers(server, self._http, receiver)
            async with self._http.get(f"{server.url}/engine/jobs/{self._late}") as response:
                assert response.status == 404, await response.text()

            async def finished() -> bool:
                return await callers.states(self._before) == {"succeeded"}

            def told() -> set[str]:
                return {each.webhook_id for each in receiver.received[first:]}

            async with meanwhile(callers.finish_on("busy", "held")):
                await eventually(finished, 20, "all that was acknowledged before is finished")
            await eventually(lambda: told() >= set(known.values()) - done, 20, "what was due is sent")
        assert not told() & done
        assert self._ids(self._later, receiver.received) == {known[self._later, 3]}
        wrong = [
            each
            for each in receiver.received
            if known.get((each.job_id, each.sequence), each.webhook_id) != each.webhook_id
        ]
        assert not wrong


async def test_a_dump_that_is_taken_under_load_is_restored_into_an_empty_database(
    postgres_url: str, tmp_path: Path
) -> None:
    name = f"restored_{secrets.token_hex(6)}"
    await sql(postgres_url, f"CREATE DATABASE {name} TEMPLATE template1")
    server, _, options = postgres_url.partition("?")
    restored = f"{server.rpartition('/')[0]}/{name}?{options}"
    environ = {"PATH": f"{await postgres_programs(postgres_url)}:{os.environ['PATH']}"}
    async with Receiver(SECRET) as receiver, aiohttp.ClientSession() as http:
        async with Server(postgres_url, tmp_path, "saved", **SETTINGS) as node:
            story = Story(node, http, receiver)
            async with story.under_load():
                environ["DATABASE"] = postgres_url
                await asyncio.to_thread(run, commands("postgres", "backup"), tmp_path, environ)
            await story.goes_on()
        environ["DATABASE"] = restored
        await asyncio.to_thread(run, commands("postgres", "restore"), tmp_path, environ)
        await story.continues(restored, tmp_path)
    await sql(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


async def test_a_database_is_restored_to_a_point_in_time(tmp_path: Path) -> None:
    with TemporaryDirectory(prefix="chargehand-e2e-") as name:
        folder = Path(name)
        (folder / "main").mkdir()
        database = Database(folder / "main")
        os.chown(folder, -1 if database.uid is None else database.uid, -1)
        environ = {"DATABASE": database.url, "PATH": f"{database.programs}:{os.environ['PATH']}"}

        async def script(which: str) -> None:
            text = commands("postgres", which).replace("/var/backups/chargehand", str(folder / "backup"))
            text = text.replace("/var/lib/postgresql/restored", str(folder / "restored"))
            await asyncio.to_thread(run, text, folder, environ, database.uid)

        async def archived() -> list[Path]:
            return [file for file in (folder / "backup/wal").iterdir() if file.name >= segment]

        try:
            await database.start()
            await script("archiving")
            await database.stop_immediately()
            await database.start()
            async with Receiver(SECRET) as receiver, aiohttp.ClientSession() as http:
                async with Server(database.url, tmp_path, "saved", **SETTINGS) as node:
                    story = Story(node, http, receiver)
                    await script("base backup")
                    async with story.under_load():
                        [(segment,)] = await sql(database.url, "SELECT pg_walfile_name(pg_current_wal_lsn())")
                        await script("restore point")
                        await eventually(archived, 20, "the point is in the archive")
                    await story.goes_on()
                await database.kill()
                await script("point in time")
                database = Database(folder / "restored")
                await database.start()

                async def writable() -> bool:
                    return await sql(database.url, "SELECT pg_is_in_recovery()") == [(False,)]

                await eventually(writable, 20, "the recovery is over")
                await story.continues(database.url, tmp_path)
        finally:
            await database.kill()
