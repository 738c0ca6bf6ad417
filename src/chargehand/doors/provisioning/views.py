"""A provisioning job as callers see it."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from chargehand.doors.provisioning.job.ledger import UnitProgress
from chargehand.doors.provisioning.job.orders import metadata_of
from chargehand.doors.provisioning.job.position import Position, outcome_after, status_after, status_before
from chargehand.doors.provisioning.job.run import Mark
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.engine.delivery import Outgoing
from chargehand.engine.job import SECOND, Event, Job, rfc3339

StatusWord = Annotated[str, Meta(description="queued, provisioning, succeeded, failed or complete")]


class ProvisioningStepView(msgspec.Struct):
    step: str
    where: Annotated[str, Meta(description="controller, or machine")]
    began_at: str
    ended_at: str | None
    seconds: float | None
    ok: bool
    percent: float | None = None
    message: str = ""


class ProvisioningProgressView(msgspec.Struct):
    step: Annotated[str, Meta(description="The current step")]
    trouble: Annotated[str, Meta(description="What delays the current step; empty if nothing does")]
    steps: list[ProvisioningStepView]
    heard_at: Annotated[str, Meta(description="When the machine last reported")] | None
    log_tail: Annotated[str, Meta(description="The end of the machine's log, as it was sent")]


class FailureView(msgspec.Struct):
    failed_step: str | None
    unit: str
    message: str
    reason: str
    meaning: Annotated[str, Meta(description="What failed_step means")]
    advice: Annotated[str, Meta(description="What to do about it")]
    can_retry: bool


class ProvisioningJobSummary(msgspec.Struct, kw_only=True):
    job_id: str
    server_serial: str
    task_target: str
    status: StatusWord
    outcome: Annotated[str, Meta(description="succeeded, failed or cancelled; null until it is known")] | None
    failed_step: str | None
    error: str | None
    waiting_for: Annotated[
        str, Meta(description="Of a queued job: `steps` of its flow, or a pause or limit of its queue")
    ]
    created_at: str
    updated_at: str
    finished_at: str | None


class ProvisioningJobView(ProvisioningJobSummary, kw_only=True):
    attempt: Annotated[int, Meta(description="1, and one more after each requested retry")]
    failure: FailureView | None
    warnings: list[str]
    progress: ProvisioningProgressView
    deadlines: Annotated[dict[str, str], Meta(description="The current deadlines, by the key of the failure")]
    recipe: Annotated[dict[str, Any], Meta(description="Members that may hold secrets are redacted")]
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


def summary(job: Job, position: Position, held_by: str) -> ProvisioningJobSummary:
    return ProvisioningJobSummary(**_common(job, position, held_by))


def job_view(
    job: Job, recipe: dict[str, Any], position: Position, deadlines: dict[str, int], held_by: str
) -> ProvisioningJobView:
    run = position.run
    return ProvisioningJobView(
        **_common(job, position, held_by),
        attempt=run.generation if run else 1,
        failure=_failure(position),
        warnings=list(run.warnings) if run else [],
        progress=_progress(position),
        deadlines={key: rfc3339(at) for key, at in deadlines.items()},
        recipe=recipe,
        metadata=metadata_of(job).metadata,
    )


def _common(job: Job, position: Position, held_by: str) -> dict[str, Any]:
    metadata, verdict = metadata_of(job), position.verdict
    return {
        "job_id": job.id,
        "server_serial": metadata.server_serial,
        "task_target": metadata.task_target,
        "status": position.status,
        "outcome": position.outcome,
        "failed_step": job.failed_step or (verdict.failed_step if verdict else None),
        # While a job that is being cleaned up changes its owner, its row has no error.
        "error": job.error or (verdict.error or None if verdict and verdict.outcome != "succeeded" else None),
        "waiting_for": held_by or job.waiting_for,
        "created_at": rfc3339(job.created_at),
        "updated_at": rfc3339(job.updated_at),
        "finished_at": _time(job.finished_at),
    }


def _failure(position: Position) -> FailureView | None:
    verdict = position.verdict
    if verdict is None or verdict.outcome == "succeeded":
        return None
    meaning, advice, can_retry = advise(verdict.failed_step)
    return FailureView(verdict.failed_step, verdict.unit, verdict.error, verdict.reason, meaning, advice, can_retry)


def advise(failed_step: str | None) -> tuple[str, str, bool]:
    """Return meaning, advice and whether a retry may help. Both texts are empty for a unit that is not in the taxonomy."""
    try:
        entry = Key(failed_step or "").entry
    except ValueError:
        return "", "", True
    return entry.meaning, entry.advice, entry.can_retry


def _progress(position: Position) -> ProvisioningProgressView:
    run, ledger = position.run, position.ledger
    steps = [_owners_step(mark) for mark in (run.marks if run else ())]
    steps += [_machines_step(unit) for unit in (ledger.steps if ledger else ())]
    steps.sort(key=lambda step: step.began_at)
    return ProvisioningProgressView(
        position.step,
        run.trouble if run else "",
        steps,
        _time(ledger.heard_at) if ledger else None,
        ledger.tail if ledger else "",
    )


def _owners_step(mark: Mark) -> ProvisioningStepView:
    return ProvisioningStepView(str(mark.step), "controller", *_span(mark.began_at, mark.ended_at), mark.ok)


def _machines_step(unit: UnitProgress) -> ProvisioningStepView:
    span = _span(unit.began_at, unit.heard_at if unit.finished else None)
    return ProvisioningStepView(unit.step, "machine", *span, True, unit.percent, unit.message)


def _span(began_at: int, ended_at: int | None) -> tuple[str, str | None, float | None]:
    seconds = None if ended_at is None else round((ended_at - began_at) / SECOND, 3)
    return rfc3339(began_at), _time(ended_at), seconds


def _time(at: int | None) -> str | None:
    return None if at is None else rfc3339(at)


class _OutcomeData(msgspec.Struct):
    """The verdict in the data of an event."""

    outcome: str | None = None
    failed_step: str | None = None


_outcome_data = msgspec.json.Decoder(_OutcomeData)


def event_view(event: Event) -> ProvisioningEventView:
    data = None if event.data is None else msgspec.json.decode(event.data)
    kind = data.get("kind") if isinstance(data, dict) else ""
    if not kind:
        kind = "transition" if event.move != "note" else "step" if data else "note"
    status = status_after(event) or ""
    return ProvisioningEventView(
        event.seq, rfc3339(event.at), event.level, kind, event.step, event.message or event.move, status, data
    )


def event_kind(event: Event) -> str:
    return event_view(event).kind


def render(outgoing: Outgoing) -> bytes:
    """Return the body of a caller's webhook about a change of status."""
    job, event = outgoing.job, outgoing.event
    asked = metadata_of(job)
    known = _outcome_data.decode(event.data) if event.data else _OutcomeData()
    return msgspec.json.encode(
        {
            "job_id": job.id,
            "server_serial": asked.server_serial,
            "task_target": asked.task_target,
            "status": status_after(event) or "queued",
            "previous_status": status_before(event),
            "outcome": known.outcome or outcome_after(event),
            "failed_step": known.failed_step,
            "error": event.error,
            "sequence": event.seq,
            "occurred_at": rfc3339(event.at),
            "metadata": asked.metadata,
        }
    )
