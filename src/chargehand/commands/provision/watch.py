"""Follow a provisioning job: a line for each event, or on a terminal a picture of its steps that is drawn again and again."""

import sys

import msgspec

from chargehand.client import Client, ClientError
from chargehand.client.types.provisioning import Event, Job
from chargehand.commands.doors import TABLE, last_start
from chargehand.commands.provision.job_text import event_line, failure_lines, stands, took_this_try, warning_lines
from chargehand.commands.watch.notices import AwayNotices
from chargehand.commands.watch.poll import polling

LOOK_SECONDS = 1.0  # not every percent of a machine is an event


def watch(client: Client, job_id: str) -> str | None:
    """Return the outcome when the job is complete. Events go to stderr, and the end to stdout."""
    calls = client.provisioning
    job = calls.job(job_id)  # an unknown job, or a server that is away, is an error at once
    after = last_start(client, TABLE["provision"], job_id)
    if sys.stderr.isatty():
        job = _draw(client, job, after)
    else:
        notices = AwayNotices()
        for event in calls.watch(job_id, after, away=notices.away, back=notices.back):
            print(event_line(event), file=sys.stderr, flush=True)
        job = calls.job(job_id)
    print("\n".join([ending(job), *warning_lines(job), *failure_lines(job)]), flush=True)
    return job.outcome


def _draw(client: Client, job: Job, after: int) -> Job:
    from chargehand.commands.provision.screen import Screen

    calls = client.provisioning
    with Screen(job) as screen:

        def show(job: Job) -> None:
            screen.job, screen.away = job, ""

        def away(error: ClientError) -> None:
            screen.away = str(error)

        with polling(LOOK_SECONDS, lambda: calls.job(job.job_id, retries=0), show, away) as look_now:
            for event in calls.watch(job.job_id, after, away=away):
                screen.heard(event)
                look_now()
        show(calls.job(job.job_id))
        return screen.job


def ending(job: Job) -> str:
    took = f" after {took_this_try(job)}"
    count = len(job.warnings)
    warned = f", with {'a warning' if count == 1 else f'{count} warnings'}" if count else ""
    return f"{job.server_serial} is {stands(job)}{took}{warned}"


def print_event(event: Event, as_json: bool) -> None:
    line = {"type": "event", **msgspec.to_builtins(event)}
    print(msgspec.json.encode(line).decode() if as_json else event_line(event), flush=True)
