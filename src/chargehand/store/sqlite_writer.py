"""A group of operations applied to SQLite in one transaction. Runs in the writer's process (`sqlite_process`)."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, ClassVar, cast

import apsw
import msgspec
from msgspec.structs import replace

from chargehand.engine.delivery import Settle, Take, Taken, shown_url
from chargehand.engine.file import File, NewFile
from chargehand.engine.ids import UlidMaker
from chargehand.engine.job import FINAL, LEASE_RANDOM_BITS, SECOND, Job, NewJob, State, topic_of, visible
from chargehand.engine.moves import TABLE, Attempt, Change, Lease, Move, Moved
from chargehand.engine.record import DropRecord, PutRecord, Record
from chargehand.engine.store import Beat, Beaten, Claim, Claimed, Note, Noted, Submitted
from chargehand.store.announce import NewDelivery, announce, encode_reports
from chargehand.store.operations import (
    GROUP_BYTES,
    OF_A_JOB,
    Answer,
    Counted,
    DropFiles,
    GiveUp,
    Operation,
    Prune,
    Refused,
    Release,
    Replay,
    Replayed,
    SetEndpoint,
    SetQueue,
    put_query,
)
from chargehand.store.queries import load_migrations, load_queries

Row = tuple[Any, ...]
LARGE = 1 << 20

# What a move writes, whoever makes it.
_MOVES: dict[str, dict[str, Any]] = {
    move.name: {
        "source": " ".join(move.source),
        "state": str(move.to),
        "final": move.to in FINAL,
        "reset": move.attempt is Attempt.RESET,
        "attempt_delta": -1 if move.attempt is Attempt.DOWN else 0,
        "lease_kept": move.lease is Lease.KEEP,
    }
    for move in TABLE
}


class Batch(msgspec.Struct, frozen=True, array_like=True):
    now: int
    operations: list[Operation]


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """Either every operation's answer, or why none was committed."""

    answers: list[Answer | Refused]
    error_code: str = ""
    error: str = ""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    version: int
    error_code: str = ""
    error: str = ""


