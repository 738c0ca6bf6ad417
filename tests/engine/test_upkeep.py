"""The chores: each is done in time, and none ends because the store was away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from chargehand.config import Config, load_config
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import QueueSettings, SetQueue, State
from chargehand.engine.moves import Note
from chargehand.engine.reads import DeliveryFilter
from chargehand.engine.store import Store
from chargehand.engine.upkeep import EXPIRE_SECONDS, LAPSE_SECONDS, chores, keep_up
from chargehand.errors import StoreFull, StoreUnavailable
from tests.conftest import Clock
from tests.engine.given import LONG, Cable, an_engine, claim_one, event, stop, until
from tests.store.given import a_job, a_report, job_in, opened, sql, submit


@pytest.fixture
def engine(store: Store, clock: Clock) -> Engine:
    return an_engine(store, clock)


def config(**overrides: Any) -> Config:
    return load_config(environ={}, overrides={name.replace("__", "."): value for name, value in overrides.items()})


@asynccontextmanager
async def kept_up(engine: Engine, settings: Config) -> AsyncIterator[None]:
    upkeep = asyncio.create_task(keep_up(engine, settings))
    yield
    await stop(upkeep)


def test_every_chore_has_a_name_and_a_rhythm(engine: Engine) -> None:
    listed = chores(engine, config())
    assert len({chore.name for chore in listed}) == len(listed)
    assert all(chore.every_seconds > 0 for chore in listed)
    assert max(LAPSE_SECONDS, EXPIRE_SECONDS) <= 2


async def test_a_lapsed_lease_is_noticed_within_two_seconds(engine: Engine, clock: Clock, store: Store) -> None:
    again = await job_in(store, State.RUNNING, max_attempts=2)
    last = await job_in(store, State.RUNNING)
    async with kept_up(engine, config()):
        clock.advance(LONG)
        await asyncio.gather(event(engine, again.id, "retry", 2), event(engine, last.id, "fail", 2))


async def test_a_deadline_that_passed_is_noticed_within_two_seconds(engine: Engine, clock: Clock, store: Store) -> None:
    waiting = await job_in(store, State.QUEUED, deadline_seconds=10)
    working = await job_in(store, State.RUNNING, deadline_seconds=10)
    async with kept_up(engine, config()):
        clock.advance(10)
        await asyncio.gather(*[event(engine, job.id, "expire", 2) for job in (waiting, working)])


async def test_old_jobs_are_removed_batch_by_batch(engine: Engine, clock: Clock, store: Store) -> None:
    old = [await job_in(store, State.SUCCEEDED) for _ in range(5)]
    clock.advance(100)
    young = await job_in(store, State.SUCCEEDED)
    async with kept_up(engine, config(retention__finished_seconds=100, retention__batch=2)):
        async with asyncio.timeout(2):
            while await engine.jobs.get_job(old[-1].id) is not None:  # noqa: ASYNC110 - pruning tells nobody
                await asyncio.sleep(0.001)
    assert [await engine.jobs.get_job(job.id) for job in old] == [None] * 5
    assert await engine.jobs.get_job(young.id) is not None


async def test_finished_jobs_can_be_kept_for_ever(engine: Engine, clock: Clock, store: Store) -> None:
    job = await job_in(store, State.SUCCEEDED)
    clock.advance(1e9)
    for chore in chores(engine, config(retention__finished_seconds=0)):
        await chore.do()
    assert await engine.jobs.get_job(job.id) is not None


async def test_deliveries_that_are_too_old_are_given_up(engine: Engine, clock: Clock, store: Store) -> None:
    await submit(store, reports=(a_report(),))
    clock.advance(100)
    for chore in chores(engine, config(webhooks__give_up_seconds=100)):
        await chore.do()
    assert [delivery.state for delivery in await store.list_deliveries(DeliveryFilter())] == ["dead"]


async def test_a_limit_set_elsewhere_is_learned(engine: Engine, store: Store) -> None:
    """Room in a limited queue wakes whoever waits for it, also where nobody set the limit."""
    await store.write(SetQueue(QueueSettings("q", max_running=1)))
    for _ in range(2):
        await engine.submit(a_job())
    job = await claim_one(engine)
    for chore in chores(engine, config()):
        await chore.do()
    waiting = asyncio.create_task(engine.claim(("q",), "waiter", 60, wait_seconds=LONG))
    await until(lambda: engine.wakeups.waiting == 1)
    await engine.succeed(Guard.held(job), b"{}")
    async with asyncio.timeout(2):
        assert len(await waiting) == 1


async def test_a_full_store_does_not_end_the_chores(tmp_path: Path, clock: Clock) -> None:
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
        async with kept_up(engine, config()):
            await asyncio.sleep(0)
            await sql(url, f"DELETE FROM job_events WHERE job_id = '{job.id}' AND seq BETWEEN 3 AND 20")
            await event(engine, job.id, "fail", 3 * LAPSE_SECONDS)


async def test_a_database_that_is_away_does_not_end_the_chores(postgres_url: str, tmp_path: Path, clock: Clock) -> None:
    async with Cable(postgres_url, tmp_path) as cable, opened(cable.url, clock) as store:
        engine = an_engine(store, clock)
        job = await job_in(store, State.RUNNING)
        async with kept_up(engine, config()):
            cable.cut()
            with pytest.raises(StoreUnavailable):
                await engine.lapse_all()
            clock.advance(LONG)
            await cable.mend()
            await event(engine, job.id, "fail", 3 * LAPSE_SECONDS)
