"""Deliveries in PostgreSQL: take and settle, each for all operations of its kind in a group."""

from collections.abc import Sequence
from typing import Any

from chargehand.engine.delivery import Settle, Take, Taken
from chargehand.engine.job import SECOND
from chargehand.store.operations import Answer
from chargehand.store.postgres.transaction import Transaction, as_json


async def take(tx: Transaction, takes: Sequence[Take]) -> list[Answer]:
    """Take the deliveries of all takes for the same endpoint together, then deal them out in the order the takes came."""
    counts: dict[str, int] = {}
    for take in takes:
        counts[take.endpoint_id] = counts.get(take.endpoint_id, 0) + take.limit
    lengths = {take.endpoint_id: int(take.lease_seconds * SECOND) for take in takes}
    rows = await tx.fetch(
        "take_deliveries",
        rows=as_json(
            [{"endpoint_id": each, "count": count, "length": lengths[each]} for each, count in counts.items()]
        ),
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


async def settle(tx: Transaction, settles: Sequence[Settle]) -> list[Answer]:
    rows = await tx.fetch(
        "settle_deliveries",
        rows=as_json([_settle_row(settle) for settle in settles]),
        delivery_ids=[settle.delivery_id for settle in settles],
    )
    settled = {row[0] for row in rows}
    return [s.delivery_id in settled for s in settles]


def _settle_row(settle: Settle) -> dict[str, Any]:
    return {
        "delivery_id": settle.delivery_id,
        "lease": settle.lease,
        "state": settle.state,
        "retry_length": int(settle.retry_seconds * SECOND),
        "reason": settle.reason,
        "status": settle.status,
        "duration": settle.duration_seconds,
        "error": settle.error,
        "answer": settle.answer,
        "gone": settle.disable_endpoint,
    }
