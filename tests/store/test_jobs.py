"""Submitting and moving single jobs: what is stored, what is refused, what is written into the log."""

import asyncio
import os
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from chargehand.engine.guard import Guard
from chargehand.engine.job import SECOND, Job, NewJob, State
from chargehand.engine.moves import TABLE, Attempt, Beat, Change, Lease, Move, Note, expire
from chargehand.engine.reads import EndpointFilter, JobFilter
from chargehand.engine.store import Store
from tests.conftest import Clock
from tests.store.given import (
    TENANT,
    a_job,
    a_report,
    claim,
    claimed_ids,
    get,
    job_in,
    move,
    opened,
    running,
    seen,
    submit,
    take_one,
    trace,
)


async def attempt(store: Store, name: str, job: Job, lease: int | None, tenant: str | None) -> bool:
    """Make the move by the right operation of the store; return whether it happened."""
    if name == "claim":
        return await claimed_ids(store, job.queue) == [job.id]
    guard = Guard(job.id, tenant, job.kind, lease, None)
    if name == "beat":
        return await store.write(Beat(guard, 60)) is not None
    return await store.write(Change(guard, name)) is not None


# submitting -------------------------------------------------------------------------------------------------------------


async def test_a_submitted_job_is_stored_as_it_was_given(store: Store, clock: Clock) -> None:
    given = a_job(
        priority=7,
        max_attempts=3,
        traceparent="00-ab-cd-01",
        tracestate="a=b",
        metadata=b'{"a":1}',
        idempotency_key="k",
    )
    submitted = await store.write(given)
    job = await get(store, given.id)
    assert submitted.moved is not None
    assert (submitted.moved.move, submitted.moved.seq, submitted.moved.run_at) == ("submit", 1, clock.now)
    for name in set(NewJob.__struct_fields__) - {
        "run_at",
        "delay_seconds",
        "deadline_seconds",
        "fingerprint",
        "reports",
        "unique_key",
        "keep_seconds",
        "waits",
    }:
        assert getattr(job, name) == getattr(given, name), name
    assert (job.state, job.stage, job.attempt, job.lease, job.result) == (State.QUEUED, "", 0, 0, None)
    assert job.run_at == job.created_at == job.updated_at == clock.now
    assert not job.finished


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x00\x00", bytes(range(256)), b'{"n": 12345678901234567890.10, "n": 1e400}', os.urandom(3 << 20)],
    ids=["empty", "NULs", "every byte", "JSON no parser keeps", "3 MiB"],
)
async def test_a_payload_and_a_result_are_stored_byte_for_byte(store: Store, payload: bytes) -> None:
    job = await running(store, payload=payload, metadata=payload)
    assert job.payload == payload
    await move(store, job, "succeed", result=payload)
    kept = await get(store, job.id)
    assert (kept.payload, kept.metadata, kept.result) == (payload, payload, payload)


async def test_an_unknown_job_is_not_found(store: Store) -> None:
    assert await store.get_job("nobody") is None
    assert await store.list_events("nobody") == []
    assert await store.write(Change(seen("nobody"), "cancel")) is None


async def test_a_job_is_hidden_from_other_tenants(store: Store) -> None:
    job_id = await submit(store)
    assert await store.get_job(job_id, "acme") is not None
    assert await store.get_job(job_id, "other") is None


# idempotency ------------------------------------------------------------------------------------------------------------


async def test_the_same_key_gives_the_same_job(store: Store) -> None:
    first = await store.write(a_job(idempotency_key="k", fingerprint="f", payload=b"1"))
    again = await store.write(a_job(idempotency_key="k", fingerprint="f", payload=b"2"))
    assert (first.created, again.created, again.job_id, again.moved) == (True, False, first.job_id, None)
    assert (await get(store, first.job_id)).payload == b"1"
    assert len(await store.list_jobs(JobFilter(TENANT))) == 1


async def test_a_known_key_returns_the_fingerprint_it_was_used_with(store: Store) -> None:
    await store.write(a_job(idempotency_key="k", fingerprint="one"))
    again = await store.write(a_job(idempotency_key="k", fingerprint="two"))
    assert (again.created, again.fingerprint) == (False, "one")


@pytest.mark.parametrize("other", [{"tenant": "other"}, {"kind": "other"}], ids=["tenant", "kind"])
async def test_the_same_key_of_another_tenant_or_kind_is_another_job(store: Store, other: dict[str, str]) -> None:
    first = await store.write(a_job(idempotency_key="k"))
    second = await store.write(a_job(idempotency_key="k", **other))
    assert second.created
    assert second.job_id != first.job_id
    again = [await store.write(a_job(idempotency_key="k", **fields)) for fields in ({}, other)]
    assert [answer.job_id for answer in again] == [first.job_id, second.job_id]


