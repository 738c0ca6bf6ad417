"""The main path: waiting claims, watchers, and the errors of lost races."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import asyncpg
import pytest
from msgspec.structs import replace

from chargehand.engine.engine import SWEEP_BATCH, Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import SECOND, Event, Job, QueueLimits, QueueSettings, Rate, SetQueue, State
from chargehand.engine.moves import Broke, Change, Moved, Note
from chargehand.engine.reads import JobFilter
from chargehand.engine.store import Store
from chargehand.engine.texts import MAX_TEXT
from chargehand.errors import Conflict, IdempotencyMismatch, NotFound, StaleLease
from tests.conftest import Clock
from tests.engine.given import (
    AT_ONCE,
    LONG,
    CountingEngine,
    an_engine,
    claim_one,
    claiming,
    event,
    kept_up,
    log,
    until,
    until_met,
)
from tests.store.given import a_job, a_queue, a_report, job_in, opened, seen, sql, submit, until_held_up


@pytest.fixture
def engine(store: Store, clock: Clock) -> CountingEngine:
    return an_engine(store, clock)


# submitting -------------------------------------------------------------------------------------------------------------


async def test_a_key_used_before_with_another_request_is_refused(engine: Engine) -> None:
    first = await engine.submit(a_job(idempotency_key="k", fingerprint="a"))
    again = await engine.submit(a_job(idempotency_key="k", fingerprint="a"))
    assert (again.job_id, again.created) == (first.job_id, False)
    with pytest.raises(IdempotencyMismatch, match=first.job_id):
        await engine.submit(a_job(idempotency_key="k", fingerprint="b"))


# claims that wait -------------------------------------------------------------------------------------------------------


async def test_a_claim_that_finds_nothing_returns_after_its_timeout(engine: Engine) -> None:
    assert await engine.claim((a_queue("q"),), "worker", 60) == ()
    assert await engine.claim((a_queue("q"),), "worker", 60, wait_seconds=0.05) == ()
    assert engine.wakeups.waiting == 0


async def _submit(engine: Engine, job: Job) -> None:
    await engine.submit(a_job())


async def _retry(engine: Engine, job: Job) -> None:
    await engine.broke(Guard.held(job), Broke("broke", delay_seconds=0))


async def _park(engine: Engine, job: Job) -> None:
    await engine.park(Guard.held(job), "target")


async def _requeue(engine: Engine, job: Job) -> None:
    await engine.cancel(Guard.seen(job))
    await engine.requeue(Guard.seen(job))


async def _resume(engine: Engine, job: Job) -> None:
    await engine.set_queue(QueueSettings(a_queue("q"), paused=True))
    await engine.submit(a_job())
    await engine.set_queue(QueueSettings(a_queue("q")))


async def _raise_the_limit(engine: Engine, job: Job) -> None:
    await engine.set_queue(QueueSettings(a_queue("q"), max_running=1))
    await engine.submit(a_job())
    await engine.set_queue(QueueSettings(a_queue("q"), max_running=2))


WAKING: list[Callable[[Engine, Job], Awaitable[None]]] = [_submit, _retry, _park, _requeue, _resume, _raise_the_limit]


@pytest.mark.parametrize("happens", WAKING, ids=lambda happens: happens.__name__.strip("_"))
async def test_a_waiting_claim_is_woken_at_once(
    engine: CountingEngine, happens: Callable[[Engine, Job], Awaitable[None]]
) -> None:
    await engine.submit(a_job(max_attempts=5))
    job = await claim_one(engine)
    waiter = await claiming(engine, "other", "q")
    await happens(engine, job)
    async with asyncio.timeout(AT_ONCE):
        [claimed] = await waiter
    assert claimed.lease_owner == "waiter"


@pytest.mark.parametrize("leaves", ["succeed", "cancel", "park", "retry"])
async def test_room_in_a_limited_queue_wakes_a_waiting_claim(engine: CountingEngine, leaves: str) -> None:
    """Also if the job that made room is due again only later."""
    await engine.set_queue(QueueSettings(a_queue("q"), max_running=1))
    await engine.submit(a_job(max_attempts=2))
    second = (await engine.submit(a_job())).job_id
    job = await claim_one(engine)
    waiter = await claiming(engine)
    if leaves == "succeed":
        await engine.succeed(Guard.held(job), b"{}")
    elif leaves == "cancel":
        await engine.cancel(Guard.seen(job))
    elif leaves == "park":
        await engine.park(Guard.held(job), "target", delay_seconds=LONG)
    else:
        await engine.broke(Guard.held(job), Broke("no", delay_seconds=LONG))
    async with asyncio.timeout(AT_ONCE):
        assert [claimed.id for claimed in await waiter] == [second]


async def test_the_end_of_a_job_wakes_a_waiting_claim_for_the_next_of_its_key(engine: CountingEngine) -> None:
    await engine.set_queue(QueueSettings(a_queue("q"), limits=QueueLimits(key_max_running=1)))
    await engine.submit(a_job(limit_key="acme"))
    second = (await engine.submit(a_job(limit_key="acme"))).job_id
    job = await claim_one(engine)
    waiter = await claiming(engine)
    await engine.succeed(Guard.held(job), b"{}")
    async with asyncio.timeout(AT_ONCE):
        assert [claimed.id for claimed in await waiter] == [second]


@pytest.mark.parametrize("limits", [QueueLimits(rate=Rate(1, 0.2)), QueueLimits(key_rate=Rate(1, 0.2))])
async def test_a_waiting_claim_is_woken_when_a_rate_allows_the_next_job(store_url: str, limits: QueueLimits) -> None:
    async with opened(store_url) as store, kept_up(engine := an_engine(store), engine__poll_seconds=3600):
        await engine.set_queue(QueueSettings(a_queue("q"), limits=limits))
        await engine.submit(a_job(limit_key="acme"))
        second = (await engine.submit(a_job(limit_key="acme"))).job_id
        first = await claim_one(engine)
        waiter = asyncio.create_task(engine.claim((a_queue("q"),), "waiter", 60, wait_seconds=LONG))
        async with asyncio.timeout(10):
            [claimed] = await waiter
    assert claimed.id == second
    assert claimed.updated_at - first.updated_at >= 0.2 * SECOND


async def test_one_job_wakes_only_the_claim_that_waited_longest(engine: CountingEngine) -> None:
    waiters = [await claiming(engine) for _ in range(5)]
    await engine.submit(a_job())
    async with asyncio.timeout(AT_ONCE):
        assert len(await waiters[0]) == 1, "the claim that waited longest"
    assert (engine.looks, engine.wakeups.waiting) == (6, 4), "the others did not even look"
    engine.drain()
    assert await asyncio.gather(*waiters[1:]) == [()] * 4


async def test_as_many_jobs_as_waiting_claims_wake_all_of_them(engine: CountingEngine) -> None:
    waiters = [await claiming(engine) for _ in range(20)]
    await asyncio.gather(*[engine.submit(a_job()) for _ in range(20)])
    async with asyncio.timeout(AT_ONCE):
        claimed = await asyncio.gather(*waiters)
    assert len({job.id for jobs in claimed for job in jobs}) == 20


async def test_a_delayed_job_is_claimed_when_it_is_due(store_url: str) -> None:
    """In real time, and with a poll interval that is too long to help."""
    async with opened(store_url) as store:
        engine = an_engine(store)
        async with kept_up(engine, engine__poll_seconds=LONG):
            waiter = await claiming(engine)
            await engine.submit(a_job(delay_seconds=0.3))
            async with asyncio.timeout(0.3 + AT_ONCE):
                [job] = await waiter
            assert job.updated_at >= job.run_at


async def test_a_delayed_job_from_before_is_found_by_polling(store_url: str) -> None:
    async with opened(store_url) as store:
        engine = an_engine(store)
        job_id = await submit(store, delay_seconds=0.3)
        async with kept_up(engine, engine__poll_seconds=0.2):
            async with asyncio.timeout(0.3 + 0.2 + AT_ONCE):
                assert [job.id for job in await engine.claim((a_queue("q"),), "worker", 60, wait_seconds=LONG)] == [
                    job_id
                ]


async def test_a_cancelled_claim_gives_its_job_back(engine: Engine) -> None:
    job_id = (await engine.submit(a_job())).job_id
    leaving = asyncio.create_task(engine.claim((a_queue("q"),), "leaving", 60))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await event(engine, job_id, "park")
    job = await engine.get(job_id)
    assert (job.state, job.attempt) == (State.QUEUED, 0)
    assert (await claim_one(engine)).id == job_id


async def test_a_cancelled_claim_of_a_resting_job_keeps_the_status_that_callers_saw(engine: Engine) -> None:
    """A door knows by the status that callers saw whether a job is a new start: a job that continues must not look like one."""
    job_id = (await engine.submit(a_job())).job_id
    owned = await claim_one(engine)
    await engine.advance(Guard.held(owned), "provisioning")
    await engine.park(Guard.held(owned), "", stage="resting")
    leaving = asyncio.create_task(engine.claim((a_queue("q"),), "leaving", 60))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await until_parked(engine, job_id, times=2)
    job = await engine.get(job_id)
    assert (job.state, job.topic) == (State.QUEUED, "running:provisioning")


async def until_parked(engine: Engine, job_id: str, times: int) -> None:
    async with asyncio.timeout(5):
        async for each in engine.watch(job_id):
            times -= each.move == "park"
            if not times:
                return


async def test_a_job_that_is_given_back_goes_to_a_waiting_claim(engine: Engine) -> None:
    job_id = (await engine.submit(a_job())).job_id
    leaving, staying = (
        asyncio.create_task(engine.claim((a_queue("q"),), owner, 60, wait_seconds=LONG))
        for owner in ("leaving", "staying")
    )
    await asyncio.sleep(0)
    leaving.cancel()
    async with asyncio.timeout(AT_ONCE):
        assert [job.id for job in await staying] == [job_id]


async def test_a_waiter_that_is_cancelled_when_it_is_woken_passes_the_wake_up_on(engine: CountingEngine) -> None:
    leaving, staying = await claiming(engine), await claiming(engine)

    def leave(_: Moved) -> None:
        leaving.cancel()

    engine.on_move(leave)
    await engine.submit(a_job())
    async with asyncio.timeout(AT_ONCE):
        assert len(await staying) == 1


async def test_a_job_submitted_while_a_claim_is_under_way_wakes_it(postgres_url: str) -> None:
    """Groups run in parallel: the job is submitted after the claim has looked, but before the claim knows that it found nothing."""
    async with opened(postgres_url, pool_size=6) as store:
        engine = an_engine(store)
        await store.write(SetQueue(QueueSettings(a_queue("held up"), max_running=5)))
        holder = await asyncpg.connect(postgres_url)
        async with holder.transaction():
            await holder.execute("SELECT 1 FROM queue_settings FOR UPDATE")
            claims = [
                asyncio.create_task(engine.claim((a_queue(queue),), "worker", 60, wait_seconds=wait))
                for queue, wait in (("q", LONG), ("held up", 0))
            ]
            await until_held_up(holder, claims[1])
            job_id = (await engine.submit(a_job())).job_id
        await holder.close()
        async with asyncio.timeout(AT_ONCE):
            assert [job.id for job in await claims[0]] == [job_id]


async def test_draining_ends_all_waiting_claims_and_claims_nothing_more(engine: CountingEngine) -> None:
    waiter = await claiming(engine)
    engine.drain()
    assert await waiter == ()
    await engine.submit(a_job())
    assert await engine.claim((a_queue("q"),), "worker", 60, wait_seconds=LONG) == ()


async def test_running_jobs_may_still_report_while_the_engine_drains(engine: Engine) -> None:
    await engine.submit(a_job())
    job = await claim_one(engine)
    engine.drain()
    await engine.beat(Guard.held(job), 60)
    assert (await engine.succeed(Guard.held(job), b"1")).state is State.SUCCEEDED


# errors of lost races ---------------------------------------------------------------------------------------------------


async def test_an_unknown_job_is_not_found(engine: Engine) -> None:
    nobody = seen("nobody")
    held = replace(nobody, lease=1)
    for call in (engine.cancel(nobody), engine.requeue(nobody), engine.get("nobody"), engine.beat(held, 60)):
        with pytest.raises(NotFound, match="nobody"):
            await call


async def test_the_job_of_another_tenant_is_not_found(engine: Engine, store: Store) -> None:
    job = await job_in(store, State.RUNNING)
    for call in (
        engine.cancel(replace(Guard.seen(job), tenant="other")),
        engine.succeed(replace(Guard.held(job), tenant="other"), b""),
        engine.broke(replace(Guard.held(job), tenant="other"), Broke("no")),
        engine.get(job.id, "other"),
        engine.note(Note(seen(job.id, "other"))),
    ):
        with pytest.raises(NotFound):
            await call
    assert (await engine.get(job.id)).seq == job.seq


async def test_a_move_that_the_state_forbids_is_a_conflict_that_says_the_state(engine: Engine, store: Store) -> None:
    job = await job_in(store, State.SUCCEEDED)
    with pytest.raises(Conflict, match=r"succeeded.*cancel") as caught:
        await engine.cancel(Guard.seen(job))
    assert not isinstance(caught.value, StaleLease)


async def test_a_lost_lease_raises_stale_lease(engine: Engine, store: Store) -> None:
    job = await job_in(store, State.RUNNING, max_attempts=3)
    await engine.park(Guard.held(job), "target")
    for call in (
        engine.succeed(Guard.held(job), b""),
        engine.broke(Guard.held(job), Broke("no")),
        engine.park(Guard.held(job), "target"),
        engine.advance(Guard.held(job), "working"),
        engine.beat(Guard.held(job), 60),
        engine.note(Note(Guard.held(job))),
    ):
        with pytest.raises(StaleLease, match=f"lease {job.lease}"):
            await call


async def test_a_worker_whose_lease_lapsed_cannot_fail_the_attempt_of_the_next(engine: Engine, store: Store) -> None:
    slow = await job_in(store, State.RUNNING, max_attempts=3)
    await engine.park(Guard.held(slow), "target")
    await claim_one(engine, slow.queue)
    with pytest.raises(StaleLease):
        await engine.broke(Guard.held(slow), Broke("no"))
    assert (await engine.get(slow.id)).state is State.RUNNING


# outcomes ---------------------------------------------------------------------------------------------------------------


async def test_a_broken_attempt_is_retried_after_its_backoff_until_none_is_left(engine: Engine, clock: Clock) -> None:
    job_id = (await engine.submit(a_job(max_attempts=2))).job_id
    job = await claim_one(engine)
    moved = await engine.broke(Guard.held(job), Broke("no"))
    assert 2.5 * SECOND <= moved.run_at - clock.now <= 5 * SECOND
    clock.advance(5)
    job = await claim_one(engine)
    assert (await engine.broke(Guard.held(job), Broke("still no", "boot"))).state is State.FAILED
    end = await engine.get(job_id)
    assert (end.error, end.failed_step, end.attempt) == ("still no", "boot", 2)


async def test_texts_are_shortened_and_stripped_of_nul(engine: Engine, store: Store) -> None:
    job = await job_in(store, State.RUNNING)
    await engine.broke(Guard.held(job), Broke("\x00" + "x" * 2 * MAX_TEXT))
    error = (await engine.get(job.id)).error
    assert error is not None
    assert len(error) == MAX_TEXT
    assert "\x00" not in error + (await engine.jobs.list_events(job.id))[-1].message


async def test_listeners_are_notified_of_every_move(engine: Engine) -> None:
    heard: list[tuple[str, tuple[str, ...]]] = []
    engine.on_move(lambda moved: heard.append((moved.move, moved.endpoints)))
    await engine.submit(a_job(reports=(a_report(),), max_attempts=2))
    await engine.submit(a_job())
    first, second = await engine.claim((a_queue("q"),), "worker", 60, limit=2, stage="working")
    await engine.succeed(Guard.held(first), b"1")
    await engine.broke(Guard.held(second), Broke("no"))
    here = (a_report().endpoint_id,)
    assert heard == [("submit", here), ("submit", ()), ("claim", here), ("claim", ()), ("succeed", here), ("fail", ())]


# leases that lapse ------------------------------------------------------------------------------------------------------


async def test_a_lapsed_lease_is_retried_while_attempts_are_left_and_then_fails(
    engine: Engine, clock: Clock, store: Store
) -> None:
    again = await job_in(store, State.RUNNING, max_attempts=2)
    last = await job_in(store, State.RUNNING, max_attempts=1)
    alive = await job_in(store, State.RUNNING)
    clock.advance(60)
    await engine.beat(Guard.held(alive), 60)
    assert await engine.lapse_all() == 2
    assert [(await engine.get(job.id)).state for job in (again, last, alive)] == [
        State.QUEUED, State.FAILED, State.RUNNING
    ]  # fmt: skip
    assert "worker" in ((await engine.get(last.id)).error or "")
    with pytest.raises(StaleLease):
        await engine.succeed(Guard.held(again), b"")
    assert await engine.lapse_all() == 0


async def test_a_beat_after_the_lapse_was_found_keeps_the_job(engine: Engine, clock: Clock, store: Store) -> None:
    """The lease is found lapsed, then its owner beats, then the lapse is acted upon."""
    job = await job_in(store, State.RUNNING, max_attempts=2)
    clock.advance(60)
    [lapsed] = await engine.jobs.list_jobs(JobFilter(late="lease", limit=10))
    await engine.beat(Guard.held(job), 60)
    assert await engine.lapse(lapsed) is None
    assert (await engine.get(job.id)).state is State.RUNNING


async def test_a_lapse_that_is_found_twice_makes_one_move(engine: Engine, clock: Clock, store: Store) -> None:
    job = await job_in(store, State.RUNNING, max_attempts=5)
    clock.advance(60)
    assert sum(await asyncio.gather(engine.lapse_all(), engine.lapse_all())) == 1
    assert (await log(engine, job.id)).count("retry") == 1


async def test_leases_of_owners_that_are_gone_can_be_ended_early(engine: Engine) -> None:
    job_id = (await engine.submit(a_job(max_attempts=2))).job_id
    await engine.claim((a_queue("q"),), "@runner", LONG)
    assert await engine.lapse_all("@") == 1
    assert (await engine.get(job_id)).state is State.QUEUED


# deadlines --------------------------------------------------------------------------------------------------------------


async def test_jobs_whose_deadline_passed_fail_and_the_others_go_on(engine: Engine, clock: Clock, store: Store) -> None:
    waiting = await job_in(store, State.QUEUED, deadline_seconds=10)
    working = await job_in(store, State.RUNNING, deadline_seconds=10, max_attempts=5)
    later = await job_in(store, State.RUNNING, deadline_seconds=11)
    clock.advance(10)
    assert await engine.expire_all() == 2
    ends = [(await engine.get(job.id)).state for job in (waiting, working, later)]
    assert ends == [State.FAILED, State.FAILED, State.RUNNING]
    with pytest.raises(StaleLease, match="failed"):
        await engine.succeed(Guard.held(working), b"")
    assert await engine.expire_all() == 0


async def test_more_jobs_may_expire_at_once_than_are_read_in_one_batch(engine: Engine, clock: Clock) -> None:
    count = 2 * SWEEP_BATCH + 1
    await asyncio.gather(*[engine.submit(a_job(deadline_seconds=1)) for _ in range(count)])
    clock.advance(1)
    assert await engine.expire_all() == count


async def test_a_deadline_that_is_found_twice_makes_one_move(engine: Engine, clock: Clock, store: Store) -> None:
    job = await job_in(store, State.QUEUED, deadline_seconds=1)
    clock.advance(1)
    assert sum(await asyncio.gather(engine.expire_all(), engine.expire_all())) == 1
    assert await log(engine, job.id) == ["submit", "expire"]


async def test_a_watcher_of_a_job_sees_that_it_expired(engine: Engine, clock: Clock) -> None:
    job_id = (await engine.submit(a_job(deadline_seconds=1, reports=(a_report(),)))).job_id
    heard: list[tuple[str, tuple[str, ...]]] = []
    engine.on_move(lambda moved: heard.append((moved.move, moved.endpoints)))
    watcher = asyncio.create_task(watched(engine, job_id))
    await until(lambda: bool(engine._watchers))
    clock.advance(1)
    await engine.expire_all()
    async with asyncio.timeout(AT_ONCE):
        assert [each.move for each in await watcher] == ["submit", "expire"]
    assert heard == [("expire", (a_report().endpoint_id,))]


async def test_an_expired_job_makes_room_in_a_limited_queue(engine: CountingEngine, clock: Clock) -> None:
    await engine.set_queue(QueueSettings(a_queue("q"), max_running=1))
    await engine.submit(a_job(deadline_seconds=1))
    next_id = (await engine.submit(a_job())).job_id
    await claim_one(engine)
    waiter = await claiming(engine)
    clock.advance(1)
    await engine.expire_all()
    async with asyncio.timeout(AT_ONCE):
        assert [job.id for job in await waiter] == [next_id]


async def test_a_requeued_job_has_no_deadline(engine: Engine, clock: Clock) -> None:
    job_id = (await engine.submit(a_job(deadline_seconds=1))).job_id
    clock.advance(1)
    await engine.expire_all()
    await engine.requeue(seen(job_id))
    clock.advance(LONG)
    assert await engine.expire_all() == 0
    assert (await engine.get(job_id)).state is State.QUEUED


# watching ---------------------------------------------------------------------------------------------------------------


async def watched(engine: Engine, job_id: str, after: int = 0) -> list[Event]:
    return [each async for each in engine.watch(job_id, after)]


async def test_a_watcher_sees_every_event_as_it_happens_and_ends_with_the_last(engine: Engine) -> None:
    job_id = (await engine.submit(a_job())).job_id
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def watch() -> None:
        async for each in engine.watch(job_id):
            seen.put_nowait(each.move)

    watcher = asyncio.create_task(watch())
    async with asyncio.timeout(AT_ONCE * 3):
        assert await seen.get() == "submit"
        job = await claim_one(engine)
        assert await seen.get() == "claim"
        await engine.advance(Guard.held(job), "working")
        assert await seen.get() == "advance"
        await engine.note(Note(Guard.seen(job), message="half way"))
        assert await seen.get() == "note"
        await engine.succeed(Guard.held(job), b"{}")
        assert await seen.get() == "succeed"
        await watcher


async def test_watching_a_finished_job_returns_its_events_and_ends(engine: Engine, store: Store) -> None:
    job = await job_in(store, State.SUCCEEDED)
    async with asyncio.timeout(AT_ONCE):
        assert [each.seq for each in await watched(engine, job.id)] == [1, 2, 3]
        assert [each.seq for each in await watched(engine, job.id, after=2)] == [3]
        assert await watched(engine, job.id, after=3) == []


async def test_many_watchers_miss_nothing_of_a_busy_job(engine: Engine) -> None:
    job_id = (await engine.submit(a_job())).job_id
    watchers = [asyncio.create_task(watched(engine, job_id)) for _ in range(5)]
    for number in range(100):
        await engine.note(Note(seen(job_id), message=str(number)))
    await engine.cancel(seen(job_id))
    async with asyncio.timeout(AT_ONCE):
        for events in await asyncio.gather(*watchers):
            assert [each.seq for each in events] == list(range(1, 103))


async def test_a_cancelled_watcher_is_removed(engine: Engine) -> None:
    job_id = (await engine.submit(a_job())).job_id
    events = cast(AsyncGenerator[Event, None], engine.watch(job_id))
    await anext(events)
    assert engine._watchers
    await events.aclose()
    assert not engine._watchers


async def test_an_unknown_job_or_one_of_another_tenant_cannot_be_watched(engine: Engine) -> None:
    job_id = (await engine.submit(a_job())).job_id
    for watch in (engine.watch("nobody"), engine.watch(job_id, tenant="other")):
        with pytest.raises(NotFound):
            await anext(watch)


async def test_draining_ends_watching(engine: Engine) -> None:
    job_id = (await engine.submit(a_job())).job_id
    watcher = asyncio.create_task(watched(engine, job_id))
    await until(lambda: bool(engine._watchers))
    engine.drain()
    async with asyncio.timeout(AT_ONCE):
        await watcher


# two nodes --------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def two_engines(url: str) -> AsyncIterator[tuple[CountingEngine, CountingEngine]]:
    """Yield two engines on one database, each receiving the hints of the other."""
    async with opened(url, pool_size=4) as a, opened(url, pool_size=4) as b:
        await until_met(a, b)
        yield an_engine(a), an_engine(b)


async def listeners(url: str) -> set[int]:
    """Return the processes of the connections for hints."""
    return {pid for (pid,) in await sql(url, LISTENERS.format("pid"))}


LISTENERS = "SELECT {} FROM pg_stat_activity WHERE datname = current_database() AND query SIMILAR TO '(LISTEN|SELECT pg_notify)%'"


async def test_a_job_submitted_at_one_node_wakes_a_claim_at_another(postgres_url: str) -> None:
    async with two_engines(postgres_url) as (a, b):
        for _ in range(3):
            waiter = await claiming(b)
            job_id = (await a.submit(a_job())).job_id
            async with asyncio.timeout(0.5):
                assert [job.id for job in await waiter] == [job_id]


async def test_a_watcher_at_one_node_sees_what_happens_at_another(postgres_url: str) -> None:
    async with two_engines(postgres_url) as (a, b):
        job_id = (await a.submit(a_job())).job_id
        watcher = asyncio.create_task(watched(b, job_id))
        await until(lambda: bool(b._watchers))
        await a.cancel(seen(job_id))
        async with asyncio.timeout(AT_ONCE):
            assert [each.move for each in await watcher] == ["submit", "cancel"]


async def test_a_queue_resumed_at_one_node_is_resumed_at_another(postgres_url: str) -> None:
    async with two_engines(postgres_url) as (a, b):
        await a.set_queue(QueueSettings(a_queue("q"), paused=True))
        await a.submit(a_job())
        waiter = await claiming(b)
        await a.set_queue(QueueSettings(a_queue("q")))
        async with asyncio.timeout(AT_ONCE):
            assert len(await waiter) == 1


async def test_a_job_whose_hint_was_lost_is_found_by_polling(postgres_url: str) -> None:
    """The connections that carry the hints are cut, so only polling is left."""
    async with two_engines(postgres_url) as (a, b), kept_up(b, engine__poll_seconds=0.1):
        waiter = await claiming(b)
        await sql(postgres_url, LISTENERS.format("pg_terminate_backend(pid)"))
        job_id = (await a.submit(a_job())).job_id
        async with asyncio.timeout(AT_ONCE):
            assert [job.id for job in await waiter] == [job_id]


async def test_hints_arrive_again_after_the_connection_was_lost(postgres_url: str) -> None:
    async with two_engines(postgres_url) as (a, b):
        lost = await listeners(postgres_url)
        await sql(postgres_url, LISTENERS.format("pg_terminate_backend(pid)"))
        async with asyncio.timeout(10):
            while len(await listeners(postgres_url) - lost) < 2:
                pass
        waiter = await claiming(b)
        await a.submit(a_job())
        async with asyncio.timeout(AT_ONCE):
            assert len(await waiter) == 1


async def test_the_lease_of_one_job_cannot_be_guessed_from_that_of_another(engine: Engine) -> None:
    for _ in range(8):
        await engine.submit(a_job())
    leases = {job.lease for job in await engine.claim((a_queue("q"),), "worker", 60, limit=1)}
    while found := await engine.claim((a_queue("q"),), "worker", 60):
        leases |= {job.lease for job in found}
    assert len(leases) == 8
    assert min(leases) >= 2**32


async def test_the_engine_itself_refuses_a_move_that_names_no_holder(engine: Engine) -> None:
    await engine.submit(a_job())
    job = await claim_one(engine)
    nobody = Guard.seen(job)
    for call in (
        engine.beat(nobody, 60), engine.advance(nobody, "working"), engine.succeed(nobody, b"{}"), engine.park(nobody, ""),
        engine.broke(nobody, Broke("no")), engine.change(Change(nobody, "fail")), engine.change(Change(nobody, "retry")),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="needs a lease or an owner"):
            await call
    assert (await engine.get(job.id)).seq == job.seq
