"""Bounded work for each request: whatever is sent, time is proportional to its size, and memory is bounded.

Time is the CPU time of the server's main thread, and memory the peak that the kernel counts: neither depends on other
processes.
"""

import asyncio
import base64
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from yarl import URL

from chargehand.app import Server as App
from chargehand.config import load_config
from chargehand.http.route import Route
from tests.e2e import shapes
from tests.e2e.processes import Memory, loop_seconds
from tests.e2e.server import Server
from tests.provisioning.recipes import linux

MB = 1_000_000
ALLOWED = 4  # times its size
SPARE = 3 * MB  # heaps of both processes, socket buffers, the log's index: independent of the request's size
SMALL, LARGE = 60_000, 240_000  # below the smallest bound of a JSON body, and above what is decoded of a large one
LOOP_FIXED, LOOP_FACTOR = 0.15, 25  # seconds, and a multiple of the time to decode as many bytes into objects
TRIES = 3  # a host that takes our processor away makes one request slow, not three
MAX_REFUSAL = 4096

pytestmark = pytest.mark.timeout(600)  # thousands of requests, one after another

ENDLESS = ("/engine/feed", "/v1/codeq/tasks/claim/stream")
LEASE = re.compile(rb'"lease":1(?=[,}])')
WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")


class Hostile:
    """Sends hostile requests to a server, and measures their cost."""

    def __init__(self, server: Server, http: aiohttp.ClientSession) -> None:
        self.http = http
        self._numbers = count()
        self.lease = b'"lease":1'
        self.server = server
        self.pid = server.process.pid
        self.pids = [self.pid, *(child.pid for child in server.children())]

    async def send(
        self, method: str, path: str | URL, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        data = body
        if isinstance(body, bytes):  # in a file, because aiohttp warns about large bytes
            data = BytesIO(LEASE.sub(self.lease, body, count=1))
        url = path if isinstance(path, URL) else self.server.url + path
        async with self.http.request(method, url, data=data, headers=headers) as response:
            if response.headers.get("content-type", "").startswith(("text/event-stream", "application/x-ndjson")):
                return response.status, b""  # an endless stream
            return response.status, await response.read()

    async def timed(self, allowed: float, *request: Any) -> tuple[int, bytes, float]:
        """Send a request, again if it kept the loop for longer than is allowed; return the last answer and the least time."""
        took = float("inf")
        for _ in range(TRIES):
            before = loop_seconds(self.pid)
            status, answer = await self.send(*request)
            took = min(took, loop_seconds(self.pid) - before)
            if took <= allowed:
                break
        return status, answer, took

    async def json(self, path: str, body: Any) -> Any:
        status, answer = await self.send("POST", path, msgspec.json.encode(body))
        assert status < 300, answer
        return msgspec.json.decode(answer)

    async def job(self) -> str:
        """Return a claimed job; `send` puts its lease where a body has 1."""
        queue = f"held-{next(self._numbers)}"
        await self.json("/engine/jobs", {"queue": queue, "payload": 1})
        [job] = (await self.json("/engine/claims", {"queues": [queue]}))["jobs"]
        self.lease = b'"lease":%d' % job["lease"]
        return str(job["id"])

    async def task(self) -> str:
        command = f"held-{next(self._numbers)}"
        await self.json("/v1/codeq/tasks", {"command": command, "payload": 1})
        return str((await self.json("/v1/codeq/tasks/claim", {"commands": [command]}))["id"])

    async def ids(self, route: Route) -> dict[str, str]:
        known = {"kind": "job", "name": "q", "command": "q", "topic_name": "q", "server_serial": "SN-1"}
        if "{job_id}" in route.path:
            known["job_id"] = await self.job()
        if "{task_id}" in route.path:
            known["task_id"] = await self.task()
        return known


@pytest.fixture
async def hostile(tmp_path: Path) -> AsyncIterator[Hostile]:
    server = Server(
        f"sqlite:///{tmp_path}/chargehand.db",
        tmp_path,
        server_data_dir=tmp_path,
        provisioning_enabled="true",
        engine_max_wait_seconds=0,
        engine_lease_seconds=600,
        inference_wait_seconds=0,
    )
    # Freed memory is returned at once, so that memory left by one request does not hide the next one's peak.
    server.environ |= {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    timeout = aiohttp.ClientTimeout(total=60)
    async with server, aiohttp.ClientSession(timeout=timeout) as http:
        yield Hostile(server, http)
        assert (await http.get(f"{server.url}/readyz")).status == 200
        assert "Traceback" not in server.log


@pytest.fixture
async def routes(tmp_path: Path) -> list[Route]:
    folder = tmp_path / "routes"
    settings = {"store.url": f"sqlite:///{folder}/a.db", "server.data_dir": str(folder), "provisioning.enabled": True}
    app = await App.open(load_config(environ={}, overrides={**settings, "inference.embedded": "off"}))
    try:
        return app.routes()
    finally:
        await app.store.close()


def bodies(route: Route, size: int) -> Iterator[tuple[str, bytes]]:
    """Yield hostile bodies: the whole body, and each of its values, replaced."""
    body = shapes.right(route)
    keys = b",".join(b'"k%07d":1' % number for number in range(size // 13))
    yield "many unknown keys beside those that are known", shapes.at(("unknown",), b"1," + keys, body)
    for name, value in shapes.values(size):
        yield f"the body is {name}", value
        if route.request is None:
            continue
        yield f"something unknown is {name}", shapes.at(("unknown",), value, body)
        for place in shapes.places(route) if size == SMALL else ():
            yield f"{'.'.join(place)} is {name}", shapes.at(place, value, body)


def decoding_seconds_per_byte() -> float:
    """Measure how long this machine takes to decode JSON into objects, for comparison."""
    text = b"[" + b",".join([b'{"a":[1,"b"]}'] * 100_000) + b"]"
    began = time.thread_time()
    msgspec.json.decode(text)
    return (time.thread_time() - began) / len(text)


def costly(route: Route) -> bool:
    return route.method in WITH_BODY and route.path not in ENDLESS


async def test_every_body_gets_an_answer_and_costs_time_proportional_to_its_size(
    hostile: Hostile, routes: list[Route], subtests: pytest.Subtests
) -> None:
    per_byte = decoding_seconds_per_byte()
    for route in filter(costly, routes):
        with subtests.test(route=f"{route.method} {route.path}"):
            wrong: list[str] = []
            for size in (SMALL, LARGE):
                path = shapes.filled(route.path, await hostile.ids(route))
                if size == LARGE and (await hostile.send(route.method, path, b" " * LARGE))[0] == 413:
                    break  # the body is not read
                for name, body in bodies(route, size):
                    allowed = LOOP_FIXED + LOOP_FACTOR * per_byte * len(body)
                    status, answer, took = await hostile.timed(allowed, route.method, path, body)
                    if took > allowed:
                        wrong.append(f"{name}: {len(body)} bytes kept the loop for {took:.3f} s")
                    if not (status < 300 or 400 <= status < 500 or status == 503):
                        wrong.append(f"{name}: {status} {answer[:200]!r}")
                    if status >= 400 and len(answer) > MAX_REFUSAL:
                        wrong.append(f"{name}: a refusal of {len(answer)} bytes: {answer[:200]!r}")
                    if status < 300 and route.path.startswith(("/engine/jobs/", "/v1/codeq/tasks/{")):
                        path = shapes.filled(route.path, await hostile.ids(route))
            assert not wrong, "\n".join(wrong)


# heads ------------------------------------------------------------------------------------------------------------------

HEAD = 24_000  # below server.max_header_bytes
TEXTS = (
    "",
    "x" * HEAD,
    "%00",
    "%ff%fe",
    "%F0%9F%98%80" * (HEAD // 12),
    "%25" * (HEAD // 3),
    "9" * HEAD,
    "-1",
    "1e400",
    "NaN",
)
HEADERS = (
    "Idempotency-Key",
    "traceparent",
    "tracestate",
    "Last-Event-ID",
    "Prefer",
    "X-Target",
    "X-Request-Id",
    "Accept",
)


def queries(route: Route) -> Iterator[str]:
    yield "&".join(["x"] * (HEAD // 2))
    yield "&".join(f"k{number}=1" for number in range(HEAD // 10))
    yield "&" * HEAD
    for field in msgspec.structs.fields(route.query) if route.query is not None else ():
        name = field.encode_name
        yield from (f"{name}={text}" for text in TEXTS)
        yield "&".join([f"{name}=1"] * (HEAD // (len(name) + 3)))
        yield f"{name}={','.join(['1'] * (HEAD // 2))}"


async def test_every_request_head_gets_an_answer(
    hostile: Hostile, routes: list[Route], subtests: pytest.Subtests
) -> None:
    per_byte = decoding_seconds_per_byte()

    async def clear(route: Route, path: str, headers: dict[str, str] | None = None) -> str:
        allowed = LOOP_FIXED + LOOP_FACTOR * per_byte * HEAD
        url = URL(hostile.server.url + path, encoded=True)
        status, answer, took = await hostile.timed(allowed, route.method, url, None, headers)
        if status in (500, 501, 504, 505) or (status >= 400 and len(answer) > 2 * HEAD):
            return f"{path[:100]} {headers and list(headers)}: {status} {answer[:200]!r}\n"
        return f"{path[:100]} {headers and list(headers)}: kept the loop for {took:.3f} s\n" if took > allowed else ""

    for route in routes:
        if route.path in ENDLESS:
            continue
        with subtests.test(route=f"{route.method} {route.path}"):
            plain = shapes.filled(route.path, {})
            wrong = [await clear(route, f"{plain}?{query}") for query in queries(route)]
            wrong += [await clear(route, plain, {name: "x" * HEAD}) for name in HEADERS]
            for name in re.findall(r"\{(\w+)", route.path):
                wrong += [await clear(route, shapes.filled(route.path, {name: text or "x"})) for text in TEXTS]
            assert not any(wrong), "".join(wrong)


# memory -----------------------------------------------------------------------------------------------------------------

SIZE = 8 * MB
TEXT = b"x" * SIZE


def listed(item: bytes) -> bytes:
    return b"[" + b",".join([item] * (SIZE // (len(item) + 1))) + b"]"


def keyed() -> bytes:
    return b"{" + b",".join(b'"k%07d":1' % number for number in range(SIZE // 13)) + b"}"


PAYLOADS = {
    "a text": b'"' + TEXT + b'"',
    "a text with an emoji": b'"' + "😀".encode() + TEXT + b'"',
    "a list of lists": listed(b"[]"),
    "a list of texts": listed(b'""'),
    "many keys": keyed(),
}
WORST = ("a text with an emoji", "a list of texts")  # once they are objects
# Routes whose body may be large because a part is only stored: the text around that part, and the expected status.
CARRYING = {
    "/jobs": (b'{"model":"m","prompt":"hello","format":', b"}", 202),
    "/engine/jobs": (b'{"queue":"q","payload":', b"}", 202),
    "/engine/jobs/{job_id}/succeed": (b'{"lease":1,"result":', b"}", 200),
    "/v1/codeq/tasks": (b'{"command":"c","payload":', b"}", 202),
    "/v1/codeq/tasks/batch": (b'{"tasks":[{"command":"c","payload":', b"}]}", 200),
    "/v1/codeq/tasks/{task_id}/result": (b'{"status":"COMPLETED","result":{"a":', b"}}", 200),
    "/v1/codeq/tasks/batch/results": (b'{"results":[{"taskId":"x","result":{"a":', b"}}]}", 200),
}


@pytest.fixture
async def settled(hostile: Hostile) -> Hostile:
    """Fill the writer's page cache, which has its own bound."""
    body = b'{"queue":"warm","payload":"' + b"x" * 100_000 + b'"}'
    for _ in range(6):
        done = await asyncio.gather(*[hostile.send("POST", "/engine/jobs", body) for _ in range(60)])
        assert {status for status, _ in done} == {202}
    return hostile


async def test_a_request_takes_at_most_four_times_its_size_in_server_and_writer_together(
    settled: Hostile, routes: list[Route], subtests: pytest.Subtests
) -> None:
    of = {route.path: route for route in routes if route.method == "POST"}
    for path, (before, after, status) in CARRYING.items():
        for name, payload in PAYLOADS.items():
            with subtests.test(path=path, payload=name):
                ids, body = await settled.ids(of[path]), before + payload + after
                memory = Memory(settled.pids)
                assert (await settled.send("POST", shapes.filled(path, ids), body))[0] == status
                within(memory, len(body))


async def test_a_refused_request_takes_no_more_memory_than_that(
    settled: Hostile, routes: list[Route], subtests: pytest.Subtests
) -> None:
    for route in filter(costly, routes):
        if route.request is None:
            continue
        path = shapes.filled(route.path, await settled.ids(route))
        if (await settled.send(route.method, path, b" " * LARGE))[0] == 413:
            continue  # the body is not read
        for place in [("unknown",), *shapes.places(route)]:
            for name in WORST:
                with subtests.test(route=f"{route.method} {route.path}", place=".".join(place), value=name):
                    sent = shapes.at(place, PAYLOADS[name], shapes.right(route))
                    path = shapes.filled(route.path, await settled.ids(route))
                    memory = Memory(settled.pids)
                    assert (await settled.send(route.method, path, sent))[0] < 500
                    within(memory, len(sent))


def encoded(text: str) -> dict[str, str]:
    return {"base64": base64.b64encode(text.encode()).decode()}


# The largest recipe: one of its texts may have a mebibyte, two a quarter of that.
LETTERS, EMOJI = "x", "😀" + "x" * 1000
RECIPES: dict[str, tuple[str, Callable[[str], Any], tuple[str, ...]]] = {
    "one text": (LETTERS, str, ("user_data",)),
    "all texts": (LETTERS, str, ("user_data", "network_config", "meta_data")),
    "one text with emojis": (EMOJI, str, ("user_data",)),
    "all texts with emojis": (EMOJI, str, ("user_data", "network_config", "meta_data")),
    "one text in base64": (LETTERS, encoded, ("user_data",)),
    "all texts with emojis in base64": (EMOJI, encoded, ("user_data", "network_config", "meta_data")),
}
LIMITS = {"user_data": 2**20, "network_config": 2**18, "meta_data": 2**18}


async def test_a_recipe_takes_no_more_memory_than_that(settled: Hostile, subtests: pytest.Subtests) -> None:
    for number, (name, (text, form, members)) in enumerate(RECIPES.items()):
        serial = f"SN-{number}"
        put = {"bmc_address": "http://127.0.0.1:9"}
        assert (await settled.send("PUT", f"/api/v1/servers/{serial}", msgspec.json.encode(put)))[0] < 300
        assert (await settled.send("PUT", f"/engine/queues/provision/{serial}", b'{"paused":true}'))[0] == 200
        recipe = linux(**{each: form(text * (LIMITS[each] // len(text.encode()))) for each in members})
        body = msgspec.json.encode({"server_serial": serial, "recipe": recipe})
        with subtests.test(recipe=name, size=len(body)):
            memory = Memory(settled.pids)
            status, answer = await settled.send("POST", "/api/v1/jobs", body)
            assert status < 300, answer
            within(memory, len(body))


async def test_a_body_that_arrives_slowly_takes_no_more_memory_than_that(settled: Hostile) -> None:
    async def drops() -> AsyncIterator[bytes]:
        yield b'{"queue":"q","payload":"'
        for begin in range(0, SIZE, 1000):
            yield TEXT[begin : begin + 1000]
        yield b'"}'

    memory = Memory(settled.pids)
    assert (await settled.send("POST", "/engine/jobs", drops()))[0] == 202
    within(memory, SIZE)


def within(memory: Memory, size: int) -> None:
    grown = memory.grown()
    told = " + ".join(f"{each / MB:.1f}" for each in grown)
    assert sum(grown) <= ALLOWED * size + SPARE, f"{size / MB:.1f} MB took {told} MB: {sum(grown) / size:.2f} times"
