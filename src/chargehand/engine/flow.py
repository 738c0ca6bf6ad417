"""Flows: a job of the kind `flow`, whose work is other jobs, its steps. A step waits until those that it comes after have ended.

Steps of a flow are numbered from 0 in the order in which they were submitted.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from chargehand.engine.job import SECOND, Job, NewJob
from chargehand.engine.operation import Operation

if TYPE_CHECKING:
    from chargehand.engine.moves import Moved, Submitted  # noqa: F401 - what the store answers

KIND = "flow"
STEPS = "steps"  # what a waiting step waits for, and the stage of a running flow
CANCELLING = "cancelling"  # the stage of a flow that was cancelled and whose running steps have not ended yet
CANCELLED_FLOW = (
    "cancelled_flow"  # the kind of the records of such flows: each is due when its live steps are looked at again
)
SOON = 15 * SECOND


class On(StrEnum):
    """How a step must end so that another can start."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # or cancelled by hand
    FINISHED = "finished"  # in any way, and skipped too


class Outcome(StrEnum):
    """How a step ended, as its flow sees it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"  # by hand
    SKIPPED = "skipped"  # it could never start


class Edge(msgspec.Struct, frozen=True, array_like=True):
    """From one step to another: the number of the one at the other end, and what has to happen."""

    number: int
    on: On = On.SUCCEEDED

    def met_by(self, outcome: Outcome) -> bool:
        if self.on is On.FAILED:
            return outcome in (Outcome.FAILED, Outcome.CANCELLED)
        return self.on is On.FINISHED or outcome is Outcome.SUCCEEDED


class NewStep(msgspec.Struct, frozen=True, array_like=True):
    name: str
    job: NewJob
    parents: tuple[Edge, ...] = ()
    need: int = 0  # so many of the edges must be met; a step without parents starts at once


class NewFlow(Operation["Submitted | Occupied"], frozen=True, array_like=True, tag="submit_flow"):
    """A flow and its steps, all in one commit."""

    job: NewJob
    steps: tuple[NewStep, ...]


class Occupied(msgspec.Struct, frozen=True, array_like=True, tag="occupied"):
    """The flow was not submitted: another live job has the unique key of one of its steps."""

    step: int
    job_id: str


class CancelFlow(Operation["Moved | None"], frozen=True, array_like=True, tag="cancel_flow"):
    """Cancel all waiting steps; the flow ends when the others have ended."""

    job_id: str
    tenant: str
    message: str


class RetryFlow(Operation["Moved | None"], frozen=True, array_like=True, tag="retry_flow"):
    """Run a step of a flow that failed or was cancelled again, and all that come after it; or all steps that did not succeed."""

    job_id: str
    tenant: str
    seq: int  # of the flow as the caller saw it
    step: str  # its name; empty: all that did not succeed
    message: str


class FlowStep(msgspec.Struct, frozen=True, array_like=True):
    """A step as its flow knows it, with its job."""

    number: int
    name: str
    outcome: str  # of a step that did not succeed; empty before its end
    need: int
    parents: tuple[Edge, ...]
    job: Job


class FlowSteps(msgspec.Struct, frozen=True):
    steps: list[FlowStep]
    counts: dict[tuple[str, str], int]  # (kind, state) -> how many, where asked for
    lengths: dict[str, int]  # name -> bytes of the result, where asked for
