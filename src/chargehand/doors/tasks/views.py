"""Tasks, events, results and callbacks as codeQ's clients know them. Empty fields are left out, as codeQ does."""

from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from chargehand.engine.announce import decode_reports
from chargehand.engine.delivery import Outgoing, shown_url
from chargehand.engine.job import NEVER, SECOND, Event, Job, NewJob, State, rfc3339
from chargehand.http.carried import carried_json, carried_text
from chargehand.http.inputs import absent

DEAD = "dead"  # the stage of a failed task that ran out of attempts: a dead letter
DEAD_TOPIC = f"failed:{DEAD}"
CLAIMED = "claimed"
PROGRESS = "progress"  # the step of a worker's notes
CANCELLED = "CANCELLED"
RESULT_KEY = "codeq:results"
OFTEN_BYTES = 300  # of metadata: a command alone; with the producer's own no two may be alike

STATUS = {
    State.QUEUED: "PENDING",
    State.RUNNING: "IN_PROGRESS",
    State.SUCCEEDED: "COMPLETED",
    State.FAILED: "FAILED",
    State.CANCELLED: "FAILED",
}


class ResultArtifact(msgspec.Struct):
    name: str
    url: str


class LatestProgress(msgspec.Struct, rename="camel", omit_defaults=True):
    """The progress that the worker last reported."""

    updated_at: str
    percent: float | None = None
    message: str = ""
    data: Any = None


