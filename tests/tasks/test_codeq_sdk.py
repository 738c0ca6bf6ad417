"""codeQ's own Go code on our wires: its SDK on our gRPC streams, its HTTP tests on our HTTP. `make test-codeq CODEQ=FOLDER` runs this."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.api.serving import on_sqlite
from tests.tasks.calling import calling
from tests.tasks.test_grpc import ON

OURS = Path(__file__).with_name("codeq_ours_test.go")
SDK = Path(__file__).with_name("codeq_sdk_test.go")
FORGOTTEN_AFTER = 35  # seconds: codeQ forgets a waiting worker after 30
# Of its tests over HTTP all but TestHTTPIntegrationFlow_Sharded, which looks into codeQ's own Redis.
HTTP_FILES = ("integration_test.go", "long_poll_e2e_test.go", "webhook_coverage_e2e_test.go")
HTTP_TESTS = ("TestHTTPIntegrationFlow", "TestLongPollGetResult_E2E", "TestWebhookCoverage_E2E")
THEIRS, MINE = "httptest.NewServer(app.Engine)", "httptest.NewServer(ours(t, cfg))"

pytestmark = [pytest.mark.codeq, pytest.mark.timeout(900)]


@pytest.fixture
def codeq(tmp_path: Path) -> Path:
    """Return a copy of codeQ, into which our tests go: its packages' dependencies are those of its own module."""
    folder = Path(os.environ.get("CODEQ", ""))
    if not (folder / "pkg" / "workerclient").is_dir():
        pytest.fail("CODEQ must name a folder with codeQ's source: make test-codeq CODEQ=FOLDER", pytrace=False)
    if shutil.which("go") is None:
        pytest.fail("go is not installed (https://go.dev, or on Debian: apt install golang)", pytrace=False)
    copy = tmp_path / "codeq"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".git"))
    return copy


async def _go_test(codeq: Path, *arguments: str, **told: str) -> str:
    command = ("go", "test", "-count=1", "-v", *arguments)
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.STDOUT}
    running = await asyncio.create_subprocess_exec(*command, cwd=codeq, env=os.environ | told, **pipes)  # type: ignore[arg-type]
    said, _ = await running.communicate()
    print(said.decode())
    assert running.returncode == 0, said.decode()[-5000:]
    return said.decode()


@on_sqlite
async def test_codeqs_go_sdk_produces_and_works_on_our_streams(store_url: str, codeq: Path) -> None:
    (codeq / "chargehand").mkdir(exist_ok=True)
    shutil.copy(SDK, codeq / "chargehand" / "sdk_test.go")
    async with calling(store_url, ON) as shop:
        said = await _go_test(
            codeq,
            "./chargehand/",
            CHARGEHAND_GRPC=shop.server.tasks.grpc.address,  # type: ignore[union-attr]
            CHARGEHAND_PRODUCER_TOKEN="producer",
            CHARGEHAND_WORKER_TOKEN="worker",
            CHARGEHAND_IDLE=f"{FORGOTTEN_AFTER}s",
        )
    assert said.count("--- PASS") == SDK.read_text().count("func Test")


async def test_codeqs_own_http_tests_pass_on_our_server(codeq: Path) -> None:
    package = codeq / "pkg" / "app"
    shutil.copy(OURS, package / "ours_test.go")
    for name in HTTP_FILES:
        text = (package / name).read_text()
        assert THEIRS in text
        (package / name).write_text(text.replace(THEIRS, MINE))
    run = "|".join(f"^{name}$" for name in HTTP_TESTS)
    program = str(Path(sys.executable).with_name("chargehand"))
    said = await _go_test(codeq, "-run", run, "./pkg/app/", CHARGEHAND=program)
    for name in HTTP_TESTS:
        assert f"--- PASS: {name} " in said
