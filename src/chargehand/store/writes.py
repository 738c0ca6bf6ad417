"""The writing half of a store: every write is an operation put into a group, the same for both databases."""

from collections.abc import Awaitable
from typing import cast

from chargehand.engine.delivery import EndpointState, Settle, Take, Taken
from chargehand.engine.file import File, NewFile
from chargehand.engine.job import SECOND, NewJob, QueueSettings
from chargehand.engine.moves import Change, Moved
from chargehand.engine.record import DropRecord, PutRecord, Record
from chargehand.engine.store import Beat, Beaten, Claim, Claimed, Note, Noted, Submitted
from chargehand.store.group import Group
from chargehand.store.operations import (
    Counted,
    DropFiles,
    GiveUp,
    Prune,
    Release,
    Replay,
    Replayed,
    SetEndpoint,
    SetQueue,
)
from chargehand.store.reads import Reads


class Writes(Reads):
    _group: Group

    def submit(self, job: NewJob) -> Awaitable[Submitted]:
        return cast(Awaitable[Submitted], self._group.put(job))

    def claim(self, claim: Claim) -> Awaitable[Claimed]:
        return cast(Awaitable[Claimed], self._group.put(claim))

    def change(self, change: Change) -> Awaitable[Moved | None]:
        return cast(Awaitable[Moved | None], self._group.put(change))

    async def beat(self, beat: Beat) -> int | None:
        return cast(Beaten, await self._group.put(beat)).lease_until

    async def note(self, note: Note) -> int | None:
        return cast(Noted, await self._group.put(note)).seq

    async def set_queue(self, settings: QueueSettings) -> None:
        await self._group.put(SetQueue(settings))

    def take_deliveries(self, take: Take) -> Awaitable[Taken]:
        return cast(Awaitable[Taken], self._group.put(take))

    def settle_delivery(self, settle: Settle) -> Awaitable[bool]:
        return cast(Awaitable[bool], self._group.put(settle))

    async def release_deliveries(self, ids: tuple[str, ...], leases: tuple[int, ...]) -> None:
        await self._group.put(Release(ids, leases))

    async def replay_delivery(self, delivery_id: str, tenant: str) -> str | None:
        return cast(Replayed, await self._group.put(Replay(tenant, delivery_id))).endpoint_id or None

    async def replay_endpoint(self, endpoint_id: str, tenant: str, limit: int) -> int:
        return cast(Replayed, await self._group.put(Replay(tenant, endpoint_id=endpoint_id, limit=limit))).count

    async def set_endpoint(self, endpoint_id: str, tenant: str, state: EndpointState, reason: str) -> bool:
        return cast(bool, await self._group.put(SetEndpoint(endpoint_id, tenant, str(state), reason)))

    async def put_file(self, file: NewFile) -> File:
        return cast(File, await self._group.put(file))

    async def drop_file(self, file_id: str, tenant: str | None = None) -> bool:
        return cast(Counted, await self._group.put(DropFiles((file_id,), tenant))).count == 1

    async def put_record(self, put: PutRecord) -> Record | None:
        return cast(Record | None, await self._group.put(put))

    async def drop_record(self, drop: DropRecord) -> bool:
        return cast(bool, await self._group.put(drop))

    # These look with a read first, so that a search among a million rows never holds up the writer.

    async def give_up_deliveries(self, age_seconds: float, limit: int) -> int:
        age = int(age_seconds * SECOND)
        ids = tuple(row[0] for row in await self._scan("overdue_deliveries", age=age, limit=limit, now=self._now()))
        if not ids:
            return 0
        reason = f"gave up: not delivered within {age_seconds:.0f} s"
        return cast(Counted, await self._group.put(GiveUp(ids, reason))).count

    async def prune(self, age_seconds: float, limit: int) -> int:
        age = int(age_seconds * SECOND)
        ids = tuple(row[0] for row in await self._scan("prunable_jobs", age=age, limit=limit, now=self._now()))
        return cast(Counted, await self._group.put(Prune(ids, age))).count if ids else 0

    async def prune_kept(self, limit: int) -> int:
        ids = tuple(row[0] for row in await self._scan("prunable_kept", limit=limit, now=self._now()))
        return cast(Counted, await self._group.put(Prune(ids, 0))).count if ids else 0

    async def purge(self, tenant: str, kind: str, ids: tuple[str, ...]) -> int:
        return cast(Counted, await self._group.put(Prune(ids, 0, (tenant, kind)))).count if ids else 0

    async def prune_files(self, age_seconds: float, limit: int) -> int:
        age = int(age_seconds * SECOND)
        ids = tuple(row[0] for row in await self._scan("prunable_files", age=age, limit=limit, now=self._now()))
        return cast(Counted, await self._group.put(DropFiles(ids))).count if ids else 0
