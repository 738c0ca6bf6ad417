"""A group of operations applied to PostgreSQL inside one transaction: one statement for each kind, or few."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from chargehand.engine.delivery import Settle, Take
from chargehand.engine.job import NewJob, SetQueue
from chargehand.engine.moves import Beat, Change, Note
from chargehand.engine.store import Claim
from chargehand.store import steps
from chargehand.store.operations import Answer, AnyOperation
from chargehand.store.postgres import jobs, outbox
from chargehand.store.postgres.transaction import Connection, Transaction
from chargehand.store.queries import Query


async def apply(
    connection: Connection, queries: dict[str, Query], now: int | None, operations: Sequence[AnyOperation]
) -> list[Answer]:
    answers: list[Answer] = [None] * len(operations)
    by_kind: dict[type, list[int]] = {}
    for place, operation in enumerate(operations):
        by_kind.setdefault(type(operation), []).append(place)
    transaction = Transaction(connection, queries, now)
    for kind, applier in APPLIERS.items():
        if places := by_kind.get(kind):
            applied = await applier(transaction, [operations[i] for i in places])
            for place, answer in zip(places, applied, strict=True):
                answers[place] = answer
    return answers


async def _apply_shared(tx: Transaction, operations: list[Any]) -> list[Answer]:
    answers: list[Answer] = [None] * len(operations)
    for place in steps.in_order(operations):
        answers[place] = await tx.run(steps.STEPS[type(operations[place])](operations[place]))
    return answers


# In this order a job submitted in a group can be claimed in the same one.
APPLIERS: dict[type, Callable[[Transaction, list[Any]], Awaitable[list[Answer]]]] = {
    NewJob: jobs.submit,
    Change: jobs.change,
    Beat: jobs.beat,
    Note: jobs.note,
    SetQueue: _apply_shared,
    Claim: jobs.claim,
    Settle: outbox.settle,
    **dict.fromkeys(steps.STEPS, _apply_shared),
    Take: outbox.take,
}
