"""Three PostgreSQLs under Patroni with synchronous replication, on loopback and in a folder of their own."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import asyncpg

from tests.e2e.server import eventually

from .etcd import Etcd
from .member import Member

NAMES = ("p1", "p2", "p3")
ROLE = "chargehand"  # owns the databases of the nodes, and is no superuser
CONNECT_SECONDS = 3.0


class Cluster:
    def __init__(self, folder: Path) -> None:
        self._password = secrets.token_hex(16)
        self.etcd = Etcd(folder)
        self.members = [Member(name, folder / name, self.etcd.addresses, self._password) for name in NAMES]

    async def start(self) -> None:
        await self.etcd.start()
        for member in self.members:
            member.start()
        await self.healthy(within=120)
        async with self.session() as session:
            await session.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{self._password}'")

    def stop(self) -> None:
        for member in self.members:
            member.kill()
        self.etcd.stop()

    # what it is -------------------------------------------------------------------------------------------------------

    async def primary(self, within: float = 90, other_than: Member | None = None) -> Member:
        async def found() -> Member | None:
            candidates = [member for member in self.members if member is not other_than]
            for member, is_primary in zip(
                candidates, await asyncio.gather(*(member.is_primary() for member in candidates)), strict=True
            ):
                if is_primary:
                    return member
            return None

        primary: Member = await eventually(found, within, self._logs)
        return primary

    async def standby(self) -> Member:
        """Return the member that every commit waits for."""

        async def found() -> Member | None:
            for member in self.members:
                if (await member.ask("/synchronous"))[0] == 200:
                    return member
            return None

        standby: Member = await eventually(found, 60, self._logs)
        return standby

    async def healthy(self, within: float = 120) -> None:
        """Wait until there is a primary that has two standbys, one of which is synchronous."""

        async def complete() -> bool:
            for member in self.members:
                status, said = await member.ask("/cluster")
                if status == 200:
                    roles = sorted(each["role"] for each in said["members"])
                    states = {each["state"] for each in said["members"]}
                    return roles == ["leader", "replica", "sync_standby"] and states <= {"running", "streaming"}
            return False

        await eventually(complete, within, self._logs)

    def _logs(self) -> str:
        logs = "\n\n".join(f"{member.name}:\n{member.manager.log[-1500:]}" for member in self.members)
        return f"the cluster is as it should be:\n{logs}"

    # databases --------------------------------------------------------------------------------------------------------

    def url(self, database: str, ports: Iterable[int] = (), user: str = ROLE, target: str = "read-write") -> str:
        """Return the URL that names all members in their order, or what listens on these ports in their place."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports or (member.port for member in self.members))
        return f"postgresql://{user}:{self._password}@{hosts}/{database}?target_session_attrs={target}"

    async def create_database(self) -> str:
        name = f"test_{secrets.token_hex(4)}"
        async with self.session() as session:
            await session.execute(f"CREATE DATABASE {name} OWNER {ROLE}")
        return name

    @contextlib.asynccontextmanager
    async def session(self) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
        """Be the superuser, on the primary."""
        connection = await asyncpg.connect(self.url("postgres", user="postgres"), timeout=CONNECT_SECONDS)
        try:
            yield connection
        finally:
            connection.terminate()

    async def terminate_connections(self) -> None:
        async with self.session() as session:
            await session.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", ROLE)

    # what is done to it -----------------------------------------------------------------------------------------------

    async def switch_over(self) -> None:
        """Make the synchronous standby the primary, in an orderly way."""
        old, new = await self.primary(), await self.standby()
        status, said = await old.ask("/switchover", {"leader": old.name, "candidate": new.name})
        assert status == 200, said

    async def restart_primary(self) -> None:
        primary = await self.primary()
        status, said = await primary.ask("/restart", {})
        assert status == 200, said

    async def heal(self) -> None:
        """Start all that was killed, let all that was frozen go on, and wait until the cluster is whole."""
        for etcd in self.etcd.members:
            if not etcd.program.runs:
                etcd.program.start()
        for member in self.members:
            member.thaw()
            member.start()
        await self.healthy()
