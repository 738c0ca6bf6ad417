"""The documents are run and compared with the code, so that they cannot drift."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
import typer

from chargehand.cli import app
from chargehand.engine.moves import TABLE
from tests.e2e.server import Server
from tools.reference import MADE, PAGES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"(<!-- background -->\n)?```sh\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_a_reference_page_is_what_the_code_makes_of_it(page: str) -> None:
    assert (ROOT / "docs" / page).read_text() == MADE + PAGES[page](), "run `make docs`"


def test_every_move_is_in_the_glossary() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text()
    assert [move.name for move in TABLE if move.name not in glossary] == []


def test_every_command_is_in_the_changelog_and_explains_itself() -> None:
    commands = typer.main.get_group(app).commands
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert {name for name in commands if name not in changelog or not commands[name].help} == set()


@pytest.mark.parametrize("page", ["README.md", *[f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")]])
def test_every_link_leads_somewhere(page: str) -> None:
    path = ROOT / page
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.xdist_group("processes")
async def test_the_commands_of_the_readme_do_what_it_says(tmp_path: Path) -> None:
    """As written, but for the two ports, which may be taken on the machine that runs this."""
    async with Server(f"sqlite:///{tmp_path}/chargehand.db", tmp_path) as server:
        [listener] = [block for marked, block in BLOCK.findall(README) if marked]
        command = listener.replace(".venv/bin/chargehand", str(Path(sys.executable).with_name("chargehand"))).split()
        command = [*command[:-2], "--port", "0", "--count", "3"]
        receiver = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        try:
            assert receiver.stderr is not None
            address = re.search(r"http://[\d.:]+", (await receiver.stderr.readline()).decode())
            assert address is not None
            script = "\n".join(["set -euo pipefail", *[block for marked, block in BLOCK.findall(README) if not marked]])
            script = script.replace("http://127.0.0.1:8484", server.url).replace("http://127.0.0.1:9000", address[0])
            shell = await asyncio.create_subprocess_exec("bash", "-c", script, cwd=tmp_path, stdout=PIPE, stderr=PIPE)
            said, errors = await asyncio.wait_for(shell.communicate(), 60)
            assert shell.returncode == 0, errors.decode()
            assert b'"result":{"file": "cat-320.png"}' in said
            assert b'"move":"succeed"' in said
            heard, _ = await asyncio.wait_for(receiver.communicate(), 30)
            assert [
                state for state in ("queued", "running", "succeeded") if f'"state":"{state}"'.encode() not in heard
            ] == []
        finally:
            if receiver.returncode is None:
                receiver.kill()
                await receiver.communicate()


def test_two_commands_are_all_a_newcomer_needs() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "make run" in README
    assert "make test" in README
    assert re.search(r"^run:.*##", makefile, re.MULTILINE)
    assert os.access(ROOT / ".ci/run", os.X_OK)
