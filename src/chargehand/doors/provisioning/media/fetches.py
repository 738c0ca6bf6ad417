"""That a medium was fetched is the first sign of life of a machine. Written down once a moment, not for each of a thousand ranges."""

import asyncio
from collections.abc import Callable
from functools import partial

from chargehand.doors.provisioning.job.ledger import JobLedger, JobLedgers
from chargehand.engine.engine import Engine
from chargehand.errors import StoreError
from chargehand.observability.logs import get_logger

PAUSE_SECONDS = 1.0
MAX_PENDING = 10_000

log = get_logger(__name__)


class Fetches:
    def __init__(self, engine: Engine, ledgers: JobLedgers) -> None:
        self._engine = engine
        self._ledgers = ledgers
        # Job and medium -> when it was last read, and whether all of it was. The time is that of the reading: what was read
        # before a reset must not look, for being written down after it, like a machine that boots.
        self._pending: dict[tuple[str, str], tuple[int, bool]] = {}
        self._news = asyncio.Event()

    def heard(self, job_id: str, name: str, first: int, count: int, whole: bool) -> None:
        """Called by the media server, at the first bytes of an answer and at its end."""
        if count and len(self._pending) < MAX_PENDING:
            key = (job_id, name)
            _, known = self._pending.get(key, (0, False))
            self._pending[key] = (self._engine.now(), known or (whole and first == 0))
            self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            pending, self._pending = self._pending, {}
            for (job_id, name), (at, whole) in pending.items():
                try:
                    await self._write(job_id, name, at, whole)
                except StoreError as error:
                    log.warning("that a medium was fetched could not be written down", job_id=job_id, error=str(error))
                except Exception:
                    log.exception("that a medium was fetched could not be written down", job_id=job_id)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _write(self, job_id: str, name: str, at: int, whole: bool) -> None:
        job = await self._engine.jobs.get_job(job_id)
        if job is not None:
            await self._ledgers.amend(job.tenant, job_id, _fetched(name, at, whole))


def _fetched(name: str, at: int, whole: bool) -> Callable[[JobLedger], JobLedger]:
    return partial(JobLedger.with_fetch, name=name, at=at, whole=whole)
