"""A server starts with exactly the command and the environment of each deployment, and accepts only authenticated callers."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from tests.deploy.asking import accepts_only_its_tokens, asking, read_token
from tests.deploy.places import Place, make_secrets, on_compose, on_kubernetes, on_systemd
from tests.e2e.server import free_port

PLACES: dict[str, Callable[[], Place]] = {
    "systemd": on_systemd,
    "compose": lambda: on_compose("node-1"),
    "kubernetes": on_kubernetes,
}
CHARGEHAND = str(Path(sys.executable).with_name("chargehand"))


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("name", PLACES)
async def test_a_server_starts_with_the_command_and_environment_of_its_deployment(
    name: str, tmp_path: Path, postgres_url: str
) -> None:
    place = PLACES[name]()
    secrets, data = tmp_path / "secrets", tmp_path / "data"
    make_secrets(secrets)
    data.mkdir()

    def here(text: str) -> str:
        return text.replace(place.secrets, str(secrets)).replace(place.data, str(data))

    if "CHARGEHAND_STORE_URL_FILE" in place.environ:
        (secrets / "store-url").write_text(f"{postgres_url}\n")
    address = f"127.0.0.1:{free_port()}"
    environ = {key: value for key, value in os.environ.items() if not key.startswith("CHARGEHAND_")}
    environ |= {key: here(value) for key, value in place.environ.items()}
    command = [CHARGEHAND, *map(here, place.command), "--listen", address, "--no-embedded-model"]
    server = await asyncio.create_subprocess_exec(*command, env=environ, cwd=data, stderr=PIPE)
    try:
        async with asking(f"http://{address}", str, within=20) as http:
            await accepts_only_its_tokens(http, secrets)
        if "CHARGEHAND_STORE_URL_FILE" in place.environ:
            assert await _tables(postgres_url) > 5
        else:
            assert (data / "chargehand.db").exists()
        server.terminate()
        _, said = await asyncio.wait_for(server.communicate(), 20)
        assert server.returncode == 0
        assert read_token(secrets, "operator") not in said.decode()
    finally:
        if server.returncode is None:
            server.kill()
            await server.communicate()


async def _tables(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"))
    finally:
        await connection.close()
