"""Request and Response by themselves, and the route table."""

import pytest

from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.table import Table


def table(*templates: str) -> Table[str]:
    made: Table[str] = Table()
    for template in templates:
        made.add(template, template)
    return made


# The table


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/jobs", ("/jobs", {})),
        ("/jobs/7", ("/jobs/{job_id}", {"job_id": "7"})),
        ("/jobs/new", ("/jobs/new", {})),
        ("/jobs/new/log", ("/jobs/{job_id}/log", {"job_id": "new"})),  # no route below the literal
        ("/jobs/7/log", ("/jobs/{job_id}/log", {"job_id": "7"})),
        ("/jobs/7/parts/2", ("/jobs/{job_id}/parts/{part}", {"job_id": "7", "part": "2"})),
        ("/jobs/7/other", ("/jobs/{rest:path}", {"rest": "7/other"})),
        ("/jobs/7/log/more", ("/jobs/{rest:path}", {"rest": "7/log/more"})),
        ("/jobs/", ("/jobs/{rest:path}", {"rest": ""})),
        ("/jobs//", ("/jobs/{rest:path}", {"rest": "/"})),
        ("/jobs//log", ("/jobs/{rest:path}", {"rest": "/log"})),
        ("//jobs/7", ("/jobs/{job_id}", {"job_id": "7"})),
        ("///jobs", ("/jobs", {})),
        ("/", ("/", {})),
        ("/Jobs", None),
        ("/jobsx", None),
        ("*", None),
        ("/{job_id}", None),
    ],
)
def test_a_literal_has_precedence_over_a_parameter_and_that_over_the_rest(
    path: str, found: tuple[str, dict[str, str]] | None
) -> None:
    templates = ["/jobs", "/jobs/new", "/jobs/{job_id}", "/jobs/{job_id}/log", "/jobs/{job_id}/parts/{part}"]
    templates += ["/jobs/{rest:path}", "/"]
    assert table(*templates).find(path) == found
    assert table(*reversed(templates)).find(path) == found


def test_an_encoded_slash_is_a_slash() -> None:
    found = table("/jobs/{job_id}", "/files/{name:path}")
    assert found.find(Request("GET", "/jobs/a%2Fb", {}).path) is None
    assert found.find(Request("GET", "/files/a%2Fb", {}).path) == ("/files/{name:path}", {"name": "a/b"})


def test_templates_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="the parameter other is named job_id in another template"):
        table("/jobs/{job_id}", "/jobs/{other}/log")
    with pytest.raises(ValueError, match="must be the last segment"):
        table("/files/{name:path}/more")
    with pytest.raises(ValueError, match="must be the last segment"):
        table("/files/{name:path}", "/files/{other:path}")


# The query string


@pytest.mark.parametrize(
    ("query", "params"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a=1&a=2&a=3", {"a": ["1", "2", "3"]}),
        ("a=", {"a": ""}),
        ("a", {"a": ""}),
        ("a=1+2", {"a": "1 2"}),
        ("a=1%2B2", {"a": "1+2"}),
        ("a=%C3%A4&b=%ff", {"a": "ä", "b": "\ufffd"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=1;b=2", {"a": "1;b=2"}),
        ("&&a=1&", {"a": "1"}),
        ("%61=1&a=2", {"a": ["1", "2"]}),
        ("a=?b", {"a": "?b"}),
    ],
)
def test_the_query_string_is_decoded(query: str, params: dict[str, str | list[str]]) -> None:
    req = Request("GET", f"/path?{query}", {})
    assert req.params == params
    assert req.path == "/path"
    for name, value in params.items():
        assert req.get_param(name) == (value[-1] if isinstance(value, list) else value)
    assert req.get_param("absent") is None


# How the caller reached this server


@pytest.mark.parametrize(
    ("headers", "url"),
    [
        ({}, "http://here"),
        ({"x-forwarded-proto": "https"}, "https://here"),
        ({"x-forwarded-proto": "HTTPS", "x-forwarded-host": "there:8443"}, "https://there:8443"),
        ({"x-forwarded-proto": "https, http", "x-forwarded-host": "there , inner"}, "https://there"),
        ({"x-forwarded-proto": "", "x-forwarded-host": ""}, "http://here"),
        ({"forwarded": "for=192.0.2.1;host=there;proto=https"}, "https://there"),
        ({"forwarded": 'For="[2001:db8::1]:4711"; Host="there:8443"; Proto="HTTPS"'}, "https://there:8443"),
        ({"forwarded": "host=first, host=second;proto=https"}, "http://first"),
        ({"forwarded": "for=192.0.2.1", "x-forwarded-host": "there"}, "http://there"),
        ({"forwarded": "host=there", "x-forwarded-host": "other", "x-forwarded-proto": "https"}, "https://there"),
        ({"forwarded": ";;=,"}, "http://here"),
    ],
)
def test_the_base_url_follows_the_headers_of_proxies(headers: dict[str, str], url: str) -> None:
    assert Request("GET", "/", {"host": "here", **headers}).base_url == url


# The answer


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\r\nX: y", "a\0b"])
def test_a_header_value_with_a_line_break_is_refused(value: str) -> None:
    resp = Response()
    with pytest.raises(ValueError, match="line break"):
        resp.set_header("x", value)
    with pytest.raises(ValueError, match="line break"):
        resp.set_headers({"x": value})
    with pytest.raises(ValueError, match="line break"):
        resp.content_type = value
    assert resp.headers == {}


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_has_no_content_length(status: int) -> None:
    resp = Response()
    resp.status = status
    for resp.data in (b"", b"not sent"):
        head = resp.head(b"", is_last=False, is_chunked=True)
        assert b"content-length" not in head
        assert b"transfer-encoding" not in head
    assert not resp.has_body


def test_content_length_is_that_of_the_data_sent() -> None:
    resp = Response()
    resp.set_header("content-length", "99")
    resp.data = b"hello"
    head = resp.head(b"", is_last=False, is_chunked=False)
    assert head.count(b"content-length") == 1
    assert b"content-length: 5\r\n" in head


def test_the_last_answer_has_connection_close_and_characters_outside_latin_1_are_replaced() -> None:
    resp = Response()
    resp.set_header("x", "ä€")
    head = resp.head(b"date: now\r\n", is_last=True, is_chunked=False)
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"date: now\r\nx: \xe4?\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" in head
    resp.status = 299
    assert resp.head(b"", is_last=False, is_chunked=False).startswith(b"HTTP/1.1 299 Unknown\r\n")
