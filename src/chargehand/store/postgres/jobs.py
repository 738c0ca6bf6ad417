"""Jobs in PostgreSQL: submit, claim, change, beat and note, each for all operations of its kind in a group."""

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, cast

import asyncpg
import msgspec

from chargehand.engine.announce import NewDelivery, announce, encode_reports
from chargehand.engine.flow import STEPS
from chargehand.engine.ids import UlidMaker
from chargehand.engine.job import FINAL, NEVER, SECOND, Job, NewJob, QueueSettings, State, topic_of, visible
from chargehand.engine.moves import Attempt, Beat, Change, Lease, Move, Moved, Note, Submitted
from chargehand.engine.queue import Queue
from chargehand.engine.store import Claim, Claimed
from chargehand.store import flows, limits
from chargehand.store.flows import EndedStep, Make, outcome_of
from chargehand.store.operations import Answer
from chargehand.store.postgres.transaction import NumberedBytes, Transaction, as_json, delivery_rows
from chargehand.store.queries import columns, queue_from
from chargehand.store.shared import job_from, settings_from
from chargehand.store.steps import Doing, OwnWork, T, Undone, Whole, no_work
from chargehand.store.whole_flows import Announce, Submit

new_id = UlidMaker()
PART = 500  # submissions or changes in a statement: those of a flow may be ten thousand, and each is compared with each
SPARES = (16, 256, 4096)  # candidates beyond those wanted, if others are taking the first
NO_TURNS = Queue("", "", "")  # stands for all queues without turns


async def submit(tx: Transaction, jobs: Sequence[NewJob]) -> list[Answer]:
    # The key of a job that is not taken for its unique key is free again, and that is a statement more.
    several = len(jobs) > PART or any(job.idempotency_key and job.unique_key for job in jobs)
    async with tx.atomic() if several else nullcontext():
        return await _submit(tx, jobs)


async def _submit(tx: Transaction, jobs: Sequence[NewJob]) -> list[Answer]:
    # Sorted by key, so that two groups with the same keys wait for each other instead of for each other's other key.
    order = sorted(jobs, key=lambda job: (job.idempotency_key or "", job.unique_key or "", job.queue, job.id))
    reports = {job.id: encode_reports(job.reports) for job in jobs}
    told = {job.id: announce(new_id, job.tenant, job.id, 1, "queued", reports[job.id]) for job in jobs if job.reports}
    rows: list[Any] = []
    for begin in range(0, len(order), PART):
        rows += await _insert(tx, order[begin : begin + PART], reports, told)
    inserted = {row[0]: row for row in rows}
    refused = [job.id for job in jobs if job.idempotency_key and job.unique_key and job.id not in inserted]
    if refused:
        await tx.fetch("free_keys", ids=refused)
    answers: list[Answer] = []
    for job in jobs:
        if (row := inserted.get(job.id)) is None:
            answers.append(await _known(tx, job))
            continue
        _, run_at, at = row
        moved = Moved(
            job.id, job.queue, "submit", State.QUEUED, "", 0, 1, run_at, at, at,
            tuple(delivery.endpoint_id for delivery in told.get(job.id, ())),
        )  # fmt: skip
        answers.append(Submitted(job.id, True, job.fingerprint, moved))
    return answers


async def _insert(
    tx: Transaction, jobs: Sequence[NewJob], reports: Mapping[str, str], told: Mapping[str, Sequence[NewDelivery]]
) -> Sequence[Any]:
    blobs = NumberedBytes()
    values: dict[str, Any] = {"rows": as_json([_new_row(job, reports[job.id], blobs) for job in jobs]), "blobs": blobs}
    if told:
        deliveries = delivery_rows(chain.from_iterable([told.get(job.id, ()) for job in jobs]))
        return await tx.fetch("submit_reporting_jobs", **values, deliveries=deliveries)
    return await tx.fetch("submit_jobs", **values)


