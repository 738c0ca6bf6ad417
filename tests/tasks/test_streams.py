"""Streamed claims: never more tasks in progress than asked for, the next one as soon as one ends, and none lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

import aiohttp
import asyncpg
import msgspec
import pytest

from chargehand.doors.tasks import stream as streams
from chargehand.doors.tasks.names import BASE
from chargehand.engine.moves import Moved
from chargehand.store.postgres.store import PostgresStore
from tests.api.serving import Answer, on_sqlite, until
from tests.engine.given import Cable
from tests.store.test_hints import meet_another
from tests.tasks.calling import Caller, Shop, calling, two_nodes

SOON = 5.0


class Stream:
    """The client of one stream."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.read: list[dict[str, Any]] = []
        self.signs = 0

    async def line(self) -> bytes:
        """Return the next line, or b"" when the stream has ended."""
        async with asyncio.timeout(SOON):
            return await self.response.content.readline()

    async def task(self) -> dict[str, Any]:
        while (line := await self.line()) == b"\n":
            self.signs += 1
        assert line, "the stream has ended"
        self.read.append(msgspec.json.decode(line))
        return self.read[-1]

    async def tasks(self, count: int) -> list[dict[str, Any]]:
        return [await self.task() for _ in range(count)]

    async def ends(self) -> None:
        """Read the tasks that still come, until the stream ends."""
        while line := await self.line():
            if line != b"\n":
                self.read.append(msgspec.json.decode(line))


@asynccontextmanager
async def streaming(caller: Caller, **fields: Any) -> AsyncIterator[Stream]:
    api = caller.api
    async with api.session.post(api.url + f"{BASE}/tasks/claim/stream", json=fields, headers=api._headers) as response:
        assert (response.status, response.headers["content-type"]) == (200, "application/x-ndjson")
        stream = Stream(response)
        assert await stream.line() == b"\n"
        yield stream


async def leave(caller: Caller, stream: Stream) -> Answer:
    return await caller.delete(f"/tasks/claim/stream/{stream.response.headers['x-chargehand-stream']}")


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[Shop]:
    async with calling(store_url, {"tasks.backoff_base_seconds": 0}) as shop:
        yield shop


async def in_progress(shop: Shop, command: str = "render") -> int:
    depth: int = (await shop.boss.get(f"/admin/queues/{command}")).good()["inProgress"]
    return depth


async def is_in_progress(shop: Shop, count: int) -> bool:
    return await in_progress(shop) == count


async def create(shop: Shop, count: int, **fields: Any) -> list[str]:
    return [(await shop.producer.create(**fields))["id"] for _ in range(count)]


# How many ---------------------------------------------------------------------------------------------------------------


async def test_no_more_are_in_progress_than_the_reader_asked_for(shop: Shop) -> None:
    ids = await create(shop, 20)
    async with streaming(shop.worker, maxInFlight=3) as stream:
        held = await stream.tasks(3)
        for _ in range(17):
            assert await in_progress(shop) == 3
            await shop.worker.complete(held.pop(0))
            held += await stream.tasks(1)
        assert [task["id"] for task in stream.read] == ids
        assert all((task["status"], task["attempts"]) == ("IN_PROGRESS", 1) for task in stream.read)
        for task in held:
            await shop.worker.complete(task)
    assert await in_progress(shop) == 0


async def test_a_stream_is_filled_up_to_the_number_it_asked_for(shop: Shop) -> None:
    ids = await create(shop, 250)
    async with streaming(shop.worker, maxInFlight=230) as stream:
        assert {task["id"] for task in await stream.tasks(230)} == set(ids[:230])
        assert await in_progress(shop) == 230


async def test_several_streams_share_the_tasks_and_each_task_goes_to_one(shop: Shop) -> None:
    ids = await create(shop, 60)

    done: list[str] = []

    async def work(caller: Caller) -> None:
        async with streaming(caller, maxInFlight=4) as stream:
            while True:
                task = await stream.task()
                await caller.complete(task)
                done.append(task["id"])

    working = [asyncio.create_task(work(caller)) for caller in (shop.worker, shop.worker_2) * 3]
    await until(lambda: len(done) >= len(ids))
    for each in working:
        each.cancel()
    assert all(
        isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*working, return_exceptions=True)
    )
    assert sorted(done) == sorted(ids)


