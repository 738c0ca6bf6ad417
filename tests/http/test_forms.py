"""Forms with files: parts in any order, split anywhere, and refused if they are malformed, too many or too large."""

import asyncio

import pytest

from chargehand.errors import BadRequest
from chargehand.http.forms import MAX_PARTS, parts
from chargehand.http.request import Disconnected, Request

TYPE = "multipart/form-data; boundary=edge"
PURPOSE = b'--edge\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\nline\r\n--edg\r\nline\r\n'
END = b"--edge--\r\n"
READ = [("purpose", "", b"batch"), ("file", "a.jsonl", b"line\r\n--edg\r\nline")]


class Arriving:
    """A body that arrives piece by piece; if it has no end, the caller disconnects after it."""

    def __init__(self, pieces: list[bytes], *, has_end: bool = True) -> None:
        self._pieces = pieces
        self._has_end = has_end
        self.request = Request("POST", "/", {"content-type": TYPE}, source=self)

    def want_body(self) -> None:
        asyncio.get_running_loop().call_soon(self._arrive)

    def body_taken(self) -> None:
        pass

    def _arrive(self) -> None:
        if self._pieces:
            self.request.add(self._pieces.pop(0))
        elif self._has_end:
            self.request.complete()
        else:
            self.request.cut()


def whole(body: bytes, content_type: str = TYPE) -> Request:
    return Request("POST", "/", {"content-type": content_type}, body)


async def read(req: Request, most: int = 1000) -> list[tuple[str, str, bytes]]:
    return [(part.name, part.filename, await part.read(most)) async for part in parts(req)]


async def names(req: Request) -> list[str]:
    return [part.name async for part in parts(req)]


@pytest.mark.parametrize("turned", [False, True])
async def test_parts_are_read_in_any_order(turned: bool) -> None:
    both = FILE + PURPOSE if turned else PURPOSE + FILE
    assert await read(whole(both + END)) == (READ[::-1] if turned else READ)


async def test_a_form_is_parsed_the_same_wherever_it_is_split() -> None:
    form = PURPOSE + FILE + END
    for place in range(1, len(form)):
        assert await read(Arriving([form[:place], form[place:]]).request) == READ
    assert await read(Arriving([form[place : place + 1] for place in range(len(form))]).request) == READ


async def test_the_unread_rest_of_a_part_is_skipped() -> None:
    assert await names(whole(FILE + PURPOSE + END)) == ["file", "purpose"]
    assert await read(whole(FILE + PURPOSE + END), most=2) == [("file", "a.jsonl", b"li"), ("purpose", "", b"ba")]


async def test_bytes_after_a_form_are_ignored() -> None:
    arriving = Arriving([PURPOSE + END, b"more", b"and more"])
    assert await names(arriving.request) == ["purpose"]
    assert arriving.request.is_whole


BROKEN = {
    "no form": b"this is no form",
    "nothing": b"",
    "another boundary": PURPOSE.replace(b"--edge", b"--other") + b"--other--\r\n",
    "no end": PURPOSE,
    "an end in the data": FILE[:-10],
    "an end in a header": PURPOSE[:30],
    "an end in the boundary": PURPOSE + END[:4],
    "a header without a colon": b"--edge\r\nContent-Disposition\r\n\r\nx\r\n" + END,
    "too many parts": PURPOSE * (MAX_PARTS + 1) + END,
    "a huge header": b'--edge\r\nContent-Disposition: form-data; name="a"\r\nX: '
    + b"x" * 100_000
    + b"\r\n\r\nx\r\n"
    + END,
    "an endless header": b"--edge\r\nX: " + b"x" * 100_000,
}


@pytest.mark.parametrize("form", BROKEN.values(), ids=list(BROKEN))
async def test_a_malformed_form_is_refused(form: bytes) -> None:
    for read_form in (read, names):
        with pytest.raises(BadRequest, match="the form is malformed: "):
            await read_form(whole(form))
        with pytest.raises(BadRequest, match="the form is malformed: "):
            await read_form(Arriving([form[:20], form[20:60], form[60:]]).request)


@pytest.mark.parametrize("content_type", ["", "multipart/form-data", "multipart/form-data; boundary=", "text/plain"])
async def test_a_form_without_a_boundary_is_refused(content_type: str) -> None:
    with pytest.raises(BadRequest):
        await read(whole(PURPOSE + END, content_type))


async def test_a_form_cut_off_by_a_disconnect_raises_disconnected() -> None:
    with pytest.raises(Disconnected):
        await read(Arriving([PURPOSE], has_end=False).request)


async def test_a_form_may_have_the_maximum_number_of_parts() -> None:
    assert len(await names(whole(PURPOSE * MAX_PARTS + END))) == MAX_PARTS
