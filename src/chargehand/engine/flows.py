"""A flow as a whole: cancel it, try it again. The store decides what that means for its steps."""

import asyncio
import contextlib

from chargehand.engine.chores import Chore
from chargehand.engine.engine import Engine
from chargehand.engine.flow import CANCELLED_FLOW, CANCELLING, KIND, SOON, CancelFlow, FlowStep, RetryFlow
from chargehand.engine.guard import Guard
from chargehand.engine.job import Job, State
from chargehand.engine.moves import Moved
from chargehand.engine.reads import StepFilter
from chargehand.engine.record import DropRecord, PutRecord, Record
from chargehand.errors import Conflict, NotFound

PAGE = 500
AT_ONCE = 50  # running steps that are cancelled side by side
CANCEL_SECONDS = 5.0
FLOWS_A_TURN = 20


class Flows:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.cancel_by(KIND, self.cancel)

    async def cancel(self, flow: Job, message: str) -> Moved:
        """Cancel the waiting steps at once and the others as their doors do it; the flow ends with the last of them."""
        if flow.state is State.CANCELLED:
            return _seen(flow)  # the caller asks again, since the answer was lost
        if await self._engine.change_flow(CancelFlow(flow.id, flow.tenant, message)) is None:
            raise Conflict(f"flow {flow.id} has ended; there is nothing to cancel")
        await self._cancel_steps(flow.id, message)
        return _seen(await self._engine.get(flow.id))

    async def _cancel_steps(self, flow_id: str, message: str) -> None:
        first: int | None = 0
        while first is not None:
            steps = (await self._engine.jobs.list_steps(StepFilter(flow_id, first, PAGE))).steps
            live = [step for step in steps if not step.job.finished]
            for begin in range(0, len(live), AT_ONCE):
                await asyncio.gather(*[self._cancel_step(step, message) for step in live[begin : begin + AT_ONCE]])
            first = steps[-1].number + 1 if len(steps) == PAGE else None

    async def _cancel_step(self, step: FlowStep, message: str) -> None:
        # It has just ended, or its door cannot say yet whether it began; then it is asked again.
        with contextlib.suppress(Conflict, NotFound):
            await self._engine.cancel(Guard.seen(step.job), message=message)

    def chores(self) -> list[Chore]:
        return [Chore("cancelled flows", CANCEL_SECONDS, self.go_on_cancelling)]

    async def go_on_cancelling(self) -> None:
        """Cancel what still lives of cancelled flows: the node that began is gone, the store was, or a door asked for patience."""
        for record in await self._engine.records.due(CANCELLED_FLOW, FLOWS_A_TURN):
            await self._go_on(record)

    async def _go_on(self, record: Record) -> None:
        flow_id, jobs = record.name, self._engine.jobs
        again = PutRecord(CANCELLED_FLOW, "", flow_id, b"", record.version, await jobs.now() + SOON)
        if await self._engine.records.put(again) is None:
            return  # it has ended, or another node goes on with it
        flow = await jobs.get_job(flow_id)
        if flow is None or flow.stage != CANCELLING:  # a node of an older version ended it
            await self._engine.records.drop(DropRecord(CANCELLED_FLOW, "", flow_id))
        else:
            await self._cancel_steps(flow_id, "cancelled with its flow")

    async def retry(self, flow: Job, step: str, message: str) -> Moved:
        """Run a step and all that come after it again; without a name all that did not succeed."""
        if flow.state not in (State.FAILED, State.CANCELLED):
            raise Conflict(f"flow {flow.id} is {_word(flow)}; only one that failed or was cancelled can be tried again")
        moved = await self._engine.change_flow(RetryFlow(flow.id, flow.tenant, flow.seq, step, message))
        if moved is None:
            what = f"step {step!r}" if step else "none of its steps"
            raise Conflict(
                f"flow {flow.id} stays as it is: {what} cannot start, because what it comes after ended otherwise, or another live job has the "
                "unique key of a step; retry from an earlier step, or end that job"
            )
        return moved


def _word(flow: Job) -> str:
    return f"{flow.state} ({CANCELLING})" if flow.stage == CANCELLING else str(flow.state)


def _seen(flow: Job) -> Moved:
    return Moved(
        flow.id, flow.queue, "advance", flow.state, flow.stage, flow.attempt, flow.seq, flow.run_at, flow.updated_at, flow.created_at
    )  # fmt: skip
