"""Bodies of any shape: their cost grows only with their size, and none of them leads to a 500."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from chargehand.doors.inference.request import decode_request
from tests.api.serving import Answer, Api, on_sqlite
from tests.e2e.server import Server
from tests.inference.calling import Caller, before_targets, chat
from tests.inference.conformance import OllamaTarget
from tests.inference.hostile import MEGABYTE
from tests.inference.memory import Memory
from tests.inference.stories import MODELS

WIDE = "😀".encode()  # one of these makes a str use four bytes for every character
CHAT = b'{"model":"a","messages":[{"role":"user","content":"x"}],'
PROMPT = b'{"model":"a","prompt":"x",'


def filled(before: bytes, piece: bytes, after: bytes, size: int) -> bytes:
    return before + piece * (size // len(piece)) + after


def keys(size: int) -> bytes:
    return b",".join(b'"%07d":1' % number for number in range(size // 12))


def shapes(size: int) -> dict[str, bytes]:
    """Return bodies in which one field has about this size."""
    return {
        "lists in a format": filled(CHAT + b'"format":[', b"[],", b"1]}", size),
        "numbers in a format": filled(CHAT + b'"format":[', b"1,", b"1]}", size),
        "tools": filled(CHAT + b'"tools":[', b"{},", b"{}]}", size),
        "states": filled(CHAT + b'"webhook_events":[', b'"done",', b'"done"]}', size),
        "messages": filled(b'{"model":"a","messages":[', b'{"role":"user"},', b'{"role":"user"}]}', size),
        "one long message": filled(b'{"model":"a","messages":[{"role":"user","content":"' + WIDE, b"x", b'"}]}', size),
        "lists in a message": filled(b'{"model":"a","messages":[{"role":"user","y":[', b"0,", b"0]}]}", size),
        "a prompt": filled(b'{"model":"a","prompt":"' + WIDE, b"x", b'"}', size),
        "pictures": filled(PROMPT + b'"images":[', b'"ab",', b'"ab"]}', size),
        "options": PROMPT + b'"options":{' + keys(size) + b"}}",
        "a time to stay": filled(PROMPT + b'"keep_alive":[', b"[],", b"1]}", size),
        "a model": filled(b'{"prompt":"x","model":"' + WIDE, b"x", b'"}', size),
        "lists in a field that nobody knows": filled(PROMPT + b'"foo":[', b"[],", b"1]}", size),
        "fields that nobody knows": PROMPT + keys(size) + b"}",
        "a name of a field": filled(PROMPT + b'"' + WIDE, b"k", b'":1}', size),
        "the same field": filled(PROMPT, b'"prompt":"y",', b'"prompt":"z"}', size),
        "metadata": PROMPT + b'"metadata":{' + keys(size) + b"}}",
        "files": filled(PROMPT + b'"artifacts":[', b'{"name":"x"},', b'{"name":"x"}]}', size),
        "spaces": filled(b'{"model":"a","prompt":"x"', b" ", b"}", size),
        "digits": filled(PROMPT + b'"priority":', b"9", b"}", size),
        "nesting": filled(PROMPT + b'"format":', b"[", b"}", size),
    }


TAKEN = ("numbers in a format", "one long message")  # examples of bodies that are accepted
ASYNC = {"Prefer": "respond-async"}
ROUTES = {
    "/jobs": {},
    "/api/chat": ASYNC,
    "/api/generate": ASYNC,
    "/api/embed": ASYNC,
    "/v1/chat/completions": ASYNC,
    "/v1/messages": ASYNC,
    "/api/show": {},
    "/v1/batches": {},
}


async def send(api: Api, path: str, body: bytes, headers: Mapping[str, str] = {}) -> Answer:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 2**18):
            yield body[start : start + 2**18]

    return await api.call("POST", path, data=pieces(), headers={**headers, "Content-Length": str(len(body))})


@pytest.fixture
async def caller(store_url: str, tmp_path: Path) -> AsyncIterator[Caller]:
    """A client of a server without targets: its jobs wait, and nothing else in this process works on them."""
    async with before_targets(store_url, tmp_path) as (_, caller):
        yield caller


@pytest.fixture
async def served(store_url: str, tmp_path: Path) -> AsyncIterator[Caller]:
    async with OllamaTarget(MODELS) as target, before_targets(store_url, tmp_path, target) as (_, caller):
        yield caller


# what it costs ----------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_ninety_thousand_misspelt_fields_are_refused_quickly(caller: Caller) -> None:
    slips = b",".join(b'"webhoo_%011d":1' % number for number in range(90_000))
    began = time.monotonic()
    refused = await send(caller, "/jobs", CHAT + slips + b"}")
    assert refused.status == 400
    assert time.monotonic() - began < 2  # comparing them with the known names took five seconds


@on_sqlite
async def test_at_most_64_fields_may_be_unknown(caller: Caller) -> None:
    for count, status in ((64, 202), (65, 400), (2000, 400)):
        fields: dict[str, Any] = {f"field{number}": 1 for number in range(count)}
        answer = await caller.post("/jobs", chat(**fields))
        assert answer.status == status, count
    assert "fields that are not known here; at most 64" in answer.json["detail"]


async def test_no_shape_of_a_body_takes_more_than_four_times_its_size(tmp_path: Path) -> None:
    size = 8 * MEGABYTE
    async with (
        Server(f"sqlite:///{tmp_path}/chargehand.db", tmp_path) as server,
        aiohttp.ClientSession() as session,
    ):
        api, memory = Api(server.url, session), Memory(server, children=False)
        (await api.post("/jobs", chat())).good(202)
        too_much = {}
        for name, body in shapes(size).items():
            for path in ("/jobs", "/v1/chat/completions") if name in TAKEN else ("/jobs",):
                memory.begin()
                answer = await send(api, path, body, ROUTES[path])
                assert answer.status in (202, 400), (name, answer.body[:200])
                if memory.grown() > 4 * len(body) + MEGABYTE:
                    too_much[name, path] = memory.grown() / len(body)
        assert too_much == {}


@on_sqlite
async def test_other_callers_are_served_while_a_body_of_any_shape_is_read(caller: Caller) -> None:
    slowest: dict[str, float] = {}
    for name, body in shapes(4 * MEGABYTE).items():
        sending = asyncio.ensure_future(send(caller, "/jobs", body))
        while not sending.done():
            began = time.monotonic()
            await caller.get("/healthz")
            slowest[name] = max(slowest.get(name, 0), time.monotonic() - began)
    assert max(slowest.values()) < 1.5, slowest


# what comes of it -------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_every_shape_is_accepted_or_refused_at_every_route(served: Caller, subtests: pytest.Subtests) -> None:
    for name, body in shapes(MEGABYTE // 8).items():
        for path, headers in ROUTES.items():
            with subtests.test(name, path=path):
                answer = await send(served, path, body, headers)
                assert answer.status in (200, 202, 400, 404, 413), answer.body[:300]


@on_sqlite
async def test_a_list_of_states_is_no_longer_than_the_number_of_states(caller: Caller) -> None:
    hook: dict[str, Any] = {"state_webhook_url": "http://127.0.0.1:9/"}
    (await caller.post("/jobs", chat(**hook, webhook_events=["done"] * 6))).problem(
        400, "request.invalid_field", "webhook_events"
    )
    (await caller.post("/jobs", chat(**hook, webhook_events=["done"] * 5))).good(202)


@on_sqlite
async def test_a_large_field_of_the_wrong_type_is_named(caller: Caller) -> None:
    long = "x" * 70_000
    for field, value in (("messages", long), ("prompt", [long]), ("tools", {"x": long}), ("images", long), ("system", [long])):  # fmt: skip
        body = {"model": "a", "prompt": "x"} | {field: value} if field != "messages" else {"model": "a", field: value}
        (await caller.post("/jobs", body)).problem(400, "request.invalid_field", field)
    messages = [{"role": "user", "content": long}, {"role": "user", "content": 7}]
    (await caller.post("/jobs", {"model": "a", "messages": messages})).problem(
        400, "request.invalid_field", "messages[1]"
    )


async def test_numbers_and_characters_that_stores_cannot_hold_are_no_500(
    caller: Caller, subtests: pytest.Subtests
) -> None:
    digits = b"9" * 10_000
    values = (digits, b"-" + digits, b"1e308", b"1e400", b"1e-400", b"0." + digits, b"18446744073709551616", b"-0")
    fields = (
        b"priority",
        b"max_attempts",
        b"delay_seconds",
        b"deadline_seconds",
        b"keep_alive",
        b"metadata",
        b"format",
    )
    for field in (*fields, b"unknown", b"think", b"messages", b"model"):
        for value in (
            *values,
            b'"\\u0000"',
            b'"\\ud800"',
            b'"\\udc00\\ud800"',
            b'"a\\u0000b"',
            b'{"\\u0000":"\\u0000"}',
        ):
            with subtests.test(field.decode(), value=value[:20].decode()):
                given = {b"model": b'"a"', b"prompt": b'"x"', field: value}
                body = b"{" + b",".join(b'"%b":%b' % pair for pair in given.items()) + b"}"
                for path in ("/jobs", "/api/generate"):
                    answer = await send(caller, path, body, ROUTES[path])
                    assert answer.status in (202, 400, 404, 422), answer.body[:300]
                    if field == b"model":
                        assert answer.status == 400
    for options in values:
        answer = await send(caller, "/jobs", PROMPT + b'"options":{"num_ctx":%b}}' % options)
        assert answer.status in (202, 400), answer.body[:300]


async def test_a_name_with_a_zero_byte_is_refused_in_every_path_query_and_body(caller: Caller) -> None:
    job_id = await caller.ask()
    for path in (
        *("/jobs?model=a%00b", "/jobs?state=%00", "/jobs?cursor=%00", "/v1/files?purpose=%00", "/v1/files?after=%00"),
        *(f"/jobs/{job_id}/artifacts/%00", f"/jobs/{job_id}/artifacts/a%00b", "/v1/batches/%00"),
    ):
        answer = await caller.get(path)
        assert answer.status in (400, 404), (path, answer.status, answer.body)
    for path in ("/targets/%00/unload", "/v1/batches"):
        body = {"model": "a\0", "input_file_id": "file-\0", "endpoint": "\0", "completion_window": "24h"}
        assert (await caller.post(path, body)).status in (400, 404)
    for name in (b"a\0b", b"a%00b\0"):
        form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n\r\n{}\r\n--x--\r\n' % name
        answer = await caller.call(
            "POST", "/v1/files", data=form, headers={"Content-Type": "multipart/form-data; boundary=x"}
        )
        assert answer.status == 400


def test_a_payload_of_an_earlier_version_is_still_read() -> None:
    old = decode_request(b'{"path":"/api/chat","body":{"model":"a","keep_alive":0,"x":",\\"body\\":"},"relay":true}')
    assert (old.path, old.relay, old.leaves, bytes(old.body)[:12]) == ("/api/chat", True, True, b'{"model":"a"')
    assert decode_request(b'{"path":"/v1/embeddings","body":{}}').relay is False
