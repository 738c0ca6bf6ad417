"""The messages to systemd, received on a socket like systemd's."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chargehand.observability.supervisor import Supervisor
from tests.e2e.server import Server

BEAT_MICROSECONDS = 200_000  # systemd's watchdog timeout


class Ear:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(path))

    async def next(self) -> str:
        async with asyncio.timeout(20):
            return (await asyncio.get_running_loop().sock_recv(self._socket, 4096)).decode()

    async def until(self, word: str) -> list[str]:
        heard = [await self.next()]
        while heard[-1] != word:
            heard.append(await self.next())
        return heard

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
async def ear(tmp_path: Path) -> AsyncIterator[Ear]:
    opened = Ear(tmp_path / "notify")
    yield opened
    opened.close()


@pytest.mark.xdist_group("processes")
async def test_a_server_notifies_systemd_that_it_is_ready_alive_and_stopping(
    ear: Ear, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(ear.path))
    monkeypatch.setenv("WATCHDOG_USEC", str(BEAT_MICROSECONDS))
    server = Server(f"sqlite:///{tmp_path}/chargehand.db", tmp_path)
    await server.spawn()
    try:
        await ear.until("READY=1")
        await server.ready(within=1)  # the READY message promised it
        assert [await ear.next() for _ in range(3)] == ["WATCHDOG=1"] * 3
        server.terminate()
        await ear.until("STOPPING=1")
        assert await server.exit_code(20) == 0
    finally:
        if server.process.returncode is None:
            await server.kill()


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_watchdog_messages_come_twice_per_timeout_and_only_from_the_watched_process(
    environ: dict[str, str], seconds: float
) -> None:
    assert Supervisor(environ, pid=7).beat_seconds == seconds


async def test_an_abstract_address_begins_with_an_at_sign() -> None:
    name = f"chargehand-{id(object())}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(5)
        Supervisor({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert listening.recv(100) == b"READY=1"


def test_the_server_goes_on_if_systemd_cannot_be_notified(tmp_path: Path) -> None:
    Supervisor({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).ready()
    Supervisor({}).ready()
