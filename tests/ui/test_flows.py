"""Flows at the console: a graph that is drawn and changes by itself, and what is done to it."""

import io
import json
import re
import time

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.ui.scene import Scene, a_step
from tests.ui.watching import watched

pytestmark = [pytest.mark.ui, pytest.mark.timeout(180)]

JOIN = (a_step("left"), a_step("right"), a_step("join", "left", {"step": "right", "on": "finished"}))
MANY = 10_000  # steps, the most that a flow may have


def box(page: Page, name: str) -> Locator:
    return page.locator(f'[data-graph] a[aria-label^="{name}, "]')


async def test_a_join_is_drawn_and_a_box_changes_by_itself_when_its_step_ends(scene: Scene, browser: Browser) -> None:
    flow_id = await scene.flow("diamond", *JOIN)
    async with watched(browser) as seen:
        page = seen.page
        await page.goto(f"{scene.url}/console/flows/{flow_id}")
        await seen.live()
        await expect(page.locator("[data-graph] a")).to_have_count(3)
        await expect(page.locator("[data-graph] .fe-succeeded")).to_have_count(1)
        await expect(page.locator("[data-graph] .fe-finished")).to_have_count(1)
        await expect(page.locator("[data-graph]")).to_have_attribute("aria-label", re.compile("3 steps in 2 layers"))
        await expect(box(page, "join")).to_contain_text("for left, right to end")
        await page.evaluate("window.drawn = document.querySelector('[data-graph]'); window.jumps = []")
        await scene.finish("flow-left")
        await expect(box(page, "left")).to_contain_text("succeeded")
        await expect(box(page, "join")).to_contain_text("for right to end")
        await scene.finish("flow-right", "fail", error="no disk")
        await expect(box(page, "right")).to_contain_text("no disk")
        await expect(box(page, "join")).to_contain_text("queued")
        await expect(page.locator("#p-steps tbody tr").nth(1)).to_contain_text("failed")
        await expect(page.locator("#p-events")).to_contain_text("right")
        assert await page.evaluate("window.drawn === document.querySelector('[data-graph]')"), "the page was built anew"
        assert await seen.jumps() == []
        await scene.finish("flow-join")
        await expect(page.locator("main h1")).to_contain_text("succeeded")
        seen.check()


async def test_boxes_are_reached_with_the_keyboard_and_lead_to_their_jobs_and_back(
    scene: Scene, browser: Browser
) -> None:
    flow_id = await scene.flow("diamond", *JOIN)
    join = await scene.step_of(flow_id, "join")
    async with watched(browser) as seen:
        page = seen.page
        await page.goto(f"{scene.url}/console")
        await seen.live()
        for key in "gf":
            await page.keyboard.press(key)
        await expect(page).to_have_url(f"{scene.url}/console/flows")
        await page.locator(f'tr[data-href="/console/flows/{flow_id}"]').wait_for()
        for key in ("j", "Enter"):
            await page.keyboard.press(key)
        await box(page, "left").focus()
        for key, name in (("ArrowDown", "right"), ("ArrowRight", "join"), ("ArrowLeft", "left")):
            await page.keyboard.press(key)
            await expect(box(page, name)).to_be_focused()
        await box(page, "join").click()
        await expect(page).to_have_url(f"{scene.url}/console/jobs/{join['job_id']}")
        await expect(page.locator("main")).to_contain_text("Step join of the flow diamond")
        await expect(page.locator("main")).to_contain_text("Waiting for other steps of its flow")
        await page.locator("main .lede").get_by_role("link", name="diamond").click()
        await expect(page).to_have_url(f"{scene.url}/console/flows/{flow_id}")
        await page.goto(f"{scene.url}/console/jobs/{flow_id}")
        await expect(page).to_have_url(f"{scene.url}/console/flows/{flow_id}")
        await expect(page.locator("[data-graph] a")).to_have_count(3)
        seen.check()


