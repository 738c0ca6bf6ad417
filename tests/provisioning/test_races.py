"""Races that tests with whole jobs meet only rarely, forced to happen. Each was seen, and lost a job or showed an outcome twice."""

import asyncio
from pathlib import Path
from typing import cast

from chargehand.doors.provisioning.job.journey import Journey
from chargehand.doors.provisioning.job.ledger import JobLedgers, Verdict
from chargehand.doors.provisioning.job.ledger_writer import LedgerWriter
from chargehand.doors.provisioning.job.run import JobRun, JobRuns, RunStep
from chargehand.doors.provisioning.recipe.recipe import Recipe
from chargehand.engine.engine import Engine
from chargehand.engine.job import Job, NewJob
from chargehand.engine.moves import RetryPolicy
from chargehand.engine.queue import Queue
from chargehand.engine.records import Records
from chargehand.engine.store import Store
from tests.api.serving import on_sqlite
from tests.conftest import Clock
from tests.provisioning.guest import Script
from tests.provisioning.lab import RECIPE, SERIAL, lab


class Unhurried(JobRuns):
    """Writes at once, and returns when the test allows it."""

    def __init__(self, store: Store) -> None:
        super().__init__(Records(store))
        self.written = asyncio.Event()
        self.answers = asyncio.Event()

    async def put(self, tenant: str, job_id: str, run: JobRun, expected: int, *, due_at: int | None = None) -> int:
        version = await super().put(tenant, job_id, run, expected, due_at=due_at)
        self.written.set()
        await self.answers.wait()
        return version


async def test_an_owner_stopped_during_a_write_still_knows_the_new_version(store: Store, clock: Clock) -> None:
    engine = Engine(store, policy=RetryPolicy(0, 0), now=clock)
    job_id = engine.new_id()
    await engine.submit(NewJob(job_id, Queue("provision", "t", SERIAL), b"{}"))
    job = cast(Job, await store.get_job(job_id))
    runs, records = Unhurried(store), Records(store)
    journey = Journey(
        engine, runs, JobLedgers(records), LedgerWriter(records), job, SERIAL, Recipe.of(RECIPE), JobRun(), 0
    )
    saving = asyncio.create_task(journey.save(step=RunStep.RESET))
    await runs.written.wait()
    saving.cancel()
    await asyncio.sleep(0)
    runs.answers.set()
    await asyncio.gather(saving, return_exceptions=True)
    assert saving.cancelled()
    assert journey.run.step is RunStep.RESET
    await journey.save(step=RunStep.POLL)  # would raise "another owner" if the version of the last write were not known
    assert (await runs.get("t", job_id) or (JobRun(), 0))[0].step is RunStep.POLL


@on_sqlite
async def test_an_outcome_found_by_two_at_once_is_shown_once(store_url: str, tmp_path: Path) -> None:
    """By the handler of the webhook, and by the owner that it woke."""
    async with lab(store_url, tmp_path, script=Script(silent=True)) as room:
        job_id = await room.waiting()
        assert room.server.provisioning is not None
        outcomes = room.server.provisioning._outcomes
        job = await room.server.engine.get(job_id)
        verdict = Verdict(
            "failed", room.server.engine.now(), "webhook", "workflow.partition", "partition.service", "it failed"
        )
        shown = await asyncio.gather(*(outcomes.show(job, verdict, held=held) for held in (False, True, False, True)))
        assert sorted(shown) == [False, False, False, True]
        assert await room.shown(job_id) == ["queued", "provisioning", "failed"]
