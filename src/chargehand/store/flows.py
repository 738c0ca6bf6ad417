"""What follows in flows when their steps end, in both databases, as generators (`steps.py`)."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from chargehand.engine.flow import CANCELLED_FLOW, CANCELLING, KIND, STEPS, Edge, On, Outcome
from chargehand.engine.guard import EVERY_TENANT, Guard
from chargehand.engine.job import State
from chargehand.engine.moves import Change, Moved
from chargehand.store.queries import queue_from
from chargehand.store.steps import Asking, Doing, OwnWork

_encoder = msgspec.json.Encoder()
edges_from = msgspec.json.Decoder(tuple[Edge, ...])
FAILURES = (Outcome.FAILED, Outcome.CANCELLED)
_OUTCOMES = {"succeed": Outcome.SUCCEEDED, "cancel": Outcome.CANCELLED}
FAILURE_CHARACTERS = 500  # of a step's error, in that of its flow


@dataclass(frozen=True)
class Make(OwnWork):
    """Make the changes. The answer is what moved, in their order, and the steps that ended."""

    changes: Sequence[Change]
    skipped: Collection[str] = ()  # ids of the jobs whose steps are skipped by it


class EndedStep(NamedTuple):
    """A step that has just ended."""

    flow: str
    number: int
    job_id: str
    outcome: Outcome


class Wave(NamedTuple):
    """What follows when steps have ended: each move with its flow."""

    released: list[tuple[str, Moved]]
    skips: list[tuple[str, Change]]  # of steps that can never start now
    ends: list[tuple[str, Change]]  # of flows whose last step has ended


class Following:
    """What has moved because steps had ended."""

    def __init__(self, ended: Sequence[EndedStep]) -> None:
        self._answered = {each.flow: each.job_id for each in reversed(ended)}  # whose move brings along what else moved
        self._moved: dict[str, list[Moved]] = defaultdict(list)

    def note(self, moves: Iterable[tuple[str, Moved]]) -> None:
        for flow, moved in moves:
            self._moved[flow].append(moved)

    def moved(self, flow: str) -> list[Moved]:
        return self._moved[flow]

    def join(self, answers: Iterable[Moved | None]) -> list[Moved | None]:
        """Return the answers, with what else moved, and in which flow."""
        flows = {job_id: flow for flow, job_id in self._answered.items()}
        return [
            replace(answer, others=tuple(self._moved[flow]), flow=flow)
            if answer is not None and (flow := flows.get(answer.job_id)) is not None
            else answer
            for answer in answers
        ]


def outcome_of(change: Change, skipped: Collection[str]) -> Outcome:
    if change.guard.job_id in skipped:
        return Outcome.SKIPPED
    return _OUTCOMES.get(change.move, Outcome.FAILED)


def guard_of(job_id: str, kind: str) -> Guard:
    return Guard(job_id, EVERY_TENANT, kind, None, None)


def follow(ended: Sequence[EndedStep]) -> Doing[Following]:
    """Do what follows, wave by wave: a step that is skipped has ended too."""
    following = Following(ended)
    while ended:
        wave = yield from _wave(ended)
        following.note(wave.released)
        asked = [*wave.skips, *wave.ends]
        made, ended = yield Make([change for _, change in asked], {skip.guard.job_id for _, skip in wave.skips})
        following.note((flow, moved) for (flow, _), moved in zip(asked, made, strict=True) if moved is not None)
    return following


# when steps end -------------------------------------------------------------------------------------------------------


class _Parent(NamedTuple):
    ended: EndedStep
    name: str
    children: tuple[Edge, ...]


def _wave(ended: Sequence[EndedStep]) -> Asking[Wave]:
    """Count down the steps after these; release or skip what is decided; end flows with no step left."""
    parents = yield from _parents(ended)
    released, skips = yield from _decide(parents)
    stopped = [each for each in ended if each.outcome is not Outcome.SUCCEEDED]
    if stopped:
        rows = [{"flow": e.flow, "place": e.number, "came_to": e.outcome} for e in stopped]
        yield "put_outcomes", {"rows": rows}
    flows = yield from _count(parents)
    ends = yield from _ends([flow for flow in flows if flow.left == 0])
    return Wave(released, skips, ends)


def _parents(ended: Sequence[EndedStep]) -> Asking[list[_Parent]]:
    by_place = {(each.flow, each.number): each for each in ended}
    rows = yield "ended_steps", {"rows": [{"flow": flow, "place": number} for flow, number in by_place]}
    return [_Parent(by_place[row[0], row[1]], row[2], edges_from.decode(row[3])) for row in rows]


def _decide(parents: Sequence[_Parent]) -> Asking[tuple[list[tuple[str, Moved]], list[tuple[str, Change]]]]:
    counts: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    reasons: dict[tuple[str, int], str] = {}
    for parent in parents:
        for edge in parent.children:
            place = parent.ended.flow, edge.number
            met = edge.met_by(parent.ended.outcome)
            counts[place][0] += 1
            counts[place][1] += met
            if not met:
                reasons[place] = _reason(parent)
    if not counts:
        return [], []
    asked = [
        {"flow": flow, "place": number, "decided": d, "more": m} for (flow, number), (d, m) in sorted(counts.items())
    ]
    rows = yield "count_down_steps", {"rows": asked}
    due, skips = [], []
    for flow, number, step_id, kind, need, waits, met, run_at, delay in rows:
        if met >= need:
            due.append({"step_id": step_id, "at": run_at, "later": delay, "flow": flow})
        elif met + waits < need and (flow, number) in reasons:  # else it was skipped before
            skips.append((flow, _skip(step_id, kind, reasons[flow, number])))
    return (yield from _release(due)), skips


def _reason(parent: _Parent) -> str:
    outcome = parent.ended.outcome
    return f"step {parent.name!r} {'was ' if outcome in (Outcome.CANCELLED, Outcome.SKIPPED) else ''}{outcome}"


def _skip(step_id: str, kind: str, reason: str) -> Change:
    error = f"skipped: {reason}"
    return Change(guard_of(step_id, kind), "cancel", error=error, step=STEPS, message=error)


def _release(due: Sequence[dict[str, Any]]) -> Asking[list[tuple[str, Moved]]]:
    released: list[tuple[str, Moved]] = []
    if due:
        flows = {row["step_id"]: row["flow"] for row in due}
        for row in (yield "release_steps", {"rows": due, "ids": list(flows)}):
            attempt, seq, run_at, at, created_at = row[5:]
            moved = Moved(row[0], queue_from(row, 1), "release", State.QUEUED, "", attempt, seq, run_at, at, created_at)
            released.append((flows[row[0]], moved))
    return released


class _Flow(NamedTuple):
    id: str
    stage: str
    left: int


def _count(parents: Sequence[_Parent]) -> Asking[list[_Flow]]:
    """Count the steps off their flows, and write into the flow's log how each ended."""
    by_flow: dict[str, list[_Parent]] = defaultdict(list)
    for parent in parents:
        by_flow[parent.ended.flow].append(parent)
    counts = [{"flow": flow, "count": len(those)} for flow, those in sorted(by_flow.items())]
    rows = yield "steps_ended", {"rows": counts, "ids": list(by_flow)}
    notes = []
    for flow, seq, stage, topic, _ in rows:
        those = by_flow[flow]
        notes += [_note(p, seq - len(those) + n, stage, topic) for n, p in enumerate(those, 1)]
    yield "insert_flow_notes", {"rows": notes}
    return [_Flow(row[0], row[2], row[4]) for row in rows]


