"""One member of the cluster: a PostgreSQL, and the Patroni that manages it."""

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import aiohttp
import psutil  # type: ignore[import-untyped]

from tests.e2e.server import free_port

from .programs import Program, family, give_away, postgres_folder

MAX_CONNECTIONS = 50
# The shortest that Patroni allows: a primary that is gone is replaced after `ttl` at the latest.
TIMES = {"ttl": 20, "loop_wait": 2, "retry_timeout": 3}


class Member:
    def __init__(self, name: str, folder: Path, etcd: list[str], password: str) -> None:
        self.name = name
        self.port = free_port()
        self._api = f"127.0.0.1:{free_port()}"
        self._data = folder / "data"
        folder.mkdir(mode=0o700)
        give_away(folder)
        config = folder / "patroni.json"  # JSON is YAML
        config.write_text(json.dumps(self._config(folder, etcd, password)))
        config.chmod(0o600)
        give_away(config)
        self.manager = Program(["patroni", str(config)], folder, "patroni")

    def _config(self, folder: Path, etcd: list[str], password: str) -> dict[str, Any]:
        address = f"127.0.0.1:{self.port}"
        accounts = {"superuser": "postgres", "replication": "replicator", "rewind": "rewinder"}
        return {
            "scope": "chargehand",
            "name": self.name,
            "restapi": {"listen": self._api, "connect_address": self._api},
            # Not its newer API: with that, Patroni 3.0.2 (Debian 12) takes the lock back from the new primary when the old one thaws.
            "etcd": {"hosts": etcd},
            "bootstrap": {
                "dcs": {
                    **TIMES,
                    # A commit is acknowledged when it is on two disks, and only a member that has it can become primary.
                    "synchronous_mode": True,
                    "synchronous_mode_strict": True,
                    "postgresql": {
                        "use_pg_rewind": True,
                        "parameters": {"max_connections": MAX_CONNECTIONS, "wal_keep_size": "128MB"},
                    },
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "data-checksums"],
            },
            "postgresql": {
                "listen": address,
                "connect_address": address,
                "data_dir": str(self._data),
                "bin_dir": str(postgres_folder()),
                "pgpass": str(folder / "pgpass"),
                "authentication": {kind: {"username": name, "password": password} for kind, name in accounts.items()},
                "parameters": {"unix_socket_directories": str(folder), "shared_buffers": "32MB"},
                "pg_hba": [
                    "host all all 127.0.0.1/32 scram-sha-256",
                    "host replication replicator 127.0.0.1/32 scram-sha-256",
                ],
            },
        }

    # what it is -------------------------------------------------------------------------------------------------------

    async def ask(self, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request to Patroni; a body makes it a POST. No answer is status 0."""
        method, patience = ("GET", 2) if body is None else ("POST", 60)
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=patience)) as http,
                http.request(method, f"http://{self._api}{path}", json=body) as response,
            ):
                text = await response.text()
                return response.status, json.loads(text) if text.startswith("{") else text
        except (aiohttp.ClientError, TimeoutError):
            return 0, None

    async def is_primary(self) -> bool:
        return self.manager.runs and (await self.ask("/primary"))[0] == 200

    def postgres(self) -> list[psutil.Process]:
        """Return the processes of PostgreSQL. Patroni does not have them as children: it may be replaced while they run."""
        try:
            pid = int((self._data / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, ValueError, IndexError):
            return []
        processes = family(pid)
        with contextlib.suppress(psutil.Error):
            # The file of a killed one stays, and its number may be somebody else's by now.
            if processes and str(self._data) in processes[0].cmdline():
                return processes
        return []

    # what is done to it -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        if not self.manager.runs:
            self.manager.start()

    def kill(self) -> None:
        """Kill PostgreSQL and Patroni, as a machine that loses its power."""
        self.manager.kill()
        self._signal(signal.SIGKILL)

    def freeze(self, *, manager: bool) -> None:
        if manager:
            self.manager.send(signal.SIGSTOP)
        for _ in range(2):  # again for those that were started while the first were stopped
            self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)
        if self.manager.runs:
            self.manager.send(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.postgres():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
