"""Periodic work: each part of the server returns its own as `Chore`s, and `Chores` runs, times and reports them all.

`Server.chores` in app.py is the one list of them. Every node runs all of its chores: what they do is guarded in the store.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from chargehand.config import Config
from chargehand.engine.engine import Engine
from chargehand.errors import StoreError
from chargehand.observability.logs import get_logger

log = get_logger(__name__)
LAPSE_SECONDS = 1.0
EXPIRE_SECONDS = 1.0
LIMITS_SECONDS = 5.0
LATE_SECONDS = 60.0  # that the end of a turn may be overdue

Observe = Callable[[str, float, bool], None]  # chore, seconds that a turn took, whether it succeeded


class Chore(NamedTuple):
    name: str
    every_seconds: float
    do: Callable[[], Awaitable[object]]
    # Waits between two turns; may return before `every_seconds` have passed.
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep


class ChoreState(StrEnum):
    OK = "ok"
    FAILING = "failing"  # its last turn failed
    LATE = "late"  # its current turn should have ended


class ChoreReport(msgspec.Struct, frozen=True):
    name: str
    every_seconds: float
    state: ChoreState
    error: str  # of the last turn; empty if it succeeded
    failures: int  # in a row
    last_turn_seconds: float | None  # how long the last turn took; null: none has ended yet
    since_success_seconds: float | None  # null: it has not succeeded since the server started


def engine_chores(engine: Engine, config: Config) -> list[Chore]:
    retention = config.retention

    async def prune() -> None:
        while (count := await engine.prune(retention.finished_seconds, retention.batch)) >= retention.batch:
            log.debug("pruned", jobs=count)

    async def turn() -> None:
        await engine.turn_periods(retention.finished_seconds)

    async def give_up() -> None:
        await engine.give_up_deliveries(config.webhooks.give_up_seconds, retention.batch)

    async def until_due(seconds: float) -> None:
        await engine.wakeups.pause(seconds, engine.now)

    return [
        Chore("due jobs", config.engine.poll_seconds, engine.look_for_due, until_due),
        Chore("lapsed leases", LAPSE_SECONDS, engine.lapse_all),
        Chore("deadlines", EXPIRE_SECONDS, engine.expire_all),
        Chore("queue limits", LIMITS_SECONDS, engine.refresh_limits),
        Chore("periods", retention.interval_seconds, turn),
        Chore("finished jobs", retention.interval_seconds, prune),
        Chore("old deliveries", retention.interval_seconds, give_up),
    ]


class Chores:
    """Each chore has a loop of its own: none waits for another, and none overlaps with itself."""

    def __init__(
        self,
        chores: Iterable[Chore],
        observe: Observe = lambda _chore, _seconds, _succeeded: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loops = [ChoreLoop(chore, observe, clock) for chore in chores]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for loop in self._loops:
                group.create_task(loop.run())

    def reports(self) -> list[ChoreReport]:
        return [loop.report() for loop in self._loops]


class ChoreLoop:
    def __init__(self, chore: Chore, observe: Observe, clock: Callable[[], float]) -> None:
        self._chore = chore
        self._observe = observe
        self._clock = clock
        self._ended_at = clock()
        self._succeeded_at: float | None = None
        self._seconds: float | None = None
        self._failures = 0
        self._error = ""

    async def run(self) -> None:
        while True:
            await self._turn()
            await self._chore.pause(self._chore.every_seconds)

    async def _turn(self) -> None:
        began = self._clock()
        error = await self._try()
        self._ended_at = self._clock()
        self._seconds = self._ended_at - began
        if error:
            self._failures += 1
        else:
            if self._failures:
                log.info("a chore succeeds again", chore=self._chore.name, failures=self._failures)
            self._failures, self._succeeded_at = 0, self._ended_at
        self._error = error
        self._observe(self._chore.name, self._seconds, not error)

    async def _try(self) -> str:
        """Return what went wrong, empty if nothing did. An error that repeats is logged once."""
        try:
            await self._chore.do()
        except StoreError as error:
            text = str(error)
            if text != self._error:
                log.warning("a chore failed, it will be tried again", chore=self._chore.name, error=text)
            return text
        except Exception as error:
            text = f"unexpected {type(error).__name__}, the log has its traceback"
            if text != self._error:
                log.exception("a chore failed unexpectedly, it will be tried again", chore=self._chore.name)
            return text
        return ""

    def report(self) -> ChoreReport:
        now, every = self._clock(), self._chore.every_seconds
        late = now - self._ended_at > every + LATE_SECONDS
        return ChoreReport(
            self._chore.name,
            every,
            ChoreState.FAILING if self._error else ChoreState.LATE if late else ChoreState.OK,
            self._error,
            self._failures,
            self._seconds,
            None if self._succeeded_at is None else now - self._succeeded_at,
        )
