"""Which job runs next, and where: reads what waits, asks `choose`, claims one job for each step and starts its attempt.

In the common case no round is needed: a job for a model that is in memory and has room is claimed when it arrives. The claim takes
the most urgent job for that model, not necessarily the one that arrived.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from chargehand.doors.inference.names import KIND, model_of
from chargehand.doors.inference.residency import (
    BY_HAND,
    Admit,
    Ask,
    Close,
    Load,
    TargetLedger,
    Want,
    choose,
    in_turn,
    reopen,
    why_closed,
)
from chargehand.doors.inference.target import Target
from chargehand.engine.engine import Engine
from chargehand.engine.job import SECOND, Job, NewJob, State
from chargehand.engine.moves import Moved
from chargehand.engine.queue import Queue
from chargehand.engine.reads import QueueHead
from chargehand.engine.runner import Hand, Holder, Outcome
from chargehand.engine.wakeups import wait_within
from chargehand.errors import Conflict, StoreError
from chargehand.observability.logs import get_logger
from chargehand.observability.metrics import Metrics

READY_BOUND = 1000  # a higher count changes no decision
MAX_QUEUES = 10_000
ORPHANED_SECONDS = 3600.0
QUIET_SECONDS = 300.0

Work = Callable[[Job, Hand, "TargetSlot"], Awaitable[Outcome]]
log = get_logger(__name__)


class WaitReason(msgspec.Struct):
    """Why a job waits."""

    waiting_for: str
    reason: str


class TargetSlot:
    """The room on a target that the scheduler gives a claimed job, and the step to take there."""

    def __init__(self, scheduler: "Scheduler", target: Target, step: Admit | Load | Ask) -> None:
        self._scheduler = scheduler
        self.target = target
        self.step = step

    def share(self) -> None:
        """The model is in memory: others may use it too."""
        self._scheduler.kick()

    def linger(self, seconds: float) -> None:
        """Keep the room for a while: a cancelled request may go on at the target until its next token."""
        ledger, model = self.target.ledger, self.step.model
        ledger.enter(model)

        def leave() -> None:
            ledger.leave(model)
            self._scheduler.kick()

        asyncio.get_running_loop().call_later(seconds, leave)

    def another_may_have(self) -> bool:
        """Return whether another target may have the model."""
        others = [ledger for ledger in self._scheduler.ledgers if ledger is not self.target.ledger]
        return any(ledger.may_have(self.step.model) for ledger in others)


class Scheduler:
    def __init__(
        self,
        engine: Engine,
        targets: Sequence[Target],
        work: Work,
        metrics: Metrics,
        *,
        alone: bool,
        lease_seconds: float,
        cap_seconds: float,
        poll_seconds: float,
    ) -> None:
        self.targets: dict[str, Target] = {}
        self.wants: dict[str, Want] = {}
        self.decisions: dict[str, str] = {}  # target -> the last change of residency and its reason
        self.node = engine.new_id()  # new with each start: callers of the last process are gone
        self._alone = alone
        self._paused: set[Queue] = set()
        self._engine = engine
        self._work = work
        self._metrics = metrics
        self._holder = Holder(engine, KIND, lease_seconds)
        self._cap_seconds = cap_seconds
        self._poll_seconds = poll_seconds
        self._queues: dict[str, dict[Queue, None]] = {}  # model -> its queues, one for each tenant
        self._served_at: dict[str, int] = {}  # model -> when it last began or ended a job
        self._expected: set[str] = set()  # jobs that are claimed in the commit of their submission
        self._unserved = True  # a job waits that could not be started when it came
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        for target in targets:
            self.add(target)

    @property
    def ledgers(self) -> list[TargetLedger]:
        return [target.ledger for target in self.targets.values()]

    def add(self, target: Target) -> None:
        self.targets[target.name] = target
        in_flight = target.ledger.in_flight
        self._metrics.target_in_flight.labels(target.name).set_function(lambda: sum(in_flight.values()))

    # news -------------------------------------------------------------------------------------------------------------

    def kick(self) -> None:
        self._news.set()

    def on_move(self, moved: Moved) -> None:
        if moved.state is State.QUEUED:
            self._queued(moved)

    def expect(self, job: NewJob) -> None:
        """Call right before the job is submitted: if it can run at once, it is claimed in the same commit."""
        model = model_of(job.queue)
        target = self._with_room(model) if job.queue.shared not in self._paused else None
        if target is not None:
            self._queues.setdefault(model, {})[job.queue] = None
            self._expected.add(job.id)
            self._start(Admit(target.name, model), job.id)

    def _with_room(self, model: str) -> Target | None:
        """Return a target that can take a job for the model now."""
        for target in self.targets.values():
            if target.ledger.room(model) > 0 and target.ledger.trusts(model):
                return target
        return None

    def _queued(self, moved: Moved) -> None:
        if moved.job_id in self._expected:
            return  # it is being claimed
        model = model_of(moved.queue)
        self._queues.setdefault(model, {})[moved.queue] = None
        due = moved.run_at <= self._engine.now() and not self._engine.draining
        target = self._with_room(model) if due else None
        if target is not None:
            self._start(Admit(target.name, model))
            return
        self._unserved = True
        if not self._must_wait(model):
            self.kick()

    def _must_wait(self, model: str) -> bool:
        """Return whether every live target holds this model and is full: then a round would start nothing."""
        live = [ledger for ledger in self.ledgers if ledger.up]
        return all(
            ledger.holds(model) and ledger.offers(model) and model not in ledger.closing and not ledger.room(model)
            for ledger in live
        )

    async def run(self) -> None:
        try:
            while not self._engine.draining:
                self._news.clear()
                try:
                    await self._round()
                except StoreError as error:
                    log.warning("cannot look for work, will try again", error=str(error))
                await wait_within(self._news, self._poll_seconds)
            await asyncio.Event().wait()  # running attempts may end; cancelling this hands the others back
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # a round ----------------------------------------------------------------------------------------------------------

    async def _round(self) -> None:
        await self._read_wants()
        reopen(self.wants, self.ledgers)
        for want in in_turn(self.wants.values(), self._cap_seconds):
            self._serve(want)
        self._unserved = any(want.ready > 0 for want in self.wants.values())

    async def _read_wants(self) -> None:
        jobs = self._engine.jobs
        self._paused = {settings.queue for settings in await jobs.list_queue_settings() if settings.paused}
        heads, now = await jobs.queue_heads(KIND, READY_BOUND), await jobs.now()
        heads = [head for head in heads if head.ready and head.oldest_at and self._is_ours(head, now)]
        self.wants = {}
        if len(self._queues) > MAX_QUEUES:
            self._queues.clear()  # callers invent names; queues with work are found below
            self._served_at.clear()
        for head in heads:
            model = model_of(head.queue)
            self._queues.setdefault(model, {})[head.queue] = None
            want = self.wants.setdefault(model, Want(model, 0, head.priority, 0.0))
            want.ready += head.ready
            want.priority = max(want.priority, head.priority)
            since = max(head.oldest_at or now, self._served_at.get(model, 0))
            want.waited_seconds = max(want.waited_seconds, (now - since) / SECOND)

    def _is_ours(self, head: QueueHead, now: int) -> bool:
        """Leave jobs of another node's callers to that node, until it must be gone: then any node ends them."""
        node = head.queue.node
        if not node:
            return True
        if head.queue.shared in self._paused:
            return False
        return node == self.node or self._alone or now - (head.oldest_at or now) > ORPHANED_SECONDS * SECOND

    def _serve(self, want: Want) -> None:
        while want.ready > 0:
            step = choose(want, self.wants, self.ledgers, self._cap_seconds)
            if step is None:
                return self._wake(want.model)
            target = self.targets[step.target]
            if not isinstance(step, Ask) and not target.ledger.trusts(step.model):
                return target.refresh()
            if isinstance(step, Close):
                target.ledger.closing[step.model] = step.wanted
                self.decisions[target.name] = step.reason
                return None
            want.ready -= 1
            self._start(step)
        return None

    def _wake(self, model: str) -> None:
        for target in self.targets.values():
            if not target.up and target.ledger.may_have(model):
                self._spawn(target.wake())

    # a step -----------------------------------------------------------------------------------------------------------

    def _start(self, step: Admit | Load | Ask, expected: str = "") -> None:
        """Take the room in the ledger before the claim, so that it is given only once."""
        target = self.targets[step.target]
        target.ledger.enter(step.model)
        if isinstance(step, Load):
            target.ledger.opening[step.model] = self._engine.now() / SECOND
            for victim in step.evict:
                target.ledger.closing[victim] = step.model
            self.decisions[target.name] = step.reason
        self._spawn(self._take(target, step, expected))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, target: Target, step: Admit | Load | Ask, expected: str) -> None:
        claimed, slot = False, TargetSlot(self, target, step)
        try:
            queues = tuple(self._queues.get(step.model, ()))
            jobs = await self._engine.claim(queues, self._holder.owner, self._holder.lease_seconds) if queues else ()
            claimed = bool(jobs)
            if expected:
                self._expected.discard(expected)
                if [job.id for job in jobs] != [expected]:
                    self._unserved = True  # a more urgent job was claimed
                    self.kick()
            for job in jobs:
                self._served_at[step.model] = self._engine.now()
                await self._holder.hold(job, lambda job, hand: self._work(job, hand, slot))
        except StoreError as error:
            log.warning("a job could not be claimed, will try again", target=target.name, error=str(error))
        finally:
            self._expected.discard(expected)
            target.ledger.leave(step.model)
            if claimed:
                self._served_at[step.model] = self._engine.now()
            if isinstance(step, Load):
                self._settle(target, step)
            if self._unserved:
                self.kick()

    def _settle(self, target: Target, step: Load) -> None:
        """After a load: forget it if it was not begun, and reopen the models that were closed for it."""
        if step.model not in target.loading:
            target.ledger.opening.pop(step.model, None)
        for victim in step.evict:
            if target.ledger.closing.get(victim) == step.model:
                del target.ledger.closing[victim]

    @contextlib.asynccontextmanager
    async def quiet(self, target: Target, model: str, why: str) -> AsyncIterator[None]:
        """Lock a model on a target for a change by hand: it gets no new work, and what runs on it has ended."""
        ledger, locked = target.ledger, False
        try:
            async with asyncio.timeout(QUIET_SECONDS):
                while model in ledger.closing:  # noqa: ASYNC110 - by somebody else, who goes first
                    await asyncio.sleep(0.02)
                ledger.closing[model], locked = f"{BY_HAND}{why}", True
                while ledger.in_flight.get(model) or model in ledger.opening:  # noqa: ASYNC110 - counted, no event
                    await asyncio.sleep(0.02)
            yield
        except TimeoutError:
            raise Conflict(f"{model} on {target.name} was still busy after {QUIET_SECONDS:.0f} s") from None
        finally:
            if locked:
                ledger.closing.pop(model, None)
            self.kick()

    # why a job waits --------------------------------------------------------------------------------------------------

    def has_live_target(self, model: str) -> bool:
        if any(ledger.offers(model) for ledger in self.ledgers):
            return True
        away = any(not ledger.up and ledger.may_have(model) for ledger in self.ledgers)
        return not away and any(ledger.up for ledger in self.ledgers)

    def explain(self, model: str, queue: Queue | None = None) -> WaitReason:
        if queue is not None and queue.shared in self._paused:
            return WaitReason("queue", "an operator has paused its queue")
        homes = [ledger for ledger in self.ledgers if ledger.offers(model)]
        if not homes:
            return self._explain_away(model)
        for ledger in homes:
            if model in ledger.opening:
                return WaitReason("model", f"{model} is being loaded on {ledger.name}")
        for ledger in homes:
            if wanted := ledger.closing.get(model):
                return WaitReason("slot", f"{model} on {ledger.name} takes no new work: {why_closed(wanted)}")
            if ledger.holds(model):
                running = ledger.in_flight.get(model, 0)
                return WaitReason(
                    "turn", f"{model} is in memory on {ledger.name}, {running} of {ledger.parallel} at work"
                )
        ledger = homes[0]
        held = ", ".join(sorted(ledger.resident)) or "nothing"
        return WaitReason(
            "slot",
            f"{ledger.name} has {held} in its {ledger.slots} slots; {model} gets one when nobody waits for these, "
            f"or after {self._cap_seconds:.0f} s",
        )

    def _explain_away(self, model: str) -> WaitReason:
        away = [target for target in self.targets.values() if not target.up]
        if len(away) < len(self.targets):
            away = [target for target in away if target.ledger.may_have(model)]
        if away:
            names = "; ".join(f"{target.name} is away ({target.problem})" for target in away)
            return WaitReason("target", names)
        if not self.targets:
            return WaitReason("target", "no target is configured: set inference.targets")
        return WaitReason("target", f"no target lists {model}; one is being asked for it")
