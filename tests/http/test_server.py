import asyncio
import time
import tracemalloc
from dataclasses import replace

import pytest

from chargehand.errors import ConfigError
from chargehand.http.connection import MAX_PIPELINED
from tests.http.serving import CHUNKED, GET, POST, WIDE, Handlers, Running, at_most

# Ordinary requests


def test_a_connection_serves_many_requests(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers))
    for number in range(300):
        assert client.ask(GET % b"/hello").body == b"hello"
        assert client.ask(POST % (b"/echo", 5) + b"%05d" % number).body == b"%05d" % number


def test_answers_carry_a_date_and_do_not_name_the_software(running: Running, handlers: Handlers) -> None:
    headers = running.client(running.start(handlers)).ask(GET % b"/hello").headers
    assert headers["date"].endswith("GMT")
    assert "server" not in headers


def test_pipelined_requests_are_answered_in_order(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers))
    burst = b"".join(GET % b"/%d" % number + POST % (b"/echo", 3) + b"%03d" % number for number in range(50))
    client.send(burst[:1000])
    client.send(burst[1000:])
    for number in range(50):
        assert client.answer().headers["x-path"] == f"/{number}"
        assert client.answer().body == b"%03d" % number


def test_a_handler_may_take_longer_than_every_timeout(running: Running, handlers: Handlers) -> None:
    short = replace(WIDE, header_timeout_seconds=0.5, body_timeout_seconds=0.5, keep_alive_seconds=0.5)
    server = running.start(handlers, short)
    polling, unread, streaming, pipelining = (running.client(server) for _ in range(4))
    polling.send(GET % b"/slow")
    unread.send(POST % (b"/slow", 10) + b"half")
    streaming.send(GET % b"/stream")
    pipelining.send(GET % b"/slow" + b"GET /hel")
    assert polling.answer().body == b"hello"
    assert unread.answer().body == b"hello"
    assert streaming.answer().body == b"0;1;2;3;4;"
    assert pipelining.answer().body == b"hello"
    assert pipelining.ask(b"lo HTTP/1.1\r\n\r\n").body == b"hello"


def test_a_large_body_is_read_whole(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers))
    body = bytes(range(256)) * 8192
    assert client.ask(POST % (b"/echo", len(body)) + body).body == body
    assert client.ask(CHUNKED % b"/echo" + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)).body == body


def test_a_body_that_the_handler_does_not_read_does_not_close_the_connection(
    running: Running, handlers: Handlers
) -> None:
    client = running.client(running.start(handlers))
    assert client.ask(POST % (b"/hello", 1 << 20)).status == 200
    client.send(b"x" * (1 << 20))
    assert client.ask(GET % b"/hello").status == 200


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_an_upgrade_is_ignored_and_the_request_served_with_its_body(
    running: Running, handlers: Handlers, protocol: bytes
) -> None:
    client = running.client(running.start(handlers))
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\nUpgrade: " + protocol
    head = b"POST /echo?a=b HTTP/1.1\r\nContent-Length: 6\r\n" + offer + b"\r\n\r\n"
    for _ in range(2):
        client.send(head + b"abc")
        assert client.ask(b"def").body == b"abcdef"
    assert handlers.requests[0].query_string == "a=b"
    assert client.ask(GET % b"/hello").body == b"hello"


def test_a_trailer_does_not_become_a_header(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers))
    answer = client.ask(CHUNKED % b"/echo" + b"3\r\nabc\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
    assert answer.body == b"abc"
    assert list(handlers.requests[0].headers) == ["host", "transfer-encoding"]


# The size of a header


def test_a_header_over_the_bound_is_refused(running: Running, handlers: Handlers) -> None:
    server = running.start(handlers)
    fits = b"GET /hello HTTP/1.1\r\nX: %s\r\n\r\n" % (b"x" * 8000)
    assert running.client(server).ask(fits).status == 200
    over = b"GET /hello HTTP/1.1\r\nX: %s\r\n\r\n" % (b"x" * 8200)
    client = running.client(server)
    assert client.ask(over).problem["detail"] == "request line and headers are over 8192 bytes"
    assert client.is_closed()
    assert running.client(server).ask(b"GET /%s HTTP/1.1\r\n\r\n" % (b"x" * 8200)).status == 431
    assert len(handlers.requests) == 1


def test_a_header_over_the_bound_is_refused_after_other_requests(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers))
    client.send(GET % b"/hello" + b"GET /hello HTTP/1.1\r\nX: %s\r\n\r\n" % (b"x" * 8200))
    assert client.answer().status == 200
    assert client.is_closed()
    assert len(handlers.requests) == 1


