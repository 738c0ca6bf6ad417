"""THE TABLE of the client's calls for jobs of each door, and what their events have in common.

Each door has its own calls and states. Here they get one shape, so that `watch` and `jobs` treat all doors alike.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from chargehand.client import Client
from chargehand.client.types import engine, flows, inference, provisioning, tasks
from chargehand.commands.refusals import refuse

REQUEUE = "requeue"
# The moves that end a job, and its outcome.
ENDS = {"succeed": "succeeded", "fail": "failed", "expire": "failed", "cancel": "cancelled"}

AnyJob = engine.Job | flows.Flow | inference.Job | tasks.Task | provisioning.Job
AnyEvent = engine.Event | inference.Event | tasks.Event | provisioning.Event


class Seen(NamedTuple):
    """An event of a job, whichever door it comes from."""

    sequence: int
    at: str
    word: str  # the state, as the door calls it; empty: none that callers see
    text: str
    move: str = ""
    attempt: int = 0
    outcome: str = ""  # of an event that ends the job
    percent: float | None = None


def of_inference(event: inference.Event) -> Seen:
    text = _text(event.message, event.error)
    return Seen(event.sequence, event.at, event.state or "", text, event.move, event.attempt, ENDS.get(event.move, ""))


def of_engine(event: engine.Event) -> Seen:
    word = f"running: {event.stage}" if event.stage and event.state == "running" else event.state
    text = _text(event.message, event.error)
    return Seen(event.sequence, event.at, word, text, event.move, event.attempt, ENDS.get(event.move, ""))


def of_flow(event: engine.Event) -> Seen:
    """A note in a flow's log is the end of a step, and its message how that ended."""
    word = event.stage if event.stage == "cancelling" else event.state
    was = "was " if event.message in ("cancelled", "skipped") else ""
    text = f"step {event.step} {was}{event.message}" if event.move == "note" else _text(event.message, event.error)
    return Seen(event.sequence, event.at, word, text, event.move, event.attempt, ENDS.get(event.move, ""))


def of_tasks(event: tasks.Event) -> Seen:
    said = event.progress
    text = said.message if said else _text(event.message, event.error)
    percent = said.percent if said else None
    return Seen(
        event.sequence, event.at, event.status, text, event.move, event.attempt, ENDS.get(event.move, ""), percent
    )


def of_provisioning(event: provisioning.Event) -> Seen:
    outcome = "complete" if event.status == "complete" else ""
    return Seen(event.sequence, event.time, event.status, event.message, outcome=outcome)


def _text(message: str, error: str | None) -> str:
    if not error or error in message:
        return message
    return f"{message}: {error}" if message else error


Part = Callable[[Client], Callable[..., Any]]


class Door(NamedTuple):
    kind: str
    job: Part
    events: Part
    follow: Part
    cancel: Part
    retry: Part | None
    seen: Callable[[Any], Seen]
    group: str = "jobs"  # of the commands for it

    @property
    def noun(self) -> str:
        return self.group.removesuffix("s")

    @property
    def how_to_list(self) -> str:
        return f"chargehand {self.group} list"


# fmt: off
TABLE = {
    door.kind: door
    for door in (
        Door("inference", lambda c: c.job, lambda c: c.events, lambda c: c.follow,
             lambda c: c.cancel, lambda c: c.retry, of_inference),
        Door("task", lambda c: c.tasks.get, lambda c: c.tasks.events, lambda c: c.tasks.watch,
             lambda c: c.tasks.cancel, lambda c: c.engine.requeue, of_tasks),
        Door("provision", lambda c: c.provisioning.job, lambda c: c.provisioning.events, lambda c: c.provisioning.watch,
             lambda c: c.provisioning.cancel, lambda c: c.provisioning.retry, of_provisioning),
        Door("batch", lambda c: c.engine.job, lambda c: c.engine.events, lambda c: c.engine.watch,
             lambda c: c.cancel_batch, None, of_engine),
        Door("flow", lambda c: partial(c.flows.get, limit=1), lambda c: c.flows.events, lambda c: c.flows.watch,
             lambda c: c.flows.cancel, lambda c: c.flows.retry, of_flow, "flows"),
        Door("job", lambda c: c.engine.job, lambda c: c.engine.events, lambda c: c.engine.watch,
             lambda c: c.engine.cancel, lambda c: c.engine.requeue, of_engine),
    )
}
# fmt: on


