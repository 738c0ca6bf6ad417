"""A page of another site tries everything that pages can do, in a real browser: it can neither submit nor read anything.

With auth, the browser has stored a password for HTTP Basic and the console's token; without auth, it runs on the server's machine.
"""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Frame, Page, Response

from chargehand.http.credentials import hash_password, hash_token, new_token
from tests.e2e.server import eventually
from tests.ui.elsewhere import EVIL, PAGE, REBOUND, Elsewhere
from tests.ui.scene import Scene, a_scene
from tests.ui.watching import watched

pytestmark = [pytest.mark.ui, pytest.mark.timeout(300)]

TOKEN = new_token()
AUTH: dict[str, Any] = {
    "auth_tokens": json.dumps([{"name": "operator", "hash": hash_token(TOKEN), "scopes": ["*"]}]),
    "auth_users": json.dumps([{"name": "ada", "password_hash": hash_password("secret"), "scopes": ["*"]}]),
}
CHAT = {"model": "tiny-stories", "messages": [{"role": "user", "content": "x"}], "stream": False}
POSTS: dict[str, Any] = {
    "/engine/jobs": {"queue": "stolen", "payload": "x"},
    "/jobs": CHAT,
    "/v1/codeq/tasks": {"command": "stolen", "payload": "x"},
    "/api/v1/jobs": {"server_serial": "SN-1", "recipe": {}, "note": "x"},
    "/api/pull": {"model": "x"},
    "/api/generate": {"stream": False, "prompt": "x", "model": "tiny-stories"},
    "/v2/stolen/blobs/uploads/": {"x": "x"},
}
GETS = ("/engine/jobs", "/v1/models", "/metrics", "/engine/settings")
STREAMS = ("/engine/feed",)
PAGES = ("/console", "/docs")
REFUSED = re.compile(
    "missing Authorization|unknown token|Host of this request|Method Not Allowed|UNSUPPORTED", re.IGNORECASE
)
TEMPLATES = {"/v2/stolen/blobs/uploads/": "/v2/{rest:path}"}


@dataclass
class Attacked:
    """A server with some data, a browser with stored credentials, and the answers that the browser got."""

    scene: Scene
    context: BrowserContext
    embedded: str
    answers: list[tuple[str, str, int]] = field(default_factory=list)
    refusals: set[str] = field(default_factory=lambda: {"403"})

    def note(self, response: Response) -> None:
        self.answers.append((response.request.method, response.url, response.status))

    async def jobs(self) -> int:
        return len((await self.scene.call("GET", "/engine/jobs?limit=500"))["jobs"])

    def plan(self, server: str) -> dict[str, Any]:
        posts = [[server + path, json.dumps(body)] for path, body in POSTS.items()]
        posts += [[self.embedded + path, json.dumps(CHAT)] for path in ("/api/chat", "/api/pull")]
        gets = [server + path for path in GETS] + [f"{self.embedded}/api/tags"]
        return {
            "posts": posts,
            "gets": gets,
            "streams": [server + path for path in STREAMS],
            "pages": [server + path for path in PAGES],
        }


@asynccontextmanager
async def attacked(folder: Path, browser: Browser, *, auth: bool) -> AsyncIterator[Attacked]:
    async with a_scene(folder, **(AUTH if auth else {})) as scene, watched(browser) as seen:
        if auth:
            scene.http.headers["Authorization"] = f"Bearer {TOKEN}"
            await remember(scene, seen.page)

        async def embedded() -> list[str]:
            return [target["url"] for target in (await scene.call("GET", "/targets"))["targets"]]

        [url] = await eventually(embedded, 60, "the embedded target is there")
        victim = Attacked(scene, seen.page.context, url)
        victim.context.on("response", victim.note)
        await known_by(victim, seen.page)
        yield victim


async def remember(scene: Scene, page: Page) -> None:
    """Sign in at the console, and enter the password for HTTP Basic once."""
    await page.goto(f"{scene.url}/console")
    await page.fill("#token", TOKEN)
    await page.check("#keep")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("main:not([aria-busy]) h1")
    await page.goto(f"{scene.url.replace('://', '://ada:secret@')}/v2")


async def known_by(victim: Attacked, page: Page) -> None:
    """Check that a page of ours gets answers with the stored credentials alone: so later refusals are due to the other page."""
    await page.goto(f"{victim.scene.url}/healthz")
    await page.goto(f"{victim.scene.url}/docs")
    post = "([url, body]) => fetch(url, {method: 'POST', body: new Blob([body], {type: 'text/plain'})}).then((a) => a.status)"
    path = "/engine/jobs"
    assert await page.evaluate(post, [victim.scene.url + path, json.dumps(POSTS[path])]) == 202
    assert await victim.jobs() == 1


async def attack(victim: Attacked, frame: Page | Frame, server: str) -> list[Any]:
    """Return what the page could read. Check that all its requests arrived, and were refused because of the page's site."""
    victim.answers.clear()
    before = await answered(victim.scene)
    read: list[Any] = await frame.evaluate("attack", victim.plan(server))
    sent = await answered(victim.scene) - before
    for route in (*POSTS, *GETS, *STREAMS):
        method, template = ("POST" if route in POSTS else "GET"), TEMPLATES.get(route, route)
        statuses = {status: count for (*asked, status), count in sent.items() if asked == [method, template]}
        statuses.pop("200", None)  # the test's own requests
        assert sum(statuses.values()) >= (8 if route in POSTS else 2), f"{method} {route}: {statuses}"
        assert not statuses.keys() - victim.refusals, f"{method} {route}: {statuses}"
    for path in ("/api/chat", "/api/pull"):
        told = [status for method, url, status in victim.answers if (method, url) == ("POST", victim.embedded + path)]
        assert len(told) >= 6, f"embedded {path}: {told}"
        assert set(told) == {401}, f"embedded {path}: {told}"
    return read


