"""Jobs in SQLite: submit, claim, change, beat and note, each for all operations of its kind in a group."""

import sys
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import apsw
import msgspec
from msgspec.structs import replace

from chargehand.engine.announce import NewDelivery, announce, encode_reports
from chargehand.engine.flow import STEPS
from chargehand.engine.job import (
    FINAL,
    LEASE_RANDOM_BITS,
    NEVER,
    SECOND,
    Job,
    NewJob,
    QueueSettings,
    State,
    topic_of,
    visible,
)
from chargehand.engine.moves import TABLE, Attempt, Beat, Change, Lease, Move, Moved, Note, Submitted
from chargehand.engine.queue import Queue
from chargehand.engine.store import Claim, Claimed
from chargehand.store import flows, limits
from chargehand.store.flows import EndedStep, Make, outcome_of
from chargehand.store.operations import GROUP_BYTES, Answer
from chargehand.store.queries import columns
from chargehand.store.shared import settings_from
from chargehand.store.sqlite.session import LARGE, Row, Session
from chargehand.store.steps import Doing, OwnWork, T, Undone, Whole, no_work
from chargehand.store.whole_flows import Announce, Submit

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


def submit(db: Session, jobs: list[NewJob]) -> list[Answer]:
    rows: list[Row] = []
    payloads: list[Row] = []
    events: list[Row] = []
    deliveries: list[NewDelivery] = []
    answers: list[Answer] = []
    for job in jobs:
        run_at = NEVER if job.waits else max(db.now, job.run_at or 0) + int(job.delay_seconds * SECOND)
        deadline_at = None if job.deadline_seconds is None else db.now + int(job.deadline_seconds * SECOND)
        reports = encode_reports(job.reports)
        # In the order of the statement's parameters.
        row = (
            job.id, job.queue.kind, job.queue.tenant, job.queue.name, job.queue.node, job.priority, run_at, job.max_attempts,
            STEPS if job.waits else "", job.idempotency_key, job.fingerprint, job.traceparent, job.tracestate, reports, job.metadata, deadline_at,
            job.unique_key, None if job.keep_seconds is None else int(job.keep_seconds * SECOND), job.flow, job.step, job.limit_key, db.now,
        )  # fmt: skip
        if job.idempotency_key is None and job.unique_key is None:
            rows.append(row)
        elif (known := _insert_once(db, job, row)) is not None:
            answers.append(known)
            continue
        if len(job.payload) <= LARGE:
            payloads.append((job.id, job.payload))
        else:
            db.put_blob("insert_payload", "payload", job.id, job.payload)
        events.append(_event_row(db, job.id, 1, "submit", "queued", "", "", 0))
        told = announce(db.new_id, job.tenant, job.id, 1, "queued", reports)
        deliveries += told
        moved = Moved(
            job.id, job.queue, "submit", State.QUEUED, "", 0, 1, run_at, db.now, db.now,
            tuple([d.endpoint_id for d in told]),
        )  # fmt: skip
        answers.append(Submitted(job.id, True, job.fingerprint, moved))
    db.many("insert_job", rows)
    db.many("insert_payload", payloads)
    db.many("insert_event", events)
    db.deliver(deliveries)
    return answers


def _insert_once(db: Session, job: NewJob, row: Row) -> Submitted | None:
    """Insert the job; return None, or the job that prevented it: the one of its idempotency key, or the live one of its unique key."""
    db.connection.execute(db.queries["insert_job"].sql, row)
    if db.connection.changes():
        return None
    known = db.one("job_by_key", tenant=job.tenant, kind=job.kind, idempotency_key=job.idempotency_key)
    if known:
        return Submitted(known[0], False, known[1])
    known = db.one("job_by_unique_key", **columns(job.queue), unique_key=job.unique_key)
    return Submitted(known[0] if known else job.id, False, job.fingerprint)


