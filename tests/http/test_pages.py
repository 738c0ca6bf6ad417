import re
from html.parser import HTMLParser
from importlib.resources import files
from urllib.parse import urljoin

import pytest

from chargehand.http import pages
from chargehand.http.application import Application
from chargehand.http.openapi import describe
from chargehand.http.request import Request
from chargehand.http.response import Response

FILES = {
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs/docs.css": ("docs.css", "text/css; charset=utf-8"),
    "/docs/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
}


class OpenGate:
    async def admit(self, req: Request, scope: str | None) -> None:
        assert scope is None


async def get(path: str, if_none_match: str = "") -> Response:
    app = Application(pages.ROUTES, OpenGate(), lambda *_: lambda *_: None)
    return await app(Request("GET", path, {"if-none-match": if_none_match}))


def source(name: str) -> str:
    return files("chargehand.http").joinpath("pages", name).read_text("utf-8")


class Page(HTMLParser):
    """The parts of the page that these tests check."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.script_text = ""
        self.feed(source("docs.html"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] in ("script", "style"):
            self.script_text += data.strip()

    def values(self, *names: str) -> set[str]:
        return {value for _, attrs in self.elements for name, value in attrs.items() if name in names and value}


@pytest.mark.parametrize("path", FILES)
async def test_a_page_is_served_with_its_type_and_strict_headers(path: str) -> None:
    name, media_type = FILES[path]
    answer = await get(path)
    assert answer.status == 200
    assert answer.data.decode() == source(name)
    assert answer.headers["content-type"] == media_type
    assert answer.headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    )
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-cache"
    assert re.fullmatch(r'"[0-9a-f]{32}"', answer.headers["etag"])


@pytest.mark.parametrize("form", ["{}", "W/{}", '"older", {}', "*"])
async def test_a_page_in_the_cache_of_the_browser_is_not_sent_again(form: str) -> None:
    etag = (await get("/docs/docs.js")).headers["etag"]
    answer = await get("/docs/docs.js", form.format(etag))
    assert answer.status == 304
    assert answer.data == b""
    assert answer.headers["etag"] == etag
    assert answer.headers["cache-control"] == "no-cache"


async def test_a_changed_page_is_sent() -> None:
    answer = await get("/docs", '"older"')
    assert answer.status == 200
    assert answer.data


def test_the_pages_are_public_and_not_in_the_api_description() -> None:
    assert {route.path for route in pages.ROUTES} == set(FILES)
    assert all(route.scope is None for route in pages.ROUTES)
    assert describe(pages.ROUTES, title="t", version="1", description="d")["paths"] == {}


def test_the_page_has_nothing_inline_that_its_policy_would_refuse() -> None:
    page = Page()
    assert page.script_text == ""
    assert "style" not in {tag for tag, _ in page.elements}
    assert not {name for _, attrs in page.elements for name in attrs if name == "style" or name.startswith("on")}


def test_the_page_loads_only_files_of_this_server() -> None:
    wanted = {urljoin("/docs", link) for link in Page().values("src", "href") if not link.startswith(("#", "data:"))}
    assert wanted == {"/docs/docs.css", "/docs/docs.js", "/openapi.json"}
    assert not re.search(r"@import|url\(", source("docs.css"))
    assert not re.search(r"\bimport\b", source("docs.js"))


def test_every_element_that_the_script_uses_is_on_the_page() -> None:
    script, ids = source("docs.js"), Page().values("id")
    assert set(re.findall(r'byId\("([\w-]+)"\)', script)) <= ids
    assert set(re.findall(r'"([ig]-(?:copy|check|done|failed|warn))"', script)) <= ids


@pytest.mark.parametrize(
    "forbidden", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", ".style"]
)
def test_the_script_never_makes_markup_or_code_from_text(forbidden: str) -> None:
    assert forbidden not in source("docs.js")


def test_the_token_is_kept_in_the_tab_only() -> None:
    assert "sessionStorage" in source("docs.js")
    assert "localStorage" not in source("docs.js")
    assert "document.cookie" not in source("docs.js")
