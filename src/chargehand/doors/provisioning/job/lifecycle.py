"""The whole life of a job in one function: boot, wait, show the outcome, clean up. Whoever claims the job goes on where the run says.

    queued -> provisioning -> succeeded | failed -> complete

No owner resets a machine again that an owner before it has reset: a job that is taken over after the reset waits, or cleans up.
"""

from dataclasses import dataclass

import msgspec

from chargehand.config import ProvisioningConfig
from chargehand.doors.provisioning.job.assignment import Assignments
from chargehand.doors.provisioning.job.boot import BootSteps
from chargehand.doors.provisioning.job.cleanup import CleanupSteps
from chargehand.doors.provisioning.job.journey import Journey, Overtaken, StepFailed
from chargehand.doors.provisioning.job.ledger import JobLedgers, Verdict
from chargehand.doors.provisioning.job.ledger_writer import LedgerWriter
from chargehand.doors.provisioning.job.orders import Orders, metadata_of, order_of
from chargehand.doors.provisioning.job.outcomes import Outcomes
from chargehand.doors.provisioning.job.position import Stage, position_of
from chargehand.doors.provisioning.job.run import CLEANUP, KEYS, JobRun, JobRuns, RunStep
from chargehand.doors.provisioning.job.waiting import ReportWait
from chargehand.doors.provisioning.metrics import ProvisioningMetrics
from chargehand.doors.provisioning.recipe.recipe import Recipe
from chargehand.doors.provisioning.refusals import ProvisioningRefused
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import RESTING, SECOND, Job
from chargehand.engine.moves import Broke, Change, Lapsed, give_up
from chargehand.engine.runner import Hand
from chargehand.errors import Conflict, StoreError
from chargehand.observability.logs import get_logger

PAUSE_SECONDS = 10.0  # after an error of our own, such as a store that is away or a wrong key

log = get_logger(__name__)


@dataclass(eq=False, repr=False)
class Lifecycle:
    _engine: Engine
    _settings: ProvisioningConfig
    _orders: Orders
    _runs: JobRuns
    _ledgers: JobLedgers
    _writer: LedgerWriter
    _assignments: Assignments
    _boot: BootSteps
    _waiting: ReportWait
    _cleanup: CleanupSteps
    _outcomes: Outcomes
    _metrics: ProvisioningMetrics

    async def work(self, job: Job, hand: Hand) -> Change:
        """Take a job that the runner has claimed to its last move."""
        journey = await self._begin(job)
        verdict = await journey.verdict() or await self._reach_verdict(journey)
        await self._outcomes.show(job, verdict, held=True)
        await self._clean_up(journey, verdict)
        await journey.close(self._engine.now() + int(self._settings.media_keep_seconds * SECOND))
        return self._outcomes.end(journey, verdict)

    # beginning ----------------------------------------------------------------------------------------------------------

    async def _begin(self, job: Job) -> Journey:
        serial = metadata_of(job).server_serial
        recipe = await self._recipe(job)
        stored, version = await self._runs.get(job.tenant, job.id) or (None, 0)
        run = position_of(job, stored).run
        now = self._engine.now()
        if run is None:  # a first start, or another one that an operator asked for: nothing of the last one counts
            generation = stored.generation + 1 if stored else 1
            spot = (
                stored.spot if stored else None
            )  # retention removes its records, also if this start never finds the machine
            run = JobRun(generation=generation, began_at=now, taken_at=now, lease=job.lease, spot=spot)
        else:
            began_at = run.began_at if run.marks else now  # a run without a step still has its whole budget
            run = msgspec.structs.replace(run, began_at=began_at, taken_at=now, lease=job.lease)
        journey = Journey(self._engine, self._runs, self._ledgers, self._writer, job, serial, recipe, run, version)
        await journey.save()  # at once: from here on the owner before us can write nothing, and so do nothing
        await self._ledgers.begin(job.tenant, job.id, run.generation)
        await journey.require()  # an owner that was away must not point the machine's reports at an old job again
        await self._assignments.point_at(job.tenant, serial, job.id)
        return journey

    async def _recipe(self, job: Job) -> Recipe:
        """Return the recipe. Without the key that encrypted it the job can only end, and the public part is enough for that."""
        try:
            return self._orders.open(job)
        except ProvisioningRefused:
            if position_of(job, ledger=await self._ledgers.get(job.tenant, job.id)).verdict is None:
                raise
            return Recipe.of(order_of(job).recipe)

    # the verdict --------------------------------------------------------------------------------------------------------

    async def _reach_verdict(self, journey: Journey) -> Verdict:
        await self._show_provisioning(journey)
        if journey.run.step in CLEANUP:  # the owner before us died while it wrote a verdict
            return await journey.judge("failed", key=Key.WEBHOOK_WAIT, error="the outcome was lost in a crash")
        try:
            await journey.unless_judged(self._boot.go(journey))
            return await self._waiting.wait(journey)
        except Overtaken as overtaken:
            return overtaken.verdict
        except StepFailed as failure:
            return await journey.fail(failure.key, failure.message, failure.reason)
        except (StoreError, Conflict):
            raise
        except Exception as error:
            step = journey.run.step
            log.exception("a step broke", job_id=journey.job.id, server_serial=journey.serial, step=str(step))
            return await journey.fail(KEYS[step], f"an internal error: {type(error).__name__}", "internal")

    async def _show_provisioning(self, journey: Journey) -> None:
        fresh = journey.run.step is RunStep.BUILD and not journey.run.marks
        message = "provisioning begins" if fresh else f"taken up again at {journey.run.step}"
        await self._engine.advance(Guard.held(journey.job), Stage.PROVISIONING, message=message)
        if fresh:
            self._metrics.count_transition("queued", "provisioning")

    # the end ------------------------------------------------------------------------------------------------------------

    async def _clean_up(self, journey: Journey, verdict: Verdict) -> None:
        try:
            await self._cleanup.run(journey, verdict)
        except (StoreError, Conflict):
            raise
        except Exception as error:
            log.exception("cleaning up broke", job_id=journey.job.id, server_serial=journey.serial)
            await journey.warn(Key.CLEANUP_UNMOUNT, f"cleaning up broke: {type(error).__name__}")
        await self._cleanup.tidy(journey)

    async def put_back(self, job: Job, outcome: Broke | Lapsed) -> Change:
        """Requeue a job whose owner died or lost the store: only a verdict ends a job."""
        if isinstance(outcome, Broke) and outcome.final:
            return give_up(job, outcome, None)  # the store refuses the job's last move, and would do so for ever
        lapsed = isinstance(outcome, Lapsed)
        gone = f"{job.lease_owner} is gone; another takes over"
        return Change(
            Guard.held(job),
            "park",
            RESTING,
            delay_seconds=0.0 if lapsed else PAUSE_SECONDS,
            lease_until=job.lease_until if lapsed else None,
            level="warn",
            step="lease" if lapsed else "",
            message=gone if isinstance(outcome, Lapsed) else f"put back: {outcome.error}",
        )
