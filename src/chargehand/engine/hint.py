"""What one node tells the others: that something happened, so that they need not wait for their next poll."""

from typing import Annotated

import msgspec

from chargehand.engine.queue import Queue

Instant = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reason to read the store, never the truth itself."""

    queues: tuple[tuple[Queue, Instant], ...] = ()  # with the earliest run_at of what was put there
    jobs: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()  # names of workers' streams that are to end
