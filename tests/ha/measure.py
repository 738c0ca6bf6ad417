"""What callers saw of a fault, in seconds: how long they waited, and how soon each node served again once it could."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from .history import Call, History, Outcome
from .load import READYZ, SLOW_SECONDS, TASKS

OUTAGE_SECONDS = 0.5  # without a commit: the database takes no writes
TICK_SECONDS = 0.05


class Away(NamedTuple):
    """A fault kept a node from the database. One that is `silent` cannot even refuse."""

    node: int
    silent: bool
    began: float
    ended: float


class Seen(NamedTuple):
    """All that a trial saw besides the history of its jobs."""

    struck: float  # when the fault began
    until: float  # when no more jobs were produced
    commits: Sequence[float]  # that the database acknowledged to its own client
    away: Sequence[Away]
    delays: Sequence[float]  # how much longer than asked for this process slept


class Measured(NamedTuple):
    jobs: int  # that were acknowledged
    outage: float  # the longest in which the database took no writes
    wait: float  # the longest that a caller waited for an answer
    waited_for: str  # by the caller who waited the longest
    ready: float  # the longest that /readyz took
    back: tuple[float, ...]  # for each node, the longest that it acknowledged nothing although it could have
    settled: float  # from the fault to the end of the last request that failed or was slow
    held: float  # the longest that the machine held up this process
    busy: (
        float  # how many processes wanted each core, and 1 if there were fewer: everything takes so many times as long
    )


def measure(history: History, seen: Seen, nodes: int) -> Measured:
    calls = [call for call in history.calls if call.ended > seen.struck and not _to_a_silent_node(call, seen.away)]
    waits = [call for call in calls if call.what != f"GET {READYZ}"]
    slowest = max(waits, key=_seconds)
    outages = [gap for gap in pairwise(seen.commits) if gap[1] - gap[0] > OUTAGE_SECONDS and gap[1] > seen.struck]
    return Measured(
        len(history.created),
        _longest(outages),
        _seconds(slowest),
        slowest.what,
        max(_seconds(call) for call in calls if call.what == f"GET {READYZ}"),
        tuple(_back(node, history, seen, outages) for node in range(nodes)),
        settled(history, seen.struck),
        max(seen.delays),
        max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)),
    )


def settled(history: History, struck: float) -> float:
    """Return how long after the fault the last request ended that failed or was slow."""
    trouble = [call for call in history.calls if call.outcome is Outcome.UNKNOWN or _seconds(call) > SLOW_SECONDS]
    return max((call.ended - struck for call in trouble if call.ended > struck), default=0.0)


def acknowledged_by(node: int, history: History) -> Iterator[float]:
    """Yield when the node acknowledged tasks."""
    for call in history.calls:
        if call.node == node and call.what == f"POST {TASKS}" and call.outcome is Outcome.DONE:
            yield call.ended


def _back(node: int, history: History, seen: Seen, outages: Iterable[tuple[float, float]]) -> float:
    unable = [*outages, *((away.began, away.ended) for away in seen.away if away.node == node)]
    served = [at for at in acknowledged_by(node, history) if seen.struck < at < seen.until]
    gaps = pairwise([seen.struck, *sorted(served), seen.until])
    return _longest(piece for began, ended in gaps for piece in _without(began, ended, unable))


def _without(began: float, ended: float, unable: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield what is left of a time without those."""
    for start, end in sorted(unable):
        if end > began and start < ended:
            yield began, max(began, start)
            began = end
    yield began, max(began, ended)


def _longest(times: Iterable[tuple[float, float]]) -> float:
    return max((ended - began for began, ended in times), default=0.0)


def _seconds(call: Call) -> float:
    return call.ended - call.began


def _to_a_silent_node(call: Call, away: Iterable[Away]) -> bool:
    return any(
        each.silent and each.node == call.node and call.began < each.ended and call.ended > each.began for each in away
    )


@contextlib.asynccontextmanager
async def noting_delays() -> AsyncIterator[list[float]]:
    """Yield a list of how much longer than asked for this process sleeps: a busy machine delays the nodes as well."""
    delays: list[float] = [0.0]

    async def note() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK_SECONDS)
            delays.append(time.monotonic() - before - TICK_SECONDS)

    noting = asyncio.create_task(note())
    try:
        yield delays
    finally:
        noting.cancel()
