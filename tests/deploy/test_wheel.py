"""The wheel: it has every file of the package, and is all that an empty environment needs besides the lock file."""

import asyncio
import os
import subprocess
import sys
from asyncio.subprocess import DEVNULL
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.deploy.asking import asking, carries_a_job, shows_the_console, tells_a_story
from tests.deploy.places import ROOT
from tests.e2e.server import free_port


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [made] = folder.glob("*.whl")
    return made


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    """Hatchling leaves out what .gitignore names, and nobody misses a file before it is read."""
    source = ROOT / "src"
    wanted = {str(path.relative_to(source)) for path in (source / "chargehand").rglob("*") if path.is_file()}
    packed = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == {name for name in wanted if "__pycache__" not in name}
    assert {Path(name).suffix for name in packed} >= {".gguf", ".html", ".js", ".css", ".json", ".sql", ".toml"}


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Path:
    """The environment, which had nothing in it before."""
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", place], check=True, capture_output=True)
    pip = (place / "bin/pip", "--disable-pip-version-check", "install", "--quiet")
    subprocess.run((*pip, "--require-hashes", "--no-deps", "-r", ROOT / "requirements.lock"), check=True)
    # Without an index: what the wheel requires is what the lock file has brought.
    subprocess.run((*pip, "--no-index", f"{wheel}[embedded]"), check=True)
    return place


@pytest.mark.deploy
@pytest.mark.timeout(1800)
async def test_the_wheel_in_an_empty_environment_serves_the_console_and_its_model(
    installed: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    address = f"127.0.0.1:{free_port()}"
    command = (installed / "bin/chargehand", "serve", "--listen", address)
    environ = {"PATH": os.defpath, "HOME": str(work)}  # no PYTHONPATH
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = await asyncio.create_subprocess_exec(
            *command, env=environ, cwd=work, stdin=DEVNULL, stdout=output, stderr=output
        )
    try:
        async with asking(f"http://{address}", log.read_text) as http:
            await shows_the_console(http)
            await carries_a_job(http)
            await tells_a_story(http)
        server.terminate()
        assert await asyncio.wait_for(server.wait(), 30) == 0
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
    assert (work / "data/chargehand.db").exists()
