"""A real browser, and a server with data for every page."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright

from tests.ui.elsewhere import EVIL, REBOUND, Elsewhere, elsewhere
from tests.ui.scene import Scene, a_scene

SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox",
    "--host-resolver-rules=" + ",".join(f"MAP {name} 127.0.0.1" for name in (EVIL, REBOUND)),
    "--disable-features=LocalNetworkAccessChecks",  # not every browser has these protections: tests must not rely on them
)


def chromium() -> str:
    named = os.environ.get("CHARGEHAND_CHROMIUM", "")
    found = named or next((path for name in CHROMIUMS if (path := shutil.which(name))), "")
    if not found:
        pytest.fail("no Chromium is installed: apt install chromium, or set CHARGEHAND_CHROMIUM")
    return found


def pytest_runtest_setup() -> None:
    """Before a server is started for nothing."""
    chromium()


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield launched
        await launched.close()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with a_scene(tmp_path) as made:
        yield made


@pytest.fixture
async def evil() -> AsyncIterator[Elsewhere]:
    async with elsewhere() as there:
        yield there
