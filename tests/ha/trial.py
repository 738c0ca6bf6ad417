"""One trial: nodes at work, a fault, and the proof that nothing was lost, with the times that callers saw."""

import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from tests.e2e.receiver import Receiver
from tests.e2e.server import Server, eventually

from .check import Anomaly, check, webhook_missing
from .history import History
from .load import Load
from .measure import Away, Measured, Seen, acknowledged_by, measure, noting_delays, settled
from .watch import watching

QUIET_SECONDS = 3.0  # without trouble: the fault is over
SHOWN_ANOMALIES = 10


async def survive(
    nodes: Sequence[Server],
    databases: Sequence[str],
    receiver: Receiver,
    random: Random,
    fault: Callable[[], Awaitable[None]],
    away: Sequence[Away] = (),
    *,
    jobs: int,
    within: float,
    models: bool = False,
) -> Measured:
    """Have the fault happen under load; fail if the history has an anomaly.

    So many jobs are acknowledged before it, and again after it, some by each node. `databases` are the URLs of all members of the
    database's cluster, and the fault adds to `away`. `within` bounds each wait for what should follow.
    """
    history = History()
    load = Load([node.url for node in nodes], f"{receiver.url}/hook", history, random, models=models)
    receiver.answer = load.answer

    def quiet() -> bool:
        served = [max(acknowledged_by(node, history), default=0.0) for node in range(len(nodes))]
        if min(served) < mended or sum(created.began > mended for created in history.created) < jobs:
            return False
        return time.time() - max(mended, struck + settled(history, struck)) > QUIET_SECONDS

    async with watching(databases) as commits, noting_delays() as delays, load.running():
        await eventually(lambda: len(history.created) >= jobs, within, "jobs are acknowledged")
        struck = time.time()
        await fault()
        mended = time.time()
        await eventually(quiet, within, "every node serves again, without trouble")
        seen = Seen(struck, time.time(), commits, away, delays)
        await load.drain(within)
    await _until_told(history, within)
    assert receiver.forged == []
    anomalies = check(history)
    assert not anomalies, _shown(history, anomalies)
    assert {read.status for read in history.read} == {"COMPLETED"}
    return measure(history, seen, len(nodes))


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
