"""The parent of several processes, with real ones: how it ends one that does not end, and how soon it starts one anew."""

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from chargehand.commands.serve.parent import BACKOFF_MAX_SECONDS, STEADY_SECONDS, ServerChild, next_pause
from chargehand.commands.serve.told import Told
from chargehand.config import load_config
from chargehand.http.listening import bind
from tests.e2e.server import has_ended

pytestmark = pytest.mark.xdist_group("processes")


class Enough(Exception):
    pass


@pytest.fixture
async def child(postgres_url: str, tmp_path: Path) -> AsyncIterator[ServerChild]:
    own = {"store.url": postgres_url, "server.data_dir": str(tmp_path / "data"), "inference.embedded": "off"}
    [listening] = await bind("127.0.0.1", 0)
    with closing(listening):
        told = Told(load_config(None, overrides=own), 1, str(tmp_path), (listening.fileno(),), "json", as_json=False)
        child = ServerChild(told, beat_seconds=0)
        yield child
        await child.end(0)


async def test_a_process_that_does_not_end_in_its_time_is_killed(
    child: ServerChild, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await child.start()
    [process] = [each for each in psutil.Process().children() if "chargehand.commands.serve.child" in each.cmdline()]
    process.suspend()  # so it hears no SIGTERM
    assert await child.end(0) == 1
    assert has_ended(process)
    assert "a process is killed: it did not end" in capfd.readouterr().out


async def test_a_process_that_ends_in_its_time_is_not_killed(child: ServerChild) -> None:
    assert await child.start()
    assert await child.end(60) == 0


def test_the_pause_before_a_start_grows_to_a_bound_and_begins_anew_after_a_steady_run() -> None:
    pauses = [pause := 0.0] + [pause := next_pause(pause, ran_seconds=1) for _ in range(9)]
    assert pauses == [0, 0.25, 0.5, 1, 2, 4, 8, 16, BACKOFF_MAX_SECONDS, BACKOFF_MAX_SECONDS]
    assert next_pause(BACKOFF_MAX_SECONDS, ran_seconds=STEADY_SECONDS + 1) == 0.25


async def test_a_process_that_ends_again_and_again_is_started_after_longer_and_longer_pauses(
    child: ServerChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")  # where no Python can start
    pauses = list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            raise Enough

    assert not await child.start()
    with pytest.raises(Enough):
        await child.keep(sleep)
    assert pauses == [0.25, 0.5, 1, 2]
