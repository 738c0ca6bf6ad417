"""Records that a medium was fetched, the first sign of life of a machine: once a second, not for each of a thousand ranges."""

from chargehand.doors.provisioning.job.ledger_writer import LedgerWriter
from chargehand.engine.chores import Chore
from chargehand.engine.engine import Engine
from chargehand.errors import StoreError

WRITE_SECONDS = 1.0
MAX_PENDING = 10_000


class Fetches:
    def __init__(self, engine: Engine, ledger: LedgerWriter) -> None:
        self._engine = engine
        self._ledger = ledger
        # Job and medium -> when it was last read, and whether all of it was. The time is that of the reading, not of the
        # write: a read before a reset that is written after it must not look like a machine that boots.
        self._pending: dict[tuple[str, str], tuple[int, bool]] = {}

    def heard(self, job_id: str, name: str, first: int, count: int, whole: bool) -> None:
        """Called by the media server, at the first bytes of an answer and at its end."""
        if count and len(self._pending) < MAX_PENDING:
            self._add((job_id, name), self._engine.now(), whole and first == 0)

    def _add(self, key: tuple[str, str], at: int, whole: bool) -> None:
        known_at, known_whole = self._pending.get(key, (0, False))
        self._pending[key] = max(at, known_at), whole or known_whole

    def chores(self) -> list[Chore]:
        return [Chore("media fetches", WRITE_SECONDS, self.write)]

    async def write(self) -> None:
        """Write what is pending to the store. It stays pending while the store is away; anything else that fails is dropped."""
        for key in list(self._pending):
            at, whole = self._pending.pop(key)
            try:
                await self._write(*key, at, whole)
            except StoreError:
                self._add(key, at, whole)
                raise

    async def _write(self, job_id: str, name: str, at: int, whole: bool) -> None:
        job = await self._engine.jobs.get_job(job_id)
        if job is not None:
            await self._ledger.amend(job.tenant, job_id, lambda ledger: ledger.with_fetch(name, at, whole))
