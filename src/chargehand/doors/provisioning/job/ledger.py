"""The ledger of a job: what its machine reported, and the verdict. Its owner begins it; every node may write into it (`ledger_writer.py`)."""

from typing import Literal

import msgspec
from msgspec.structs import replace

from chargehand.engine.record import DropRecord, PutRecord
from chargehand.engine.records import Records

RECORD = "provision-ledger"
WINDOW = 32  # delivery ids that are remembered
MAX_STEPS = 64
MAX_TAIL = 65_536  # characters of the machine's log

Outcome = Literal["succeeded", "failed", "cancelled"]


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    outcome: Outcome
    at: int
    by: str  # webhook, controller, or the caller who cancelled
    failed_step: str | None = None  # a key of the taxonomy
    unit: str = ""  # of systemd, as the machine named it
    error: str = ""
    reason: str = ""  # distinguishes failures with the same key


class UnitProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step on the machine, as the machine reports it."""

    step: str
    began_at: int
    heard_at: int
    percent: float | None = None
    message: str = ""
    finished: bool = False


class Fetch(msgspec.Struct, frozen=True):
    """A medium was read. It is the first sign that the BMC reaches us and, after the reset, that the machine boots."""

    name: str
    first_at: int
    last_at: int
    whole: bool = False  # all of it was read


class JobLedger(msgspec.Struct, frozen=True, omit_defaults=True):
    generation: int = 1  # one more with each retry that an operator asks for
    verdict: Verdict | None = None
    deliveries: tuple[str, ...] = ()
    boot_id: str = ""  # of the only boot that may work
    heard_at: int | None = None
    steps: tuple[UnitProgress, ...] = ()
    tail: str = ""
    told: int = 0  # lines in the job's log that came from the machine's reports
    fetches: tuple[Fetch, ...] = ()

    def knows(self, delivery_id: str) -> bool:
        return delivery_id in self.deliveries

    def with_delivery(self, delivery_id: str) -> "JobLedger":
        if not delivery_id or self.knows(delivery_id):
            return self
        return replace(self, deliveries=(*self.deliveries, delivery_id)[-WINDOW:])

    def with_verdict(self, verdict: Verdict) -> "JobLedger":
        return self if self.verdict is not None else replace(self, verdict=verdict)

    @property
    def has_whole_medium(self) -> bool:
        """Return whether the BMC read all of a medium when it was inserted: then later silence means nothing."""
        return any(fetch.whole for fetch in self.fetches)

    def shows_life_since(self, at: int) -> bool:
        """Return whether the machine reported, or a medium was read, since then."""
        return (self.heard_at or 0) >= at or any(fetch.last_at >= at for fetch in self.fetches)

    def with_fetch(self, name: str, at: int, whole: bool) -> "JobLedger":
        others = tuple(fetch for fetch in self.fetches if fetch.name != name)
        known = next((fetch for fetch in self.fetches if fetch.name == name), Fetch(name, at, at))
        return replace(self, fetches=(*others, Fetch(name, known.first_at, at, known.whole or whole)))


_decoder = msgspec.json.Decoder(JobLedger)


class JobLedgers:
    def __init__(self, records: Records) -> None:
        self._records = records

    async def get(self, tenant: str, job_id: str) -> JobLedger | None:
        record = await self._records.get(RECORD, tenant, job_id)
        return None if record is None else _decoder.decode(record.body)

    async def begin(self, tenant: str, job_id: str, generation: int) -> None:
        """Write an empty ledger for a new start. If this start has one already, keep it: a late owner that was replaced must
        not empty it.
        """
        while True:
            record = await self._records.get(RECORD, tenant, job_id)
            if record is not None and _decoder.decode(record.body).generation >= generation:
                return
            expected = 0 if record is None else record.version
            body = msgspec.json.encode(JobLedger(generation))
            if await self._records.put(PutRecord(RECORD, tenant, job_id, body, expected=expected)) is not None:
                return

    async def drop(self, tenant: str, job_id: str) -> None:
        await self._records.drop(DropRecord(RECORD, tenant, job_id))
