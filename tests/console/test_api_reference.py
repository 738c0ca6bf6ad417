"""The API reference at /docs: it is public, loads only our own files, and protects the token."""

import re
from urllib.parse import urljoin

import pytest

from tests.api.serving import Api, on_sqlite
from tests.console.test_assets import STATIC

PAGE = (STATIC / "docs.html").read_text()
SCRIPTS = {path.name: path.read_text() for path in STATIC.glob("docs*.js")}


@on_sqlite
async def test_the_page_is_served_with_its_type_and_strict_headers(api: Api) -> None:
    answer = await api.get("/docs")
    assert answer.status == 200
    assert answer.body.decode() == PAGE
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    )
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-cache"
    assert re.fullmatch(r'"[0-9a-f]{32}"', answer.headers["etag"])


@on_sqlite
@pytest.mark.parametrize("form", ["{}", "W/{}", '"older", {}', "*"])
async def test_a_page_in_the_cache_of_the_browser_is_not_sent_again(api: Api, form: str) -> None:
    etag = (await api.get("/docs")).headers["etag"]
    answer = await api.get("/docs", {"If-None-Match": form.format(etag)})
    assert (answer.status, answer.body) == (304, b"")
    assert answer.headers["etag"] == etag
    assert answer.headers["cache-control"] == "no-cache"


@on_sqlite
async def test_every_file_that_the_page_loads_exists_on_this_server(api: Api) -> None:
    links = set(re.findall(r'\b(?:src|href)="([^"#][^"]*)"', PAGE))
    assert links
    for link in links:
        assert not re.match(r"/|\w+:", link)  # relative, so that it works behind a proxy with a path prefix
        assert (await api.get(urljoin("/docs", link))).status == 200


@on_sqlite
async def test_the_page_is_not_part_of_the_api(api: Api) -> None:
    assert "/docs" not in (await api.get("/openapi.json")).good()["paths"]


def test_every_element_that_the_scripts_use_is_on_the_page() -> None:
    markup = PAGE + "".join(SCRIPTS.values())
    ids = set(re.findall(r'\bid="([\w-]+)"', markup)) | {"command", "answer-body"}
    wanted = {name for script in SCRIPTS.values() for name in re.findall(r'\$\("#([\w-]+)"', script)}
    assert wanted - {"p-answer"} <= ids
    assert set(re.findall(r'href="#([ig]-[\w-]+)"', markup)) <= ids
    assert {"g-done", "g-failed"} <= ids  # of parts.js


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize(
    "forbidden", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", ".style"]
)
def test_no_script_makes_markup_or_code_from_text(name: str, forbidden: str) -> None:
    assert forbidden not in SCRIPTS[name]


def test_the_token_is_kept_in_the_tab_only() -> None:
    scripts = "".join(SCRIPTS.values())
    assert "sessionStorage" in scripts
    assert "localStorage" not in scripts
    assert "document.cookie" not in scripts
    assert "/api.js" not in scripts  # it has the token of the console