def _event_row(
    db: Session, job_id: str, seq: int, move: str, state: str, stage: str, previous: str, attempt: int,
    level: str = "info", step: str = "", message: str = "", error: str | None = None, data: bytes | None = None,
) -> Row:  # fmt: skip
    return (job_id, seq, db.now, level, move, state, stage, previous, attempt, step, message, error, data)


def claim(db: Session, claims: list[Claim]) -> list[Answer]:
    """Pick the jobs of all claims for the same queues together, then deal them out in the order the claims came."""
    together: dict[tuple[Queue, ...], list[int]] = {}
    for place, claim in enumerate(claims):
        together.setdefault(claim.queues, []).append(place)
    answers: list[Answer] = [None] * len(claims)
    events: list[Row] = []
    deliveries: list[NewDelivery] = []
    spare = GROUP_BYTES
    for queues, places in together.items():
        rows: list[Row] = []
        picked = _pick(db, queues, sum([claims[i].limit for i in places]))
        with closing(_rows_of(db, picked.ids)) as found:
            for place in places:
                jobs = _grant(db, claims[place], found, spare)
                told: list[NewDelivery] = []
                for job in jobs:
                    spare -= len(job.payload)
                    rows.append(_claimed_row(db, job))
                    events.append(_claimed_event_row(db, job))
                    if job.stage and job.reports:
                        told += announce(db.new_id, job.tenant, job.id, job.seq, job.topic, job.reports)
                deliveries += told
                answers[place] = Claimed(tuple(jobs), tuple([d.endpoint_id for d in told]), picked.later_at)
                for settings in picked.limited:
                    _remember_starts(db, settings, jobs)
        db.many("claim_job", rows)  # before others look into the same queues
    db.many("insert_event", events)
    db.deliver(deliveries)
    return answers


class _PickedIds(NamedTuple):
    ids: list[str]
    limited: list[QueueSettings]  # of the queues that have limits
    later_at: int | None


def _pick(db: Session, queues: tuple[Queue, ...], limit: int) -> _PickedIds:
    levels: dict[int, list[Queue]] = {}  # priority -> the queues where something of it is due
    due_priorities = db.queries["due_priorities"].sql
    for queue in dict.fromkeys(queues):
        # In the order of the statement's parameters: a claim may name a hundred queues, most of them empty.
        values = queue.kind, queue.tenant, queue.name, queue.node, db.now
        for (priority,) in db.connection.execute(due_priorities, values):
            levels.setdefault(priority, []).append(queue)
    picked: list[tuple[Queue, str]] = []
    rooms: dict[Queue, _Room] = {}
    for priority in sorted(levels, reverse=True):
        candidates: list[tuple[int, str, Queue]] = []
        for queue in levels[priority]:
            if queue not in rooms:
                rooms[queue] = _room(db, queue, limit)
            want = min(limit - len(picked), rooms[queue].count)
            if want > 0:
                candidates += _due(db, queue, rooms[queue], priority, want)
        if len(levels[priority]) > 1:
            candidates.sort()
        for _, job_id, queue in candidates[: limit - len(picked)]:
            rooms[queue].count -= 1
            picked.append((queue, job_id))
        if len(picked) == limit:
            break
    later = min((room.later_at for room in rooms.values() if room.later_at is not None), default=None)
    offered = {queue: room.found for queue, room in rooms.items() if room.found is not None}
    ids = [job_id for _, job_id in (limits.in_turn(picked, offered) if offered else picked)]
    return _PickedIds(ids, [room.settings for room in rooms.values() if room.settings is not None], later)


@dataclass(slots=True)
class _Room:
    """How many more jobs a queue may start, and which, where its keys decide that."""

    count: int = sys.maxsize
    settings: QueueSettings | None = None
    later_at: int | None = None
    found: list[limits.Found] | None = None


