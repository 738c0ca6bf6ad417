"""Random sequences of requests, valid and damaged, split anywhere."""

import asyncio
from itertools import pairwise
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.http.memory import Talk
from tests.http.sequences import CLOSE, OFFER, chunked, get, post

HEADERS = st.sampled_from(
    [
        b"",
        b"X: y\r\n",
        b"X:\r\n",
        b"X: \xff\xa0\r\n",
        b"Cookie: a=b\r\nCookie: c=d\r\n",
        b"Expect: 100-continue\r\n",
        OFFER,
    ]
)
BODIES = st.one_of(
    st.binary(max_size=40), st.sampled_from([get(b"/inner"), b"0\r\n\r\n", b"\r\n\r\n", chunked(b"/inner", b"x")])
)
TARGETS = st.sampled_from([b"/a", b"/b?c=d&e", b"/%2F%ff", b"//x", b"http://there/a", b"*", b"/a#b"])
REQUESTS = st.one_of(
    st.builds(get, TARGETS, HEADERS),
    st.builds(post, TARGETS, BODIES, HEADERS),
    st.builds(
        lambda target, chunks, headers: chunked(target, *filter(None, chunks), headers=headers),
        TARGETS,
        st.lists(BODIES, max_size=3),
        HEADERS,
    ),
)
ODDITIES = st.sampled_from(
    [
        b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b";", b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 7\r\n", b"Host: x\r\n",
        b"Content-Length: 0\r\n", b" HTTP/1.0\r\n", b"HTTP/2.0", b"CONNECT a:1 HTTP/1.1\r\n\r\n", CLOSE, OFFER,
    ]
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Generate a sequence of requests with some bytes deleted, doubled, flipped or inserted, or with its end cut off."""
    data = b"".join(draw(st.lists(REQUESTS, min_size=1, max_size=4)))
    for _ in range(draw(st.integers(0, 3))):
        if not data:
            break
        start = draw(st.integers(0, len(data) - 1))
        end = min(len(data), start + draw(st.integers(1, 12)))
        match draw(st.sampled_from(["delete", "double", "flip", "fill", "truncate"])):
            case "delete":
                data = data[:start] + data[end:]
            case "double":
                data = data[:end] + data[start:]
            case "flip":
                data = data[:start] + bytes([data[start] ^ (1 << draw(st.integers(0, 7)))]) + data[start + 1 :]
            case "fill":
                data = data[:start] + draw(ODDITIES) + data[start:]
            case "truncate":
                data = data[:start]
    return data


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(edges)]


async def serve(pieces: list[bytes]) -> Talk:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    one = Talk()
    with capture_logs() as logs:
        await one.send(*pieces)
        await one.hang_up()
    assert faults == []
    assert logs == []
    return one


PLACES = st.lists(st.integers(0, 10_000), max_size=8)


@given(requests=st.lists(REQUESTS, min_size=1, max_size=5), places=PLACES)
@settings(max_examples=150)
def test_all_requests_of_a_valid_sequence_are_served(requests: list[bytes], places: list[int]) -> None:
    one = asyncio.run(serve(cut(b"".join(requests), places)))
    assert len(one.recorder.asked) == len(requests)
    assert one.statuses == [200] * len(requests)
    for request, asked in zip(requests, one.recorder.asked, strict=True):
        assert request.startswith(asked.method.encode() + b" ")


@given(data=damaged(), places=PLACES)
@example(data=get(b"/a", b"Connection: keep-alive\r\n", b"1.0") + get(b"/b"), places=[60])
@settings(max_examples=400)
def test_damaged_requests_raise_nothing_and_are_parsed_the_same_however_they_are_split(
    data: bytes, places: list[int]
) -> None:
    whole = asyncio.run(serve([data] if data else []))
    pieces = asyncio.run(serve(cut(data, places)))
    assert pieces.recorder.asked == whole.recorder.asked
    for asked in whole.recorder.asked:
        assert asked.method.encode() + b" " in data
        if "transfer-encoding" not in dict(asked.headers):
            assert asked.body in data
    for statuses in (whole.statuses, pieces.statuses):
        count = len(whole.recorder.asked)
        assert statuses[:count] == [200] * count
        assert all(status >= 400 for status in statuses[count:])
        assert len(statuses) <= count + 1
