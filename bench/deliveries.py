"""Deliveries: the outbox against a bare client in a loop, and against itself with a dead endpoint among the others."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from bench import work
from bench.bench import Bench
from bench.client import Connection, connected, request
from bench.processes import others_cpu, output, running
from bench.receiver import Received
from bench.report import Row, Sample, Target, compared_rates
from chargehand.commands.bench.load import quantiles

ENDPOINTS = 8
IN_FLIGHT = 64  # how many deliveries the outbox has in flight to one host by default
PATIENCE_SECONDS = 300.0
EVERY = 20  # of so many deliveries, the duration of one is read


async def deliveries(bench: Bench) -> AsyncIterator[Row]:
    alone: list[Sample] = []
    bare: list[Sample] = []
    beside_dead: list[Sample] = []
    async with running("receiver") as (_, [healthy, dead]):
        for _ in range(bench.scale.delivery_rounds):
            sample, body_bytes = await _drain(bench, healthy, [])
            alone.append(bench.said("outbox", sample))
            bare.append(bench.said("bare client", await _send(bench, healthy, body_bytes)))
            sample, _ = await _drain(bench, healthy, [f"{dead}/dead"])
            beside_dead.append(bench.said("outbox with a dead endpoint", sample))
    yield compared_rates("deliveries against a bare client", alone, bare, Target("≥", 0.75))
    yield compared_rates("deliveries beside a dead endpoint", beside_dead, alone, Target("≥", 0.9))


async def _send(bench: Bench, receiver: str, body_bytes: int) -> Sample:
    before, began = others_cpu(bench.stores.database), time.monotonic()
    sent = await output("sender", receiver, str(bench.scale.deliveries), str(IN_FLIGHT), str(body_bytes))
    sample = msgspec.json.decode(sent, type=Sample)
    others = (others_cpu(bench.stores.database) - before) / (time.monotonic() - began)
    return msgspec.structs.replace(sample, others_cpu=others * sample.seconds)


async def _drain(bench: Bench, receiver: str, dead: list[str]) -> tuple[Sample, int]:
    """Queue deliveries while their endpoints are paused; measure from resuming the endpoints to the last arrival."""
    healthy, count = [f"{receiver}/{number}" for number in range(ENDPOINTS)], bench.scale.deliveries
    async with bench.server() as server, connected(server.url, 64) as connections, connected(receiver, 1) as [counter]:
        before = await _received(counter)
        await _submit(connections, [*healthy, *dead], ENDPOINTS + len(dead))
        first = await _received(counter, before.count + ENDPOINTS)
        await _set_endpoints(connections, "pause")
        await _submit(connections, healthy, count)
        await _submit(connections, dead, count // ENDPOINTS * len(dead))
        cpu, began = server.cpu(), time.monotonic()
        await _set_endpoints(connections, "resume")
        last = await _received(counter, first.count + count)
        sample = server.sample(cpu, count, last.last_at - began, [0.0])
        sample = msgspec.structs.replace(
            sample, **dict(zip(("p50", "p99"), quantiles(await _try_seconds(connections[0])), strict=True))
        )
        if (await _received(counter)).count != first.count + count:
            raise RuntimeError("some deliveries came twice")
    return sample, (first.body_bytes - before.body_bytes) // ENDPOINTS


async def _submit(connections: list[Connection], urls: Sequence[str], count: int) -> None:
    requests = itertools.islice(itertools.cycle([work.submission(url) for url in urls]), count)

    async def on(connection: Connection) -> None:
        for each in requests:
            await connection.expect(each, 202)

    await asyncio.gather(*map(on, connections))


async def _set_endpoints(connections: list[Connection], verb: str) -> None:
    endpoints = (await _get(connections[0], "/engine/endpoints"))["endpoints"]
    changes = [request("POST", f"/engine/endpoints/{endpoint['id']}/{verb}") for endpoint in endpoints]
    await asyncio.gather(*[c.expect(change, 200) for c, change in zip(connections, changes, strict=False)])


async def _received(counter: Connection, count: int = 0) -> Received:
    """Wait until the receiver has so many webhooks; return its counts."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            answer = await counter.expect(request("GET", "/"), 200)
            received = msgspec.json.decode(answer.body, type=Received)
            if received.count >= count:
                return received
            await asyncio.sleep(0.02)


async def _try_seconds(connection: Connection) -> list[float]:
    """Return the durations of the tries of some of the deliveries."""
    ids: list[str] = []
    path = "/engine/deliveries?state=delivered&limit=500"
    following = ""
    while True:
        page = await _get(connection, path + following)
        ids += [delivery["id"] for delivery in page["deliveries"]]
        if page["next"] is None:
            break
        following = f"&cursor={page['next']}"
    details = [await _get(connection, f"/engine/deliveries/{each}") for each in ids[::EVERY]]
    return [attempt["duration_seconds"] for detail in details for attempt in detail["attempts"]]


async def _get(connection: Connection, path: str) -> Any:
    return msgspec.json.decode((await connection.expect(request("GET", path), 200)).body)