def _new_row(job: NewJob, reports: str, blobs: NumberedBytes) -> dict[str, Any]:
    return columns(job.queue) | {
        "id": job.id,
        "payload": blobs.number(job.payload),
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "run_at": job.run_at,
        "delay": int(job.delay_seconds * SECOND),
        "idempotency_key": job.idempotency_key,
        "fingerprint": job.fingerprint,
        "traceparent": job.traceparent,
        "tracestate": job.tracestate,
        "reports": reports,
        "metadata": blobs.number(job.metadata),
        "deadline": None if job.deadline_seconds is None else int(job.deadline_seconds * SECOND),
        "unique_key": job.unique_key,
        "keep": None if job.keep_seconds is None else int(job.keep_seconds * SECOND),
        "flow": job.flow,
        "step": job.step,
        "waits": NEVER if job.waits else None,
        "waiting_for": STEPS if job.waits else "",
        "limit_key": job.limit_key,
    }


async def _known(tx: Transaction, job: NewJob) -> Answer:
    """Return the job that prevented the insert: the one of the idempotency key, or the live one of the unique key."""
    known = await tx.fetch("job_by_key", tenant=job.tenant, kind=job.kind, idempotency_key=job.idempotency_key)
    if known:
        return Submitted(known[0][0], False, known[0][1])
    if job.unique_key is not None:
        live = await tx.fetch("job_by_unique_key", **columns(job.queue), unique_key=job.unique_key)
        if live:
            return Submitted(live[0][0], False, job.fingerprint)
    # It ended, or was removed, between the two statements: nothing prevents the insert now.
    return (await submit(tx, [job]))[0]


async def claim(tx: Transaction, claims: Sequence[Claim]) -> list[Answer]:
    """Pick the jobs of all claims for the same queues together, then deal them out in the order the claims came."""
    together: dict[tuple[Queue, ...], list[int]] = {}
    for place, claim in enumerate(claims):
        together.setdefault(claim.queues, []).append(place)
    answers: list[Answer] = [None] * len(claims)
    for queues, places in together.items():
        wanted = [claims[place] for place in places]
        done = await _claim_at_once(tx, queues, wanted)
        if done is None:
            async with tx.atomic():
                done = await _claim_in_rooms(tx, queues, wanted)
        for place, claimed in zip(places, done, strict=True):
            tx.silent.note(claimed.jobs)
            answers[place] = claimed
    return answers


async def _claim_at_once(tx: Transaction, queues: tuple[Queue, ...], claims: list[Claim]) -> list[Claimed] | None:
    """Claim in one statement. Return None if that cannot be: a queue is limited, jobs report, or others were quicker."""
    slots = [claim for claim in claims for _ in range(claim.limit)]
    picked = await _pick(tx, dict.fromkeys(queues), slots, SPARES[0], delivers=False)
    if picked.refused or (not picked.jobs and picked.more):
        return None
    jobs = iter(job for job, _ in picked.jobs)
    return [Claimed(tuple(islice(jobs, claim.limit)), ()) for claim in claims]


async def _claim_in_rooms(tx: Transaction, queues: tuple[Queue, ...], claims: list[Claim]) -> list[Claimed]:
    slots = [number for number, claim in enumerate(claims) for _ in range(claim.limit)]
    jobs: list[list[Job]] = [[] for _ in claims]
    told: list[list[NewDelivery]] = [[] for _ in claims]
    for spare in SPARES:
        rooms = await _rooms(tx, queues, len(slots))
        picked = await _pick_in(tx, rooms, [claims[number] for number in slots], spare)
        for number, (job, visible_now) in zip(slots, picked.jobs, strict=False):
            jobs[number].append(job)
            if visible_now:
                told[number] += announce(new_id, job.tenant, job.id, job.seq, job.topic, job.reports)
        await _remember_starts(tx, rooms, [job for job, _ in picked.jobs])
        slots = slots[len(picked.jobs) :]
        if not slots or not picked.more:
            break
    await tx.deliver([delivery for each in told for delivery in each])
    return [
        Claimed(tuple(mine), tuple(d.endpoint_id for d in of), rooms.later_at)
        for mine, of in zip(jobs, told, strict=True)
    ]


