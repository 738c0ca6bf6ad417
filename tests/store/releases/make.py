"""Make the databases of a release, from which every later one must be able to upgrade:

    python -m tests.store.releases.make .venv-of-the-release/bin/chargehand

It runs that server on both stores, sends it the requests of the story, kills it, and stores its data under the release's version:
SQLite's file, PostgreSQL's dump as SQL, and the files that jobs refer to. Run it once, when a release is made.
"""

import argparse
import asyncio
import gzip
import json
import os
import shutil
import subprocess
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import aiohttp
import apsw
from aiohttp import web

from tests.e2e.server import Database, eventually, free_port
from tests.inference.conformance import Model, OllamaTarget
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import Habits as BmcHabits
from tests.provisioning.guest import Guest, Script
from tests.provisioning.lab import MAINTENANCE
from tests.store.releases.story import HELD, KEY, OTHER_SERIAL, TOKENS, World, tell
from tests.webhooks.receiver import receiving

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("program", type=Path, help="`chargehand` of the release, in its own virtual environment")
    program = parser.parse_args().program.absolute()
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    kept = HERE / version
    kept.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="release-") as temporary:
        folder = Path(temporary)
        for name in ("sqlite", "postgres"):
            (folder / name).mkdir()
            (folder / name / "maintenance.iso").write_bytes(MAINTENANCE)
        asyncio.run(sqlite(program, folder / "sqlite", kept))
        asyncio.run(postgres(program, folder / "postgres", kept))


async def sqlite(program: Path, folder: Path, kept: Path) -> None:
    file = folder / "chargehand.db"
    await run(program, f"sqlite:///{file}", folder)
    compact = folder / "compact.db"
    with closing(apsw.Connection(str(file))) as connection:
        connection.set_busy_timeout(10_000)  # the server's writer is a process of its own, which ends a moment later
        connection.execute("VACUUM INTO ?", (str(compact),))
    packed(kept / "sqlite.db.gz", compact.read_bytes())
    keep_files(folder, kept)


async def postgres(program: Path, folder: Path, kept: Path) -> None:
    database_folder = Path(tempfile.mkdtemp(prefix="pg-"))  # a socket's path is short
    database = Database(database_folder)
    await database.start()
    try:
        await run(program, database.url, folder)
        options = ["--no-owner", "--no-privileges", "--inserts", "--rows-per-insert=100"]
        command = [str(database.programs / "pg_dump"), *options, database.url]
        dump = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)
        packed(kept / "postgres.sql.gz", b"".join(statements(dump.stdout)))
        keep_files(folder, kept)
    finally:
        await database.kill()
        shutil.rmtree(database_folder, ignore_errors=True)


def statements(dump: bytes) -> list[bytes]:
    """Return the lines of a dump without those that only pg_dump's own session or psql understands."""
    others = (b"--", b"\\", b"SET ", b"SELECT pg_catalog.set_config")
    return [line for line in dump.splitlines(keepends=True) if line.strip() and not line.startswith(others)]


def keep_files(folder: Path, kept: Path) -> None:
    (kept / "files").mkdir(exist_ok=True)
    for file in (folder / "data" / "files").iterdir():
        if file.name != "lock":
            shutil.copyfile(file, kept / "files" / file.name)


def packed(file: Path, content: bytes) -> None:
    file.write_bytes(gzip.compress(content, mtime=0))


async def run(program: Path, store_url: str, folder: Path) -> None:
    """Run the server with its surroundings until the story is complete."""
    async with surroundings() as world, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [str(program), "serve", "--listen", f"127.0.0.1:{port}", "--store", store_url]
        with (folder / "server.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command, env=environ(world), cwd=folder, stdin=DEVNULL, stdout=log, stderr=log
            )

        async def ready() -> bool:
            try:
                async with session.get(f"{url}/readyz") as response:
                    return response.status == 200
            except aiohttp.ClientError:
                return False

        try:
            await eventually(ready, 30, lambda: (folder / "server.log").read_text()[-2000:])
            await tell(url, session, world)
        except BaseException:
            print((folder / "server.log").read_text()[-5000:])
            raise
        finally:
            process.kill()  # jobs that run stay as they are
            await process.wait()


@asynccontextmanager
async def surroundings() -> AsyncIterator[World]:
    guest = Guest(Script(reports=False))
    async with (
        OllamaTarget({"ready": Model(), HELD: Model()}, parallel=2) as target,
        FakeBmc(on_boot=guest.boot) as bmc,
        FakeBmc(BmcHabits(serial=OTHER_SERIAL, uuid="11111111-2222-3333-4444-666666666666")) as other_bmc,
        receiving() as receiver,
    ):

        async def answer(request: web.BaseRequest) -> web.Response:
            if request.path.startswith("/later"):
                return web.Response(status=429, headers={"Retry-After": "3600"})
            return web.Response(status=500 if request.path == "/dead" else 200)

        receiver.otherwise = answer
        yield World(target, bmc, other_bmc, receiver)


def environ(world: World) -> dict[str, str]:
    here = {"name": "laptop", "url": world.target.url, "parallel": world.target.parallel, "models": ["ready", HELD]}
    away = {"name": "away", "url": "http://127.0.0.1:9"}
    settings: dict[str, object] = {
        "server_data_dir": "data",
        "auth_tokens": json.dumps(TOKENS),
        "webhooks_max_attempts": 2,
        "webhooks_backoff_base_seconds": 0.05,
        "inference_embedded": "off",
        "inference_targets": json.dumps([here, away]),
        "inference_probe_seconds": 0.25,
        "provisioning_maintenance_iso": "maintenance.iso",
        "provisioning_key": KEY,
        "provisioning_poll_seconds": 0.05,
        "provisioning_webhook_secret": "the shared secret of all machines",
        "webhooks_allow_networks": "127.0.0.0/8",
    }
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("CHARGEHAND_", "PYTHONPATH"))}
    return inherited | {f"CHARGEHAND_{key.upper()}": str(value) for key, value in settings.items()}


if __name__ == "__main__":
    main()
