"""The next version starts beside nodes of this one, under load: it migrates, and they write no more."""

import re
import shutil
from contextlib import AsyncExitStack
from functools import partial
from itertools import product
from pathlib import Path
from random import Random

import aiohttp
import asyncpg
import pytest

import chargehand
from chargehand.store.queries import load_migrations

from .load import Load
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
SETTINGS = {"webhooks_timeout_seconds": 0.2}  # and with it the lease of a webhook, for which the next node waits

REFUSED = (("POST", "/engine/jobs"), ("GET", "/engine/jobs"), ("GET", "/readyz"))


def next_version(folder: Path) -> int:
    """Copy the package there, with one migration more; return the migration's version."""
    package = folder / "chargehand"
    shutil.copytree(
        Path(chargehand.__file__).parent, package
    )  # compiled files too: to compile them again takes seconds
    version = load_migrations("postgres")[-1].version + 1
    (package / f"store/sql/migrations/{version:04}_next.postgres.sql").write_text(MIGRATION)
    return version


async def refuses(url: str, method: str, path: str, sentence: str) -> bool:
    """Say whether the node refuses with the sentence. It refuses in any case: during the migration since it cannot connect."""
    job = {"queue": "red", "payload": 1}
    async with aiohttp.ClientSession() as http, http.request(method, url + path, json=job) as response:
        assert response.status == 503, await response.text()
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
