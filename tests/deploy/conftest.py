"""An image that is built once for all tests that start it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chargehand import __version__
from tests.deploy.containers import Podman
from tests.deploy.places import DOCKERFILE, ROOT


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    made = Podman(Path(tempfile.mkdtemp(prefix="podman-")))
    yield made
    made.remove_everything()


@pytest.fixture(scope="session")
def image(podman: Podman) -> str:
    base = podman.import_debian("localhost/python:debian", "python3", "python3-venv", "ca-certificates")
    return podman.build(f"localhost/chargehand:{__version__}", DOCKERFILE, ROOT, f"PYTHON_IMAGE={base}")
