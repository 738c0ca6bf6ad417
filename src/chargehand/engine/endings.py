"""How a job ended, and whether a worker says again what ended it: its answer was lost, and it cannot know."""

from chargehand.engine.job import Event, Job
from chargehand.engine.moves import Change, Move
from chargehand.engine.reads import JobReads
from chargehand.engine.texts import cut

LATER_NOTES = 100  # that may have been added since


async def end_of(jobs: JobReads, job: Job) -> Event | None:
    """Return the event of a finished job's end: the last one that is no note."""
    events = await jobs.list_events(job.id, max(0, job.seq - LATER_NOTES))
    return next((event for event in reversed(events) if event.move != "note"), None)


async def repeated(jobs: JobReads, change: Change) -> Job | None:
    """Return the finished job if its end was this very change, made by the same holder before."""
    job = await jobs.get_job(change.guard.job_id, change.guard.tenant)
    if job is None or job.kind != change.guard.kind or job.state is not Move.by_name[change.move].to:
        return None
    end = await end_of(jobs, job)
    return job if end is not None and _is_the_end(cut(change), job, end) else None


def _is_the_end(change: Change, job: Job, end: Event) -> bool:
    if (end.move, end.stage, end.error) != (change.move, change.stage, change.error):
        return False
    if change.guard.lease is not None:
        return change.guard.lease == job.lease
    # Without a lease the holder is known by what it wrote, and two workers of one name by their results.
    return end.message == change.message and job.result == change.result
