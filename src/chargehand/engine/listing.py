"""Lists of jobs by pages.

No page reads more than so many jobs, however few of them are like what is asked for. So a page may have fewer jobs than asked for, even
none, and still the cursor of the next one.
"""

from msgspec.structs import replace

from chargehand.engine.job import Job, State
from chargehand.engine.reads import JobFilter, JobReads

SEARCHED = 10_000  # jobs for a page
GLANCED = 1_000  # of these at first: mostly the page is full long before


async def list_page(jobs: JobReads, by: JobFilter) -> tuple[list[Job], str | None]:
    """Return a page of jobs, and the cursor of the next page; None: this is the last one."""
    end = ""
    found = await jobs.list_jobs(replace(by, limit=by.limit + 1, searched=GLANCED))
    sought = (
        by.id is not None or by.key is not None or by.state is State.RUNNING
    )  # these are few, and all have been read
    if len(found) <= by.limit and not sought:
        # Where the search ends is decided before it begins: jobs come and go meanwhile, and none must lie between two pages.
        last = await jobs.list_jobs(replace(by, last_of=SEARCHED))
        end = last[0].id if last else ""
        found = await jobs.list_jobs(replace(by, limit=by.limit + 1, first=end))
    page = found[: by.limit]
    return page, page[-1].id if len(found) > by.limit else end or None


async def list_full_page(jobs: JobReads, by: JobFilter) -> tuple[list[Job], str | None]:
    """The same for who cannot go on by itself: only the last page has fewer jobs than asked for, however long it takes to find them."""
    found, following = await list_page(jobs, by)
    while following is not None and len(found) < by.limit:
        more, following = await list_page(jobs, replace(by, before=following, limit=by.limit - len(found)))
        found += more
    return found, following
