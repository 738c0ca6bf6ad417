"""Trying a flow again from a step on, in both databases: which of its steps that means, and how they wait for each other."""

from collections.abc import Sequence
from graphlib import TopologicalSorter
from typing import NamedTuple

from chargehand.engine.flow import Edge, Outcome, RetryFlow
from chargehand.engine.job import NEVER, Job
from chargehand.store.flows import edges_from
from chargehand.store.shared import job_from
from chargehand.store.steps import Asking, Row


class _Known(NamedTuple):
    number: int
    name: str
    step_id: str
    parents: tuple[Edge, ...]
    children: tuple[Edge, ...]
    need: int
    outcome: str


def _known(row: Row) -> _Known:
    number, name, step_id, parents, children, need, outcome = row
    return _Known(number, name, step_id, edges_from.decode(parents), edges_from.decode(children), need, outcome)


class _Again(NamedTuple):
    """A step that is tried again: the edges that are not decided, and those that are met already."""

    step: _Known
    waits: int
    met: int


def queue_again(operation: RetryFlow) -> Asking[list[Job]]:
    """Return the jobs that are queued again, the flow first; none if it has moved on or nothing of it can start."""
    rows = yield "all_flow_steps", {"job_id": operation.job_id}
    steps = [_known(row) for row in rows]
    again = _to_try_again(steps, operation.step)
    if not again:
        return []
    flows = yield "retry_flow", {"job_id": operation.job_id, "tenant": operation.tenant, "seq": operation.seq}
    if not flows:
        return []
    ids = [each.step.step_id for each in again]
    asked = [{"step_id": each.step.step_id, "waits": each.waits} for each in again]
    retried = yield "retry_steps", {"rows": asked, "ids": ids, "never": NEVER}
    jobs = [job_from(row) for row in (*flows, *retried)]
    events = [{"step_id": j.id, "seq": j.seq, "previous": j.previous, "message": operation.message} for j in jobs]
    yield "insert_retry_events", {"rows": events}
    yield "prune_results", {"ids": ids}
    yield "prune_job_files", {"ids": ids}
    counts = [
        {"flow": operation.job_id, "place": each.step.number, "left_over": each.waits, "so_far": each.met}
        for each in again
    ]
    yield "reset_steps", {"rows": counts}
    return jobs


def _to_try_again(steps: Sequence[_Known], name: str) -> list[_Again]:
    chosen = _with_all_after(steps, [step.number for step in steps if (step.name == name if name else step.outcome)])
    order = TopologicalSorter({n: [e.number for e in steps[n].parents if e.number in chosen] for n in chosen})
    again: dict[int, _Again] = {}
    for number in order.static_order():
        step = steps[number]
        decided = [edge for edge in step.parents if edge.number not in again]
        met = sum(edge.met_by(Outcome(steps[edge.number].outcome or "succeeded")) for edge in decided)
        waits = len(step.parents) - len(decided)
        if met + waits >= step.need:  # else it stays as it is: what it comes after has ended, and is not tried again
            again[number] = _Again(step, 0 if met >= step.need else waits, met)
    return list(again.values())


def _with_all_after(steps: Sequence[_Known], numbers: Sequence[int]) -> set[int]:
    chosen, left = set(numbers), list(numbers)
    while left:
        new = {edge.number for edge in steps[left.pop()].children} - chosen
        chosen |= new
        left += new
    return chosen
