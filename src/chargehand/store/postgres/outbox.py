"""Deliveries in PostgreSQL: take and settle, each for all operations of its kind in a group."""

from chargehand.engine.delivery import Settle, Take, Taken
from chargehand.engine.job import SECOND
from chargehand.store.operations import Answer
from chargehand.store.postgres.transaction import Transaction, arrays


async def take(tx: Transaction, takes: list[Take]) -> list[Answer]:
    """Take the deliveries of all takes for the same endpoint together, then deal them out in the order the takes came."""
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


async def settle(tx: Transaction, settles: list[Settle]) -> list[Answer]:
    rows = await tx.fetch(
        "settle_deliveries",
        **arrays(settles, "delivery_id", "lease", "reason", "error", "answer"),
        states=[str(s.state) for s in settles],
        retry_lengths=[int(s.retry_seconds * SECOND) for s in settles],
        statuses=[s.status for s in settles],
        durations=[s.duration_seconds for s in settles],
        gones=[s.disable_endpoint for s in settles],
    )
    settled = {row[0] for row in rows}
    return [s.delivery_id in settled for s in settles]
