"""A flow as a whole: cancel it, try it again. The store decides what that means for its steps."""

import asyncio
import contextlib

from chargehand.engine.engine import Engine
from chargehand.engine.flow import CANCELLING, KIND, CancelFlow, FlowStep, RetryFlow
from chargehand.engine.guard import Guard
from chargehand.engine.job import Job, State
from chargehand.engine.moves import Moved
from chargehand.engine.reads import StepFilter
from chargehand.errors import Conflict, NotFound

PAGE = 500
AT_ONCE = 50  # running steps that are cancelled side by side


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
        first: int | None = 0
        while first is not None:
            steps = (await self._engine.jobs.list_steps(StepFilter(flow.id, first, PAGE))).steps
            live = [step for step in steps if not step.job.finished]
            for begin in range(0, len(live), AT_ONCE):
                await asyncio.gather(*[self._cancel_step(step, message) for step in live[begin : begin + AT_ONCE]])
            first = steps[-1].number + 1 if len(steps) == PAGE else None
        return _seen(await self._engine.get(flow.id))

    async def _cancel_step(self, step: FlowStep, message: str) -> None:
        with contextlib.suppress(Conflict, NotFound):  # it has just ended
            await self._engine.cancel(Guard.seen(step.job), message=message)

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
