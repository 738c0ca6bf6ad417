"""The operations that both databases apply alike, each written once.

Each is a generator: it yields a statement with its values and gets the rows back. SQLite's writer runs it in one go,
PostgreSQL's awaits each statement. Operations that must be fast are written for each database, in its own room; where another needs
one of them, it yields `OwnWork`.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from chargehand.engine.delivery import Release, Replay, SetEndpoint
from chargehand.engine.file import DropFiles, File, NewFile
from chargehand.engine.flow import CancelFlow, RetryFlow
from chargehand.engine.job import SECOND, QueueSettings, Rate, SetQueue
from chargehand.engine.moves import Prune
from chargehand.engine.record import DropRecord, PutRecord, Record
from chargehand.store.operations import Answer, GiveUp
from chargehand.store.queries import columns

Row = Sequence[Any]
Statement = tuple[str, dict[str, Any]]
T = TypeVar("T")
Asking = Generator[Statement, Sequence[Row], T]  # asks a database, and returns this
Steps = Asking[Answer]


class OwnWork:
    """What each database does in its own way."""


Doing = Generator[Statement | OwnWork, Any, T]  # asks for work besides


@dataclass(frozen=True)
class Whole(OwnWork):
    """All of these steps or, on an error, none. The answer is theirs, or that of `Undone`."""

    steps: Doing[Answer]
    may_clash: bool = False  # with a live job that has the same unique key: then the answer is None


class Undone(Exception):
    """Raised by the steps of a `Whole` to undo what they wrote."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.answer = answer


def no_work(work: OwnWork) -> Any:
    raise TypeError(f"{type(work).__name__} is asked for where only statements are run")


# The statements that remove what a pruned job leaves behind.
_OF_A_JOB = (
    "prune_tries", "prune_deliveries", "prune_events", "prune_payloads", "prune_results", "prune_job_files",
    "prune_flow_steps", "prune_flow_edges",
)  # fmt: skip


def set_queue(operation: SetQueue) -> Steps:
    settings = operation.settings
    limits = settings.limits
    if settings == QueueSettings(settings.queue):
        yield "unset_queue", columns(settings.queue)
    else:
        yield (
            "set_queue",
            columns(settings.queue)
            | {
                "paused": int(settings.paused),
                "max_running": settings.max_running,
                "key_max_running": limits.key_max_running,
                **_rate("rate", limits.rate),
                **_rate("key_rate", limits.key_rate),
            },
        )
    if not settings.window:
        yield "drop_starts", columns(settings.queue) | {"length": 0}
    return None


def _rate(name: str, rate: Rate | None) -> dict[str, int | None]:
    return {
        f"{name}_count": None if rate is None else rate.count,
        f"{name}_length": None if rate is None else int(rate.seconds * SECOND),
    }


def release(operation: Release) -> Steps:
    for delivery_id, lease in zip(operation.ids, operation.leases, strict=True):
        yield "release_delivery", {"delivery_id": delivery_id, "lease": lease}
    return None


def replay(operation: Replay) -> Steps:
    name = "replay_delivery" if operation.delivery_id else "replay_endpoint"
    return len((yield name, msgspec.structs.asdict(operation)))


def give_up(operation: GiveUp) -> Steps:
    return len((yield "give_up_deliveries", {"ids": operation.ids, "reason": operation.reason}))


def set_endpoint(operation: SetEndpoint) -> Steps:
    return bool((yield "set_endpoint", msgspec.structs.asdict(operation)))


def prune(operation: Prune) -> Steps:
    yield "lock_deliveries", {"ids": operation.ids}
    if operation.of is None:
        rows = yield "prune_jobs", {"ids": operation.ids, "age": operation.age}
    else:
        tenant, kind = operation.of
        rows = yield "purge_jobs", {"ids": operation.ids, "tenant": tenant, "kind": kind}
    gone = [row[0] for row in rows]
    for name in _OF_A_JOB:
        yield name, {"ids": gone}
    if operation.age:
        yield "prune_endpoints", {"age": operation.age}
    return len(gone)


def put_file(operation: NewFile) -> Steps:
    [row] = yield "put_file", msgspec.structs.asdict(operation)
    return File(*row)


def drop_files(operation: DropFiles) -> Steps:
    return len((yield "drop_files", {"ids": operation.ids, "tenant": operation.tenant}))


def put_record(operation: PutRecord) -> Steps:
    """Two statements: one makes a record or finds it taken, one changes only the version that it was told."""
    rows = yield "change_record" if operation.expected else "put_record", msgspec.structs.asdict(operation)
    return Record(*rows[0]) if rows else None


def drop_record(operation: DropRecord) -> Steps:
    return bool((yield "drop_record", msgspec.structs.asdict(operation)))


# Operations that come in one group are applied in this order, whatever order they came in.
STEPS: dict[type, Callable[[Any], Steps]] = {
    SetQueue: set_queue,
    Release: release,
    Replay: replay,
    SetEndpoint: set_endpoint,
    GiveUp: give_up,
    Prune: prune,
    NewFile: put_file,
    DropFiles: drop_files,
    PutRecord: put_record,
    DropRecord: drop_record,
}


def in_order(operations: Sequence[Any]) -> list[int]:
    """Return the places of operations of one kind in the order in which they are applied.

    Records and flows are sorted, so that two groups with the same ones wait for each other instead of for each other's other one.
    """
    places = list(range(len(operations)))
    if isinstance(operations[0], PutRecord | DropRecord):
        places.sort(key=lambda place: (operations[place].kind, operations[place].tenant, operations[place].name))
    elif isinstance(operations[0], CancelFlow | RetryFlow):
        places.sort(key=lambda place: operations[place].job_id)
    return places
