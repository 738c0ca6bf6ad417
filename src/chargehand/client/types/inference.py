"""Types of the calls of the client itself: chats, completions, their jobs, and the targets that run them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

import msgspec

State = Literal["queued", "loading", "working", "done", "failed"]
Messages = str | Sequence[Mapping[str, Any]]


class Wishes(TypedDict, total=False):
    """Options of a chat or a completion. Those of the first group go to the model server, named as in Ollama's API."""

    options: Mapping[str, Any]  # temperature, num_ctx, num_predict, seed …
    format: Any  # "json", or a JSON Schema for the answer
    tools: Sequence[Mapping[str, Any]]
    think: bool | str
    keep_alive: str | float
    system: str
    suffix: str
    template: str
    raw: bool
    images: Sequence[str]  # base64

    webhook: str  # gets every change of state
    webhook_events: Sequence[State]  # … or only these
    priority: int  # 0 to 9, 9 goes first
    max_attempts: int
    run_at: datetime | str
    delay_seconds: float
    deadline_seconds: float
    metadata: Mapping[str, Any]
    artifacts: Sequence["str | Wish"]  # files to keep; a name alone keeps the text of the answer
    idempotency_key: str


class Wish(msgspec.Struct, frozen=True):
    """A file to keep of an answer."""

    name: str
    source: Literal["answer", "transcript", "structured"] = msgspec.field(default="answer", name="from")


class JobState(msgspec.Struct, frozen=True):
    job_id: str
    state: str


class Token(msgspec.Struct, frozen=True):
    """A piece of an answer. `restarted`: another attempt gives another answer; this piece replaces all before it."""

    text: str = ""
    thinking: str = ""
    restarted: bool = False


class JobArtifact(msgspec.Struct, frozen=True):
    name: str
    media_type: str = ""
    size: int = 0
    sha256: str = ""
    url: str = ""


class Measurements(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was measured in an attempt."""

    target: str = ""
    resident: bool | None = None
    load_seconds: float | None = None
    first_token_seconds: float | None = None
    seconds: float | None = None
    prompt_tokens: int | None = None
    tokens: int | None = None
    finish: str = ""
    failure: str = ""
    reloaded: bool = False


class EndedAttempt(msgspec.Struct, frozen=True):
    attempt: int
    at: str = ""
    outcome: str = ""  # succeed, retry, park, fail, cancel or expire
    message: str = ""
    error: str | None = None
    evidence: Measurements | None = None


class ListedInferenceJob(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    state: str = "queued"
    previous_state: str | None = None
    model: str = ""
    attempt: int = 1
    max_attempts: int = 0
    priority: int = 0
    error: str | None = None
    waiting_for: str | None = None
    run_at: str | None = ""  # None: it waits for other steps of its flow
    created_at: str = ""
    updated_at: str = ""
    finished_at: str | None = None
    deadline_at: str | None = None

    @property
    def finished(self) -> bool:
        return self.state in ("done", "failed")


class SentRequest(msgspec.Struct, frozen=True):
    """What the target is asked, and at which path. `body` is None if it has more than 64 KiB."""

    path: str
    bytes: int = 0
    body: Any = None


class Job(ListedInferenceJob, frozen=True, kw_only=True):
    waiting: str | None = None  # why it waits, in a line
    position: int | None = None
    resident: dict[str, list[str]] | None = None
    metadata: Any = None
    request: SentRequest | None = None
    result: Any = None  # of a job that is done: what the model server answers without streaming
    artifacts: tuple[JobArtifact, ...] = ()
    evidence: Measurements | None = None
    attempts: tuple[EndedAttempt, ...] = ()

    @property
    def text(self) -> str:
        """The answer; empty until there is one."""
        return token_of(self.result).text

    @property
    def thinking(self) -> str:
        return token_of(self.result).thinking


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a job's log."""

    sequence: int
    at: str = ""
    state: str | None = None
    previous_state: str | None = None
    move: str = ""
    attempt: int = 1
    level: str = "info"
    message: str = ""
    error: str | None = None
    data: Any = None


class ResidentModel(msgspec.Struct, frozen=True):
    model: str
    in_flight: int = 0
    closing: str | None = None
    size: int = 0
    size_vram: int = 0
    context_length: int | None = None


class TargetChange(msgspec.Struct, frozen=True):
    """From `at` on, the target was up or away."""

    at: str
    state: str = ""


class ModelTarget(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    url: str = ""
    state: str = ""  # up or away
    since: str = ""
    problem: str | None = None
    version: str | None = None
    slots: int = 0
    parallel: int = 0
    installed: tuple[str, ...] = ()
    resident: tuple[ResidentModel, ...] = ()
    loading: tuple[str, ...] = ()
    decision: str | None = None
    seen: tuple[TargetChange, ...] = ()  # in the last day, oldest first


def token_of(line: Any) -> Token:
    """The piece of the answer in a line of a model server, in the shape of `/api/chat` or of `/api/generate`."""
    if not isinstance(line, dict):
        return Token()
    message = line.get("message")
    if isinstance(message, dict):
        return Token(str(message.get("content") or ""), str(message.get("thinking") or ""))
    return Token(str(line.get("response") or ""), str(line.get("thinking") or ""))
