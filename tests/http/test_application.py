"""From a request to its answer: the route table, the gate, the handler, and how errors are answered."""

import asyncio
import gc
import json
from collections.abc import AsyncGenerator

import pytest

from chargehand.errors import BadRequest, ChargehandError
from chargehand.http.application import CALLER_GONE, Application, Observe
from chargehand.http.request import Disconnected, Request
from chargehand.http.response import Response, discard
from chargehand.http.route import Route
from tests.http.memory import Talk


class Open:
    async def admit(self, req: Request, scope: str | None) -> None:
        if scope == "closed":
            raise BadRequest("nobody passes")


class Served:
    """An application with a few routes; `seen` is what its observer got."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int]] = []
        self.closed: list[str] = []
        routes = [
            Route("GET", "/things/{thing_id}", self.show, "", request_id=True),
            Route("PUT", "/things/{thing_id}", self.show, ""),
            Route("GET", "/closed", self.show, "", scope="closed"),
            Route("GET", "/stream", self.stream, ""),
            Route("GET", "/raises/{how}", self.raises, ""),
            Route("POST", "/body", self.body, ""),
        ]
        self.app = Application(routes, Open(), self.observer_of)

    def observer_of(self, method: str, path: str) -> Observe:
        return lambda status, _seconds: self.seen.append((method, path, status))

    async def __call__(self, req: Request) -> Response:
        return await self.app(req)

    async def show(self, req: Request, resp: Response, thing_id: str = "") -> None:
        resp.data = f"thing {thing_id}".encode()

    async def pieces(self, name: str) -> AsyncGenerator[bytes, None]:
        try:
            yield b"one"
            yield b"two"
        finally:
            self.closed.append(name)

    async def stream(self, req: Request, resp: Response) -> None:
        resp.stream = self.pieces("stream")

    async def raises(self, req: Request, resp: Response, how: str) -> None:
        if "stream" in how:
            resp.stream = self.pieces(how)
            resp.set_header("content-length", "6")
        if "refusal" in how:
            raise BadRequest("no")
        if "gone" in how:
            raise Disconnected("left")
        raise RuntimeError("a fault")

    async def body(self, req: Request, resp: Response) -> None:
        resp.data = b"".join([piece async for piece in req.pieces()])


async def ask(served: Served, method: str, path: str, headers: dict[str, str] | None = None) -> Response:
    return await served(Request(method, path, headers or {}))


async def test_a_route_gets_the_parameters_of_its_path_and_is_observed() -> None:
    served = Served()
    assert (await ask(served, "GET", "/things/a%20b?x=y")).data == b"thing a b"
    assert served.seen == [("GET", "/things/{thing_id}", 200)]


async def test_an_unknown_path_is_404_and_repeated_in_short() -> None:
    answer = await ask(Served(), "GET", "/" + "x" * 5000)
    assert answer.status == 404
    assert len(json.loads(answer.data)["detail"]) < 400


async def test_another_method_is_405_with_the_allowed_methods() -> None:
    answer = await ask(Served(), "DELETE", "/things/1")
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS, PUT"
    assert (await ask(Served(), "GET", "/body")).headers["allow"] == "OPTIONS, POST"


async def test_options_returns_the_allowed_methods() -> None:
    answer = await ask(Served(), "OPTIONS", "/body")
    assert (answer.status, answer.headers["allow"], answer.data) == (200, "OPTIONS, POST", b"")


async def test_a_refusal_by_the_gate_is_answered_and_observed() -> None:
    served = Served()
    assert (await ask(served, "GET", "/closed")).status == 400
    assert served.seen == [("GET", "/closed", 400)]


async def test_head_returns_the_headers_of_get_without_a_body() -> None:
    one = Talk(Served())
    await one.send(b"HEAD /things/1 HTTP/1.1\r\nX-Request-Id: a\r\n\r\n")
    head = one.wire.written
    assert head.endswith(b"content-length: 7\r\n\r\n")
    await one.send(b"GET /things/1 HTTP/1.1\r\nX-Request-Id: a\r\n\r\n")
    assert one.wire.written[len(head) :] == head + b"thing 1"
    await one.hang_up()


async def test_head_of_a_stream_closes_the_stream() -> None:
    served = Served()
    one = Talk(served)
    await one.send(b"HEAD /stream HTTP/1.1\r\n\r\n")
    assert one.wire.written.endswith(b"transfer-encoding: chunked\r\n\r\n")
    assert served.closed == ["stream"]
    assert one.is_open
    await one.hang_up()


@pytest.mark.parametrize(("how", "status"), [("refusal", 400), ("fault", 500)])
async def test_a_handler_that_raises_is_answered_with_a_problem(how: str, status: int) -> None:
    served = Served()
    for path in (f"/raises/{how}", f"/raises/{how}-stream"):
        answer = await ask(served, "GET", path)
        assert answer.status == json.loads(answer.data)["status"] == status
        assert answer.stream is None
        assert b"content-length: %d\r\n" % len(answer.data) in answer.head(b"", is_last=False, is_chunked=False)
        assert "fault" not in answer.data.decode()
    assert served.seen == [("GET", "/raises/{how}", status)] * 2
    assert served.closed == [f"{how}-stream"]


async def test_a_caller_who_disconnected_is_counted_and_not_answered() -> None:
    served = Served()
    for path in ("/raises/gone", "/raises/gone-stream"):
        with pytest.raises(Disconnected):
            await ask(served, "GET", path)
    assert served.seen == [("GET", "/raises/{how}", CALLER_GONE)] * 2
    assert served.closed == ["gone-stream"]
    one = Talk(served)
    await one.send(b"GET /raises/gone HTTP/1.1\r\n\r\n")
    assert one.wire.written == b""
    assert not one.is_open
    await one.hang_up()


async def test_a_caller_who_disconnects_within_a_body_is_counted() -> None:
    served = Served()
    one = Talk(served)
    await one.send(b"POST /body HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf")
    await one.hang_up()
    assert served.seen == [("POST", "/body", CALLER_GONE)]
    assert one.wire.written == b""


async def test_a_request_id_is_the_callers_or_a_new_one() -> None:
    served = Served()

    async def request_id(given: str | None) -> str:
        headers = {} if given is None else {"x-request-id": given}
        return (await ask(served, "GET", "/things/1", headers)).headers["x-request-id"]

    assert await request_id("mine") == "mine"
    assert await request_id("x" * 200) == "x" * 200
    made = {await request_id(given) for given in (None, "", "x" * 201, "a\x1bb", "a\x85b")}
    assert len(made) == 5
    assert all(len(each) == 32 and each.isalnum() for each in made)
    assert "x-request-id" not in (await ask(served, "GET", "/stream")).headers


# Streams that nobody reads


async def test_discarding_a_stream_that_raises_at_once_leaves_no_unretrieved_error() -> None:
    async def broken() -> AsyncGenerator[bytes, None]:
        for piece in list[bytes]():
            yield piece
        raise ChargehandError("broken")

    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    await discard(broken())
    gc.collect()
    assert told == []


async def test_discarding_a_stream_cancels_its_first_await() -> None:
    ended = asyncio.Event()

    async def waiting() -> AsyncGenerator[bytes, None]:
        try:
            await asyncio.Event().wait()
            yield b""
        finally:
            ended.set()

    await discard(waiting())
    assert ended.is_set()
