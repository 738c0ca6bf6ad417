"""The files of the console: their policy, their ETags, and that each is used."""

import re
from pathlib import Path

import pytest

import chargehand.console
from tests.api.serving import Api, on_sqlite

STATIC = Path(chargehand.console.__file__).parent / "static"
FILES = sorted(str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file())
PAGES = [name for name in FILES if name.endswith(".html")]
SCRIPTS = [name for name in FILES if name.endswith(".js")]
IMPORT = re.compile(r"""(?:from|import)\s+"(\.{1,2}/[^"]+)";""")


@on_sqlite
async def test_every_page_is_the_shell_with_a_policy_that_allows_only_its_own_files(api: Api) -> None:
    for path in ("/console", "/console/jobs", "/console/jobs/01ABC", "/console/servers/a%2Fb"):
        answer = await api.get(path)
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        rules = dict(rule.strip().split(" ", 1) for rule in answer.headers["content-security-policy"].split(";"))
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
        assert rules["frame-ancestors"] == rules["base-uri"] == "'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in answer.headers


@on_sqlite
async def test_only_browsers_are_redirected_from_the_root_to_the_console(api: Api) -> None:
    answer = await api.get("/", {"Accept": "text/html,application/xhtml+xml"})
    assert (answer.status, answer.headers["location"]) == (302, "/console")
    assert (await api.get("/", {"Accept": "*/*"})).status == 200


@on_sqlite
@pytest.mark.parametrize("name", ["index.html", "main.js", "console.css", "icon.svg", "pages/now.js"])
async def test_a_file_that_did_not_change_is_not_sent_again(api: Api, name: str) -> None:
    first = await api.get(f"/console/static/{name}")
    assert first.status == 200
    assert first.headers["cache-control"] == "no-cache"
    again = await api.get(f"/console/static/{name}", {"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    other = await api.get(f"/console/static/{name}", {"If-None-Match": '"another"'})
    assert (other.status, other.body) == (200, first.body)


@on_sqlite
@pytest.mark.parametrize(
    "name", ["nothing.js", "pages", "../console.py", "..%2Fconsole.py", "%2e%2e/assets.py", "/etc/passwd"]
)
async def test_an_unknown_file_of_the_console_is_not_found(api: Api, name: str) -> None:
    answer = await api.get(f"/console/static/{name}")
    assert b"import " not in answer.body
    assert answer.status in (200, 404)
    if answer.status == 200:  # the client resolved the dots: the path is a page of the console, so the shell
        assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("name", PAGES)
def test_the_shell_has_no_inline_script_and_no_inline_style(name: str) -> None:
    text = (STATIC / name).read_text()
    assert "<style" not in text
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert not re.search(r"\s(style|on[a-z]+)=", text)
    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_creates_markup_that_the_policy_forbids(name: str) -> None:
    text = (STATIC / name).read_text()
    assert not re.search(r"""<[a-z][^>]*\s(style|on(click|load|error|input|change|submit))=""", text)
    assert not re.search(r"\beval\(|new Function\(|https?://(?!127\.0\.0\.1|10\.0\.0)[a-z]", text)


def test_every_file_is_used_and_every_used_file_exists() -> None:
    markup = "".join((STATIC / name).read_text() for name in PAGES)
    needed = {*PAGES, *re.findall(r'"/?console/static/([^"]+)"', markup)}
    waiting = [name for name in needed if name.endswith(".js")]
    while waiting:
        at = STATIC / waiting.pop()
        for target in IMPORT.findall(at.read_text()):
            name = str((at.parent / target).resolve().relative_to(STATIC))
            if name not in needed:
                needed.add(name)
                waiting.append(name)
    assert needed == set(FILES)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_imported_name_is_exported(name: str) -> None:
    text = (STATIC / name).read_text()
    for names, target in re.findall(r"""import \{([^}]+)\} from "(\.[^"]+)";""", text):
        there = ((STATIC / name).parent / target).read_text()
        for each in (part.split(" as ")[0].strip() for part in names.split(",")):
            exports = rf"export (?:async )?(?:function|const|let|class) {re.escape(each)}(?![\w$])"
            assert not each or re.search(exports, there), f"{name}: {target} exports no {each}"
