"""A browser sends its stored credentials for every page; requests by pages of other sites are refused."""

import base64

import pytest

from chargehand.http.credentials import hash_password, hash_token
from chargehand.http.neighbours import is_foreign, is_local_name, names_of, places_of
from tests.api.serving import on_sqlite, serving, talking

PUBLIC = ["https://jobs.example.com:443", "http://metal.example.com:8484/", ""]
NAMES, PLACES = names_of(PUBLIC), places_of(PUBLIC)
TOKEN = "a-token-of-somebody"
JOB = b'{"queue": "q", "payload": null}'
TYPES = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json", "")


@pytest.mark.parametrize(
    ("host", "origin", "site"),
    [
        ("127.0.0.1:8484", "", ""),  # a program
        ("", "", ""),
        ("127.0.0.1:8484", "http://127.0.0.1:8484", ""),
        ("127.0.0.1:8484", "http://127.0.0.1:8484", "same-origin"),
        ("127.0.0.1:8484", "null", "same-origin"),  # of a page with an opaque origin
        ("127.0.0.1:8484", "", "none"),  # a typed address
        ("127.0.0.1:8484", "app://obsidian.md", "cross-site"),  # a program with an embedded browser
        ("127.0.0.1:8484", "vscode-webview://abc", ""),
        ("jobs.example.com", "https://jobs.example.com", ""),
        (
            "127.0.0.1:8484",
            "https://jobs.example.com",
            "",
        ),  # a proxy that has the public name, and sends its own as Host
        ("127.0.0.1:8484", "http://metal.example.com:8484", ""),
        ("127.0.0.1:8484", "http://localhost:5173", "same-origin"),  # the proxy of a developer's web server
    ],
)
def test_requests_of_programs_and_our_own_pages_are_accepted(host: str, origin: str, site: str) -> None:
    assert not is_foreign(host, origin, site, PLACES)


@pytest.mark.parametrize(
    ("host", "origin", "site"),
    [
        ("127.0.0.1:8484", "https://evil.example", ""),
        ("127.0.0.1:8484", "https://evil.example", "cross-site"),
        ("127.0.0.1:8484", "", "cross-site"),  # an image, a frame, a link
        ("127.0.0.1:8484", "", "same-site"),
        ("127.0.0.1:8484", "", "something new"),
        ("127.0.0.1:8484", "null", ""),  # a page in a sandbox, a file
        ("127.0.0.1:8484", "null", "cross-site"),
        ("127.0.0.1:8484", "http://127.0.0.1:3000", ""),  # another server of this machine is another site
        ("127.0.0.1:8484", "http://localhost:8484", ""),
        ("127.0.0.1:8484", "http://[::1", ""),
        ("127.0.0.1:8484", "http://", ""),
        ("jobs.example.com", "https://jobs.example.com.evil.example", ""),
        ("jobs.example.com", "http://metal.example.com", ""),
        ("127.0.0.1:8484", "http://jobs.example.com:3000", ""),
        ("", "http://evil.example", ""),
    ],
)
def test_requests_of_pages_of_other_sites_are_refused(host: str, origin: str, site: str) -> None:
    assert is_foreign(host, origin, site, PLACES)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8484", "localhost:8484", "LOCALHOST.", "[::1]:8484", "", "a.localhost", "10.0.2.2", "jobs.example.com"],
)
def test_addresses_localhost_and_configured_names_are_local(host: str) -> None:
    assert is_local_name(host, NAMES)


@pytest.mark.parametrize(
    "host", ["rebound.evil.example:8484", "user@evil.example", "jobs.example.com.evil.example", "[", "127.0.0.1.evil.example"]
)  # fmt: skip
def test_a_name_that_an_attacker_may_own_is_not_local(host: str) -> None:
    assert not is_local_name(host, NAMES)


@on_sqlite
async def test_without_auth_a_page_of_another_site_cannot_submit_and_gets_the_reason(store_url: str) -> None:
    body = {"queue": "q", "payload": None}
    settings = {"provisioning.public_url": "https://metal.example.com"}
    async with serving(store_url, settings) as server, talking(server) as api:
        refused = await api.post("/engine/jobs", body, {"Origin": "https://evil.example"})
        assert "Origin" in refused.problem(403, "auth.forbidden")["detail"]
        with_a_token = {"Origin": "https://evil.example", "Authorization": "Bearer of-no-worth-here"}
        (await api.post("/engine/jobs", body, with_a_token)).problem(403, "auth.forbidden")
        refused = await api.get("/engine/jobs", {"Host": "rebound.evil.example"})
        assert "Host" in refused.problem(403, "auth.forbidden")["detail"]
        (await api.get("/engine/jobs", {"Sec-Fetch-Site": "cross-site"})).problem(403, "auth.forbidden")
        (await api.post("/engine/jobs", body, {"Origin": server.url})).good(202)
        (await api.get("/engine/jobs", {"Host": "metal.example.com"})).good()
        assert (await api.get("/healthz", {"Host": "rebound.evil.example"})).status == 200


@on_sqlite
async def test_a_password_that_a_browser_stored_does_not_work_for_another_site(store_url: str) -> None:
    """Nor does a token that it stored as one. Programs send no Origin, and our pages send ours."""
    users = [{"name": "ada", "password_hash": hash_password("secret"), "scopes": ["*"]}]
    settings = {"auth.users": users, "auth.tokens": [{"name": "ci", "hash": hash_token(TOKEN)}]}
    remembered = ["ada:secret", f"token:{TOKEN}"]
    foreign = [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
    foreign += [{"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:1"}]
    async with serving(store_url, settings) as server, talking(server) as api:
        for password in remembered:
            basic = {"Authorization": f"Basic {base64.b64encode(password.encode()).decode()}"}
            for page in foreign:
                for kind in TYPES:
                    headers = basic | page | {"Content-Type": kind}
                    answer = await api.call("POST", "/engine/jobs", data=JOB, headers=headers)
                    assert "Origin" in answer.problem(403, "auth.forbidden")["detail"]
                (await api.get("/engine/jobs", basic | page)).problem(403, "auth.forbidden")
            assert (await api.get("/engine/jobs", basic)).good()["jobs"] == []
        ours = basic | {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
        assert (await api.call("POST", "/engine/jobs", data=JOB, headers=ours)).status == 202
        assert (await api.call("POST", "/engine/jobs", data=JOB, headers=basic)).status == 202


@on_sqlite
async def test_a_token_in_a_header_is_accepted_from_any_site_and_by_any_host_name(store_url: str) -> None:
    settings = {"auth.tokens": [{"name": "ci", "hash": hash_token(TOKEN)}]}
    elsewhere = {"Host": "jobs.example.com", "Origin": "https://ui.example.com", "Sec-Fetch-Site": "cross-site"}
    async with serving(store_url, settings) as server, talking(server) as api:
        for token in ({"Authorization": f"Bearer {TOKEN}"}, {"X-Api-Key": TOKEN}):
            (await api.get("/engine/jobs", elsewhere | token)).good()
