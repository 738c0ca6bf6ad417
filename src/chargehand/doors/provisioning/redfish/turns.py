"""When the next request to a BMC may begin.

A thousand machines that are booted or cleaned up at once would keep the process busy for seconds, and those that report would wait
for as long. So one request begins each moment, to whichever BMC, and none while a machine waits for the answer to its report: a
machine that is not answered in time reports again, and a BMC can wait. It does not wait for long, however many machines report.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

TURN_SECONDS = 0.002  # between one request's beginning and the next one's; when the process is busy it is longer
GIVE_WAY_SECONDS = 0.02  # that a request waits at most for machines that report


class Turns:
    def __init__(self, turn_seconds: float = TURN_SECONDS, give_way_seconds: float = GIVE_WAY_SECONDS) -> None:
        self._turn_seconds = turn_seconds
        self._give_way_seconds = give_way_seconds
        self._one_at_a_time = asyncio.Lock()
        self._reports = 0  # that are being answered
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def wait(self) -> None:
        """Until the next request may begin."""
        async with self._one_at_a_time:
            await asyncio.sleep(self._turn_seconds)
            if self._reports:
                await self._give_way()

    async def _give_way(self) -> None:
        try:
            async with asyncio.timeout(self._give_way_seconds):
                await self._quiet.wait()
        except TimeoutError:
            return

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Around the work for a machine that waits for its answer."""
        self._reports += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._reports -= 1
            if not self._reports:
                self._quiet.set()
