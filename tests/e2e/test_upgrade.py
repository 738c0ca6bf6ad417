"""The next version starts beside nodes of this one, under load: it migrates, and they write no more, or go on where it only expands."""

import re
import shutil
import sqlite3
import time
from contextlib import AsyncExitStack, closing
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import NamedTuple

import aiohttp
import asyncpg
import pytest

import chargehand
from chargehand.store.queries import load_migrations

from .load import Load, Refused
from .proof import prove
from .receiver import Receiver
from .server import SECRET, Server, eventually

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.chaos]

# All statements of this version would work on the next one's tables. What is written after the migration says by whom.
MIGRATION = """
ALTER TABLE job_events ADD COLUMN writer TEXT;
ALTER TABLE job_events ALTER COLUMN writer SET DEFAULT current_setting('chargehand.node', true);
ALTER TABLE delivery_tries ADD COLUMN writer TEXT;
ALTER TABLE delivery_tries ALTER COLUMN writer SET DEFAULT current_setting('chargehand.node', true);
"""
OF_SQLITE = "\nALTER TABLE jobs ADD COLUMN writer TEXT;\nALTER TABLE job_events ADD COLUMN writer TEXT;"
SETTINGS = {"webhooks_timeout_seconds": 0.2}  # and with it the lease of a webhook, for which the next node waits

REFUSED = (("POST", "/engine/jobs"), ("GET", "/engine/jobs"), ("GET", "/readyz"))


def next_version(folder: Path, *, expands: bool = False) -> int:
    """Copy the package there, with one migration more; return the migration's version."""
    package = folder / "chargehand"
    shutil.copytree(
        Path(chargehand.__file__).parent, package
    )  # compiled files too: to compile them again takes seconds
    last = load_migrations("postgres")[-1]
    version = last.version + 1
    heading = (
        f"-- oldest: {last.oldest}" if expands else ""
    )  # nobody who may work on this schema is refused by the next
    (package / f"store/sql/migrations/{version:04}_next.postgres.sql").write_text(heading + MIGRATION)
    (package / f"store/sql/migrations/{version:04}_next.sqlite.sql").write_text(heading + OF_SQLITE)
    return version


async def refuses(url: str, method: str, path: str, sentence: str) -> bool:
    """Say whether the node refuses with the sentence. It refuses in any case: during the migration since it cannot connect."""
    job = {"queue": "red", "payload": 1}
    async with aiohttp.ClientSession() as http, http.request(method, url + path, json=job) as response:
        assert response.status == 503, await response.text()
        assert int(response.headers["Retry-After"]) > 0 or path == "/readyz"
        said = await response.json()
        return f"{said['code']}: {said['detail']}".startswith(sentence)


async def written_by(url: str, table: str) -> set[str | None]:
    connection = await asyncpg.connect(url)
    try:
        return {row[0] for row in await connection.fetch(f"SELECT DISTINCT writer FROM {table}")}
    finally:
        await connection.close()


async def test_the_next_version_takes_over_from_running_nodes(
    postgres_url: str, tmp_path: Path, random: Random
) -> None:
    version = next_version(tmp_path / "next")
    here, there = f"{postgres_url}&chargehand.node=this", f"{postgres_url}&chargehand.node=next"
    newer = Server(there, tmp_path, "next", **SETTINGS)
    newer.environ["PYTHONPATH"] = str(tmp_path / "next")
    async with (
        Server(here, tmp_path, "one", **SETTINGS) as one,
        Server(here, tmp_path, "two", **SETTINGS) as two,
        Receiver(SECRET) as receiver,
        AsyncExitStack() as later,
    ):
        nodes = [one.url, two.url]
        load = Load(nodes, receiver.url, random, submitters=2, workers=6)  # a server must be able to start beside it
        receiver.answer = load.answer
        async with load.running():
            await eventually(lambda: len(load.ledger.claims) > 30, 20, "the older nodes work")
            await later.enter_async_context(newer)  # for longer than the load, which waits for its answers
            nodes.append(newer.url)
            sentence = f"store.too_new: the database is at schema version {version}; this version knows up to"
            for url, (method, path) in product((one.url, two.url), REFUSED):
                refused = partial(refuses, url, method, path, sentence)
                await eventually(refused, 5, f"{method} {path} is refused with the sentence")
            claims = len(load.ledger.claims)
            await eventually(lambda: len(load.ledger.claims) > claims + 30, 20, "the newer node works")
            nodes[:] = [newer.url]
            await load.settle(30)
        await prove(load, receiver, newer.url)
        assert [one.process.returncode, two.process.returncode] == [None, None]
    for table in ("job_events", "delivery_tries"):
        assert await written_by(postgres_url, table) == {None, "next"}
    [ended] = re.findall(r'"ended_sessions": ?(\d+)', newer.log)
    assert int(ended) > 2


