"""The faults. Each is a function that lets something happen, waits while it lasts, and repairs what does not repair itself."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import asyncpg

from tests.e2e.server import Server

from .cluster import CONNECT_SECONDS, Cluster
from .load import LEASE_SECONDS
from .measure import Away
from .member import MAX_CONNECTIONS
from .relay import Relay

AWHILE = 5.0  # how long something is away that comes back by itself


@dataclass
class Scene:
    cluster: Cluster
    nodes: Sequence[Server]
    relays: Sequence[Relay]  # between the last node and the members of the cluster
    databases: Sequence[str]  # the database of the nodes, by the URL of each member
    away: list[Away] = field(default_factory=list)

    @contextlib.contextmanager
    def without(self, *nodes: int, silent: bool = False) -> Iterator[None]:
        """Note that these nodes cannot serve meanwhile."""
        began = time.time()
        yield
        self.away += [Away(node, silent, began, time.time()) for node in nodes]


@dataclass(frozen=True)
class Fault:
    what: str
    happen: Callable[[Scene], Awaitable[None]]


async def kill_primary(scene: Scene) -> None:
    old = await scene.cluster.primary()
    old.kill()
    await scene.cluster.primary(other_than=old)
    old.start()


async def kill_primary_twice(scene: Scene) -> None:
    first = await scene.cluster.primary()
    first.kill()
    second = await scene.cluster.primary(other_than=first)
    first.start()
    second.kill()
    # Its successor must be a member that has every commit. There may be none yet: then it comes back itself.
    await asyncio.sleep(AWHILE)
    second.start()
    await scene.cluster.primary()


async def switch_over(scene: Scene) -> None:
    await scene.cluster.switch_over()


async def restart_primary(scene: Scene) -> None:
    await scene.cluster.restart_primary()


async def freeze_primary(scene: Scene, *, manager: bool) -> None:
    primary = await scene.cluster.primary()
    primary.freeze(manager=manager)
    try:
        await scene.cluster.primary(other_than=primary)
        await asyncio.sleep(AWHILE)  # nodes find it while the old one is still frozen
    finally:
        primary.thaw()


async def exhaust_connections(scene: Scene) -> None:
    """Take every connection that the database has to give, also those that the nodes had."""
    url = scene.cluster.url("postgres")
    held: list[asyncpg.Connection[asyncpg.Record]] = []

    async def take_all() -> None:
        with contextlib.suppress(asyncpg.TooManyConnectionsError):
            while len(held) < MAX_CONNECTIONS:
                held.append(await asyncpg.connect(url, timeout=CONNECT_SECONDS))

    with scene.without(*range(len(scene.nodes))):
        try:
            await take_all()
            async with scene.cluster.session() as session:
                await session.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'test_%' AND backend_type = 'client backend'"
                )
            await take_all()
            await asyncio.sleep(AWHILE)
        finally:
            for connection in held:
                connection.terminate()


async def terminate_connections(scene: Scene) -> None:
    for _ in range(3):
        await scene.cluster.terminate_connections()
        await asyncio.sleep(0.5)


async def kill_node(scene: Scene, *, number: int) -> None:
    node = scene.nodes[number]
    with scene.without(number):
        await node.kill()
        await asyncio.sleep(AWHILE)
        await node.spawn()
        await node.ready(within=60)


async def cut_off_node(scene: Scene) -> None:
    with scene.without(len(scene.nodes) - 1):
        for relay in scene.relays:
            relay.cut()
        try:
            await asyncio.sleep(LEASE_SECONDS + AWHILE)
        finally:
            for relay in scene.relays:
                relay.mend()


async def stall_node(scene: Scene) -> None:
    pid = scene.nodes[0].process.pid
    with scene.without(0, silent=True):
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(LEASE_SECONDS + AWHILE)
        finally:
            os.kill(pid, signal.SIGCONT)


async def kill_standby(scene: Scene) -> None:
    standby = await scene.cluster.standby()
    standby.kill()
    await asyncio.sleep(AWHILE)
    standby.start()


async def kill_etcd_leader(scene: Scene) -> None:
    leader = await scene.cluster.etcd.leader()
    leader.program.kill()
    await asyncio.sleep(AWHILE)
    leader.program.start()


FAULTS = (
    Fault("the primary is killed with its Patroni", kill_primary),
    Fault("the primary is killed, and its successor right after the failover", kill_primary_twice),
    Fault("the primary is switched over", switch_over),
    Fault("the primary is restarted", restart_primary),
    Fault("the primary freezes", partial(freeze_primary, manager=False)),
    Fault("the primary freezes with its Patroni", partial(freeze_primary, manager=True)),
    Fault("somebody else takes all connections", exhaust_connections),
    Fault("all connections of the nodes are terminated", terminate_connections),
    Fault("the first node is killed", partial(kill_node, number=0)),
    Fault("the second node is killed", partial(kill_node, number=1)),
    Fault("the third node is killed", partial(kill_node, number=2)),
    Fault("a node is cut off from the database", cut_off_node),
    Fault("a node stalls for longer than a lease lasts", stall_node),
    Fault("the synchronous standby is killed", kill_standby),
    Fault("the leader of etcd is killed", kill_etcd_leader),
)
