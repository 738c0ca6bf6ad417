"""Request smuggling: a request whose length is ambiguous is refused, and nothing after it is served.

The expected results are those of RFC 9112 (6.1, 6.3 and 7.1), not the parser's: a parser that becomes more lenient breaks
these tests. Where the RFC lets a server choose, ours refuses.
"""

from collections.abc import Iterator
from itertools import product

import pytest

from tests.http.memory import talk
from tests.http.serving import Handlers, Running

BAD = (400,)
BAD_CODING = (400, 501)  # RFC 9112, 6.1 requires either, and both can apply to a request
BAD_VERSION = (400, 505)

# Header lines, and the length of the body that they mean, or the refusal.
LENGTHS: list[tuple[str, list[bytes], int | None]] = [
    ("absent", [], 0),
    ("right", [b"Content-Length: 5"], 5),
    ("zero", [b"Content-Length: 0"], 0),
    ("with leading zeros", [b"Content-Length: 0005"], 5),
    ("repeated, the same", [b"Content-Length: 5", b"Content-Length: 5"], None),
    ("repeated, different", [b"Content-Length: 5", b"Content-Length: 0"], None),
    ("repeated, different, the other way", [b"Content-Length: 0", b"Content-Length: 5"], None),
    ("a list of the same", [b"Content-Length: 5, 5"], None),
    ("a list of different ones", [b"Content-Length: 5, 0"], None),
    ("signed", [b"Content-Length: +5"], None),
    ("negative", [b"Content-Length: -5"], None),
    ("with spaces around", [b"Content-Length:   5   "], 5),
    ("with tabs around", [b"Content-Length:\t5\t"], 5),
    ("with a space inside", [b"Content-Length: 5 0"], None),
    ("with a space before the colon", [b"Content-Length : 5"], None),
    ("hexadecimal", [b"Content-Length: 0x5"], None),
    ("with an underscore", [b"Content-Length: 0_5"], None),
    ("with a fraction", [b"Content-Length: 5.0"], None),
    ("over 64 bits", [b"Content-Length: 18446744073709551621"], None),  # 2 ** 64 + 5
    ("far over 64 bits", [b"Content-Length: " + b"9" * 400], None),
    ("empty", [b"Content-Length:"], None),
    ("blank", [b"Content-Length:  "], None),
    ("with a vertical tab", [b"Content-Length: \x0b5"], None),
    ("with a no-break space", [b"Content-Length: 5\xa0"], None),
    ("with a folded line", [b"Content-Length:\r\n 5"], None),
]

