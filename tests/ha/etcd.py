"""Three members of etcd, where Patroni keeps who is the primary."""

from pathlib import Path

import aiohttp

from tests.e2e.server import eventually, free_port

from .programs import Program, give_away

NAMES = ("e1", "e2", "e3")


class EtcdMember:
    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.address = f"127.0.0.1:{free_port()}"
        self.peer = f"http://127.0.0.1:{free_port()}"
        self._folder = folder

    def prepare(self, peers: str) -> None:
        self._folder.mkdir(mode=0o700)
        give_away(self._folder)
        url = f"http://{self.address}"
        options = {
            "name": self.name,
            "data-dir": self._folder / "data",
            "listen-client-urls": url,
            "advertise-client-urls": url,
            "listen-peer-urls": self.peer,
            "initial-advertise-peer-urls": self.peer,
            "initial-cluster": peers,
            "enable-v2": "true",  # member.py says why
            "heartbeat-interval": 200,  # milliseconds; this and the next are longer than usual, for busy machines
            "election-timeout": 2000,
        }
        self.program = Program(
            ["etcd", *(f"--{option}={value}" for option, value in options.items())], self._folder, "etcd"
        )

    async def leads(self, http: aiohttp.ClientSession) -> bool:
        try:
            async with http.post(f"http://{self.address}/v3/maintenance/status", json={}) as response:
                said = await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return False
        return bool(said.get("leader")) and said["leader"] == said["header"]["member_id"]


class Etcd:
    def __init__(self, folder: Path) -> None:
        self.members = [EtcdMember(name, folder / name) for name in NAMES]
        peers = ",".join(f"{member.name}={member.peer}" for member in self.members)
        for member in self.members:
            member.prepare(peers)

    @property
    def addresses(self) -> list[str]:
        return [member.address for member in self.members]

    async def start(self) -> None:
        for member in self.members:
            member.program.start()
        await self.leader()

    def stop(self) -> None:
        for member in self.members:
            member.program.kill()

    async def leader(self, within: float = 30) -> EtcdMember:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:

            async def found() -> EtcdMember | None:
                for member in self.members:
                    if member.program.runs and await member.leads(http):
                        return member
                return None

            leader: EtcdMember = await eventually(
                found, within, lambda: f"etcd has a leader:\n{self.members[0].program.log[-2000:]}"
            )
            return leader