async def test_jobs_without_a_key_are_all_new(store: Store) -> None:
    assert all([(await store.write(a_job())).created for _ in range(3)])


async def test_a_key_stays_valid_after_the_end_of_its_job(store: Store) -> None:
    job = await job_in(store, State.SUCCEEDED, idempotency_key="k")
    again = await store.write(a_job(idempotency_key="k"))
    assert (again.created, again.job_id) == (False, job.id)


@pytest.mark.parametrize("group_size", [1, 7, 256])
async def test_fifty_submissions_at_once_with_one_key_make_one_job(store_url: str, group_size: int) -> None:
    async with opened(store_url, group_size=group_size) as store:
        jobs = [a_job(idempotency_key="k", reports=(a_report(),)) for _ in range(50)]
        answers = await asyncio.gather(*[store.write(job) for job in jobs])
        [job] = await store.list_jobs(JobFilter(TENANT))
        assert [answer.created for answer in answers].count(True) == 1
        assert {answer.job_id for answer in answers} == {job.id}
        assert [each.pending for each in await store.list_endpoints(EndpointFilter())] == [1]


async def test_the_same_submit_sent_twice_makes_one_job(store: Store) -> None:
    job = a_job(idempotency_key="k")
    first, second = await asyncio.gather(store.write(job), store.write(job))
    assert sorted([first.created, second.created]) == [False, True]
    assert first.job_id == second.job_id
    assert len(await store.list_events(job.id)) == 1


# delays -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run_at", "delay", "due"), [(None, 2.5, 2.5), (10, 0.0, 10), (-10, 0.0, 0), (10, 2.5, 12.5), (-10, 2.5, 2.5)]
)
async def test_a_delayed_job_is_claimed_when_it_is_due_and_not_before(
    store: Store, clock: Clock, run_at: int | None, delay: float, due: float
) -> None:
    at = None if run_at is None else clock.now + run_at * SECOND
    job_id = await submit(store, run_at=at, delay_seconds=delay)
    assert (await get(store, job_id)).run_at == clock.now + int(due * SECOND)
    if due:
        clock.advance(due - 0.000_001)
        assert await claimed_ids(store) == []
        clock.advance(0.000_001)
    assert await claimed_ids(store) == [job_id]


# deadlines --------------------------------------------------------------------------------------------------------------


async def overdue(store: Store) -> list[str]:
    return [job.id for job in await store.list_jobs(JobFilter(late="deadline", limit=10))]


async def test_a_deadline_counts_from_the_submission_by_the_clock_of_the_store(store: Store, clock: Clock) -> None:
    job_id = await submit(store, deadline_seconds=2.5, delay_seconds=60)
    assert (await get(store, job_id)).deadline_at == clock.now + int(2.5 * SECOND)
    assert (await get(store, await submit(store))).deadline_at is None


async def test_a_job_is_overdue_from_its_deadline_on_whether_it_waits_or_runs(store: Store, clock: Clock) -> None:
    late = await submit(store, deadline_seconds=5)
    early = (await job_in(store, State.RUNNING, deadline_seconds=3)).id
    await submit(store, deadline_seconds=60)
    await submit(store)
    clock.advance(2.999_999)
    assert await overdue(store) == []
    clock.advance(0.000_001)
    assert await overdue(store) == [early]
    clock.advance(5)
    assert await overdue(store) == [early, late]
    assert [job.id for job in await store.list_jobs(JobFilter(late="deadline", limit=1))] == [early]


async def test_a_finished_job_is_not_overdue(store: Store, clock: Clock) -> None:
    for state in (State.SUCCEEDED, State.FAILED, State.CANCELLED):
        job = await job_in(store, state, deadline_seconds=3)
        assert job.deadline_at == clock.now + 3 * SECOND
    clock.advance(10)
    assert await overdue(store) == []


async def test_an_expired_job_has_failed_and_its_owner_has_lost_it(store: Store, clock: Clock) -> None:
    job = await job_in(store, State.RUNNING, deadline_seconds=90)
    await move(store, job, "advance", stage="loading")
    clock.advance(90)
    [found] = await store.list_jobs(JobFilter(late="deadline", limit=10))
    assert await store.write(expire(found))
    after = await get(store, job.id)
    assert (after.state, after.error, after.attempt) == (State.FAILED, "the deadline of 90 s passed", 1)
    assert await move(store, job, "succeed", result=b"late") is None
    last = (await store.list_events(job.id))[-1]
    assert (last.move, last.level, last.previous) == ("expire", "error", "running:loading")
    assert last.message == "expired while running:loading: the deadline of 90 s passed"
    assert await overdue(store) == []


