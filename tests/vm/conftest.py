"""What all machines share: the maintenance system's image and the Linux that is installed, each made once."""

from pathlib import Path

import pytest
from maintenance.build import needs
from maintenance.build.__main__ import build

from tests.vm.place import CACHE, ISO
from tests.vm.qemu import FIRMWARE
from tests.vm.target import cached


@pytest.fixture(scope="session")
def image() -> Path:
    """The Linux that is installed; with it the maintenance system's image is there too."""
    if missing := needs.missing():
        pytest.skip(f"not installed: {', '.join(missing)}")
    if not FIRMWARE.exists():
        pytest.skip(f"{FIRMWARE} is missing: install ovmf")
    if not ISO.exists():
        build(ISO, CACHE)
    return cached(CACHE)
