"""Targets that answer too much, too slowly, or with nonsense: other callers do not notice, and the failure says what was wrong."""

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.api.serving import Api, on_sqlite, until
from tests.e2e.server import Server
from tests.inference.calling import Caller, before_targets, chat
from tests.inference.hostile import (
    CHAT,
    LISTED,
    MEGABYTE,
    HostileTarget,
    Respond,
    drip,
    endless,
    head,
    hostile_target,
    nested,
    reply,
)
from tests.inference.memory import Memory

JSON = b'{"version":%b,"models":[{"name":%b,"size":%b}],"message":{"content":%b},"eval_count":%b,"done":true}\n'
LONG = b"9" * 10_000
BOMB = gzip.compress(bytes(50 * MEGABYTE))


async def nothing(_writer: asyncio.StreamWriter) -> None:
    pass


async def no_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff" * 5000)
    await writer.drain()


HOSTILE: dict[str, Respond] = {
    "an endless body": endless(b"x"),
    "an endless list": endless(b"[],", head() + b'{"models":['),
    "endless lines": endless(b"{}\n"),
    "endless headers": endless(b"X-A: b\r\n", b"HTTP/1.1 200 X\r\n"),
    "one endless header": endless(b"x", b"HTTP/1.1 200 X\r\nX-A: "),
    "an endless status": endless(b"x", b"HTTP/1.1 200 "),
    "endless chunks": endless(b"10\r\n" + b"x" * 16 + b"\r\n", head(headers={"Transfer-Encoding": "chunked"})),
    "deep nesting": reply(nested()),
    "no UTF-8": reply(JSON % (b'"\xff"', b'"\xff"', b"1", b'"\xff"', b"1")),
    "no JSON": reply(JSON % (b"NaN", b"NaN", b"NaN", b"NaN", b"NaN")),
    "numbers beyond all": reply(JSON % (b"1e400", b"1e400", b"1e400", b"1e400", b"1e400")),
    "numbers of 10,000 digits": reply(JSON % (LONG, LONG, LONG, LONG, LONG)),
    "half a surrogate": reply(JSON % (b'"\\ud800"', b'"\\ud800"', b"1", b'"\\ud800', b"1")),
    "other types": reply(JSON % (b"[]", b"{}", b"{}", b"[]", b"{}")),
    "less than it says": reply(b"{}", {"Content-Length": "100"}),
    "a length below zero": reply(b"{}", {"Content-Length": "-5"}),
    "a bomb": reply(BOMB, {"Content-Encoding": "gzip"}),
    "nothing": nothing,
    "no HTTP": no_http,
}
QUICK = {"inference__probe_seconds": 0.5, "inference__max_answer_bytes": 4 * MEGABYTE}


@pytest.fixture
async def target() -> AsyncIterator[HostileTarget]:
    async with hostile_target() as target:
        yield target


@pytest.fixture
async def caller(store_url: str, tmp_path: Path, target: HostileTarget) -> AsyncIterator[Caller]:
    table = [{"name": "laptop", "url": target.url}]
    async with before_targets(store_url, tmp_path, inference__targets=table, **QUICK) as (_, caller):
        yield caller


async def is_well(caller: Caller) -> None:
    """Assert that the target is used again once it behaves."""

    async def answers() -> bool:
        return (await caller.post("/api/chat", chat())).body == CHAT

    await until(answers, 20)


@on_sqlite
async def test_no_answer_of_a_target_about_itself_leads_to_a_500(
    caller: Caller, target: HostileTarget, subtests: pytest.Subtests
) -> None:
    for name, respond in HOSTILE.items():
        for path in ("/api/version", "/api/tags", "/api/ps", "/v1/models"):
            with subtests.test(name, path=path):
                target.says[path] = respond
                for read in ("/api/version", "/api/tags", "/api/ps", "/v1/models", "/targets"):
                    assert (await caller.get(read)).status in (200, 503), read
                del target.says[path]
    await is_well(caller)


@on_sqlite
async def test_an_invalid_answer_fails_its_job_with_the_reason(
    caller: Caller, target: HostileTarget, subtests: pytest.Subtests
) -> None:
    for name, respond in HOSTILE.items():
        with subtests.test(name):
            target.says["/api/chat"] = respond
            job = await caller.ended(await caller.ask(max_attempts=1), 20)
            assert job["state"] == "failed"
            assert job["error"].startswith(("laptop: ", "the answer is over"))
            assert len(job["error"]) < 3000
            del target.says["/api/chat"]
    await is_well(caller)


