"""The pytest fixture `chargehand_server`, as other test suites use it."""

import os
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from chargehand.client import NoAnswer
from chargehand.testing import ChargehandServer, Receiver
from chargehand.webhooks.signature import Keys, sign

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.timeout(300)]

SUITE = """
import asyncio

import pytest

from chargehand.client import AsyncClient


@pytest.fixture
def chargehand_settings():
    return {"tasks.max_attempts": 1}


def test_a_task_is_called_back(chargehand_server):
    client, receiver = chargehand_server.client, chargehand_server.receiver
    receiver.answer(500)
    task = client.tasks.create("work", {}, webhook=receiver.url + "done")
    assert client.tasks.get(task.id).max_attempts == 1
    client.tasks.cancel(task.id)
    hook = receiver.wait_for(lambda hook: hook.answered == 200)
    assert (hook.path, hook.body["taskId"], hook.body["status"]) == ("/done", task.id, "FAILED")
    assert [each.id for each in receiver.received] == [hook.id, hook.id]
    (chargehand_server.folder / "mine").touch()


def test_the_next_test_has_another_server(chargehand_server):
    assert list(chargehand_server.client.tasks.find()) == []
    assert not (chargehand_server.folder / "mine").exists()

    async def main():
        async with AsyncClient(chargehand_server.url) as client:
            return await client.engine.submit("q", 1)

    assert asyncio.run(main()).job_id


def test_that_fails(chargehand_server):
    chargehand_server.client.engine.submit("q", None, webhook=chargehand_server.receiver.url)
    chargehand_server.receiver.wait_for(lambda hook: hook.body["type"] == "job.succeeded", timeout=1)
"""


def test_each_test_gets_its_own_server_and_a_failed_wait_shows_the_received_webhooks(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # our plugins take seconds to load
    pytester.makeconftest('pytest_plugins = ["chargehand.testing"]')
    pytester.makepyfile(SUITE)
    ended = pytester.runpytest_subprocess("-W", "error")
    ended.assert_outcomes(passed=2, failed=1)
    ended.stdout.fnmatch_lines(["*no such webhook came within 1 s; these did:*", "*'type': 'job.queued'*"])
    running = [each for each in psutil.process_iter(["cmdline"]) if str(pytester.path) in str(each.info["cmdline"])]
    assert running == []


def test_the_plugin_is_loaded_only_if_it_is_named() -> None:
    """pytest finds plugins by these entry points."""
    assert [each for each in entry_points(group="pytest11") if each.value.startswith("chargehand")] == []


def test_a_stopped_or_killed_server_restarts_with_its_data(tmp_path: Path) -> None:
    with ChargehandServer(tmp_path) as server:
        url, made = server.url, server.client.engine.submit("q", {"n": 1})
        server.kill()
        server.start()
        with pytest.raises(RuntimeError, match="runs already"):
            server.start()
        assert (server.url, server.client.engine.job(made.job_id).payload) == (url, {"n": 1})
        server.stop()
        server.client.close()
        with pytest.raises(NoAnswer):
            server.client.engine.job(made.job_id, retries=0)
    assert "draining" in server.log


def test_an_unknown_setting_is_refused_in_one_line(tmp_path: Path) -> None:
    server = ChargehandServer(tmp_path, {"tasks.max_atempts": 1})
    with pytest.raises(RuntimeError, match=r"did you mean tasks\.max_attempts"), server:
        pass
    with pytest.raises(RuntimeError, match="was not started"):
        _ = server.url


def test_a_server_that_never_starts_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chargehand.testing.server.START_SECONDS", 3)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a database that accepts connections and never answers
        url = f"postgresql://nobody:x@127.0.0.1:{silent.getsockname()[1]}/x"
        with (
            pytest.raises(RuntimeError, match="did not start within 3 s"),
            ChargehandServer(tmp_path, {"store.url": url}),
        ):
            pass


def test_a_server_does_not_outlive_the_run_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from chargehand.testing import ChargehandServer\n"
        "server = ChargehandServer(pathlib.Path(sys.argv[1])); server.start()\n"
        "print(server._process.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        server = psutil.Process(int(run.stdout.readline()))
        os.kill(run.pid, signal.SIGKILL)
        psutil.wait_procs([server], timeout=10)
        assert not server.is_running()


def test_the_receiver_refuses_other_signatures() -> None:
    receiver = Receiver("secret")
    body = b'{"n": 1}'
    signed = sign("standard", Keys("secret"), "id", int(time.time()), body)
    assert receiver._receive("/", signed, b'{"n": 2}') == 401
    assert receiver.received == []
    assert receiver._receive("/", signed, body) == 200
    assert [each.body for each in receiver.received] == [{"n": 1}]
