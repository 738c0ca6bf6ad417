"""How long a finished job is kept: its own retention or the general one; purging; and counts of the jobs that are kept."""

import pytest

from chargehand.engine.guard import Guard
from chargehand.engine.job import SECOND, State
from chargehand.engine.moves import Change, Note, Prune
from chargehand.engine.queue import Queue
from chargehand.engine.reads import JobFilter
from chargehand.engine.store import FinishedJobs, KeptJobs, OldJobs, Store
from tests.conftest import Clock
from tests.store.given import TENANT, a_queue, a_report, get, job_in, move, running, seen, submit, submit_many, take_one

ENDS = {"succeed": State.SUCCEEDED, "fail": State.FAILED, "cancel": State.CANCELLED, "expire": State.FAILED}


async def kept(store: Store) -> set[str]:
    return {job.id for job in await store.list_jobs(JobFilter(TENANT, limit=1000))}


@pytest.mark.parametrize("end", ENDS)
async def test_a_job_with_its_own_retention_is_removed_after_it(store: Store, clock: Clock, end: str) -> None:
    job = await running(store, keep_seconds=10)
    clock.advance(1000)  # counted from its end, not from its beginning
    assert await store.prune(KeptJobs(), 10) == 0
    assert await move(store, job, end)
    clock.advance(9.9)
    assert await store.prune(KeptJobs(), 10) == 0
    clock.advance(0.1)
    assert await store.prune(KeptJobs(), 10) == 1
    assert await kept(store) == set()


async def test_the_general_retention_does_not_apply_to_jobs_with_their_own(store: Store, clock: Clock) -> None:
    own = (await job_in(store, State.SUCCEEDED, keep_seconds=1000)).id
    general = (await job_in(store, State.SUCCEEDED)).id
    clock.advance(100)
    assert await store.prune(OldJobs(100), 10) == 1
    assert await kept(store) == {own}
    clock.advance(900)
    assert await store.prune(OldJobs(100), 10) == 0
    assert await store.prune(KeptJobs(), 10) == 1
    assert general not in await kept(store)
    assert own not in await kept(store)


async def test_jobs_without_their_own_retention_are_not_pruned_by_it(store: Store, clock: Clock) -> None:
    job = await job_in(store, State.SUCCEEDED)
    clock.advance(1e6)
    assert await store.prune(KeptJobs(), 10) == 0
    assert await kept(store) == {job.id}


async def test_the_retention_of_a_requeued_job_begins_again_with_its_next_end(store: Store, clock: Clock) -> None:
    job = await running(store, keep_seconds=10)
    await move(store, job, "fail")
    clock.advance(9)
    assert await store.write(Change(Guard.seen(job), "requeue"))
    clock.advance(100)
    assert await store.prune(KeptJobs(), 10) == 0
    await move(store, await take_one(store, job.queue), "succeed")
    clock.advance(9)
    assert await store.prune(KeptJobs(), 10) == 0
    clock.advance(1)
    assert await store.prune(KeptJobs(), 10) == 1


async def test_a_job_with_a_pending_callback_is_kept(store: Store, clock: Clock) -> None:
    job = await running(store, keep_seconds=1, reports=(a_report(),))
    await move(store, job, "succeed")
    clock.advance(100)
    assert await store.prune(KeptJobs(), 10) == 0
    assert await store.write(Prune((job.id,), 0, (TENANT, "job"))) == 0
    assert await kept(store) == {job.id}


async def test_a_job_that_was_requeued_after_pruning_found_it_is_kept(store: Store, clock: Clock) -> None:
    """Between the search and the removal it is requeued, and ends once more."""
    job = await running(store, keep_seconds=10)
    await move(store, job, "fail")
    assert await store.write(Prune((job.id,), 0)) == 0
    clock.advance(10)
    assert await store.write(Prune((job.id,), 0)) == 1


async def test_pruning_removes_at_most_as_many_jobs_as_its_limit(store: Store, clock: Clock) -> None:
    for _ in range(5):
        await job_in(store, State.SUCCEEDED, keep_seconds=1)
    clock.advance(1)
    assert [await store.prune(KeptJobs(), 2) for _ in range(4)] == [2, 2, 1, 0]


async def test_purging_removes_finished_jobs_and_never_live_ones(store: Store) -> None:
    jobs = {state: (await job_in(store, state, keep_seconds=1000)).id for state in State}
    left = {jobs[State.QUEUED], jobs[State.RUNNING]}
    assert await store.write(Prune((*jobs.values(), "01ARZ3NDEKTSV4RRFFQ69G5FAV"), 0, (TENANT, "job"))) == 3
    assert await kept(store) == left
    assert await store.list_events(jobs[State.FAILED]) == []
    assert await store.write(Prune((), 0, (TENANT, "job"))) == 0


