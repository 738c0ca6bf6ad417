"""A job as it happens: a line for each event, or on a terminal a picture of its steps that is drawn again and again."""

import asyncio
import contextlib
import sys

import msgspec

from chargehand.client import ClientError
from chargehand.client.provisioning import ProvisioningCalls
from chargehand.client.types.provisioning import Event, Job
from chargehand.commands.provision.job_text import event_line, failure_lines, stands, took_this_try, warning_lines
from chargehand.commands.watch.notices import Presence

LOOK_SECONDS = 1.0  # a machine's percent are not all events


async def watch(api: ProvisioningCalls, job_id: str) -> str | None:
    """The outcome, when the job is complete. What happens goes to stderr, and what came of it to stdout."""
    job = await api.job(job_id)  # a job that is not there, or a server, is an error at once
    after = await _last_start(api, job_id)
    if sys.stderr.isatty():
        job = await _draw(api, job, after)
    else:
        there = Presence()
        async for event in api.watch(job_id, after, away=there.away, back=there.back):
            print(event_line(event), file=sys.stderr, flush=True)
        job = await api.job(job_id)
    print("\n".join([ending(job), *warning_lines(job), *failure_lines(job)]), flush=True)
    return job.outcome


async def _last_start(api: ProvisioningCalls, job_id: str) -> int:
    """The number of the event before it: what a job did before it was retried is what `events` is for."""
    after, complete = 0, 0
    async for event in api.events(job_id):
        if event.status == "complete":
            complete = event.sequence
        elif complete:
            after, complete = complete, 0
    return after


def ending(job: Job) -> str:
    took = f" after {took_this_try(job)}"
    count = len(job.warnings)
    warned = f", with {'a warning' if count == 1 else f'{count} warnings'}" if count else ""
    return f"{job.server_serial} is {stands(job)}{took}{warned}"


def print_event(event: Event, as_json: bool) -> None:
    line = {"type": "event", **msgspec.to_builtins(event)}
    print(msgspec.json.encode(line).decode() if as_json else event_line(event), flush=True)


async def _draw(api: ProvisioningCalls, job: Job, after: int) -> Job:
    from chargehand.commands.provision.screen import Screen

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
