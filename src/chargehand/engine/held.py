"""Why jobs that are due are not claimed: a pause or a limit of their queue."""

from collections.abc import Iterable

from chargehand.engine.job import Job, State
from chargehand.engine.queue import Queue
from chargehand.engine.reads import JobReads

PAUSED = "queue paused"


async def held(reads: JobReads, jobs: Iterable[Job], now: int) -> dict[str, str]:
    """Return the reasons by the job's id; jobs that nothing holds have none. Jobs of one queue and key share a read."""
    due = [job for job in jobs if job.state is State.QUEUED and job.run_at <= now]
    limited = {settings.queue for settings in await reads.list_queue_settings()} if due else ()
    reasons: dict[tuple[Queue, str], str] = {}
    for job in due:
        place = job.queue.shared, job.limit_key
        if place not in reasons and place[0] in limited:
            reasons[place] = (await reads.waiting(job)).held_by
    by_job = {job.id: reasons.get((job.queue.shared, job.limit_key), "") for job in due}
    return {job_id: reason for job_id, reason in by_job.items() if reason}
