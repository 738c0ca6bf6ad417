"""Flows as a whole, in both databases: submit, cancel and retry one. Generators, as in `steps.py`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from chargehand.engine.flow import (
    CANCELLED_FLOW,
    CANCELLING,
    KIND,
    SOON,
    CancelFlow,
    Edge,
    NewFlow,
    NewStep,
    Occupied,
    RetryFlow,
)
from chargehand.engine.guard import Guard
from chargehand.engine.job import NEVER, SECOND, Job, NewJob
from chargehand.engine.moves import Change, Moved, Submitted
from chargehand.store.flow_retry import queue_again
from chargehand.store.flows import Make, follow, guard_of
from chargehand.store.operations import Answer
from chargehand.store.shared import job_from
from chargehand.store.steps import Asking, Doing, OwnWork, Undone, Whole

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True)
class Submit(OwnWork):
    """The answer is that to each job."""

    jobs: list[NewJob]


@dataclass(frozen=True)
class Announce(OwnWork):
    """Write the deliveries of the job's last move. The answer is to which endpoints they go."""

    job: Job


# submitting -----------------------------------------------------------------------------------------------------------


def submit(flow: NewFlow) -> Doing[Answer]:
    answer: Answer = yield Whole(_submit(flow))
    return answer


def _submit(flow: NewFlow) -> Doing[Answer]:
    submitted: Submitted
    [submitted] = yield Submit([flow.job])
    if submitted.moved is None:
        return submitted
    steps: list[Submitted] = yield Submit([step.job for step in flow.steps])
    queued = []  # those that wait for none
    for number, (step, each) in enumerate(zip(flow.steps, steps, strict=True)):
        if each.moved is None:
            raise Undone(Occupied(number, each.job_id))
        if not step.job.waits:
            queued.append(each.moved)
    yield from _put_steps(flow)
    started = yield from _start(flow.job.id, len(flow.steps))
    return replace(submitted, moved=replace(submitted.moved, others=(started, *queued)))


def _put_steps(flow: NewFlow) -> Asking[None]:
    children: list[list[Edge]] = [[] for _ in flow.steps]
    for number, step in enumerate(flow.steps):
        for edge in step.parents:
            children[edge.number].append(Edge(number, edge.on))
    yield "insert_flow_steps", {"rows": [*map(_step_row, range(len(flow.steps)), flow.steps)]}
    yield "insert_flow_edges", {"rows": [*map(_edges_row, range(len(flow.steps)), flow.steps, children)]}


def _step_row(number: int, step: NewStep) -> dict[str, Any]:
    return {
        "job_id": step.job.flow,
        "number": number,
        "name": step.name,
        "step_id": step.job.id,
        "kind": step.job.kind,
        "need": step.need,
        "waits": len(step.parents),
        "run_at": step.job.run_at or 0,
        "delay": int(step.job.delay_seconds * SECOND),
    }


def _edges_row(number: int, step: NewStep, children: list[Edge]) -> dict[str, Any]:
    parents = _encoder.encode(step.parents).decode()
    return {
        "job_id": step.job.flow, "number": number, "parents": parents, "children": _encoder.encode(children).decode()
    }  # fmt: skip


def _start(flow_id: str, steps_left: int) -> Doing[Moved]:
    """Let a queued flow run, and write that into its log."""
    [row] = yield "start_flow", {"job_id": flow_id, "steps_left": steps_left, "never": NEVER}
    flow = job_from(row)
    yield "insert_flow_event", {
        "job_id": flow_id, "seq": flow.seq, "level": "info", "move": "claim", "state": flow.state, "stage": flow.stage,
        "previous": flow.previous, "attempt": flow.attempt, "step": "", "message": "its steps may start",
    }  # fmt: skip
    return Moved(
        flow.id, flow.queue, "claim", flow.state, flow.stage, flow.attempt, flow.seq, flow.run_at, flow.updated_at,
        flow.created_at, (yield Announce(flow)),
    )  # fmt: skip


# cancelling -----------------------------------------------------------------------------------------------------------


def cancel(operation: CancelFlow) -> Doing[Answer]:
    guard = Guard(operation.job_id, operation.tenant, KIND, None, None)
    closing = Change(guard, "advance", CANCELLING, level="warn", message=operation.message)
    closed: Moved | None
    [closed], _ = yield Make([closing])
    if closed is None:
        return None
    # What remains to be done is put on record, in case that the caller does not come to it.
    yield "put_record", {
        "kind": CANCELLED_FLOW, "tenant": "", "name": operation.job_id, "body": b"", "expected": 0,
        "due_at": closed.at + SOON,
    }  # fmt: skip
    rows = yield "waiting_steps", {"job_id": operation.job_id}
    waiting = [
        Change(guard_of(step_id, kind), "cancel", error="cancelled", level="warn", message=operation.message)
        for step_id, kind in rows
    ]
    made, ended = yield Make(waiting)
    following = yield from follow(ended)
    return replace(closed, others=(*[each for each in made if each is not None], *following.moved(operation.job_id)))


# retrying -------------------------------------------------------------------------------------------------------------


def retry(operation: RetryFlow) -> Doing[Answer]:
    answer: Answer = yield Whole(_retry(operation), may_clash=True)
    return answer


def _retry(operation: RetryFlow) -> Doing[Answer]:
    jobs = yield from queue_again(operation)
    if not jobs:
        return None
    told: list[tuple[str, ...]] = []
    for job in jobs:
        told.append((yield Announce(job)))  # noqa: PERF401 - no yield in a comprehension
    flow, *moved = [_queued_again(job, endpoints) for job, endpoints in zip(jobs, told, strict=True)]
    started = yield from _start(operation.job_id, len(jobs) - 1)
    return replace(flow, others=(started, *moved))


def _queued_again(job: Job, endpoints: tuple[str, ...]) -> Moved:
    return Moved(
        job.id, job.queue, "requeue", job.state, "", 0, job.seq, job.run_at, job.updated_at, job.created_at, endpoints
    )


OPERATIONS: dict[type, Callable[[Any], Doing[Answer]]] = {NewFlow: submit, CancelFlow: cancel, RetryFlow: retry}
