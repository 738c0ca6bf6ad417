"""User actions at the console, in a real browser against a real server."""

import asyncio
import json
import re
import shlex
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.e2e.server import eventually
from tests.inference.conformance import Answer, Model, OllamaTarget
from tests.ui.scene import Scene, a_scene
from tests.ui.watching import watched

pytestmark = [pytest.mark.ui, pytest.mark.timeout(180)]


async def test_a_new_job_appears_by_itself_and_nothing_on_the_page_moves(scene: Scene, browser: Browser) -> None:
    # Without webhooks that fail: what is wrong is put above all else when it happens, and moves what is below.
    await scene.ended(await scene.chat("Tell me a story about a fox.", scene.hooks))
    await scene.task("greet", webhook=scene.hooks)
    for number in range(20):  # each in a queue of its own: the lists are full
        await scene.engine_job(f"quiet-{number}")
    async with watched(browser) as seen:
        await seen.page.goto(f"{scene.url}/console")
        await seen.live()
        await seen.page.wait_for_selector("#feed li")  # the last to arrive: from now on nothing may move
        await seen.page.evaluate("window.jumps = []")
        job_id = await scene.engine_job("surprise")
        await seen.page.wait_for_selector(f'a[href="/console/jobs/{job_id}"]')
        for number in range(5):
            await scene.engine_job(f"surprise-{number}")
        await seen.page.wait_for_selector("text=surprise-4")
        assert await seen.jumps() == []
        seen.check()


async def test_the_answer_of_a_model_is_shown_as_it_arrives(tmp_path: Path, browser: Browser) -> None:
    """From the first word on, also on a page that is opened in the middle of the answer."""
    go_on = asyncio.Event()
    async with (
        OllamaTarget({"slow": Model()}) as target,
        a_scene(tmp_path, inference_embedded="off", inference_targets=target.url) as scene,
        watched(browser) as seen,
    ):
        target.script("slow", Answer(chunks=["Once ", "upon ", "a ", "time."], hold=go_on, hold_after=2))
        job_id = await scene.chat("Tell me a long story.", model="slow")
        main = seen.page.locator("main")
        for _ in range(2):
            await seen.page.goto(f"{scene.url}/console/jobs/{job_id}")
            await expect(main).to_contain_text("Once upon")
        assert not await main.get_by_text("a time.").count()
        go_on.set()
        await expect(main).to_contain_text("Once upon a time.")
        await expect(main).to_contain_text("ended by: stop")
        seen.check()


async def test_a_page_opened_late_shows_an_answer_from_its_beginning(
    tmp_path: Path, postgres_url: str, browser: Browser
) -> None:
    rest = asyncio.Event()
    async with (
        OllamaTarget({"a": Model()}) as target,
        a_scene(tmp_path, postgres_url, inference_targets=target.url, inference_embedded="off") as scene,
        watched(browser) as seen,
    ):
        words = [f"word-{number} " for number in range(600)]
        target.script("a", Answer(chunks=[*words, "the end."], hold=rest, hold_after=len(words)))
        job_id = await scene.chat("Tell me a story.", model="a")
        await eventually(lambda: any(each.chunks == len(words) for each in target.seen), 15, "it speaks")
        await seen.page.goto(f"{scene.url}/console/jobs/{job_id}")
        await expect(seen.page.locator("[data-said]")).to_have_text("".join(words))
        rest.set()
        await expect(seen.page.locator("main")).to_contain_text("word-599 the end.")
        seen.check()


async def test_the_now_page_shows_what_waits_and_an_idle_server_is_not_shown_as_new(
    scene: Scene, browser: Browser
) -> None:
    async with watched(browser) as seen:
        await scene.call("PUT", "/engine/queues/inference/tiny-stories", {"paused": True})
        chats = [await scene.chat("Wait.") for _ in range(2)]
        await seen.page.goto(f"{scene.url}/console")
        await expect(seen.page.locator("#p-oldest")).to_contain_text("2 jobs · its queue is paused")
        for job_id in chats:
            await scene.call("DELETE", f"/jobs/{job_id}")
        await expect(seen.page.locator("#p-oldest")).to_contain_text("Nothing waits")
        await seen.page.reload()
        await seen.live()
        await expect(seen.page.locator("#p-oldest")).to_contain_text("Nothing waits")
        seen.check()


