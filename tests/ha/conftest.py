"""The cluster, which is started once and healed before every fault, and the table at the end of the run."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .cluster import Cluster
from .measure import Measured
from .programs import give_away, missing

LINE = ("{:<66} {:>5}" + " {:>7}" * 9).format
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
        terminalreporter.write_line(LINE("", "", "no", "longest", "", "back", "", "", "", "", ""))
        terminalreporter.write_line(
            LINE("fault", "jobs", "writes", "wait", "/readyz", "one", "two", "three", "settled", "held", "busy")
            + "  waited for the longest"
        )
        for fault, seen in rows:
            times = (seen.outage, seen.wait, seen.ready, *seen.back, seen.settled, seen.held, seen.busy)
            terminalreporter.write_line(
                LINE(fault, seen.jobs, *(f"{each:.1f}" for each in times)) + f"  {seen.waited_for}"
            )
