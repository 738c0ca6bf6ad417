"""The headers of every answer tell browsers that it is not a page, except at the console and /docs, which are pages."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from chargehand.app import Server
from chargehand.http.headers import PAGE
from chargehand.http.response import Response
from chargehand.http.route import Route
from tests.api.serving import Api, exchange, on_sqlite, serving, talking, until
from tests.api.test_every_route import body_of, path_of, settings, token_of

__all__ = ["settings"]  # a fixture: settings with a token for each tenant

NO_PAGE = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}
A_PAGE = NO_PAGE | PAGE
PAGES = ("/console", "/docs")
TOKEN = token_of("acme").encode()


@pytest.fixture
async def nobody(server: Server) -> AsyncIterator[Api]:
    async with talking(server) as client:
        yield client


async def head_of(api: Api, route: Route) -> tuple[int, Any]:
    """Return the status and the headers without reading the body: some streams do not end."""
    url = api.url + path_of(route)
    async with api.session.request(route.method, url, json=body_of(route), headers=api._headers) as response:
        return response.status, response.headers


def said(headers: Any) -> dict[str, str]:
    """Return the security headers, after asserting that each is there once."""
    names = [name.lower() for name in headers]
    assert all(names.count(name) == 1 for name in NO_PAGE), f"not once each: {names}"
    return {name: headers[name] for name in A_PAGE if name in headers}


def said_in(answer: bytes) -> dict[str, str]:
    """Return the security headers of a raw answer."""
    head = answer.partition(b"\r\n\r\n")[0].decode()
    headers = [line.partition(": ") for line in head.split("\r\n")[1:]]
    assert len({name for name, _, _ in headers}) == len(headers)
    return said({name: value for name, _, value in headers})


@on_sqlite
async def test_the_answers_of_every_route_have_security_headers(
    server: Server, nobody: Api, subtests: pytest.Subtests
) -> None:
    for route in server.routes():
        for caller in (nobody.of(token_of("acme")), nobody):
            with subtests.test(route=f"{route.method} {route.path}"):
                status, headers = await head_of(caller, route)
                if status == 200 and route.path.startswith(PAGES):
                    assert said(headers) == A_PAGE
                else:
                    assert said(headers).items() >= NO_PAGE.items()
                assert "set-cookie" not in headers
                assert not [name for name in headers if name.lower().startswith("access-control-")]


@on_sqlite
async def test_answers_that_come_from_no_route_have_security_headers(
    server: Server, nobody: Api, subtests: pytest.Subtests
) -> None:
    for path in ("/nowhere", "/console/static/nothing.js", "/docs/nothing", "/consoles", "/%00"):
        with subtests.test(path=path):
            assert said((await nobody.get(path)).headers) == NO_PAGE
    for path in {path_of(route) for route in server.routes()}:
        for method in ("OPTIONS", "TRACE"):
            with subtests.test(path=path, method=method):
                given = await nobody.call(method, path, headers={"Origin": "https://evil.example"})
                assert said(given.headers) == NO_PAGE
                assert not [name for name in given.headers if name.lower().startswith("access-control-")]


@on_sqlite
@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (400, b"GET / HTTP/1.1\r\nHost : spaced\r\n\r\n"),
        (413, b"POST /engine/jobs HTTP/1.1\r\nX-Api-Key: %s\r\nContent-Length: 99999999\r\n\r\n{" % TOKEN),
        (431, b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 200_000 + b"\r\n\r\n"),
        (501, b"CONNECT here:443 HTTP/1.1\r\n\r\n"),
        (200, b"GET /healthz HTTP/1.1\r\nX-Request-Id: content-security-policy: none\r\n\r\n"),
        (200, b"GET /healthz HTTP/1.0\r\n\r\n"),
    ],
    ids=lambda each: str(each) if isinstance(each, int) else "",
)
async def test_answers_to_odd_requests_have_security_headers(server: Server, status: int, request_: bytes) -> None:
    given, answer = await exchange(server, request_)
    assert given == status
    assert said_in(answer) == NO_PAGE


@on_sqlite
async def test_the_answer_to_one_connection_too_many_has_security_headers(store_url: str) -> None:
    async with serving(store_url, {"server.max_connections": 1}) as server, talking(server) as api:
        await api.get("/healthz")  # the client keeps its connection open

        async def turned_away() -> bytes | None:
            status, answer = await exchange(server, b"GET /healthz HTTP/1.1\r\n\r\n")
            return answer if status == 503 else None

        assert said_in(await until(turned_away)) == NO_PAGE


def test_a_header_value_that_looks_like_a_policy_is_not_taken_for_one() -> None:
    resp = Response()
    resp.set_header("x-request-id", "content-security-policy: none")
    assert said_in(resp.head(b"", is_last=False, is_chunked=False)) == NO_PAGE