# Whatever way they end --------------------------------------------------------------------------------------------------


async def _complete(shop: Shop, task: dict[str, Any]) -> None:
    await shop.worker.complete(task)


async def _fail(shop: Shop, task: dict[str, Any]) -> None:
    (await shop.worker.on(task, "result", status="FAILED", error="no")).good()


async def _batch(shop: Shop, task: dict[str, Any]) -> None:
    results = [{"taskId": task["id"], "status": "COMPLETED", "result": {}}]
    assert "error" not in (await shop.worker.post("/tasks/batch/results", {"results": results})).good()["results"][0]


async def _nack(shop: Shop, task: dict[str, Any]) -> None:
    assert (await shop.worker.on(task, "nack", delaySeconds=60)).good()["status"] == "requeued"


async def _abandon(shop: Shop, task: dict[str, Any]) -> None:
    (await shop.worker.on(task, "abandon")).good()


async def _cancel(shop: Shop, task: dict[str, Any]) -> None:
    (await shop.producer.on(task, "cancel")).good()


async def _lapse(shop: Shop, task: dict[str, Any]) -> None:
    (await shop.worker.on(task, "heartbeat", extendSeconds=0.01)).good()


@pytest.mark.parametrize("end", [_complete, _fail, _batch, _nack, _abandon, _cancel, _lapse])
async def test_each_way_to_end_makes_room_for_the_next(
    shop: Shop, end: Callable[[Shop, dict[str, Any]], Awaitable[None]]
) -> None:
    first, second = await create(shop, 2)
    async with streaming(shop.worker, maxInFlight=1) as stream:
        task = await stream.task()
        assert task["id"] == first
        await end(shop, task)
        assert (await stream.task())["id"] == second


async def test_an_abandoned_task_comes_again_with_another_lease(shop: Shop) -> None:
    await create(shop, 1)
    async with streaming(shop.worker, maxInFlight=1) as stream:
        last = 0
        for _ in range(3):
            task = await stream.task()
            assert task["attempts"] == 1
            assert task["lease"] > last
            last = task["lease"]
            await shop.worker.on(task, "abandon")


async def test_a_stream_gets_later_tasks_by_priority(shop: Shop) -> None:
    async with streaming(shop.worker, maxInFlight=1, commands=["render", "send"]) as stream:
        [first] = await create(shop, 1)
        assert (await stream.task())["id"] == first
        low = (await shop.producer.create("render", priority=1))["id"]
        high = (await shop.producer.create("send", priority=7))["id"]
        await shop.worker.complete({"id": first})
        assert (await stream.task())["id"] == high
        await shop.worker.complete({"id": high})
        assert (await stream.task())["id"] == low


