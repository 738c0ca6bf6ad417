"""Jobs, events and state webhooks in the words of ADR-0005: queued, loading, working, done, failed."""

from typing import Annotated, Any, Literal

import msgspec

from chargehand.doors.inference.artifacts import InferenceArtifact
from chargehand.engine.delivery import Outgoing
from chargehand.engine.job import Event, Job, State, rfc3339, topic_of

# The engine's topics of each state. A cancelled job is a failed one whose error says so.
TOPICS: dict[str, tuple[str, ...]] = {
    "queued": ("queued",),
    "loading": ("running:loading",),
    "working": ("running:working",),
    "done": ("succeeded",),
    "failed": ("failed", "cancelled"),
}
_STATES = {topic: state for state, topics in TOPICS.items() for topic in topics}

Instant = Annotated[str, msgspec.Meta(description="RFC 3339, UTC", examples=["2026-05-23T12:00:00.000Z"])]
StateFilter = Literal["queued", "loading", "working", "done", "failed"]
StateName = Annotated[str, msgspec.Meta(description="queued, loading, working, done or failed")]


def state_of(topic: str) -> str | None:
    return _STATES.get(topic)


def shown_state(job: Job) -> str:
    return _STATES[job.topic]


def attempt_of(state: str, attempt: int) -> int:
    """Return the attempt, from 1, that runs or ran, or for which a queued job waits."""
    return attempt + 1 if state == State.QUEUED else max(attempt, 1)


class AttemptEvidence(msgspec.Struct, omit_defaults=True):
    """What was measured in an attempt."""

    target: str
    resident: bool | None = None  # whether the model was in memory before
    load_seconds: float | None = None
    first_token_seconds: float | None = None
    seconds: float | None = None
    prompt_tokens: int | None = None
    tokens: int | None = None
    finish: str = ""  # stop, length, truncated, cancelled …
    failure: str = ""  # the row of the failure table
    reloaded: bool = False  # whether the target loaded a model again that had been in memory


class StateWebhook(msgspec.Struct):
    """The body of a state webhook: the nine fields of ADR-0005, then the sequence number of the event."""

    job_id: str
    state: StateName
    previous_state: StateName | None
    timestamp: Instant
    model: str
    attempt: Annotated[int, msgspec.Meta(description="From 1; of a queued job, the attempt it waits for")]
    error: str | None
    result: Annotated[
        Any, msgspec.Meta(description="On `done`: the answer in the shape of Ollama's, as without streaming")
    ]
    artifacts: list[InferenceArtifact] | None
    sequence: int


class InferenceJobSummary(msgspec.Struct):
    id: str
    state: StateName
    previous_state: StateName | None
    model: str
    attempt: int
    max_attempts: int
    priority: int
    error: str | None
    waiting_for: Annotated[
        str | None,
        msgspec.Meta(description="Of a queued job: target, slot, model, turn, queue, backoff, run_at, steps"),
    ]
    run_at: Annotated[Instant | None, msgspec.Meta(description="null while it waits for other steps of its flow")]
    created_at: Instant
    updated_at: Instant
    finished_at: Instant | None
    deadline_at: Instant | None


class AttemptView(msgspec.Struct):
    """How an attempt ended, and what was measured in it."""

    attempt: int
    at: Instant
    outcome: Annotated[str, msgspec.Meta(description="succeed, retry, park, fail, cancel or expire")]
    message: str
    error: str | None
    evidence: AttemptEvidence | None


class RequestView(msgspec.Struct):
    """The request that is sent to the target."""

    path: str
    bytes: int
    body: Annotated[Any, msgspec.Meta(description="As it was sent; null when it is over 64 KiB")]


class InferenceJobView(InferenceJobSummary):
    waiting: Annotated[str | None, msgspec.Meta(description="In one line, why it waits")] = None
    position: Annotated[
        int | None, msgspec.Meta(description="Jobs for the same model that go before it; at most 10000")
    ] = None
    resident: Annotated[
        dict[str, list[str]] | None, msgspec.Meta(description="Of a queued job: the models in memory, by target")
    ] = None
    metadata: Any = None
    request: RequestView | None = None
    result: Any = None
    artifacts: list[InferenceArtifact] = []
    evidence: AttemptEvidence | None = None
    attempts: list[AttemptView] = []


