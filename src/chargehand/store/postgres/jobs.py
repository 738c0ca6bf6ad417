"""Jobs in PostgreSQL: submit, claim, change, beat and note, each for all operations of its kind in a group."""

import sys
from typing import cast

import msgspec

from chargehand.engine.announce import NewDelivery, announce, encode_reports
from chargehand.engine.ids import UlidMaker
from chargehand.engine.job import FINAL, SECOND, Job, NewJob, State, topic_of, visible
from chargehand.engine.moves import Attempt, Beat, Change, Lease, Move, Moved, Note, Submitted
from chargehand.engine.queue import Queue
from chargehand.engine.store import Claim, Claimed
from chargehand.store.operations import Answer
from chargehand.store.postgres.transaction import Transaction, arrays
from chargehand.store.queries import columns, queue_from
from chargehand.store.shared import job_from, settings_from

new_id = UlidMaker()
GUARD = ("job_id", "tenant", "kind", "lease", "owner")
CHANGE = (
    "move", "stage", "waiting_for", "error", "failed_step", "lease_until", "deadline_at", "result", "level", "step", "message",
    "data", "payload", "seen_stage",
)  # fmt: skip
SPARES = (16, 256, 4096)  # candidates beyond those wanted, if others are taking the first


async def submit(tx: Transaction, jobs: list[NewJob]) -> list[Answer]:
    # Sorted by key, so that two groups with the same keys wait for each other instead of for each other's other key.
    order = sorted(jobs, key=lambda job: (job.idempotency_key or "", job.unique_key or "", job.queue, job.id))
    reports = {job.id: encode_reports(job.reports) for job in jobs}
    rows = await tx.fetch(
        "submit_jobs",
        **arrays(order, "id", "queue", "payload", "run_at", "fingerprint", "traceparent", "tracestate", "unique_key"),
        priorities=[job.priority for job in order],
        max_attempts=[job.max_attempts for job in order],
        delays=[int(job.delay_seconds * SECOND) for job in order],
        keys=[job.idempotency_key for job in order],
        reports=[reports[job.id] for job in order],
        metadata=[job.metadata for job in order],
        deadlines=[None if job.deadline_seconds is None else int(job.deadline_seconds * SECOND) for job in order],
        keeps=[None if job.keep_seconds is None else int(job.keep_seconds * SECOND) for job in order],
    )
    inserted = {row[0]: row for row in rows}
    deliveries: list[NewDelivery] = []
    answers: list[Answer] = []
    for job in jobs:
        if (row := inserted.get(job.id)) is None:
            answers.append(await _known(tx, job))
            continue
        told = announce(new_id, job.tenant, job.id, 1, "queued", reports[job.id])
        deliveries += told
        _, run_at, at = row
        moved = Moved(
            job.id, job.queue, "submit", State.QUEUED, "", 0, 1, run_at, at, at,
            tuple(d.endpoint_id for d in told),
        )  # fmt: skip
        answers.append(Submitted(job.id, True, job.fingerprint, moved))
    await tx.deliver(deliveries)
    return answers


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


async def claim(tx: Transaction, claims: list[Claim]) -> list[Answer]:
    """Pick the jobs of all claims for the same queues together, then deal them out in the order the claims came."""
    together: dict[tuple[Queue, ...], list[int]] = {}
    for place, claim in enumerate(claims):
        together.setdefault(claim.queues, []).append(place)
    answers: list[Answer] = [None] * len(claims)
    for queues, places in together.items():
        slots = [place for place in places for _ in range(claims[place].limit)]
        jobs: dict[int, list[Job]] = {place: [] for place in places}
        told: dict[int, list[NewDelivery]] = {place: [] for place in places}
        for spare in SPARES:
            picked, more = await _pick(tx, queues, [claims[place] for place in slots], spare)
            for place, (job, visible_now) in zip(slots, picked, strict=False):
                jobs[place].append(job)
                if visible_now:
                    told[place] += announce(new_id, job.tenant, job.id, job.seq, job.topic, job.reports)
            slots = slots[len(picked) :]
            if not slots or not more:
                break
        await tx.deliver([delivery for place in places for delivery in told[place]])
        for place in places:
            answers[place] = Claimed(tuple(jobs[place]), tuple(d.endpoint_id for d in told[place]))
    return answers


