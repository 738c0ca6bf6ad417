"""Removes what finished jobs leave behind: first the task medium, which holds secrets, later the records of a job that is pruned."""

from msgspec.structs import replace

from chargehand.doors.provisioning.job.ledger import JobLedgers
from chargehand.doors.provisioning.job.occupancy import Occupancy
from chargehand.doors.provisioning.job.run import JobRun, JobRuns
from chargehand.doors.provisioning.media.files import MediaFiles
from chargehand.engine.chores import Chore
from chargehand.engine.engine import Engine
from chargehand.engine.job import SECOND
from chargehand.engine.record import Record
from chargehand.errors import StaleLease

LOOK_SECONDS = 60.0
AGAIN_SECONDS = 3600.0
BATCH = 200


class Retention:
    def __init__(
        self,
        engine: Engine,
        runs: JobRuns,
        ledgers: JobLedgers,
        occupancy: Occupancy,
        files: MediaFiles,
        media_keep_seconds: float,
    ) -> None:
        self._engine = engine
        self._runs = runs
        self._ledgers = ledgers
        self._occupancy = occupancy
        self._files = files
        self._keep = int(media_keep_seconds * SECOND)

    def chores(self) -> list[Chore]:
        return [Chore("old media", LOOK_SECONDS, self.sweep), Chore("media on this disk", AGAIN_SECONDS, self.tidy)]

    async def sweep(self) -> None:
        while due := await self._runs.due(BATCH):
            for record, run in due:
                await self._look(record, run)
            if len(due) < BATCH:
                break

    async def tidy(self) -> None:
        """Remove old media from this node's disk, also of jobs whose record another node has handled: each node sees only its own disk."""
        for job_id in await self._files.kept():
            job = await self._engine.jobs.get_job(job_id)
            if job is None or (job.finished_at is not None and job.finished_at + self._keep <= self._engine.now()):
                await self._files.remove(job_id)

    async def _look(self, record: Record, run: JobRun | None) -> None:
        tenant, job_id = record.tenant, record.name
        await self._files.remove(job_id)
        if run is None or await self._engine.jobs.get_job(job_id) is None:
            if run is not None and run.spot is not None:
                await self._occupancy.leave(tenant, run.spot, job_id)
            await self._ledgers.drop(tenant, job_id)
            await self._runs.drop(tenant, job_id)
            return
        due_at = self._engine.now() + int(AGAIN_SECONDS * SECOND)
        try:
            await self._runs.put(tenant, job_id, replace(run, media_gone=True), record.version, due_at=due_at)
        except StaleLease:
            return  # the job was started again
