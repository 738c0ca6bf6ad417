"""Pace requests to BMCs, so that machines that report are answered quickly.

A thousand machines that are booted or cleaned up at once would keep the process busy for seconds, and reporting machines would wait as
long. So requests to all BMCs begin one at a time, at intervals, and none while a machine waits for the answer to its report: a machine
that gets no answer in time reports again. A request waits only for a bounded time, however many machines report.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from chargehand.engine.wakeups import wait_within

TURN_SECONDS = 0.002  # between the beginnings of two requests; longer when the process is busy
GIVE_WAY_SECONDS = 0.02  # the longest wait of a request for reporting machines


class Turns:
    def __init__(self, turn_seconds: float = TURN_SECONDS, give_way_seconds: float = GIVE_WAY_SECONDS) -> None:
        self._turn_seconds = turn_seconds
        self._give_way_seconds = give_way_seconds
        self._one_at_a_time = asyncio.Lock()
        self._reports = 0  # reports that are being answered
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def wait(self) -> None:
        """Wait until the next request may begin."""
        async with self._one_at_a_time:
            await asyncio.sleep(self._turn_seconds)
            if self._reports:
                await wait_within(self._quiet, self._give_way_seconds)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Context for answering a machine's report."""
        self._reports += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._reports -= 1
            if not self._reports:
                self._quiet.set()