async def test_a_list_under_the_pointer_keeps_its_rows_and_shows_how_many_are_new(
    scene: Scene, browser: Browser
) -> None:
    job_id = await scene.engine_job("read")
    async with watched(browser) as seen:
        await seen.page.goto(f"{scene.url}/console/jobs")
        await seen.live()
        await seen.page.locator("[data-list=jobs-new] tr").first.hover()
        await scene.engine_job("unread")
        await expect(seen.page.locator("#jobs-new")).to_have_text("1 new")
        await seen.page.goto(f"{scene.url}/console/jobs/{job_id}")
        await seen.live()
        await seen.page.locator("[data-list=log-new] tr").first.hover()
        await scene.call("POST", f"/engine/jobs/{job_id}/cancel")
        await expect(seen.page.locator("#log-new")).to_have_text("1 new")
        seen.check()


@pytest.mark.parametrize("name", ["constructor", "it's $(here); a 'queue'"])
async def test_names_chosen_by_callers_are_shown_and_copied_unchanged(
    scene: Scene, browser: Browser, name: str
) -> None:
    job_id = await scene.engine_job(name)
    async with watched(browser) as seen:
        await seen.page.goto(f"{scene.url}/console/jobs?kind={name}")
        await seen.page.wait_for_selector("text=No job")
        await seen.page.goto(f"{scene.url}/console/jobs/{job_id}")
        command = await seen.page.locator(".wait-acts code").text_content()
        assert json.loads(shlex.split(command or "")[-1]) == {"queues": [name]}
        claimed = await scene.call("POST", "/engine/claims", {"queues": [name]})
        lease = claimed["jobs"][0]["lease"]
        await scene.call("POST", f"/engine/jobs/{job_id}/advance", {"lease": lease, "stage": "constructor"})
        await seen.page.goto(f"{scene.url}/console")
        await expect(seen.page.locator("#p-working")).to_contain_text("constructor")
        await expect(seen.page.locator("#feed")).to_contain_text("job.constructor")
        seen.check()


async def test_only_http_urls_of_artifacts_become_links(scene: Scene, browser: Browser) -> None:
    task_id = await scene.task("draw")
    claimed = await scene.call(
        "POST", "/v1/codeq/tasks/claim", {"commands": ["draw"], "workerId": "w", "leaseSeconds": 60}
    )
    files = [{"name": "good", "url": "https://example.com/a.png"}, {"name": "bad", "url": "javascript:alert(1)"}]
    result = {"workerId": "w", "status": "COMPLETED", "result": {}, "artifacts": files}
    await scene.call("POST", f"/v1/codeq/tasks/{claimed['id']}/result", result)
    async with watched(browser) as seen:
        await seen.page.goto(f"{scene.url}/console/jobs/{task_id}")
        listed = seen.page.locator("#p-artifacts")
        await expect(listed).to_contain_text("bad")
        await expect(listed.locator("a")).to_have_count(1)
        await expect(listed.locator("a")).to_have_attribute("rel", "noopener noreferrer")
        seen.check()


async def test_replaying_a_delivered_webhook_asks_for_confirmation(scene: Scene, browser: Browser) -> None:
    job_id = await scene.engine_job("told", webhook={"url": scene.hooks})

    async def told() -> bool:
        listed = await scene.call("GET", f"/engine/deliveries?job={job_id}")
        return [each["state"] for each in listed["deliveries"]] == ["delivered"]

    await eventually(told, 15, "it is told")
    async with watched(browser) as seen:
        await seen.page.goto(f"{scene.url}/console/jobs/{job_id}")
        await seen.page.locator("#p-deliveries").get_by_role("button", name="Replay").click()
        await expect(seen.page.locator("#ask")).to_contain_text("delivered already")
        seen.check()


async def test_searching_an_id_opens_its_job_and_keys_open_the_pages(scene: Scene, browser: Browser) -> None:
    await scene.fill()
    async with watched(browser) as seen:
        page = seen.page
        await page.goto(f"{scene.url}/console")
        await seen.live()
        await page.keyboard.press("/")
        await page.keyboard.type(scene.jobs["done"])
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(re.compile(f"/console/jobs/{scene.jobs['done']}$"))
        await page.locator("h1").first.wait_for()
        await page.keyboard.press("Escape")
        await page.evaluate("document.activeElement.blur()")
        await page.keyboard.press("g")
        await page.keyboard.press("j")
        await expect(page).to_have_url(re.compile("/console/jobs$"))
        await page.wait_for_selector("main tr[data-href]")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(re.compile("/console/jobs/[0-9A-Z]{26}$"))
        await page.keyboard.press("?")
        await expect(page.locator("dialog.keys").first).to_be_visible()
        seen.check()


