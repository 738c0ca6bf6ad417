"""A job as it happens: a line for each event, or on a terminal a picture of its steps that is drawn again and again."""

import asyncio
import contextlib
import sys

import msgspec

from chargehand.client import ClientError, Provisioning
from chargehand.client.machines import Event, Job
from chargehand.provision_command.texts import between, event_line, failure_lines, lasted, stands

LOOK_SECONDS = 1.0  # a machine's percent are not all events


async def watch(api: Provisioning, job_id: str, *, as_json: bool) -> str | None:
    """The outcome, when the job is complete."""
    job = await api.job(job_id)  # a job that is not there, or a server, is an error at once
    after = await _last_start(api, job_id)
    if not as_json and sys.stdout.isatty():
        job = await _draw(api, job, after)
    else:
        async for event in api.watch(job_id, after, away=away):
            print_event(event, as_json)
        job = await api.job(job_id)
    if not as_json:
        print("\n".join([ending(job), *failure_lines(job)]), flush=True)
    return job.outcome


async def _last_start(api: Provisioning, job_id: str) -> int:
    """The number of the event before it: what a job did before it was retried is what `events` is for."""
    after, complete = 0, 0
    async for event in api.events(job_id):
        if event.status == "complete":
            complete = event.sequence
        elif complete:
            after, complete = complete, 0
    return after


def ending(job: Job) -> str:
    took = f" after {lasted(between(job.created_at, job.finished_at))}"
    warned = f", with {len(job.warnings)} warnings" if job.warnings else ""
    return f"{job.server_serial} is {stands(job)}{took}{warned}"


def print_event(event: Event, as_json: bool) -> None:
    print(msgspec.json.encode(event).decode() if as_json else event_line(event), flush=True)


def away(error: ClientError) -> None:
    print(f"the server is away ({error}); the job is safe, trying again", file=sys.stderr, flush=True)


async def _draw(api: Provisioning, job: Job, after: int) -> Job:
    from chargehand.provision_command.screen import Screen

    news = asyncio.Event()
    with Screen(job) as screen:

        def lost(error: ClientError) -> None:
            screen.away = str(error)

        async def follow() -> None:
            try:
                async for event in api.watch(job.job_id, after, away=lost):
                    screen.heard(event)
                    news.set()
            finally:
                news.set()

        following = asyncio.create_task(follow())
        try:
            while not following.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await news.wait()
                news.clear()
                try:
                    screen.job = await api.job(job.job_id, retries=0)
                    screen.away = ""
                except ClientError as error:
                    if not error.away:
                        raise
                    screen.away = str(error)
            await following
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        screen.job = await api.job(job.job_id)
    return screen.job