def test_the_bound_holds_for_the_sum_of_all_headers(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers))
    client.send(b"GET /hello HTTP/1.1\r\n")
    for _ in range(1000):
        client.send(b"X-Small: 1\r\n")
    assert client.answer().status == 431


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET /hello HTTP/1.1\r\nX: ", b"x" * 65536),
        (b"GET /", b"x" * 65536),
        (b"GET /hello HTTP/1.1\r\n", b"X: 1\r\n" * 10000),
        (CHUNKED % b"/echo" + b"3\r\nabc\r\n0\r\nX: ", b"x" * 65536),
        (CHUNKED % b"/echo" + b"3\r\nabc\r\n0\r\n", b"X: 1\r\n" * 10000),
        (CHUNKED % b"/echo" + b"3;x=", b"x" * 65536),
        (b"\r\n", b"\r\n" * 30000),
    ],
    ids=["value", "url", "headers", "trailer", "trailers", "chunk extension", "empty lines"],
)
def test_an_endless_header_costs_bounded_memory(
    running: Running, handlers: Handlers, start: bytes, piece: bytes
) -> None:
    client = running.client(running.start(handlers))
    tracemalloc.start()
    try:
        client.send(start)
        for _ in range(300):
            client.send(piece)
        peak = tracemalloc.get_traced_memory()[1]
    except (BrokenPipeError, ConnectionResetError):
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
    assert client.answer().status == 431


def test_a_refused_client_that_stays_connected_is_cut_off(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers, replace(WIDE, keep_alive_seconds=0.2)))
    assert client.ask(b"no HTTP\r\n").status == 400
    with at_most(5):
        while client.is_heard():
            time.sleep(0.01)


def test_pipelined_requests_beyond_the_bound_are_refused_after_the_others_are_answered(
    running: Running, handlers: Handlers
) -> None:
    client = running.client(running.start(handlers))
    client.send(GET % b"/held" + GET % b"/hello" * 5000)
    assert handlers.entered.wait(5)
    handlers.released.set()
    for _ in range(1 + MAX_PIPELINED):
        assert client.answer().status == 200
    assert client.is_closed()


# Malformed requests


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /hello HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /hello HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /hello HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /\xc3\xa4 HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
    ],
)
def test_a_malformed_request_is_refused(running: Running, handlers: Handlers, request_bytes: bytes) -> None:
    client = running.client(running.start(handlers))
    answer = client.ask(request_bytes)
    assert answer.status == 400
    assert "not a valid HTTP/1.1 request" in answer.problem["detail"]
    assert client.is_closed()
    assert not handlers.requests


def test_connect_is_refused(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers))
    assert client.ask(b"CONNECT there:443 HTTP/1.1\r\nHost: there\r\n\r\n").status == 501
    assert client.is_closed()


def test_a_malformed_body_is_refused_and_the_handler_sees_a_disconnect(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers))
    client.send(CHUNKED % b"/echo" + b"3\r\nabc\r\n")
    assert handlers.entered.wait(5)
    assert client.ask(b"not hexadecimal\r\n").status == 400
    assert handlers.disconnected.wait(5)
    assert client.is_closed()


def test_a_malformed_request_closes_the_connection_after_the_earlier_answers(
    running: Running, handlers: Handlers
) -> None:
    client = running.client(running.start(handlers))
    client.send(GET % b"/held")
    assert handlers.entered.wait(5)
    client.send(b"this is no HTTP\r\n\r\n")
    handlers.released.set()
    assert client.answer().headers["x-path"] == "/held"
    assert client.is_closed()


# Time


def test_a_header_that_stops_times_out_with_408(running: Running, handlers: Handlers) -> None:
    server = running.start(handlers, replace(WIDE, header_timeout_seconds=0.2))
    client = running.client(server)
    with at_most(5):
        client.send(b"GET /hello HTTP/1.1\r\nX: ")
        answer = client.answer()
    assert answer.status == 408
    assert answer.problem["detail"] == "the header did not arrive in time"
    assert client.is_closed()


def test_a_client_that_sends_nothing_is_disconnected_without_an_answer(running: Running, handlers: Handlers) -> None:
    server = running.start(handlers, replace(WIDE, header_timeout_seconds=0.2))
    silent, empty, served = (running.client(server) for _ in range(3))
    with at_most(5):
        assert served.ask(GET % b"/hello").status == 200
        empty.send(b"\r\n")
        served.send(b"\r\n")
        assert silent.is_closed()
        assert empty.is_closed()
        assert served.is_closed()


def test_a_header_that_arrives_slowly_times_out(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers, replace(WIDE, header_timeout_seconds=0.2)))
    assert client.ask(GET % b"/hello").status == 200
    client.send(b"GET /hello HTTP/1.1\r\nX: ")
    with at_most(5):
        assert client.trickle(b"x") == b"HTTP/1.1 408"


def test_an_idle_connection_is_closed(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers, replace(WIDE, keep_alive_seconds=0.2)))
    with at_most(5):
        assert client.ask(GET % b"/hello").status == 200
        assert client.is_closed()


def test_a_body_that_stops_times_out_and_the_handler_sees_a_disconnect(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers, replace(WIDE, body_timeout_seconds=0.2)))
    with at_most(5):
        client.send(POST % (b"/echo", 10) + b"half")
        assert client.is_closed()
        assert handlers.disconnected.wait(5)


