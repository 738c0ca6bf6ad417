"""The views of flows and their steps in the engine's API."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from chargehand.api.views import Instant, instant, json_or_none, waiting_for
from chargehand.engine.flow import FlowStep, On
from chargehand.engine.job import Job, rfc3339


class AfterView(msgspec.Struct):
    step: Annotated[int, msgspec.Meta(description="Its number")]
    on: On


class StepView(msgspec.Struct):
    """A step; its job is read at its own door."""

    number: Annotated[int, msgspec.Meta(description="From 0, in the order in which they were submitted")]
    name: str
    job_id: str
    door: str
    state: Annotated[str, msgspec.Meta(description="waiting, queued, running, succeeded, failed, cancelled or skipped")]
    stage: str
    waiting_for: Annotated[
        str | None,
        msgspec.Meta(description="`steps`, or what else a queued job waits for: also a pause or a limit of its queue"),
    ]
    attempt: int
    after: list[AfterView]
    need: Annotated[str, msgspec.Meta(description="all or any of `after`")]
    error: Annotated[str | None, msgspec.Meta(description="null too where the caller may not read jobs of that door")]
    updated_at: Instant
    finished_at: Instant | None


class FlowSummary(msgspec.Struct):
    """A flow without its steps."""

    id: str
    name: str
    state: Annotated[str, msgspec.Meta(description="running, succeeded, failed or cancelled")]
    stage: Annotated[str, msgspec.Meta(description="`steps`, or `cancelling` until its running steps have ended")]
    error: str | None
    failed_step: str | None
    sequence: Annotated[int, msgspec.Meta(description="The number of its last event")]
    created_at: Instant
    updated_at: Instant
    finished_at: Instant | None


class FlowView(FlowSummary):
    """A flow with some of its steps."""

    counts: Annotated[dict[str, int], msgspec.Meta(description="How many steps are in each state")] = {}
    steps: list[StepView] = []
    next: Annotated[int | None, msgspec.Meta(description="`first` of the next page of steps")] = None
    idempotency_key: str | None = None
    metadata: Any = None


def _summary(flow: Job) -> dict[str, Any]:
    return {
        "id": flow.id,
        "name": flow.queue.name,
        "state": flow.state,
        "stage": flow.stage,
        "error": flow.error,
        "failed_step": flow.failed_step,
        "sequence": flow.seq,
        "created_at": rfc3339(flow.created_at),
        "updated_at": rfc3339(flow.updated_at),
        "finished_at": instant(flow.finished_at),
    }


def flow_summary(flow: Job) -> FlowSummary:
    return FlowSummary(**_summary(flow))


def flow_view(
    flow: Job,
    steps: Sequence[FlowStep],
    limit: int,
    counts: Mapping[tuple[str, str], int],
    now: int,
    doors: Mapping[str, str],
    readable: Collection[str],
    held: Mapping[str, str],
) -> FlowView:
    by_state: dict[str, int] = {}
    for (_, state), count in sorted(counts.items()):
        by_state[state] = by_state.get(state, 0) + count
    return FlowView(
        **_summary(flow),
        counts=by_state,
        steps=[_step_view(step, now, doors, readable, held) for step in steps[:limit]],
        next=steps[limit].number if len(steps) > limit else None,
        idempotency_key=flow.idempotency_key,
        metadata=json_or_none(flow.metadata),
    )


def _step_view(
    step: FlowStep, now: int, doors: Mapping[str, str], readable: Collection[str], held: Mapping[str, str]
) -> StepView:
    job = step.job
    return StepView(
        step.number,
        step.name,
        job.id,
        doors.get(job.kind, job.kind),
        _state(step),
        job.stage,
        held.get(job.id) or waiting_for(job, now),
        job.attempt,
        [AfterView(edge.number, edge.on) for edge in step.parents],
        "any" if step.need < len(step.parents) else "all",
        job.error if job.kind in readable else None,
        rfc3339(job.updated_at),
        instant(job.finished_at),
    )


def _state(step: FlowStep) -> str:
    if step.outcome == "skipped":
        return "skipped"
    return "waiting" if step.job.state == "queued" and step.job.waiting_for == "steps" else step.job.state
