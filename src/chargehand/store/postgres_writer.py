"""A group of operations applied to PostgreSQL inside one transaction: one statement for each kind, or few."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, cast

import asyncpg
import msgspec
from asyncpg.pool import PoolConnectionProxy

from chargehand.engine.delivery import Settle, Take, Taken, shown_url
from chargehand.engine.file import File, NewFile
from chargehand.engine.ids import UlidMaker
from chargehand.engine.job import FINAL, SECOND, Job, NewJob, State, topic_of, visible
from chargehand.engine.moves import Attempt, Change, Lease, Move, Moved
from chargehand.engine.record import DropRecord, PutRecord, Record
from chargehand.engine.store import Beat, Beaten, Claim, Claimed, Note, Noted, Submitted
from chargehand.store.announce import NewDelivery, announce, encode_reports
from chargehand.store.operations import (
    OF_A_JOB,
    Answer,
    Counted,
    DropFiles,
    GiveUp,
    Operation,
    Prune,
    Release,
    Replay,
    Replayed,
    SetEndpoint,
    SetQueue,
    put_query,
)
from chargehand.store.queries import Query
from chargehand.store.reads import job_from

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"

_new_id = UlidMaker()
SPARES = (16, 256, 4096)  # candidates beyond those wanted, if others are taking the first


class _Transaction:
    def __init__(self, connection: Connection, queries: dict[str, Query], now: int | None) -> None:
        self._connection = connection
        self._queries = queries
        self._now = now

    async def fetch(self, query_name: str, /, **values: Any) -> Sequence[Any]:
        query = self._queries[query_name]
        return await self._connection.fetch(query.sql, *query.bind(now=self._now, **values))

    async def deliver(self, deliveries: Sequence[NewDelivery]) -> None:
        if not deliveries:
            return
        endpoints = {d.endpoint_id: d for d in deliveries}
        await self.fetch(
            "ensure_endpoints",
            ids=list(endpoints),
            tenants=[d.tenant for d in endpoints.values()],
            urls=[shown_url(d.url) for d in endpoints.values()],
        )
        columns = [list(column) for column in zip(*deliveries, strict=True)]
        names = ("ids", "tenants", "job_ids", "seqs", "endpoint_ids", "urls", "dialects")
        await self.fetch("insert_deliveries", **dict(zip(names, columns, strict=True)))


async def apply(
    connection: Connection, queries: dict[str, Query], now: int | None, operations: Sequence[Operation]
) -> list[Answer]:
    answers: list[Answer] = [None] * len(operations)
    by_kind: dict[type, list[int]] = {}
    for place, operation in enumerate(operations):
        by_kind.setdefault(type(operation), []).append(place)
    transaction = _Transaction(connection, queries, now)
    for kind, step in _STEPS.items():
        if places := by_kind.get(kind):
            for place, answer in zip(places, await step(transaction, [operations[i] for i in places]), strict=True):
                answers[place] = answer
    return answers


# jobs -------------------------------------------------------------------------------------------------------------------


async def _submit(tx: _Transaction, jobs: list[NewJob]) -> list[Answer]:
    # Sorted by key, so that two groups with the same keys wait for each other instead of for each other's other key.
    order = sorted(
        jobs, key=lambda job: (job.idempotency_key or "", job.unique_key or "", job.queue, job.tenant, job.kind, job.id)
    )
    reports = {job.id: encode_reports(job.reports) for job in jobs}
    rows = await tx.fetch(
        "submit_jobs",
        ids=[job.id for job in order],
        tenants=[job.tenant for job in order],
        kinds=[job.kind for job in order],
        queues=[job.queue for job in order],
        payloads=[job.payload for job in order],
        priorities=[job.priority for job in order],
        max_attempts=[job.max_attempts for job in order],
        run_ats=[job.run_at for job in order],
        delays=[int(job.delay_seconds * SECOND) for job in order],
        keys=[job.idempotency_key for job in order],
        fingerprints=[job.fingerprint for job in order],
        traceparents=[job.traceparent for job in order],
        tracestates=[job.tracestate for job in order],
        reports=[reports[job.id] for job in order],
        metadata=[job.metadata for job in order],
        deadlines=[None if job.deadline_seconds is None else int(job.deadline_seconds * SECOND) for job in order],
        unique_keys=[job.unique_key for job in order],
        keeps=[None if job.keep_seconds is None else int(job.keep_seconds * SECOND) for job in order],
    )
    inserted = {row[0]: row for row in rows}
    deliveries: list[NewDelivery] = []
    answers: list[Answer] = []
    for job in jobs:
        if (row := inserted.get(job.id)) is None:
            answers.append(await _known(tx, job))
            continue
        told = announce(_new_id, job.tenant, job.id, 1, "queued", reports[job.id])
        deliveries += told
        _, run_at, at = row
        moved = Moved(
            job.id, job.tenant, job.kind, job.queue, "submit", State.QUEUED, "", 0, 1, run_at, at, at,
            tuple(d.endpoint_id for d in told),
        )  # fmt: skip
        answers.append(Submitted(job.id, True, job.fingerprint, moved))
    await tx.deliver(deliveries)
    return answers


async def _known(tx: _Transaction, job: NewJob) -> Answer:
    """The job that stood in the way: made before with the idempotency key, or the live one of the unique key."""
    known = await tx.fetch("job_by_key", tenant=job.tenant, kind=job.kind, idempotency_key=job.idempotency_key)
    if known:
        return Submitted(known[0][0], False, known[0][1])
    if job.unique_key is not None:
        live = await tx.fetch(
            "job_by_unique_key", tenant=job.tenant, kind=job.kind, queue=job.queue, unique_key=job.unique_key
        )
        if live:
            return Submitted(live[0][0], False, job.fingerprint)
    # It ended, or was removed, between the two statements: there is room now.
    return (await _submit(tx, [job]))[0]


async def _claim(tx: _Transaction, claims: list[Claim]) -> list[Answer]:
    """Claims for the same queues are picked together, then dealt out in the order they came."""
    together: dict[tuple[str, ...], list[int]] = {}
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
                    told[place] += announce(_new_id, job.tenant, job.id, job.seq, job.topic, job.reports)
            slots = slots[len(picked) :]
            if not slots or not more:
                break
        await tx.deliver([delivery for place in places for delivery in told[place]])
        for place in places:
            answers[place] = Claimed(tuple(jobs[place]), tuple(d.endpoint_id for d in told[place]))
    return answers


async def _pick(
    tx: _Transaction, queues: tuple[str, ...], slots: list[Claim], spare: int
) -> tuple[list[tuple[Job, bool]], bool]:
    """A job for each slot as far as there are any, whether callers see a change, and whether looking further may help."""
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


async def _rooms(tx: _Transaction, queues: tuple[str, ...]) -> dict[str, int]:
    """How many more jobs each queue may run."""
    rooms = dict.fromkeys(queues, sys.maxsize)
    settings = await tx.fetch("lock_queue_settings", queues=list(queues))
    limits = {queue: max_running for queue, _, max_running in settings if max_running is not None}
    if limits:
        running = {row[0]: row[1] for row in await tx.fetch("count_running", queues=list(limits))}
        rooms |= {queue: max(0, limit - running.get(queue, 0)) for queue, limit in limits.items()}
    return rooms | {queue: 0 for queue, paused, _ in settings if paused}


async def _change(tx: _Transaction, changes: list[Change]) -> list[Answer]:
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


async def _change_each_once(tx: _Transaction, changes: list[tuple[int, Change]]) -> list[tuple[int, Moved]]:
    moves = [Move.by_name[change.move] for _, change in changes]
    rows = await tx.fetch(
        "change_jobs",
        job_ids=[c.guard.job_id for _, c in changes],
        moves=[c.move for _, c in changes],
        sources=[" ".join(m.source) for m in moves],
        states=[str(m.to) for m in moves],
        stages=[c.stage for _, c in changes],
        topics=[topic_of(m.to, c.stage) for m, (_, c) in zip(moves, changes, strict=True)],
        visibles=[visible(m.to, c.stage) for m, (_, c) in zip(moves, changes, strict=True)],
        resets=[m.attempt is Attempt.RESET for m in moves],
        deltas=[-1 if m.attempt is Attempt.DOWN else 0 for m in moves],
        delays=[int(c.delay_seconds * SECOND) for _, c in changes],
        kepts=[m.lease is Lease.KEEP for m in moves],
        waiting_fors=[c.waiting_for for _, c in changes],
        errors=[c.error for _, c in changes],
        failed_steps=[c.failed_step for _, c in changes],
        finals=[m.to in FINAL for m in moves],
        leases=[c.guard.lease for _, c in changes],
        lease_untils=[c.lease_until for _, c in changes],
        deadline_ats=[c.deadline_at for _, c in changes],
        tenants=[c.guard.tenant for _, c in changes],
        results=[c.result for _, c in changes],
        levels=[c.level for _, c in changes],
        steps=[c.step for _, c in changes],
        messages=[c.message for _, c in changes],
        datas=[c.data for _, c in changes],
        owners=[c.guard.owner for _, c in changes],
        payloads=[c.payload for _, c in changes],
        kinds=[c.guard.kind for _, c in changes],
        seen_stages=[c.seen_stage for _, c in changes],
    )
    moved_rows = {row[0]: row for row in rows}
    successors = [c.successor for _, c in changes if c.successor is not None and c.guard.job_id in moved_rows]
    submitted = await _submit(tx, successors) if successors else []
    succeeding = {each.id: cast(Submitted, answer).moved for each, answer in zip(successors, submitted, strict=True)}
    deliveries: list[NewDelivery] = []
    moved: list[tuple[int, Moved]] = []
    for (place, change), move in zip(changes, moves, strict=True):
        if (row := moved_rows.get(change.guard.job_id)) is None:
            continue
        job_id, tenant, kind, queue, attempt, seq, run_at, created_at, at, topic, topic_seq, reports = row
        told = announce(_new_id, tenant, job_id, seq, topic, reports) if topic_seq == seq else []
        deliveries += told
        moved.append(
            (
                place,
                Moved(
                    job_id, tenant, kind, queue, change.move, move.to, change.stage, attempt, seq, run_at, at, created_at,
                    tuple(d.endpoint_id for d in told),
                    None if change.successor is None else succeeding[change.successor.id],
                ),
            )
        )  # fmt: skip
    await tx.deliver(deliveries)
    return moved


async def _beat(tx: _Transaction, beats: list[Beat]) -> list[Answer]:
    guards = [beat.guard for beat in beats]
    rows = await tx.fetch(
        "beat_jobs",
        job_ids=[guard.job_id for guard in guards],
        leases=[guard.lease for guard in guards],
        tenants=[guard.tenant for guard in guards],
        owners=[guard.owner for guard in guards],
        kinds=[guard.kind for guard in guards],
        lengths=[int(beat.lease_seconds * SECOND) for beat in beats],
    )
    extended = {row[0]: row[1:] for row in rows}
    answers: list[Answer] = []
    for guard in guards:
        *found, until = extended.get(guard.job_id, (None,) * 5)
        asked = (guard.lease, guard.tenant, guard.owner, guard.kind)
        mine = all(wanted in (None, seen) for wanted, seen in zip(asked, found, strict=True))
        answers.append(Beaten(until if mine else None))
    return answers


async def _note(tx: _Transaction, notes: list[Note]) -> list[Answer]:
    answers: list[Answer] = []
    for n in notes:
        guard = msgspec.structs.asdict(n.guard)
        rows = await tx.fetch("note_job", **guard, level=n.level, step=n.step, message=n.message, data=n.data)
        answers.append(Noted(rows[0][0] if rows else None))
    return answers


async def _set_queue(tx: _Transaction, operations: list[SetQueue]) -> list[Answer]:
    for operation in operations:
        s = operation.settings
        if s.paused or s.max_running is not None:
            await tx.fetch("set_queue", queue=s.queue, paused=int(s.paused), max_running=s.max_running)
        else:
            await tx.fetch("unset_queue", queue=s.queue)
    return [None] * len(operations)


# deliveries -------------------------------------------------------------------------------------------------------------


async def _take(tx: _Transaction, takes: list[Take]) -> list[Answer]:
    """Takes for the same endpoint are taken together, then dealt out in the order they came."""
    counts: dict[str, int] = {}
    for take in takes:
        counts[take.endpoint_id] = counts.get(take.endpoint_id, 0) + take.limit
    lengths = {take.endpoint_id: int(take.lease_seconds * SECOND) for take in takes}
    rows = await tx.fetch(
        "take_deliveries",
        endpoint_ids=list(counts),
        counts=list(counts.values()),
        lengths=[lengths[endpoint] for endpoint in counts],
    )
    taken: dict[str, list[tuple[str, int]]] = {endpoint: [] for endpoint in counts}
    for delivery_id, lease, endpoint in sorted(tuple(row) for row in rows):
        taken[endpoint].append((delivery_id, lease))
    after = {row[0]: row for row in await tx.fetch("next_dues", endpoint_ids=list(counts))}
    answers: list[Answer] = []
    for take in takes:
        mine, taken[take.endpoint_id] = taken[take.endpoint_id][: take.limit], taken[take.endpoint_id][take.limit :]
        _, next_due_at, state = after[take.endpoint_id]
        answers.append(
            Taken(tuple(i for i, _ in mine), tuple(lease for _, lease in mine), next_due_at, blocked=state != "active")
        )
    return answers


async def _settle(tx: _Transaction, settles: list[Settle]) -> list[Answer]:
    rows = await tx.fetch(
        "settle_deliveries",
        delivery_ids=[s.delivery_id for s in settles],
        leases=[s.lease for s in settles],
        states=[str(s.state) for s in settles],
        retry_lengths=[int(s.retry_seconds * SECOND) for s in settles],
        reasons=[s.reason for s in settles],
        statuses=[s.status for s in settles],
        durations=[s.duration_seconds for s in settles],
        errors=[s.error for s in settles],
        answers=[s.answer for s in settles],
        gones=[s.disable_endpoint for s in settles],
    )
    settled = {row[0] for row in rows}
    return [s.delivery_id in settled for s in settles]


async def _release(tx: _Transaction, releases: list[Release]) -> list[Answer]:
    for release in releases:
        for delivery_id, lease in zip(release.ids, release.leases, strict=True):
            await tx.fetch("release_delivery", delivery_id=delivery_id, lease=lease)
    return [None] * len(releases)


async def _replay(tx: _Transaction, replays: list[Replay]) -> list[Answer]:
    answers: list[Answer] = []
    for r in replays:
        if r.delivery_id:
            rows = await tx.fetch("replay_delivery", delivery_id=r.delivery_id, tenant=r.tenant)
            answers.append(Replayed(1, rows[0][0]) if rows else Replayed(0, ""))
        else:
            rows = await tx.fetch("replay_endpoint", endpoint_id=r.endpoint_id, tenant=r.tenant, limit=r.limit)
            answers.append(Replayed(len(rows), r.endpoint_id))
    return answers


async def _give_up(tx: _Transaction, operations: list[GiveUp]) -> list[Answer]:
    return [Counted(len(await tx.fetch("give_up_deliveries", ids=list(o.ids), reason=o.reason))) for o in operations]


async def _set_endpoint(tx: _Transaction, operations: list[SetEndpoint]) -> list[Answer]:
    return [bool(await tx.fetch("set_endpoint", **msgspec.structs.asdict(o))) for o in operations]


async def _prune(tx: _Transaction, prunes: list[Prune]) -> list[Answer]:
    answers: list[Answer] = []
    for prune in prunes:
        await tx.fetch("lock_deliveries", ids=list(prune.ids))
        gone = [row[0] for row in await _pruned(tx, prune)]
        for name in OF_A_JOB:
            await tx.fetch(name, ids=gone)
        if prune.age:
            await tx.fetch("prune_endpoints", age=prune.age)
        answers.append(Counted(len(gone)))
    return answers


async def _pruned(tx: _Transaction, prune: Prune) -> Sequence[Any]:
    if prune.of is None:
        return await tx.fetch("prune_jobs", ids=list(prune.ids), age=prune.age)
    tenant, kind = prune.of
    return await tx.fetch("purge_jobs", ids=list(prune.ids), tenant=tenant, kind=kind)


# files ------------------------------------------------------------------------------------------------------------------


async def _put_file(tx: _Transaction, files: list[NewFile]) -> list[Answer]:
    answers: list[Answer] = []
    for file in files:
        [row] = await tx.fetch("put_file", **msgspec.structs.asdict(file))
        answers.append(File(*row))
    return answers


async def _drop_files(tx: _Transaction, operations: list[DropFiles]) -> list[Answer]:
    return [Counted(len(await tx.fetch("drop_files", ids=list(o.ids), tenant=o.tenant))) for o in operations]


# records ----------------------------------------------------------------------------------------------------------------


async def _put_record(tx: _Transaction, puts: list[PutRecord]) -> list[Answer]:
    answers: list[Answer] = [None] * len(puts)
    # Sorted, so that two groups with the same records wait for each other instead of for each other's other record.
    for place, put in sorted(enumerate(puts), key=lambda pair: (pair[1].kind, pair[1].tenant, pair[1].name)):
        rows = await tx.fetch(put_query(put), **msgspec.structs.asdict(put))
        answers[place] = Record(*rows[0]) if rows else None
    return answers


async def _drop_record(tx: _Transaction, drops: list[DropRecord]) -> list[Answer]:
    answers: list[Answer] = [None] * len(drops)
    for place, drop in sorted(enumerate(drops), key=lambda pair: (pair[1].kind, pair[1].tenant, pair[1].name)):
        answers[place] = bool(await tx.fetch("drop_record", **msgspec.structs.asdict(drop)))
    return answers


# In this order a job submitted in a group can be claimed in the same one.
_STEPS: dict[type, Callable[[_Transaction, list[Any]], Awaitable[list[Answer]]]] = {
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
