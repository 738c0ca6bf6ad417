"""In-process workers: how the outcome of a handler is stored, and when a handler is stopped."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import SECOND, Job, State
from chargehand.engine.moves import Broke, Change, Moved
from chargehand.engine.runner import IN_PROCESS, Done, Hand, Handler, Holder, Outcome, Parked, Runner
from chargehand.engine.store import Store
from chargehand.errors import StoreUnavailable
from tests.conftest import Clock
from tests.engine.given import AT_ONCE, LONG, Cable, an_engine, event, kept_up, log, stop, until
from tests.store.given import KILL, a_job, a_queue, opened, seen, sql


@pytest.fixture
def engine(store: Store, clock: Clock) -> Engine:
    return an_engine(store, clock)


@asynccontextmanager
async def running(
    engine: Engine, handler: Handler, concurrency: int = 1, lease_seconds: float = LONG
) -> AsyncIterator["asyncio.Task[None]"]:
    runner = Runner(engine, "test", (a_queue("q"),), handler, concurrency=concurrency, lease_seconds=lease_seconds)
    task = asyncio.create_task(runner.run())
    try:
        yield task
    finally:
        engine.drain()
        task.cancel()
        await asyncio.wait({task}, timeout=5)


class Stuck:
    """A handler that never ends by itself, and records how it was stopped."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.started, self.stopped = asyncio.Event(), asyncio.Event()

    async def __call__(self, job: Job, hand: Hand) -> Outcome:
        self.jobs.append(job)
        self.started.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        raise AssertionError("unreachable")


def returning(outcome: Outcome) -> Handler:
    async def handler(job: Job, hand: Hand) -> Outcome:
        return outcome

    return handler


async def submitted(engine: Engine, **fields: Any) -> str:
    return (await engine.submit(a_job(**fields))).job_id


# outcomes ---------------------------------------------------------------------------------------------------------------


async def test_the_result_of_a_handler_is_stored(engine: Engine) -> None:
    job_id = await submitted(engine)
    async with running(engine, returning(Done(b'{"answer": 42}'))):
        await event(engine, job_id, "succeed")
    job = await engine.get(job_id)
    assert (job.state, job.result, job.attempt) == (State.SUCCEEDED, b'{"answer": 42}', 1)
    assert IN_PROCESS + "test" in (await engine.jobs.list_events(job_id))[1].message


async def test_a_job_whose_handler_broke_is_retried_after_a_backoff(engine: Engine, clock: Clock) -> None:
    job_id = await submitted(engine, max_attempts=2)
    async with running(engine, returning(Broke("no power", "boot"))):
        await event(engine, job_id, "retry")
        waiting = await engine.get(job_id)
        assert (waiting.error, waiting.failed_step, waiting.waiting_for) == ("no power", "boot", "backoff")
        await until(lambda: engine.wakeups.waiting == 1)
        clock.advance(LONG)
        await engine.look_for_due()
        await event(engine, job_id, "fail")


async def test_a_parked_job_comes_back_and_the_attempt_does_not_count(engine: Engine, clock: Clock) -> None:
    job_id = await submitted(engine)
    async with running(engine, returning(Parked("target", 30))):
        await event(engine, job_id, "park")
    job = await engine.get(job_id)
    assert (job.state, job.attempt, job.waiting_for) == (State.QUEUED, 0, "target")
    assert job.run_at == clock.now + 30 * SECOND


async def test_an_exception_is_a_broken_attempt_and_the_runner_goes_on(engine: Engine) -> None:
    async def handler(job: Job, hand: Hand) -> Outcome:
        if job.payload == b"bad":
            raise RuntimeError("out of \x00 paper")
        return Done(b"{}")

    bad = (await engine.submit(a_job(payload=b"bad"))).job_id
    good = await submitted(engine)
    async with running(engine, handler):
        await event(engine, good, "succeed")
    assert (await engine.get(bad)).error == "RuntimeError: out of \ufffd paper"


