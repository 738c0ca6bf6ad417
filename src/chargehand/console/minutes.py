"""Counts for each minute of the last hour: jobs submitted, ended and failed, deliveries, and the depth of the queues.

Each node counts what it does itself, writes its minutes into the store and reads those of the others, so the hour covers all nodes
and survives a restart. This costs one write every ten seconds while anything happens.
"""

from collections.abc import Callable, Iterable

import msgspec

from chargehand.engine.delivery import DeliveryState, Outgoing, Settle
from chargehand.engine.job import SECOND, State
from chargehand.engine.moves import Moved
from chargehand.engine.record import DropRecord, PutRecord
from chargehand.engine.records import Records
from chargehand.errors import StoreError
from chargehand.observability.hour import MINUTES, LastHour

MINUTE = 60 * SECOND
WRITE_SECONDS = 10.0
RECORD = "minute"
NOBODY = "-"  # the records belong to no tenant: they name those that they count
DELIVERIES = "deliveries"  # beside the kinds of jobs
MAX_SERIES = 500  # tenants times kinds in a minute; more are not counted


class MinuteCount(msgspec.Struct, array_like=True):
    """Of one tenant and kind. A delivered delivery has ended, a dead one has failed; a cancelled job counts as neither."""

    submitted: int = 0
    ended: int = 0
    failed: int = 0
    waiting: int = 0  # as it was last seen in this minute
    running: int = 0

    def add(self, other: "MinuteCount") -> None:
        """Add the count of another node. The queues are the same for all nodes, so those are not added up."""
        self.submitted += other.submitted
        self.ended += other.ended
        self.failed += other.failed
        self.waiting = max(self.waiting, other.waiting)
        self.running = max(self.running, other.running)


Minute = dict[str, MinuteCount]  # by "tenant/kind"
_decoder = msgspec.json.Decoder(Minute)
_encoder = msgspec.json.Encoder()


class Minutes:
    def __init__(self, records: Records, node: str, now: Callable[[], int]) -> None:
        self._records = records
        self._node = node
        self._now = now
        self._mine: LastHour[Minute] = LastHour(dict)
        self._written: set[int] = set()  # minutes that are in the store as they are here
        self._others: dict[str, LastHour[Minute]] = {}  # by node

    # counting -----------------------------------------------------------------------------------------------------------

    def on_move(self, moved: Moved) -> None:
        if moved.move == "submit":
            self._count(moved.tenant, moved.kind, moved.at).submitted += 1
        elif moved.state is State.SUCCEEDED:
            self._count(moved.tenant, moved.kind, moved.at).ended += 1
        elif moved.state is State.FAILED:
            self._count(moved.tenant, moved.kind, moved.at).failed += 1

    def on_settled(self, settle: Settle, outgoing: Outgoing) -> None:
        if settle.state is not DeliveryState.PENDING:
            count = self._count(outgoing.delivery.tenant, DELIVERIES, self._now())
            if settle.state is DeliveryState.DELIVERED:
                count.ended += 1
            else:
                count.failed += 1

    def stand(self, tenant: str, kind: str, waiting: int, running: int) -> None:
        """Set the depth of the queues in this minute."""
        count = self._count(tenant, kind, self._now())
        count.waiting, count.running = waiting, running

    def _count(self, tenant: str, kind: str, at: int) -> MinuteCount:
        minute = at // MINUTE
        self._written.discard(minute)
        series = self._mine.at(minute)
        count = series.get(key := f"{tenant}/{kind}")
        if count is None:
            count = MinuteCount()
            if len(series) < MAX_SERIES:
                series[key] = count
        return count

    # the hour -----------------------------------------------------------------------------------------------------------

    def hour(self, tenant: str, kind: str) -> list[MinuteCount]:
        """Return sixty counts, the last one for this minute."""
        now, key = self._now() // MINUTE, f"{tenant}/{kind}"
        hours = [ring.until(now) for ring in (self._mine, *self._others.values())]
        return [
            _sum(series[key] for series in minute if series and key in series) for minute in zip(*hours, strict=True)
        ]

    # the store ----------------------------------------------------------------------------------------------------------

    async def exchange(self) -> None:
        """Write what is new here, read what other nodes wrote, and drop what is older than an hour."""
        now = self._now() // MINUTE
        self._mine.forget(now)
        self._written.intersection_update(self._mine)
        for minute in sorted(set(self._mine) - self._written):
            self._written.add(minute)  # before the write: a count during it takes the mark away again
            body = _encoder.encode(self._mine.at(minute))
            try:
                await self._records.put(PutRecord(RECORD, NOBODY, f"{minute:010d}/{self._node}", body))
            except StoreError:
                self._written.discard(minute)
                raise
        others: dict[str, LastHour[Minute]] = {}
        old: list[str] = []
        for record in await self._records.list(RECORD, NOBODY):
            at, _, node = record.name.partition("/")
            if int(at) <= now - MINUTES:
                old.append(record.name)
            elif node != self._node:
                others.setdefault(node, LastHour(dict)).at(int(at)).update(_decoder.decode(record.body))
        self._others = others
        for name in old:
            await self._records.drop(DropRecord(RECORD, NOBODY, name))


def _sum(counts: Iterable[MinuteCount]) -> MinuteCount:
    total = MinuteCount()
    for each in counts:
        total.add(each)
    return total
