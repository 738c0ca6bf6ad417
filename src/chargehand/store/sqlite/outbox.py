"""Deliveries in SQLite: take and settle, each for all operations of its kind in a group."""

from chargehand.engine.delivery import Settle, Take, Taken
from chargehand.engine.job import SECOND
from chargehand.store.operations import Answer
from chargehand.store.sqlite.session import Row, Session


def take(db: Session, takes: list[Take]) -> list[Answer]:
    answers: list[Answer] = []
    for take in takes:
        state = db.one("endpoint_state", endpoint_id=take.endpoint_id)
        if state is not None and state[0] != "active":
            answers.append(Taken((), (), None, blocked=True))
            continue
        length = int(take.lease_seconds * SECOND)
        rows = sorted(
            db.all(
                "take_deliveries",
                endpoint_id=take.endpoint_id,
                limit=take.limit,
                lease_length=length,
                now=db.now,
            )
        )
        after = db.one("next_due", endpoint_id=take.endpoint_id, now=db.now)
        answers.append(Taken(tuple(r[0] for r in rows), tuple(r[1] for r in rows), after[0] if after else None))
    return answers


def settle(db: Session, settles: list[Settle]) -> list[Answer]:
    answers: list[Answer] = []
    tries: list[Row] = []
    for s in settles:
        settled = db.wrote(
            "settle_delivery", delivery_id=s.delivery_id, lease=s.lease, state=str(s.state), reason=s.reason,
            retry_length=int(s.retry_seconds * SECOND), now=db.now,
        )  # fmt: skip
        if settled:
            [(number,)] = db.all("settled_delivery", delivery_id=s.delivery_id)
            tries.append((s.delivery_id, number, db.now, s.status, s.duration_seconds, s.error, s.answer))
            if s.disable_endpoint:
                db.one("disable_endpoint", endpoint_id=s.disable_endpoint, reason=s.reason, now=db.now)
        answers.append(settled)
    db.many("insert_try", tries)
    return answers
