"""Flows and their steps as text."""

from collections.abc import Sequence

from chargehand.client.types.flows import Flow, FlowStep, ListedFlow
from chargehand.commands.doors import waits_for
from chargehand.commands.text import OF_WORDS, ago, between, columns, day, lasted, shorten, table

WIDTH = 80  # of the table of steps
SHOWN_ERROR = 60
SHOWN_NAME = 22
SHOWN_FAILURES = 5
ENDED = ("succeeded", "failed", "cancelled", "skipped")
STATES = (*ENDED, "running", "queued", "waiting")


def flows_table(flows: Sequence[ListedFlow]) -> list[str]:
    rows = [("FLOW", "NAME", "STATE", "CREATED", "TOOK", "NOTE")]
    rows += [
        (each.id, each.name, stands(each), ago(each.created_at), _took(each), shorten(each.error or "", SHOWN_ERROR))
        for each in flows
    ]
    return table(rows)


def stands(flow: ListedFlow) -> str:
    return f"{flow.state}: {flow.stage}" if flow.stage == "cancelling" and not flow.finished else flow.state


def _took(flow: ListedFlow) -> str:
    return lasted(between(flow.created_at, flow.finished_at)) if flow.finished_at else "-"


def flow_lines(flow: Flow) -> list[str]:
    """`flow` has all of its steps."""
    counted = ", ".join(f"{flow.counts[state]} {state}" for state in STATES if state in flow.counts)
    rows = [
        ("flow", flow.id),
        ("name", flow.name),
        ("state", stands(flow)),
        ("created", f"{day(flow.created_at)}, {ago(flow.created_at)}"),
    ]
    rows += [("took", _took(flow))] if flow.finished_at else []
    rows += [("error", flow.error)] if flow.error else []
    rows += [("steps", f"{sum(flow.counts.values())}: {counted}")]
    lines = [*columns(rows, styles=OF_WORDS), "", *steps_table(flow.steps), *_failures(flow.steps)]
    if flow.state in ("failed", "cancelled"):
        step = f" --from {flow.failed_step}" if flow.failed_step else ""
        lines += ["", f"to try it again: chargehand flows retry {flow.id}{step}"]
    return lines


def steps_table(steps: Sequence[FlowStep]) -> list[str]:
    """No line is longer than `WIDTH`."""
    rows = [("STEP", "NAME", "DOOR", "STATE")]
    rows += [(str(each.number), shorten(each.name, SHOWN_NAME), each.door, each.state) for each in steps]
    left = WIDTH - sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True))
    notes = ["NOTE", *(shorten(_note(each, steps), left) for each in steps)]
    return table([(*row, note) for row, note in zip(rows, notes, strict=True)])


def _note(step: FlowStep, steps: Sequence[FlowStep]) -> str:
    """What a step waits for that has not ended, or its error."""
    if step.state == "waiting":
        before = [steps[after.step] for after in step.after]
        names = [each.name for each in before if each.state not in ENDED]
        return f"waits for {'one of ' if step.need == 'any' and len(names) > 1 else ''}{', '.join(names)}"
    if step.state == "queued":
        return f"waits for {waits_for(step)}" if step.waiting_for else ""
    return (step.error or "").removeprefix("skipped: ") if step.state in ENDED else step.stage


def _failures(steps: Sequence[FlowStep]) -> list[str]:
    """Where the whole error of a step is found."""
    failed = [each for each in steps if each.state == "failed"]
    shown = [(each.name, f"chargehand jobs show {each.job_id}") for each in failed[:SHOWN_FAILURES]]
    note = f" (the first {SHOWN_FAILURES} of {len(failed)})" if len(failed) > SHOWN_FAILURES else ""
    return ["", f"failed{note}", *columns(shown, "  ")] if shown else []
