"""How a connection handles every kind of answer, over a real socket pair, on asyncio's event loop and on the server's."""

import asyncio
import select
import socket
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from chargehand.webhooks import exchange
from chargehand.webhooks.exchange import BODY_BYTES, HEAD_BYTES, CallFailed, OutboundConnection, ReceiverAnswer

KEPT = 20  # bytes of an answer
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Line:
    """A connection, and the receiver at its other end."""

    def __init__(self, connection: OutboundConnection, ours: socket.socket, theirs: socket.socket) -> None:
        self.connection = connection
        self._ours = ours
        self._theirs = theirs
        self.lost = 0

    @classmethod
    async def open(cls) -> "Line":
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        number = ours.dup()  # to check whether all was read; the event loop owns the other
        line: Line

        def lost(_connection: OutboundConnection) -> None:
            line.lost += 1

        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: OutboundConnection(KEPT, lost), sock=ours)
        line = cls(connection, number, theirs)
        return line

    def ask(self, body: bytes = b"{}", seconds: float = 30.0) -> "asyncio.Future[ReceiverAnswer]":
        return self.connection.send(HEAD, body, seconds)

    async def say(self, *pieces: bytes) -> None:
        """Send each piece after the one before was read."""
        for piece in pieces:
            await asyncio.get_running_loop().sock_sendall(self._theirs, piece)
            await self.read()

    async def read(self) -> None:
        look = select.poll()
        look.register(self._ours.fileno(), select.POLLIN)
        while self.connection.is_open and look.poll(0):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)

    async def hear(self, count: int) -> bytes:
        heard = b""
        while len(heard) < count:
            heard += await asyncio.get_running_loop().sock_recv(self._theirs, count - len(heard))
        return heard

    async def hang_up(self) -> None:
        self._theirs.close()
        while self.connection.is_open:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)

    async def is_closed(self) -> bool:
        """Does the receiver see the connection closed?"""
        self._ours.close()
        try:
            while await asyncio.get_running_loop().sock_recv(self._theirs, 1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    async def close(self) -> None:
        self.connection.abort()
        self._ours.close()
        self._theirs.close()


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    opened = await Line.open()
    yield opened
    await opened.close()


# ── well-formed answers ───────────────────────────────────────────────────────────────────────────────────────────────

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;note=x\r\nabc\r\n2\r\nde\r\n0\r\nRetry-After: 9\r\n\r\n"
)
WHOLE = {
    "length": (OK, ReceiverAnswer(200, b"ok", "")),
    "no body": (b"HTTP/1.1 204 No Content\r\n\r\n", ReceiverAnswer(204, b"", "")),
    "empty": (b"HTTP/1.1 202 Accepted\r\ncontent-length:0\r\n\r\n", ReceiverAnswer(202, b"", "")),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", ReceiverAnswer(304, b"", "")),
    "chunks": (CHUNKED, ReceiverAnswer(200, b"abcde", "")),
    "later": (
        b"HTTP/1.1 503 Busy\r\nretry-AFTER: 120\r\nContent-Length: 1\r\n\r\n!",
        ReceiverAnswer(503, b"!", "120"),
    ),
    "elsewhere": (
        b"HTTP/1.1 307 There\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
        ReceiverAnswer(307, b"", ""),
    ),
    "after others": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nRetry-After: 7\r\nContent-Length: 3\r\n\r\n" + OK,
        ReceiverAnswer(200, b"ok", ""),
    ),
    "old but kept": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
        ReceiverAnswer(200, b"ok", ""),
    ),
    "long": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n" + b"0123456789" * 5,
        ReceiverAnswer(200, b"01234567890123456789", ""),
    ),
}
whole = pytest.mark.parametrize(("said", "answer"), list(WHOLE.values()), ids=list(WHOLE))


@whole
async def test_an_answer_is_read_whole_wherever_it_is_split_in_two(
    line: Line, said: bytes, answer: ReceiverAnswer
) -> None:
    for cut in range(1, len(said)):
        asked = line.ask()
        await line.say(said[:cut], said[cut:])
        assert await asked == answer, cut
        assert line.connection.is_open


