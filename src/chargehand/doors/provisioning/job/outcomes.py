"""How a job ends. The outcome is stored once, by whoever knows it first; callers are shown it at once; after cleaning up it becomes the
job's last move.
"""

from typing import Any

import msgspec

from chargehand.doors.provisioning.job.journey import Journey
from chargehand.doors.provisioning.job.ledger import Outcome, Verdict
from chargehand.doors.provisioning.job.position import STAGE_OF, Stage
from chargehand.doors.provisioning.metrics import ProvisioningMetrics
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import SECOND, Job, State, topic_of
from chargehand.engine.moves import Change
from chargehand.errors import Conflict
from chargehand.observability.logs import get_logger

MOVES: dict[Outcome, str] = {"succeeded": "succeed", "failed": "fail", "cancelled": "cancel"}
LEVELS: dict[Outcome, str] = {"succeeded": "info", "failed": "error", "cancelled": "warn"}

log = get_logger(__name__)


class Outcomes:
    def __init__(self, engine: Engine, metrics: ProvisioningMetrics) -> None:
        self._engine = engine
        self._metrics = metrics

    async def show(self, job: Job, verdict: Verdict, *, held: bool) -> bool:
        """Move the job to the stage of its outcome. `held`: the caller owns the job. False: it was moved already, or its owner must do it."""
        stage = STAGE_OF[verdict.outcome]
        # Others than the owner may move it only from the stage PROVISIONING. The write checks that, so the job is not read again.
        seen = await self._engine.get(job.id) if held else job
        if seen.stage == stage:
            return False
        again = seen.topic == topic_of(State.RUNNING, stage)  # an earlier owner has shown it
        change = Change(
            Guard.held(job) if held else Guard.seen(job),
            "advance",
            stage,
            error=None if verdict.outcome == "succeeded" else verdict.error or None,
            failed_step=verdict.failed_step,
            level="error" if verdict.outcome == "failed" and not again else "info",
            step=verdict.failed_step or "",
            message="cleaning up goes on" if again else _message(verdict),
            data=None if again else _data(verdict),
            seen_stage=seen.stage if held else Stage.PROVISIONING,
        )
        try:
            await self._engine.change(change)
        except Conflict:
            if held and (await self._engine.get(job.id)).stage != stage:
                raise
            return False
        if not again:
            self._metrics.count_transition("provisioning", stage)
        return True

    def end(self, journey: Journey, verdict: Verdict) -> Change:
        """The last move of a job that was cleaned up, counted and logged."""
        job, warnings = journey.job, journey.run.warnings
        self._count(journey, verdict)
        note = f" with {len(warnings)} warnings" if warnings else ""
        change = Change(
            Guard.held(job),
            MOVES[verdict.outcome],
            level=LEVELS[verdict.outcome],
            message=f"complete: {verdict.outcome}{note}",
            data=_data(verdict),
        )
        match verdict.outcome:
            case "succeeded":
                return msgspec.structs.replace(change, result=msgspec.json.encode(_result(journey)))
            case "cancelled":
                return msgspec.structs.replace(change, error="cancelled")
        return msgspec.structs.replace(
            change,
            error=verdict.error or "failed",
            failed_step=verdict.failed_step,
            step=verdict.failed_step or "",
            message=f"complete: failed at {verdict.failed_step}",
        )

    def _count(self, journey: Journey, verdict: Verdict) -> None:
        now, job, metrics = self._engine.now(), journey.job, self._metrics
        metrics.cleanup_seconds.at()((now - (journey.run.cleanup_at or now)) / SECOND)
        metrics.job_seconds.at(verdict.outcome)((now - job.created_at) / SECOND)
        metrics.count_transition(STAGE_OF[verdict.outcome], "complete")
        if verdict.outcome == "failed":
            # A machine may report any unit name, and each would be a new series in Prometheus.
            known = verdict.failed_step in set(Key)
            metrics.failures.labels(verdict.failed_step if known else "workflow.other").inc()
        log.info(
            "a job is complete",
            job_id=job.id,
            server_serial=journey.serial,
            outcome=verdict.outcome,
            failed_step=verdict.failed_step,
            duration_ms=(now - job.created_at) // 1000,
        )


def _result(journey: Journey) -> dict[str, Any]:
    """Return what the next step of a flow may need of the machine, as far as it is known. Callers may read it who may not read recipes."""
    facts, recipe = journey.run.facts, journey.recipe.plain
    known = {
        "hostname": recipe.get("hostname"),
        "image": recipe.get("oci_url"),
        "uuid": facts and facts.uuid,
        "manufacturer": facts and facts.manufacturer,
        "model": facts and facts.model,
    }
    return {
        "outcome": "succeeded",
        "warnings": journey.run.warnings,
        "serial": journey.serial,
        "task_target": journey.recipe.target,
        **{name: value for name, value in known.items() if value},
    }


def _message(verdict: Verdict) -> str:
    match verdict.outcome:
        case "succeeded":
            return "the machine is done"
        case "failed":
            return f"failed at {verdict.failed_step}: {verdict.error}"
    return verdict.error


def _data(verdict: Verdict) -> bytes:
    return msgspec.json.encode({"kind": "outcome", **msgspec.to_builtins(verdict)})
