"""Chores: how they are run and reported, and that the engine's own run in time, also after the store was away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from chargehand.engine.chores import (
    EXPIRE_SECONDS,
    LAPSE_SECONDS,
    LATE_SECONDS,
    Chore,
    ChoreReport,
    Chores,
    ChoreState,
    engine_chores,
)
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import QueueSettings, SetQueue, State
from chargehand.engine.moves import Note
from chargehand.engine.reads import DeliveryFilter
from chargehand.engine.store import Store
from chargehand.errors import StoreFull, StoreUnavailable
from tests.conftest import Clock
from tests.engine.given import LONG, Cable, an_engine, claim_one, config_with, event, kept_up, stop, until
from tests.store.given import a_job, a_queue, a_report, job_in, opened, sql, submit

AWAY = StoreUnavailable("the database is away")


@pytest.fixture
def engine(store: Store, clock: Clock) -> Engine:
    return an_engine(store, clock)


# how they are run -------------------------------------------------------------------------------------------------------


class Stepped:
    """A chore whose turns and pauses end when the test allows it, with its own clock."""

    def __init__(self, name: str = "stepped") -> None:
        self.chore = Chore(name, 10, self._do, self._pause)
        self.now = 1000.0
        self.turns = 0
        self.at_once = 0
        self._outcomes = asyncio.Queue[Exception | None]()
        self._pausing = asyncio.Event()
        self._go_on = asyncio.Event()

    async def _do(self) -> None:
        self.turns += 1
        self.at_once += 1
        outcome = await self._outcomes.get()
        self.at_once -= 1
        if outcome is not None:
            raise outcome

    async def _pause(self, seconds: float) -> None:
        assert seconds == 10
        self._go_on.clear()
        self._pausing.set()
        await self._go_on.wait()

    async def turn(self, outcome: Exception | None = None, seconds: float = 0.0) -> None:
        """End the next turn after so many seconds, with this outcome."""
        begun = self.turns + (0 if self.at_once else 1)
        self._go_on.set()
        await until(lambda: self.turns == begun)
        self.now += seconds
        self._pausing.clear()
        self._outcomes.put_nowait(outcome)
        await self._pausing.wait()


@asynccontextmanager
async def running(*stepped: Stepped, seen: list[tuple[str, float, bool]] | None = None) -> AsyncIterator[Chores]:
    observed = [] if seen is None else seen
    chores = Chores(
        [each.chore for each in stepped],
        lambda name, seconds, succeeded: observed.append((name, seconds, succeeded)),
        lambda: stepped[0].now,
    )
    task = asyncio.create_task(chores.run())
    try:
        yield chores
    finally:
        await stop(task)


async def test_each_turn_is_timed_and_reported() -> None:
    chore, seen = Stepped(), list[tuple[str, float, bool]]()
    async with running(chore, seen=seen) as chores:
        assert chores.reports() == [ChoreReport("stepped", 10, ChoreState.OK, "", 0, None, None)]
        await chore.turn(seconds=3)
        chore.now += 4
        assert chores.reports() == [ChoreReport("stepped", 10, ChoreState.OK, "", 0, 3, 4)]
        await chore.turn(AWAY, seconds=2)
        await chore.turn(AWAY)
        assert chores.reports() == [ChoreReport("stepped", 10, ChoreState.FAILING, "the database is away", 2, 0, 6)]
        await chore.turn()
        assert chores.reports() == [ChoreReport("stepped", 10, ChoreState.OK, "", 0, 0, 0)]
    assert seen == [("stepped", 3, True), ("stepped", 2, False), ("stepped", 0, False), ("stepped", 0, True)]


async def test_a_chore_begins_no_turn_while_one_runs_and_holds_up_no_other() -> None:
    slow, quick = Stepped("slow"), Stepped("quick")
    async with running(slow, quick) as chores:
        await until(lambda: slow.at_once == 1)
        for _ in range(3):
            await quick.turn()
        assert (slow.turns, slow.at_once) == (1, 1)
        slow.now += 10 + LATE_SECONDS
        assert [report.state for report in chores.reports()] == ["ok", "ok"]
        slow.now += 1
        await quick.turn()
        assert [report.state for report in chores.reports()] == ["late", "ok"]
        await slow.turn()
        assert [report.state for report in chores.reports()] == ["ok", "ok"]


async def test_an_error_of_the_store_is_logged_once_and_the_chore_is_retried() -> None:
    chore = Stepped()
    with capture_logs() as logs:
        async with running(chore):
            for outcome in (AWAY, AWAY, StoreFull("the disk is full"), None, None):
                await chore.turn(outcome)
    assert [(line["log_level"], line.get("error"), line.get("failures")) for line in logs] == [
        ("warning", "the database is away", None),
        ("warning", "the disk is full", None),
        ("info", None, 3),
    ]


async def test_an_unexpected_error_is_logged_with_its_traceback_and_stops_no_chore() -> None:
    broken, whole = Stepped("broken"), Stepped("whole")
    with capture_logs() as logs:
        async with running(broken, whole) as chores:
            for _ in range(3):
                await broken.turn(KeyError("a secret of somebody"))
            await whole.turn()
            error = "unexpected KeyError, the log has its traceback"
            assert [(each.state, each.error, each.failures) for each in chores.reports()] == [
                ("failing", error, 3),
                ("ok", "", 0),
            ]
    assert [(line["log_level"], line["chore"], line["exc_info"]) for line in logs] == [("error", "broken", True)]


# the engine's own -------------------------------------------------------------------------------------------------------


def test_lapses_and_deadlines_are_checked_often_enough() -> None:
    assert max(LAPSE_SECONDS, EXPIRE_SECONDS) <= 2


async def test_a_lapsed_lease_is_noticed_within_two_seconds(engine: Engine, clock: Clock, store: Store) -> None:
    again = await job_in(store, State.RUNNING, max_attempts=2)
    last = await job_in(store, State.RUNNING)
    async with kept_up(engine):
        clock.advance(LONG)
        await asyncio.gather(event(engine, again.id, "retry", 2), event(engine, last.id, "fail", 2))


async def test_a_deadline_that_passed_is_noticed_within_two_seconds(engine: Engine, clock: Clock, store: Store) -> None:
    waiting = await job_in(store, State.QUEUED, deadline_seconds=10)
    working = await job_in(store, State.RUNNING, deadline_seconds=10)
    async with kept_up(engine):
        clock.advance(10)
        await asyncio.gather(*[event(engine, job.id, "expire", 2) for job in (waiting, working)])


async def test_old_jobs_are_removed_batch_by_batch(engine: Engine, clock: Clock, store: Store) -> None:
    old = [await job_in(store, State.SUCCEEDED) for _ in range(5)]
    clock.advance(100)
    young = await job_in(store, State.SUCCEEDED)
    async with kept_up(engine, retention__finished_seconds=100, retention__batch=2):
        async with asyncio.timeout(2):
            while await engine.jobs.get_job(old[-1].id) is not None:  # noqa: ASYNC110 - there is no event of pruning
                await asyncio.sleep(0.001)
    assert [await engine.jobs.get_job(job.id) for job in old] == [None] * 5
    assert await engine.jobs.get_job(young.id) is not None


async def test_finished_jobs_can_be_kept_for_ever(engine: Engine, clock: Clock, store: Store) -> None:
    job = await job_in(store, State.SUCCEEDED)
    clock.advance(1e9)
    for chore in engine_chores(engine, config_with(retention__finished_seconds=0)):
        await chore.do()
    assert await engine.jobs.get_job(job.id) is not None


async def test_deliveries_that_are_too_old_are_given_up(engine: Engine, clock: Clock, store: Store) -> None:
    await submit(store, reports=(a_report(),))
    clock.advance(100)
    for chore in engine_chores(engine, config_with(webhooks__give_up_seconds=100)):
        await chore.do()
    assert [delivery.state for delivery in await store.list_deliveries(DeliveryFilter())] == ["dead"]


async def test_a_queue_limit_set_at_another_node_is_read(engine: Engine, store: Store) -> None:
    """Room in a limited queue wakes a waiting claim, also at a node where the limit was not set."""
    await store.write(SetQueue(QueueSettings(a_queue("q"), max_running=1)))
    for _ in range(2):
        await engine.submit(a_job())
    job = await claim_one(engine)
    for chore in engine_chores(engine, config_with()):
        await chore.do()
    waiting = asyncio.create_task(engine.claim((a_queue("q"),), "waiter", 60, wait_seconds=LONG))
    await until(lambda: engine.wakeups.waiting == 1)
    await engine.succeed(Guard.held(job), b"{}")
    async with asyncio.timeout(2):
        assert len(await waiting) == 1


async def test_a_full_store_does_not_stop_the_chores(tmp_path: Path, clock: Clock) -> None:
    url = f"sqlite:///{tmp_path}/chargehand.db"
    async with opened(url, clock, max_bytes=400_000) as store:
        engine = an_engine(store, clock)
        job = await job_in(store, State.RUNNING)
        for size in (10_000, 100):
            with suppress(StoreFull):
                while True:
                    await store.write(Note(Guard.seen(job), message="x" * size))
        clock.advance(LONG)
        with pytest.raises(StoreFull):
            await engine.lapse_all()
        async with kept_up(engine):
            await asyncio.sleep(0)
            await sql(url, f"DELETE FROM job_events WHERE job_id = '{job.id}' AND seq BETWEEN 3 AND 20")
            await event(engine, job.id, "fail", 3 * LAPSE_SECONDS)


async def test_a_database_that_is_away_does_not_stop_the_chores(
    postgres_url: str, tmp_path: Path, clock: Clock
) -> None:
    async with Cable(postgres_url, tmp_path) as cable, opened(cable.url, clock) as store:
        engine = an_engine(store, clock)
        job = await job_in(store, State.RUNNING)
        async with kept_up(engine):
            cable.cut()
            with pytest.raises(StoreUnavailable):
                await engine.lapse_all()
            clock.advance(LONG)
            await cable.mend()
            await event(engine, job.id, "fail", 3 * LAPSE_SECONDS)
