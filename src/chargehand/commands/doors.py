"""THE TABLE of the client's calls for jobs of each door, and what their events have in common.

Each door has its own calls and states. Here they get one shape, so that `watch` and `jobs` treat all doors alike.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from chargehand.client import Client
from chargehand.client.types import engine, inference, provisioning, tasks
from chargehand.commands.refusals import refuse

REQUEUE = "requeue"
# The moves that end a job, and its outcome.
ENDS = {"succeed": "succeeded", "fail": "failed", "expire": "failed", "cancel": "cancelled"}

AnyJob = engine.Job | inference.Job | tasks.Task | provisioning.Job
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
        Door("job", lambda c: c.engine.job, lambda c: c.engine.events, lambda c: c.engine.watch,
             lambda c: c.engine.cancel, lambda c: c.engine.requeue, of_engine),
    )
}
# fmt: on


def find(client: Client, job_id: str) -> tuple[Door, engine.Job]:
    """The door of a job, and the job as the engine shows it."""
    job = client.engine.job(job_id)
    return TABLE.get(job.kind, TABLE["job"]), job


def own_job(client: Client, door: Door, job: engine.Job) -> AnyJob:
    """The job as its door shows it."""
    shown: AnyJob = job if door.seen is of_engine else door.job(client)(job.id)
    return shown


def cancel(client: Client, job_id: str) -> tuple[Door, engine.Job]:
    door, _ = find(client, job_id)
    door.cancel(client)(job_id)
    return find(client, job_id)


def retry(client: Client, job_id: str) -> tuple[Door, engine.Job]:
    door, _ = find(client, job_id)
    if door.retry is None:
        refuse(f"{job_id} is a batch, which cannot be retried: submit its file again, without the lines that succeeded")
    door.retry(client)(job_id)
    return find(client, job_id)


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


def ending(client: Client, door: Door, job_id: str, outcome: str) -> JobEnding:
    """`outcome` is that of the last event; a provisioning job has its own."""
    job: AnyJob = door.job(client)(job_id)
    result: Any = None
    if isinstance(job, tasks.Task):
        ended = client.tasks.result(job_id)
        result = ended[1].result if ended else None
    elif isinstance(job, provisioning.Job):
        outcome = job.outcome or "failed"
    else:
        result = job.result
    return JobEnding(outcome, result, job.error or "", job)
