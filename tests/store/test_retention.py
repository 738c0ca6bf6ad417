"""Pruning removes old finished jobs with all their rows, and nothing else."""

import asyncio

import asyncpg

from chargehand.engine.delivery import DeliveryState, EndpointState, Replay, SetEndpoint
from chargehand.engine.guard import Guard
from chargehand.engine.job import FINAL, SECOND, State
from chargehand.engine.moves import Change, Prune
from chargehand.engine.reads import DeliveryFilter, EndpointFilter
from chargehand.engine.store import OldJobs, Store
from tests.conftest import Clock
from tests.store.given import (
    TENANT,
    a_job,
    a_report,
    a_settle,
    a_take,
    get,
    get_delivery,
    get_endpoint,
    job_in,
    move,
    opened,
    running,
    sql,
    submit,
    submit_many,
    until_held_up,
)

HERE = a_report().endpoint_id
OF_A_JOB = {"jobs": "id", "job_payloads": "job_id", "job_events": "job_id", "deliveries": "job_id"}


async def deliver_all(store: Store, state: DeliveryState = DeliveryState.DELIVERED) -> None:
    taken = await store.write(a_take(limit=1000))
    for delivery_id, lease in zip(taken.ids, taken.leases, strict=True):
        assert await store.write(a_settle(delivery_id, lease, state))


async def finished(store: Store, state: State = State.SUCCEEDED) -> str:
    """Return a finished job with a result, events and delivered deliveries."""
    job = await running(store, reports=(a_report(),))
    await move(store, job, "advance", stage="working")
    name = {State.SUCCEEDED: "succeed", State.FAILED: "fail", State.CANCELLED: "cancel"}[state]
    await move(store, job, name, result=b"result" if state is State.SUCCEEDED else None)
    await deliver_all(store)
    return job.id


async def test_pruning_removes_all_rows_of_an_old_finished_job_and_none_of_another(
    store_url: str, clock: Clock
) -> None:
    async with opened(store_url, clock) as store:
        for state in FINAL:
            await finished(store, state)
        kept = {(await job_in(store, state, reports=(a_report(),))).id for state in (State.QUEUED, State.RUNNING)}
        await deliver_all(store)
        clock.advance(100)
        kept.add(await finished(store))
        assert await store.prune(OldJobs(100), 10) == len(FINAL)
        for table, column in OF_A_JOB.items():
            assert {row[0] for row in await sql(store_url, f"SELECT {column} FROM {table}")} == kept, table
        assert len(await sql(store_url, "SELECT 1 FROM job_results")) == 1
        tried = {row[0] for row in await sql(store_url, "SELECT delivery_id FROM delivery_tries")}
        assert tried == {delivery.id for delivery in await store.list_deliveries(DeliveryFilter())}
        assert await store.prune(OldJobs(100), 10) == 0


async def test_a_finished_job_is_kept_until_the_end_of_its_retention(store: Store, clock: Clock) -> None:
    job_id = await finished(store)
    clock.advance(99.999_999)
    assert await store.prune(OldJobs(100), 10) == 0
    clock.advance(0.000_001)
    assert await store.prune(OldJobs(100), 10) == 1
    assert await store.get_job(job_id) is None


async def test_a_job_is_kept_while_a_delivery_of_it_is_pending(store: Store, clock: Clock) -> None:
    job = await job_in(store, State.SUCCEEDED, reports=(a_report(),))
    clock.advance(1000)
    assert await store.prune(OldJobs(100), 10) == 0
    await deliver_all(store, DeliveryState.DEAD)
    assert await store.prune(OldJobs(100), 10) == 1
    assert await store.get_job(job.id) is None


async def test_a_delivery_replayed_while_its_job_was_about_to_be_pruned_is_kept(store: Store, clock: Clock) -> None:
    """Pruning first finds jobs and then removes them; in between the delivery is replayed."""
    job_id = await finished(store)
    clock.advance(1000)
    [*_, last] = await store.list_deliveries(DeliveryFilter(job_id=job_id))
    assert await store.write(Replay(TENANT, last.id))
    await store.write(Prune((job_id,), 100 * SECOND))
    assert await get_delivery(store, last.id) is not None
    assert await store.get_job(job_id) is not None