async def test_a_handler_that_cancels_itself_is_a_broken_attempt(engine: Engine) -> None:
    """Something it awaited was cancelled, but the job still belongs to it: so nobody else stores an outcome."""

    async def handler(job: Job, hand: Hand) -> Outcome:
        raise asyncio.CancelledError

    job_id = await submitted(engine)
    async with running(engine, handler):
        await event(engine, job_id, "fail", AT_ONCE)


async def test_an_outcome_that_the_store_refuses_does_not_stop_the_runner(engine: Engine) -> None:
    async def handler(job: Job, hand: Hand) -> Outcome:
        return Broke("no", delay_seconds=float("inf")) if job.payload == b"bad" else Done(b"{}")

    await engine.submit(a_job(payload=b"bad", max_attempts=2))
    good = await submitted(engine)
    async with running(engine, handler) as runner:
        await event(engine, good, "succeed", AT_ONCE)
        assert not runner.done()


async def test_a_handler_may_advance_the_stage_of_its_job(engine: Engine) -> None:
    async def handler(job: Job, hand: Hand) -> Outcome:
        await hand.advance("loading", "half way")
        await hand.advance("working")
        return Done(b"{}")

    job_id = await submitted(engine)
    async with running(engine, handler):
        await event(engine, job_id, "succeed")
    events = await engine.jobs.list_events(job_id)
    assert [each.stage for each in events] == ["", "", "loading", "working", ""]
    assert events[2].message == "half way"


async def test_a_handler_may_write_into_the_log_of_the_job_it_holds(engine: Engine) -> None:
    async def handler(job: Job, hand: Hand) -> Outcome:
        assert hand.job is job
        await hand.advance("loading", data=b'{"layers": 80}')
        await hand.note("slow", "warn", "load", b"[1]")
        return Done(b"{}")

    job_id = await submitted(engine)
    async with running(engine, handler):
        await event(engine, job_id, "succeed")
    [advanced, noted] = (await engine.jobs.list_events(job_id))[2:4]
    assert advanced.data == b'{"layers": 80}'
    assert (noted.move, noted.stage) == ("note", "loading")
    assert (noted.message, noted.level, noted.step, noted.data) == ("slow", "warn", "load", b"[1]")


@pytest.mark.parametrize(
    ("outcome", "move", "message"),
    [
        (Done(b"{}", "in 3 s", b"[3]"), "succeed", "in 3 s"),
        (Parked("target", message="no server has the model", data=b"[3]"), "park", "no server has the model"),
        (Parked("target", data=b"[3]"), "park", "parked: waits for target"),
        (Broke("no", delay_seconds=1, data=b"[3]"), "retry", "attempt 1 of 2 broke, again in 1.0 s: no"),
        (Broke("no", final=True, data=b"[3]"), "fail", "failed on attempt 1 of 2: no"),
    ],
    ids=["done", "parked", "parked without a message", "broke", "broke for good"],
)
async def test_an_outcome_may_have_a_message_and_data(
    engine: Engine, outcome: Outcome, move: str, message: str
) -> None:
    job_id = await submitted(engine, max_attempts=2)
    async with running(engine, returning(outcome)):
        end = await event(engine, job_id, move)
    assert (end.message, end.data) == (message, b"[3]")


async def test_as_many_handlers_run_at_once_as_the_concurrency_allows(engine: Engine) -> None:
    stuck = Stuck()
    for _ in range(5):
        await submitted(engine)
    async with running(engine, stuck, concurrency=3):
        await until(lambda: len(stuck.jobs) == 3)
        assert [(count.ready, count.running) for count in await engine.jobs.count_queues()] == [(2, 3)]


async def test_a_waiting_runner_takes_a_job_as_soon_as_there_is_one(engine: Engine) -> None:
    async with running(engine, returning(Done(b"{}"))):
        await until(lambda: engine.wakeups.waiting == 1)
        await event(engine, await submitted(engine), "succeed", AT_ONCE)


# holding without a runner -----------------------------------------------------------------------------------------------