def _room(db: Session, queue: Queue, want: int) -> _Room:
    row = db.one("queue_settings", **columns(queue))
    if row is None:
        return _Room()
    settings = settings_from(row)
    if settings.paused:
        return _Room(0)
    room = _Room(settings=settings)
    if settings.max_running is not None:
        [(running,)] = db.all("running_in", **columns(queue))
        room.count = max(0, settings.max_running - int(running))
    room.count, room.later_at = db.run(limits.rate_room(queue, settings.limits.rate, room.count))
    if settings.limits.by_key and room.count:
        room.found, later_at = db.run(limits.offer(settings, min(want, room.count)))
        room.later_at = later_at if room.later_at is None else room.later_at
    return room


def _due(db: Session, queue: Queue, room: _Room, priority: int, want: int) -> list[tuple[int, str, Queue]]:
    if room.found is not None:
        return [(each.run_at, each.job_id, queue) for each in room.found if each.priority == priority]
    due = db.all("due_jobs", **columns(queue), priority=priority, now=db.now, limit=want)
    return [(run_at, job_id, queue) for run_at, job_id in due]


def _remember_starts(db: Session, settings: QueueSettings, jobs: list[Job]) -> None:
    for name, values in limits.moved_turn(settings, [(job.queue, job.limit_key) for job in jobs]):
        db.one(name, **values)
    starts = [tuple(row.values()) for row in limits.started(settings, jobs)]
    if starts:
        db.one("drop_starts", **columns(settings.queue), length=int(settings.window * SECOND), now=db.now)
        db.many("add_start", starts)


def _rows_of(db: Session, ids: list[str]) -> apsw.Cursor:
    """Return a cursor over the rows of these jobs, each read when it is asked for."""
    query = db.queries["claimable_jobs"]
    return db.connection.execute(query.sql, query.bind(ids=ids))


def _grant(db: Session, claim: Claim, picked: apsw.Cursor, spare: int) -> list[Job]:
    """Grant one job whatever its size, and more while the answers of the group stay small enough for one message."""
    jobs: list[Job] = []
    while len(jobs) < claim.limit and (spare > 0 or not jobs):
        row = next(picked, None)
        if row is None:
            break
        job = _taken(db, Job(row[0], Queue(row[1], row[2], row[3], row[4]), *row[5:]), claim)
        jobs.append(job)
        spare -= len(job.payload)
    return jobs


def _taken(db: Session, job: Job, claim: Claim) -> Job:
    """Return the job as it is once it is claimed. Without a stage callers see no change: nothing was observed yet."""
    stage = claim.stage
    return replace(
        job,
        state=State.RUNNING,
        stage=stage,
        attempt=job.attempt + 1,
        lease=(job.claims + 1 << LEASE_RANDOM_BITS) + claim.lease_random,
        lease_owner=claim.owner,
        lease_until=db.now + int(claim.lease_seconds * SECOND),
        waiting_for="",
        seq=job.seq + 1,
        updated_at=db.now,
        previous=job.topic if stage else job.previous,
        topic=topic_of(State.RUNNING, stage) if stage else job.topic,
    )


def _claimed_row(db: Session, job: Job) -> Row:
    # In the order of the statement's parameters.
    return (
        job.stage, job.attempt, job.lease, job.lease_owner, job.lease_until, job.seq, db.now, job.previous, job.topic,
        job.id,
    )  # fmt: skip


def _claimed_event_row(db: Session, job: Job) -> Row:
    previous = job.previous if job.stage else job.topic
    message = f"claimed by {job.lease_owner}"
    return _event_row(db, job.id, job.seq, "claim", "running", job.stage, previous, job.attempt, message=message)


def change(db: Session, changes: list[Change]) -> list[Answer]:
    ended: list[EndedStep] = []
    answers = change_into(db, changes, ended)
    return list(run(db, flows.follow(ended)).join(answers)) if ended else list(answers)


def run(db: Session, steps: Doing[T]) -> T:
    """Run an operation that both databases apply alike, and do here what it asks for."""
    return db.run(steps, partial(_do, db))