@whole
async def test_an_answer_is_read_byte_by_byte(line: Line, said: bytes, answer: ReceiverAnswer) -> None:
    for _ in range(2):
        asked = line.ask()
        await line.say(*[said[place : place + 1] for place in range(len(said))])
        assert await asked == answer
        assert line.connection.is_open


async def test_the_request_arrives_as_it_was_written_however_large(line: Line) -> None:
    for body in (b"", b"{}", bytes(exchange.LARGE - 1), bytes(exchange.LARGE), bytes(1 << 20)):
        asked = line.ask(body)
        assert await line.hear(len(HEAD) + len(body)) == HEAD + body
        await line.say(OK)
        assert (await asked).status == 200
    assert line.connection.is_open


LAST = {
    "closing": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
    "old": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
}


@pytest.mark.parametrize("said", LAST.values(), ids=list(LAST))
async def test_a_connection_is_closed_if_the_answer_says_so(line: Line, said: bytes) -> None:
    for cut in range(1, len(said)):
        other = await Line.open()
        asked = other.ask()
        await other.say(said[:cut], said[cut:])
        assert await asked == ReceiverAnswer(200, b"ok", "")
        assert not other.connection.is_open
        assert other.lost == 1
        assert await other.is_closed()
        await other.close()


@pytest.mark.parametrize("body", [b"", b"o", b"ok"])
async def test_an_answer_without_a_length_ends_with_the_connection(line: Line, body: bytes) -> None:
    asked = line.ask()
    await line.say(b"HTTP/1.1 200 OK\r\n\r\n" + body)
    await line.hang_up()
    assert await asked == ReceiverAnswer(200, body, "")
    assert line.lost == 1


# ── malformed answers ─────────────────────────────────────────────────────────────────────────────────────────────────

