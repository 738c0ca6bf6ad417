"""Chunked bodies: sizes, extensions and trailers (RFC 9112, 7.1)."""

import pytest

from tests.http.memory import talk
from tests.http.serving import CHUNKED

NEXT = b"GET /next HTTP/1.1\r\nHost: here\r\n\r\n"
END = b"0\r\n\r\n"

READ = {
    "one chunk": (b"5\r\nhello\r\n" + END, b"hello"),
    "several chunks": (b"2\r\nhe\r\n1\r\nl\r\n2\r\nlo\r\n" + END, b"hello"),
    "no chunk": (END, b""),
    "a size with leading zeros": (b"0005\r\nhello\r\n" + END, b"hello"),
    "an end with many zeros": (b"5\r\nhello\r\n0000\r\n\r\n", b"hello"),
    "a size in capital letters": (b"A\r\n0123456789\r\n" + END, b"0123456789"),
    "a size in small letters": (b"a\r\n0123456789\r\n" + END, b"0123456789"),
    "line ends in the data": (b"6\r\n0\r\n\r\nX\r\n" + END, b"0\r\n\r\nX"),
    "an extension": (b"5;name=value\r\nhello\r\n" + END, b"hello"),
    "an extension without a value": (b"5;name\r\nhello\r\n" + END, b"hello"),
    "several extensions": (b"5;a=b;c;d=e\r\nhello\r\n0;f=g\r\n\r\n", b"hello"),
    "a quoted extension": (b'5;name="a value; 7"\r\nhello\r\n' + END, b"hello"),
    "a quoted extension with an escape": (b'5;name="\\""\r\nhello\r\n' + END, b"hello"),
    "a trailer": (b"5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n", b"hello"),
    "several trailers": (b"5\r\nhello\r\n0\r\nX-Sum: 1\r\nX-Other:\r\n\r\n", b"hello"),
    "trailers named as headers": (b"5\r\nhello\r\n0\r\nHost: there\r\nAuthorization: x\r\n\r\n", b"hello"),
    "a trailer that expects": (b"5\r\nhello\r\n0\r\nExpect: 100-continue\r\n\r\n", b"hello"),
    "a trailer that offers": (b"5\r\nhello\r\n0\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", b"hello"),
}

REFUSED = {
    "no size": b"\r\nhello\r\n",
    "a word": b"five\r\nhello\r\n",
    "a prefix": b"0x5\r\nhello\r\n",
    "a plus": b"+5\r\nhello\r\n",
    "a minus": b"-5\r\nhello\r\n",
    "an underscore": b"0_5\r\nhello\r\n",
    "a size of 64 bits and more": b"10000000000000005\r\nhello\r\n",
    "a size far over 64 bits": b"f" * 40 + b"\r\nhello\r\n",
    "a space before the size": b" 5\r\nhello\r\n",
    "a space behind the size": b"5 \r\nhello\r\n",
    "a tab behind the size": b"5\t\r\nhello\r\n",
    "a space before an extension": b"5 ;a=b\r\nhello\r\n",
    "a bare line feed behind the size": b"5\nhello\r\n",
    "a bare carriage return behind the size": b"5\rhello\r\n",
    "a bare line feed in an extension": b"5;a\nhello\r\n",
    "a bare carriage return in an extension": b"5;a\rb\r\nhello\r\n",
    "a line end in a quoted extension": b'5;a="\r\n"\r\nhello\r\n',
    "NUL in an extension": b"5;a=\0\r\nhello\r\n",
    "no line end behind the data": b"5\r\nhello0\r\n\r\n",
    "a bare line feed behind the data": b"5\r\nhello\n" + END,
    "a bare carriage return behind the data": b"5\r\nhello\r" + END,
    "data that is longer than its size": b"5\r\nhello!\r\n" + END,
    "a bare line feed behind the last size": b"5\r\nhello\r\n0\n\r\n",
    "a bare line feed at the end": b"5\r\nhello\r\n0\r\n\n",
    "a folded trailer": b"5\r\nhello\r\n0\r\nX: y\r\n z\r\n\r\n",
    "a trailer without a colon": b"5\r\nhello\r\n0\r\nX\r\n\r\n",
    "a trailer with a bare line feed": b"5\r\nhello\r\n0\r\nX: y\nZ: z\r\n\r\n",
    "a trailer with a length": b"5\r\nhello\r\n0\r\nContent-Length: 37\r\n\r\n",
    "a trailer with another length": b"5\r\nhello\r\n0\r\ncontent-length: 0\r\n\r\n",
    "a trailer with a transfer encoding": b"5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a trailer with an unknown transfer encoding": b"5\r\nhello\r\n0\r\nTransfer-Encoding: gzip\r\n\r\n",
}


def splits(data: bytes) -> list[tuple[bytes, ...]]:
    """Yield the data whole, split in two at every place, and byte by byte."""
    twice: list[tuple[bytes, ...]] = [(data[:place], data[place:]) for place in range(1, len(data))]
    return [(data,), *twice, tuple(data[place : place + 1] for place in range(len(data)))]


@pytest.mark.parametrize(("chunks", "body"), READ.values(), ids=list(READ))
async def test_a_chunked_body_is_read_and_the_next_request_is_served(chunks: bytes, body: bytes) -> None:
    for pieces in splits(chunks + NEXT):
        one = await talk(CHUNKED % b"/first", *pieces)
        first, behind = one.recorder.asked
        assert (first.target, first.body) == ("/first", body)
        assert dict(first.headers) == {"host": "here", "transfer-encoding": "chunked"}
        assert (behind.target, behind.body, behind.headers) == ("/next", b"", (("host", "here"),))
        assert one.statuses == [200, 200]
        assert one.is_open
        await one.hang_up()


@pytest.mark.parametrize("chunks", REFUSED.values(), ids=list(REFUSED))
async def test_a_malformed_chunked_body_is_refused_and_nothing_after_it_is_served(chunks: bytes) -> None:
    for pieces in splits(chunks + NEXT):
        one = await talk(CHUNKED % b"/first", *pieces)
        assert one.recorder.asked == []
        assert one.statuses == [400]
        assert not one.is_open
        await one.send(NEXT)
        await one.hang_up()
        assert [request.path for request in one.recorder.begun] == ["/first"]


async def test_a_chunk_with_a_huge_declared_size_is_waited_for() -> None:
    one = await talk(CHUNKED % b"/first" + b"7fffffffffffffff\r\nhello" + NEXT)
    assert one.recorder.asked == []
    assert [request.path for request in one.recorder.begun] == ["/first"]
    await one.hang_up()
    assert one.statuses == []


async def test_a_trailer_with_connection_close_closes_the_connection_after_its_request() -> None:
    for pieces in splits(b"5\r\nhello\r\n0\r\nConnection: close\r\n\r\n" + NEXT):
        one = await talk(CHUNKED % b"/first", *pieces)
        assert [(asked.target, asked.body) for asked in one.recorder.asked] == [("/first", b"hello")]
        assert one.statuses in ([200], [200, 400])
        assert not one.is_open
        await one.hang_up()
