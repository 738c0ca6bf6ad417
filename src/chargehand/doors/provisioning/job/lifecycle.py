"""The whole life of a job in one function: boot, wait, show the outcome, clean up. Whoever gets the job goes on where the run says.

    queued -> provisioning -> succeeded | failed -> complete

A machine is never reset again by itself once it was: a job that is taken over after the reset waits, or cleans up.
"""

import asyncio
import contextlib

import msgspec

from chargehand.config import ProvisioningConfig
from chargehand.doors.provisioning.job.boot import BootSteps
from chargehand.doors.provisioning.job.cleanup import CleanupSteps
from chargehand.doors.provisioning.job.journey import Journey, Overtaken, StepFailed
from chargehand.doors.provisioning.job.ledger import JobLedgers, Verdict
from chargehand.doors.provisioning.job.orders import Orders, metadata_of, order_of
from chargehand.doors.provisioning.job.run import CLEANUP, KEYS, JobRun, JobRuns, RunStep
from chargehand.doors.provisioning.job.waiting import ReportWait
from chargehand.doors.provisioning.metrics import ProvisioningMetrics
from chargehand.doors.provisioning.names import Stage
from chargehand.doors.provisioning.recipe.recipe import Recipe
from chargehand.doors.provisioning.refusals import ProvisioningRefused
from chargehand.doors.provisioning.servers import Servers
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import RESTING, SECOND, Job, State, topic_of
from chargehand.engine.moves import Broke, Change, Lapsed, Moved, give_up
from chargehand.engine.runner import Cancelled, Done, Hand, Outcome
from chargehand.errors import Conflict, StoreError
from chargehand.observability.logs import get_logger

STAGES = {"succeeded": Stage.SUCCEEDED, "failed": Stage.FAILED, "cancelled": Stage.FAILED}
PAUSE_SECONDS = 10.0  # after trouble of our own: the store away, a key that does not fit
CANCEL_LOOKS = 40
CANCEL_LOOK_SECONDS = 0.05

log = get_logger(__name__)