async def test_a_requeued_job_has_no_deadline_and_does_not_expire_by_the_old_one(store: Store, clock: Clock) -> None:
    """The job is found overdue, then an operator requeues it, then the expiry is written."""
    job_id = await submit(store, deadline_seconds=1)
    clock.advance(1)
    [found] = await store.list_jobs(JobFilter(late="deadline", limit=10))
    assert await store.write(expire(found))
    assert await store.write(Change(seen(job_id), "requeue"))
    assert await store.write(expire(found)) is None
    assert await overdue(store) == []
    after = await get(store, job_id)
    assert (after.state, after.deadline_at, after.error) == (State.QUEUED, None, None)


@pytest.mark.parametrize("way", ["advance", "retry", "park"])
async def test_a_deadline_is_kept_when_the_job_is_advanced_retried_or_parked(
    store: Store, clock: Clock, way: str
) -> None:
    job = await job_in(store, State.RUNNING, deadline_seconds=10, max_attempts=3)
    assert await move(store, job, way)
    assert (await get(store, job.id)).deadline_at == job.deadline_at
    clock.advance(10)
    assert await overdue(store) == [job.id]


# moves ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", TABLE, ids=[step.name for step in TABLE])
async def test_a_move_happens_from_the_states_in_its_row_and_from_no_other(store: Store, step: Move) -> None:
    for state in State:
        job = await job_in(store, state)
        before = await trace(store, job.id)
        happened = await attempt(store, step.name, job, job.lease, job.tenant)
        assert happened == (state in step.source), state
        if happened:
            assert_moved(job, await get(store, job.id), step)
        else:
            assert await trace(store, job.id) == before


def assert_moved(before: Job, after: Job, step: Move) -> None:
    assert after.state is step.to
    assert (after.finished_at is not None) == after.finished
    assert (after.lease_until is not None) == (after.lease_owner is not None) == (step.to is State.RUNNING)
    assert after.claims == before.claims + (step.lease is Lease.GRANT)
    delta = {Attempt.UP: 1, Attempt.DOWN: -1, Attempt.SAME: 0, Attempt.RESET: -before.attempt}
    assert after.attempt == before.attempt + delta[step.attempt]
    assert after.seq == before.seq + (step.name != "beat")


async def test_a_stale_lease_cannot_move_a_job(store: Store) -> None:
    for step in (step for step in TABLE if step.source == {State.RUNNING}):
        stale = await running(store)
        await move(store, stale, "park")
        current = await take_one(store, stale.queue)
        before = await trace(store, stale.id)
        assert not await attempt(store, step.name, stale, stale.lease, stale.tenant), step.name
        assert await trace(store, stale.id) == before
        assert await attempt(store, step.name, current, current.lease, current.tenant), step.name


async def test_another_tenant_cannot_move_a_job(store: Store) -> None:
    for step in (step for step in TABLE if step.name != "claim"):
        job = await job_in(store, max(step.source))
        before = await trace(store, job.id)
        assert not await attempt(store, step.name, job, job.lease, "other"), step.name
        assert await trace(store, job.id) == before
        assert await attempt(store, step.name, job, job.lease, None), step.name


async def test_only_one_of_many_moves_at_once_finishes_a_job(store: Store) -> None:
    job = await running(store)
    ways: Sequence[str] = ("succeed", "fail", "retry", "park", "cancel") * 4
    moved = [m for m in await asyncio.gather(*[move(store, job, way) for way in ways]) if m is not None]
    # The one exception: a job that went back to the queue can still be cancelled.
    assert len(moved) == 1 or [m.move for m in moved][1:] == ["cancel"]
    assert [event.move for event in await store.list_events(job.id)][2:] == [m.move for m in moved]


async def test_changes_of_one_job_in_one_group_are_made_in_their_order(store: Store) -> None:
    job = await running(store)
    stages = [f"stage-{number}" for number in range(10)]
    await asyncio.gather(*[move(store, job, "advance", stage=stage) for stage in stages])
    assert [event.stage for event in await store.list_events(job.id)] == ["", "", *stages]


# attempts and leases ----------------------------------------------------------------------------------------------------


