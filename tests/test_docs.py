"""The documents are run and compared with the code, so that they cannot drift."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from chargehand.cli import app
from chargehand.engine.moves import TABLE
from tests.e2e.server import ServerProcess
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
def test_the_commands_of_the_readme_do_what_it_says(tmp_path: Path) -> None:
    """As written, but for the two ports, which may be taken on the machine that runs this."""
    with ServerProcess(f"sqlite:///{tmp_path}/chargehand.db") as server:
        background: list[subprocess.Popen[str]] = []
        script = ["set -euo pipefail"]
        try:
            for marked, block in BLOCK.findall(README):
                block = block.replace(".venv/bin/chargehand", f"{Path(sys.executable).parent}/chargehand")
                block = block.replace("http://127.0.0.1:8484", server.url)
                if marked:
                    listener = block.strip().replace("--port 9000", "--port 0 --count 3").split()
                    background.append(subprocess.Popen(listener, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
                    assert background[-1].stderr is not None
                    receiver = re.search(r"http://[\d.:]+", background[-1].stderr.readline())
                    assert receiver is not None
                else:
                    script.append(block.replace("http://127.0.0.1:9000", receiver[0]))
            done = subprocess.run(
                ["bash", "-c", "\n".join(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stderr
            assert '"result":{"file":"cat-320.png"}' in done.stdout
            assert '"move":"succeed"' in done.stdout
            heard, errors = background[0].communicate(timeout=30)
            background[0].stderr = None
            assert [state for state in ("queued", "running", "succeeded") if f'"state":"{state}"' not in heard] == [], errors
        finally:
            for process in background:
                process.kill()
                process.communicate()


def test_two_commands_are_all_a_newcomer_needs() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "make run" in README
    assert "make test" in README
    assert re.search(r"^run:.*##", makefile, re.MULTILINE)
    assert os.access(ROOT / ".ci/run", os.X_OK)
