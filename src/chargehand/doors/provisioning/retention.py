"""What finished jobs leave behind goes in its time: the task medium, for it holds secrets, and later the records of a job that is gone."""

import asyncio

from msgspec.structs import replace

from chargehand.doors.provisioning.ledger import Ledgers
from chargehand.doors.provisioning.media_files import MediaFiles
from chargehand.doors.provisioning.run import Run, Runs
from chargehand.engine.engine import Engine
from chargehand.engine.job import SECOND
from chargehand.engine.record import Record
from chargehand.errors import StaleLease, StoreError
from chargehand.observability.logs import get_logger

LOOK_SECONDS = 60.0
AGAIN_SECONDS = 3600.0
BATCH = 200

log = get_logger(__name__)


class Retention:
    def __init__(self, engine: Engine, runs: Runs, ledgers: Ledgers, files: MediaFiles) -> None:
        self._engine = engine
        self._runs = runs
        self._ledgers = ledgers
        self._files = files

    async def run(self) -> None:
        while True:
            try:
                await self.sweep()
            except StoreError as error:
                log.warning("old media could not be looked for, will look again", error=str(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def sweep(self) -> None:
        for record, run in await self._runs.due(BATCH):
            await self._look(record, run)

    async def _look(self, record: Record, run: Run) -> None:
        tenant, job_id = record.tenant, record.name
        await self._files.remove(job_id)
        if await self._engine.store.get_job(job_id) is None:
            await self._ledgers.drop(tenant, job_id)
            await self._runs.drop(tenant, job_id)
            return
        due_at = self._engine.now() + int(AGAIN_SECONDS * SECOND)
        try:
            await self._runs.put(tenant, job_id, replace(run, media_gone=True), record.version, due_at=due_at)
        except StaleLease:
            return  # the job was started again
