"""A job's events as they happen, each once and in order, over restarts of the server, until the job ends."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from chargehand.client import ClientError
from chargehand.client.transport.backoff import pause
from chargehand.commands.calling import SILENCE_SECONDS, Api, Json
from chargehand.commands.doors import REQUEUE, Door


async def last_start(api: Api, door: Door, job_id: str) -> int:
    """The number of the event before it: what a job did before it was tried again is what `jobs show` is for."""
    after, start, ended = 0, 0, False
    path, _, _ = door.events.partition("?")
    while events := (await api.get(path.format(id=job_id), {"after": str(after)})).get("events"):
        for event in events:
            seen = door.seen(event)
            if seen.move == REQUEUE or (ended and not seen.outcome):
                start = seen.sequence - 1
            ended = bool(seen.outcome) or (ended and seen.move == "note")
            after = seen.sequence
    return start


async def follow(
    api: Api,
    door: Door,
    job_id: str,
    after: int,
    *,
    away: Callable[[ClientError], None] = lambda _: None,
    back: Callable[[], None] = lambda: None,
) -> AsyncIterator[Json]:
    """Events have a `sequence`; what has none is a token. A stream that begins again begins its tokens again."""
    failures, ended = 0, False
    while not ended:
        began, heard = time.monotonic(), False
        try:
            async for event in api.follow(door.events.format(id=job_id), after):
                if not heard:
                    back()
                heard = True
                if "sequence" in event:
                    if event["sequence"] <= after:
                        continue
                    after = event["sequence"]
                    seen = door.seen(event)
                    ended = bool(seen.outcome) or (ended and seen.move == "note")
                yield event
        except ClientError as error:
            if not error.away:
                raise
            away(error)
        if ended:
            return
        failures = 0 if heard or time.monotonic() - began >= SILENCE_SECONDS else failures + 1
        await asyncio.sleep(pause(failures))