async def test_a_claim_counts_an_attempt_and_parking_gives_it_back(store: Store) -> None:
    job = await running(store, max_attempts=5)
    counted = [job.attempt]
    for way in ("retry", "park", "park", "retry"):
        moved = await move(store, job, way)
        assert moved is not None
        job = await take_one(store, job.queue)
        counted += [moved.attempt, job.attempt]
    assert counted == [1, 1, 2, 1, 2, 1, 2, 2, 3]


async def test_a_requeued_job_has_all_its_attempts_again(store: Store) -> None:
    job = await running(store)
    await move(store, job, "fail", error="broken", failed_step="boot")
    moved = await store.write(Change(Guard.seen(job), "requeue"))
    assert moved is not None
    again = await get(store, job.id)
    assert (moved.attempt, again.attempt, again.finished_at, again.error, again.failed_step) == (0, 0, None, None, None)
    assert (await take_one(store, job.queue)).attempt == 1


async def test_a_lease_says_who_holds_the_job_until_when(store: Store, clock: Clock) -> None:
    job = await running(store)
    assert (job.lease_owner, job.lease_until) == ("worker", clock.now + 60 * SECOND)


async def test_a_beat_extends_the_lease_and_writes_no_event(store: Store, clock: Clock) -> None:
    job = await running(store)
    clock.advance(59)
    until = await store.write(Beat(Guard.held(job), 30))
    assert until == clock.now + 30 * SECOND
    after = await get(store, job.id)
    assert (after.lease_until, after.lease, after.seq) == (until, job.lease, job.seq)


async def test_each_beat_of_a_group_extends_only_its_own_lease(store: Store, clock: Clock) -> None:
    job, other = await running(store), await running(store)
    beats = [
        Beat(Guard.held(job), 10),
        Beat(replace(Guard.held(job), lease=job.lease + 1), 20),
        Beat(Guard.held(other), 30),
        Beat(replace(Guard.held(other), tenant="stranger"), 40),
        Beat(replace(seen("nobody"), lease=1), 50),
    ]
    answers = await asyncio.gather(*[store.write(beat) for beat in beats])
    assert answers == [clock.now + 10 * SECOND, None, clock.now + 30 * SECOND, None, None]


async def test_advancing_keeps_the_lease(store: Store, clock: Clock) -> None:
    job = await running(store)
    clock.advance(1)
    moved = await move(store, job, "advance", stage="loading")
    assert moved is not None
    assert (moved.state, moved.stage, moved.seq) == (State.RUNNING, "loading", 3)
    after = await get(store, job.id)
    assert (after.lease, after.lease_owner, after.lease_until) == (job.lease, job.lease_owner, job.lease_until)
    assert await move(store, job, "succeed") is not None


async def test_the_owner_of_a_cancelled_job_has_lost_it(store: Store) -> None:
    job = await running(store)
    assert await store.write(Change(Guard.seen(job), "cancel", error="cancelled")) is not None
    assert await move(store, job, "succeed", result=b"late") is None
    assert await store.write(Beat(Guard.held(job), 60)) is None
    after = await get(store, job.id)
    assert (after.state, after.error, after.result) == (State.CANCELLED, "cancelled", None)


# fields after a move ----------------------------------------------------------------------------------------------------


async def test_a_retried_job_is_due_after_its_delay_and_has_the_error(store: Store, clock: Clock) -> None:
    job = await running(store, max_attempts=2)
    moved = await move(
        store, job, "retry", delay_seconds=5, waiting_for="backoff", error="broken pipe", failed_step="copy"
    )
    assert moved is not None
    assert moved.run_at == clock.now + 5 * SECOND
    waiting = await get(store, job.id)
    assert (waiting.error, waiting.failed_step, waiting.waiting_for) == ("broken pipe", "copy", "backoff")
    assert await claimed_ids(store, job.queue) == []
    clock.advance(5)
    assert (await take_one(store, job.queue)).waiting_for == ""


async def test_success_clears_the_error_of_an_earlier_attempt(store: Store) -> None:
    job = await running(store, max_attempts=2)
    await move(store, job, "retry", error="broken pipe", failed_step="copy")
    await move(store, await take_one(store, job.queue), "succeed", result=b"42")
    after = await get(store, job.id)
    assert (after.error, after.failed_step, after.result) == (None, None, b"42")


async def test_a_finished_job_has_the_time_of_its_end(store: Store, clock: Clock) -> None:
    job = await running(store)
    clock.advance(3)
    moved = await move(store, job, "succeed")
    assert moved is not None
    assert moved.at == clock.now
    assert (await get(store, job.id)).finished_at == clock.now


# events -----------------------------------------------------------------------------------------------------------------