class Task(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    id: str
    command: str
    payload: Annotated[str, Meta(description="JSON as text, to the letter as it was sent")]
    priority: int = 0
    webhook: Annotated[str, Meta(description="Without its query, which may hold a secret")] = ""
    trace_parent: str = ""
    trace_state: str = ""
    status: Annotated[str, Meta(description="PENDING, IN_PROGRESS, COMPLETED or FAILED")]
    last_known_location: Annotated[
        str, Meta(description="PENDING_LIST, DELAYED_ZSET, INPROG_SET, DLQ_SET or NONE: a hint")
    ] = ""
    worker_id: str = ""
    lease_until: str = ""
    lease: Annotated[
        int, Meta(description="Ours: grows with every claim; send it along to be sure it is still held")
    ] = 0
    attempts: int = 0
    max_attempts: int = 0
    run_at: Annotated[str, Meta(description="Ours: when a delayed task becomes ready")] = ""
    limit_key: Annotated[str, Meta(description="Ours: whose limits hold for it")] = ""
    waiting_for: Annotated[
        str, Meta(description="Ours, of a single task that is due: what keeps it from being claimed")
    ] = ""
    progress: LatestProgress | None = None
    error: str = ""
    result_key: str = ""
    metadata: Annotated[msgspec.Raw | None, Meta(description="Ours: the object that it was created with")] = None
    tenant_id: str = ""
    created_at: str
    updated_at: str


class ResultView(msgspec.Struct, rename="camel", omit_defaults=True):
    task_id: str
    status: str
    completed_at: str
    result: msgspec.Raw | None = None
    error: str = ""
    artifacts: list[ResultArtifact] | None = None


class TaskEvent(msgspec.Struct, rename="camel", omit_defaults=True):
    """A line of a task's log."""

    sequence: int
    at: str
    move: str
    status: str
    level: str = "info"
    attempt: int = 0
    message: str = ""
    error: str = ""
    progress: LatestProgress | None = None


class _TaskMetadata(msgspec.Struct):
    command: str = ""
    metadata: msgspec.Raw = msgspec.field(default_factory=absent)  # the producer's


class _EndOfTask(msgspec.Struct):
    artifacts: list[ResultArtifact] | None = None


class _ProgressNote(msgspec.Struct):
    percent: float | None = None
    data: Any = None


_data = msgspec.json.Decoder(_EndOfTask)
_metadata = msgspec.json.Decoder(_TaskMetadata)
_progress = msgspec.json.Decoder(_ProgressNote)
_encoder = msgspec.json.Encoder()


def metadata(command: str, given: msgspec.Raw | None = None) -> bytes:
    """Return what the engine keeps as the metadata of a task's job."""
    return _of(command) if given is None else _encoder.encode({"command": command, "metadata": given})


@lru_cache(maxsize=4096)
def _of(command: str) -> bytes:
    return _encoder.encode({"command": command})


def _said(metadata: bytes) -> _TaskMetadata:
    return _said_often(metadata) if len(metadata) <= OFTEN_BYTES else _metadata.decode(metadata)


@lru_cache(maxsize=4096)
def _said_often(metadata: bytes) -> _TaskMetadata:
    return _metadata.decode(metadata)


def command_of(job: Job) -> str:
    """Return the command as the producer spelt it."""
    return (_said(job.metadata).command if job.metadata else "") or job.queue.name


def metadata_of(job: Job | NewJob) -> msgspec.Raw | None:
    """Return what the producer gave."""
    given = _said(job.metadata).metadata if job.metadata else b""
    return msgspec.Raw(given) if given else None


def webhook_of(job: Job) -> str:
    return shown_url(decode_reports(job.reports)[0].url) if job.reports else ""


def whole_seconds(at: int) -> str:
    return rfc3339(at - at % SECOND)[:-5] + "Z"


def task_view(job: Job, now: int) -> Task:
    running, finished = job.state is State.RUNNING, job.finished
    return Task(
        id=job.id,
        command=command_of(job),
        payload=carried_text(job.payload),
        priority=job.priority,
        webhook=webhook_of(job),
        trace_parent=job.traceparent,
        trace_state=job.tracestate,
        status=STATUS[job.state],
        last_known_location=_location(job, now),
        worker_id=(job.lease_owner or "") if running else "",
        lease_until=whole_seconds(job.lease_until) if running and job.lease_until else "",
        lease=job.lease if running else 0,
        attempts=job.attempt,
        max_attempts=job.max_attempts,
        run_at=rfc3339(job.run_at) if job.state is State.QUEUED and now < job.run_at < NEVER else "",
        limit_key=job.limit_key,
        error=error_of(job.state, job.error) if finished else "",
        result_key=RESULT_KEY if finished else "",
        metadata=metadata_of(job),
        tenant_id=job.tenant,
        created_at=rfc3339(job.created_at),
        updated_at=rfc3339(job.updated_at),
    )


def _location(job: Job, now: int) -> str:
    if job.state is State.QUEUED:
        return "PENDING_LIST" if job.run_at <= now else "DELAYED_ZSET"
    if job.state is State.RUNNING:
        return "INPROG_SET"
    return "DLQ_SET" if job.stage == DEAD else "NONE"


def error_of(state: str, error: str | None) -> str:
    return CANCELLED if state == State.CANCELLED else error or ""


def progress_view(event: Event) -> LatestProgress:
    said = _progress.decode(event.data) if event.data else _ProgressNote()
    return LatestProgress(rfc3339(event.at), said.percent, event.message, said.data)


def event_name(event: Event) -> str:
    return PROGRESS if event.step == PROGRESS else event.move


def task_event(event: Event) -> TaskEvent:
    said = progress_view(event) if event.step == PROGRESS else None
    dead = " (dead letter)" if f"{event.state}:{event.stage}" == DEAD_TOPIC else ""
    return TaskEvent(
        event.seq,
        rfc3339(event.at),
        event.move,
        STATUS[event.state],
        event.level,
        event.attempt,
        "" if said else event.message + dead,
        event.error or "",
        said,
    )


def result_view(job: Job, end: Event | None) -> ResultView:
    return ResultView(
        job.id,
        STATUS[job.state],
        rfc3339(job.finished_at or job.updated_at),
        carried_json(job.result) if job.result and job.state is not State.CANCELLED and job.stage != DEAD else None,
        error_of(job.state, job.error),
        artifacts_of(end) or None,
    )


def artifacts_of(end: Event | None) -> list[ResultArtifact]:
    return (_data.decode(end.data).artifacts or []) if end is not None and end.data else []


def render(outgoing: Outgoing) -> bytes:
    """Return the body of the callback of a finished task."""
    job, event = outgoing.job, outgoing.event
    # The job has the result of its last end: a late callback of an end before a requeue must not carry it.
    its_own = event.state is State.SUCCEEDED or (
        event.state is State.FAILED and event.stage != DEAD and job.finished_at == event.at
    )
    return _encoder.encode(
        {
            "taskId": job.id,
            "eventType": command_of(job),
            "status": STATUS[event.state],
            "result": msgspec.Raw(job.result) if job.result and its_own else None,
            "error": error_of(event.state, event.error),
            "artifacts": artifacts_of(event),
            "completedAt": rfc3339(event.at),
        }
    )