@on_sqlite
async def test_a_missed_end_is_found_by_polling(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task may end while the claim is still on its way to the stream."""

    def deaf(_: streams.Streams, _moved: Moved) -> None:
        pass

    monkeypatch.setattr(streams.Streams, "on_move", deaf)
    monkeypatch.setattr(streams, "KEEP_ALIVE_SECONDS", 0.3)
    async with calling(store_url) as shop:
        first, second = await create(shop, 2)
        async with streaming(shop.worker, maxInFlight=1) as stream:
            assert (await stream.task())["id"] == first
            await shop.producer.on({"id": first}, "cancel")
            assert (await stream.task())["id"] == second


# Signs of life, and the end of a stream ---------------------------------------------------------------------------------


@on_sqlite
@pytest.mark.parametrize("full", [False, True], ids=["nothing to do", "as many as it takes"])
async def test_a_stream_sends_keep_alive_lines(store_url: str, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_SECONDS", 0.05)
    async with calling(store_url) as shop, streaming(shop.worker, maxInFlight=1) as stream:
        if full:
            await create(shop, 2)
            await stream.task()
        assert [await stream.line() for _ in range(5)] == [b"\n"] * 5


@pytest.mark.parametrize("full", [False, True], ids=["nothing to do", "as many as it takes"])
async def test_a_server_that_stops_ends_its_streams_and_claims_nothing_more(store_url: str, full: bool) -> None:
    async with calling(store_url, {"server.drain_seconds": 5}) as shop:
        async with streaming(shop.worker, maxInFlight=1) as stream:
            ids = await create(shop, 2 if full else 0)
            if full:
                await stream.task()
            shop.server.engine.drain()
            await stream.ends()
        for task_id in ids[1:]:
            assert (await shop.producer.task({"id": task_id}))["status"] == "PENDING"


async def test_a_client_that_disconnects_while_waiting_does_not_hold_the_next_task(shop: Shop) -> None:
    for _ in range(5):
        async with streaming(shop.worker, maxInFlight=10) as stream:
            stream.response.close()
        task = await shop.producer.create()
        assert (await shop.worker_2.claim(waitSeconds=SOON))["id"] == task["id"]
        await shop.worker_2.complete(task)


@pytest.mark.parametrize("full", [False, True], ids=["nothing to do", "as many as it takes"])
async def test_a_stream_that_is_closed_by_its_name_ends_and_claims_nothing_more(shop: Shop, full: bool) -> None:
    ids = await create(shop, 2 if full else 0)
    async with streaming(shop.worker, maxInFlight=1) as stream:
        if full:
            await stream.task()
        assert (await leave(shop.producer, stream)).status in (401, 403)  # a producer may not
        assert (await leave(shop.worker, stream)).status == 204
        await stream.ends()
        assert (await leave(shop.worker, stream)).status == 204
    ids += await create(shop, 1)
    assert (await shop.worker_2.claim())["id"] == ids[1 if full else 0]


async def test_a_stream_that_is_closed_by_its_name_delivers_every_claimed_task(shop: Shop) -> None:
    async with streaming(shop.worker, maxInFlight=5) as stream:
        ids = await create(shop, 3)
        await until(lambda: is_in_progress(shop, 3))
        await leave(shop.worker, stream)
        await stream.ends()
    assert {task["id"] for task in stream.read} == set(ids)


async def test_a_task_that_is_claimed_while_the_stream_closes_is_sent_or_handed_back(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[streams.OpenStream] = []
    claim = shop.server.engine.claim

    class Remembered(streams.OpenStream):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    async def claim_and_leave(*given: Any, **more: Any) -> Any:
        jobs = await claim(*given, **more)
        if jobs:
            made[-1].leaving.cancel()
        return jobs

    monkeypatch.setattr(streams, "OpenStream", Remembered)
    monkeypatch.setattr(shop.server.engine, "claim", claim_and_leave)
    async with streaming(shop.worker, maxInFlight=5) as stream:
        await create(shop, 1)
        await stream.ends()
    assert len(made) == 1
    assert made[0].leaving.cancelled()
    await until(lambda: is_in_progress(shop, len(stream.read)))


@pytest.mark.parametrize("name", ["x" * 8000, "%E2%82%AC" * 3000, "0" * 31, "G" * 32])
async def test_an_impossible_stream_name_is_not_sent_to_other_nodes(postgres_url: str, name: str) -> None:
    """PostgreSQL takes 8,000 bytes in one notification: a longer one would break the channel between the nodes."""
    heard: list[str] = []
    connection = await asyncpg.connect(postgres_url)
    async with calling(postgres_url) as shop:
        assert isinstance(shop.server.store, PostgresStore)
        channel = shop.server.store._hints._channel
        await connection.add_listener(channel, lambda *said: heard.append(str(said[-1])))
        await meet_another(shop.server, connection, channel)
        for each in (name, "0" * 32):
            assert (await shop.worker.delete(f"/tasks/claim/stream/{each}")).status == 204
        await until(lambda: any("0" * 32 in text for text in heard))
        assert not any(unquote(name) in text.replace("0" * 32, "") for text in heard)
    await connection.close()


async def _completed(shop: Shop, task_id: str) -> bool:
    return bool((await shop.producer.task({"id": task_id}))["status"] == "COMPLETED")


async def test_unfinished_tasks_of_a_client_that_disconnected_go_to_others(shop: Shop) -> None:
    """Clients disconnect at any moment. Tasks that they may have read lapse, the others are handed back: all get done."""
    random = Random(5)
    ids: list[str] = []
    done: list[str] = []

    async def produce() -> None:
        for _ in range(15):
            ids.extend(await create(shop, 4, maxAttempts=100))

    async def come_and_go() -> None:
        while not produced.done():
            async with streaming(shop.worker, maxInFlight=5, leaseSeconds=0.5) as stream:
                for _ in range(random.randrange(3)):
                    task = await stream.task()
                    await shop.worker.complete(task, lease=task["lease"])
                    done.append(task["id"])
                stream.response.close()

    produced = asyncio.create_task(produce())
    leavers = [asyncio.create_task(come_and_go()) for _ in range(3)]
    await produced
    await asyncio.sleep(0)
    for leaver in leavers:
        leaver.cancel()
    for result in await asyncio.gather(*leavers, return_exceptions=True):
        assert result is None or isinstance(result, asyncio.CancelledError), result
    # A cancelled client may have a request under way, so its task may still end while we look for the others.
    while left := [task_id for task_id in ids if not await _completed(shop, task_id)]:
        assert not set(left) & set(done)
        found = await shop.worker_2.post("/tasks/claim", {"commands": ["render"], "waitSeconds": SOON})
        if found.status == 200:
            assert found.json["id"] in left
            await shop.worker_2.complete(found.json)
        else:
            assert [task_id for task_id in left if not await _completed(shop, task_id)] == []


async def test_a_client_that_does_not_read_gets_no_more_tasks_than_it_asked_for(shop: Shop) -> None:
    await create(shop, 12, payload={"text": "x" * 200_000})
    async with streaming(shop.worker, maxInFlight=4):
        await until(lambda: in_progress(shop))
        for _ in range(5):
            assert await in_progress(shop) <= 4


# Two nodes --------------------------------------------------------------------------------------------------------------


async def test_a_stream_can_be_closed_at_any_node(postgres_url: str) -> None:
    async with two_nodes(postgres_url) as (one, other), streaming(one.worker) as stream:
        assert (await leave(other.worker, stream)).status == 204
        await stream.ends()


@pytest.mark.parametrize("end", [_complete, _nack, _abandon, _cancel, _lapse])
async def test_a_task_that_ends_at_another_node_makes_room(
    postgres_url: str, end: Callable[[Shop, dict[str, Any]], Awaitable[None]]
) -> None:
    async with two_nodes(postgres_url) as (one, other):
        first, second = await create(other, 2)
        async with streaming(one.worker, maxInFlight=1) as stream:
            task = await stream.task()
            assert task["id"] == first
            await end(other, task)
            assert (await stream.task())["id"] == second


async def test_results_that_go_to_another_node_do_not_slow_a_stream_down(postgres_url: str) -> None:
    """Looking once a second would take 20 s; the nodes notify each other instead."""
    async with two_nodes(postgres_url) as (one, other):
        ids = await create(other, 20)
        async with asyncio.timeout(8), streaming(one.worker, maxInFlight=1) as stream:
            for task_id in ids:
                assert (await stream.task())["id"] == task_id
                await other.worker.complete({"id": task_id})


async def test_progress_and_heartbeats_at_another_node_make_no_room(postgres_url: str) -> None:
    async with two_nodes(postgres_url) as (one, other):
        await create(other, 2)
        async with streaming(one.worker, maxInFlight=1) as stream:
            task = await stream.task()
            for percent in range(10):
                (await other.worker.on(task, "progress", percent=percent)).good()
                (await other.worker.on(task, "heartbeat")).good()
                assert await in_progress(one) == 1


@pytest.mark.parametrize("full", [False, True], ids=["nothing to do", "as many as it takes"])
async def test_a_stream_whose_database_goes_away_breaks_off_without_a_traceback_and_the_next_one_works(
    postgres_url: str, full: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_SECONDS", 0.3)
    with TemporaryDirectory(prefix="chargehand-") as folder:
        async with Cable(postgres_url, Path(folder)) as cable, calling(cable.url) as shop:
            async with streaming(shop.worker, maxInFlight=1) as stream:
                ids = await create(shop, 2) if full else []
                if full:
                    await stream.task()
                cable.cut()
                with pytest.raises(aiohttp.ClientPayloadError):
                    await stream.ends()
            await cable.mend()

            async def back() -> bool:
                return (await shop.nobody.api.get("/readyz")).status == 200

            await until(back)
            ids = ids or await create(shop, 2)
            if full:
                await shop.worker.complete({"id": ids[0]})
            async with streaming(shop.worker, maxInFlight=1) as stream:
                assert (await stream.task())["id"] == ids[1 if full else 0]
    assert not [record for record in caplog.records if record.exc_info and not record.name.startswith("asyncpg")]