async def test_a_destructive_action_asks_for_confirmation_once(scene: Scene, browser: Browser) -> None:
    await scene.fill()
    async with watched(browser) as seen:
        page = seen.page
        await page.goto(f"{scene.url}/console/jobs/{scene.jobs['waiting']}")
        await seen.live()
        cancel = page.locator("main").get_by_role("button", name=re.compile("cancel", re.I)).first
        await cancel.click()
        await page.locator("#ask").get_by_role("button", name="Keep").click()
        assert (await scene.call("GET", f"/engine/jobs/{scene.jobs['waiting']}"))["state"] == "queued"
        await cancel.click()
        await page.locator("#ask button[value=yes]").click()
        await expect(page.locator("main")).to_contain_text(re.compile("cancelled|FAILED", re.I))
        assert (await scene.call("GET", f"/engine/jobs/{scene.jobs['waiting']}"))["state"] == "cancelled"
        seen.check()


async def test_a_lost_connection_is_shown_and_restored(scene: Scene, browser: Browser) -> None:
    await scene.fill()
    async with watched(browser) as seen:
        seen.expected = ("ERR_", "Failed to load resource", "Failed to fetch", "network error")
        page = seen.page
        await page.goto(f"{scene.url}/console")
        await seen.live()
        before = await page.locator("main").bounding_box()
        assert before is not None
        await scene.server.kill_with_writer()
        await expect(page.locator("[data-offline-banner]")).to_be_visible()
        await expect(page.locator("[data-offline-banner]")).to_contain_text(
            re.compile(r"Connection lost\s+\d+\ss ago\. What you see is from \d\d:\d\d:\d\d UTC")
        )
        after = await page.locator("main").bounding_box()
        assert after is not None
        assert after["y"] == before["y"], "nothing moves"
        await scene.server.start()
        await expect(page.locator("[data-offline-banner]")).to_be_hidden(timeout=20_000)
        job_id = await scene.engine_job("after-the-fall")
        await page.wait_for_selector(f'a[href="/console/jobs/{job_id}"]')
        seen.check()


async def test_a_confirmation_applies_to_the_button_that_was_clicked_although_the_page_changed(
    scene: Scene, browser: Browser
) -> None:
    await scene.fill()
    waiting = f"/engine/jobs/{scene.jobs['waiting']}"
    async with watched(browser) as seen:
        seen.expected = ("409",)
        page = seen.page
        await page.goto(f"{scene.url}/console/jobs/{scene.jobs['waiting']}")
        await seen.live()
        await page.locator("main").get_by_role("button", name="Cancel", exact=True).click()
        await scene.call("POST", f"{waiting}/cancel")
        await page.wait_for_selector('main button:has-text("Requeue")')
        await page.locator("#ask button[value=yes]").click()
        await expect(page.locator("#toast")).to_have_class(re.compile("on"))
        assert (await scene.call("GET", waiting))["state"] == "cancelled"
        seen.check()


async def test_a_filter_keeps_focus_and_scroll_position(scene: Scene, browser: Browser) -> None:
    await scene.fill()
    async with watched(browser) as seen:
        page = seen.page
        await page.goto(f"{scene.url}/console/jobs")
        await seen.live()
        await page.evaluate("window.heading = document.querySelector('main h1')")
        await page.locator("main select").first.focus()
        await page.keyboard.press("ArrowDown")
        await expect(page).to_have_url(re.compile(r"/console/jobs\?"))
        await expect(page.locator("main select").first).to_be_focused()
        assert await page.evaluate("window.heading === document.querySelector('main h1')"), "the page was built anew"
        await page.go_back()
        await expect(page).to_have_url(re.compile("/console/jobs$"))
        seen.check()


async def test_recent_events_are_still_shown_after_visiting_another_page(scene: Scene, browser: Browser) -> None:
    await scene.fill()
    async with watched(browser) as seen:
        page = seen.page
        await page.goto(f"{scene.url}/console")
        await seen.live()
        job_id = await scene.engine_job("remembered")
        told = page.locator(f'.rail a[href="/console/jobs/{job_id}"]').first
        await expect(told).to_be_visible()
        for name in ("Settings", "Now"):
            await page.locator("#nav").get_by_role("link", name=name).click()
            await expect(page).to_have_title(re.compile(name))
        await expect(told).to_be_visible()
        seen.check()


async def test_every_answer_to_a_dead_delivery_can_be_read(scene: Scene, browser: Browser) -> None:
    await scene.fill()
    [dead] = (await scene.call("GET", "/engine/deliveries?state=dead"))["deliveries"]
    async with watched(browser) as seen:
        await seen.page.goto(f"{scene.url}/console/deliveries/{dead['id']}")
        await seen.live()
        main = seen.page.locator("main")
        await expect(main).to_contain_text("Start of the answer to attempt 2")
        await main.get_by_text("Answer to attempt 1").click()
        await expect(main.get_by_label("Answer to attempt 1")).to_contain_text("the ledger is closed for the night")
        assert not await seen.faults()
        seen.check()
