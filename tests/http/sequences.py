"""Sequences of valid and malformed requests, with the expected result: which are served, and which refusal follows."""

from dataclasses import dataclass

HOST = b"Host: here\r\n"


@dataclass(frozen=True)
class Sequence:
    name: str
    data: bytes
    served: tuple[tuple[str, str, bytes], ...]  # method, target, body
    refusal: tuple[int, ...] = ()  # the answers after them; empty: none
    stays_open: bool = True


def get(target: bytes, headers: bytes = b"", version: bytes = b"1.1") -> bytes:
    return b"GET " + target + b" HTTP/" + version + b"\r\n" + HOST + headers + b"\r\n"


def post(target: bytes, body: bytes, headers: bytes = b"", version: bytes = b"1.1") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST " + target + b" HTTP/" + version + b"\r\n" + HOST + headers + length + b"\r\n" + body


def chunked(target: bytes, *chunks: bytes, headers: bytes = b"", trailer: bytes = b"") -> bytes:
    head = b"POST " + target + b" HTTP/1.1\r\n" + HOST + headers + b"Transfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n" + trailer + b"\r\n"


def _got(target: str) -> tuple[str, str, bytes]:
    return "GET", target, b""


def _posted(target: str, body: bytes) -> tuple[str, str, bytes]:
    return "POST", target, body


def _fine(name: str, data: bytes, *served: tuple[str, str, bytes]) -> Sequence:
    return Sequence(name, data, served)


def _last(name: str, data: bytes, *served: tuple[str, str, bytes]) -> Sequence:
    return Sequence(name, data, served, stays_open=False)


def _bad(name: str, data: bytes, *served: tuple[str, str, bytes], refusal: tuple[int, ...] = (400,)) -> Sequence:
    return Sequence(name, data, served, refusal, stays_open=False)


CLOSE = b"Connection: close\r\n"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
A, B = _got("/a"), _got("/b")

