"""Results on their way. One that ends alone goes at once; those that end within a few milliseconds go together."""

import asyncio

import msgspec

from chargehand.client.errors import ClientError, refused
from chargehand.client.tasks import MAX_BATCH, TaskCalls
from chargehand.client.types.tasks import NewResult, ReportedResult

GATHER_SECONDS = 0.005
MAX_BATCH_BYTES = 1 << 20
# What an item of a batch says when the task is somebody else's; any other text is asked about again, singly.
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
        """One try; ClientError if the server does not have it now. The outcome holds its `task_id`."""
        if outcome.artifacts or not self._batches:  # codeQ drops artifacts that come in a batch
            await self._single(outcome)
            return
        loop = asyncio.get_running_loop()
        size = len(outcome.result) if isinstance(outcome.result, msgspec.Raw) else len(outcome.error)
        letter = _PendingResult(outcome, size, loop.create_future())
        self._waiting.append(letter)
        if self._timer is None:
            self._timer = loop.call_later(max(0.0, self._next_at - loop.time()), self._flush)
        await letter.sent

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._sending:
            task.cancel()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        self._next_at = loop.time() + GATHER_SECONDS
        letters, self._waiting = self._waiting, []
        for bundle in _bundles(letters):
            task = loop.create_task(self._deliver(bundle))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _deliver(self, bundle: list[_PendingResult]) -> None:
        if len(bundle) == 1:
            await self._alone(bundle[0])
            return
        try:
            answers = await self._tasks.submit_many([letter.outcome for letter in bundle], retries=0)
        except ClientError as error:
            if error.away:
                for letter in bundle:
                    _settle(letter, error)
                return
            self._batches = error.status not in (404, 405)
            answers = []
        singly = []
        for index, letter in enumerate(bundle):
            answer = answers[index] if index < len(answers) else ReportedResult(error="no answer")
            if not answer.error:
                _settle(letter)
            elif answer.error in _LOST_TEXTS:
                _settle(letter, refused(409, answer.error))
            else:
                singly.append(self._alone(letter))
        await asyncio.gather(*singly)

    async def _alone(self, letter: _PendingResult) -> None:
        try:
            await self._single(letter.outcome)
        except ClientError as error:
            _settle(letter, error)
        else:
            _settle(letter)

    async def _single(self, outcome: NewResult) -> None:
        await self._tasks.submit(outcome.task_id, outcome, retries=0)


def _settle(letter: _PendingResult, error: ClientError | None = None) -> None:
    if letter.sent.done():
        return  # whoever waited for it has been cancelled
    if error is None:
        letter.sent.set_result(None)
    else:
        letter.sent.set_exception(error)


def _bundles(letters: list[_PendingResult]) -> list[list[_PendingResult]]:
    bundles: list[list[_PendingResult]] = []
    size = 0
    for letter in letters:
        if not bundles or len(bundles[-1]) == MAX_BATCH or size + letter.size > MAX_BATCH_BYTES:
            bundles.append([])
            size = 0
        bundles[-1].append(letter)
        size += letter.size
    return bundles
