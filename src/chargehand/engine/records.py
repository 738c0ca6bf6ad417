"""The records of all doors: what they remember besides jobs."""

from collections.abc import Sequence

from chargehand.engine.reads import RecordFilter
from chargehand.engine.record import DropRecord, PutRecord, Record
from chargehand.engine.store import RecordStore


class Records:
    def __init__(self, store: RecordStore) -> None:
        self._store = store

    async def put(self, put: PutRecord) -> Record | None:
        return await self._store.write(put)

    async def drop(self, drop: DropRecord) -> bool:
        return await self._store.write(drop)

    async def get(self, kind: str, tenant: str, name: str) -> Record | None:
        found = await self._store.list_records(RecordFilter(kind, tenant, name))
        return found[0] if found else None

    async def list(
        self, kind: str, tenant: str | None = None, *, after: str = "", limit: int = 1000
    ) -> Sequence[Record]:
        """Return records by tenant and name; `after` is a name, and needs a tenant."""
        return await self._store.list_records(RecordFilter(kind, tenant, after=after, limit=limit))

    async def due(self, kind: str, limit: int) -> Sequence[Record]:
        """Return the records that are due, the longest due first."""
        return await self._store.list_records(RecordFilter(kind, limit=limit, due=True))
