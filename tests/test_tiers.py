"""The tests that need other programs: what cannot run is red, and says what is missing."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Of each tier a test, and what it says where there are no programs at all.
LACKING = {
    "tools": (
        "provisioning/test_media_iso.py::test_a_full_disk_is_an_error",
        "(on Debian: apt install mount util-linux)",
    ),
    "root": (
        "maintenance/test_units.py::test_systemd_finds_nothing_wrong_with_the_units",
        "not installed: systemd-analyze (on Debian: apt install systemd)",
    ),
    "ui": (
        "ui/test_api_reference.py::test_an_unknown_operation_is_named",
        "no Chromium is installed: apt install chromium",
    ),
    "deploy": ("deploy/test_kubernetes.py::test_helm_finds_nothing_to_complain_about", "helm (go install helm.sh/helm"),
}


def run_pytest(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CHARGEHAND_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=inherited | environ,
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_tier_that_lacks_a_program_fails_and_names_its_package(tmp_path: Path) -> None:
    tests = [f"tests/{test}" for test, _ in LACKING.values()]
    done = run_pytest("-m", " or ".join(LACKING), *tests, PATH=str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    for tier, (_, sentence) in LACKING.items():
        assert sentence in done.stdout, tier
    assert "skipped" not in done.stdout


A_TIER = """
import pytest

@pytest.fixture
def model():
    pytest.skip("the model is not installed")

@pytest.mark.real
def test_it_answers(model): ...

@pytest.mark.real
@pytest.mark.skipif(True, reason="the engine is not installed")
def test_it_embeds(): ...

@pytest.mark.real
def test_it_cannot_do_this():
    pytest.xfail("no model can")

def test_of_no_tier(model): ...
"""


def test_what_a_tier_skips_has_failed_and_nothing_else_has(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(A_TIER)
    done = run_pytest("-c", "pyproject.toml", "--rootdir", ".", "-p", "tests.conftest", "-m", "", str(tmp_path))
    assert "1 skipped, 1 xfailed, 2 errors" in done.stdout, done.stdout + done.stderr
    for reason in ("the model is not installed", "the engine is not installed"):
        assert f"it could not run: {reason}" in done.stdout