def _note(parent: _Parent, seq: int, stage: str, topic: str) -> dict[str, Any]:
    outcome = parent.ended.outcome
    return {
        "flow": parent.ended.flow, "seq": seq, "level": "warn" if outcome in FAILURES else "info",
        "stage": stage, "topic": topic, "name": parent.name, "message": outcome,
    }  # fmt: skip


# the end of a flow ----------------------------------------------------------------------------------------------------


class _Stopped(NamedTuple):
    number: int
    name: str
    children: tuple[Edge, ...]
    outcome: Outcome
    error: str | None


def _ends(flows: Sequence[_Flow]) -> Asking[list[tuple[str, Change]]]:
    if not flows:
        return []
    ids = [flow.id for flow in flows]
    stopped: dict[str, list[_Stopped]] = defaultdict(list)
    for row in (yield "stopped_steps", {"ids": ids}):
        stopped[row[0]].append(_Stopped(row[1], row[2], edges_from.decode(row[3]), Outcome(row[4]), row[5]))
    sizes = {row[0]: row[1] for row in (yield "count_steps", {"ids": ids})}
    for flow in flows:
        if flow.stage == CANCELLING:
            yield "drop_record", {"kind": CANCELLED_FLOW, "tenant": "", "name": flow.id, "expected": None}
    return [(flow.id, _end(flow, sizes[flow.id], stopped[flow.id])) for flow in flows]


def _end(flow: _Flow, size: int, stopped: Sequence[_Stopped]) -> Change:
    guard = guard_of(flow.id, KIND)
    if flow.stage == CANCELLING:
        return Change(
            guard, "cancel", error="cancelled", level="warn", message="cancelled, and all its steps have ended"
        )
    skipped = {step.number for step in stopped if step.outcome is Outcome.SKIPPED}
    failed = [step for step in stopped if step.outcome in FAILURES]
    for step in failed:
        if not _is_handled(step, skipped):
            error = f"step {step.name!r} {step.outcome}: {(step.error or '')[:FAILURE_CHARACTERS]}"
            return Change(
                guard, "fail", error=error, failed_step=step.name, level="error", step=step.name, message=error
            )
    counts = {"steps": size, "succeeded": size - len(stopped), "failed": len(failed), "skipped": len(skipped)}
    return Change(guard, "succeed", result=_encoder.encode(counts))


def _is_handled(step: _Stopped, skipped: Collection[int]) -> bool:
    """Return whether a step that was to run if this one fails did run."""
    return any(edge.on is not On.SUCCEEDED and edge.number not in skipped for edge in step.children)