def _do(db: Session, work: OwnWork) -> Any:
    match work:
        case Submit(jobs):
            return submit(db, jobs)
        case Make(changes, skipped):
            ended: list[EndedStep] = []
            return change_into(db, changes, ended, skipped), ended
        case Announce(job):
            told = announce(db.new_id, job.tenant, job.id, job.seq, job.topic, job.reports)
            db.deliver(told)
            return tuple([delivery.endpoint_id for delivery in told])
        case Whole(steps, may_clash):
            try:
                with db.savepoint():
                    return run(db, steps)
            except Undone as undone:
                return undone.answer
            except apsw.ConstraintError:
                if may_clash:
                    return None
                raise
    return no_work(work)


def change_into(
    db: Session, changes: Sequence[Change], ended: list[EndedStep], skipped: Collection[str] = ()
) -> list[Moved | None]:
    events: list[Row] = []
    results: list[tuple[str, bytes]] = []
    deliveries: list[NewDelivery] = []
    answers: list[Moved | None] = []
    for change in changes:
        job_id = change.guard.job_id
        if not _move(db, change):
            answers.append(None)
            continue
        move = Move.by_name[change.move]
        [row] = db.all("changed_job", job_id=job_id)
        kind, tenant, name, node, attempt, seq, run_at, created_at, topic, previous, topic_seq, reports, flow, step = (
            row
        )
        if flow is not None and move.to in FINAL:
            ended.append(EndedStep(flow, step, job_id, outcome_of(change, skipped)))
        changed = topic_seq == seq
        if change.payload is not None:
            db.put_blob("put_payload", "payload", job_id, change.payload)
        if change.result is not None:
            results.append((job_id, change.result))
        events.append(
            _event_row(db,
                job_id, seq, change.move, str(move.to), change.stage, previous if changed else topic, attempt,
                change.level, change.step, change.message, change.error, change.data,
            )
        )  # fmt: skip
        told = announce(db.new_id, tenant, job_id, seq, topic, reports) if changed and reports else []
        deliveries += told
        answers.append(
            Moved(
                job_id, Queue(kind, tenant, name, node), change.move, move.to, change.stage, attempt, seq, run_at,
                db.now, created_at, tuple([d.endpoint_id for d in told]), _submit_successor(db, change.successor),
            )
        )  # fmt: skip
    _put_results(db, results)
    db.many("insert_event", events)
    db.deliver(deliveries)
    return answers


def _put_results(db: Session, results: list[tuple[str, bytes]]) -> None:
    if any(len(result) > LARGE for _, result in results):
        for job_id, result in results:
            db.put_blob("put_result", "result", job_id, result)
    else:
        db.many("put_result", results)


def _submit_successor(db: Session, successor: NewJob | None) -> Moved | None:
    if successor is None:
        return None
    [submitted] = submit(db, [successor])
    return cast(Submitted, submitted).moved


def _move(db: Session, change: Change) -> bool:
    guard = change.guard
    return db.wrote(
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
        now=db.now,
    )


def beat(db: Session, beats: list[Beat]) -> list[Answer]:
    answers: list[Answer] = []
    for beat in beats:
        until = db.now + int(beat.lease_seconds * SECOND)
        held = db.wrote("beat_job", **msgspec.structs.asdict(beat.guard), lease_until=until)
        answers.append(until if held else None)
    return answers


def note(db: Session, notes: list[Note]) -> list[Answer]:
    events: list[Row] = []
    answers: list[Answer] = []
    for note in notes:
        job_id = note.guard.job_id
        if not db.wrote("note_job", **msgspec.structs.asdict(note.guard)):
            answers.append(None)
            continue
        [(seq, state, stage, topic, attempt)] = db.all("noted_job", job_id=job_id)
        event = (seq, "note", state, stage, topic, attempt, note.level, note.step, note.message, None, note.data)
        events.append(_event_row(db, job_id, *event))
        answers.append(seq)
    db.many("insert_event", events)
    return answers