def find(client: Client, job_id: str) -> tuple[Door, engine.Job]:
    """The door of a job, and the job as the engine shows it."""
    job = client.engine.job(job_id)
    return door_of(job), job


def door_of(job: engine.ListedJob) -> Door:
    return TABLE.get(job.kind, TABLE["job"])


def own_job(client: Client, door: Door, job: engine.Job) -> AnyJob:
    """The job as its door shows it, a flow with all of its steps."""
    if door.kind == "flow":
        return whole_flow(client, job.id)
    shown: AnyJob = job if door.seen is of_engine else door.job(client)(job.id)
    return shown


def whole_flow(client: Client, flow_id: str) -> flows.Flow:
    """The flow with all of its steps."""
    flow = client.flows.get(flow_id)
    while flow.next is not None:
        page = client.flows.get(flow_id, first=flow.next)
        flow = replace(page, steps=[*flow.steps, *page.steps])
    return flow


def cancel(client: Client, job_id: str) -> tuple[Door, engine.Job]:
    door, _ = find(client, job_id)
    door.cancel(client)(job_id)
    return find(client, job_id)


def retry(client: Client, job_id: str) -> tuple[Door, engine.Job]:
    door, job = find(client, job_id)
    if job.flow:
        refuse(
            f"{job_id} is a step of the flow {job.flow}, which is tried again from a step on: {how_to_retry(job)} --from STEP"
        )
    if door.retry is None:
        refuse(f"{job_id} is a batch, which cannot be retried: submit its file again, without the lines that succeeded")
    door.retry(client)(job_id)
    return find(client, job_id)


def how_to_retry(job: engine.ListedJob) -> str:
    """The command; empty if there is none. A step is tried again with its flow."""
    if job.flow:
        return f"chargehand flows retry {job.flow}"
    door = door_of(job)
    return f"chargehand {door.group} retry {job.id}" if door.retry else ""


def waits_for(job: AnyJob | engine.ListedJob | flows.FlowStep) -> str:
    """Why a queued job waits; of a flow, how many of its steps have ended."""
    if isinstance(job, flows.Flow):
        return progress(job)
    if getattr(job, "waiting_for", None) == "steps":
        return "other steps of its flow"
    why = getattr(job, "waiting", None) or getattr(job, "waiting_for", None) or ""
    before = getattr(job, "position", None)
    return f"{why}; {before} before it" if why and before else why


def progress(flow: flows.Flow) -> str:
    size = sum(flow.counts.values())
    left = {state: flow.counts[state] for state in ("running", "queued", "waiting") if state in flow.counts}
    more = ", ".join(f"{count} {state}" for state, count in left.items())
    return f"{size - sum(left.values())} of {size} steps have ended{f'; {more}' if more else ''}"


def last_start(client: Client, door: Door, job_id: str) -> int:
    """The number of the event before the job was last started: what came before is in `jobs show`."""
    start, ended = 0, False
    for event in door.events(client)(job_id):
        seen = door.seen(event)
        if seen.move == REQUEUE or (ended and not seen.outcome):
            start = seen.sequence - 1
        ended = bool(seen.outcome) or (ended and seen.move == "note")
    return start


class JobEnding(NamedTuple):
    outcome: str  # succeeded, failed or cancelled
    result: Any
    error: str
    job: AnyJob  # as its door shows it
    how_to_retry: str = ""  # if it failed


def ending(client: Client, door: Door, job_id: str, outcome: str) -> JobEnding:
    """`outcome` is that of the last event; a provisioning job has its own."""
    job: AnyJob = door.job(client)(job_id)
    result: Any = None
    if isinstance(job, tasks.Task):
        ended = client.tasks.result(job_id)
        result = ended[1].result if ended else None
    elif isinstance(job, provisioning.Job):
        outcome = job.outcome or "failed"
    elif isinstance(job, flows.Flow):
        result = client.engine.job(job_id).result
    else:
        result = job.result
    again = how_to_retry(client.engine.job(job_id)) if outcome == "failed" else ""
    return JobEnding(outcome, result, job.error or "", job, again)