async def test_finished_jobs_are_purged_by_the_retention_at_the_given_time(store: Store, clock: Clock) -> None:
    own = (await job_in(store, State.SUCCEEDED, keep_seconds=10)).id
    general = (await job_in(store, State.FAILED)).id
    await job_in(store, State.FAILED, tenant="other")
    await job_in(store, State.FAILED, kind="other")
    for state in (State.QUEUED, State.RUNNING):
        await job_in(store, state)

    async def purged_at(seconds: float, limit: int = 10) -> set[str]:
        before = await kept(store)
        at = clock.now + int(seconds * SECOND)
        count = await store.prune(FinishedJobs(TENANT, "job", at, 100 * SECOND), limit)
        gone = before - await kept(store)
        assert count == len(gone)
        return gone

    assert await purged_at(9.9) == set()
    assert await purged_at(10) == {own}
    assert await purged_at(99.9) == set()
    more = [(await job_in(store, State.SUCCEEDED)).id for _ in range(2)]
    assert len(await purged_at(1000, limit=1)) == 1
    assert len(await purged_at(1000)) == 2
    assert (await kept(store)).isdisjoint({own, general, *more})


async def test_a_job_is_requeued_as_it_was_or_with_another_payload(store: Store) -> None:
    job = await running(store, payload=b"1", max_attempts=3)
    await move(store, job, "fail", error="broken")
    assert await store.write(Change(Guard.seen(job), "requeue"))
    again = await take_one(store, job.queue)
    assert (again.payload, again.attempt) == (b"1", 1)
    await move(store, again, "fail")
    assert await store.write(Change(Guard.seen(job), "requeue", payload=b"2"))
    assert (await get(store, job.id)).payload == b"2"
    assert (await take_one(store, job.queue)).payload == b"2"


async def test_a_refused_requeue_does_not_change_the_payload(store: Store) -> None:
    job = await running(store, payload=b"1")
    assert await store.write(Change(Guard.seen(job), "requeue", payload=b"2")) is None
    assert (await get(store, job.id)).payload == b"1"
    await move(store, job, "fail")
    assert await store.write(Change(seen(job.id, "other"), "requeue", payload=b"2")) is None
    assert (await get(store, job.id)).payload == b"1"


# Counting ---------------------------------------------------------------------------------------------------------------


async def ready(store: Store) -> dict[int, int]:
    [of_q] = [count.by_priority for count in await store.count_queues() if count.queue == a_queue("q")]
    return of_q


async def test_ready_jobs_are_counted_by_priority(store: Store, clock: Clock) -> None:
    await submit_many(store, 3, priority=5)
    await submit_many(store, 2, priority=0)
    await submit(store, priority=9, delay_seconds=10)
    await submit(store, priority=5, queue="other")
    assert await ready(store) == {5: 3, 0: 2}
    await take_one(store)
    clock.advance(10)
    await submit(store, queue=Queue("job", TENANT, "q", "node"), priority=9)
    assert await ready(store) == {9: 2, 5: 2, 0: 2}


async def test_stopped_jobs_are_counted_by_queue_and_stage(store: Store) -> None:
    for queue, stage, tenant in [("a", "dead", TENANT)] * 2 + [
        ("b", "dead", TENANT),
        ("a", "", TENANT),
        ("c", "dead", "other"),
    ]:
        job = await running(store, queue=queue, tenant=tenant)
        await move(store, job, "fail", stage=stage)
    await move(store, await running(store, queue="a"), "cancel")
    assert await store.count_stopped("failed:dead") == {
        a_queue("a"): 2,
        a_queue("b"): 1,
        a_queue("c", "other"): 1,
    }
    assert await store.count_stopped("failed") == {a_queue("a"): 1}
    assert await store.count_stopped("cancelled") == {a_queue("a"): 1}


async def test_a_dead_letter_that_is_requeued_is_not_counted(store: Store) -> None:
    job = await running(store, queue="a")
    await move(store, job, "fail", stage="dead")
    assert await store.write(Change(Guard.seen(job), "requeue"))
    assert await store.count_stopped("failed:dead") == {}


async def test_the_last_note_of_a_step_is_found_among_others(store: Store) -> None:
    job = await running(store)
    assert await store.last_note(job.id, "progress") is None
    for step, message in [("progress", "half"), ("progress", "nearly"), ("other", "aside")]:
        await store.write(Note(Guard.held(job), step=step, message=message))
    await move(store, job, "succeed", step="progress", message="no note")
    found = await store.last_note(job.id, "progress")
    assert found is not None
    assert found.message == "nearly"
