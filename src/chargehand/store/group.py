"""Group commit: operations that arrive while a commit runs go into the next one. One fsync, one round trip, for many callers."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from chargehand.engine.flow import NewFlow
from chargehand.engine.job import NewJob
from chargehand.engine.moves import Change
from chargehand.engine.record import PutRecord
from chargehand.errors import BadRequest, ChargehandError, StoreError, StoreUnavailable
from chargehand.store.operations import GROUP_BYTES, Answer, AnyOperation, Rejected

Commit = Callable[[Sequence[AnyOperation]], Awaitable[Sequence[Answer | Rejected]]]


def bad_operation(rejected: Rejected) -> ChargehandError:
    return BadRequest(rejected.message)


class _Caller(NamedTuple):
    operation: AnyOperation
    answer: "asyncio.Future[Answer]"
    since: float  # by the loop's clock


class Group:
    def __init__(
        self,
        commit: Commit,
        size: int,
        error: Callable[[Rejected], ChargehandError] = bad_operation,
        *,
        patience_seconds: float | None = None,
    ) -> None:
        self._commit = commit
        self._size = size
        self._error = error
        self._patience_seconds = patience_seconds  # of callers; None: the commit itself is sure to end
        self._waiting: deque[_Caller] = deque()
        self._scheduled = False
        self._running: asyncio.Task[None] | None = None
        self._stuck: StoreError | None = None  # the running commit is overdue
        self._closed: StoreError | None = None
        self._heard_at = 0.0
        self._overdue: asyncio.TimerHandle | None = None

    def heard(self) -> None:
        """The store answered: what it is asked for may take its time, ten thousand steps of a flow are a long commit."""
        self._heard_at = asyncio.get_running_loop().time()

    def put(self, operation: AnyOperation) -> "asyncio.Future[Answer]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        if refusal := self._closed or self._stuck:
            future.set_exception(refusal)
            return future
        self._waiting.append(_Caller(operation, future, loop.time()))
        if self._running is None and not self._scheduled:
            self._scheduled = True
            # Not at once, so that what else becomes ready in this turn of the loop is in the same group.
            loop.call_soon(self._start)
        return future

    def _start(self) -> None:
        self._scheduled = False
        if self._running is None and self._waiting:
            self._running = asyncio.get_running_loop().create_task(self._run(self._batch()))

    def _batch(self) -> list[_Caller]:
        """Take the waiting operations, up to a number and a size, since a group is held in memory more than once."""
        batch = [self._waiting.popleft()]
        size = _bytes(batch[0].operation)
        while self._waiting and len(batch) < self._size:
            size += _bytes(self._waiting[0].operation)
            if size > GROUP_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _run(self, batch: list[_Caller]) -> None:
        answers: Sequence[Answer | Rejected] = ()
        failure: StoreError | None = None
        self._heard_at = batch[0].since  # they may have waited behind another commit, which was slow or has failed
        self._be_patient(batch)
        try:
            answers = await self._commit([caller.operation for caller in batch])
        except StoreError as error:
            failure = error
        except BaseException as error:
            failure = StoreUnavailable(f"the commit was interrupted: {error!r}")
            raise
        finally:
            if self._overdue:
                self._overdue.cancel()
            self._stuck = None
            # The next group goes out before this one's callers wake up: the store works while they do.
            self._running = None
            self._start()
            self._answer(batch, answers, failure)

    def _be_patient(self, batch: list[_Caller]) -> None:
        """Wait until nothing has been heard of the store for too long."""
        if self._patience_seconds is not None:
            loop, until = asyncio.get_running_loop(), self._heard_at + self._patience_seconds
            late = until <= loop.time()
            self._overdue = None if late else loop.call_at(until, self._be_patient, batch)
            if late:
                self._give_up(batch)

    def _give_up(self, batch: list[_Caller]) -> None:
        """Fail callers who have waited too long, with those behind them and those to come until the commit ends. It may still succeed."""
        self._stuck = StoreUnavailable(
            f"the store has not committed for {self._patience_seconds:.0f} s; what was not acknowledged may be sent again",
            retry_after_seconds=2,
        )
        waiting, self._waiting = self._waiting, deque()
        for caller in (*batch, *waiting):
            if not caller.answer.done():
                caller.answer.set_exception(self._stuck)

    def _answer(
        self,
        batch: list[_Caller],
        answers: Sequence[Answer | Rejected],
        failure: StoreError | None,
    ) -> None:
        if failure is not None:
            for caller in batch:
                if not caller.answer.done():
                    caller.answer.set_exception(failure)
            return
        for (_, future, _), answer in zip(batch, answers, strict=True):
            if future.done():
                continue  # the caller is gone
            if isinstance(answer, Rejected):
                future.set_exception(self._error(answer))
            else:
                future.set_result(answer)

    async def close(self, error: StoreError) -> None:
        """Commit what was put before; reject what comes after."""
        self._start()
        while self._running is not None:
            # Not `await` alone, which would raise what the commit raised.
            await asyncio.wait({self._running})
        self._closed = error

    def fail(self, error: StoreError) -> None:
        """Fail all waiting operations, because the store can never serve again."""
        self._closed = error
        while self._waiting:
            caller = self._waiting.popleft()
            if not caller.answer.done():
                caller.answer.set_exception(error)


class GroupsByKind:
    """A group for each kind of operation. Their commits run side by side, and each is one statement where the database can."""

    def __init__(self, make: Callable[[], Group]) -> None:
        self._groups: defaultdict[type, Group] = defaultdict(make)
        self._last = make()  # takes nothing but what comes after the others were closed

    def put(self, operation: AnyOperation) -> "asyncio.Future[Answer]":
        return self._groups[type(operation)].put(operation)

    async def close(self, error: StoreError) -> None:
        """Commit what was put before; reject what comes after."""
        await asyncio.gather(self._last.close(error), *[group.close(error) for group in self._groups.values()])
        self._groups.default_factory = lambda: self._last


def _bytes(operation: AnyOperation) -> int:
    if type(operation) is NewJob:
        return len(operation.payload)
    if type(operation) is Change:
        successor = operation.successor.payload if operation.successor is not None else b""
        return len(operation.result or b"") + len(operation.payload or b"") + len(successor)
    if type(operation) is NewFlow:
        return sum(len(step.job.payload) for step in operation.steps)
    if type(operation) is PutRecord:
        return len(operation.body)
    return 0