# Header lines of an HTTP/1.1 request without a length, and whether the body is chunked; if not, it is refused.
CODINGS: list[tuple[str, list[bytes], bool]] = [
    ("chunked", [b"Transfer-Encoding: chunked"], True),
    ("in mixed case", [b"tRANSFER-eNCODING: cHuNKeD"], True),
    ("with spaces around", [b"Transfer-Encoding:   chunked  "], True),
    ("behind a tab", [b"Transfer-Encoding:\tchunked"], True),
    ("before identity", [b"Transfer-Encoding: chunked, identity"], False),
    ("behind identity", [b"Transfer-Encoding: identity, chunked"], False),
    ("identity", [b"Transfer-Encoding: identity"], False),
    ("behind gzip", [b"Transfer-Encoding: gzip, chunked"], False),
    ("gzip", [b"Transfer-Encoding: gzip"], False),
    ("xchunked", [b"Transfer-Encoding: xchunked"], False),
    ("chunkedx", [b"Transfer-Encoding: chunkedx"], False),
    ("chunked twice in a list", [b"Transfer-Encoding: chunked, chunked"], False),
    ("repeated", [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"], False),
    ("repeated as identity", [b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"], False),
    ("repeated behind identity", [b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked"], False),
    ("repeated behind an empty one", [b"Transfer-Encoding:", b"Transfer-Encoding: chunked"], False),
    ("behind a vertical tab", [b"Transfer-Encoding: \x0bchunked"], False),
    ("behind a form feed", [b"Transfer-Encoding: \x0cchunked"], False),
    ("before a no-break space", [b"Transfer-Encoding: chunked\xa0"], False),
    ("behind a no-break space", [b"Transfer-Encoding: \xa0chunked"], False),
    ("before a comma", [b"Transfer-Encoding: chunked,"], False),
    ("behind a comma", [b"Transfer-Encoding: ,chunked"], False),
    ("with a parameter", [b"Transfer-Encoding: chunked;q=1"], False),
    ("in quotes", [b'Transfer-Encoding: "chunked"'], False),
    ("empty", [b"Transfer-Encoding:"], False),
    ("with a space before the colon", [b"Transfer-Encoding : chunked"], False),
    ("with a tab before the colon", [b"Transfer-Encoding\t: chunked"], False),
    ("with a folded line", [b"Transfer-Encoding:\r\n chunked"], False),
    ("behind a folded line", [b"X: y\r\n Transfer-Encoding: chunked"], False),
    ("behind a bare line feed", [b"X: y\nTransfer-Encoding: chunked"], False),
    ("behind a bare carriage return", [b"X: y\rTransfer-Encoding: chunked"], False),
    ("with NUL", [b"Transfer-Encoding: chunked\0"], False),
]

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: here\r\n\r\n"
NEXT = b"GET /next HTTP/1.1\r\nHost: here\r\n\r\n"


def ways(data: bytes) -> Iterator[tuple[bytes, ...]]:
    """Yield the data whole, split in two at the end of the header, and byte by byte."""
    yield (data,)
    head, end, rest = data.partition(b"\r\n\r\n")
    yield head + end, rest
    yield tuple(data[place : place + 1] for place in range(len(data)))


def post(version: bytes, headers: list[bytes], body: bytes) -> bytes:
    return b"\r\n".join([b"POST /first HTTP/" + version, b"Host: here", *headers, b"", body])


async def expect_refusal(data: bytes, statuses: tuple[int, ...]) -> None:
    for pieces in ways(data):
        one = await talk(*pieces)
        assert one.recorder.asked == []
        assert len(one.statuses) == 1
        assert one.statuses[0] in statuses
        assert not one.is_open
        await one.send(SMUGGLED)
        assert one.recorder.asked == []
        await one.hang_up()


async def expect_bodies(data: bytes, bodies: list[tuple[str, bytes]], *, stays_open: bool = True) -> None:
    for pieces in ways(data):
        one = await talk(*pieces)
        assert [(asked.target, asked.body) for asked in one.recorder.asked] == bodies
        assert one.statuses == [200] * len(bodies)
        assert one.is_open is stays_open
        await one.hang_up()


async def test_a_body_is_as_long_as_its_content_length_or_the_request_is_refused() -> None:
    for (_, headers, length), version in product(LENGTHS, (b"1.1", b"1.0")):
        if length is None:
            await expect_refusal(post(version, headers, b"hello" + SMUGGLED), BAD)
        elif version == b"1.1":
            await expect_bodies(
                post(version, headers, b"hello"[:length] + NEXT), [("/first", b"hello"[:length]), ("/next", b"")]
            )
        else:  # HTTP/1.0 ends with one request
            data = post(version, headers, b"hello"[:length] + SMUGGLED)
            await expect_bodies(data, [("/first", b"hello"[:length])], stays_open=False)


async def test_the_bytes_after_a_short_content_length_are_not_served_as_a_request() -> None:
    one = await talk(post(b"1.1", [b"Content-Length: 3"], b"hello" + SMUGGLED))
    assert [asked.body for asked in one.recorder.asked] == [b"hel"]
    assert not one.is_open
    await one.hang_up()


async def test_a_long_content_length_takes_what_follows_for_the_body() -> None:
    length = 5 + len(SMUGGLED)
    data = post(b"1.1", [b"Content-Length: %d" % length], b"hello" + SMUGGLED + NEXT)
    await expect_bodies(data, [("/first", b"hello" + SMUGGLED), ("/next", b"")])


async def test_a_body_is_chunked_or_the_transfer_encoding_is_refused() -> None:
    chunks = b"5\r\nhello\r\n0\r\n\r\n"
    for _, headers, is_chunked in CODINGS:
        if is_chunked:
            await expect_bodies(post(b"1.1", headers, chunks + NEXT), [("/first", b"hello"), ("/next", b"")])
        else:
            await expect_refusal(post(b"1.1", headers, chunks + SMUGGLED), BAD_CODING)


async def test_transfer_encoding_in_http_1_0_is_refused() -> None:
    for _, headers, _ in CODINGS:
        one = await talk(post(b"1.0", headers, b"0\r\n\r\n" + SMUGGLED))
        assert one.recorder.begun == []
        assert one.statuses in ([400], [501])
        assert not one.is_open
        await one.hang_up()


async def test_content_length_together_with_transfer_encoding_is_refused() -> None:
    chunks = b"0\r\n\r\n" + SMUGGLED
    for (_, coding, _), (_, length, _), version in product(CODINGS, LENGTHS[1:], (b"1.0", b"1.1")):
        for headers in (length + coding, coding + length):
            one = await talk(post(version, headers, chunks))
            assert one.recorder.begun == [], headers
            assert one.statuses in ([400], [501]), headers
            assert not one.is_open, headers
            await one.send(SMUGGLED)
            assert one.recorder.begun == [], headers
            await one.hang_up()


HEADERS_THAT_ARE_REFUSED = {
    "a folded line": b"GET / HTTP/1.1\r\nHost: here\r\nX: a\r\n b\r\n\r\n",
    "a fold before the first header": b"GET / HTTP/1.1\r\n Host: here\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: here\n\n",
    "one bare line feed": b"GET / HTTP/1.1\r\nHost: here\nX: y\r\n\r\n",
    "a bare line feed at the end": b"GET / HTTP/1.1\r\nHost: here\r\n\n",
    "a bare carriage return": b"GET / HTTP/1.1\r\nX: a\rY: b\r\n\r\n",
    "two carriage returns": b"GET / HTTP/1.1\r\nX: a\r\r\n\r\n",
    "NUL in a value": b"GET / HTTP/1.1\r\nX: a\0b\r\n\r\n",
    "NUL in a name": b"GET / HTTP/1.1\r\nX\0: a\r\n\r\n",
    "a control character in a value": b"GET / HTTP/1.1\r\nX: a\x7fb\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\nHost : here\r\n\r\n",
    "an empty name": b"GET / HTTP/1.1\r\n: value\r\n\r\n",
    "a name with a space": b"GET / HTTP/1.1\r\nX Y: a\r\n\r\n",
    "a name beyond ASCII": b"GET / HTTP/1.1\r\nX\xe4: a\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: here\r\nHost: there\r\n\r\n",
    "the same host twice": b"GET / HTTP/1.1\r\nHost: here\r\nX: y\r\nhOST: here\r\n\r\n",
    "a space in the target": b"GET /a b HTTP/1.1\r\n\r\n",
    "NUL in the target": b"GET /a\0b HTTP/1.1\r\n\r\n",
    "a target beyond ASCII": b"GET /\xe4 HTTP/1.1\r\n\r\n",
    "no target": b"GET HTTP/1.1\r\n\r\n",
    "a target without a slash": b"GET a HTTP/1.1\r\n\r\n",
    "a method in small letters": b"get / HTTP/1.1\r\n\r\n",
    "an unknown method": b"FETCHALL / HTTP/1.1\r\n\r\n",
    "a space before the method": b" GET / HTTP/1.1\r\n\r\n",
    "no version number": b"GET / HTTP\r\n\r\n",
    "a version of one digit": b"GET / HTTP/1\r\n\r\n",
    "a version of three digits": b"GET / HTTP/1.10\r\n\r\n",
    "a protocol in small letters": b"GET / http/1.1\r\n\r\n",
    "another protocol": b"GET / SIP/2.0\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an answer": b"HTTP/1.1 200 OK\r\n\r\n",
}


@pytest.mark.parametrize("data", HEADERS_THAT_ARE_REFUSED.values(), ids=list(HEADERS_THAT_ARE_REFUSED))
async def test_a_header_that_can_be_read_in_two_ways_is_refused(data: bytes) -> None:
    await expect_refusal(data + SMUGGLED, BAD)


@pytest.mark.parametrize("version", [b" HTTP/0.9", b" HTTP/1.2", b" HTTP/2.0", b" HTTP/3.0", b"", b" "])
async def test_other_versions_of_http_are_refused(version: bytes) -> None:
    await expect_refusal(b"GET /" + version + b"\r\nHost: here\r\n\r\n" + SMUGGLED, BAD_VERSION)
    await expect_refusal(b"GET /" + version + b"\r\n\r\n" + SMUGGLED, BAD_VERSION)


@pytest.mark.parametrize(
    "target", [b"http://there/path?a=b", b"https://there:8443/path?a=b", b"HTTP://x@there/path?a=b"]
)
async def test_the_host_in_an_absolute_target_is_ignored(target: bytes) -> None:
    """RFC 9112, 3.2.2 gives it precedence over Host; here Host counts, because all checks use it."""
    one = await talk(b"GET " + target + b" HTTP/1.1\r\nHost: here\r\n\r\n" + NEXT)
    assert [asked.target for asked in one.recorder.asked] == ["/path?a=b", "/next"]
    assert one.recorder.asked[0].headers == (("host", "here"),)
    await one.hang_up()


async def test_an_empty_line_before_a_request_is_ignored() -> None:
    await expect_bodies(b"\r\n" + NEXT + b"\r\n\r\n" + NEXT, [("/next", b""), ("/next", b"")])


def test_a_refusal_closes_the_connection(running: Running, handlers: Handlers) -> None:
    server = running.start(handlers)
    refused = [post(b"1.1", headers, b"hello" + SMUGGLED) for _, headers, length in LENGTHS if length is None]
    refused += [post(b"1.1", headers, b"0\r\n\r\n" + SMUGGLED) for _, headers, is_chunked in CODINGS if not is_chunked]
    for data in refused:
        client = running.client(server)
        assert client.ask(data).status in BAD_CODING
        assert client.is_closed()
        client.close()
    assert handlers.requests == []