async def _pick(
    tx: Transaction, queues: tuple[Queue, ...], slots: list[Claim], spare: int
) -> tuple[list[tuple[Job, bool]], bool]:
    """Return a job for each slot while there are any, whether callers see a change, and whether more candidates may help."""
    rooms = await _rooms(tx, queues)
    rows = await tx.fetch(
        "claim_jobs",
        queues=list(rooms),
        rooms=list(rooms.values()),
        limit=len(slots),
        spare=spare,
        owners=[claim.owner for claim in slots],
        lengths=[int(claim.lease_seconds * SECOND) for claim in slots],
        stages=[claim.stage for claim in slots],
        lease_randoms=[claim.lease_random for claim in slots],
    )
    picked = [(job_from(tuple(row), row[-4]), row[-3] == row["seq"]) for row in rows if row["id"] is not None]
    return picked, rows[0][-1] == len(slots) + spare


async def _rooms(tx: Transaction, queues: tuple[Queue, ...]) -> dict[Queue, int]:
    """Return how many more jobs each queue may run."""
    rooms = dict.fromkeys(queues, sys.maxsize)
    settings = [settings_from(row) for row in await tx.fetch("lock_queue_settings", queues=queues)]
    limits = {each.queue: each.max_running for each in settings if each.max_running is not None}
    if limits:
        rows = await tx.fetch("count_running", queues=list(limits))
        rooms |= {queue: max(0, limits[queue] - row[-1]) for row in rows for queue in [queue_from(row)]}
    return rooms | {each.queue: 0 for each in settings if each.paused}


async def change(tx: Transaction, changes: list[Change]) -> list[Answer]:
    answers: list[Answer] = [None] * len(changes)
    waiting = list(enumerate(changes))
    while waiting:
        # UPDATE … FROM takes a row once, whatever it is joined with: a second change of a job goes into the next round.
        now: dict[str, tuple[int, Change]] = {}
        later: list[tuple[int, Change]] = []
        for place, change in waiting:
            if change.guard.job_id in now:
                later.append((place, change))
            else:
                now[change.guard.job_id] = (place, change)
        for place, moved in await _change_each_once(tx, sorted(now.values(), key=lambda pair: pair[1].guard.job_id)):
            answers[place] = moved
        waiting = later
    return answers


async def _change_each_once(tx: Transaction, changes: list[tuple[int, Change]]) -> list[tuple[int, Moved]]:
    asked = [change for _, change in changes]
    moves = [Move.by_name[change.move] for change in asked]
    rows = await tx.fetch(
        "change_jobs",
        **arrays([change.guard for change in asked], *GUARD),
        **arrays(asked, *CHANGE),
        delays=[int(change.delay_seconds * SECOND) for change in asked],
        sources=[" ".join(move.source) for move in moves],
        states=[str(move.to) for move in moves],
        topics=[topic_of(move.to, change.stage) for move, change in zip(moves, asked, strict=True)],
        visibles=[visible(move.to, change.stage) for move, change in zip(moves, asked, strict=True)],
        resets=[move.attempt is Attempt.RESET for move in moves],
        deltas=[-1 if move.attempt is Attempt.DOWN else 0 for move in moves],
        kepts=[move.lease is Lease.KEEP for move in moves],
        finals=[move.to in FINAL for move in moves],
    )
    moved_rows = {row[0]: row for row in rows}
    successors = [c.successor for _, c in changes if c.successor is not None and c.guard.job_id in moved_rows]
    submitted = await submit(tx, successors) if successors else []
    succeeding = {each.id: cast(Submitted, answer).moved for each, answer in zip(successors, submitted, strict=True)}
    deliveries: list[NewDelivery] = []
    moved: list[tuple[int, Moved]] = []
    for (place, change), move in zip(changes, moves, strict=True):
        if (row := moved_rows.get(change.guard.job_id)) is None:
            continue
        attempt, seq, run_at, created_at, at, topic, topic_seq, reports = row[5:]
        job_id, queue = row[0], queue_from(row, 1)
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


async def beat(tx: Transaction, beats: list[Beat]) -> list[Answer]:
    guards = [beat.guard for beat in beats]
    rows = await tx.fetch(
        "beat_jobs",
        **arrays(guards, *GUARD),
        lengths=[int(beat.lease_seconds * SECOND) for beat in beats],
    )
    extended = {row[0]: row[1:] for row in rows}
    answers: list[Answer] = []
    for guard in guards:
        *found, until = extended.get(guard.job_id, (None,) * 5)
        asked = (guard.lease, guard.tenant, guard.owner, guard.kind)
        mine = all(wanted in (None, seen) for wanted, seen in zip(asked, found, strict=True))
        answers.append(until if mine else None)
    return answers


async def note(tx: Transaction, notes: list[Note]) -> list[Answer]:
    answers: list[Answer] = []
    for n in notes:
        guard = msgspec.structs.asdict(n.guard)
        rows = await tx.fetch("note_job", **guard, level=n.level, step=n.step, message=n.message, data=n.data)
        answers.append(rows[0][0] if rows else None)
    return answers
