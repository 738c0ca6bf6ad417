"""Send results: one alone at once, those that end within a few milliseconds together."""

import asyncio

import msgspec

from chargehand.client.errors import ClientError, refused
from chargehand.client.tasks import MAX_BATCH, TaskCalls
from chargehand.client.types.tasks import NewResult, ReportedResult

GATHER_SECONDS = 0.005
MAX_BATCH_BYTES = 1 << 20
# The errors of a batch item that mean a lost lease; an item with any other error is sent again alone.
_LOST_TEXTS = {"lease-lost", "not-in-progress", "not-owner", "task not found", "not-found"}


class _PendingResult(msgspec.Struct, eq=False):
    outcome: NewResult
    size: int
    sent: "asyncio.Future[None]"


class ResultSender:
    def __init__(self, tasks: TaskCalls) -> None:
        self._tasks = tasks
        self._waiting: list[_PendingResult] = []
        self._timer: asyncio.Handle | None = None
        self._next_at = 0.0
        self._batches = True
        self._sending: set[asyncio.Task[None]] = set()

    async def send(self, outcome: NewResult) -> None:
        """Try once; ClientError if the server did not take it. The outcome has its `task_id`."""
        if outcome.artifacts or not self._batches:  # codeQ ignores artifacts in a batch
            await self._single(outcome)
            return
        loop = asyncio.get_running_loop()
        size = len(outcome.result) if isinstance(outcome.result, msgspec.Raw) else len(outcome.error)
        result = _PendingResult(outcome, size, loop.create_future())
        self._waiting.append(result)
        if self._timer is None:
            self._timer = loop.call_later(max(0.0, self._next_at - loop.time()), self._flush)
        await result.sent

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._sending:
            task.cancel()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        self._next_at = loop.time() + GATHER_SECONDS
        results, self._waiting = self._waiting, []
        for batch in _batches(results):
            task = loop.create_task(self._deliver(batch))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _deliver(self, batch: list[_PendingResult]) -> None:
        if len(batch) == 1:
            await self._alone(batch[0])
            return
        try:
            answers = await self._tasks.submit_many([result.outcome for result in batch], retries=0)
        except ClientError as error:
            if error.away:
                for result in batch:
                    _settle(result, error)
                return
            self._batches = error.status not in (404, 405)
            answers = []
        singly = []
        for index, result in enumerate(batch):
            answer = answers[index] if index < len(answers) else ReportedResult(error="no answer")
            if not answer.error:
                _settle(result)
            elif answer.error in _LOST_TEXTS:
                _settle(result, refused(409, answer.error))
            else:
                singly.append(self._alone(result))
        await asyncio.gather(*singly)

    async def _alone(self, result: _PendingResult) -> None:
        try:
            await self._single(result.outcome)
        except ClientError as error:
            _settle(result, error)
        else:
            _settle(result)

    async def _single(self, outcome: NewResult) -> None:
        await self._tasks.submit(outcome.task_id, outcome, retries=0)


def _settle(result: _PendingResult, error: ClientError | None = None) -> None:
    if result.sent.done():
        return  # its caller was cancelled
    if error is None:
        result.sent.set_result(None)
    else:
        result.sent.set_exception(error)


def _batches(results: list[_PendingResult]) -> list[list[_PendingResult]]:
    batches: list[list[_PendingResult]] = []
    size = 0
    for result in results:
        if not batches or len(batches[-1]) == MAX_BATCH or size + result.size > MAX_BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(result)
        size += result.size
    return batches
