"""A group of operations of one kind applied to PostgreSQL: most are one statement, which needs no BEGIN and no COMMIT."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from chargehand.engine.delivery import Settle, Take
from chargehand.engine.job import NewJob
from chargehand.engine.moves import Beat, Change, Note
from chargehand.engine.store import Claim
from chargehand.store import steps, whole_flows
from chargehand.store.operations import Answer, AnyOperation
from chargehand.store.postgres import jobs, outbox
from chargehand.store.postgres.transaction import Transaction


async def apply(tx: Transaction, operations: Sequence[AnyOperation]) -> list[Answer]:
    return await APPLIERS[type(operations[0])](tx, operations)


async def _apply_shared(tx: Transaction, operations: Sequence[Any]) -> list[Answer]:
    answers: list[Answer] = [None] * len(operations)
    async with tx.atomic():
        for place in steps.in_order(operations):
            answers[place] = await jobs.run(tx, SHARED[type(operations[place])](operations[place]))
    return answers


SHARED = steps.STEPS | whole_flows.OPERATIONS
APPLIERS: dict[type, Callable[[Transaction, Sequence[Any]], Awaitable[list[Answer]]]] = {
    NewJob: jobs.submit,
    Claim: jobs.claim,
    Change: jobs.change,
    Beat: jobs.beat,
    Note: jobs.note,
    Take: outbox.take,
    Settle: outbox.settle,
    **dict.fromkeys(SHARED, _apply_shared),
}
