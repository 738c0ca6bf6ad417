"""Types of `client.flows`: flows, and their steps."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import msgspec

from chargehand.client.types.engine import Webhook

Door = Literal["engine", "tasks", "inference", "provisioning"]
On = Literal["succeeded", "failed", "finished"]


class After(msgspec.Struct, frozen=True):
    """A step that another waits for, and how it must end."""

    step: str
    on: On = "succeeded"


class NewStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step to submit: the body is what its door takes."""

    name: str
    door: Door
    body: Any
    after: Sequence[str | After] = ()
    need: Literal["all", "any"] = "all"


class FlowOptions(TypedDict, total=False):
    """What may be said of a flow, besides its steps."""

    name: str
    webhook: Webhook | str
    metadata: Mapping[str, Any]
    idempotency_key: str


class AfterNumber(msgspec.Struct, frozen=True):
    """As `After`, with the number of the step."""

    step: int
    on: str = "succeeded"


class FlowStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a flow. Its state is waiting, queued, running, succeeded, failed, cancelled or skipped."""

    number: int
    name: str
    job_id: str
    door: str = ""
    state: str = "waiting"
    stage: str = ""
    waiting_for: str | None = None
    attempt: int = 0
    after: Sequence[AfterNumber] = ()
    need: str = "all"
    error: str | None = None
    updated_at: str = ""
    finished_at: str | None = None


class ListedFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow in a list: without its steps."""

    id: str
    name: str = ""
    state: str = "running"
    stage: str = ""
    error: str | None = None
    failed_step: str | None = None
    sequence: int = 0
    created_at: str = ""
    updated_at: str = ""
    finished_at: str | None = None

    @property
    def finished(self) -> bool:
        return self.state in ("succeeded", "failed", "cancelled")


class Flow(ListedFlow, frozen=True, kw_only=True):
    """A flow with some of its steps; `next` is the number of the first one after those."""

    counts: dict[str, int] = {}
    steps: Sequence[FlowStep] = ()
    next: int | None = None
    idempotency_key: str | None = None
    metadata: Any = None