class _Picked(NamedTuple):
    jobs: list[tuple[Job, bool]]  # one for each slot while there are any, with whether callers see a change
    more: bool  # other candidates may help
    refused: bool  # nothing was picked: a queue has settings and its room is not known, or a job reports


async def _pick(
    tx: Transaction, rooms: Mapping[Queue, int | None], slots: list[Claim], spare: int, *, delivers: bool
) -> _Picked:
    rows = await tx.fetch(
        "claim_jobs",
        rooms=_room_rows(rooms),
        limit=len(slots),
        spare=spare,
        slots=_slot_rows(slots),
        delivers=delivers or not any(claim.stage for claim in slots),
    )
    return _Picked(_claimed(rows), rows[0][-2] == len(slots) + spare, rows[0][-1])


def _room_rows(rooms: Mapping[Queue, int | None]) -> str:
    asked = enumerate(rooms.items())
    return as_json([columns(queue) | {"room": room, "number": number} for number, (queue, room) in asked])


def _slot_rows(slots: Sequence[Claim]) -> str:
    return as_json([_slot_row(number, claim) for number, claim in enumerate(slots, 1)])


def _claimed(rows: Sequence[Any]) -> list[tuple[Job, bool]]:
    return [(job_from(row, row[-5]), row[-4] == row["seq"]) for row in rows if row["id"] is not None]


def _slot_row(number: int, claim: Claim) -> dict[str, Any]:
    return {
        "number": number,
        "owner": claim.owner,
        "length": int(claim.lease_seconds * SECOND),
        "stage": claim.stage,
        "lease_random": claim.lease_random,
    }


class _Rooms(NamedTuple):
    """How many more jobs each queue may run; where its keys decide, which."""

    counts: dict[Queue, int]
    found: dict[Queue, list[limits.Found]]
    settings: list[QueueSettings]
    later_at: int | None


async def _rooms(tx: Transaction, queues: tuple[Queue, ...], want: int) -> _Rooms:
    counts = dict.fromkeys(queues, sys.maxsize)
    settings = [settings_from(row) for row in await tx.fetch("lock_queue_settings", queues=queues)]
    most = {each.queue: each.max_running for each in settings if each.max_running is not None}
    if most:
        rows = await tx.fetch("count_running", queues=list(most))
        counts |= {queue: max(0, most[queue] - row[-1]) for row in rows for queue in [queue_from(row)]}
    counts |= {each.queue: 0 for each in settings if each.paused}
    found: dict[Queue, list[limits.Found]] = {}
    later: list[int] = []
    for each in settings:
        room: limits.RoomToStart = await tx.run(limits.rate_room(each.queue, each.limits.rate, counts[each.queue]))
        counts[each.queue] = room.free
        offered = limits.Offer([], None)
        if each.limits.by_key and room.free:
            offered = await tx.run(limits.offer(each, min(want, room.free)))
            found[each.queue] = offered.found
            counts[each.queue] = 0  # it offers what it may start
        later += [at for at in (room.later_at, offered.later_at) if at is not None]
    return _Rooms(counts, found, settings, min(later, default=None))


async def _pick_in(tx: Transaction, rooms: _Rooms, slots: list[Claim], spare: int) -> _Picked:
    if not any(rooms.found.values()):
        return await _pick(tx, rooms.counts, slots, spare, delivers=True)
    others = await tx.fetch("find_candidates", rooms=_room_rows(rooms.counts), limit=len(slots), spare=0)
    found = [(queue, each) for queue, offered in rooms.found.items() for each in offered]
    found += [(NO_TURNS, limits.Found(*row)) for row in others]
    found.sort(key=lambda each: (-each[1].priority, each[1].run_at, each[1].job_id))
    chosen = limits.in_turn([(queue, each.job_id) for queue, each in found[: len(slots)]], rooms.found)
    keys = {each.job_id: each.key for offered in rooms.found.values() for each in offered}
    for settings in rooms.settings:
        # Also of one that somebody else is moving at this moment, and that is not claimed: else all others would wait for it.
        for name, values in limits.moved_turn(settings, [(queue, keys.get(job_id, "")) for queue, job_id in chosen]):
            await tx.fetch(name, **values)
    ids = [job_id for _, job_id in chosen]
    rows = await tx.fetch("claim_found_jobs", ids=ids, limit=len(slots), slots=_slot_rows(slots), delivers=True)
    return _Picked(_claimed(rows), more=False, refused=False)


