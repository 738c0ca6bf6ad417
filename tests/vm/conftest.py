"""Fixtures for all machines: the maintenance system's image and the Linux that is installed, each built once."""

import shutil
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.vm.place import CACHE, ISO, ROOT
from tests.vm.qemu import FIRMWARE
from tests.vm.target import cached

PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "mmdebstrap": "mmdebstrap", "wimlib-imagex": "wimtools"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the long tests first, so that none is left for the end, and spread them: every worker begins with two tests."""
    long = [item for item in items if "tests/vm/test_install" in item.nodeid]
    short = [item for item in items if item not in long]
    pairs = zip_longest(long, short[: len(long)])
    items[:] = [item for pair in pairs for item in pair if item is not None] + short[len(long) :]


@pytest.fixture(scope="session")
def image() -> Path:
    """Build the Linux that is installed, and the maintenance system's image."""
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt install {package}")
    if not FIRMWARE.exists():
        pytest.skip(f"{FIRMWARE} is not there: apt install ovmf")
    if not ISO.exists():
        built = subprocess.run([sys.executable, "-m", "maintenance.build"], cwd=ROOT, capture_output=True, text=True)
        if built.returncode:
            pytest.skip(f"the maintenance system cannot be built here: {built.stderr}")
    return cached(CACHE)
