"""Hostile content in a real browser: a model's answer, a manifest, a job. Nothing of it runs, and no token leaks.

A user is signed in at the console: a script on its origin would find the token in the browser's storage.
"""

import hashlib
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from playwright.async_api import Browser, Dialog, Error, Page

from tests.e2e.server import eventually
from tests.inference.conformance import Answer, Model, OllamaTarget
from tests.ui.conftest import SHOTS
from tests.ui.elsewhere import Elsewhere
from tests.ui.scene import Scene, a_scene
from tests.ui.test_other_sites import AUTH, TOKEN, remember
from tests.ui.watching import watched

pytestmark = [pytest.mark.ui, pytest.mark.timeout(300)]

both = pytest.mark.parametrize("auth", [True, False], ids=["auth", "open"])
LOCAL = {"webhooks_allow_networks": "127.0.0.0/8", "webhooks_max_attempts": 1}
RELAYED = ("/api/generate", "/api/chat", "/v1/chat/completions", "/v1/messages", "/api/show", "/api/embed")


@asynccontextmanager
async def shown(folder: Path, browser: Browser, auth: bool, **settings: Any) -> AsyncIterator[tuple[Scene, Page]]:
    """A server, and the browser of a signed-in user."""
    settings = {"inference_embedded": "off", **LOCAL, **settings}
    async with a_scene(folder, **settings, **(AUTH if auth else {})) as scene, watched(browser) as seen:
        if auth:
            scene.http.headers["Authorization"] = f"Bearer {TOKEN}"
            await remember(scene, seen.page)
        yield scene, seen.page


def quiet(page: Page, evil: Elsewhere) -> list[str]:
    """Collect whatever a page must not do."""
    heard = evil.seen

    async def on_dialog(dialog: Dialog) -> None:
        heard.append(f"a dialog: {dialog.message}")
        await dialog.dismiss()

    page.on("dialog", on_dialog)
    return heard


@asynccontextmanager
async def saved_is_well_too() -> AsyncIterator[None]:
    """Check that a file which the browser saves is not HTML."""
    try:
        yield
    except Error as error:
        if "Download is starting" not in str(error) and "ERR_ABORTED" not in str(error):
            raise


async def visit(page: Page, url: str) -> None:
    async with saved_is_well_too():
        await page.goto(url)


async def nothing_ran(page: Page) -> None:
    await page.wait_for_load_state("networkidle")
    assert not await page.evaluate("window.ran")


