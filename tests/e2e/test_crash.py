"""Processes are killed at random moments under load; afterwards nothing acknowledged may be missing or duplicated.

CHARGEHAND_CHAOS_ROUNDS says how often, CHARGEHAND_CHAOS_SEED repeats a run's random choices (a failure prints its seed).
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest

from .load import Load
from .proof import prove
from .receiver import Receiver, always
from .server import SECRET, Database, Server, eventually, has_ended

ROUNDS = int(os.environ.get("CHARGEHAND_CHAOS_ROUNDS", "4"))
SETTLE_SECONDS = 60.0

Blow = tuple[Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]  # a fault, and its repair

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.chaos,
    pytest.mark.timeout(120 + 15 * ROUNDS),
]


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/chargehand.db"


@pytest.fixture
def database() -> Iterator[Database]:
    with TemporaryDirectory(prefix="chargehand-e2e-") as folder:
        yield Database(Path(folder))


async def test_a_server_on_sqlite_that_is_killed_repeatedly_loses_nothing(
    sqlite_url: str, tmp_path: Path, random: Random
) -> None:
    async with Server(sqlite_url, tmp_path) as server:
        # One of three is killed again while it starts.
        blows = [(server.kill, server.start), (server.kill_with_writer, server.start), (server.kill, server.spawn)]
        await survive([server], blows, random)


async def test_nodes_on_one_postgres_that_are_killed_repeatedly_lose_nothing(
    postgres_url: str, tmp_path: Path, random: Random
) -> None:
    async with Server(postgres_url, tmp_path, "one") as one, Server(postgres_url, tmp_path, "two") as two:
        await survive([one, two], [(one.kill, one.spawn), (two.kill, two.spawn)], random)


async def test_nodes_survive_a_crash_of_their_database(database: Database, tmp_path: Path, random: Random) -> None:
    await database.start()
    try:
        async with Server(database.url, tmp_path, "one") as one, Server(database.url, tmp_path, "two") as two:
            before = [one.process.pid, two.process.pid]
            blows: list[Blow] = [(database.kill, database.start), (database.stop_immediately, database.start)]
            await survive([one, two], blows, random, rounds=max(1, ROUNDS // 2))
            assert [one.process.returncode, two.process.returncode] == [None, None]
            assert [one.process.pid, two.process.pid] == before
    finally:
        await database.kill()


async def test_a_server_whose_writer_died_stops_and_logs_why(sqlite_url: str, tmp_path: Path, random: Random) -> None:
    async with Server(sqlite_url, tmp_path) as server:

        async def kill_writer() -> None:
            [writer] = server.children()
            writer.kill()
            assert await server.exit_code(within=15) == 1
            assert f"the process that writes to SQLite (process {writer.pid}) ended with -9" in server.log

        await survive([server], [(kill_writer, server.spawn)], random, rounds=1)


async def test_a_writer_whose_server_died_ends_and_releases_the_file(sqlite_url: str, tmp_path: Path) -> None:
    async with Server(sqlite_url, tmp_path) as server:
        [writer] = server.children()
        await server.kill()
        await eventually(lambda: has_ended(writer), 10, "the writer has ended by itself")
        await server.start()


async def test_a_webhook_has_the_same_body_each_time_it_is_sent(sqlite_url: str, tmp_path: Path) -> None:
    """Whatever happened to the job and the server since the first try."""
    async with Receiver(SECRET) as receiver, Server(sqlite_url, tmp_path) as server:
        receiver.answer = always(500)
        webhook = {"url": f"{receiver.url}/hook", "on": ["failed"]}
        job_id = (await post(server, "/engine/jobs", queue="work", payload=1, webhook=webhook))["job_id"]
        [job] = (await post(server, "/engine/claims", queues=["work"]))["jobs"]
        await post(server, f"/engine/jobs/{job_id}/fail", lease=job["lease"], error="it cannot be done")
        await eventually(lambda: receiver.received, 5, "the webhook was sent")
        await server.kill()
        await server.start()
        await post(server, f"/engine/jobs/{job_id}/requeue")
        before = len(receiver.received)
        # The next copy may have been rendered before the job moved on, the one after it was not.
        await eventually(lambda: len(receiver.received) > before + 1, 10, "the webhook was sent twice more")
        receiver.answer = always(200)
        await eventually(lambda: receiver.taken, 5, "the webhook was taken")
    assert receiver.received[0].data["error"] == "it cannot be done"
    assert {(each.webhook_id, each.body) for each in receiver.received} == {
        (receiver.taken[0].webhook_id, receiver.taken[0].body)
    }


async def post(server: Server, path: str, **body: object) -> Any:
    async with (
        aiohttp.ClientSession(server.url, raise_for_status=True) as http,
        http.post(path, json=body) as response,
    ):
        return await response.json()


# The storm ----------------------------------------------------------------------------------------------------------


async def survive(servers: Sequence[Server], blows: Sequence[Blow], random: Random, rounds: int = ROUNDS) -> None:
    async with Receiver(SECRET) as receiver:
        load = Load([server.url for server in servers], receiver.url, random)
        receiver.answer = load.answer
        async with load.running():
            await storm(blows, random, rounds)
            for server in servers:
                await server.ready()
            await load.settle(SETTLE_SECONDS)
        await prove(load, receiver, servers[-1].url)


async def storm(blows: Sequence[Blow], random: Random, rounds: int) -> None:
    for _ in range(rounds):
        await asyncio.sleep(random.uniform(0.0, 2.0))
        strike, mend = random.choice(blows)
        await strike()
        await asyncio.sleep(random.choice((0.0, 0.0, random.uniform(0.0, 1.0))))
        await mend()