async def held(engine: Engine, handler: Handler) -> "asyncio.Task[None]":
    """Claim a job without a runner and return the task that holds it."""
    holder = Holder(engine, "scheduler", LONG)
    [job] = await engine.claim((a_queue("q"),), holder.owner, holder.lease_seconds)
    assert job.lease_owner == holder.owner == IN_PROCESS + "scheduler"
    return asyncio.create_task(holder.hold(job, handler))


async def test_a_caller_that_claims_a_job_itself_may_hold_it_without_a_runner(engine: Engine) -> None:
    job_id = await submitted(engine)
    await (await held(engine, returning(Done(b"{}"))))
    assert await log(engine, job_id) == ["submit", "claim", "succeed"]


async def test_a_cancelled_hold_stops_its_handler_and_gives_the_job_back(engine: Engine) -> None:
    stuck = Stuck()
    job_id = await submitted(engine)
    holding = await held(engine, stuck)
    await stuck.started.wait()
    await stop(holding)
    assert stuck.stopped.is_set()
    assert await log(engine, job_id) == ["submit", "claim", "park"]


async def test_a_hold_ends_when_its_job_is_taken_away(engine: Engine) -> None:
    stuck = Stuck()
    job_id = await submitted(engine)
    holding = await held(engine, stuck)
    await stuck.started.wait()
    await engine.cancel(seen(job_id))
    async with asyncio.timeout(AT_ONCE):
        await holding
    assert stuck.stopped.is_set()


# losing a job -----------------------------------------------------------------------------------------------------------


async def _cancel(engine: Engine, job: Job) -> None:
    await engine.cancel(Guard.seen(job))


async def _lapse(engine: Engine, job: Job) -> None:
    await engine.lapse(job)


async def _expire(engine: Engine, job: Job) -> None:
    await engine.expire(job)


@pytest.mark.parametrize("taken_away", [_cancel, _lapse, _expire], ids=["cancelled", "lapsed", "expired"])
async def test_a_handler_is_stopped_as_soon_as_its_job_is_taken_away(
    engine: Engine, taken_away: Callable[[Engine, Job], Awaitable[None]]
) -> None:
    stuck = Stuck()
    job_id = await submitted(engine, deadline_seconds=1)
    async with running(engine, stuck):
        await stuck.started.wait()
        await taken_away(engine, stuck.jobs[0])
        async with asyncio.timeout(AT_ONCE):
            await stuck.stopped.wait()
        next_id = await submitted(engine)
        await until(lambda: [job.id for job in stuck.jobs] == [job_id, next_id])
    assert (await engine.get(job_id)).state in (State.CANCELLED, State.FAILED)


async def test_a_handler_is_stopped_at_the_deadline_of_its_job(store_url: str) -> None:
    """In real time: the chore finds the deadline, and a beat does not extend it."""
    stuck = Stuck()
    async with opened(store_url) as store:
        engine = an_engine(store)
        async with kept_up(engine):
            job_id = await submitted(engine, deadline_seconds=1, max_attempts=5)
            async with running(engine, stuck):
                await event(engine, job_id, "expire", 5)
                async with asyncio.timeout(AT_ONCE):
                    await stuck.stopped.wait()
            assert await log(engine, job_id) == ["submit", "claim", "expire"]


async def test_a_lease_that_another_node_ended_is_noticed_with_the_next_beat(engine: Engine, store: Store) -> None:
    stuck = Stuck()
    job_id = await submitted(engine)
    async with running(engine, stuck, lease_seconds=0.3):
        await stuck.started.wait()
        assert await store.write(Change(seen(job_id), "cancel"))
        async with asyncio.timeout(AT_ONCE):
            await stuck.stopped.wait()


async def stubborn(job: Job, hand: Hand) -> Outcome:
    """Ignores the cancellation and ends with its outcome."""
    with suppress(asyncio.CancelledError):
        await asyncio.get_running_loop().create_future()
    return Done(b"late")


async def test_the_outcome_of_a_job_that_was_taken_away_is_dropped(engine: Engine) -> None:
    job_id = await submitted(engine)
    async with running(engine, stubborn):
        await event(engine, job_id, "claim")
        await engine.cancel(seen(job_id))
        await event(engine, await submitted(engine), "claim")
    job = await engine.get(job_id)
    assert (job.state, job.result) == (State.CANCELLED, None)


