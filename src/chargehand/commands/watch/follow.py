"""Follow a job of any door: events go to stderr as they happen, and the result to stdout, so that it can be piped."""

import sys
from contextlib import ExitStack, closing
from typing import Any

from chargehand.client import Client, Token
from chargehand.client.transport.job_log import Reconnected
from chargehand.commands.doors import AnyJob, Door, ending, last_start
from chargehand.commands.watch.poll import polling
from chargehand.commands.watch.show import JsonLines, PlainLines, Show

LOOK_SECONDS = 2.0  # why a job waits is no event


def follow(client: Client, door: Door, job_id: str, *, as_json: bool) -> str:
    """The outcome: succeeded, failed or cancelled."""
    if door.kind == "provision" and not as_json:
        from chargehand.commands.provision.watch import watch

        return watch(client, job_id) or "failed"
    with closing(_show(as_json)) as show, ExitStack() as stack:
        after = last_start(client, door, job_id)
        if not as_json and sys.stderr.isatty():
            stack.enter_context(
                polling(LOOK_SECONDS, lambda: waits_for(door.job(client)(job_id, retries=0)), show.waits)
            )
        outcome = ""
        each: Any
        for each in door.follow(client)(job_id, after, away=show.away, back=show.back):
            if isinstance(each, Reconnected):
                show.reconnected()
            elif isinstance(each, Token):
                show.token(each)
            else:
                seen = door.seen(each)
                outcome = seen.outcome or outcome
                show.event(each, seen)
        end = ending(client, door, job_id, outcome)
        stack.close()
        show.end(door, job_id, end)
        return end.outcome


def _show(as_json: bool) -> Show:
    if as_json:
        return JsonLines()
    if sys.stderr.isatty():
        from chargehand.commands.watch.terminal import Terminal

        return Terminal()
    return PlainLines()


def waits_for(job: AnyJob) -> str:
    why = getattr(job, "waiting", None) or getattr(job, "waiting_for", None) or ""
    before = getattr(job, "position", None)
    return f"{why}; {before} before it" if why and before else why
