"""A group of operations applied to SQLite in one transaction. Runs in the writer's process (`process`)."""

import time
from collections.abc import Callable
from typing import Any

import apsw
import msgspec

from chargehand.engine.delivery import Settle, Take
from chargehand.engine.flow import CancelFlow, NewFlow, RetryFlow
from chargehand.engine.job import NewJob, SetQueue
from chargehand.engine.moves import Beat, Change, Note, Prune
from chargehand.engine.store import Claim
from chargehand.store import steps, whole_flows
from chargehand.store.operations import Answer, AnyOperation, Rejected
from chargehand.store.queries import Migration, Schema, load_migrations
from chargehand.store.sqlite import jobs, outbox
from chargehand.store.sqlite.session import Session


class Batch(msgspec.Struct, frozen=True, array_like=True):
    now: int
    operations: list[AnyOperation]


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """Either every operation's answer, or why none was committed."""

    answers: list[Answer | Rejected]
    error_code: str = ""
    error: str = ""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """What the writer's process says first: the schema's version, or why it cannot start."""

    version: int
    error_code: str = ""
    error: str = ""


class TooNew(Exception):
    pass


def error_code(error: BaseException) -> str | None:
    """Return the code of a fault of the whole store, which no single operation is to blame for."""
    if isinstance(error, apsw.FullError):
        return "store.full"
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return "store.locked"
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return "store.corrupt"
    # An I/O error covers a disk that is full in a way SQLite cannot tell, a file that went away, and a broken disk.
    # An SQL error means that the schema is not ours: a statement of ours that the file cannot take.
    faults = apsw.IOError | apsw.CantOpenError | apsw.ReadOnlyError | apsw.PermissionsError | apsw.SQLError
    if isinstance(error, faults):
        return "store.unavailable"
    return None


class Writer:
    def __init__(self, path: str, max_bytes: int) -> None:
        self._session = Session(path, max_bytes)

    # starting ---------------------------------------------------------------------------------------------------------

    def migrate(self) -> int:
        migrations = load_migrations("sqlite")
        newest = migrations[-1].version
        db = self._session
        with db.transaction():
            db.connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_migrations "
                "(version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, applied_at BIGINT NOT NULL)"
            )
            [(version,)] = db.all("schema_version")
            if version > newest:
                self._refuse_newer(newest)
            for migration in migrations:
                if migration.version > version:
                    self._apply(migration)
        return newest

    def _refuse_newer(self, known: int) -> None:
        [row] = self._session.all("schema")
        if refusal := Schema(*row).refusal(known):
            raise TooNew(refusal)

    def _apply(self, migration: Migration) -> None:
        for statement in migration.statements:
            self._session.connection.execute(statement)
        version, name, oldest, _ = migration
        self._session.one(migration.record, version=version, name=name, oldest=oldest, now=now())

    def recover(self) -> None:
        with self._session.transaction():
            self._session.one("release_all_deliveries")

    def close(self) -> None:
        """The last connection to close takes the write-ahead log along: what is left is one file."""
        self._session.connection.close()

    # a group ----------------------------------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> Reply:
        try:
            return self._commit(batch.now, batch.operations)
        except Exception as error:
            self._session.endpoints.clear()  # what was rolled back may be among them
            if code := error_code(error):
                return Reply([], code, str(error))
        # One operation broke its statement: each is tried alone, so that only that one is refused.
        answers: list[Answer | Rejected] = []
        for operation in batch.operations:
            try:
                answers += self._commit(batch.now, [operation]).answers
            except Exception as error:
                self._session.endpoints.clear()
                answers.append(Rejected(f"{type(error).__name__}: {error}", error_code(error) or ""))
        return Reply(answers)

    def _commit(self, at: int, operations: list[AnyOperation]) -> Reply:
        self._session.now = at
        answers: list[Answer | Rejected] = [None] * len(operations)
        by_kind: dict[type, list[int]] = {}
        for place, operation in enumerate(operations):
            by_kind.setdefault(type(operation), []).append(place)
        with self._session.transaction():
            for kind, apply in APPLIERS.items():
                if places := by_kind.get(kind):
                    applied = apply(self._session, [operations[i] for i in places])
                    for place, answer in zip(places, applied, strict=True):
                        answers[place] = answer
        return Reply(answers)


def _apply_shared(db: Session, operations: list[Any]) -> list[Answer]:
    answers: list[Answer] = [None] * len(operations)
    for place in steps.in_order(operations):
        answers[place] = jobs.run(db, SHARED[type(operations[place])](operations[place]))
    return answers


def _prune(db: Session, operations: list[Prune]) -> list[Answer]:
    db.endpoints.clear()  # the statements may remove some
    return _apply_shared(db, operations)


SHARED = steps.STEPS | whole_flows.OPERATIONS

# In this order a job submitted in a group can be claimed in the same one.
APPLIERS: dict[type, Callable[[Session, list[Any]], list[Answer]]] = {
    NewJob: jobs.submit,
    NewFlow: _apply_shared,
    Change: jobs.change,
    Beat: jobs.beat,
    Note: jobs.note,
    CancelFlow: _apply_shared,
    RetryFlow: _apply_shared,
    SetQueue: _apply_shared,
    Claim: jobs.claim,
    Settle: outbox.settle,
    **dict.fromkeys(steps.STEPS, _apply_shared),
    Prune: _prune,
    Take: outbox.take,
}


def now() -> int:
    return time.time_ns() // 1000
