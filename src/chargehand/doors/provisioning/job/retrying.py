"""Taking a step again while a BMC is in trouble and time is left."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from chargehand.doors.provisioning.redfish.errors import RedfishError

MAX_PAUSE_SECONDS = 60.0

T = TypeVar("T")


async def retry_until(
    do: Callable[[], Awaitable[T]],
    left: Callable[[], float],
    note: Callable[[str, float], Awaitable[None]],
    first_pause: float,
) -> T:
    """Call `do` until it succeeds, fails for good, or no time is `left`: then raise its last error. `note` is called before each pause."""
    pause = first_pause
    while True:
        began = time.monotonic()
        try:
            return await do()
        except RedfishError as error:
            if not error.transient or left() <= pause:
                raise
            await note(error.message, pause)
        await asyncio.sleep(pause)
        pause = min(MAX_PAUSE_SECONDS, pause * 2) if time.monotonic() - began < MAX_PAUSE_SECONDS else first_pause