async def _remember_starts(tx: Transaction, rooms: _Rooms, jobs: list[Job]) -> None:
    for settings in rooms.settings:
        if starts := list(limits.started(settings, jobs)):
            await tx.fetch("drop_starts", **columns(settings.queue), length=int(settings.window * SECOND))
            await tx.fetch("add_starts", rows=as_json(starts))


async def change(tx: Transaction, changes: Sequence[Change]) -> list[Answer]:
    alone = all(c.guard.job_id in tx.silent and c.successor is None and c.payload is None for c in changes)
    ended: list[EndedStep] = []
    if alone and len({c.guard.job_id for c in changes}) == len(changes):
        return list(await change_into(tx, changes, ended, silent=True))
    async with tx.atomic():
        answers = await change_into(tx, changes, ended)
        return list((await run(tx, flows.follow(ended))).join(answers)) if ended else list(answers)


async def run(tx: Transaction, steps: Doing[T]) -> T:
    """Run an operation that both databases apply alike, and do here what it asks for."""
    return await tx.run(steps, partial(_do, tx))


async def _do(tx: Transaction, work: OwnWork) -> Any:
    match work:
        case Submit(jobs):
            return await submit(tx, jobs)
        case Make(changes, skipped):
            ended: list[EndedStep] = []
            return await change_into(tx, changes, ended, skipped), ended
        case Announce(job):
            told = announce(new_id, job.tenant, job.id, job.seq, job.topic, job.reports)
            await tx.deliver(told)
            return tuple(delivery.endpoint_id for delivery in told)
        case Whole(steps, may_clash):
            try:
                async with tx.savepoint():
                    return await run(tx, steps)
            except Undone as undone:
                return undone.answer
            except asyncpg.UniqueViolationError:
                if may_clash:
                    return None
                raise
    return no_work(work)


async def change_into(
    tx: Transaction,
    changes: Sequence[Change],
    ended: list[EndedStep],
    skipped: Collection[str] = (),
    *,
    silent: bool = False,
) -> list[Moved | None]:
    answers: list[Moved | None] = [None] * len(changes)
    waiting = list(enumerate(changes))
    while waiting:
        # UPDATE … FROM takes a row once, whatever it is joined with: a second change of a job goes into a later round.
        now: dict[str, tuple[int, Change]] = {}
        later: list[tuple[int, Change]] = []
        for place, change in waiting:
            if len(now) == PART or change.guard.job_id in now:
                later.append((place, change))
            else:
                now[change.guard.job_id] = (place, change)
        each_once = sorted(now.values(), key=lambda pair: pair[1].guard.job_id)
        for place, moved in await _change_each_once(tx, each_once, ended, skipped, silent):
            answers[place] = moved
        waiting = later
    return answers


