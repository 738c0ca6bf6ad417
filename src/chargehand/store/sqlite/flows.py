"""Flows in SQLite: submit, cancel and retry one as a whole."""

from typing import cast

import apsw
from msgspec.structs import replace

from chargehand.engine.announce import announce
from chargehand.engine.flow import CancelFlow, NewFlow, Occupied, RetryFlow
from chargehand.engine.job import Job
from chargehand.engine.moves import Moved, Submitted
from chargehand.store import flow_retry, flows
from chargehand.store.flow_retry import queued_again
from chargehand.store.flows import Ended, StepRefused
from chargehand.store.operations import Answer
from chargehand.store.sqlite import jobs
from chargehand.store.sqlite.session import Session


def submit(db: Session, new: list[NewFlow]) -> list[Answer]:
    return [_submit_or_nothing(db, flow) for flow in new]


def _submit_or_nothing(db: Session, flow: NewFlow) -> Answer:
    try:
        with db.savepoint():
            return _submit(db, flow)
    except StepRefused as refused:
        return Occupied(refused.step, refused.job_id)


def _submit(db: Session, flow: NewFlow) -> Submitted:
    submitted = cast(Submitted, jobs.submit(db, [flow.job])[0])
    if submitted.moved is None:
        return submitted
    steps = [cast(Submitted, each) for each in jobs.submit(db, [step.job for step in flow.steps])]
    others = flows.ready(flow, steps)
    db.run(flows.put_steps(flow))
    return flows.submitted(
        flow, submitted.moved, [_started(db, db.run(flows.start(flow.job.id, len(flow.steps)))), *others]
    )


def cancel(db: Session, operations: list[CancelFlow]) -> list[Answer]:
    return [_cancel(db, operation) for operation in operations]


def _cancel(db: Session, operation: CancelFlow) -> Moved | None:
    ended: list[Ended] = []
    [closed] = jobs.change_into(db, [flows.closing(operation)], ended)
    if closed is None:
        return None
    waiting = db.run(flows.waiting_steps(operation, closed))
    moved = [each for each in jobs.change_into(db, waiting, ended) if each is not None]
    following = jobs.follow(db, ended)
    return replace(closed, others=(*moved, *following.moved(operation.job_id)))


def retry(db: Session, operations: list[RetryFlow]) -> list[Answer]:
    return [_retry_or_nothing(db, operation) for operation in operations]


def _retry_or_nothing(db: Session, operation: RetryFlow) -> Moved | None:
    try:
        with db.savepoint():
            return _retry(db, operation)
    except apsw.ConstraintError:
        return None  # another live job has the unique key of a step


def _retry(db: Session, operation: RetryFlow) -> Moved | None:
    again = db.run(flow_retry.retry(operation))
    if not again:
        return None
    moved = []
    for job in again:
        told = announce(db.new_id, job.tenant, job.id, job.seq, job.topic, job.reports)
        db.deliver(told)
        moved.append(queued_again(job, [delivery.endpoint_id for delivery in told]))
    started = _started(db, db.run(flows.start(operation.job_id, len(again) - 1)))
    return replace(moved[0], others=(started, *moved[1:]))


def _started(db: Session, flow: Job) -> Moved:
    told = announce(db.new_id, flow.tenant, flow.id, flow.seq, flow.topic, flow.reports)
    db.deliver(told)
    return flows.started(flow, [delivery.endpoint_id for delivery in told])