async def answered(scene: Scene) -> Counter[tuple[str, str, str]]:
    """Return how often each route answered with each status since the server's start."""
    async with scene.http.get(f"{scene.url}/metrics") as response:
        lines = re.findall(r"_http_request_seconds_count\{(.*?)\} ([0-9.]+)", await response.text())
    found: Counter[tuple[str, str, str]] = Counter()
    for labels, count in lines:
        given = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        found[given["method"], given["route"], given["status"]] += int(float(count))
    return found


@pytest.mark.parametrize("auth", [True, False], ids=["auth", "open"])
async def test_a_page_of_another_site_can_submit_and_read_nothing(
    tmp_path: Path, browser: Browser, evil: Elsewhere, auth: bool
) -> None:
    async with attacked(tmp_path, browser, auth=auth) as victim:
        for host in (EVIL, "127.0.0.1", "evil.localhost"):
            page = await victim.context.new_page()
            await page.goto(f"{evil.at(host)}/attack")
            assert await attack(victim, page, victim.scene.url) == []
            assert await victim.jobs() == 1, "only the one that we submitted ourselves"
            await page.close()
        assert (await victim.scene.call("GET", "/v2/_catalog"))["repositories"] == []
        assert evil.seen == []
        assert await victim.context.cookies() == []


@pytest.mark.parametrize("auth", [True, False], ids=["auth", "open"])
async def test_a_page_with_dns_rebinding_can_submit_and_read_nothing(
    tmp_path: Path, browser: Browser, evil: Elsewhere, auth: bool
) -> None:
    """The page was loaded under a name that now resolves to us: to the browser we are one site."""
    async with attacked(tmp_path, browser, auth=auth) as victim:
        rebound = re.sub(r"//[^:]+", f"//{REBOUND}", victim.scene.url)
        page = await victim.context.new_page()
        await page.route(f"{rebound}/attack", lambda route: route.fulfill(body=PAGE, content_type="text/html"))
        await page.goto(f"{rebound}/attack")
        victim.refusals = {"401" if auth else "403"}  # with auth it is not signed in: browsers store passwords by name
        read = await attack(victim, page, rebound)
        told = [str(each[-1]) for each in read if urlpath(each[1]) not in PAGES]
        assert [text for text in told if REFUSED.search(text)], "one site can read what the other says"
        assert not [text for text in told if text and not REFUSED.search(text)]
        assert await victim.jobs() == 1
        assert evil.seen == []


def urlpath(url: str) -> str:
    return re.sub("^[a-z]+://[^/]+", "", url)


async def test_a_sandboxed_page_is_treated_as_one_of_another_site(
    tmp_path: Path, browser: Browser, evil: Elsewhere
) -> None:
    async with attacked(tmp_path, browser, auth=False) as victim:
        page = await victim.context.new_page()
        await page.goto(f"{evil.at()}/attack")
        frame = {"src": f"{evil.at()}/attack", "sandbox": "allow-scripts allow-forms allow-popups"}
        await page.evaluate("(attributes) => element('iframe', attributes)[1]", frame)
        inside = page.frames[1]
        assert await inside.evaluate("window.origin") == "null"
        assert await attack(victim, inside, victim.scene.url) == []
        assert await victim.jobs() == 1


async def test_the_console_cannot_be_framed_or_controlled_by_another_window(
    tmp_path: Path, browser: Browser, evil: Elsewhere
) -> None:
    async with attacked(tmp_path, browser, auth=True) as victim:
        page = await victim.context.new_page()
        await page.goto(f"{evil.at()}/attack")
        await page.evaluate("(url) => { element('iframe', {src: url}) }", f"{victim.scene.url}/console")
        async with victim.context.expect_page() as opening:
            await page.evaluate("(url) => { window.other = window.open(url) }", f"{victim.scene.url}/console/jobs")
        console = await opening.value
        await console.wait_for_selector("main:not([aria-busy]) h1")
        assert await console.evaluate("window.opener") is None
        assert await page.evaluate("window.other.closed"), "to whoever opened it, it is gone"
        assert await console.evaluate("localStorage.getItem('chargehand.token')") == TOKEN
        await page.evaluate("window.other.postMessage({token: 'give'}, '*')")
        framed = page.frames[1]
        assert "Chargehand" not in await framed.content()
        assert await page.evaluate("read") == []


async def test_signing_out_in_one_tab_signs_out_the_others(tmp_path: Path, browser: Browser) -> None:
    async with a_scene(tmp_path, **AUTH) as scene, watched(browser) as seen:
        await seen.page.goto(f"{scene.url}/console")
        await seen.page.fill("#token", TOKEN)
        await seen.page.check("#keep")
        await seen.page.keyboard.press("Enter")
        await seen.live()
        other = await seen.page.context.new_page()
        await other.goto(f"{scene.url}/console")
        await other.get_by_text("sign out").click()
        await other.wait_for_selector("#token")
        await seen.page.bring_to_front()
        await seen.page.wait_for_selector("#token")
        stored = "JSON.stringify([{...localStorage}, {...sessionStorage}])"
        assert TOKEN not in await seen.page.evaluate(stored) + await other.evaluate(stored)