class Restart(NamedTuple):
    began: float
    ended: float


async def restarted(node: Server, store_url: str, package: Path) -> Restart:
    """Stop the node and start the package in its place."""
    began = time.monotonic()
    node.terminate()
    assert await node.exit_code(60) == 0
    node.store_url = store_url
    node.environ["PYTHONPATH"] = str(package)
    await node.start()
    return Restart(began, time.monotonic())


def is_of(refused: Refused, restart: Restart) -> bool:
    return refused.began <= restart.ended and refused.ended >= restart.began


@pytest.mark.timeout(300)  # six starts of a server under load
async def test_three_nodes_are_upgraded_one_after_the_other_and_no_other_node_refuses_a_caller(
    postgres_url: str, tmp_path: Path, random: Random
) -> None:
    version = next_version(tmp_path / "next", expands=True)
    here, there = f"{postgres_url}&chargehand.node=this", f"{postgres_url}&chargehand.node=next"
    async with (
        Server(here, tmp_path, "one", **SETTINGS) as one,
        Server(here, tmp_path, "two", **SETTINGS) as two,
        Server(here, tmp_path, "three", **SETTINGS) as three,
        Receiver(SECRET) as receiver,
    ):
        nodes = [one, two, three]
        load = Load([node.url for node in nodes], receiver.url, random, submitters=2, workers=6)
        receiver.answer = load.answer
        async with load.running():
            await eventually(lambda: len(load.ledger.claims) > 30, 60, "the older nodes work")
            restarts = {one.url: await restarted(one, there, tmp_path / "next")}

            async def both_write() -> bool:
                return await written_by(postgres_url, "job_events") == {None, "this", "next"}

            await eventually(both_write, 60, "older nodes and the newer one write to the newer schema")
            for node in (two, three):
                restarts[node.url] = await restarted(node, there, tmp_path / "next")
            claims = len(load.ledger.claims)
            await eventually(lambda: len(load.ledger.claims) > claims + 30, 60, "the newer nodes work")
            await load.settle(60)
        await prove(load, receiver, one.url)
    assert [refused for refused in load.ledger.refused if not is_of(refused, restarts[refused.node])] == []
    assert not [refused for refused in load.ledger.refused if refused.reason == "503, Retry-After: None"]
    assert len(re.findall(rf'"expanding the database".*"to": ?{version}\b', one.log)) == 1
    assert not any("ended_sessions" in node.log for node in nodes[1:])


async def test_an_upgrade_of_a_file_that_only_expanded_it_can_be_taken_back(tmp_path: Path) -> None:
    next_version(tmp_path / "next", expands=True)
    server = Server(f"sqlite:///{tmp_path}/chargehand.db", tmp_path)
    this = server.environ
    newer = this | {"PYTHONPATH": str(tmp_path / "next")}
    async with aiohttp.ClientSession(server.url, raise_for_status=True) as http:
        for count, server.environ in enumerate((newer, this, newer), 1):
            async with server:
                await http.post("/engine/jobs", json={"queue": "red", "payload": count})
                async with http.get("/engine/jobs") as response:
                    assert len((await response.json())["jobs"]) == count
                server.terminate()
                assert await server.exit_code(60) == 0
    with closing(sqlite3.connect(tmp_path / "chargehand.db")) as db:
        assert db.execute("SELECT COUNT(*), COUNT(writer) FROM jobs").fetchone() == (3, 0)
