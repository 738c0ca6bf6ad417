"""On loopback without [auth] a browser is the way in for strangers: pages of others are refused, whatever name they use."""

import pytest

from chargehand.http.credentials import hash_token
from chargehand.http.neighbours import is_neighbour, names_of
from tests.api.serving import on_sqlite, serving, talking

OURS = names_of(["https://jobs.example.com:8484", ""])
TOKEN = "a token of somebody"


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8484", ""),
        ("localhost:8484", ""),
        ("[::1]:8484", ""),
        ("", ""),
        ("127.0.0.1:8484", "http://127.0.0.1:8484"),
        ("127.0.0.1:8484", "http://localhost:3000"),
        ("chargehand.localhost:8484", "https://ui.localhost"),
        ("127.0.0.1:8484", "app://obsidian.md"),
        ("127.0.0.1:8484", "vscode-webview://abc"),
        ("10.0.2.2:8484", ""),  # forwarded to here: an address is nobody else's
        ("10.0.2.2:8484", "http://10.0.2.2:8484"),
        ("jobs.example.com", ""),  # which the operator says is ours
        ("jobs.example.com", "https://jobs.example.com"),
    ],
)
def test_programs_and_pages_of_this_machine_are_neighbours(host: str, origin: str) -> None:
    assert is_neighbour(host, origin, OURS)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8484", "https://evil.example"),
        ("127.0.0.1:8484", "null"),
        ("127.0.0.1:8484", "https://localhost.evil.example"),
        ("127.0.0.1:8484", "https://127.0.0.1.evil.example"),
        ("127.0.0.1:8484", "http://[::1"),
        ("rebound.evil.example:8484", ""),
        ("rebound.evil.example:8484", "http://rebound.evil.example:8484"),
        ("10.0.0.7:8484", "http://10.0.0.8:8484"),
        ("user@evil.example", ""),
        ("jobs.example.com.evil.example", ""),
        ("[", ""),
    ],
)
def test_pages_and_names_of_others_are_not(host: str, origin: str) -> None:
    assert not is_neighbour(host, origin, OURS)


@on_sqlite
async def test_a_page_of_somebody_else_cannot_submit_and_says_why(store_url: str) -> None:
    body = {"queue": "q", "payload": None}
    settings = {"provisioning.public_url": "https://metal.example.com"}
    async with serving(store_url, settings) as server, talking(server) as api:
        refused = await api.post("/engine/jobs", body, {"Origin": "https://evil.example"})
        assert "Origin" in refused.problem(403, "auth.forbidden")["detail"]
        (await api.get("/engine/jobs", {"Host": "rebound.evil.example"})).problem(403, "auth.forbidden")
        (await api.post("/engine/jobs", body, {"Origin": server.url})).good(202)
        (await api.get("/engine/jobs", {"Host": "metal.example.com"})).good()
        assert (await api.get("/healthz", {"Host": "rebound.evil.example"})).status == 200


@on_sqlite
async def test_with_auth_the_token_decides_and_names_do_not_matter(store_url: str) -> None:
    settings = {"auth.tokens": [{"name": "ci", "hash": hash_token(TOKEN)}]}
    async with serving(store_url, settings) as server, talking(server, TOKEN) as api:
        (await api.get("/engine/jobs", {"Host": "jobs.example.com", "Origin": "https://ui.example.com"})).good()
