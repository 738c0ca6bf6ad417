"""A provisioning job as callers see it."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from chargehand.doors.provisioning.job.ledger import JobLedger
from chargehand.doors.provisioning.job.orders import metadata_of
from chargehand.doors.provisioning.job.run import JobRun, RunStep
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.engine.delivery import Outgoing
from chargehand.engine.job import FINAL, Event, Job, State, rfc3339

Status = Annotated[str, Meta(description="queued, provisioning, succeeded, failed or complete")]
TOPICS = {
    "queued": "queued",
    "running:provisioning": "provisioning",
    "running:succeeded": "succeeded",
    "running:failed": "failed",
}
# The topics of a status, for who wants to hear of some only.
BY_STATUS = {
    "queued": ("queued",),
    "provisioning": ("running:provisioning",),
    "succeeded": ("running:succeeded",),
    "failed": ("running:failed",),
    "complete": ("succeeded", "failed", "cancelled"),
}
_OUTCOMES = {State.SUCCEEDED: "succeeded", State.FAILED: "failed", State.CANCELLED: "cancelled"}


class StepView(msgspec.Struct):
    step: str
    where: Annotated[str, Meta(description="controller, or machine")]
    began_at: str
    ended_at: str | None
    seconds: float | None
    ok: bool
    percent: float | None = None
    message: str = ""


class ProvisioningProgressView(msgspec.Struct):
    step: Annotated[str, Meta(description="Where the job is")]
    trouble: Annotated[str, Meta(description="What keeps the step that is being taken, if something does")]
    steps: list[StepView]
    heard_at: Annotated[str, Meta(description="When the machine was last heard of")] | None
    log_tail: Annotated[str, Meta(description="The end of the machine's own log, as it sent it")]


class FailureView(msgspec.Struct):
    failed_step: str | None
    unit: str
    message: str
    reason: str
    meaning: Annotated[str, Meta(description="What failed_step says, in words")]
    advice: Annotated[str, Meta(description="What to do about it")]
    can_retry: bool


class ProvisioningJobSummary(msgspec.Struct, kw_only=True):
    job_id: str
    server_serial: str
    task_target: str
    status: Status
    outcome: Annotated[str, Meta(description="succeeded, failed or cancelled; null until it is known")] | None
    failed_step: str | None
    error: str | None
    waiting_for: str
    created_at: str
    updated_at: str
    finished_at: str | None


class ProvisioningJobView(ProvisioningJobSummary, kw_only=True):
    attempt: Annotated[int, Meta(description="1, and one more with each retry that was asked for")]
    failure: FailureView | None
    warnings: list[str]
    progress: ProvisioningProgressView
    deadlines: Annotated[dict[str, str], Meta(description="When what is waited for now is given up, by its key")]
    recipe: Annotated[dict[str, Any], Meta(description="Without what may hold secrets")]
    metadata: dict[str, Any]


class ProvisioningEventView(msgspec.Struct):
    sequence: int
    time: str
    level: str
    kind: Annotated[str, Meta(description="transition, step, webhook, progress, outcome or note")]
    step: Annotated[str, Meta(description="A key of the taxonomy, or a unit's name")]
    message: str
    status: str
    data: Any


def status_of(job: Job) -> str:
    return "complete" if job.state in FINAL else TOPICS.get(job.topic, "queued")


def summary(job: Job, ledger: JobLedger | None = None) -> ProvisioningJobSummary:
    return ProvisioningJobSummary(**_common(job, ledger))


def job_view(
    job: Job, recipe: dict[str, Any], run: JobRun | None, ledger: JobLedger | None, deadlines: dict[str, int]
) -> ProvisioningJobView:
    return ProvisioningJobView(
        **_common(job, ledger),
        attempt=run.generation if run else 1,
        failure=_failure(job, ledger),
        warnings=list(run.warnings) if run else [],
        progress=_progress(run, ledger),
        deadlines={key: rfc3339(at) for key, at in deadlines.items()},
        recipe=recipe,
        metadata=metadata_of(job).metadata,
    )


def _common(job: Job, ledger: JobLedger | None) -> dict[str, Any]:
    asked = metadata_of(job)
    verdict = ledger.verdict if ledger and job.topic != "queued" else None
    return {
        "job_id": job.id,
        "server_serial": asked.server_serial,
        "task_target": asked.task_target,
        "status": status_of(job),
        "outcome": _OUTCOMES.get(job.state) or (verdict.outcome if verdict else _shown_outcome(job)),
        "failed_step": job.failed_step or (verdict.failed_step if verdict else None),
        # A job that changes hands while it is cleaned up has no error of its own for a moment.
        "error": job.error or (verdict.error or None if verdict and verdict.outcome != "succeeded" else None),
        "waiting_for": job.waiting_for,
        "created_at": rfc3339(job.created_at),
        "updated_at": rfc3339(job.updated_at),
        "finished_at": None if job.finished_at is None else rfc3339(job.finished_at),
    }


def _shown_outcome(job: Job) -> str | None:
    status = TOPICS.get(job.topic)
    return status if status in ("succeeded", "failed") else None


def _failure(job: Job, ledger: JobLedger | None) -> FailureView | None:
    verdict = ledger.verdict if ledger and job.topic != "queued" else None
    if verdict is None or verdict.outcome == "succeeded":
        return None
    meaning, advice, can_retry = advise(verdict.failed_step)
    return FailureView(verdict.failed_step, verdict.unit, verdict.error, verdict.reason, meaning, advice, can_retry)


def advise(failed_step: str | None) -> tuple[str, str, bool]:
    """Of a unit that is not in the taxonomy nothing is known but its name."""
    try:
        entry = Key(failed_step or "").entry
    except ValueError:
        return "", "", True
    return entry.meaning, entry.advice, entry.can_retry


def _progress(run: JobRun | None, ledger: JobLedger | None) -> ProvisioningProgressView:
    steps = [
        StepView(
            str(mark.step),
            "controller",
            rfc3339(mark.began_at),
            None if mark.ended_at is None else rfc3339(mark.ended_at),
            None if mark.ended_at is None else round((mark.ended_at - mark.began_at) / 1_000_000, 3),
            mark.ok,
        )
        for mark in (run.marks if run else ())
    ]
    for each in ledger.steps if ledger else ():
        ended = each.heard_at if each.finished else None
        steps.append(
            StepView(
                each.step,
                "machine",
                rfc3339(each.began_at),
                None if ended is None else rfc3339(ended),
                None if ended is None else round((ended - each.began_at) / 1_000_000, 3),
                True,
                each.percent,
                each.message,
            )
        )
    steps.sort(key=lambda each: each.began_at)
    now = run.step if run else RunStep.BUILD
    at = ledger.steps[-1].step if now is RunStep.WAIT and ledger and ledger.steps else str(now)
    heard = ledger.heard_at if ledger else None
    return ProvisioningProgressView(
        at, run.trouble if run else "", steps, None if heard is None else rfc3339(heard), ledger.tail if ledger else ""
    )


class _OutcomeData(msgspec.Struct):
    """What the data of an event may say of the verdict."""

    outcome: str | None = None
    failed_step: str | None = None


_said = msgspec.json.Decoder(_OutcomeData)


def event_view(event: Event) -> ProvisioningEventView:
    data = None if event.data is None else msgspec.json.decode(event.data)
    kind = (data or {}).get("kind", "") if isinstance(data, dict) else ""
    if not kind:
        kind = "step" if event.move == "note" and data else "note" if event.move == "note" else "transition"
    status = "complete" if event.state in FINAL else TOPICS.get(_topic(event), "")
    return ProvisioningEventView(
        event.seq, rfc3339(event.at), event.level, kind, event.step, event.message or event.move, status, data
    )


def _topic(event: Event) -> str:
    """Of a job that rests, or was only just taken, callers see what they saw before."""
    if event.state is State.RUNNING and event.stage:
        return f"running:{event.stage}"
    return "queued" if event.state is State.QUEUED and not event.stage else event.previous


def render(outgoing: Outgoing) -> bytes:
    """What a caller's webhook says of a change of state."""
    job, event = outgoing.job, outgoing.event
    asked = metadata_of(job)
    status = "complete" if event.state in FINAL else TOPICS.get(_topic(event), "queued")
    said = _said.decode(event.data) if event.data else _OutcomeData()
    return msgspec.json.encode(
        {
            "job_id": job.id,
            "server_serial": asked.server_serial,
            "task_target": asked.task_target,
            "status": status,
            "previous_status": TOPICS.get(event.previous),
            "outcome": said.outcome or _OUTCOMES.get(event.state),
            "failed_step": said.failed_step,
            "error": event.error,
            "sequence": event.seq,
            "occurred_at": rfc3339(event.at),
            "metadata": asked.metadata,
        }
    )
