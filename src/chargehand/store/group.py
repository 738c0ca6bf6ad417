"""Group commit: operations that arrive while a commit runs go into the next one. One fsync, one round trip, for many callers."""

import asyncio
from collections import deque
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
        self, commit: Commit, size: int, lanes: int = 1, error: Callable[[Rejected], ChargehandError] = bad_operation
    ) -> None:
        self._commit = commit
        self._error = error
        self._size = size
        self._free_lanes = lanes  # commits that may run side by side: one for SQLite, several for PostgreSQL
        self._waiting: deque[tuple[AnyOperation, asyncio.Future[Answer]]] = deque()
        self._scheduled = False
        self._running: set[asyncio.Task[None]] = set()
        self._closed: StoreError | None = None

    def put(self, operation: AnyOperation) -> "asyncio.Future[Answer]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        if self._closed is not None:
            future.set_exception(self._closed)
            return future
        self._waiting.append((operation, future))
        if self._free_lanes and not self._scheduled:
            self._scheduled = True
            # Not at once, so that what else becomes ready in this turn of the loop is in the same group.
            loop.call_soon(self._start)
        return future

    def _start(self) -> None:
        self._scheduled = False
        while self._free_lanes and self._waiting:
            self._free_lanes -= 1
            task = asyncio.get_running_loop().create_task(self._run(self._batch()))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

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
        try:
            answers = await self._commit([operation for operation, _ in batch])
        except StoreError as error:
            failure = error
        except BaseException as error:
            failure = StoreUnavailable(f"the commit was interrupted: {error!r}")
            raise
        finally:
            # The next group goes out before this one's callers wake up: the store works while they do.
            self._free_lanes += 1
            self._start()
            self._answer(batch, answers, failure)

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
        while self._waiting or self._running:
            self._start()
            # Not `gather`: from Python 3.12 on that gives no turn to the callbacks of tasks that are done already.
            await asyncio.wait(self._running)
        self._closed = error

    def fail(self, error: StoreError) -> None:
        """Fail all waiting operations, because the store can never serve again."""
        self._closed = error
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)


def _bytes(operation: AnyOperation) -> int:
    if type(operation) is NewJob:
        return len(operation.payload)
    if type(operation) is Change:
        successor = operation.successor.payload if operation.successor is not None else b""
        return len(operation.result or b"") + len(operation.payload or b"") + len(successor)
    if type(operation) is PutRecord:
        return len(operation.body)
    return 0