class AttemptData(msgspec.Struct, omit_defaults=True):
    """The data of an event that ended an attempt."""

    evidence: AttemptEvidence | None = None
    artifacts: list[InferenceArtifact] | None = None


class InferenceEventView(msgspec.Struct):
    """A line of a job's log."""

    sequence: int
    at: Instant
    state: StateName | None
    previous_state: StateName | None
    move: str
    attempt: int
    level: str
    message: str
    error: str | None
    data: Any


_data = msgspec.json.Decoder(AttemptData)
_encoder = msgspec.json.Encoder()
ENDS = frozenset({"succeed", "retry", "park", "fail", "cancel", "expire"})


def data_of(event: Event) -> AttemptData:
    return _data.decode(event.data) if event.data else AttemptData()


def event_view(event: Event) -> InferenceEventView:
    return InferenceEventView(
        event.seq, rfc3339(event.at), state_of(topic_of(event.state, event.stage)), state_of(event.previous), event.move,
        attempt_of(event.state, event.attempt), event.level, event.message, event.error,
        msgspec.Raw(event.data) if event.data else None,
    )  # fmt: skip


def summary(job: Job, waiting_for: str | None) -> dict[str, Any]:
    return {
        "id": job.id,
        "state": shown_state(job),
        "previous_state": state_of(job.previous),
        "model": job.queue.name,
        "attempt": attempt_of(job.state, job.attempt),
        "max_attempts": job.max_attempts,
        "priority": job.priority,
        "error": job.error,
        "waiting_for": waiting_for,
        "run_at": None if job.waits_for_steps else rfc3339(job.run_at),
        "created_at": rfc3339(job.created_at),
        "updated_at": rfc3339(job.updated_at),
        "finished_at": None if job.finished_at is None else rfc3339(job.finished_at),
        "deadline_at": None if job.deadline_at is None else rfc3339(job.deadline_at),
    }


def _evidence(event: Event) -> AttemptEvidence | None:
    """Return the evidence of an attempt. A cancelled one could write none."""
    return data_of(event).evidence or (AttemptEvidence("", finish="cancelled") if event.move == "cancel" else None)


def attempts_of(events: list[Event]) -> list[AttemptView]:
    """Return a view of each attempt that ended, from the log."""
    return [
        AttemptView(
            event.attempt + (event.move == "park"), rfc3339(event.at), event.move, event.message, event.error, _evidence(event)
        )
        for event in events
        if event.move in ENDS
    ]  # fmt: skip


def render(outgoing: Outgoing) -> bytes:
    """Return the body of a state webhook. It is the same for every try: events do not change."""
    event, job = outgoing.event, outgoing.job
    done = event.state == State.SUCCEEDED
    body = StateWebhook(
        job.id,
        _STATES[topic_of(event.state, event.stage)],
        state_of(event.previous),
        rfc3339(event.at),
        job.queue.name,
        attempt_of(event.state, event.attempt),
        event.error,
        msgspec.Raw(job.result) if done and job.result else None,
        data_of(event).artifacts if done or event.state in (State.FAILED, State.CANCELLED) else None,
        event.seq,
    )
    return _encoder.encode(body)


class TargetView(msgspec.Struct):
    """A target as this node sees it now."""

    name: str
    url: str
    state: Annotated[str, msgspec.Meta(description="up or away")]
    since: Instant
    problem: str | None
    version: str | None
    slots: int
    parallel: int
    installed: list[str]
    resident: list["ResidentView"]
    loading: list[str]
    decision: Annotated[str | None, msgspec.Meta(description="The last change of what is in memory, and why")]
    seen: Annotated[
        list["PresenceView"],
        msgspec.Meta(description="When it came and went in the last day, as this process saw it; the oldest first"),
    ]


class PresenceView(msgspec.Struct):
    at: Instant
    state: Annotated[str, msgspec.Meta(description="up or away, from then on")]


class ResidentView(msgspec.Struct):
    model: str
    in_flight: int
    closing: Annotated[str | None, msgspec.Meta(description="Why it takes no new work")]
    size: int
    size_vram: int
    context_length: int | None
