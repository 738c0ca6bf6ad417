"""Writes the states of an attempt beside its request, so that the request does not wait for a commit."""

import asyncio
import contextlib

from chargehand.engine.runner import Hand
from chargehand.engine.wakeups import wait_within
from chargehand.errors import Conflict, NotFound
from chargehand.observability.logs import get_logger

GIVE_WAY_SECONDS = 0.01  # how long the write of `working` waits for the first token to pass

log = get_logger(__name__)


class StateWriter:
    """States are written one after the other, in the order in which they were seen."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self._answer_began = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    def write(self, stage: str, message: str) -> None:
        self._writing = asyncio.create_task(self._advance(self._writing, stage, message))
        self._writing.add_done_callback(_log_failure)

    async def _advance(self, before: asyncio.Task[None] | None, stage: str, message: str) -> None:
        if before is not None:
            await before
        if stage == "working":
            await wait_within(self._answer_began, GIVE_WAY_SECONDS)
        with contextlib.suppress(Conflict, NotFound):  # cancelled meanwhile: the holder of the job stops the attempt
            await self._hand.advance(stage, message)

    def answer_begins(self) -> None:
        self._answer_began.set()

    async def finish(self) -> None:
        """Wait until all states are written; raise what the last write raised."""
        self._answer_began.set()
        if self._writing is not None:
            await self._writing


def _log_failure(writing: "asyncio.Task[None]") -> None:
    """Retrieve the error: an attempt that was cancelled meanwhile does not await the write."""
    if not writing.cancelled() and (error := writing.exception()) is not None:
        log.info("a state could not be written", error=str(error))