NO_ANSWERS = {
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "bad length": b"HTTP/1.1 200 OK\r\nContent-Length: no\r\n\r\n",
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok",
    "length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "bad status": b"HTTP/1.1 2000 OK\r\n\r\n",
    "bad header": b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
    "zeros": bytes(100),
    "another protocol from here": b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nxxxx",
    "long head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_BYTES + b"\r\nContent-Length: 0\r\n\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"X-More: more\r\n" * (HEAD_BYTES // 8) + b"Content-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("said", NO_ANSWERS.values(), ids=list(NO_ANSWERS))
async def test_a_malformed_answer_fails_and_closes_the_connection(line: Line, said: bytes) -> None:
    asked = line.ask()
    await line.say(said)
    with pytest.raises(CallFailed):
        await asked
    assert not line.connection.is_open
    assert line.lost == 1
    assert await line.is_closed()


@pytest.mark.parametrize("said", [said for said in NO_ANSWERS.values() if len(said) < 200])
async def test_a_malformed_answer_fails_wherever_it_is_split_in_two(said: bytes) -> None:
    for cut in range(1, len(said)):
        line = await Line.open()
        asked = line.ask()
        await line.say(said[:cut])
        if line.connection.is_open:
            await line.say(said[cut:])
        with pytest.raises(CallFailed):
            await asked
        await line.close()


@pytest.mark.parametrize(("said", "_answer"), list(WHOLE.values())[:5], ids=list(WHOLE)[:5])
async def test_an_answer_that_breaks_off_fails_unless_its_body_had_begun(said: bytes, _answer: ReceiverAnswer) -> None:
    begun = said.find(b"\r\n\r\n") + 4 + (said.find(b"abc") - said.find(b"3;") if b"chunked" in said else 0)
    for cut in range(len(said)):
        line = await Line.open()
        asked = line.ask()
        if cut:
            await line.say(said[:cut])
        await line.hang_up()
        if cut > begun:
            assert (await asked).status == 200, cut
        else:
            with pytest.raises(CallFailed, match="closed the connection"):
                await asked
        assert line.lost == 1
        await line.close()


@pytest.mark.parametrize("more", [OK, b"x", b"HTTP/1.1 100 Continue\r\n\r\n", b"\r\n\r\nHTTP"])
async def test_an_answer_with_extra_bytes_behind_it_counts_and_closes_the_connection(line: Line, more: bytes) -> None:
    asked = line.ask()
    await line.say(OK + more)
    assert await asked == ReceiverAnswer(200, b"ok", "")
    assert not line.connection.is_open
    assert line.lost == 1


async def test_bytes_that_answer_no_request_close_the_connection(line: Line) -> None:
    asked = line.ask()
    await line.say(OK)
    await asked
    assert line.lost == 0
    await line.say(OK)
    assert not line.connection.is_open
    assert line.lost == 1


async def test_an_answer_before_the_whole_request_was_sent_counts_and_closes_the_connection(line: Line) -> None:
    asked = line.ask(bytes(16 << 20))  # more than the buffers of both sockets hold
    await line.say(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
    assert (await asked).status == 413
    assert not line.connection.is_open
    assert await line.is_closed()


async def test_a_connection_that_the_receiver_closed_is_stale_before_the_event_loop_has_seen_it(line: Line) -> None:
    asked = line.ask()
    await line.say(OK)
    await asked
    assert not line.connection.is_stale(0)
    line._theirs.close()
    assert line.connection.is_stale(0)
    assert not line.connection.is_stale(60)  # used a moment ago: not checked


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "piece",
    [b"x" * 1000, b"X-More: more\r\n" * 70, b"HTTP/1.1 102 Processing\r\n\r\n" * 40],
    ids=["long", "many", "processing"],
)
async def test_a_head_without_end_is_cut_off(line: Line, piece: bytes) -> None:
    asked = line.ask()
    await line.say(b"" if piece.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\nX: ")
    said = 0
    tracemalloc.start()
    try:
        while line.connection.is_open:
            await line.say(piece)
            said += len(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    with pytest.raises(CallFailed, match="the head of the answer is over"):
        await asked
    assert said <= HEAD_BYTES + len(piece)
    assert peak < 1 << 20


@pytest.mark.parametrize("framing", [b"Content-Length: 1000000000", b"Transfer-Encoding: chunked", b"X: no length"])
async def test_only_the_beginning_of_an_endless_body_is_kept(line: Line, framing: bytes) -> None:
    piece = b"0123456789" * 100
    asked = line.ask()
    await line.say(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n")
    said = 0
    while line.connection.is_open:
        await line.say(b"3e8\r\n" + piece + b"\r\n" if b"chunked" in framing else piece)
        said += len(piece)
    assert await asked == ReceiverAnswer(200, piece[:KEPT], "")
    assert said <= BODY_BYTES + 2 * len(piece)


async def test_trailers_without_end_are_cut_off(line: Line) -> None:
    asked = line.ask()
    await line.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
    said = 0
    while line.connection.is_open:
        await line.say(b"X-More: more\r\n" * 70)
        said += 70 * 14
    with pytest.raises(CallFailed, match="the head of the answer is over"):
        await asked
    assert said < 2 * HEAD_BYTES


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\n", OK[:-2], b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_an_incomplete_answer_times_out(line: Line, said: bytes) -> None:
    asked = line.ask(seconds=0.05)
    if said:
        await line.say(said)
    with pytest.raises(TimeoutError):
        await asked
    assert not line.connection.is_open
    assert line.lost == 1


@pytest.mark.parametrize("seconds", [0.05, 30.0], ids=["the limit", "a moment"])
async def test_a_slow_body_is_cut_off_after_the_linger_time(
    line: Line, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "LINGER_SECONDS", 30.0 if seconds < 1 else 0.05)
    asked = line.ask(seconds=seconds)
    await line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"a", b"b")
    answer = await asked
    assert answer.status == 200
    assert not line.connection.is_open


async def test_an_answer_after_the_caller_gave_up_is_dropped(line: Line) -> None:
    asked = line.ask()
    asked.cancel()
    await line.say(OK)
    assert asked.cancelled()
