"""Unique keys: a queue has one live job with a key, and the key is free again as soon as that job ends in any way."""

import asyncio

import pytest

from chargehand.engine.job import State
from chargehand.engine.moves import Change
from chargehand.engine.store import Store
from tests.store.given import a_job, get, move, opened, seen, submit, take_one, trace

KEY = "invoice 7"


async def requeue(store: Store, job_id: str, payload: bytes | None = None) -> bool:
    return await store.write(Change(seen(job_id), "requeue", payload=payload)) is not None


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING])
async def test_submitting_a_unique_key_again_returns_the_live_job(store: Store, state: State) -> None:
    first = await submit(store, unique_key=KEY, payload=b"1")
    if state is State.RUNNING:
        await take_one(store)
    before = await trace(store, first)
    again = a_job(unique_key=KEY, payload=b"2")
    answer = await store.write(again)
    assert (answer.job_id, answer.created, answer.moved) == (first, False, None)
    assert await trace(store, first) == before
    assert await store.get_job(again.id) is None


async def test_a_unique_key_belongs_to_one_queue_kind_and_tenant(store: Store) -> None:
    fields = [{}, {"queue": "other"}, {"tenant": "other"}, {"kind": "other"}, {"unique_key": KEY.upper()}]
    ids = {await submit(store, **{"unique_key": KEY, **each}) for each in fields}
    assert len(ids) == len(fields)


async def test_jobs_without_a_unique_key_are_all_created(store: Store) -> None:
    assert await submit(store) != await submit(store)


@pytest.mark.parametrize("end", ["succeed", "fail", "cancel", "expire"])
async def test_every_end_of_a_job_frees_its_unique_key(store: Store, end: str) -> None:
    await submit(store, unique_key=KEY)
    job = await take_one(store)
    assert await move(store, job, end)
    assert await submit(store, unique_key=KEY) != job.id


@pytest.mark.parametrize("back", ["retry", "park"])
async def test_a_job_that_goes_back_to_its_queue_keeps_the_key(store: Store, back: str) -> None:
    first = await submit(store, unique_key=KEY)
    assert await move(store, await take_one(store), back, delay_seconds=60)
    assert (await store.write(a_job(unique_key=KEY))).job_id == first


async def test_a_requeued_job_has_the_key_again(store: Store) -> None:
    first = await submit(store, unique_key=KEY)
    await move(store, await take_one(store), "fail")
    assert await requeue(store, first)
    assert (await store.write(a_job(unique_key=KEY))).job_id == first


async def test_a_job_is_not_requeued_while_another_has_its_key(store: Store) -> None:
    first = await submit(store, unique_key=KEY, payload=b"1")
    await move(store, await take_one(store), "fail", error="broken")
    second = await submit(store, unique_key=KEY)
    before = await trace(store, first)
    assert not await requeue(store, first, b"mended")
    assert await trace(store, first) == before
    await move(store, await take_one(store), "succeed")
    assert await requeue(store, first, b"mended")
    assert (await get(store, first)).payload == b"mended"
    assert (await get(store, second)).state is State.SUCCEEDED


async def test_only_one_of_two_jobs_with_a_key_is_requeued_and_others_of_the_group_are_not_affected(
    store: Store,
) -> None:
    ids = []
    for _ in range(2):
        ids.append(await submit(store, unique_key=KEY))
        await move(store, await take_one(store), "fail")
    neighbour = await submit(store)
    await move(store, await take_one(store), "fail")
    came_back = await asyncio.gather(*[requeue(store, job_id) for job_id in (*ids, neighbour)])
    assert sorted(came_back[:2]) == [False, True]
    assert came_back[2]
    assert sorted([(await get(store, job_id)).state for job_id in ids]) == [State.FAILED, State.QUEUED]


async def test_many_submissions_at_once_with_a_unique_key_make_one_job(store_url: str) -> None:
    """From two nodes if the store allows it; in the same group and in different ones."""
    async with opened(store_url) as one:
        if store_url.startswith("sqlite:"):
            await make_many_at_once(one, one)
        else:
            async with opened(store_url) as two:
                await make_many_at_once(one, two)


async def make_many_at_once(one: Store, two: Store) -> None:
    for turn in range(5):
        keys = [f"{turn}/{number}" for number in range(10)]
        ways = [(one, keys), (two, keys[::-1]), (one, keys[::-1]), (two, keys)]
        answers = await asyncio.gather(*[s.write(a_job(unique_key=key)) for s, in_turn in ways for key in in_turn])
        assert sum(each.created for each in answers) == len(keys)
        assert len({each.job_id for each in answers}) == len(keys)
        for each in answers:
            assert (await get(one, each.job_id)).state is State.QUEUED


async def test_the_idempotency_key_takes_precedence_over_the_unique_key(store: Store) -> None:
    by_key = await submit(store, idempotency_key="k", queue="elsewhere")
    live = await submit(store, unique_key=KEY)
    assert (await store.write(a_job(idempotency_key="k", unique_key=KEY))).job_id == by_key
    assert (await store.write(a_job(idempotency_key="new", unique_key=KEY))).job_id == live


async def test_a_requeue_that_races_a_submission_at_another_node_succeeds_or_is_refused(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        for turn in range(20):
            key = f"{KEY}/{turn}"
            first = await submit(one, unique_key=key)
            await move(one, await take_one(one), "fail", error="broken")
            came_back, submitted = await asyncio.gather(requeue(one, first), two.write(a_job(unique_key=key)))
            assert (submitted.job_id == first) == came_back
            live = first if came_back else submitted.job_id
            assert (await get(one, live)).state is State.QUEUED
            await move(one, await take_one(one), "succeed")
