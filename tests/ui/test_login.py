"""With auth on: without a token nothing is shown, a wrong one is refused, a right one signs in."""

import hashlib
import json
import re
import secrets
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.ui.conftest import SHOTS
from tests.ui.scene import a_scene
from tests.ui.watching import watched

pytestmark = [pytest.mark.ui, pytest.mark.timeout(180)]


async def test_a_token_signs_in_to_the_console_and_signing_out_removes_it(tmp_path: Path, browser: Browser) -> None:
    token = f"ch_{secrets.token_urlsafe(24)}"
    known = {"name": "operator", "hash": f"sha256:{hashlib.sha256(token.encode()).hexdigest()}", "scopes": ["*"]}
    async with a_scene(tmp_path, auth_tokens=json.dumps([known])) as scene, watched(browser) as seen:
        seen.expected = ("401",)
        page = seen.page
        await page.goto(f"{scene.url}/console/jobs")
        await page.wait_for_selector("#token")
        SHOTS.mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=SHOTS / "login-1600-light.png")
        assert not await seen.faults()
        await page.fill("#token", "not the right one")
        await page.keyboard.press("Enter")
        await expect(page.locator("#token-e")).to_contain_text("not known")
        await page.fill("#token", token)
        await page.keyboard.press("Enter")
        await seen.live()
        await expect(page).to_have_url(re.compile("/console/jobs$"))
        assert await page.context.cookies() == []
        await page.reload()
        await seen.live()
        await page.get_by_text("sign out").click()
        await page.wait_for_selector("#token")
        seen.check()
