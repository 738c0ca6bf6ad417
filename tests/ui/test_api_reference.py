"""The API reference in a browser: it shows every operation, is accessible, and its form sends what it shows."""

import pytest
from playwright.async_api import Browser, expect

from tests.ui.conftest import SHOTS
from tests.ui.scene import Scene
from tests.ui.watching import watched

pytestmark = [pytest.mark.ui, pytest.mark.timeout(300)]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("wide", [True, False], ids=["wide", "narrow"])
async def test_every_operation_is_shown_without_errors_and_is_accessible(
    scene: Scene, browser: Browser, wide: bool, dark: bool
) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    async with watched(browser, wide=wide, dark=dark) as seen:
        page, faults = seen.page, []
        await page.goto(f"{scene.url}/docs")
        await page.wait_for_selector("main a.rows-link")
        links = [
            str(link) for link in await page.locator("main a.rows-link").evaluate_all("all => all.map(a => a.hash)")
        ]
        assert len(links) > 80
        for link in ["", *links]:
            await page.goto(f"{scene.url}/docs{link}")
            await expect(page.locator("#nav a[aria-current]")).to_have_count(1 if link else 0)
            if (out := await seen.overflow()) > 0:
                faults.append(f"{link}: sticks out by {out} px")
            if link in ("", "#jobs_submit_job", "#inference_get_job"):
                shot = SHOTS / f"docs{link.replace('#', '-')}-{1600 if wide else 390}-{'dark' if dark else 'light'}.png"
                await page.screenshot(path=shot, full_page=True)
                faults += [f"{link}: {fault}" for fault in await seen.faults()]
        assert not faults, "\n".join(faults)
        seen.check()


async def test_the_form_sends_the_request_that_the_curl_command_shows(scene: Scene, browser: Browser) -> None:
    async with watched(browser) as seen:
        page = seen.page
        await page.goto(f"{scene.url}/docs#jobs_submit_job")
        await page.locator("[name=body]").fill('{"queue": "press", "payload": {"n": 12345678901234567890}}')
        await page.get_by_label("Idempotency-Key").fill("it's mine")
        await page.locator("[name=token]").fill("a secret")
        command = page.locator("#command")
        await expect(command).to_contain_text(f"curl -X POST {scene.url}/engine/jobs")
        await expect(command).to_contain_text(r"-H 'Idempotency-Key: it'\''s mine'")
        await expect(command).to_contain_text("""--data-raw '{"queue":"press","payload":{"n":12345678901234567890}}'""")
        await expect(command).not_to_contain_text("a secret")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator(".result")).to_contain_text("202 Accepted")
        job_id = (await page.locator("#answer-body .j-s").inner_text()).strip('"')

        await page.goto(f"{scene.url}/docs#jobs_get_job")
        await expect(page.locator("[name=token]")).to_have_value("a secret")
        await page.get_by_label("job_id").fill(job_id)
        await page.keyboard.press("Control+Enter")
        await expect(page.locator("#answer-body")).to_contain_text('"n": 12345678901234567890')
        seen.check()


async def test_a_stream_is_shown_as_it_arrives_until_it_is_stopped(scene: Scene, browser: Browser) -> None:
    async with watched(browser) as seen:
        page = seen.page
        await page.goto(f"{scene.url}/docs#follow")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator(".result")).to_contain_text("200 OK")
        await scene.engine_job("press")
        await expect(page.locator("#answer-body")).to_contain_text("data:")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.locator(".result")).to_contain_text("stopped")
        await expect(page.get_by_role("button", name="Send")).to_be_enabled()


async def test_the_filter_finds_operations_by_words_and_keys_open_them(scene: Scene, browser: Browser) -> None:
    async with watched(browser) as seen:
        page = seen.page
        await page.goto(f"{scene.url}/docs")
        await expect(page.locator("#filter")).to_be_enabled()
        await page.keyboard.press("/")
        await page.keyboard.type("post engine claims")
        await expect(page.locator("#nav li:not([hidden])")).to_have_count(1)
        await page.keyboard.press("Enter")
        await expect(page.locator("h1")).to_have_text("Claim jobs, waiting for them if asked to")
        await page.keyboard.press("/")
        await page.keyboard.press("Escape")
        await expect(page.locator("#matches")).to_have_text("")
        seen.check()


async def test_an_unknown_operation_is_named(scene: Scene, browser: Browser) -> None:
    async with watched(browser) as seen:
        await seen.page.goto(f"{scene.url}/docs#<img src=x onerror=alert(1)>")
        await expect(seen.page.get_by_role("alert")).to_contain_text("There is no operation called")
        assert await seen.page.locator("main img").count() == 0
        seen.check()