async def test_a_replay_under_way_at_another_node_keeps_its_job(postgres_url: str, clock: Clock) -> None:
    async with opened(postgres_url, clock) as store:
        job_id = await finished(store)
        clock.advance(1000)
        other = await asyncpg.connect(postgres_url)
        async with other.transaction():
            replaying = await other.fetch("UPDATE deliveries SET state = 'pending' RETURNING id")
            pruning = asyncio.create_task(store.prune(OldJobs(100), 10))
            await until_held_up(other, pruning)
        await other.close()
        assert await pruning == 0
        assert await store.get_job(job_id) is not None
        assert [await get_delivery(store, row["id"]) is not None for row in replaying] == [True] * 3


async def test_a_job_requeued_while_it_was_about_to_be_pruned_is_kept(store: Store, clock: Clock) -> None:
    job = await job_in(store, State.FAILED)
    clock.advance(1000)
    assert await store.write(Change(Guard.seen(job), "requeue"))
    await store.write(Prune((job.id,), 100 * SECOND))
    assert (await get(store, job.id)).state is State.QUEUED
    assert [event.seq for event in await store.list_events(job.id)] == [1, 2, 3, 4]


async def test_pruning_removes_the_oldest_jobs_first_up_to_its_limit(store: Store, clock: Clock) -> None:
    job_ids = []
    for _ in range(3):
        job_ids.append(await finished(store))
        clock.advance(1)
    clock.advance(1000)
    assert await store.prune(OldJobs(100), 2) == 2
    assert [await store.get_job(job_id) is None for job_id in job_ids] == [True, True, False]


async def test_an_idempotency_key_is_free_again_when_its_job_is_removed(store: Store, clock: Clock) -> None:
    await job_in(store, State.SUCCEEDED, idempotency_key="k")
    clock.advance(1000)
    await store.prune(OldJobs(100), 10)
    assert (await store.write(a_job(idempotency_key="k"))).created


async def test_an_endpoint_is_removed_with_its_last_delivery_and_created_with_the_next(
    store: Store, clock: Clock
) -> None:
    await finished(store)
    clock.advance(1000)
    await store.prune(OldJobs(100), 10)
    assert await store.list_endpoints(EndpointFilter(None, "", 10)) == []
    await submit(store, reports=(a_report(),))
    assert [endpoint.id for endpoint in await store.list_endpoints(EndpointFilter(None, "", 10))] == [HERE]


async def test_an_endpoint_is_kept_as_long_as_a_delivery_of_it(store: Store, clock: Clock) -> None:
    await finished(store)
    clock.advance(1000)
    young = await finished(store)
    assert await store.prune(OldJobs(100), 10) == 1
    assert {delivery.endpoint_id for delivery in await store.list_deliveries(DeliveryFilter(job_id=young))} == {HERE}
    assert await get_endpoint(store, HERE) is not None


async def test_an_endpoint_with_a_state_set_by_an_operator_is_never_removed(store: Store, clock: Clock) -> None:
    await finished(store)
    await store.write(SetEndpoint(HERE, TENANT, EndpointState.PAUSED, "maintenance"))
    clock.advance(1000)
    await store.prune(OldJobs(100), 10)
    endpoint = await get_endpoint(store, HERE)
    assert endpoint is not None
    assert endpoint.state is EndpointState.PAUSED


async def test_the_queue_goes_on_while_old_jobs_are_pruned(store: Store, clock: Clock) -> None:
    for _ in range(5):
        await finished(store)
    clock.advance(1000)
    waiting = await submit_many(store, 5)
    assert await store.prune(OldJobs(100), 10) == 5
    assert [count.ready for count in await store.count_queues()] == [5]
    assert [(await get(store, job_id)).payload for job_id in waiting] == [b"{}"] * 5