async def test_a_flow_is_tried_again_from_a_step_after_a_confirmation(scene: Scene, browser: Browser) -> None:
    flow_id = await scene.flow("diamond", *JOIN)
    await scene.finish("flow-right")
    await scene.finish("flow-left", "fail", error="no disk")
    async with watched(browser) as seen:
        page = seen.page
        await page.goto(f"{scene.url}/console/flows/{flow_id}")
        await seen.live()
        await expect(page.locator("main h1")).to_contain_text("failed")
        again = page.locator("#p-steps tr").filter(has_text="left").get_by_role("button", name="Retry from here").first
        await again.click()
        await expect(page.locator("#ask")).to_contain_text("Run left and 1 step after it again?")
        await page.locator("#ask").get_by_role("button", name="Keep").click()
        assert (await scene.call("GET", f"/engine/flows/{flow_id}"))["state"] == "failed"
        await again.click()
        await page.locator("#ask button[value=yes]").click()
        await expect(page.locator("main h1")).to_contain_text("running")
        await expect(box(page, "left")).to_contain_text("queued")
        await expect(box(page, "right")).to_contain_text("succeeded")
        await scene.finish("flow-left", "fail", error="no disk")
        await page.get_by_role("button", name="Retry", exact=True).click()
        await expect(page.locator("#ask")).to_contain_text("2 of its steps did not succeed")
        await page.locator("#ask button[value=yes]").click()
        await expect(box(page, "join")).to_contain_text("waiting")
        seen.check()


async def test_a_flow_is_cancelled_after_a_confirmation(scene: Scene, browser: Browser) -> None:
    flow_id = await scene.flow("diamond", *JOIN)
    await scene.call("POST", "/engine/claims", {"queues": ["flow-left"]})
    async with watched(browser) as seen:
        page = seen.page
        await page.goto(f"{scene.url}/console/flows/{flow_id}")
        await seen.live()
        await expect(box(page, "left")).to_contain_text("running")
        await page.get_by_role("button", name="Cancel flow").click()
        await expect(page.locator("#ask")).to_contain_text("2 steps that have not begun never will, and 1 step at work")
        await page.locator("#ask button[value=yes]").click()
        await expect(page.locator("main h1")).to_contain_text("cancelled")
        await expect(box(page, "join")).to_contain_text("cancelled")
        assert (await scene.call("GET", f"/engine/flows/{flow_id}"))["state"] == "cancelled"
        seen.check()


async def test_a_flow_of_ten_thousand_steps_is_shown_by_layers_and_its_steps_by_pages(
    scene: Scene, browser: Browser
) -> None:
    after = [(f"s{n - 1000}", f"s{n - 999}") if n >= 1000 else () for n in range(MANY)]
    steps = [a_step(f"s{n}", *after[n], queue="many") for n in range(MANY)]
    body = io.BytesIO(json.dumps({"name": "large", "steps": steps}).encode())
    async with scene.http.post(f"{scene.url}/engine/flows", data=body) as answer:
        flow_id = (await answer.json())["job_id"]
    async with watched(browser) as seen:
        page = seen.page
        began = time.monotonic()
        await page.goto(f"{scene.url}/console/flows/{flow_id}")
        await expect(page.locator("#p-steps tbody tr")).to_have_count(50)
        shown = time.monotonic() - began
        await expect(page.locator("#p-layers tbody tr")).to_have_count(11, timeout=60_000)
        await expect(page.locator("[data-graph]")).to_have_count(0)
        for _ in range(3):
            await scene.finish("many")
        await expect(page.locator("#p-layers tbody tr").first).to_contain_text("3")
        await page.get_by_role("link", name="succeeded 3").click()
        await expect(page.locator("#p-steps tbody tr")).to_have_count(3)
        await page.get_by_role("link", name=re.compile("^waiting")).click()
        await page.get_by_role("link", name="After").click()
        await expect(page.locator("#p-steps")).to_contain_text("51 to 100 of")
        assert not await seen.faults()
        print(f"shown after {shown:.1f} s, all of it after {time.monotonic() - began:.1f} s")
        seen.check()


async def test_without_flows_the_page_shows_a_first_command(scene: Scene, browser: Browser) -> None:
    async with watched(browser) as seen:
        await seen.page.goto(f"{scene.url}/console/flows")
        await expect(seen.page.locator("main")).to_contain_text("No flow yet")
        await expect(seen.page.locator("main .cmd")).to_contain_text("/engine/flows")
        assert not await seen.faults()
        seen.check()


@pytest.mark.parametrize("wide", [True, False], ids=["wide", "narrow"])
async def test_long_names_and_markup_in_them_are_only_text(scene: Scene, browser: Browser, wide: bool) -> None:
    markup = '<img src=x onerror="window.ran = 1">'
    long = "n" * 64
    flow_id = await scene.flow(markup + "w" * 160, a_step(long, queue="q"), a_step("next", long, queue="q"))
    await scene.finish("q", "fail", error=markup + "e" * 300)
    async with watched(browser, wide=wide) as seen:
        for path in ("/console/flows", f"/console/flows/{flow_id}", "/console"):
            await seen.page.goto(scene.url + path)
            await seen.live()
            await expect(seen.page.locator("main")).to_contain_text(markup)
            assert await seen.overflow() <= 0, path
        assert not await seen.page.evaluate("window.ran")
        seen.check()
