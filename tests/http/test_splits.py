"""A network may split a client's bytes anywhere; the result never depends on that."""

from collections.abc import Iterator

import pytest

from tests.http.memory import Asked, talk
from tests.http.sequences import BROKEN, WHOLE, Sequence, chunked, get, post
from tests.http.serving import Handlers, Running

ALL = WHOLE + BROKEN


def splits(data: bytes) -> Iterator[tuple[bytes, ...]]:
    """Yield the data split in two at every place (if long, only near its ends), and byte by byte."""
    places = range(1, len(data)) if len(data) < 1000 else (*range(1, 100), *range(len(data) - 100, len(data)))
    yield from ((data[:place], data[place:]) for place in places)
    yield tuple(data[place : place + 1] for place in range(len(data)))


def is_right(statuses: list[int], sequence: Sequence) -> bool:
    """Are these the expected statuses? A refusal may be missing after served requests: it could be mistaken for their answer."""
    count = len(sequence.served)
    told = statuses[count:]
    return statuses[:count] == [200] * count and (told == list(sequence.refusal) or (bool(count) and told == []))


@pytest.mark.parametrize("sequence", ALL, ids=lambda sequence: sequence.name)
async def test_requests_are_parsed_the_same_wherever_they_are_split(sequence: Sequence) -> None:
    seen: list[Asked] | None = None
    for pieces in ((sequence.data,), *splits(sequence.data)):
        one = await talk(*pieces)
        asked: list[Asked] = one.recorder.asked
        assert tuple((each.method, each.target, each.body) for each in asked) == sequence.served
        assert seen is None or asked == seen, "a header is another than before"
        seen = asked
        if not sequence.data.startswith(b"HEAD"):
            assert is_right(one.statuses, sequence), one.statuses
        assert one.is_open is sequence.stays_open
        await one.hang_up()


def test_requests_over_sockets_are_parsed_the_same_wherever_they_are_split(
    running: Running, handlers: Handlers
) -> None:
    server = running.start(handlers)
    data = get(b"/one") + post(b"/echo", b"hello") + chunked(b"/echo", b"he", b"llo") + get(b"/two")
    for place in range(1, len(data), 7):
        client = running.client(server)
        client.send(data[:place])
        client.send(data[place:])
        assert client.answer().headers["x-path"] == "/one"
        assert client.answer().body == b"hello"
        assert client.answer().body == b"hello"
        assert client.answer().headers["x-path"] == "/two"
        client.close()


def test_a_client_may_send_byte_by_byte(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers))
    for byte in post(b"/echo", b"hello") + chunked(b"/echo", b"he", b"llo", trailer=b"X: y\r\n") + get(b"/two"):
        client.send(bytes([byte]))
    assert client.answer().body == b"hello"
    assert client.answer().body == b"hello"
    assert client.answer().headers["x-path"] == "/two"
