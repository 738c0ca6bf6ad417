"""The size of what one request may send, and of what one answer may return, has a bound."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from typing import Any

import msgspec
import pytest
from msgspec.inspect import CollectionType, DictType, Metadata, StructType, Type, UnionType, type_info

from chargehand.app import Server
from chargehand.engine.announce import decode_reports
from chargehand.http.weight import READ_BYTES
from tests.api.serving import Answer, Api, on_sqlite, until

NOTE = 60_000


async def test_a_page_of_events_is_bounded_in_bytes_and_the_next_page_goes_on_after_it(api: Api) -> None:
    job_id = await api.submit()
    job = await api.claim()
    for number in range(100):
        (await api.move(job, "note", message=str(number), data="x" * NOTE)).good()
    seen: list[int] = []
    pages = 0
    while page := (answer := await api.get(f"/engine/jobs/{job_id}/events?after={len(seen)}")).good()["events"]:
        assert len(answer.body) < 5_000_000
        seen += [event["sequence"] for event in page]
        pages += 1
    assert seen == list(range(1, 103))
    assert pages == 2


@on_sqlite
async def test_a_note_that_is_too_large_is_refused(api: Api) -> None:
    await api.submit()
    job = await api.claim()
    (await api.move(job, "note", message="m", data="x" * NOTE)).good()
    (await api.move(job, "note", message="m", data="x" * 70_000)).problem(413, "request.too_large")


async def test_a_state_that_a_webhook_names_twice_is_kept_once(server: Server, api: Api) -> None:
    webhook: dict[str, Any] = {"url": "http://127.0.0.1:1/", "on": ["queued", "failed"] * 10}
    job_id = await api.submit(webhook=webhook)
    [report] = decode_reports((await server.engine.get(job_id)).reports)
    assert report.on == ("queued", "failed")
    webhook["on"].append("queued")
    refused = await api.post("/engine/jobs", {"queue": "q", "payload": 1, "webhook": webhook})
    refused.problem(400, "request.invalid_field", "webhook.on")


@on_sqlite
async def test_the_parsed_part_of_a_body_is_bounded_and_the_payload_is_not(api: Api) -> None:
    large = "x" * READ_BYTES
    await api.submit(payload=large)
    refused = await api.post("/engine/jobs", {"queue": large, "payload": 1})
    assert "beside payload, metadata" in refused.problem(413, "request.too_large")["detail"]
    refused = await api.post("/engine/jobs", {"queue": "q", "payload": 1, large: 1})
    refused.problem(413, "request.too_large")
    refused = await api.post("/engine/jobs", {"queue": "q", "payload": 1, "k" * 1000: 1})
    assert len(refused.body) < 1500


async def test_a_large_payload_comes_back_as_it_was_sent(api: Api) -> None:
    payload = {"text": '"\\\n\t😀' * 300_000, "list": [1.5, None, "ü"] * 1000}
    text = msgspec.json.encode(payload)
    submitted = await api.call("POST", "/engine/jobs", data=BytesIO(b'{"queue":"q","payload":%s}' % text))
    job_id = submitted.good(202)["job_id"]
    assert (await api.job(job_id))["payload"] == payload
    job = await api.claim()
    assert job["payload"] == payload
    body = BytesIO(b'{"lease":%d,"result":%s}' % (job["lease"], text))
    (await api.call("POST", f"/engine/jobs/{job_id}/succeed", data=body)).good()
    assert (await api.job(job_id))["result"] == payload


@on_sqlite
async def test_every_list_in_a_request_body_has_a_maximum_length(server: Server, subtests: pytest.Subtests) -> None:
    for route in server.routes():
        # Not `/jobs`: its lists are stored unread, and the type only describes them; see tests/inference/test_hostile_bodies.py.
        if route.request is not None and route.path != "/jobs":
            with subtests.test(route=f"{route.method} {route.path}"):
                assert not list(_boundless(type_info(route.request), "body"))


def _boundless(info: Type, name: str) -> Iterator[str]:
    match info:
        case Metadata(type=inner):
            yield from _boundless(inner, name)
        case UnionType(types=types):
            for each in types:
                yield from _boundless(each, name)
        case StructType(fields=fields):
            for field in fields:
                yield from _boundless(field.type, f"{name}.{field.encode_name}")
        case CollectionType() | DictType():
            if info.max_length is None:
                yield name
            if isinstance(info, CollectionType):
                yield from _boundless(info.item_type, f"{name}[]")


class TestManyLargeBodies:
    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"server.max_bodies_bytes": 300_000}

    @on_sqlite
    async def test_a_body_beyond_the_sum_that_all_bodies_may_have_is_refused_with_retry_after(self, api: Api) -> None:
        sent, go_on = asyncio.Event(), asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield b'{"queue":"q","payload":"' + b"x" * 200_000
            sent.set()
            await go_on.wait()
            yield b'"}'

        first = asyncio.create_task(api.call("POST", "/engine/jobs", data=slowly()))
        await sent.wait()
        large = {"queue": "q", "payload": "x" * 200_000}

        async def refused() -> Answer | None:
            answer = await api.post("/engine/jobs", large)
            return answer if answer.status == 503 else None

        answer: Answer = await until(refused)  # once the server has read the first part of the first body
        answer.problem(503, "overloaded")
        assert answer.headers["retry-after"] == "1"
        assert await api.submit(payload="small")
        go_on.set()
        (await first).good(202)
        assert await api.submit(payload=large["payload"])

    @on_sqlite
    async def test_a_single_body_is_accepted_even_if_it_is_over_the_sum(self, api: Api) -> None:
        for _ in range(2):
            assert await api.submit(payload="x" * 900_000)
