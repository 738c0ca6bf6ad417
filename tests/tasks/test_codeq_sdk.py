"""codeQ's own Go SDK, unmodified, on our gRPC streams. `make test-codeq CODEQ=FOLDER` runs this."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from tests.api.serving import on_sqlite
from tests.tasks.calling import calling
from tests.tasks.test_grpc import ON

OURS = Path(__file__).with_name("codeq_sdk_test.go")
FORGOTTEN_AFTER = 35  # seconds: codeQ forgets a waiting worker after 30


@pytest.fixture
def codeq(tmp_path: Path) -> Path:
    """Return a copy of codeQ with our test in it: its packages' dependencies are those of its own module."""
    folder = Path(os.environ.get("CODEQ", ""))
    if not (folder / "pkg" / "workerclient").is_dir():
        pytest.fail("CODEQ must name a folder with codeQ's source: make test-codeq CODEQ=FOLDER", pytrace=False)
    if shutil.which("go") is None:
        pytest.fail("go is not installed (https://go.dev, or on Debian: apt install golang)", pytrace=False)
    copy = tmp_path / "codeq"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".git"))
    (copy / "chargehand").mkdir(exist_ok=True)
    shutil.copy(OURS, copy / "chargehand" / "sdk_test.go")
    return copy


@pytest.mark.codeq
@pytest.mark.timeout(900)
@on_sqlite
async def test_codeqs_go_sdk_produces_and_works_on_our_streams(store_url: str, codeq: Path) -> None:
    async with calling(store_url, ON) as shop:
        told = {
            "CHARGEHAND_GRPC": shop.server.tasks.grpc.address,  # type: ignore[union-attr]
            "CHARGEHAND_PRODUCER_TOKEN": "producer",
            "CHARGEHAND_WORKER_TOKEN": "worker",
            "CHARGEHAND_IDLE": f"{FORGOTTEN_AFTER}s",
        }
        command = ("go", "test", "-count=1", "-v", "./chargehand/")
        pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.STDOUT}
        running = await asyncio.create_subprocess_exec(*command, cwd=codeq, env=os.environ | told, **pipes)  # type: ignore[arg-type]
        said, _ = await running.communicate()
        print(said.decode())
        assert running.returncode == 0, said.decode()[-5000:]
        assert said.count(b"--- PASS") == OURS.read_text().count("func Test")