async def test_events_are_numbered_without_gaps_and_name_the_status_before(store: Store) -> None:
    job_id = await submit(store, max_attempts=9)
    job = await take_one(store)
    await move(store, job, "advance", stage="loading")
    await move(store, job, "advance", stage="loading")
    await store.write(Note(Guard.held(job), level="warn", step="load", message="slow", data=b"\x00"))
    await move(store, job, "retry", level="warn", message="broke", error="a broken pipe", data=b"{}")
    job = await take_one(store)
    await move(store, job, "park")
    job = await take_one(store, stage="working")
    await move(store, job, "fail", level="error", step="work", message="gave up")
    await store.write(Change(Guard.seen(job), "requeue"))
    log = await store.list_events(job_id)
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    assert [(e.move, str(e.state), e.stage, e.previous, e.attempt) for e in log] == [
        ("submit", "queued", "", "", 0),
        ("claim", "running", "", "queued", 1),  # without a stage, callers still see queued
        ("advance", "running", "loading", "queued", 1),
        ("advance", "running", "loading", "running:loading", 1),
        ("note", "running", "loading", "running:loading", 1),
        ("retry", "queued", "", "running:loading", 1),
        ("claim", "running", "", "queued", 2),
        ("park", "queued", "", "queued", 1),
        ("claim", "running", "working", "queued", 2),
        ("fail", "failed", "", "running:working", 2),
        ("requeue", "queued", "", "failed", 0),
    ]
    assert [(e.level, e.step, e.message, e.error, e.data) for e in log if e.level != "info"] == [
        ("warn", "load", "slow", None, b"\x00"),
        ("warn", "", "broke", "a broken pipe", b"{}"),
        ("error", "work", "gave up", None, None),
    ]
    assert (await get(store, job_id)).seq == len(log)


async def test_a_job_has_the_status_that_callers_see_and_the_one_before(store: Store) -> None:
    job = await running(store)
    seen = [(job.topic, job.previous)]
    for stage in ("loading", "loading", "working"):
        await move(store, job, "advance", stage=stage)
        current = await get(store, job.id)
        seen.append((current.topic, current.previous))
    assert seen == [
        ("queued", ""),
        ("running:loading", "queued"),
        ("running:loading", "queued"),
        ("running:working", "running:loading"),
    ]


async def test_events_can_be_read_from_any_number_on(store: Store) -> None:
    job_id = await submit(store)
    for number in range(5):
        assert await store.write(Note(seen(job_id), message=str(number))) == number + 2
    assert [event.seq for event in await store.list_events(job_id, after=2, limit=3)] == [3, 4, 5]
    assert await store.list_events(job_id, after=6) == []


async def test_notes_of_one_group_each_get_their_own_number(store: Store) -> None:
    job_id = await submit(store)
    numbers = await asyncio.gather(*[store.write(Note(seen(job_id), message="hello")) for _ in range(30)])
    assert sorted(number or 0 for number in numbers) == list(range(2, 32))


async def test_a_note_needs_the_lease_only_if_it_names_one(store: Store) -> None:
    job = await running(store)
    assert await store.write(Note(replace(Guard.held(job), lease=job.lease + 1))) is None
    assert await store.write(Note(seen(job.id, "other"))) is None
    await move(store, job, "succeed")
    assert await store.write(Note(Guard.held(job))) is None
    assert await store.write(Note(Guard.seen(job), message="post mortem")) == 4
    assert (await get(store, job.id)).state is State.SUCCEEDED


# deliveries -------------------------------------------------------------------------------------------------------------


async def test_a_claim_without_a_stage_makes_no_delivery(store: Store) -> None:
    await submit(store, reports=(a_report(),))
    claimed = await claim(store)
    assert claimed.endpoints == ()
    parked = await move(store, claimed.jobs[0], "park")
    assert parked is not None
    assert parked.endpoints == ()
    assert [each.pending for each in await store.list_endpoints(EndpointFilter())] == [1]  # "queued", once


async def test_every_change_that_callers_can_see_makes_one_delivery(store: Store) -> None:
    submitted = await store.write(a_job(reports=(a_report(),)))
    claimed = await claim(store, stage="loading")
    job = claimed.jobs[0]
    told = [submitted.moved and submitted.moved.endpoints, claimed.endpoints]
    for step, stage in [("advance", "loading"), ("advance", "working"), ("succeed", "")]:
        moved = await move(store, job, step, stage=stage)
        told.append(moved and moved.endpoints)
    here = (a_report().endpoint_id,)
    assert told == [here, here, (), here, here]
