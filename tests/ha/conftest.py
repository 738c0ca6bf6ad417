"""The cluster, which is started once and healed before every fault, and the table at the end of the run."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .cluster import Cluster
from .programs import give_away, missing
from .trial import Measured

ROWS = pytest.StashKey[list[tuple[str, Measured]]]()


def _interrupt(_number: int, _frame: object) -> None:
    """Let a SIGTERM end the run as a Ctrl-C does, so that nothing of the cluster is left behind."""
    raise KeyboardInterrupt


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if lacking := missing():
        pytest.fail(lacking, pytrace=False)
    before = signal.signal(signal.SIGTERM, _interrupt)
    # Not below pytest's folders, which only their owner can enter.
    with TemporaryDirectory(prefix="chargehand-ha-") as folder:
        give_away(Path(folder))
        cluster = Cluster(Path(folder))
        try:
            asyncio.run(cluster.start())
            yield cluster
        finally:
            cluster.stop()
            signal.signal(signal.SIGTERM, before)


@pytest.fixture
def report(pytestconfig: pytest.Config) -> Callable[[str, Measured], None]:
    """Add a line to the table at the end."""
    rows = pytestconfig.stash.setdefault(ROWS, [])
    return lambda fault, measured: rows.append((fault, measured))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if rows := config.stash.get(ROWS, []):
        terminalreporter.section("faults, times in seconds")
        line = "{:<66} {:>5} {:>8} {:>8} {:>8}".format
        terminalreporter.write_line(line("", "", "longest", "settled", "longest"))
        terminalreporter.write_line(line("fault", "jobs", "pause", "after", "wait"))
        for fault, measured in rows:
            seconds = (f"{each:.1f}" for each in measured[1:])
            terminalreporter.write_line(line(fault, measured.jobs, *seconds))
