"""Three nodes on a cluster of three PostgreSQLs lose nothing, whatever fails. `make test-ha` runs this.

CHARGEHAND_CHAOS_SEED repeats a run's random choices (a failure prints its seed).
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.e2e.receiver import Receiver
from tests.e2e.server import SECRET, Server
from tests.inference.conformance import Model, OllamaTarget

from .cluster import Cluster
from .faults import FAULTS, Fault, Scene
from .load import MODEL, SETTINGS
from .measure import Measured
from .relay import Relay
from .trial import survive

JOBS = 100  # before a fault, and again after it
SETTLED_WITHIN = 120.0
# What nodes promise on a machine that is not busy, in seconds.
WAIT, READY, BACK = 5.0, 1.0, 5.0
ROUNDING = 1.0  # producers pause, the database is watched ten times a second, and a claim waits before it begins
NODES = ("one", "two", "three")

pytestmark = [pytest.mark.ha, pytest.mark.timeout(900)]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver(SECRET) as receiver:
        yield receiver


@pytest.fixture
async def target() -> AsyncIterator[OllamaTarget]:
    async with OllamaTarget({MODEL: Model()}) as target:
        yield target


@pytest.fixture
async def scene(cluster: Cluster, tmp_path: Path, target: OllamaTarget) -> AsyncIterator[Scene]:
    """A whole cluster, with three nodes on an empty database in it. The last node reaches it through relays.

    The primary is the first in the URLs. So if it does not answer, it stands in the way to the others.
    """
    await cluster.heal()
    database = await cluster.create_database()
    primary = await cluster.primary()
    members = sorted(cluster.members, key=lambda member: member is not primary)
    settings = {**SETTINGS, "server_data_dir": tmp_path, "inference_targets": target.url}
    async with contextlib.AsyncExitStack() as stack:
        relays = [await stack.enter_async_context(Relay(member.port)) for member in members]
        direct = cluster.url(database, [member.port for member in members])
        urls = [direct, direct, cluster.url(database, [relay.port for relay in relays])]
        nodes = [Server(url, tmp_path, name, **settings) for url, name in zip(urls, NODES, strict=True)]
        for node in nodes:
            stack.push_async_exit(node)
            await node.spawn()
        for node in nodes:
            await node.ready(within=60)
        yield Scene(cluster, nodes, relays, [cluster.url(database, [member.port], target="any") for member in members])


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.what for fault in FAULTS])
async def test_nothing_is_lost_when(
    fault: Fault, scene: Scene, receiver: Receiver, random: Random, report: Callable[[str, Measured], None]
) -> None:
    happen = partial(fault.happen, scene)
    measured = await survive(
        scene.nodes,
        scene.databases,
        receiver,
        random,
        happen,
        scene.away,
        jobs=JOBS,
        within=SETTLED_WITHIN,
        models=True,
    )
    report(fault.what, measured)
    assert measured.settled <= SETTLED_WITHIN
    assert measured.wait <= (WAIT + ROUNDING) * measured.busy
    assert measured.ready <= (READY + ROUNDING) * measured.busy
    assert max(measured.back) <= (BACK + ROUNDING) * measured.busy
