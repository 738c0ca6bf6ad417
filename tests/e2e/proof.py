"""What must hold after the load of load.py, whatever happened to the servers: nothing acknowledged is missing or there twice."""

import asyncio
from collections import defaultdict
from typing import Any, NamedTuple

import aiohttp

from chargehand.engine.job import FINAL, LEASE_RANDOM_BITS, Report, topic_of, visible
from chargehand.engine.moves import Move

from .load import Ledger, Load
from .receiver import Delivery, Receiver
from .server import eventually

# A node that dies, or a lost answer of the database, leaves webhooks with a lease of 16.5 s.
DELIVER_SECONDS = 45.0


async def prove(load: Load, receiver: Receiver, url: str) -> None:
    """Wait for the webhooks of a load that has settled, then check all that the node at the URL shows."""
    jobs = await read_all(url)
    told = announced(load.ledger, jobs)

    def missing() -> set[tuple[str, int]]:
        return told - {(delivery.job_id, delivery.sequence) for delivery in receiver.taken}

    await eventually(lambda: not missing(), DELIVER_SECONDS, lambda: f"these arrived: {missing()}")
    await eventually(lambda: nothing_left(url), DELIVER_SECONDS, "no delivery is pending or dead")
    acknowledged_jobs_exist_once(load.ledger, jobs)
    logs_are_legal_histories(jobs)
    acknowledged_moves_are_logged(load.ledger, jobs)
    a_lease_had_one_holder(load.ledger, jobs)
    webhooks_tell_the_log(receiver, jobs, told)
    tell_what_was_seen(load.ledger, receiver, jobs)


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


def tell_what_was_seen(ledger: Ledger, receiver: Receiver, jobs: dict[str, Record]) -> None:
    copies = len(receiver.received)
    once = len({delivery.webhook_id for delivery in receiver.received})
    events = sum(len(record.events) for record in jobs.values())
    print(
        f"{len(jobs)} jobs, {events} events, {len(ledger.claims)} claims and {len(ledger.moves)} moves "
        f"acknowledged, {dict(ledger.counts)}, {copies} copies of {once} webhooks"
    )
    assert ledger.claims
    assert ledger.moves
    assert receiver.taken
