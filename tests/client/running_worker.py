"""Run a worker beside the test."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from chargehand.client import Worker


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[asyncio.Task[None]]:
    serving = asyncio.create_task(worker.serve())
    try:
        yield serving
    finally:
        worker.stop()
        worker.stop()  # a second stop ends the grace
        await asyncio.wait_for(serving, 30)


class Log(logging.Handler):
    """The lines that the client logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