async def test_beats_keep_a_short_lease_alive_through_long_work(store_url: str) -> None:
    """In real time, while a chore looks for lapsed leases."""

    async def slow(job: Job, hand: Hand) -> Outcome:
        await asyncio.sleep(2)
        return Done(b"{}")

    async with opened(store_url) as store:
        engine = an_engine(store)
        async with kept_up(engine):
            job_id = await submitted(engine)
            async with running(engine, slow, lease_seconds=0.6):
                await event(engine, job_id, "succeed", 10)
            assert await log(engine, job_id) == ["submit", "claim", "succeed"]


# stopping ---------------------------------------------------------------------------------------------------------------


async def test_a_stopped_runner_gives_its_jobs_back_without_counting_the_attempt(engine: Engine) -> None:
    stuck = Stuck()
    job_ids = [await submitted(engine) for _ in range(2)]
    async with running(engine, stuck, concurrency=2) as runner:
        await until(lambda: len(stuck.jobs) == 2)
        engine.drain()
        await stop(runner)
    for job_id in job_ids:
        job = await engine.get(job_id)
        assert (job.state, job.attempt) == (State.QUEUED, 0)
        assert await log(engine, job_id) == ["submit", "claim", "park"]


async def test_a_handler_may_clean_up_before_its_job_is_given_back(engine: Engine) -> None:
    started = asyncio.Event()

    async def tidy(job: Job, hand: Hand) -> Outcome:
        try:
            started.set()
            await asyncio.get_running_loop().create_future()
        finally:
            await hand.advance("tidied")
        raise AssertionError("unreachable")

    job_id = await submitted(engine)
    async with running(engine, tidy) as runner:
        await started.wait()
        await stop(runner)
    assert await log(engine, job_id) == ["submit", "claim", "advance", "park"]


async def test_a_runner_stops_even_if_its_handler_ignores_the_cancellation(engine: Engine) -> None:
    job_id = await submitted(engine)
    async with running(engine, stubborn) as runner:
        await event(engine, job_id, "claim")
        runner.cancel()
        await asyncio.wait({runner}, timeout=AT_ONCE)
        assert runner.done()


async def test_a_draining_runner_finishes_its_jobs_and_claims_nothing_more(engine: Engine) -> None:
    go_on = asyncio.Event()

    async def handler(job: Job, hand: Hand) -> Outcome:
        await go_on.wait()
        return Done(b"{}")

    first, second = await submitted(engine), await submitted(engine)
    async with running(engine, handler) as runner:
        await event(engine, first, "claim")
        engine.drain()
        go_on.set()
        async with asyncio.timeout(AT_ONCE):
            await runner
    assert [(await engine.get(job_id)).state for job_id in (first, second)] == [State.SUCCEEDED, State.QUEUED]


# a store in trouble -----------------------------------------------------------------------------------------------------


