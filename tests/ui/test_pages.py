"""Each page, wide and narrow, light and dark, shows its data without errors and is accessible."""

from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.ui.conftest import SHOTS
from tests.ui.scene import Scene, a_scene
from tests.ui.watching import watched

pytestmark = [pytest.mark.ui, pytest.mark.timeout(300)]

PAGES = {
    "now": "/console",
    "jobs": "/console/jobs",
    "job-done": "/console/jobs/{done}",
    "job-failed": "/console/jobs/{failed}",
    "job-waiting": "/console/jobs/{waiting}",
    "job-dead": "/console/jobs/{dead}",
    "job-engine": "/console/jobs/{engine}",
    "flows": "/console/flows",
    "flow": "/console/flows/{flow}",
    "flow-failed": "/console/flows/{flow-failed}",
    "flow-large": "/console/flows/{flow-large}",
    "job-step": "/console/jobs/{step}",
    "deliveries": "/console/deliveries",
    "dead-deliveries": "/console/deliveries?state=dead",
    "targets": "/console/targets",
    "tasks": "/console/tasks",
    "servers": "/console/servers",
    "server": "/console/servers/RACK1-07",
    "server-at-work": "/console/servers/RACK1-08",
    "job-machine": "/console/jobs/{machine}",
    "settings": "/console/settings",
    "nowhere": "/console/nowhere",
}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("wide", [True, False], ids=["wide", "narrow"])
async def test_every_page_is_shown_without_errors_and_is_accessible(
    tmp_path: Path, browser: Browser, wide: bool, dark: bool
) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    faults: list[str] = []
    async with a_scene(tmp_path, metal=True) as scene:
        await scene.fill()
        for name, path in PAGES.items():
            async with watched(browser, wide=wide, dark=dark) as seen:
                await seen.page.goto(scene.url + path.format(**scene.jobs))
                await seen.live()
                shot = SHOTS / f"{name}-{1600 if wide else 390}-{'dark' if dark else 'light'}.png"
                await seen.page.screenshot(path=shot, full_page=True)
                faults += [f"{name}: {fault}" for fault in await seen.faults()]
                if (out := await seen.overflow()) > 0:
                    faults.append(f"{name}: sticks out by {out} px")
                faults += [f"{name}: {trouble}" for trouble in seen.trouble]
    assert not faults, "\n".join(faults)


async def test_an_empty_server_shows_first_commands(scene: Scene, browser: Browser) -> None:
    async with watched(browser) as seen:
        await seen.page.goto(scene.url)
        await seen.live()
        await seen.page.wait_for_selector("text=Nothing here yet")
        await seen.page.screenshot(path=SHOTS / "welcome-1600-light.png", full_page=True)
        assert not await seen.faults()
        await scene.chat("Say hello")
        await seen.page.wait_for_selector("text=in hand")
        seen.check()
