"""One trial: nodes at work, a fault, and the proof that nothing was lost, with the times that callers saw."""

import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

from tests.e2e.receiver import Receiver
from tests.e2e.server import Server, eventually

from .check import Anomaly, check, webhook_missing
from .history import History, Outcome
from .load import SLOW_SECONDS, Load

QUIET_SECONDS = 3.0  # without trouble: the fault is over
SHOWN_ANOMALIES = 10


class Measured(NamedTuple):
    """What callers saw, in seconds."""

    jobs: int  # that were acknowledged
    pause: float  # the longest in which none was acknowledged
    settled: float  # from the fault to the end of the last request that failed or was slow
    longest: float  # that a caller waited for an answer, or for none


def measure(history: History, struck: float) -> Measured:
    calls = [call for call in history.calls if call.ended > struck]
    trouble = [call for call in calls if call.outcome is Outcome.UNKNOWN or call.ended - call.began > SLOW_SECONDS]
    acknowledged = sorted(created.ended for created in history.created)
    return Measured(
        len(acknowledged),
        max(later - earlier for earlier, later in pairwise(acknowledged)),
        max((call.ended - struck for call in trouble), default=0.0),
        max(call.ended - call.began for call in calls),
    )


async def survive(
    nodes: Sequence[Server],
    receiver: Receiver,
    random: Random,
    fault: Callable[[], Awaitable[None]],
    *,
    jobs: int,
    within: float,
    models: bool = False,
) -> Measured:
    """Have the fault happen under load; fail if the history has an anomaly.

    So many jobs are acknowledged before it, and again after it. `within` bounds each wait for what should follow.
    """
    history = History()
    load = Load([node.url for node in nodes], f"{receiver.url}/hook", history, random, models=models)
    receiver.answer = load.answer

    def quiet() -> bool:
        if sum(created.began > mended for created in history.created) < jobs:
            return False
        return time.time() - max(mended, struck + measure(history, struck).settled) > QUIET_SECONDS

    async with load.running():
        await eventually(lambda: len(history.created) >= jobs, within, "jobs are acknowledged")
        struck = time.time()
        await fault()
        mended = time.time()
        await eventually(quiet, within, "nodes answer again")
        await load.drain(within)
    await _until_told(history, within)
    assert receiver.forged == []
    anomalies = check(history)
    assert not anomalies, _shown(history, anomalies)
    assert {read.status for read in history.read} == {"COMPLETED"}
    return measure(history, struck)


def _shown(history: History, anomalies: Sequence[Anomaly]) -> str:
    lines = [f"{len(anomalies)} anomalies"]
    for anomaly in anomalies[:SHOWN_ANOMALIES]:
        lines += [
            f"{anomaly.kind}: {anomaly.job_id} {anomaly.what}",
            *(f"    {entry}" for entry in history.about(anomaly.job_id)),
        ]
    return "\n".join(lines)


async def _until_told(history: History, within: float) -> None:
    """Wait for the webhooks. Those that do not come are anomalies."""
    with contextlib.suppress(AssertionError):
        await eventually(lambda: not any(webhook_missing(history)), within, "every end is told")