WHOLE = [
    _fine("a get", get(b"/a"), A),
    _fine("two", get(b"/a") + get(b"/b"), A, B),
    _fine("without a host", b"GET /a HTTP/1.1\r\n\r\n", A),
    _fine("a query", get(b"/a?b=c&d=%20+"), _got("/a?b=c&d=%20+")),
    _fine("a fragment", get(b"/a?b#c"), _got("/a?b")),
    _fine("an encoded path", get(b"/%41%2f"), _got("/A/")),
    _fine("a star", b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", ("OPTIONS", "*", b"")),
    _fine("with scheme and host", get(b"http://there:80/a?b"), _got("/a?b")),
    _fine("with scheme and host alone", get(b"http://there"), _got("/")),
    _fine("head", b"HEAD /a HTTP/1.1\r\n" + HOST + b"\r\n", ("HEAD", "/a", b"")),
    _fine("delete", b"DELETE /a HTTP/1.1\r\n" + HOST + b"\r\n" + get(b"/b"), ("DELETE", "/a", b""), B),
    _fine("patch", post(b"/a", b"x").replace(b"POST", b"PATCH"), ("PATCH", "/a", b"x")),
    _fine("empty lines before", b"\r\n\r\n" + get(b"/a"), A),
    _fine("empty lines between", get(b"/a") + b"\r\n" + get(b"/b"), A, B),
    _fine("empty values", get(b"/a", b"X:\r\nY: \r\nZ:\t\r\n"), A),
    _fine("repeated headers", get(b"/a", b"X: 1\r\nx: 2\r\nCookie: a=b\r\nCookie: c=d\r\n"), A),
    _fine("values beyond ASCII", get(b"/a", b"X: caf\xc3\xa9\r\nY: \xff\r\n"), A),
    _fine("odd names", get(b"/a", b"X!#$%&'*+-.^_`|~0: y\r\n"), A),
    _fine("a body", post(b"/a", b"hello"), _posted("/a", b"hello")),
    _fine("no body", post(b"/a", b""), _posted("/a", b"")),
    _fine("a body, and a get", post(b"/a", b"hello") + get(b"/b"), _posted("/a", b"hello"), B),
    _fine("a body that is a request", post(b"/a", get(b"/x")) + get(b"/b"), _posted("/a", get(b"/x")), B),
    _fine("a body of line ends", post(b"/a", b"\r\n\r\n") + get(b"/b"), _posted("/a", b"\r\n\r\n"), B),
    _fine("a get with a body", post(b"/a", b"x").replace(b"POST", b"GET") + get(b"/b"), ("GET", "/a", b"x"), B),
    _fine("chunks", chunked(b"/a", b"he", b"llo") + get(b"/b"), _posted("/a", b"hello"), B),
    _fine("no chunks", chunked(b"/a") + get(b"/b"), _posted("/a", b""), B),
    _fine("a chunk of a request", chunked(b"/a", get(b"/x")) + get(b"/b"), _posted("/a", get(b"/x")), B),
    _fine("a trailer", chunked(b"/a", b"x", trailer=b"X: y\r\nHost: z\r\n") + get(b"/b"), _posted("/a", b"x"), B),
    _fine("an expected body", post(b"/a", b"x", b"Expect: 100-continue\r\n") + get(b"/b"), _posted("/a", b"x"), B),
    _fine("expected chunks", chunked(b"/a", b"x", headers=b"Expect: 100-Continue\r\n"), _posted("/a", b"x")),
    _fine("another expectation", post(b"/a", b"x", b"Expect: wonders\r\n"), _posted("/a", b"x")),
    _fine("keep-alive", get(b"/a", b"Connection: keep-alive\r\n") + get(b"/b"), A, B),
    _fine("an offer", get(b"/a", OFFER) + get(b"/b"), A, B),
    _fine("an offer with a body", post(b"/a", b"hello", OFFER) + get(b"/b"), _posted("/a", b"hello"), B),
    _fine("an offer with chunks", chunked(b"/a", b"x", headers=OFFER) + get(b"/b"), _posted("/a", b"x"), B),
    _fine("two offers", get(b"/a", OFFER) + get(b"/b", OFFER), A, B),
    _fine("an offer that is none", get(b"/a", b"Upgrade: h2c\r\n") + get(b"/b"), A, B),
    _fine("the beginning of another", get(b"/a") + get(b"/b")[:-2], A),
    _fine("the beginning of a body", get(b"/a") + post(b"/b", b"hello")[:-1], A),
    _last("close", get(b"/a", CLOSE), A),
    _last("close, and one behind", get(b"/a", CLOSE) + get(b"/b"), A),
    _last("close, and junk behind", get(b"/a", CLOSE) + b"\0junk\r\n\r\n", A),
    _last("one, close, and one behind", get(b"/a") + get(b"/b", CLOSE) + get(b"/c"), A, B),
    _last("close with a body, and one behind", post(b"/a", b"x", CLOSE) + get(b"/b"), _posted("/a", b"x")),
    _last("close with chunks, and one behind", chunked(b"/a", b"x", headers=CLOSE) + get(b"/b"), _posted("/a", b"x")),
    _last("1.0, and one behind", get(b"/a", version=b"1.0") + get(b"/b"), A),
    _last("1.0 with keep-alive", get(b"/a", b"Connection: keep-alive\r\n", b"1.0") + get(b"/b"), A),
    _last("1.0 with a body", post(b"/a", b"x", version=b"1.0") + get(b"/b"), _posted("/a", b"x")),
    _last("close with an offer", get(b"/a", b"Connection: close, Upgrade\r\nUpgrade: x\r\n") + get(b"/b"), A),
]

BROKEN = [
    _bad("junk", b"\x16\x03\x01\x02\x00\x01" + get(b"/a")),
    _bad("junk behind one", get(b"/a") + b"junk\r\n" + get(b"/b"), A),
    _bad("a body without a length", b"POST /a HTTP/1.1\r\n\r\nhello" + get(b"/b"), _posted("/a", b"")),
    _bad("a short length", post(b"/a", b"hello").replace(b": 5", b": 4") + get(b"/b"), _posted("/a", b"hell")),
    _bad("two lengths", post(b"/a", b"x", b"Content-Length: 0\r\n") + get(b"/b")),
    _bad("both framings", chunked(b"/a", headers=b"Content-Length: 5\r\n") + get(b"/b")),
    _bad("a broken chunk", get(b"/a") + chunked(b"/b", b"x").replace(b"\r\nx\r\n", b"\r\nxx\r\n") + get(b"/c"), A),
    _bad("a chunk without a size", chunked(b"/b", b"x").replace(b"1\r\nx", b"g\r\nx") + get(b"/c")),
    _bad("two hosts", get(b"/a") + get(b"/b", b"Host: x\r\n") + get(b"/c"), A),
    _bad("a folded header", get(b"/a", b"X: y\r\n z\r\n") + get(b"/b")),
    _bad("bare line feeds", get(b"/a").replace(b"\r", b"") + get(b"/b")),
    _bad("gzip", chunked(b"/a").replace(b"chunked", b"gzip, chunked") + get(b"/b"), refusal=(501,)),
    _bad("http 2", get(b"/a") + get(b"/b", version=b"2.0") + get(b"/c"), A, refusal=(505,)),
    _bad("chunks in 1.0", chunked(b"/a").replace(b"1.1", b"1.0") + get(b"/b")),
    _bad("a proxy's request", get(b"/a") + b"CONNECT there:443 HTTP/1.1\r\n\r\n" + get(b"/b"), A, refusal=(501,)),
    _bad("an offer with two lengths", post(b"/a", b"x", OFFER + b"Content-Length: 0\r\n") + get(b"/b")),
    _bad("a bad URL", get(b"http://[") + get(b"/b")),
    _bad("a large header", get(b"/a") + get(b"/b", b"X: " + b"x" * 9000 + b"\r\n"), A, refusal=(431,)),
]