async def _change_each_once(
    tx: Transaction, changes: list[tuple[int, Change]], ended: list[EndedStep], skipped: Collection[str], silent: bool
) -> list[tuple[int, Moved]]:
    asked = [change for _, change in changes]
    moves = [Move.by_name[change.move] for change in asked]
    blobs = NumberedBytes()
    rows = await tx.fetch(
        _statement(moves, silent),
        rows=as_json([_change_row(change, move, blobs) for change, move in zip(asked, moves, strict=True)]),
        job_ids=[change.guard.job_id for change in asked],
        blobs=blobs,
    )
    moved_rows = {row[0]: row for row in rows}
    for change in asked:
        if change.payload is not None and change.guard.job_id in moved_rows:
            await tx.fetch("change_payload", job_id=change.guard.job_id, payload=change.payload)
    successors = [c.successor for _, c in changes if c.successor is not None and c.guard.job_id in moved_rows]
    submitted = await submit(tx, successors) if successors else []
    succeeding = {each.id: cast(Submitted, answer).moved for each, answer in zip(successors, submitted, strict=True)}
    deliveries: list[NewDelivery] = []
    moved: list[tuple[int, Moved]] = []
    for (place, change), move in zip(changes, moves, strict=True):
        if (row := moved_rows.get(change.guard.job_id)) is None:
            continue
        if move.to in FINAL:
            tx.silent.forget(change.guard.job_id)
        attempt, seq, run_at, created_at, at, topic, topic_seq, reports, flow, step = row[5:]
        job_id, queue = row[0], queue_from(row, 1)
        if flow is not None and move.to in FINAL:
            ended.append(EndedStep(flow, step, job_id, outcome_of(change, skipped)))
        told = announce(new_id, queue.tenant, job_id, seq, topic, reports) if topic_seq == seq else []
        deliveries += told
        moved.append(
            (
                place,
                Moved(
                    job_id, queue, change.move, move.to, change.stage, attempt, seq, run_at, at, created_at,
                    tuple(d.endpoint_id for d in told),
                    None if change.successor is None else succeeding[change.successor.id],
                ),
            )
        )  # fmt: skip
    await tx.deliver(deliveries)
    return moved


def _statement(moves: Sequence[Move], silent: bool) -> str:
    if any(not FINAL.isdisjoint(move.source) for move in moves):
        return "change_jobs"
    return "change_silent_jobs" if silent else "change_live_jobs"


def _change_row(change: Change, move: Move, blobs: NumberedBytes) -> dict[str, Any]:
    return msgspec.structs.asdict(change.guard) | {
        "move": change.move,
        "source": " ".join(move.source),
        "state": move.to,
        "stage": change.stage,
        "topic": topic_of(move.to, change.stage),
        "visible": visible(move.to, change.stage),
        "reset": move.attempt is Attempt.RESET,
        "delta": -1 if move.attempt is Attempt.DOWN else 0,
        "delay": int(change.delay_seconds * SECOND),
        "kept": move.lease is Lease.KEEP,
        "final": move.to in FINAL,
        "waiting_for": change.waiting_for,
        "error": change.error,
        "failed_step": change.failed_step,
        "lease_until": change.lease_until,
        "deadline_at": change.deadline_at,
        "seen_stage": change.seen_stage,
        "level": change.level,
        "step": change.step,
        "message": change.message,
        "result": blobs.number(change.result),
        "data": blobs.number(change.data),
    }


async def beat(tx: Transaction, beats: Sequence[Beat]) -> list[Answer]:
    guards = [beat.guard for beat in beats]
    lengths = [{"length": int(beat.lease_seconds * SECOND)} for beat in beats]
    rows = await tx.fetch(
        "beat_jobs",
        rows=as_json([msgspec.structs.asdict(guard) | each for guard, each in zip(guards, lengths, strict=True)]),
        job_ids=[guard.job_id for guard in guards],
    )
    extended = {row[0]: row[1:] for row in rows}
    answers: list[Answer] = []
    for guard in guards:
        *found, until = extended.get(guard.job_id, (None,) * 5)
        asked = (guard.lease, guard.tenant, guard.owner, guard.kind)
        mine = all(wanted in (None, seen) for wanted, seen in zip(asked, found, strict=True))
        answers.append(until if mine else None)
    return answers


async def note(tx: Transaction, notes: Sequence[Note]) -> list[Answer]:
    answers: list[Answer] = []
    async with tx.atomic() if len(notes) > 1 else nullcontext():
        for n in notes:
            guard = msgspec.structs.asdict(n.guard)
            rows = await tx.fetch("note_job", **guard, level=n.level, step=n.step, message=n.message, data=n.data)
            answers.append(rows[0][0] if rows else None)
    return answers
