"""Processes are killed at random moments under load; afterwards nothing acknowledged may be missing or duplicated.

CHARGEHAND_CHAOS_ROUNDS says how often, CHARGEHAND_CHAOS_SEED repeats a run's random choices (a failure prints its seed).
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import aiohttp
import pytest

from chargehand.engine.job import FINAL, LEASE_RANDOM_BITS, Report, topic_of, visible
from chargehand.engine.moves import Move

from .load import Ledger, Load
from .receiver import Delivery, Receiver, always
from .server import SECRET, Database, Server, eventually, has_ended

ROUNDS = int(os.environ.get("CHARGEHAND_CHAOS_ROUNDS", "4"))
SETTLE_SECONDS = 60.0
# A node that dies, or a lost answer of the database, leaves webhooks with a lease of 16.5 s.
DELIVER_SECONDS = 45.0

Blow = tuple[Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]  # a fault, and its repair

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.chaos,
    pytest.mark.timeout(120 + 15 * ROUNDS),
]


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/chargehand.db"


@pytest.fixture
def database() -> Iterator[Database]:
    with TemporaryDirectory(prefix="chargehand-e2e-") as folder:
        yield Database(Path(folder))


async def test_a_server_on_sqlite_that_is_killed_repeatedly_loses_nothing(
    sqlite_url: str, tmp_path: Path, random: Random
) -> None:
    async with Server(sqlite_url, tmp_path) as server:
        # One of three is killed again while it starts.
        blows = [(server.kill, server.start), (server.kill_with_writer, server.start), (server.kill, server.spawn)]
        await survive([server], blows, random)


async def test_nodes_on_one_postgres_that_are_killed_repeatedly_lose_nothing(
    postgres_url: str, tmp_path: Path, random: Random
) -> None:
    async with Server(postgres_url, tmp_path, "one") as one, Server(postgres_url, tmp_path, "two") as two:
        await survive([one, two], [(one.kill, one.spawn), (two.kill, two.spawn)], random)


async def test_nodes_survive_a_crash_of_their_database(database: Database, tmp_path: Path, random: Random) -> None:
    await database.start()
    try:
        async with Server(database.url, tmp_path, "one") as one, Server(database.url, tmp_path, "two") as two:
            before = [one.process.pid, two.process.pid]
            blows: list[Blow] = [(database.kill, database.start), (database.stop_immediately, database.start)]
            await survive([one, two], blows, random, rounds=max(1, ROUNDS // 2))
            assert [one.process.returncode, two.process.returncode] == [None, None]
            assert [one.process.pid, two.process.pid] == before
    finally:
        await database.kill()


async def test_a_server_whose_writer_died_stops_and_logs_why(sqlite_url: str, tmp_path: Path, random: Random) -> None:
    async with Server(sqlite_url, tmp_path) as server:

        async def kill_writer() -> None:
            [writer] = server.children()
            writer.kill()
            assert await server.exit_code(within=15) == 1
            assert f"the process that writes to SQLite (process {writer.pid}) ended with -9" in server.log

        await survive([server], [(kill_writer, server.spawn)], random, rounds=1)


async def test_a_writer_whose_server_died_ends_and_releases_the_file(sqlite_url: str, tmp_path: Path) -> None:
    async with Server(sqlite_url, tmp_path) as server:
        [writer] = server.children()
        await server.kill()
        await eventually(lambda: has_ended(writer), 10, "the writer has ended by itself")
        await server.start()


async def test_a_webhook_has_the_same_body_each_time_it_is_sent(sqlite_url: str, tmp_path: Path) -> None:
    """Whatever happened to the job and the server since the first try."""
    async with Receiver(SECRET) as receiver, Server(sqlite_url, tmp_path) as server:
        receiver.answer = always(500)
        webhook = {"url": f"{receiver.url}/hook", "on": ["failed"]}
        job_id = (await post(server, "/engine/jobs", queue="work", payload=1, webhook=webhook))["job_id"]
        [job] = (await post(server, "/engine/claims", queues=["work"]))["jobs"]
        await post(server, f"/engine/jobs/{job_id}/fail", lease=job["lease"], error="it cannot be done")
        await eventually(lambda: receiver.received, 5, "the webhook was sent")
        await server.kill()
        await server.start()
        await post(server, f"/engine/jobs/{job_id}/requeue")
        before = len(receiver.received)
        # The next copy may have been rendered before the job moved on, the one after it was not.
        await eventually(lambda: len(receiver.received) > before + 1, 10, "the webhook was sent twice more")
        receiver.answer = always(200)
        await eventually(lambda: receiver.taken, 5, "the webhook was taken")
    assert receiver.received[0].data["error"] == "it cannot be done"
    assert {(each.webhook_id, each.body) for each in receiver.received} == {
        (receiver.taken[0].webhook_id, receiver.taken[0].body)
    }


async def post(server: Server, path: str, **body: object) -> Any:
    async with (
        aiohttp.ClientSession(server.url, raise_for_status=True) as http,
        http.post(path, json=body) as response,
    ):
        return await response.json()


# The storm ----------------------------------------------------------------------------------------------------------


async def survive(servers: Sequence[Server], blows: Sequence[Blow], random: Random, rounds: int = ROUNDS) -> None:
    async with Receiver(SECRET) as receiver:
        load = Load([server.url for server in servers], receiver.url, random)
        receiver.answer = load.answer
        async with load.running():
            await storm(blows, random, rounds)
            for server in servers:
                await server.ready()
            await load.settle(SETTLE_SECONDS)
        jobs = await read_all(servers[-1].url)
        told = announced(load.ledger, jobs)

        def missing() -> set[tuple[str, int]]:
            return told - {(delivery.job_id, delivery.sequence) for delivery in receiver.taken}

        await eventually(lambda: not missing(), DELIVER_SECONDS, lambda: f"these arrived: {missing()}")
        await eventually(lambda: nothing_left(servers[0].url), DELIVER_SECONDS, "no delivery is pending or dead")
    acknowledged_jobs_exist_once(load.ledger, jobs)
    logs_are_legal_histories(jobs)
    acknowledged_moves_are_logged(load.ledger, jobs)
    a_lease_had_one_holder(load.ledger, jobs)
    webhooks_tell_the_log(receiver, jobs, told)
    tell_what_was_seen(load.ledger, receiver, jobs, rounds)


async def storm(blows: Sequence[Blow], random: Random, rounds: int) -> None:
    for _ in range(rounds):
        await asyncio.sleep(random.uniform(0.0, 2.0))
        strike, mend = random.choice(blows)
        await strike()
        await asyncio.sleep(random.choice((0.0, 0.0, random.uniform(0.0, 1.0))))
        await mend()


def tell_what_was_seen(ledger: Ledger, receiver: Receiver, jobs: "dict[str, Record]", rounds: int) -> None:
    copies = len(receiver.received)
    once = len({delivery.webhook_id for delivery in receiver.received})
    events = sum(len(record.events) for record in jobs.values())
    print(
        f"{rounds} blows, {len(jobs)} jobs, {events} events, {len(ledger.claims)} claims and {len(ledger.moves)} moves "
        f"acknowledged, {dict(ledger.counts)}, {copies} copies of {once} webhooks"
    )
    assert ledger.claims
    assert ledger.moves
    assert receiver.taken


# What the API shows afterwards --------------------------------------------------------------------------------------


class Record(NamedTuple):
    job: dict[str, Any]
    events: list[dict[str, Any]]


async def read_all(url: str) -> dict[str, Record]:
    few = asyncio.Semaphore(16)
    async with aiohttp.ClientSession(url, raise_for_status=True) as http:

        async def get(path: str) -> Any:
            async with few, http.get(path) as response:
                return await response.json()

        async def record(job_id: str) -> Record:
            return Record(await get(f"/engine/jobs/{job_id}"), (await get(f"/engine/jobs/{job_id}/events"))["events"])

        ids: list[str] = []
        page: dict[str, Any] = {"next": ""}
        while page["next"] is not None:
            cursor = f"&cursor={page['next']}" if page["next"] else ""
            page = await get(f"/engine/jobs?limit=200{cursor}")
            ids += [job["id"] for job in page["jobs"]]
        return dict(zip(ids, await asyncio.gather(*map(record, ids)), strict=True))


async def nothing_left(url: str) -> bool:
    async with aiohttp.ClientSession(url, raise_for_status=True) as http, http.get("/engine/endpoints") as response:
        endpoints = (await response.json())["endpoints"]
    return not any(endpoint["pending"] or endpoint["dead"] for endpoint in endpoints)


def announced(ledger: Ledger, jobs: dict[str, Record]) -> set[tuple[str, int]]:
    """Return the events that webhooks must report: those with another topic, if the caller subscribed to it."""
    told = set()
    for job_id, (_, events) in jobs.items():
        submitted, topic = ledger.jobs.get(job_id), ""
        for event in events:
            shown = topic_of(event["state"], event["stage"])
            if shown != topic and visible(event["state"], event["stage"]):
                topic = shown
                if submitted and submitted.url and Report(submitted.url, "", on=submitted.on).wants(topic):
                    told.add((job_id, event["sequence"]))
    return told


# The proof ----------------------------------------------------------------------------------------------------------


def acknowledged_jobs_exist_once(ledger: Ledger, jobs: dict[str, Record]) -> None:
    """Check for duplicates: every key was sent until it was acknowledged, so an unknown job comes from a repeated request."""
    assert jobs.keys() == ledger.jobs.keys()
    assert {job_id: record.job["payload"] for job_id, record in jobs.items()} == {
        job_id: submitted.key for job_id, submitted in ledger.jobs.items()
    }


def logs_are_legal_histories(jobs: dict[str, Record]) -> None:
    """Check that a log has no gaps, each move starts at the state of the one before, and there is an end."""
    for job_id, (job, events) in jobs.items():
        assert [event["sequence"] for event in events] == list(range(1, job["sequence"] + 1)), job_id
        assert events[0]["move"] == "submit", job_id
        state = events[0]["state"]
        for event in events[1:]:
            if event["move"] == "note":
                assert event["state"] == state, (job_id, event)
            else:
                move = Move.by_name[event["move"]]
                assert (state in move.source, event["state"]) == (True, move.to), (job_id, event)
            state = event["state"]
        assert job["state"] == state, job_id
        assert state in FINAL, job_id


def claims(record: Record) -> list[int]:
    """Return how often the job was claimed up to each event: leases count that."""
    count, numbers = 0, []
    for event in record.events:
        count += event["move"] == "claim"
        numbers.append(count)
    return numbers


def count_of(lease: int) -> int:
    return lease >> LEASE_RANDOM_BITS


def acknowledged_moves_are_logged(ledger: Ledger, jobs: dict[str, Record]) -> None:
    for moved in ledger.moves:
        record = jobs[moved.job_id]
        event = record.events[moved.sequence - 1]
        possible = ("retry", "fail") if moved.asked == "retry" else (moved.asked,)  # when no attempt is left
        assert event["move"] in possible, (moved, event)
        assert moved.state in (None, event["state"]), (moved, event)
        assert moved.lease is None or count_of(moved.lease) == claims(record)[moved.sequence - 1], (moved, event)
    for job, events in jobs.values():
        if events[-1]["state"] == "succeeded":
            assert count_of(job["result"]["lease"]) == claims(Record(job, events))[-1], job


def a_lease_had_one_holder(ledger: Ledger, jobs: dict[str, Record]) -> None:
    assert len({(claim.job_id, claim.lease) for claim in ledger.claims}) == len(ledger.claims)
    for claim in ledger.claims:
        record = jobs[claim.job_id]
        event = record.events[claim.sequence - 1]
        assert (event["move"], event["message"]) == ("claim", f"claimed by {claim.owner}"), (claim, event)
        assert count_of(claim.lease) == claims(record)[claim.sequence - 1], (claim, event)


def webhooks_tell_the_log(receiver: Receiver, jobs: dict[str, Record], told: set[tuple[str, int]]) -> None:
    assert not receiver.forged
    ids: dict[tuple[str, int], set[str]] = defaultdict(set)
    for delivery in receiver.received:
        ids[delivery.job_id, delivery.sequence].add(delivery.webhook_id)
        agrees(delivery, jobs[delivery.job_id].events[delivery.sequence - 1])
    assert ids.keys() == told, "the webhooks differ from the announced events"
    assert all(len(each) == 1 for each in ids.values()), ids
    assert len(set.union(*ids.values())) == len(ids)


def agrees(delivery: Delivery, event: dict[str, Any]) -> None:
    said = delivery.data
    assert (said["job_id"], said["sequence"]) == (delivery.job_id, delivery.sequence)
    for name in ("sequence", "state", "stage", "previous", "attempt", "message"):
        assert said[name] == event[name], (said, event)
