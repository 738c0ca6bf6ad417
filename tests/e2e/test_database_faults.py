"""Two nodes lose nothing when their PostgreSQL is killed, freezes, or terminates their connections.

The short form of `make test-ha`, which has the same load and checker on a cluster. CHARGEHAND_CHAOS_ROUNDS says how often,
CHARGEHAND_CHAOS_SEED repeats a run's random choices (a failure prints its seed).
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from tests.ha.load import SETTINGS
from tests.ha.trial import survive

from .receiver import Receiver
from .server import SECRET, Database, Server

ROUNDS = int(os.environ.get("CHARGEHAND_CHAOS_ROUNDS", "3"))
JOBS = 20  # before the first fault, and after the last
WITHIN = 60.0
FROZEN_SECONDS = 2.0

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.chaos,
    pytest.mark.timeout(180 + 15 * ROUNDS),
]


@pytest.fixture
def database() -> Iterator[Database]:
    with TemporaryDirectory(prefix="chargehand-e2e-") as folder:
        yield Database(Path(folder))


async def test_nothing_is_lost_when_the_database_is_killed_freezes_or_terminates_connections(
    database: Database, tmp_path: Path, random: Random
) -> None:
    async def kill() -> None:
        await database.kill()
        await database.start()

    async def freeze() -> None:
        await database.freeze(FROZEN_SECONDS)

    faults: Sequence[Callable[[], Awaitable[None]]] = (kill, freeze, database.terminate_connections)

    async def storm() -> None:
        """Let one happen in each round, all equally often."""
        for fault in islice(cycle(random.sample(faults, len(faults))), ROUNDS):
            await fault()
            await asyncio.sleep(random.uniform(0.2, 1.0))

    await database.start()
    settings = {**SETTINGS, "server_data_dir": tmp_path}
    try:
        async with (
            Receiver(SECRET) as receiver,
            Server(database.url, tmp_path, "one", **settings) as one,
            Server(database.url, tmp_path, "two", **settings) as two,
        ):
            print(await survive([one, two], [database.url], receiver, random, storm, jobs=JOBS, within=WITHIN))
    finally:
        await database.kill()
