"""Lists of jobs by pages."""

from msgspec.structs import replace

from chargehand.engine.job import Job
from chargehand.engine.reads import JobFilter, JobReads

SEARCHED = 10_000  # jobs whose errors are searched for one page


async def list_page(jobs: JobReads, by: JobFilter) -> tuple[list[Job], str | None]:
    """Return a page of jobs, and the cursor of the next page; None: this is the last one.

    Of a search for text a page may have fewer jobs than asked for, even none, and still a cursor.
    """
    end = await _end_of_search(jobs, by) if by.text else ""
    found = await jobs.list_jobs(replace(by, limit=by.limit + 1, first=end))
    page = found[: by.limit]
    return page, page[-1].id if len(found) > by.limit else end or None


async def _end_of_search(jobs: JobReads, by: JobFilter) -> str:
    """Return the id of the last job that may be searched for this page; "": all that are left."""
    window = JobFilter(by.tenant, state=by.state, before=by.before, stopped=by.stopped, skip=SEARCHED - 1, limit=1)
    last = await jobs.list_jobs(replace(window, since=by.since, until=by.until))
    return last[0].id if last else ""
