"""Which claim gets which job, in which order, and that no job is claimed twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chargehand.engine.job import SECOND, Job, QueueSettings, SetQueue, State
from chargehand.engine.reads import JobFilter
from chargehand.engine.store import Claim, Store
from tests.conftest import Clock
from tests.store.given import (
    TENANT,
    a_job,
    a_queue,
    claim,
    claimed_ids,
    get,
    move,
    new_id,
    opened,
    running,
    submit,
    submit_many,
    take_one,
)


@asynccontextmanager
async def two_nodes(url: str) -> AsyncIterator[list[Store]]:
    async with opened(url, pool_size=4) as a, opened(url, pool_size=4) as b:
        yield [a, b]


async def work_off(stores: list[Store], queue: str, workers: int, total: int, limit: int = 1) -> list[Job]:
    """Claim with many workers at every store until `total` jobs were claimed; finish none."""
    given: list[Job] = []

    async def work(number: int) -> None:
        store = stores[number % len(stores)]
        while len(given) < total:
            given.extend((await store.write(Claim((a_queue(queue),), f"worker-{number}", 60, limit))).jobs)

    async with asyncio.timeout(30):
        await asyncio.gather(*[work(number) for number in range(workers)])
    return given


# order ------------------------------------------------------------------------------------------------------------------


async def test_the_most_urgent_goes_first_and_then_the_oldest(store: Store, clock: Clock) -> None:
    expected = []
    for priority in (0, 9, 5, 9, 0):
        expected.append((-priority, clock.now, await submit(store, priority=priority)))
        clock.advance(1)
    claimed = [(await claimed_ids(store))[0] for _ in expected]
    assert claimed == [job_id for *_, job_id in sorted(expected)]
    assert await claimed_ids(store) == []


async def test_jobs_of_several_queues_are_claimed_in_one_order(store: Store, clock: Clock) -> None:
    expected = []
    for number in range(20):
        priority = number * 7 % 10
        expected.append((-priority, clock.now, await submit(store, priority=priority, queue="abc"[number % 3])))
        clock.advance(1)
    assert await claimed_ids(store, "c", "a", "b", limit=50) == [job_id for *_, job_id in sorted(expected)]


async def test_the_age_of_a_job_counts_from_when_it_was_due(store: Store, clock: Clock) -> None:
    late = await submit(store, delay_seconds=10)
    clock.advance(5)
    early = await submit(store)
    clock.advance(5)
    assert await claimed_ids(store, limit=2) == [early, late]


async def test_delayed_jobs_do_not_hide_due_ones(store: Store) -> None:
    await submit_many(store, 50, priority=9, delay_seconds=60)
    due = await submit(store, priority=0)
    assert await claimed_ids(store, limit=10) == [due]


async def test_a_claim_gets_as_many_jobs_as_it_asks_for(store: Store) -> None:
    job_ids = await submit_many(store, 5)
    assert await claimed_ids(store, limit=3) == job_ids[:3]
    assert await claimed_ids(store, limit=3) == job_ids[3:]


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_claims_of_one_group_together_return_a_bounded_number_of_bytes(store: Store) -> None:
    ids = [await submit(store, payload=bytes(6 << 20)) for _ in range(6)]
    answers = await asyncio.gather(*[store.write(Claim((a_queue("q"),), "w", 60, 3)) for _ in range(2)])
    assert [len(claimed.jobs) for claimed in answers] == [3, 1]
    rest = [(await store.write(Claim((a_queue("q"),), "w", 60, 3))).jobs]
    assert {job.id for claimed in answers for job in claimed.jobs} | {job.id for jobs in rest for job in jobs} == set(
        ids
    )


async def test_a_claim_gets_jobs_only_from_the_queues_it_names(store: Store) -> None:
    await submit(store, queue="other")
    assert await claimed_ids(store, "q", "empty") == []


async def test_a_queue_that_a_claim_names_twice_counts_once(store: Store) -> None:
    job_ids = await submit_many(store, 3)
    assert await claimed_ids(store, "q", "q", limit=5) == job_ids


async def test_claims_of_one_group_are_served_in_the_order_of_their_arrival(store: Store) -> None:
    job_ids = await submit_many(store, 5)
    claims = [Claim((a_queue("q"),), owner, 60, limit) for owner, limit in (("a", 2), ("b", 1), ("c", 4))]
    answers = await asyncio.gather(*[store.write(c) for c in claims])
    assert [[job.id for job in answer.jobs] for answer in answers] == [job_ids[:2], job_ids[2:3], job_ids[3:]]
    assert [{job.lease_owner for job in answer.jobs} for answer in answers] == [{"a"}, {"b"}, {"c"}]


async def test_claims_of_one_group_for_different_queues_get_only_their_own_jobs(store: Store) -> None:
    for queue in ("a", "b", "c"):
        await submit_many(store, 3, queue=queue)
    wanted = [("a", "b"), ("b", "c"), ("b",), ("a", "b", "c")]
    answers = await asyncio.gather(*[store.write(Claim(tuple(map(a_queue, queues)), "w", 60, 2)) for queues in wanted])
    claimed = [job.id for answer in answers for job in answer.jobs]
    assert len(claimed) == len(set(claimed)) == 7, "of nine jobs, and only one of b is left for the third claim"
    assert all(job.queue.name in queues for queues, answer in zip(wanted, answers, strict=True) for job in answer.jobs)


# claimed jobs -----------------------------------------------------------------------------------------------------------


async def test_a_claim_returns_the_job_as_it_is_stored(store: Store) -> None:
    job = await running(store, payload=b"\x00payload", metadata=b"meta", max_attempts=3, traceparent="00-a-b-01")
    assert job == await get(store, job.id)
    assert (job.state, job.attempt, job.claims, job.stage) == (State.RUNNING, 1, 1, "")


async def test_a_claim_may_set_the_stage(store: Store) -> None:
    await submit(store)
    job = await take_one(store, stage="working")
    assert (job.stage, job.topic, job.previous) == ("working", "running:working", "queued")
    assert [event.stage for event in await store.list_events(job.id)] == ["", "working"]


async def test_a_job_that_was_put_back_waits_behind_those_that_came_before(store: Store, clock: Clock) -> None:
    first = await running(store)
    second = await submit(store, queue=first.queue)
    clock.advance(1)
    await move(store, first, "park")
    assert await claimed_ids(store, first.queue, limit=2) == [second, first.id]
    assert (await get(store, first.id)).claims == first.claims + 1


async def test_only_a_lapsed_lease_is_listed_as_lapsed(store: Store, clock: Clock) -> None:
    await submit(store)
    job = await take_one(store, lease_seconds=10)
    clock.advance(9.999_999)
    assert await store.list_jobs(JobFilter(late="lease", limit=10)) == []
    clock.advance(0.000_001)
    [lapsed] = await store.list_jobs(JobFilter(late="lease", limit=10))
    assert (lapsed.id, lapsed.lease, lapsed.lease_owner) == (job.id, job.lease, "worker")
    assert await claimed_ids(store) == [], "a lapsed lease holds the job until it is ended"


async def test_the_jobs_of_one_owner_can_be_found_before_their_leases_lapse(store: Store) -> None:
    for owner in ("@node-1", "@node-10", "remote"):
        await submit(store)
        await store.write(Claim((a_queue("q"),), owner, 60))
    assert {
        job.lease_owner for job in await store.list_jobs(JobFilter(late="lease", limit=10, owner_prefix="@node-1"))
    } == {"@node-1", "@node-10"}
    assert {job.lease_owner for job in await store.list_jobs(JobFilter(late="lease", limit=10, owner_prefix="@"))} == {
        "@node-1",
        "@node-10",
    }
    assert len(await store.list_jobs(JobFilter(late="lease", limit=1, owner_prefix="@"))) == 1


# never twice ------------------------------------------------------------------------------------------------------------


async def test_sixty_four_claimers_get_each_of_five_hundred_jobs_once(store: Store) -> None:
    job_ids = await asyncio.gather(*[submit(store) for _ in range(500)])
    given = await work_off([store], "q", workers=64, total=500)
    assert sorted(job.id for job in given) == sorted(job_ids)
    assert {(job.attempt, job.claims) for job in given} == {(1, 1)}


@given(
    jobs=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(-2, 2)), max_size=12),
    claims=st.lists(st.tuples(st.sampled_from(["a", "b", "ab", "ba"]), st.integers(1, 4)), min_size=1, max_size=6),
    at_once=st.booleans(),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_claims_give_each_due_job_once_and_in_order(
    store: Store, clock: Clock, jobs: list[tuple[str, int, int]], claims: list[tuple[str, int]], at_once: bool
) -> None:
    here = new_id()
    due: dict[str, list[tuple[int, int, str]]] = {"a": [], "b": []}
    for queue, priority, seconds in jobs:
        job_id = await submit(store, queue=here + queue, priority=priority, run_at=clock.now + seconds * SECOND)
        if seconds <= 0:
            due[queue].append((-priority, clock.now, job_id))
    total = sum(map(len, due.values()))
    asked = [Claim(tuple(a_queue(here + queue) for queue in queues), "w", 60, limit) for queues, limit in claims]
    if at_once:
        answers = await asyncio.gather(*[store.write(c) for c in asked])
    else:
        answers = [await store.write(c) for c in asked]
    claimed = [job.id for answer in answers for job in answer.jobs]
    assert len(claimed) == len(set(claimed)) <= total
    if not at_once:
        for (queues, limit), answer in zip(claims, answers, strict=True):
            first = sorted(job for queue in queues for job in due[queue])[:limit]
            assert [job.id for job in answer.jobs] == [job_id for *_, job_id in first]
            for queue in queues:
                due[queue] = [job for job in due[queue] if job not in first]


async def test_two_nodes_never_get_the_same_job(postgres_url: str) -> None:
    async with two_nodes(postgres_url) as stores:
        job_ids = await asyncio.gather(*[submit(stores[n % 2]) for n in range(500)])
        given = await work_off(stores, "q", workers=64, total=500)
        assert sorted(job.id for job in given) == sorted(job_ids)


@pytest.mark.parametrize("limit", [1, 3])
async def test_two_nodes_together_never_exceed_the_limit_of_a_queue(postgres_url: str, limit: int) -> None:
    async with two_nodes(postgres_url) as stores:
        await asyncio.gather(*[submit(stores[0]) for _ in range(40)])
        await stores[0].write(SetQueue(QueueSettings(a_queue("q"), max_running=limit)))
        done = most = 0

        async def work(store: Store) -> None:
            nonlocal done, most
            while done < 40:
                for job in (await store.write(Claim((a_queue("q"), a_queue("other")), "w", 60, 2))).jobs:
                    most = max(most, len(await stores[0].list_jobs(JobFilter(TENANT, state=State.RUNNING))))
                    assert await move(store, job, "succeed")
                    done += 1

        await asyncio.gather(*[work(stores[n % 2]) for n in range(8)])
        assert 1 <= most <= limit


async def test_a_queue_paused_on_one_node_is_paused_on_all(postgres_url: str) -> None:
    async with two_nodes(postgres_url) as stores:
        await submit_many(stores[0], 3)
        await stores[0].write(SetQueue(QueueSettings(a_queue("q"), paused=True)))
        assert [await claimed_ids(store, limit=3) for store in stores] == [[], []]
        await stores[1].write(SetQueue(QueueSettings(a_queue("q"))))
        assert len(await claimed_ids(stores[0], limit=3)) == 3


async def test_jobs_that_another_node_is_claiming_do_not_hide_the_others(postgres_url: str) -> None:
    """Another node's claim of hundreds is in its transaction; a claim of one must still find one of the others."""
    async with opened(postgres_url) as store:
        job_ids = await asyncio.gather(*[submit(store) for _ in range(300)])
        other = await asyncpg.connect(postgres_url)
        async with other.transaction():
            taking = sorted(job_ids)[:200]
            await other.execute("SELECT id FROM jobs WHERE id = ANY($1) FOR UPDATE", taking)
            async with asyncio.timeout(5):
                [claimed] = await claimed_ids(store)
            assert claimed not in taking
        await other.close()


