"""Who may move a job: kind, tenant and holder are compared by every statement that moves one."""

from typing import Any

import pytest
from msgspec.structs import replace

from chargehand.engine.guard import Guard
from chargehand.engine.job import Job
from chargehand.engine.moves import Beat, Change, Note, Prune
from chargehand.engine.store import Claim, Store
from tests.conftest import Clock
from tests.store.given import TENANT, a_queue, get, move, new_id, running, sql, submit, take_one, trace

STRANGERS: list[dict[str, Any]] = [
    {"owner": "somebody else"},
    {"owner": ""},
    {"owner": "worke"},
    {"owner": "worker", "tenant": "other"},
    {"owner": "worker", "lease": 7},
    {"owner": "worker", "kind": "another"},
]


async def act(store: Store, job: Job, verb: str, **guards: Any) -> bool:
    """Return whether the store allowed the operation with these guards."""
    guard = replace(Guard(job.id, TENANT, job.kind, None, None), **guards)
    if verb == "beat":
        return await store.write(Beat(guard, 60)) is not None
    if verb == "note":
        return await store.write(Note(guard, message="here")) is not None
    return await store.write(Change(guard, verb)) is not None


@pytest.mark.parametrize("verb", ["beat", "note", "succeed", "fail", "retry", "park", "advance"])
async def test_only_the_owner_may_move_a_job(store: Store, verb: str) -> None:
    job = await running(store)
    before = await trace(store, job.id)
    for stranger in STRANGERS:
        assert not await act(store, job, verb, **stranger), stranger
        assert await trace(store, job.id) == before
    assert await act(store, job, verb, owner="worker", tenant=TENANT)


@pytest.mark.parametrize("verb", ["beat", "note", "succeed", "fail", "retry", "park"])
async def test_an_owner_that_lost_the_job_may_not_move_it(store: Store, verb: str) -> None:
    job = await running(store)
    assert await move(store, job, "retry")
    before = await trace(store, job.id)
    assert not await act(store, job, verb, owner="worker")
    assert await trace(store, job.id) == before


@pytest.mark.parametrize("verb", ["beat", "note", "succeed", "fail", "retry", "park"])
async def test_a_second_claim_by_the_same_owner_has_another_lease(store: Store, verb: str) -> None:
    old = await running(store)
    assert await move(store, old, "retry")
    new = await take_one(store, old.queue)
    assert new.lease > old.lease
    before = await trace(store, old.id)
    assert not await act(store, old, verb, owner="worker", lease=old.lease)
    assert await trace(store, old.id) == before
    assert await act(store, new, verb, owner="worker", lease=new.lease)


async def test_a_beat_by_owner_extends_the_lease(store: Store, clock: Clock) -> None:
    job = await running(store)
    clock.advance(30)
    assert await store.write(Beat(Guard(job.id, TENANT, "job", None, "worker"), 100)) == clock.now + 100_000_000
    assert (await get(store, job.id)).lease_until == clock.now + 100_000_000


async def test_a_note_without_owner_and_lease_may_be_written_to_any_job(store: Store) -> None:
    job = await running(store)
    await move(store, job, "succeed")
    assert await store.write(Note(Guard.seen(job), message="afterwards")) is not None


MOVERS = ["beat", "note", "succeed", "fail", "retry", "park", "advance", "cancel"]


@pytest.mark.parametrize("verb", MOVERS)
@pytest.mark.parametrize(
    "wrong", [{"kind": "task"}, {"kind": ""}, {"tenant": "other"}, {"tenant": ""}, {"lease": 1}], ids=str
)
async def test_no_statement_moves_a_job_of_another_kind_tenant_or_lease(
    store: Store, verb: str, wrong: dict[str, Any]
) -> None:
    job = await running(store)
    before = await trace(store, job.id)
    assert not await act(store, job, verb, **{"lease": job.lease, **wrong})
    assert await trace(store, job.id) == before


async def test_a_requeue_and_a_purge_move_only_jobs_of_their_kind_and_tenant(store: Store) -> None:
    job = await running(store)
    assert await move(store, job, "fail")
    before = await trace(store, job.id)
    for tenant, kind in ((TENANT, "task"), ("other", job.kind)):
        assert await store.write(Change(Guard(job.id, tenant, kind, None, None), "requeue")) is None
        assert await store.write(Prune((job.id,), 0, (tenant, kind))) == 0
        assert await trace(store, job.id) == before
    assert await store.write(Prune((job.id,), 0, (TENANT, job.kind))) == 1


async def test_a_lease_consists_of_the_count_of_claims_and_a_number_of_the_claimer(store: Store) -> None:
    job_id = new_id()
    await submit(store, id=job_id, queue=job_id)
    for count, chosen in ((1, 7), (2, 2**32 - 1), (3, 0)):
        [job] = (await store.write(Claim((a_queue(job_id),), "worker", 60, lease_random=chosen))).jobs
        assert (job.claims, job.lease) == (count, count * 2**32 + chosen)
        assert await move(store, job, "park")


async def test_claims_are_counted_on_from_a_lease_of_release_0_1(store: Store, store_url: str) -> None:
    job = await running(store)
    assert await move(store, job, "park")
    await sql(store_url, f"UPDATE jobs SET lease = 5 WHERE id = '{job.id}'")
    assert (await get(store, job.id)).claims == 5
    assert (await take_one(store, job.queue)).claims == 6