async def test_a_runner_survives_a_store_that_is_away_for_a_moment(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        engine = an_engine(store)
        async with running(engine, returning(Done(b"{}")), concurrency=3) as runner:
            for _ in range(3):
                await sql(postgres_url, KILL)
                await event(engine, await accepted(engine), "succeed")
            assert not runner.done()


async def test_an_outcome_is_reported_as_soon_as_the_store_is_back(postgres_url: str, tmp_path: Path) -> None:
    """The work is done and the lease is held, so the work need not be repeated."""
    go_on = asyncio.Event()

    async def handler(job: Job, hand: Hand) -> Outcome:
        await go_on.wait()
        return Done(b"precious")

    async with Cable(postgres_url, tmp_path) as cable, opened(cable.url, pool_size=2) as store:
        engine = an_engine(store)
        job_id = await submitted(engine)
        async with running(engine, handler):
            await event(engine, job_id, "claim")
            cable.cut()
            go_on.set()
            with pytest.raises(StoreUnavailable):
                await engine.get(job_id)
            with pytest.raises(StoreUnavailable):
                await engine.cancel(
                    seen(job_id)
                )  # queued after the outcome, and groups are committed one at a time: it was refused too
            await cable.mend()
            await event(engine, job_id, "succeed")
        assert (await engine.get(job_id)).result == b"precious"


async def accepted(engine: Engine) -> str:
    """Submit a job, and retry while the store is away."""
    while True:
        with suppress(StoreUnavailable):
            return await submitted(engine)


# ── resting jobs, and other cancels ───────────────────────────────────────────────────────────────────────────────────


async def test_a_resting_job_shows_callers_the_same_status_as_before(store: Store, clock: Clock) -> None:
    engine, handler = an_engine(store, clock), Stuck()
    await engine.submit(a_job(id="1"))
    runner = Runner(engine, "test", (a_queue("q"),), handler, lease_seconds=LONG, resting_stage="resting")
    task = asyncio.create_task(runner.run())
    await until(lambda: handler.started.is_set())
    [held] = handler.jobs
    await engine.advance(Guard.held(held), "building")
    task.cancel()
    await asyncio.wait({task}, timeout=5)
    job = await engine.get(held.id)
    assert (job.state, job.stage, job.topic) == (State.QUEUED, "resting", "running:building")


async def test_a_job_that_continues_after_a_rest_announces_nothing_a_second_time(store: Store, clock: Clock) -> None:
    engine = an_engine(store, clock)
    await engine.submit(a_job(id="1"))
    [first] = await engine.claim((a_queue("q"),), "one", LONG)
    told = await engine.advance(Guard.held(first), "building")
    await engine.park(Guard.held(first), "", stage="resting")
    [second] = await engine.claim((a_queue("q"),), "two", LONG)
    again = await engine.advance(Guard.held(second), "building")
    job = await engine.get(first.id)
    assert (job.topic, job.previous, job.attempt) == ("running:building", "queued", 1)
    assert again.seq > told.seq


async def test_only_one_of_two_changes_from_the_same_stage_moves_the_job(store: Store, clock: Clock) -> None:
    engine = an_engine(store, clock)
    await engine.submit(a_job(id="1"))
    [job] = await engine.claim((a_queue("q"),), "one", LONG)
    await engine.advance(Guard.held(job), "building")
    changes = [
        Change(Guard.seen(job), "advance", stage=stage, seen_stage="building") for stage in ("good", "bad", "ugly")
    ]
    moved = await asyncio.gather(*[store.write(change) for change in changes])
    assert [each is not None for each in moved].count(True) == 1


async def test_a_handler_may_decide_on_the_move_that_ends_its_job(engine: Engine) -> None:
    async def cancelled(job: Job, hand: Hand) -> Outcome:
        return Change(Guard.held(job), "cancel", error="cancelled", message="cleaned up", data=b'{"x":1}')

    await engine.submit(a_job(id="1"))
    moves: list[str] = []
    engine.on_move(lambda moved: moves.append(moved.move))
    async with running(engine, cancelled):
        await until(lambda: "cancel" in moves)
    assert (await engine.get("1")).state is State.CANCELLED


async def test_a_door_may_register_its_own_cancel(engine: Engine) -> None:
    asked: list[tuple[str, str]] = []

    async def cancel(job: Job, message: str) -> Moved:
        asked.append((job.id, message))
        return await engine.change(Change(Guard.seen(job), "cancel", error="gently"))

    engine.cancel_by("job", cancel)
    await engine.submit(a_job(id="1"))
    await engine.cancel(seen("1"), message="please")
    assert asked == [("1", "please")]
    assert (await engine.get("1")).error == "gently"


async def test_a_runner_claims_no_more_jobs_than_it_has_free_handlers(engine: Engine) -> None:
    handler = Stuck()
    for number in range(5):
        await engine.submit(a_job(id=str(number)))
    async with running(engine, handler, concurrency=3):
        await until(lambda: len(handler.jobs) == 3)
        assert [count.running for count in await engine.jobs.count_queues()] == [3]