async def test_two_nodes_submitting_the_same_key_make_one_job(postgres_url: str) -> None:
    async with two_nodes(postgres_url) as stores:
        answers = await asyncio.gather(*[stores[n % 2].write(a_job(idempotency_key="k")) for n in range(50)])
        assert len({answer.job_id for answer in answers}) == 1
        assert [answer.created for answer in answers].count(True) == 1


async def test_two_nodes_cannot_both_finish_a_job(postgres_url: str) -> None:
    async with two_nodes(postgres_url) as stores:
        for _ in range(20):
            job = await running(stores[0])
            answers = await asyncio.gather(*[move(stores[n % 2], job, "succeed") for n in range(4)])
            assert len([answer for answer in answers if answer]) == 1


async def test_two_nodes_that_change_many_jobs_at_once_finish_all_of_them(postgres_url: str) -> None:
    """In opposite orders: a deadlock must not lose an acknowledged move."""
    async with two_nodes(postgres_url) as stores:
        await asyncio.gather(*[submit(stores[0]) for _ in range(100)])
        jobs = (await claim(stores[0], limit=100)).jobs
        answers = await asyncio.gather(
            *[move(stores[0], job, "advance", stage="a") for job in jobs],
            *[move(stores[1], job, "advance", stage="b") for job in reversed(jobs)],
        )
        assert all(answers)
        assert {(await get(stores[0], job.id)).seq for job in jobs} == {4}