def plan_once(connection: apsw.Connection) -> None:
    """A statement keeps its plan whatever is bound to it. Else many are prepared anew each time, which costs more than they do."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


def error_code(error: BaseException) -> str | None:
    """Faults of the whole store, which no single operation is to blame for."""
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
        self._q = load_queries("sqlite")
        self._db = apsw.Connection(path)
        self._db.set_busy_timeout(5_000)
        plan_once(self._db)
        self._new_id = UlidMaker()
        self._now = 0
        self._endpoints: set[str] = set()  # those known to have a row
        self._db.pragma("journal_mode", "wal")
        self._db.pragma("synchronous", "full")
        self._db.pragma("wal_autocheckpoint", 4000)
        self._db.pragma("journal_size_limit", 64 << 20)
        self._db.pragma("cache_size", -32_000)
        if max_bytes:
            self._db.pragma("max_page_count", max(1, max_bytes // cast(int, self._db.pragma("page_size"))))

    # starting ---------------------------------------------------------------------------------------------------------

    def migrate(self) -> int:
        migrations = load_migrations("sqlite")
        newest = migrations[-1].version
        with self._transaction():
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS schema_migrations "
                "(version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, applied_at BIGINT NOT NULL)"
            )
            [(version,)] = self._all("schema_version")
            if version > newest:
                raise TooNew(f"the database is at schema version {version}; this version knows up to {newest}")
            for migration in migrations:
                if migration.version > version:
                    for statement in migration.statements:
                        self._db.execute(statement)
                    self._one("record_migration", version=migration.version, name=migration.name, now=now())
        return newest

    def close(self) -> None:
        """The last one out takes the write-ahead log along: what is left is one file."""
        self._db.close()

    def recover(self) -> None:
        with self._transaction():
            self._one("release_deliveries")

    # a group ----------------------------------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> Reply:
        try:
            return self._commit(batch.now, batch.operations)
        except Exception as error:
            self._endpoints.clear()  # what was rolled back may be among them
            if code := error_code(error):
                return Reply([], code, str(error))
        # Somebody's operation broke the statement it was in: each alone, so that only the culprit is refused.
        answers: list[Answer | Refused] = []
        for operation in batch.operations:
            try:
                answers += self._commit(batch.now, [operation]).answers
            except Exception as error:
                self._endpoints.clear()
                answers.append(Refused(f"{type(error).__name__}: {error}", error_code(error) or ""))
        return Reply(answers)

    def _commit(self, at: int, operations: list[Operation]) -> Reply:
        self._now = at
        answers: list[Answer | Refused] = [None] * len(operations)
        by_kind: dict[type, list[int]] = {}
        for place, operation in enumerate(operations):
            by_kind.setdefault(type(operation), []).append(place)
        with self._transaction():
            # In this order a job submitted in a group can be claimed in the same one.
            for kind, apply in self._appliers.items():
                if places := by_kind.get(kind):
                    for place, answer in zip(places, apply(self, [operations[i] for i in places]), strict=True):
                        answers[place] = answer
        return Reply(answers)

    def _transaction(self) -> "Transaction":
        return Transaction(self._db)

    def _one(self, query_name: str, /, **values: Any) -> Row | None:
        query = self._q[query_name]
        rows = self._db.execute(query.sql, query.in_order(values)).fetchall()
        return rows[0] if rows else None

    def _all(self, query_name: str, /, **values: Any) -> list[Row]:
        query = self._q[query_name]
        return cast(list[Row], self._db.execute(query.sql, query.in_order(values)).fetchall())

    def _wrote(self, query_name: str, /, **values: Any) -> bool:
        """Whether the statement, which returns no rows, found one to change."""
        query = self._q[query_name]
        self._db.execute(query.sql, query.in_order(values))
        return self._db.changes() > 0

    def _many(self, name: str, rows: Sequence[Row]) -> None:
        if rows:
            self._db.executemany(self._q[name].sql, rows)

    def _put_blob(self, query_name: str, column: str, job_id: str, data: bytes) -> None:
        """As one value SQLite would copy it twice, to bind it and to build the row; so a large one goes in by pieces."""
        if len(data) <= LARGE:
            self._one(query_name, job_id=job_id, **{column: data})
            return
        self._one(query_name, job_id=job_id, **{column: apsw.zeroblob(len(data))})
        [(row,)] = self._all(f"row_of_{column}", job_id=job_id)
        view = memoryview(data)
        with self._db.blob_open("main", f"job_{column}s", column, row, True) as blob:
            for begin in range(0, len(data), LARGE):
                blob.write(view[begin : begin + LARGE])

    # jobs -------------------------------------------------------------------------------------------------------------

    def _submit(self, jobs: list[NewJob]) -> list[Answer]:
        rows: list[Row] = []
        payloads: list[Row] = []
        events: list[Row] = []
        deliveries: list[NewDelivery] = []
        answers: list[Answer] = []
        for job in jobs:
            run_at = max(self._now, job.run_at or 0) + int(job.delay_seconds * SECOND)
            deadline_at = None if job.deadline_seconds is None else self._now + int(job.deadline_seconds * SECOND)
            reports = encode_reports(job.reports)
            # In the order of the statement's parameters.
            row = (
                job.id, job.tenant, job.kind, job.queue, job.priority, run_at, job.max_attempts, job.idempotency_key,
                job.fingerprint, job.traceparent, job.tracestate, reports, job.metadata, deadline_at,
                job.unique_key, None if job.keep_seconds is None else int(job.keep_seconds * SECOND), self._now,
            )  # fmt: skip
            if job.idempotency_key is None and job.unique_key is None:
                rows.append(row)
            elif (known := self._insert_once(job, row)) is not None:
                answers.append(known)
                continue
            if len(job.payload) <= LARGE:
                payloads.append((job.id, job.payload))
            else:
                self._put_blob("insert_payload", "payload", job.id, job.payload)
            events.append(self._event(job.id, 1, "submit", "queued", "", "", 0))
            told = announce(self._new_id, job.tenant, job.id, 1, "queued", reports)
            deliveries += told
            moved = Moved(
                job.id, job.tenant, job.kind, job.queue, "submit", State.QUEUED, "", 0, 1, run_at, self._now, self._now,
                tuple([d.endpoint_id for d in told]),
            )  # fmt: skip
            answers.append(Submitted(job.id, True, job.fingerprint, moved))
        self._many("insert_job", rows)
        self._many("insert_payload", payloads)
        self._many("insert_event", events)
        self._deliver(deliveries)
        return answers

    def _insert_once(self, job: NewJob, row: Row) -> Submitted | None:
        """None when it was inserted, else the job that the idempotency key made before, or the live one of its unique key."""
        self._db.execute(self._q["insert_job"].sql, row)
        if self._db.changes():
            return None
        known = self._one("job_by_key", tenant=job.tenant, kind=job.kind, idempotency_key=job.idempotency_key)
        if known:
            return Submitted(known[0], False, known[1])
        known = self._one(
            "job_by_unique_key", tenant=job.tenant, kind=job.kind, queue=job.queue, unique_key=job.unique_key
        )
        return Submitted(known[0] if known else job.id, False, job.fingerprint)

    def _event(
        self, job_id: str, seq: int, move: str, state: str, stage: str, previous: str, attempt: int,
        level: str = "info", step: str = "", message: str = "", error: str | None = None, data: bytes | None = None,
    ) -> Row:  # fmt: skip
        return (job_id, seq, self._now, level, move, state, stage, previous, attempt, step, message, error, data)

    def _deliver(self, deliveries: Sequence[NewDelivery]) -> None:
        for d in deliveries:
            if d.endpoint_id not in self._endpoints:
                self._one("ensure_endpoint", id=d.endpoint_id, tenant=d.tenant, url=shown_url(d.url), now=self._now)
                if len(self._endpoints) > 100_000:
                    self._endpoints.clear()
                self._endpoints.add(d.endpoint_id)
        self._many("insert_delivery", [(*d, self._now) for d in deliveries])

    def _claim(self, claims: list[Claim]) -> list[Answer]:
        """Claims for the same queues are picked together, then dealt out in the order they came."""
        together: dict[tuple[str, ...], list[int]] = {}
        for place, claim in enumerate(claims):
            together.setdefault(claim.queues, []).append(place)
        answers: list[Answer] = [None] * len(claims)
        events: list[Row] = []
        deliveries: list[NewDelivery] = []
        spare = GROUP_BYTES
        for queues, places in together.items():
            rows: list[Row] = []
            with closing(self._picked(queues, sum([claims[i].limit for i in places]))) as picked:
                for place in places:
                    jobs = self._grant(claims[place], picked, spare)
                    told: list[NewDelivery] = []
                    for job in jobs:
                        spare -= len(job.payload)
                        rows.append(self._claimed_row(job))
                        events.append(self._claimed_event(job))
                        if job.stage and job.reports:
                            told += announce(self._new_id, job.tenant, job.id, job.seq, job.topic, job.reports)
                    deliveries += told
                    answers[place] = Claimed(tuple(jobs), tuple([d.endpoint_id for d in told]))
            self._many("claim_job", rows)  # before others look into the same queues
        self._many("insert_event", events)
        self._deliver(deliveries)
        return answers

    def _pick(self, queues: tuple[str, ...], limit: int) -> list[str]:
        lanes = self._all("due_lanes", queues=_list(list(dict.fromkeys(queues))), now=self._now)
        picked: list[str] = []
        room: dict[str, int] = {}
        while lanes and len(picked) < limit:
            priority = lanes[0][1]
            level = [queue for queue, p in lanes if p == priority]
            lanes = lanes[len(level) :]
            candidates: list[tuple[int, str, str]] = []
            for queue in level:
                if queue not in room:
                    room[queue] = self._room(queue)
                want = min(limit - len(picked), room[queue])
                if want > 0:
                    due = self._all("due_jobs", queue=queue, priority=priority, now=self._now, limit=want)
                    candidates += [(run_at, job_id, queue) for run_at, job_id in due]
            if len(level) > 1:
                candidates.sort()
            for _, job_id, queue in candidates[: limit - len(picked)]:
                room[queue] -= 1
                picked.append(job_id)
        return picked

    def _room(self, queue: str) -> int:
        settings = self._one("queue_settings", queue=queue)
        if settings is None:
            return sys.maxsize
        paused, max_running = settings
        if paused:
            return 0
        if max_running is None:
            return sys.maxsize
        [(running,)] = self._all("count_running", queue=queue)
        return max(0, int(max_running) - int(running))

    def _picked(self, queues: tuple[str, ...], limit: int) -> apsw.Cursor:
        """The rows of due jobs, each read when it is asked for."""
        query = self._q["claimable_jobs"]
        return self._db.execute(query.sql, (_list(self._pick(queues, limit)),))

    def _grant(self, claim: Claim, picked: apsw.Cursor, spare: int) -> list[Job]:
        """One whatever its size, and more while the answers of the group stay small enough to be sent in one piece."""
        jobs: list[Job] = []
        while len(jobs) < claim.limit and (spare > 0 or not jobs):
            row = next(picked, None)
            if row is None:
                break
            job = self._taken(Job(*row), claim)
            jobs.append(job)
            spare -= len(job.payload)
        return jobs

    def _taken(self, job: Job, claim: Claim) -> Job:
        """The job as it is once it is claimed. Without a stage callers see no change: nothing was observed yet."""
        stage = claim.stage
        return replace(
            job,
            state=State.RUNNING,
            stage=stage,
            attempt=job.attempt + 1,
            lease=(job.claims + 1 << LEASE_RANDOM_BITS) + claim.lease_random,
            lease_owner=claim.owner,
            lease_until=self._now + int(claim.lease_seconds * SECOND),
            waiting_for="",
            seq=job.seq + 1,
            updated_at=self._now,
            previous=job.topic if stage else job.previous,
            topic=topic_of(State.RUNNING, stage) if stage else job.topic,
        )

    def _claimed_row(self, job: Job) -> Row:
        # In the order of the statement's parameters.
        return (
            job.stage, job.attempt, job.lease, job.lease_owner, job.lease_until, job.seq, self._now, job.previous, job.topic,
            job.id,
        )  # fmt: skip

    def _claimed_event(self, job: Job) -> Row:
        previous = job.previous if job.stage else job.topic
        message = f"claimed by {job.lease_owner}"
        return self._event(job.id, job.seq, "claim", "running", job.stage, previous, job.attempt, message=message)

    def _change(self, changes: list[Change]) -> list[Answer]:
        events: list[Row] = []
        results: list[tuple[str, bytes]] = []
        deliveries: list[NewDelivery] = []
        answers: list[Answer] = []
        for change in changes:
            job_id = change.guard.job_id
            if not self._changed(change):
                answers.append(None)
                continue
            move = Move.by_name[change.move]
            [row] = self._all("changed_job", job_id=job_id)
            tenant, kind, queue, attempt, seq, run_at, created_at, topic, previous, topic_seq, reports = row
            changed = topic_seq == seq
            if change.payload is not None:
                self._put_blob("put_payload", "payload", job_id, change.payload)
            if change.result is not None:
                results.append((job_id, change.result))
            events.append(
                self._event(
                    job_id, seq, change.move, str(move.to), change.stage, previous if changed else topic, attempt,
                    change.level, change.step, change.message, change.error, change.data,
                )
            )  # fmt: skip
            told = announce(self._new_id, tenant, job_id, seq, topic, reports) if changed and reports else []
            deliveries += told
            answers.append(
                Moved(
                    job_id, tenant, kind, queue, change.move, move.to, change.stage, attempt, seq, run_at, self._now,
                    created_at, tuple([d.endpoint_id for d in told]), self._succeed(change.successor),
                )
            )  # fmt: skip
        self._put_results(results)
        self._many("insert_event", events)
        self._deliver(deliveries)
        return answers

    def _put_results(self, results: list[tuple[str, bytes]]) -> None:
        if any(len(result) > LARGE for _, result in results):
            for job_id, result in results:
                self._put_blob("put_result", "result", job_id, result)
        else:
            self._many("put_result", results)

    def _succeed(self, successor: NewJob | None) -> Moved | None:
        if successor is None:
            return None
        [submitted] = self._submit([successor])
        return cast(Submitted, submitted).moved

    def _changed(self, change: Change) -> bool:
        guard = change.guard
        return self._wrote(
            "change_job",
            **_MOVES[change.move],
            job_id=guard.job_id,
            stage=change.stage,
            topic=topic_of(_MOVES[change.move]["state"], change.stage),
            visible=visible(_MOVES[change.move]["state"], change.stage),
            delay=int(change.delay_seconds * SECOND),
            waiting_for=change.waiting_for,
            error=change.error,
            failed_step=change.failed_step,
            lease=guard.lease,
            owner=guard.owner,
            kind=guard.kind,
            tenant=guard.tenant,
            seen_stage=change.seen_stage,
            lease_until=change.lease_until,
            deadline_at=change.deadline_at,
            now=self._now,
        )

    def _beat(self, beats: list[Beat]) -> list[Answer]:
        answers: list[Answer] = []
        for beat in beats:
            until = self._now + int(beat.lease_seconds * SECOND)
            held = self._wrote("beat_job", **msgspec.structs.asdict(beat.guard), lease_until=until)
            answers.append(Beaten(until if held else None))
        return answers

    def _note(self, notes: list[Note]) -> list[Answer]:
        events: list[Row] = []
        answers: list[Answer] = []
        for note in notes:
            job_id = note.guard.job_id
            if not self._wrote("note_job", **msgspec.structs.asdict(note.guard)):
                answers.append(Noted(None))
                continue
            [(seq, state, stage, topic, attempt)] = self._all("noted_job", job_id=job_id)
            events.append(
                self._event(
                    job_id,
                    seq,
                    "note",
                    state,
                    stage,
                    topic,
                    attempt,
                    note.level,
                    note.step,
                    note.message,
                    None,
                    note.data,
                )
            )
            answers.append(Noted(seq))
        self._many("insert_event", events)
        return answers

    def _set_queue(self, operations: list[SetQueue]) -> list[Answer]:
        for operation in operations:
            queue, paused, max_running = msgspec.structs.astuple(operation.settings)
            if paused or max_running is not None:
                self._one("set_queue", queue=queue, paused=int(paused), max_running=max_running)
            else:
                self._one("unset_queue", queue=queue)
        return [None] * len(operations)

    # deliveries -------------------------------------------------------------------------------------------------------

    def _take(self, takes: list[Take]) -> list[Answer]:
        answers: list[Answer] = []
        for take in takes:
            state = self._one("endpoint_state", endpoint_id=take.endpoint_id)
            if state is not None and state[0] != "active":
                answers.append(Taken((), (), None, blocked=True))
                continue
            length = int(take.lease_seconds * SECOND)
            rows = sorted(
                self._all(
                    "take_deliveries",
                    endpoint_id=take.endpoint_id,
                    limit=take.limit,
                    lease_length=length,
                    now=self._now,
                )
            )
            after = self._one("next_due", endpoint_id=take.endpoint_id, now=self._now)
            answers.append(Taken(tuple(r[0] for r in rows), tuple(r[1] for r in rows), after[0] if after else None))
        return answers

    def _settle(self, settles: list[Settle]) -> list[Answer]:
        answers: list[Answer] = []
        tries: list[Row] = []
        for s in settles:
            settled = self._wrote(
                "settle_delivery", delivery_id=s.delivery_id, lease=s.lease, state=str(s.state), reason=s.reason,
                retry_length=int(s.retry_seconds * SECOND), now=self._now,
            )  # fmt: skip
            if settled:
                [(number,)] = self._all("settled_delivery", delivery_id=s.delivery_id)
                tries.append((s.delivery_id, number, self._now, s.status, s.duration_seconds, s.error, s.answer))
                if s.disable_endpoint:
                    self._one("disable_endpoint", endpoint_id=s.disable_endpoint, reason=s.reason, now=self._now)
            answers.append(settled)
        self._many("insert_try", tries)
        return answers

    def _release(self, releases: list[Release]) -> list[Answer]:
        for release in releases:
            for delivery_id, lease in zip(release.ids, release.leases, strict=True):
                self._one("release_delivery", delivery_id=delivery_id, lease=lease)
        return [None] * len(releases)

    def _replay(self, replays: list[Replay]) -> list[Answer]:
        answers: list[Answer] = []
        for replay in replays:
            if replay.delivery_id:
                row = self._one("replay_delivery", delivery_id=replay.delivery_id, tenant=replay.tenant, now=self._now)
                answers.append(Replayed(1, row[0]) if row else Replayed(0, ""))
            else:
                rows = self._all(
                    "replay_endpoint", endpoint_id=replay.endpoint_id, tenant=replay.tenant, limit=replay.limit,
                    now=self._now,
                )  # fmt: skip
                answers.append(Replayed(len(rows), replay.endpoint_id))
        return answers

    def _give_up(self, operations: list[GiveUp]) -> list[Answer]:
        return [
            Counted(len(self._all("give_up_deliveries", ids=_list(o.ids), reason=o.reason, now=self._now)))
            for o in operations
        ]

    def _set_endpoint(self, operations: list[SetEndpoint]) -> list[Answer]:
        rows = [self._one("set_endpoint", **msgspec.structs.asdict(o), now=self._now) for o in operations]
        return [row is not None for row in rows]

    def _prune(self, prunes: list[Prune]) -> list[Answer]:
        answers: list[Answer] = []
        for prune in prunes:
            gone = self._pruned(prune)
            ids = _list([row[0] for row in gone])
            for name in OF_A_JOB:
                self._one(name, ids=ids)
            if prune.age:
                self._one("prune_endpoints", age=prune.age, now=self._now)
                self._endpoints.clear()
            answers.append(Counted(len(gone)))
        return answers

    def _pruned(self, prune: Prune) -> list[Row]:
        if prune.of is None:
            return self._all("prune_jobs", ids=_list(prune.ids), age=prune.age, now=self._now)
        tenant, kind = prune.of
        return self._all("purge_jobs", ids=_list(prune.ids), tenant=tenant, kind=kind)

    # files ------------------------------------------------------------------------------------------------------------

    def _put_file(self, files: list[NewFile]) -> list[Answer]:
        answers: list[Answer] = []
        for file in files:
            [row] = self._all("put_file", **msgspec.structs.asdict(file), now=self._now)
            answers.append(File(*row))
        return answers

    def _drop_files(self, operations: list[DropFiles]) -> list[Answer]:
        return [Counted(len(self._all("drop_files", ids=_list(o.ids), tenant=o.tenant))) for o in operations]

    # records ----------------------------------------------------------------------------------------------------------

    def _put_record(self, puts: list[PutRecord]) -> list[Answer]:
        rows = [self._one(put_query(put), **msgspec.structs.asdict(put), now=self._now) for put in puts]
        return [Record(*row) if row else None for row in rows]

    def _drop_record(self, drops: list[DropRecord]) -> list[Answer]:
        return [self._one("drop_record", **msgspec.structs.asdict(drop)) is not None for drop in drops]

    _appliers: ClassVar["dict[type, Callable[[Writer, list[Any]], list[Answer]]]"] = {
        NewJob: _submit,
        Change: _change,
        Beat: _beat,
        Note: _note,
        SetQueue: _set_queue,
        Claim: _claim,
        Settle: _settle,
        Release: _release,
        Replay: _replay,
        SetEndpoint: _set_endpoint,
        GiveUp: _give_up,
        Prune: _prune,
        NewFile: _put_file,
        DropFiles: _drop_files,
        PutRecord: _put_record,
        DropRecord: _drop_record,
        Take: _take,
    }


class TooNew(Exception):
    pass


class Transaction:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK: a failed COMMIT (a full disk) rolls back too."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if kind is None:
                self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")


def _list(values: Sequence[str]) -> str:
    return msgspec.json.encode(values).decode()


def now() -> int:
    return time.time_ns() // 1000