def test_a_request_that_makes_progress_may_take_longer_than_the_timeout_of_its_body(
    running: Running, handlers: Handlers
) -> None:
    client = running.client(running.start(handlers, replace(WIDE, body_timeout_seconds=0.6)))
    for piece in (b"POST ", b"/echo ", b"HTTP/1.1\r\n", b"Content-Length: 4\r\n\r\n", b"a", b"b", b"c", b"d"):
        time.sleep(0.2)
        client.send(piece)
    assert client.answer().body == b"abcd"


def test_the_timeout_of_a_body_runs_only_while_the_handler_waits_for_it(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers, replace(WIDE, body_timeout_seconds=0.6)))
    client.send(b"POST /slow-echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    assert client.reader.read(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    time.sleep(0.3)
    assert client.ask(b"abc").body == b"abc"


def test_the_unread_rest_of_a_body_times_out(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers, replace(WIDE, body_timeout_seconds=0.2)))
    assert client.ask(CHUNKED % b"/hello" + b"3\r\nabc\r\n").status == 200
    with at_most(5):
        assert client.trickle(b"3\r\nabc\r\n") == b""


def test_a_disconnect_is_noticed_while_another_request_is_pipelined(running: Running, handlers: Handlers) -> None:
    client = running.client(running.start(handlers))
    client.send(GET % b"/ticks")
    assert client.reader.readline() == b"HTTP/1.1 200 OK\r\n"
    client.send(GET % b"/hello")
    client.close()
    assert handlers.disconnected.wait(5)


# The number of connections


def test_connections_over_the_bound_are_turned_away_until_one_ends(running: Running, handlers: Handlers) -> None:
    server = running.start(handlers, replace(WIDE, max_connections=2, keep_alive_seconds=0.2))
    first, second = running.client(server), running.client(server)
    first.send(GET % b"/held")
    second.send(GET % b"/held")
    assert handlers.entered.wait(5)
    for _ in range(2):
        third = running.client(server)
        answer = third.ask(GET % b"/hello")
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.problem["retry_after_seconds"] == 1
        assert third.is_closed()
    handlers.released.set()
    assert first.answer().status == second.answer().status == 200
    assert first.is_closed()
    assert second.is_closed()
    with at_most(5):
        assert running.client(server).ask(GET % b"/hello").status == 200


def test_a_flood_of_connections_cannot_pile_up(running: Running, handlers: Handlers) -> None:
    server = running.start(handlers, replace(WIDE, max_connections=3))
    flood = [running.client(server) for _ in range(3)]
    for client in flood:
        assert client.ask(GET % b"/hello").status == 200
    told = 0
    for client in [running.client(server) for _ in range(20)]:
        try:
            told += client.reader.read(12) == b"HTTP/1.1 503"
        except ConnectionResetError:
            continue
    assert told == 3


# Start and end


def test_a_busy_port_is_a_configuration_error(running: Running, handlers: Handlers) -> None:
    _, port = running.start(handlers).addresses[0]
    with pytest.raises(ConfigError) as refused:
        running.start(handlers, port=port)
    assert str(refused.value) == f"127.0.0.1:{port} is already in use; choose another with --listen"


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_a_configuration_error(
    running: Running, handlers: Handlers, host: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{host}.* choose another with --listen$"):
        running.start(handlers, host=host)


def test_a_name_with_several_addresses_gets_one_port(running: Running, handlers: Handlers) -> None:
    addresses = running.start(handlers, host="localhost").addresses
    assert len({port for _, port in addresses}) == 1
    assert ("127.0.0.1", addresses[0][1]) in addresses


def test_drain_answers_running_requests_and_accepts_no_new_ones(running: Running, handlers: Handlers) -> None:
    server = running.start(handlers)
    idle, fresh, busy = (running.client(server) for _ in range(3))
    assert idle.ask(GET % b"/hello").status == 200
    busy.send(GET % b"/held")
    assert handlers.entered.wait(5)
    draining = asyncio.run_coroutine_threadsafe(server.drain(), running.loop)
    assert idle.is_closed()
    assert fresh.is_closed()
    with pytest.raises(ConnectionRefusedError):
        running.client(server)
    assert not draining.done()
    handlers.released.set()
    answer = busy.answer()
    assert answer.body == b"hello"
    assert answer.headers["connection"] == "close"
    assert busy.is_closed()
    draining.result(timeout=5)


def test_drain_cuts_off_requests_that_take_too_long(running: Running, handlers: Handlers) -> None:
    server = running.start(handlers, replace(WIDE, drain_seconds=0.2))
    client = running.client(server)
    client.send(GET % b"/stuck")
    assert handlers.entered.wait(5)
    with at_most(2):
        running.call(server.drain())
    assert client.is_closed()


def test_drain_without_connections_is_immediate_and_may_be_repeated(running: Running, handlers: Handlers) -> None:
    server = running.start(handlers)
    with at_most(1):
        running.call(server.drain())
        running.call(server.drain())
