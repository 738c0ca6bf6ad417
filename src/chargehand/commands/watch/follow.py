"""Follow a job of any door: events go to stderr as they happen, and the result to stdout, so that it can be piped."""

import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from chargehand.client import Client, Token
from chargehand.client.transport.job_log import Reconnected, ignore
from chargehand.commands.doors import Door, ending, last_start, waits_for
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
        look_now: Callable[[], None] = ignore
        if not as_json and sys.stderr.isatty():
            look = stack.enter_context(polling(LOOK_SECONDS, lambda: _waits_for(client, door, job_id), show.waits))
            look_now = look if door.kind == "flow" else ignore  # each event of a flow changes what is left of it
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
                look_now()
        end = ending(client, door, job_id, outcome)
        stack.close()
        show.end(job_id, end)
        return end.outcome


def _show(as_json: bool) -> Show:
    if as_json:
        return JsonLines()
    if sys.stderr.isatty():
        from chargehand.commands.watch.terminal import Terminal

        return Terminal()
    return PlainLines()


def _waits_for(client: Client, door: Door, job_id: str) -> str:
    """Not every door says all that the engine knows."""
    return waits_for(door.job(client)(job_id, retries=0)) or waits_for(client.engine.job(job_id, retries=0))
