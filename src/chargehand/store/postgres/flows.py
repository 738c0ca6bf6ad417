"""Flows in PostgreSQL: submit, cancel and retry one as a whole."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

import asyncpg
from msgspec.structs import replace

from chargehand.engine.announce import announce
from chargehand.engine.flow import CancelFlow, NewFlow, Occupied, RetryFlow
from chargehand.engine.job import Job
from chargehand.engine.moves import Moved, Submitted
from chargehand.store import flow_retry, flows
from chargehand.store.flow_retry import queued_again
from chargehand.store.flows import Ended, StepRefused
from chargehand.store.operations import Answer
from chargehand.store.postgres import jobs
from chargehand.store.postgres.transaction import Transaction

Whole = TypeVar("Whole", CancelFlow, RetryFlow)


async def submit(tx: Transaction, new: Sequence[NewFlow]) -> list[Answer]:
    async with tx.atomic():
        return [await _submit_or_nothing(tx, flow) for flow in new]


async def _submit_or_nothing(tx: Transaction, flow: NewFlow) -> Answer:
    try:
        async with tx.savepoint():
            return await _submit(tx, flow)
    except StepRefused as refused:
        return Occupied(refused.step, refused.job_id)


async def _submit(tx: Transaction, flow: NewFlow) -> Submitted:
    submitted = cast(Submitted, (await jobs.submit(tx, [flow.job]))[0])
    if submitted.moved is None:
        return submitted
    steps = [cast(Submitted, each) for each in await jobs.submit(tx, [step.job for step in flow.steps])]
    others = flows.ready(flow, steps)
    await tx.run(flows.put_steps(flow))
    return flows.submitted(
        flow, submitted.moved, [await _started(tx, await tx.run(flows.start(flow.job.id, len(flow.steps)))), *others]
    )


async def cancel(tx: Transaction, operations: Sequence[CancelFlow]) -> list[Answer]:
    async with tx.atomic():
        return await _each_in_order(operations, lambda operation: _cancel(tx, operation))


async def _cancel(tx: Transaction, operation: CancelFlow) -> Moved | None:
    ended: list[Ended] = []
    [closed] = await jobs.change_into(tx, [flows.closing(operation)], ended)
    if closed is None:
        return None
    waiting = await tx.run(flows.waiting_steps(operation, closed))
    moved = [each for each in await jobs.change_into(tx, waiting, ended) if each is not None]
    following = await jobs.follow(tx, ended)
    return replace(closed, others=(*moved, *following.moved(operation.job_id)))


async def retry(tx: Transaction, operations: Sequence[RetryFlow]) -> list[Answer]:
    async with tx.atomic():
        return await _each_in_order(operations, lambda operation: _retry_or_nothing(tx, operation))


async def _retry_or_nothing(tx: Transaction, operation: RetryFlow) -> Moved | None:
    try:
        async with tx.savepoint():
            return await _retry(tx, operation)
    except asyncpg.UniqueViolationError:
        return None  # another live job has the unique key of a step


async def _retry(tx: Transaction, operation: RetryFlow) -> Moved | None:
    again = await tx.run(flow_retry.retry(operation))
    if not again:
        return None
    moved = []
    for job in again:
        told = announce(jobs.new_id, job.tenant, job.id, job.seq, job.topic, job.reports)
        await tx.deliver(told)
        moved.append(queued_again(job, [delivery.endpoint_id for delivery in told]))
    started = await _started(tx, await tx.run(flows.start(operation.job_id, len(again) - 1)))
    return replace(moved[0], others=(started, *moved[1:]))


async def _each_in_order(operations: Sequence[Whole], apply: Callable[[Whole], Awaitable[Answer]]) -> list[Answer]:
    """Flows are locked in the order of their ids, so that two groups with the same ones wait for each other instead of for ever."""
    answers: list[Answer] = [None] * len(operations)
    for place in sorted(range(len(operations)), key=lambda place: operations[place].job_id):
        answers[place] = await apply(operations[place])
    return answers


async def _started(tx: Transaction, flow: Job) -> Moved:
    told = announce(jobs.new_id, flow.tenant, flow.id, flow.seq, flow.topic, flow.reports)
    await tx.deliver(told)
    return flows.started(flow, [delivery.endpoint_id for delivery in told])
