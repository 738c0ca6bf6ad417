"""Many connections with deep pipelines: answers come whole, in order, and to the right request."""

import asyncio
import random
import threading
from collections.abc import AsyncGenerator

import pytest

from chargehand.http.connection import MAX_PIPELINED
from chargehand.http.request import Request
from chargehand.http.response import Response
from tests.http.sequences import CLOSE, chunked, get, post
from tests.http.serving import EXPECT, Client, Running

CONNECTIONS = 12
ROUNDS = 6
DEPTH = 40


async def mixed(req: Request) -> Response:
    """Serve with every kind of handler; each answer names its request."""
    resp = Response()
    resp.set_header("x-target", f"{req.path}?{req.query_string}")
    kind = req.path[1:]
    if kind == "awaiting":
        await asyncio.sleep(0.001)
    elif kind == "late":
        await asyncio.sleep(0.001)
        resp.data = b"".join([piece async for piece in req.pieces()])
    elif kind == "echo":
        resp.data = b"".join([piece async for piece in req.pieces()])
    elif kind == "stream":
        resp.stream = _stream(req)
    elif kind == "empty":
        resp.status = 204
    if not resp.data and resp.stream is None and resp.has_body:
        resp.data = req.query_string.encode()
    return resp


async def _stream(req: Request) -> AsyncGenerator[bytes, None]:
    for _ in range(3):
        yield req.query_string.encode() + b";"
        await asyncio.sleep(0)
    async for piece in req.pieces():
        yield piece


def make(kind: str, tag: bytes, framing: int, body: bytes) -> tuple[bytes, str, bytes]:
    """Return a request, its target, and the body of its answer."""
    target = b"/" + kind.encode() + b"?" + tag
    data = (get(target), post(target, body), chunked(target, body[: len(body) // 2] or b"x", body or b"y"))[framing]
    sent = (b"", body, (body[: len(body) // 2] or b"x") + (body or b"y"))[framing]
    answers = {"echo": sent or tag, "late": sent or tag, "stream": (tag + b";") * 3 + sent, "empty": b""}
    return data, target.decode(), answers.get(kind, tag)


def converse(client: Client, seed: int) -> None:
    choose = random.Random(seed)
    for round_number in range(ROUNDS):
        asked = [
            make(
                choose.choice(["at-once", "awaiting", "late", "echo", "stream", "unread", "empty"]),
                b"%d-%d-%d" % (seed, round_number, number),
                choose.randrange(3),
                bytes(choose.randrange(256) for _ in range(choose.choice([0, 1, 200]))),
            )
            for number in range(DEPTH)
        ]
        data = b"".join(request for request, _, _ in asked)
        while data:
            size = choose.choice([1, 50, 1000, 20_000])
            client.send(data[:size])
            data = data[size:]
        for _, target, body in asked:
            answer = client.answer()
            assert answer.headers["x-target"] == target
            assert answer.body == body
            assert "connection" not in answer.headers


def test_answers_come_in_order_on_many_connections(running: Running) -> None:
    server = running.start(mixed)
    clients = [running.client(server) for _ in range(CONNECTIONS)]
    failed: list[BaseException] = []

    def run(client: Client, seed: int) -> None:
        try:
            converse(client, seed)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(client, seed)) for seed, client in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    serving = server._serving
    assert serving is not None
    assert len(serving.connections) == CONNECTIONS


def test_nothing_is_answered_after_connection_close(running: Running) -> None:
    client = running.client(running.start(mixed))
    client.send(get(b"/awaiting?1") + get(b"/stream?2", CLOSE) + get(b"/at-once?3") * 5)
    assert client.answer().body == b"1"
    last = client.answer()
    assert last.body == b"2;2;2;"
    assert last.headers["connection"] == "close"
    assert client.is_closed()


def test_nothing_is_answered_after_a_request_that_expected_100_continue_and_did_not_get_it(running: Running) -> None:
    client = running.client(running.start(mixed))
    client.send(get(b"/awaiting?1") + EXPECT % b"/unread?2")
    assert client.answer().body == b"1"
    refused = client.answer()
    assert refused.body == b"2"
    assert refused.headers["connection"] == "close"
    client.send(b"hello" + get(b"/at-once?3"))
    assert client.is_closed()


@pytest.mark.parametrize("framing", [1, 2])
def test_the_request_after_an_unread_body_is_answered(running: Running, framing: int) -> None:
    client = running.client(running.start(mixed))
    body = get(b"/inner") * 10_000
    for number in range(3):
        client.send(make("unread", b"%d" % number, framing, body)[0])
        client.send(get(b"/at-once?behind"))
        assert client.answer().body == b"%d" % number
        assert client.answer().body == b"behind"


def test_a_handler_that_raises_ends_only_its_own_connection(running: Running) -> None:
    async def raising(req: Request) -> Response:
        if req.path == "/raise":
            raise RuntimeError("a fault")
        return await mixed(req)

    server = running.start(raising)
    one, other = running.client(server), running.client(server)
    one.send(get(b"/at-once?1") + get(b"/raise") + get(b"/at-once?2"))
    assert one.answer().body == b"1"
    assert one.is_closed()
    other.send(get(b"/at-once?3") * MAX_PIPELINED)
    assert [other.answer().body for _ in range(MAX_PIPELINED)] == [b"3"] * MAX_PIPELINED
