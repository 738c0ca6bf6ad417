"""The BMC of the tests in its own process: it keeps its state when it is killed, and runs a program at each boot."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import aiohttp

from chargehand.doors.provisioning.redfish.facts import Bmc
from chargehand.doors.provisioning.redfish.machine import Machine
from tests.provisioning.bmc_habits import PASSWORD, USER
from tests.provisioning.machines import LOCAL

ISO = "http://media.example/job-1/maintenance.iso"
TELLER = (
    "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).sendall(sys.stdin.buffer.read())"
)


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.provisioning.bmc", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            yield json.loads(await process.stdout.readline())["url"], process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


def machine(url: str) -> Machine:
    return Machine(Bmc(url, USER, PASSWORD, "SN-1"), policy=LOCAL, timeout_seconds=5, random=Random(7))


async def told(url: str) -> dict[str, object]:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/_bmc") as response:
        plain: dict[str, object] = await response.json()
        return plain


async def test_a_killed_bmc_process_keeps_its_state_and_boots_the_inserted_image(tmp_path: Path) -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.set_result(await reader.read())
        writer.close()

    habits = json.dumps({"slots": [["Cd1", ["CD"]]], "power": "On"})
    given = ("--state", str(tmp_path / "state.json"), "--habits", habits)
    async with running(*given) as (url, process), machine(url) as it:
        facts = await it.discover()
        await it.insert(facts.cds[0], ISO)
        await it.boot_from_cd(facts.cds[0])
        process.kill()
        await process.wait()
    async with await asyncio.start_server(hear, "127.0.0.1", 0) as server:
        port = str(server.sockets[0].getsockname()[1])
        async with (
            running(*given, "--boot-command", sys.executable, "-c", TELLER, port) as (url, _),
            machine(url) as it,
        ):
            await it.resume(facts)
            assert await it.reset() == "ForceRestart"
            boot = json.loads(await heard)
            assert (await told(url))["counts"] == {"session": 2, "insert": 1, "override": 1, "reset": 1}
    assert (boot["images"], boot["cd"], boot["number"]) == ({"Cd1": ISO}, True, 1)
