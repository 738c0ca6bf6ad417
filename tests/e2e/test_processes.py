"""`chargehand serve --processes 2`: two nodes on one port, which may be killed, and a parent that may be killed too."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import aiohttp
import msgspec
import psutil  # type: ignore[import-untyped]
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.observability.test_supervisor import Ear

from .server import Server, eventually, has_ended
from .test_crash import Blow, post, survive

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.timeout(400)]
BOTH = {"1", "2"}
START_SECONDS = 60.0  # on a machine that is busy with other things too


async def test_processes_that_are_killed_under_load_lose_nothing(
    postgres_url: str, tmp_path: Path, random: Random
) -> None:
    async with Server(postgres_url, tmp_path, server_processes=2) as server:

        async def kill_one() -> None:
            random.choice(server.children()).kill()

        async def both_are_back() -> None:
            await eventually(lambda: two_serve(server), START_SECONDS, "the killed process was started anew")

        await both_are_back()
        blows: list[Blow] = [(kill_one, both_are_back)]
        await survive([server], blows, random, rounds=1)
        await a_waiting_connection_survives_the_process_that_did_not_accept_it(server)
        await both_are_back()
        assert server.log.count("a process ended") == 2
        await both_accept_jobs(server)
        await processes_end_with_their_parent(server)


async def a_waiting_connection_survives_the_process_that_did_not_accept_it(server: Server) -> None:
    one, two = server.children()
    one.suspend()
    two.suspend()
    async with aiohttp.ClientSession(server.url) as http, asyncio.TaskGroup() as group:
        # More than one, so that each process would have some if it had a queue of its own.
        waiting = [group.create_task(post(server, "/engine/jobs", queue="waiting", payload=n)) for n in range(8)]
        port = int(server.url.rpartition(":")[2])
        await eventually(lambda: waiting_connections(port) == len(waiting), 10, "the connections wait")
        one.kill()
        two.resume()
        await asyncio.gather(*waiting)
        async with http.get("/engine/jobs?queue=waiting") as response:
            assert len((await response.json())["jobs"]) == len(waiting)


def waiting_connections(port: int) -> int:
    """Return how many connections to the port no process has accepted yet."""
    found = psutil.net_connections("tcp")
    return sum(
        each.laddr.port == port and each.status == psutil.CONN_ESTABLISHED and each.pid is None for each in found
    )


async def both_accept_jobs(server: Server) -> None:
    async def accepted() -> bool:
        await asyncio.gather(*(post(server, "/engine/jobs", queue="spread", payload=1) for _ in range(8)))
        return set(await samples(server, "chargehand_moves_total", move="submit")) == BOTH

    await eventually(accepted, 20, "both processes have accepted jobs")


async def processes_end_with_their_parent(server: Server) -> None:
    children = server.children()
    await server.kill()
    await eventually(lambda: all(map(has_ended, children)), 15, "the processes have ended by themselves")
    await server.spawn()  # on the same port
    await server.ready(START_SECONDS)


async def test_the_parent_speaks_to_systemd_restarts_a_process_that_hangs_and_drains_all(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ear = Ear(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(ear.path))
    monkeypatch.setenv("WATCHDOG_USEC", "6000000")
    server = Server(postgres_url, tmp_path, server_processes=2, provisioning_enabled=False)
    monkeypatch.delenv("NOTIFY_SOCKET")
    with contextlib.closing(ear):
        async with server, listening(ear) as heard:
            await eventually(lambda: "READY=1" in heard, START_SECONDS, "systemd was told that the server is ready")
            assert await two_serve(server)  # the READY message promised it
            hung = server.children()[0]
            hung.suspend()
            await eventually(lambda: has_ended(hung), 30, "the process that hangs was killed")
            await eventually(lambda: two_serve(server), START_SECONDS, "it was started anew")
            children = server.children()
            async with asyncio.TaskGroup() as group:
                claims = [group.create_task(post_claim(server)) for _ in range(8)]
                await eventually(lambda: all_wait(server, len(claims)), 10, "the claims wait")
                server.terminate()
            assert [await claim for claim in claims] == [204] * len(claims)
            assert await server.exit_code(20) == 0
            assert all(map(has_ended, children))
            lines = [msgspec.json.decode(line) for line in server.log.splitlines() if line.startswith("{")]
            draining = [line for line in lines if line["event"] == "draining"]
            assert sorted(line["process"] for line in draining) == [1, 2]
            await eventually(lambda: "STOPPING=1" in heard, 5, "systemd was told that the server stops")
            assert heard.count("READY=1") == heard.count("STOPPING=1") == 1


async def test_what_keeps_the_processes_from_starting_is_said_once(postgres_url: str, tmp_path: Path) -> None:
    server = Server(postgres_url.replace("/test_", "/missing_"), tmp_path, server_processes=3)
    await server.spawn()
    assert await server.exit_code(START_SECONDS) == 2
    assert server.log.count("check user, password and database in store.url") == 1
    assert len(server.log.splitlines()) == 1


# Asking -------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def listening(ear: Ear) -> AsyncIterator[list[str]]:
    """Hear all messages: a socket that nobody reads takes only a few."""
    heard: list[str] = []

    async def listen() -> None:
        while True:
            heard.append(await ear.next())

    task = asyncio.create_task(listen())
    try:
        yield heard
    finally:
        task.cancel()


async def post_claim(server: Server) -> int:
    claim = {"queues": ["empty"], "wait_seconds": 60}
    async with aiohttp.ClientSession(server.url) as http, http.post("/engine/claims", json=claim) as response:
        return response.status


async def all_wait(server: Server, count: int) -> bool:
    return sum((await samples(server, "chargehand_claim_waiters")).values()) == count


async def two_serve(server: Server) -> bool:
    return len(server.children()) == 2 and set(await samples(server, "chargehand_store_up")) == BOTH


async def samples(server: Server, name: str, **labels: str) -> dict[str, float]:
    """Return the values of a metric by process, summed up over the other labels."""
    async with aiohttp.ClientSession(server.url, raise_for_status=True) as http, http.get("/metrics") as response:
        families = list(text_string_to_metric_families(await response.text()))
    assert len({family.name for family in families}) == len(families)
    found: dict[str, float] = {}
    for sample in (sample for family in families for sample in family.samples if sample.name == name):
        if labels.items() <= sample.labels.items():
            process = sample.labels["process"]
            found[process] = found.get(process, 0.0) + sample.value
    return found