@on_sqlite
async def test_a_caller_that_waits_for_an_invalid_answer_gets_an_error(
    caller: Caller, target: HostileTarget, subtests: pytest.Subtests
) -> None:
    for name, respond in HOSTILE.items():
        for path in ("/api/show", "/v1/models/a", "/api/embed"):
            with subtests.test(name, path=path):
                target.says[path] = respond
                method, body = ("GET", None) if path.startswith("/v1") else ("POST", {"model": "a", "input": "x"})
                assert await told(caller, method, path, body)
                del target.says[path]
    await is_well(caller)


async def told(caller: Caller, method: str, path: str, body: object) -> bool:
    """Return whether the caller got an error, a short answer of the target, or a broken connection."""
    async with caller.session.request(method, caller.url + path, json=body, auto_decompress=False) as response:
        try:
            got = len(await response.read())
        except aiohttp.ClientPayloadError:
            return True
        return response.status in (502, 503) or (response.status == 200 and got < 4 * MEGABYTE)


@on_sqlite
async def test_an_answer_that_drips_in_times_out(store_url: str, tmp_path: Path, target: HostileTarget) -> None:
    table = [{"name": "laptop", "url": target.url}]
    hurry = {**QUICK, "inference__answer_timeout_seconds": 1, "inference__targets": table}
    async with before_targets(store_url, tmp_path, **hurry) as (_, caller):
        target.says["/api/chat"] = drip(b" ")
        job = await caller.ended(await caller.ask(max_attempts=1), 20)
        assert "did not finish in time" in job["error"]
        target.says["/api/embed"] = drip(b" ")
        answer = await caller.post("/api/embed", {"model": "a", "input": "x"})
        assert (answer.status, b"did not finish within 1 s" in answer.body) == (502, True)
        target.says["/api/version"] = drip(b" ")
        await until(lambda: caller_sees_away(caller), 20)
        del target.says["/api/version"], target.says["/api/chat"]
        await is_well(caller)


async def caller_sees_away(caller: Caller) -> bool:
    [seen] = (await caller.get("/targets")).good()["targets"]
    return bool(seen["state"] == "away")


@on_sqlite
async def test_the_error_text_of_a_target_is_shortened(caller: Caller, target: HostileTarget) -> None:
    """Megabytes of text would go into every event and webhook, and searching them for patterns would take too long."""
    for said in (b'"' + b"memory " * 100_000 + b'"', b'{"message":"' + b"memory " * 100_000 + b'"}', b"[" * 400):
        target.says["/api/chat"] = reply(b'{"error":' + said + b"}", status=500)
        job = await caller.ended(await caller.ask(max_attempts=1), 20)
        assert len(job["error"]) < 3000


@on_sqlite
async def test_an_answer_of_very_many_lines_does_not_block_other_callers(caller: Caller, target: HostileTarget) -> None:
    words = b'{"message":{"role":"assistant","content":"ab"}}\n' * 80_000
    target.says["/api/chat"] = reply(words + CHAT)
    job_id = await caller.ask()
    slowest = 0.0
    while (await caller.seen(job_id))["state"] not in ("done", "failed"):
        began = asyncio.get_running_loop().time()
        await caller.get("/healthz")
        slowest = max(slowest, asyncio.get_running_loop().time() - began)
    job = await caller.seen(job_id)
    assert job["result"]["message"]["content"] == "ab" * 80_000 + "yes"
    assert slowest < 2


async def test_an_answer_of_400_megabytes_takes_little_memory(tmp_path: Path, target: HostileTarget) -> None:
    store = f"sqlite:///{tmp_path}/chargehand.db"
    async with (
        Server(store, tmp_path, inference_targets=target.url, inference_max_answer_bytes=4 * MEGABYTE) as server,
        aiohttp.ClientSession() as session,
    ):
        api, memory = Api(server.url, session), Memory(server)
        await until(lambda: there(api), 20)
        await api.post("/api/chat", chat())
        for path in ("/v1/models/a", "/api/show", "/api/embed", "/api/chat", "/api/tags", "/v1/models"):
            for piece in (b"x", b"[],", b"{}\n", b"0,"):
                target.says[path] = endless(piece, head() + (b'{"models":[' if piece in (b"[],", b"0,") else b""))
                memory.begin()
                await asked(api, path)
                assert memory.grown() < 64 * MEGABYTE, (path, piece, memory.grown() // MEGABYTE)
            del target.says[path]


async def asked(api: Api, path: str) -> None:
    method = "GET" if path in ("/v1/models/a", "/api/tags", "/v1/models") else "POST"
    body = None if method == "GET" else {**chat(), "input": "x"}
    with contextlib.suppress(aiohttp.ClientPayloadError):  # a stream that is too long is cut off
        await api.call(method, path, body)


async def there(api: Api) -> bool:
    answer = await api.get("/api/tags")
    return answer.status == 200 and answer.body == LISTED