class Lifecycle:
    def __init__(
        self,
        engine: Engine,
        settings: ProvisioningConfig,
        orders: Orders,
        runs: JobRuns,
        ledgers: JobLedgers,
        servers: Servers,
        boot: BootSteps,
        waiting: ReportWait,
        cleanup: CleanupSteps,
        metrics: ProvisioningMetrics,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._orders = orders
        self._runs = runs
        self._ledgers = ledgers
        self._servers = servers
        self._boot = boot
        self._waiting = waiting
        self._cleanup = cleanup
        self._metrics = metrics

    async def work(self, job: Job, hand: Hand) -> Outcome:
        """What the runner calls for a job that it holds."""
        journey = await self._begin(job)
        verdict = (await journey.ledger()).verdict
        if verdict is None:
            await self._show_provisioning(journey)
            verdict = await self._reach_verdict(journey)
        await self.show(job, verdict, held=True)
        try:
            await self._cleanup.run(journey, verdict)
        except (StoreError, Conflict):
            raise
        except Exception as error:
            log.exception("cleaning up broke", job_id=job.id, server_serial=journey.serial)
            await journey.warn(Key.CLEANUP_UNMOUNT, f"cleaning up broke: {type(error).__name__}")
        return await self._finish(journey, verdict)

    # beginning ----------------------------------------------------------------------------------------------------------

    async def _begin(self, job: Job) -> Journey:
        serial = metadata_of(job).server_serial
        recipe = await self._recipe(job)
        found = await self._runs.get(job.tenant, job.id)
        now = self._engine.now()
        if found is None or (found[0].step is RunStep.DONE and job.topic == "queued"):
            # A first start, or another one that an operator asked for: nothing of the last one counts. A job of which more
            # was shown since it was queued is no new start, even if its run is over: its end was not written yet.
            generation, expected = (found[0].generation + 1, found[1]) if found else (1, 0)
            run = JobRun(generation=generation, began_at=now, taken_at=now, lease=job.lease)
        else:
            run, expected = found
            began_at = run.began_at if run.marks else now  # the budget of what was never begun is whole
            run = msgspec.structs.replace(run, began_at=began_at, taken_at=now, lease=job.lease)
        # Written at once: from here on the owner before us can write nothing, and so do nothing.
        version = await self._runs.put(job.tenant, job.id, run, expected)
        await self._ledgers.begin(job.tenant, job.id, run.generation)
        journey = Journey(self._engine, self._runs, self._ledgers, job, serial, recipe, run, version)
        await journey.require()  # an owner that was away must not turn the machine's reports back to an old job
        await self._servers.point_at(job.tenant, serial, job.id)
        return journey

    async def _recipe(self, job: Job) -> Recipe:
        """Without the key that sealed it a job can do nothing more, but end: for that, what may be shown of it will do."""
        try:
            return self._orders.open(job)
        except ProvisioningRefused:
            ledger = None if job.topic == "queued" else await self._ledgers.get(job.tenant, job.id)
            if ledger is None or ledger.verdict is None:
                raise
            return Recipe.of(order_of(job).recipe)

    async def _show_provisioning(self, journey: Journey) -> None:
        fresh = journey.run.step is RunStep.BUILD and not journey.run.marks
        message = "provisioning begins" if fresh else f"taken up again at {journey.run.step}"
        await self._engine.advance(Guard.held(journey.job), Stage.PROVISIONING, message=message)
        if fresh:
            self._metrics.count_transition("queued", "provisioning")

    # the verdict --------------------------------------------------------------------------------------------------------

    async def _reach_verdict(self, journey: Journey) -> Verdict:
        if journey.run.step in CLEANUP:  # a verdict was being written when the owner before us died
            return await journey.judge("failed", key=str(Key.WEBHOOK_WAIT), error="the outcome was lost in a crash")
        try:
            await journey.unless_judged(self._boot.go(journey))
            return await self._waiting.wait(journey)
        except Overtaken:
            verdict = (await journey.ledger()).verdict
            assert verdict is not None  # noqa: S101 - that is what Overtaken says
            return verdict
        except StepFailed as failure:
            return await self._failed(journey, str(failure.key), failure.message, failure.reason)
        except (StoreError, Conflict):
            raise
        except Exception as error:
            key = str(KEYS[journey.run.step])
            log.exception(
                "a step broke", job_id=journey.job.id, server_serial=journey.serial, step=str(journey.run.step)
            )
            return await self._failed(journey, key, f"an internal error: {type(error).__name__}", "internal")

    async def _failed(self, journey: Journey, key: str, message: str, reason: str) -> Verdict:
        if journey.run.marks:
            await journey.leave("", ok=False, to=journey.run.step)
        return await journey.judge("failed", key=key, error=message, reason=reason)

    async def show(self, job: Job, verdict: Verdict, *, held: bool) -> bool:
        """Callers see the outcome: at once, whoever found it. False: it was shown already, or cannot be from here."""
        stage = STAGES[verdict.outcome]
        # Who does not hold the job changes it in the stage PROVISIONING alone, and the write sees to that: no need to look again.
        seen = await self._engine.get(job.id) if held else job
        if seen.stage == stage:
            return False
        failed = verdict.outcome == "failed"
        message = {
            "succeeded": "the machine is done",
            "failed": f"failed at {verdict.failed_step}: {verdict.error}",
            "cancelled": verdict.error,
        }[verdict.outcome]
        if known := seen.topic == topic_of(State.RUNNING, stage):  # its owner is gone since, and we go on for it
            message = "cleaning up goes on"
        change = Change(
            Guard.held(job) if held else Guard.seen(job),
            "advance",
            stage,
            error=verdict.error or None if verdict.outcome != "succeeded" else None,
            failed_step=verdict.failed_step,
            level="error" if failed and not known else "info",
            step=verdict.failed_step or "",
            message=message,
            data=None if known else _verdict_data(verdict),
            seen_stage=seen.stage if held else Stage.PROVISIONING,
        )
        try:
            await self._engine.change(change)
        except Conflict:
            if held and (await self._engine.get(job.id)).stage != stage:
                raise
            return False
        if not known:
            self._metrics.count_transition("provisioning", stage)
        return True

    # the end ------------------------------------------------------------------------------------------------------------

    async def _finish(self, journey: Journey, verdict: Verdict) -> Outcome:
        now, job, run = self._engine.now(), journey.job, journey.run
        await self._cleanup.tidy(journey)
        await journey.close(now + int(self._settings.media_keep_seconds * SECOND))
        metrics = self._metrics
        metrics.cleanup_seconds.at()((now - (run.cleanup_at or now)) / SECOND)
        metrics.job_seconds.at(verdict.outcome)((now - job.created_at) / SECOND)
        metrics.count_transition(STAGES[verdict.outcome], "complete")
        message = f"complete: {verdict.outcome}" + (f" with {len(run.warnings)} warnings" if run.warnings else "")
        data = _verdict_data(verdict)
        log.info(
            "a job is complete",
            job_id=job.id,
            server_serial=journey.serial,
            outcome=verdict.outcome,
            failed_step=verdict.failed_step,
            duration_ms=(now - job.created_at) // 1000,
        )
        if verdict.outcome == "succeeded":
            return Done(msgspec.json.encode({"outcome": "succeeded", "warnings": run.warnings}), message, data)
        if verdict.outcome == "cancelled":
            return Cancelled(message, data)
        known = verdict.failed_step in set(
            Key
        )  # a machine may name units as it likes, and each would be a series for ever
        metrics.failures.labels(verdict.failed_step if known else "workflow.other").inc()
        return Broke(verdict.error or "failed", verdict.failed_step, final=True, data=data)

    # what the engine asks -------------------------------------------------------------------------------------------------

    async def judge(self, job: Job, outcome: Broke | Lapsed) -> Change:
        """Only a verdict ends a job. An owner that died, or lost the store, leaves it to the next one."""
        if isinstance(outcome, Broke) and outcome.final:
            change = give_up(job, outcome, None)
            return msgspec.structs.replace(change, message=f"complete: failed at {outcome.failed_step}")
        lapsed = isinstance(outcome, Lapsed)
        gone = f"{job.lease_owner} is gone; another takes over"
        message = gone if isinstance(outcome, Lapsed) else f"put back: {outcome.error}"
        return Change(
            Guard.held(job),
            "park",
            RESTING,
            delay_seconds=0.0 if lapsed else PAUSE_SECONDS,
            lease_until=job.lease_until if lapsed else None,
            level="warn",
            step="lease" if lapsed else "",
            message=message,
        )

    async def cancel(self, job: Job, message: str) -> Moved:
        """A job that has begun is cleaned up before it ends; one that has not ends at once."""
        verdict = Verdict("cancelled", self._engine.now(), message, None, "", message)
        for _ in range(CANCEL_LOOKS):
            if job.state is State.CANCELLED:
                return await self._moved(job.id)  # whoever asks again, for an answer was lost, has what was wanted
            if job.finished:
                raise Conflict(f"job {job.id} is complete; there is nothing to cancel")
            if job.topic != "queued":
                return await self._stop(job, verdict)
            if job.state is State.QUEUED:
                plain = Change(Guard.held(job), "cancel", error="cancelled", level="warn", message=message)
                with contextlib.suppress(Conflict):  # somebody takes it this very moment
                    return await self._engine.change(plain)
            await asyncio.sleep(CANCEL_LOOK_SECONDS)
            job = await self._engine.get(job.id)
        raise Conflict(f"job {job.id} is just being taken up; ask again")

    async def _stop(self, job: Job, verdict: Verdict) -> Moved:
        amended = await self._ledgers.amend(job.tenant, job.id, lambda ledger: ledger.with_verdict(verdict))
        known = amended[0].verdict if amended is not None else None
        if known is not None and known.outcome != "cancelled":
            raise Conflict(f"job {job.id} has its outcome already ({known.outcome}) and is being cleaned up")
        await self.show(job, verdict, held=False)
        return await self._moved(job.id)

    async def _moved(self, job_id: str) -> Moved:
        job = await self._engine.get(job_id)
        return Moved(
            job.id, job.tenant, job.kind, job.queue, "advance", job.state, job.stage, job.attempt, job.seq, job.run_at,
            job.updated_at, job.created_at,
        )  # fmt: skip


def _verdict_data(verdict: Verdict) -> bytes:
    return msgspec.json.encode({"kind": "outcome", **msgspec.to_builtins(verdict)})
