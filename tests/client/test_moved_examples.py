"""The programs in docs/examples/moved: what each did with Celery, Dramatiq or RQ it does with Chargehand."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from chargehand.testing import ChargehandServer

MOVED = Path(__file__).parents[2] / "docs/examples/moved"
LINES = ["order 17: 2 parcels after 2 tries", "ada: on its way", "bob: thank you", "eve: thank you"]
SECONDS = 120.0

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChargehandServer]:
    with ChargehandServer(tmp_path_factory.mktemp("chargehand")) as running:
        yield running


def said(name: str, environ: Mapping[str, str] = {}) -> list[str]:
    ended = subprocess.run(
        [sys.executable, MOVED / f"{name}.py"],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.parametrize("origin", ["celery", "dramatiq", "rq"])
def test_a_program_does_the_same_before_and_after_its_move(server: ChargehandServer, origin: str) -> None:
    assert said(f"{origin}_before") == LINES
    assert said(f"{origin}_after", {"CHARGEHAND_URL": server.url}) == LINES


def test_every_program_is_run() -> None:
    names = {path.stem for path in MOVED.glob("*.py")}
    assert names == {f"{origin}_{when}" for origin in ("celery", "dramatiq", "rq") for when in ("before", "after")}
