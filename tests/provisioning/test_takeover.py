"""Taking over a job from another owner: resets without an answer, deadlines, an old ledger."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from chargehand.config import load_config
from chargehand.doors.provisioning.job.deadlines import Deadlines
from chargehand.doors.provisioning.job.ledger import JobLedger, JobLedgers, Verdict
from chargehand.doors.provisioning.job.ledger_writer import Amend, LedgerWriter
from chargehand.doors.provisioning.job.reset import was_reset
from chargehand.doors.provisioning.job.run import JobRun, ResetIntent
from chargehand.doors.provisioning.media.fetches import Fetches
from chargehand.doors.provisioning.recipe.recipe import Recipe
from chargehand.doors.provisioning.redfish.facts import Glance
from chargehand.engine.engine import Engine
from chargehand.engine.job import SECOND, NewJob
from chargehand.engine.moves import RetryPolicy
from chargehand.engine.queue import Queue
from chargehand.engine.records import Records
from chargehand.engine.store import Store
from chargehand.errors import StoreUnavailable
from tests.api.serving import on_sqlite, until
from tests.conftest import Clock
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_acts import HANG_SECONDS
from tests.provisioning.bmc_state import System
from tests.provisioning.lab import RECIPE, lab

BEFORE, AFTER = "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"


@pytest.mark.parametrize(
    ("intent", "glance", "happened"),
    [
        # A BMC that shows when the system was last reset.
        (ResetIntent(1, "On", BEFORE, "Once"), Glance("On", AFTER, override="Once"), True),
        (ResetIntent(1, "On", BEFORE, "Once"), Glance("On", BEFORE, override="Once"), False),
        (ResetIntent(1, "On", BEFORE, "Disabled"), Glance("On", BEFORE, override="Disabled"), False),
        # A BMC that does not show it, or late: a boot uses up the override.
        (ResetIntent(1, "On", "", "Once"), Glance("On", "", override="Disabled"), True),
        (ResetIntent(1, "On", BEFORE, "Once"), Glance("On", BEFORE, override="Disabled"), True),
        (ResetIntent(1, "On", "", "Once"), Glance("On", "", override="Once"), False),
        # A BMC with permanent overrides, or that shows none: nothing is known.
        (ResetIntent(1, "On", "", "Continuous"), Glance("On", "", override="Continuous"), None),
        (ResetIntent(1, "On"), Glance("On"), None),
        (ResetIntent(1, "Unknown"), Glance("On"), None),
        # The power.
        (ResetIntent(1, "Off"), Glance("On"), True),
        (ResetIntent(1, "Off"), Glance("PoweringOn"), True),
        (ResetIntent(1, "On"), Glance("Resetting"), True),
        (ResetIntent(1, "Off"), Glance("Off"), False),
        # The system was switched off and not on again: the reset can safely be sent again.
        (ResetIntent(1, "On", BEFORE), Glance("Off", AFTER), False),
    ],
)
def test_a_glance_at_the_machine_shows_a_reset_or_none_or_leaves_it_unknown(
    intent: ResetIntent, glance: Glance, happened: bool | None
) -> None:
    assert was_reset(intent, glance) is happened


def deadlines(**settings: float) -> Deadlines:
    overrides = {f"provisioning.{name}_seconds": value for name, value in settings.items()}
    config = load_config(environ={}, overrides=overrides)
    return Deadlines(config.provisioning)


RESET = ResetIntent(100 * SECOND, "On", BEFORE)


@pytest.mark.parametrize(
    ("ledger", "taken_at", "at", "reason"),
    [
        # The owner was there all the time: each deadline counts from its own event.
        (JobLedger(), 90, 100 + 20, "never_fetched"),
        (JobLedger(heard_at=150 * SECOND), 90, 150 + 10, "agent_silent"),
        (JobLedger(heard_at=995 * SECOND), 90, 100 + 900, "no_report"),
        # The job had no owner until `taken_at`: each deadline counts from then.
        (JobLedger(), 700, 700 + 20, "never_fetched"),
        (JobLedger(heard_at=150 * SECOND), 700, 700 + 10, "agent_silent"),
        (JobLedger(heard_at=150 * SECOND), 5000, 5000 + 10, "no_report"),
    ],
)
def test_deadlines_begin_again_after_a_time_in_which_no_node_was_up(
    ledger: JobLedger, taken_at: int, at: int, reason: str
) -> None:
    run = JobRun(reset=RESET, booted_at=100 * SECOND, taken_at=taken_at * SECOND)
    told = deadlines(fetch=20, silence=10, install=900).for_report(run, Recipe.of(RECIPE), ledger)
    assert (told.at / SECOND, told.reason) == (at, reason)


async def test_a_late_owner_does_not_erase_a_verdict(store: Store) -> None:
    ledgers = JobLedgers(Records(store))
    verdict = Verdict("succeeded", 1, "webhook")
    await ledgers.begin("t", "j", 1)
    await LedgerWriter(Records(store)).amend("t", "j", lambda ledger: ledger.with_verdict(verdict))
    await ledgers.begin("t", "j", 1)  # by an owner that was replaced meanwhile
    assert await ledgers.get("t", "j") == JobLedger(1, verdict)
    await ledgers.begin("t", "j", 2)  # a retry
    assert await ledgers.get("t", "j") == JobLedger(2)


async def test_a_fetch_before_a_reset_is_not_taken_for_the_boot_after_it(store: Store, clock: Clock) -> None:
    engine = Engine(store, policy=RetryPolicy(0, 0), now=clock)
    job_id = engine.new_id()
    await engine.submit(NewJob(job_id, Queue("provision", "t", "SN-1"), b"{}"))
    ledgers = JobLedgers(Records(store))
    await ledgers.begin("t", job_id, 1)
    fetches = Fetches(engine, LedgerWriter(Records(store)))
    fetched_at = engine.now()
    fetches.heard(job_id, "maintenance.iso", 0, 100, False)
    clock.advance(1)  # it is written later
    asked_at = engine.now()
    await fetches.write()
    ledger = await ledgers.get("t", job_id)
    assert ledger is not None
    assert ledger.shows_life_since(fetched_at)
    assert not ledger.shows_life_since(asked_at)


class AwayOnce(LedgerWriter):
    """A writer whose store is away at the first write."""

    away = True

    async def amend(self, tenant: str, job_id: str, amend: Amend) -> tuple[JobLedger, JobLedger] | None:
        if self.away:
            self.away = False
            raise StoreUnavailable("the database is away")
        return await super().amend(tenant, job_id, amend)


async def test_a_fetch_while_the_store_is_away_is_written_later(store: Store, clock: Clock) -> None:
    engine = Engine(store, policy=RetryPolicy(0, 0), now=clock)
    job_id = engine.new_id()
    await engine.submit(NewJob(job_id, Queue("provision", "t", "SN-1"), b"{}"))
    ledgers = JobLedgers(Records(store))
    await ledgers.begin("t", job_id, 1)
    fetches = Fetches(engine, AwayOnce(Records(store)))
    fetched_at = engine.now()
    fetches.heard(job_id, "maintenance.iso", 0, 100, True)
    with pytest.raises(StoreUnavailable):
        await fetches.write()
    clock.advance(1)
    fetches.heard(job_id, "maintenance.iso", 50, 10, False)
    await fetches.write()
    ledger = await ledgers.get("t", job_id)
    assert ledger is not None
    [fetch] = ledger.fetches
    assert (fetch.last_at, fetch.whole) == (fetched_at + SECOND, True)


class SlowBmc(FakeBmc):
    """Completes an insert even if its caller has disconnected, as real BMCs do."""

    async def _insert(self, system: System, name: str, body: dict[str, Any]) -> web.Response:
        async def late() -> None:
            await asyncio.sleep(0.2)
            system.drives[name].image = body["Image"]

        self.state.count("asked")
        task = asyncio.create_task(late())
        self._running.add(task)
        await asyncio.sleep(HANG_SECONDS)
        raise AssertionError("nobody waits so long")


@on_sqlite
async def test_a_medium_that_the_bmc_inserts_after_the_job_was_cancelled_is_ejected(
    store_url: str, tmp_path: Path
) -> None:
    settings = {"provisioning.redfish_timeout_seconds": 10, "provisioning.poll_seconds": 0.1}
    async with lab(store_url, tmp_path, settings=settings, bmc_class=SlowBmc) as room:
        await room.register()
        job_id = await room.submit()
        await until(lambda: room.bmc.count("asked"))
        assert (await room.api.post(f"/api/v1/jobs/{job_id}/cancel")).status == 200
        job = await room.reaches(job_id, "complete")
        assert job["outcome"] == "cancelled"
        assert room.bmc.count("eject") == 1
        assert not any(drive.image for drive in room.bmc.system.drives.values())