# ── a model server ────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def hostile_target(evil: Elsewhere) -> AsyncIterator[str]:
    """A target that answers every request with a page that attacks, and with headers that would help it."""
    models = {"models": [{"name": name, "model": name, "digest": "0" * 64} for name in ("evil:latest", evil.short)]}
    known = {"/api/version": {"version": "0.12.0"}, "/api/tags": models, "/api/ps": {"models": []}}
    headers = {
        "Set-Cookie": "stolen=1; Path=/",
        "Access-Control-Allow-Origin": "*",
        "Content-Security-Policy": "default-src * 'unsafe-inline'",
        "Location": evil.at(),
        "Refresh": f"0; url={evil.at()}/refresh",
        "Link": f"<{evil.at()}/style>; rel=stylesheet",
    }

    async def answer(request: web.Request) -> web.Response:
        if request.path in known:
            return web.json_response(known[request.path])
        body = f"<!doctype html><body>{evil.markup}"
        return web.Response(text=body, content_type="text/html", headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def up(scene: Scene) -> bool:
    return any(target["state"] == "up" for target in (await scene.call("GET", "/targets"))["targets"])


@both
async def test_a_page_in_the_answer_of_a_model_server_runs_nothing(
    tmp_path: Path, browser: Browser, evil: Elsewhere, auth: bool
) -> None:
    """A page of ours makes the request, so that the answer has our origin: no other page could."""
    async with (
        hostile_target(evil) as url,
        shown(tmp_path, browser, auth, inference_targets=url, inference_wait_seconds=5) as (scene, page),
    ):
        heard = quiet(page, evil)
        await eventually(lambda: up(scene), 30, "the target is there")
        send = """(path) => {
            const form = document.createElement("form");
            Object.assign(form, { method: "post", action: path, enctype: "text/plain" });
            const field = document.createElement("input");
            field.name = '{"model": "evil", "stream": false, "prompt": "x", "messages": [], "input": "x", "x": "';
            field.value = '"}';
            form.append(field);
            document.body.append(form);
            form.submit();
        }"""
        for path in RELAYED:
            await page.goto(f"{scene.url}/docs")
            async with saved_is_well_too(), page.expect_navigation(url=f"{scene.url}{path}"):
                await page.evaluate(send, path)
            await nothing_ran(page)
        for path in ("/v1/models/evil", "/v1/models/evil:latest", "/api/tags", "/v1/models"):
            await visit(page, scene.url + path)
            await nothing_ran(page)
        assert await page.context.cookies() == []
        assert heard == []


@both
async def test_no_header_and_no_page_of_a_model_server_is_passed_on(
    tmp_path: Path, browser: Browser, evil: Elsewhere, auth: bool
) -> None:
    look = """async (path) => {
        const body = JSON.stringify({ model: "evil", stream: false, prompt: "x", messages: [], input: "x" });
        const answer = await fetch(path, path.startsWith("/v1/models") ? {} : { method: "POST", body });
        return [answer.status, Object.fromEntries(answer.headers)];
    }"""
    async with (
        hostile_target(evil) as url,
        shown(tmp_path, browser, auth, inference_targets=url, inference_wait_seconds=5) as (scene, page),
    ):
        await eventually(lambda: up(scene), 30, "the target is there")
        await page.goto(f"{scene.url}/docs")
        for path in (*RELAYED, "/v1/models/evil"):
            status, headers = await page.evaluate(look, path)
            assert status < 500 or status == 502, f"{path}: {status}"
            assert "html" not in headers.get("content-type", ""), f"{path}: {headers}"
            assert not {"access-control-allow-origin", "location", "refresh", "link"} & headers.keys(), (
                f"{path}: {headers}"
            )
            assert headers["content-security-policy"].endswith("sandbox"), f"{path}: {headers}"
        assert await page.context.cookies() == []


# ── a registry client ─────────────────────────────────────────────────────────────────────────────────────────────────


@both
async def test_a_manifest_and_a_blob_with_html_run_nothing(
    tmp_path: Path, browser: Browser, evil: Elsewhere, auth: bool
) -> None:
    page_text = f"<!doctype html><body>{evil.markup}".encode()
    digest = f"sha256:{hashlib.sha256(page_text).hexdigest()}"
    layer = {"mediaType": "text/html", "digest": digest, "size": len(page_text)}
    manifest = {"schemaVersion": 2, "config": layer, "layers": [layer], "annotations": {"title": evil.markup}}
    kinds = ("text/html", "image/svg+xml", "application/xhtml+xml", "application/vnd.oci.image.manifest.v1+json")
    async with shown(tmp_path, browser, auth, provisioning_enabled="true") as (scene, page):
        heard = quiet(page, evil)
        repository = f"{scene.url}/v2/hostile"
        async with scene.http.post(f"{repository}/blobs/uploads/?digest={digest}", data=page_text) as pushed:
            assert pushed.status == 201, await pushed.text()
        kept = []
        for number, kind in enumerate(kinds):
            body = json.dumps({**manifest, "mediaType": kind}).encode()
            headers = {"Content-Type": kind}
            async with scene.http.put(f"{repository}/manifests/v{number}", data=body, headers=headers) as answer:
                assert answer.status in (201, 400, 415), await answer.text()
                kept += [kind] if answer.status == 201 else []
            await visit(page, f"{repository}/manifests/v{number}")
            await nothing_ran(page)
        for path in (f"blobs/{digest}", "tags/list", "manifests/%3Cscript%3E", "referrers/sha256:0"):
            await visit(page, f"{repository}/{path}")
            await nothing_ran(page)
        assert heard == []
        assert kept == [kinds[-1]], "what no registry client has a use for is not kept"


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def fill(scene: Scene, evil: Elsewhere) -> list[str]:
    """Submit jobs of all doors in which every text is hostile; return their ids."""
    short, markup = evil.short, evil.markup
    hook = f"http://127.0.0.1:{evil.port}/hook/{quote(short, safe='<>=/')}"
    engine = {"queue": short, "payload": {markup: markup}, "metadata": {markup: markup}, "webhook": {"url": hook}}
    job = (await scene.call("POST", "/engine/jobs", engine, {"Idempotency-Key": short}))["job_id"]
    waiting = (await scene.call("POST", "/engine/jobs", {**engine, "queue": f"waiting {short}"}))["job_id"]
    [held] = (await scene.call("POST", "/engine/claims", {"queues": [short], "owner": short[:60]}))["jobs"]
    note = {"lease": held["lease"], "message": markup, "level": "warn", "step": short, "data": {markup: markup}}
    await scene.call("POST", f"/engine/jobs/{job}/note", note)
    await scene.call(
        "POST", f"/engine/jobs/{job}/fail", {"lease": held["lease"], "error": markup, "failed_step": short}
    )
    chat = await scene.chat(markup, hook, model="evil")
    unknown = await scene.chat(markup, model="no-such-model")
    tasks = [await scene.task(f"{short} {each}", payload=markup, maxAttempts=1, webhook=hook) for each in ("a", "b")]
    commands = {"commands": [f"{short} a", f"{short} b"], "workerId": short[:60]}
    for act in ("result", "nack"):
        task = await scene.call("POST", "/v1/codeq/tasks/claim", commands)
        one = f"/v1/codeq/tasks/{task['id']}"
        await scene.call("POST", f"{one}/progress", {"percent": 5, "message": markup, "data": markup})
        if act == "nack":
            await scene.call("POST", f"{one}/nack", {"reason": markup, "delaySeconds": 0})
            continue
        files = [
            {"name": "script", "url": f"javascript:{evil.script}"},
            {"name": "steal", "url": f"{scene.url}//{evil.at().partition('//')[2]}/steal"},
            {"name": "page.html", "contentBase64": b64encode(markup.encode()).decode(), "contentType": "text/html"},
            {"name": "named", "url": f"http://x.invalid/{short}"},
        ]
        await scene.call(
            "POST", f"{one}/result", {"status": "COMPLETED", "result": {markup: markup}, "artifacts": files}
        )
    server = {
        "bmc_address": "http://127.0.0.1:9",
        "bmc_username": short,
        "vendor": short[:64],
        "labels": {"x": short[:60]},
    }
    await scene.call("PUT", "/api/v1/servers/SN-1", server)
    for ending in (chat, unknown):
        await scene.ended(ending)
    return [job, waiting, chat, unknown, *tasks]


@both
async def test_html_in_a_job_is_shown_as_text_on_every_page(
    tmp_path: Path, browser: Browser, evil: Elsewhere, auth: bool
) -> None:
    async with (
        OllamaTarget({"evil": Model()}) as target,
        shown(tmp_path, browser, auth, inference_targets=target.url, provisioning_enabled="true") as (scene, page),
    ):
        target.script("evil", Answer(chunks=[evil.markup, evil.markup]))
        heard = quiet(page, evil)
        page.on("console", lambda said: heard.append(said.text) if "Content Security" in said.text else None)
        jobs = await fill(scene, evil)

        async def deliveries() -> Any:
            return (await scene.call("GET", "/engine/deliveries?state=dead"))["deliveries"]

        dead = await eventually(deliveries, 30, "a delivery is given up")
        pages = [
            "",
            "/jobs",
            f"/jobs?q={quote(evil.short)}",
            f"/jobs?queue={quote(evil.short)}",
            "/deliveries",
            "/targets",
        ]
        pages += [
            "/tasks",
            "/servers",
            "/servers/SN-1",
            "/settings",
            f"/{quote(evil.short, safe='')}",
            "/deliveries?state=dead",
        ]
        pages += [f"/jobs/{job}" for job in jobs] + [f"/deliveries/{dead[0]['id']}"]
        SHOTS.mkdir(parents=True, exist_ok=True)
        for number, path in enumerate(pages):
            await page.goto(f"{scene.url}/console{path}")
            await page.wait_for_selector("main:not([aria-busy]) h1")
            await page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
            await nothing_here(page)
            await page.screenshot(path=SHOTS / f"hostile-{number:02}-{'auth' if auth else 'open'}.png", full_page=True)
            for link in await page.locator("a[data-download]").all():
                if (await link.get_attribute("href") or "").startswith(scene.url):
                    await link.click()
            await nothing_here(page)
        assert heard == []
        if auth:
            assert await page.evaluate("localStorage.getItem('chargehand.token')") == TOKEN, (
                "there was something to steal"
            )


async def nothing_here(page: Page) -> None:
    """Wait a moment: the console's stream never ends, so its network is never idle."""
    assert not await page.evaluate("window.ran")
    assert not await page.locator("[data-hostile]").count(), f"{page.url}: the text became part of the page"
    assert not await page.locator("a[href^='javascript:' i]").count(), page.url
