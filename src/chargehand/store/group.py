"""Group commit: operations that arrive while a commit runs go into the next one. One fsync, one round trip, for many callers."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence

from chargehand.engine.job import NewJob
from chargehand.engine.moves import Change
from chargehand.engine.record import PutRecord
from chargehand.errors import BadRequest, ChargehandError, StoreError, StoreUnavailable
from chargehand.store.operations import GROUP_BYTES, Answer, AnyOperation, Rejected

Commit = Callable[[Sequence[AnyOperation]], Awaitable[Sequence[Answer | Rejected]]]


def bad_operation(rejected: Rejected) -> ChargehandError:
    return BadRequest(rejected.message)


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
        self._waiting: deque[tuple[AnyOperation, asyncio.Future[Answer]]] = deque()
        self._scheduled = False
        self._running: asyncio.Task[None] | None = None
        self._stuck: StoreError | None = None  # the running commit is overdue
        self._closed: StoreError | None = None

    def put(self, operation: AnyOperation) -> "asyncio.Future[Answer]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        if refusal := self._closed or self._stuck:
            future.set_exception(refusal)
            return future
        self._waiting.append((operation, future))
        if self._running is None and not self._scheduled:
            self._scheduled = True
            # Not at once, so that what else becomes ready in this turn of the loop is in the same group.
            loop.call_soon(self._start)
        return future

    def _start(self) -> None:
        self._scheduled = False
        if self._running is None and self._waiting:
            self._running = asyncio.get_running_loop().create_task(self._run(self._batch()))

    def _batch(self) -> "list[tuple[AnyOperation, asyncio.Future[Answer]]]":
        """Take the waiting operations, up to a number and a size, since a group is held in memory more than once."""
        batch = [self._waiting.popleft()]
        size = _bytes(batch[0][0])
        while self._waiting and len(batch) < self._size:
            size += _bytes(self._waiting[0][0])
            if size > GROUP_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _run(self, batch: "list[tuple[AnyOperation, asyncio.Future[Answer]]]") -> None:
        answers: Sequence[Answer | Rejected] = ()
        failure: StoreError | None = None
        overdue = self._patience_seconds and asyncio.get_running_loop().call_later(
            self._patience_seconds, self._give_up, batch
        )
        try:
            answers = await self._commit([operation for operation, _ in batch])
        except StoreError as error:
            failure = error
        except BaseException as error:
            failure = StoreUnavailable(f"the commit was interrupted: {error!r}")
            raise
        finally:
            if overdue:
                overdue.cancel()
            self._stuck = None
            # The next group goes out before this one's callers wake up: the store works while they do.
            self._running = None
            self._start()
            self._answer(batch, answers, failure)

    def _give_up(self, batch: "list[tuple[AnyOperation, asyncio.Future[Answer]]]") -> None:
        """Fail the callers of a commit that takes too long, those behind it and those to come. It may still succeed."""
        self._stuck = StoreUnavailable(
            f"the store has not committed for {self._patience_seconds:.0f} s; what was not acknowledged may be sent again",
            retry_after_seconds=2,
        )
        waiting, self._waiting = self._waiting, deque()
        for _, future in (*batch, *waiting):
            if not future.done():
                future.set_exception(self._stuck)

    def _answer(
        self,
        batch: "list[tuple[AnyOperation, asyncio.Future[Answer]]]",
        answers: Sequence[Answer | Rejected],
        failure: StoreError | None,
    ) -> None:
        if failure is not None:
            for _, future in batch:
                if not future.done():
                    future.set_exception(failure)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
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
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)


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
    if type(operation) is PutRecord:
        return len(operation.body)
    return 0
