"""The last hour, minute by minute: what was submitted, what ended and how, what was told, and what stood in the queues.

Each node counts what it does itself and writes its minutes into the store, so that an hour is an hour over all nodes and through a
restart. It costs a write every ten seconds while something happens, however much that is.
"""

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from chargehand.engine.delivery import DeliveryState, Outgoing, Settle
from chargehand.engine.job import SECOND, State
from chargehand.engine.moves import Moved
from chargehand.engine.record import DropRecord, PutRecord
from chargehand.engine.store import Store
from chargehand.errors import StoreError
from chargehand.observability.logs import get_logger

MINUTE = 60 * SECOND
SHOWN = 60
WRITE_SECONDS = 10.0
RECORD = "minute"
NOBODY = "-"  # of all tenants: what is inside says whose
DELIVERIES = "deliveries"  # beside the kinds of jobs
MAX_SERIES = 500  # tenants times kinds: what is more is not drawn

log = get_logger(__name__)


class Count(msgspec.Struct, array_like=True):
    """Of one tenant and kind in one minute; of deliveries, those delivered and those dead. A cancelled job neither ended well nor failed."""

    submitted: int = 0
    ended: int = 0
    failed: int = 0
    waiting: int = 0  # as it was last seen in this minute
    running: int = 0

    def add(self, other: "Count") -> None:
        """Of another node: what each did adds up, what stands in the queues is the same for all."""
        self.submitted += other.submitted
        self.ended += other.ended
        self.failed += other.failed
        self.waiting = max(self.waiting, other.waiting)
        self.running = max(self.running, other.running)


Minute = dict[str, Count]  # "tenant/kind" -> what happened
_decoder = msgspec.json.Decoder(Minute)
_encoder = msgspec.json.Encoder()


class Minutes:
    def __init__(self, store: Store, node: str, now: Callable[[], int]) -> None:
        self._store = store
        self._node = node
        self._now = now
        self._mine: dict[int, Minute] = {}
        self._written: set[int] = set()  # minutes that are in the store as they are here
        self._others: dict[int, dict[str, Minute]] = {}

    # what happens -------------------------------------------------------------------------------------------------------

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
        """What is in the queues at this moment."""
        count = self._count(tenant, kind, self._now())
        count.waiting, count.running = waiting, running

    def _count(self, tenant: str, kind: str, at: int) -> Count:
        minute = at // MINUTE
        self._written.discard(minute)
        series = self._mine.setdefault(minute, {})
        count = series.get(key := f"{tenant}/{kind}")
        if count is None:
            count = Count()
            if len(series) < MAX_SERIES:
                series[key] = count
        return count

    # the hour -----------------------------------------------------------------------------------------------------------

    def hour(self, tenant: str, kind: str) -> list[Count]:
        """Sixty minutes, the last one is now."""
        now, key = self._now() // MINUTE, f"{tenant}/{kind}"
        return [self._sum(minute, key) for minute in range(now - SHOWN + 1, now + 1)]

    def _sum(self, minute: int, key: str) -> Count:
        total = Count()
        for series in (self._mine.get(minute, {}), *self._others.get(minute, {}).values()):
            if key in series:
                total.add(series[key])
        return total

    # the store ----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            try:
                await self.exchange()
            except StoreError as error:
                log.warning("the last hour could not be written, will try again", error=str(error))
            await asyncio.sleep(WRITE_SECONDS)

    async def exchange(self) -> None:
        """Writes what is new here and reads what others wrote. What is older than the hour goes."""
        oldest = self._now() // MINUTE - SHOWN
        for minute in [each for each in self._mine if each <= oldest]:
            del self._mine[minute]
        for minute in sorted(self._mine.keys() - self._written):
            self._written.add(minute)  # before: what is counted while it is written takes the mark away again
            body = _encoder.encode(self._mine[minute])
            try:
                await self._store.put_record(PutRecord(RECORD, NOBODY, f"{minute:010d}/{self._node}", body))
            except StoreError:
                self._written.discard(minute)
                raise
        others: dict[int, dict[str, Minute]] = {}
        old: list[str] = []
        for record in await self._store.list_records(RECORD, NOBODY):
            at, _, node = record.name.partition("/")
            if int(at) <= oldest:
                old.append(record.name)
            elif node != self._node:
                others.setdefault(int(at), {})[node] = _decoder.decode(record.body)
        self._others = others
        await self._forget(old)

    async def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            await self._store.drop_record(DropRecord(RECORD, NOBODY, name))
