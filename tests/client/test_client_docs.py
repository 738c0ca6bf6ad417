"""The programs of docs/client.md, and those with our client on other pages, run as they are written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chargehand.client.errors import ClientError
from chargehand.doors.inference.embedded.process import Embedded
from chargehand.testing import ChargehandServer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/client.md").read_text()
BLOCK = re.compile(r"<!-- file: (\w+\.py)(, background)? -->\n```python\n(.*?)```", re.DOTALL)
SECONDS = 90
# The lines that each program must print.
PROMISES = {
    "ask.py": [r"\w+ \w+"],
    "ask_async.py": [r"(done \d+ tokens from \S+\n){3}"],
    "later.py": [r"\nTrue \{'order': 17\}\n", r" succeed done ", r"\n0\n$"],
    "produce.py": [
        r"COMPLETED \{'film': 'fox.mp4', 'ok': True\}",
        r"the printer is warming up",
        r"page \d",
        r"\nTwo hundred, please.\n",
        r"\nCOMPLETED \{'pages': 1\}\nFAILED nobody reads that\n$",
    ],
    "engine.py": [r"conflict.stale_lease\n\{'file': 'cat-320.png'\}\n", r"\n1 \w+ \d"],
    "test_orders.py": [r"2 passed"],
}


def test_every_program_on_the_page_is_run() -> None:
    shown = {name for name, background, _ in BLOCK.findall(PAGE) if not background} - {"conftest.py"}
    assert shown == set(PROMISES)
    assert PAGE.count("```python") == len(BLOCK.findall(PAGE))


@pytest.mark.timeout(300)  # it starts a dozen processes, perhaps on a busy machine
@pytest.mark.xdist_group("processes")
def test_the_programs_do_what_the_page_says(tmp_path: Path) -> None:
    if reason := Embedded.available():
        pytest.skip(reason)
    here = tmp_path / "mine"
    here.mkdir()
    with ChargehandServer(tmp_path, {"inference.embedded": "on"}) as server:
        environ = os.environ | {"CHARGEHAND_URL": server.url, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        background = []
        try:
            for name, beside, program in BLOCK.findall(PAGE):
                (here / name).write_text(program.replace("http://127.0.0.1:9000/", server.receiver.url))
                if beside:
                    background.append(subprocess.Popen([sys.executable, name], cwd=here, env=environ))
                elif name != "conftest.py":
                    said = _run(name, here, environ)
                    assert [promise for promise in PROMISES[name] if not re.search(promise, said)] == [], said
        finally:
            for process in background:
                process.terminate()
                assert process.wait(SECONDS) == 0
        server.receiver.wait_for(lambda hook: hook.path == "/stories" and hook.body["state"] == "done")
        server.receiver.wait_for(
            lambda hook: hook.path == "/thumbnails" and hook.body["data"]["result"] == {"file": "cat-320.png"}
        )


def _run(name: str, folder: Path, environ: dict[str, str]) -> str:
    runner = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if name.startswith("test_") else []
    command = [sys.executable, *runner, name]
    ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("processes")
def test_the_worker_of_the_page_about_tasks_works(tmp_path: Path) -> None:
    result = {"film": "fox.mp4", "ok": True}
    with ChargehandServer(tmp_path) as server:
        text = (ROOT / "docs/tasks.md").read_text().replace("http://127.0.0.1:8484", server.url)
        worker, *producers = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        with subprocess.Popen([sys.executable, "-c", worker]) as working:
            task = server.client.tasks.create("render_video", {"film": "fox.mp4"})
            assert server.client.tasks.wait(task.id, timeout=SECONDS)[1].result == result
            for producer in producers:
                said = subprocess.check_output([sys.executable, "-c", producer], text=True, timeout=SECONDS)
                assert said == f"COMPLETED {result}\n"
            working.terminate()
            assert working.wait(SECONDS) == 0


def test_every_error_is_on_the_page() -> None:
    names = {kind.__name__ for kind in ClientError.__subclasses__()}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()
