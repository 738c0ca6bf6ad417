"""What passes between callers and targets: paths, headers, content types."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chargehand.app import Server
from chargehand.doors.inference.relay import media_type, path_below
from chargehand.errors import InvalidField
from tests.api.serving import Answer, exchange, on_sqlite
from tests.inference.calling import Caller, before_targets, chat
from tests.inference.hostile import CHAT, HostileTarget, hostile_target, reply

DANGEROUS = {
    "Set-Cookie": "session=stolen",
    "Location": "https://evil.example/",
    "Refresh": "0; url=https://evil.example/",
    "Link": "</evil.css>; rel=stylesheet",
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Credentials": "true",
    "Content-Security-Policy": "default-src *",
    "Content-Disposition": "inline",
    "Clear-Site-Data": '"*"',
    "Service-Worker-Allowed": "/",
    "SourceMap": "/x.map",
    "Server-Timing": "x",
    "Strict-Transport-Security": "max-age=0",
    "WWW-Authenticate": "Basic",
    "Alt-Svc": "h2=evil.example",
    "NEL": "{}",
    "X-Frame-Options": "ALLOWALL",
    "X-Odd": "caf\u00e9",
}
PATHS = ("/api/chat", "/api/show", "/v1/models/a", "/api/pull", "/api/embed")


class Near(Caller):
    """A caller that knows its server, to send requests which no client would."""

    server: Server


@pytest.fixture
async def target() -> AsyncIterator[HostileTarget]:
    async with hostile_target() as target:
        yield target


@pytest.fixture
async def caller(store_url: str, tmp_path: Path, target: HostileTarget) -> AsyncIterator[Near]:
    table = [{"name": "laptop", "url": target.url, "api_key": "operators-key"}]
    async with before_targets(store_url, tmp_path, inference__targets=table) as (server, caller):
        near = Near(caller.url, caller.session)
        near.server = server
        yield near


async def ask(caller: Caller, path: str) -> Answer:
    if path.startswith("/v1/models"):
        return await caller.get(path)
    return await caller.post(path, {**chat(), "input": "x"})


@on_sqlite
async def test_only_listed_headers_of_a_target_reach_the_caller(caller: Caller, target: HostileTarget) -> None:
    for path in PATHS:
        for status in (200, 302, 401, 500):
            target.says[path] = reply(CHAT, {**DANGEROUS, "X-Request-Id": "r1", "Retry-After": "7"}, status)
            answer = await ask(caller, path)
            assert (answer.status, answer.body) == (status, CHAT), path
            assert [name for name, value in DANGEROUS.items() if answer.headers.get(name) == value] == [], path
            assert (answer.headers["x-request-id"], answer.headers["retry-after"]) == ("r1", "7"), path
            assert answer.headers["x-content-type-options"] == "nosniff", path


@on_sqlite
async def test_a_type_that_a_browser_would_run_becomes_plain_bytes(caller: Caller, target: HostileTarget) -> None:
    page = b"<script>fetch('/jobs')</script>"
    kinds = ("text/html", "image/svg+xml", "text/xml", "application/xhtml+xml", "text/javascript", "", "nonsense")
    for path in PATHS:
        for kind in kinds:
            target.says[path] = reply(page, {"Content-Type": kind}, 400)
            answer = await ask(caller, path)
            shown = (answer.headers["content-type"], answer.headers["x-content-type-options"])
            assert (answer.body, shown) == (page, ("application/octet-stream", "nosniff")), (path, kind)


@on_sqlite
async def test_an_invalid_status_becomes_502(caller: Caller, target: HostileTarget) -> None:
    for path in ("/api/show", "/v1/models/a", "/api/pull"):
        target.says[path] = reply(b"{}", status=777)
        assert (await ask(caller, path)).status == 502, path


def test_the_types_of_real_answers_stay_as_they_are() -> None:
    for kind in ("application/json", "application/json; charset=utf-8", "application/x-ndjson", "text/event-stream"):
        assert media_type(kind) == kind
    assert media_type("text/plain; charset=utf-7") == "text/plain"
    assert media_type("text/html; charset=utf-8") == "application/octet-stream"
    assert media_type("application/json" + "; x=y" * 10_000) == "application/json"


@on_sqlite
async def test_a_target_does_not_get_the_credentials_of_the_caller(caller: Caller, target: HostileTarget) -> None:
    secrets = {"Authorization": "Bearer callers", "Cookie": "session=callers", "X-Api-Key": "callers", "Proxy-Authorization": "callers"}  # fmt: skip
    for path in ("/api/tags", "/v1/models", "/v1/models/a"):
        await caller.get(path, secrets)
    for path in ("/api/chat", "/api/show", "/api/pull", "/api/embed"):
        await caller.post(path, {**chat(), "input": "x"}, secrets)
    assert {"/api/chat", "/api/show", "/v1/models/a", "/api/pull"} <= set(target.paths)
    for head in target.heads:
        assert b"callers" not in head
        assert b"cookie" not in head.lower()
        assert b"Authorization: Bearer operators-key\r\n" in head


@on_sqlite
async def test_no_name_moves_a_request_to_another_path(caller: Near, target: HostileTarget) -> None:
    ways = (
        *("..", ".", "%2e%2e", "%2E.", "%252e%252e", "%25252e", "..%2f..%2f..%2fmetrics", "..%5c..%5cmetrics"),
        *("a/../../../metrics", "a/%2e%2e/x", "a//b", "%2f", "a%2f", "%2fetc", "a%0d%0aX:%20y", "a%00", "a%25"),
    )
    for prefix, method in (("/v1/models/", "GET"), ("/api/blobs/", "POST")):
        target.heads.clear()
        for way in ways:
            request = f"{method} {prefix}{way} HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
            status, body = await exchange(caller.server, request.encode())
            assert status in (400, 404, 405), (way, status, body)
        assert set(target.paths) <= {"/api/version", "/api/tags", "/api/ps"}, prefix


@on_sqlite
async def test_what_looks_like_a_query_in_a_name_stays_part_of_the_name(caller: Near, target: HostileTarget) -> None:
    for asked, sent in (
        ("a%3Fx=1", "/v1/models/a%3Fx%3D1"),
        ("a%23frag", "/v1/models/a%23frag"),
        ("a?x=1#frag", "/v1/models/a"),
        ("hf.co/unsloth/a%3Ab", "/v1/models/hf.co/unsloth/a:b"),
        ("caf%C3%A9", "/v1/models/caf%C3%A9"),
    ):
        target.heads.clear()
        await exchange(caller.server, f"GET /v1/models/{asked} HTTP/1.1\r\n\r\n".encode())
        assert sent in target.paths, (asked, target.paths)


def test_a_path_contains_only_names() -> None:
    assert path_below("/x/", "model", "a b/c:d@e") == "/x/a%20b/c:d@e"
    for bad in ("", ".", "..", "a/..", "../a", "a//b", "/a", "a/", "%2e", "a\\b", "a\nb", "a\0"):
        with pytest.raises(InvalidField):
            path_below("/x/", "model", bad)
