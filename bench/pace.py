"""An open loop: requests are sent at their times, whether those before them were answered or not, as callers of a server do who
know nothing of each other. An answer's time counts from when its request was due, so that a server which stands still pays for it.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

from bench.client import Answer, Connection
from chargehand.commands.bench.load import Timings, cpu_seconds


class Due(NamedTuple):
    at_seconds: float  # seconds after the start
    request: bytes
    status: int  # status of the expected answer


def evenly(rate: float, requests: Sequence[bytes], status: int, first_at: float = 0.0) -> list[Due]:
    return [Due(first_at + number / rate, request, status) for number, request in enumerate(requests)]


async def paced(connections: Sequence[Connection], dues: Sequence[Due]) -> tuple[Timings, list[Answer]]:
    """Send the requests at their times; return the answers in the order of the requests."""
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for connection in connections:
        free.put_nowait(connection)
    clock = time.perf_counter
    cpu, began = cpu_seconds(), clock()

    async def send(connection: Connection, due: Due) -> tuple[float, Answer]:
        answer = await connection.expect(due.request, due.status)
        taken = clock() - began - due.at_seconds
        free.put_nowait(connection)
        return taken, answer

    async with asyncio.TaskGroup() as group:
        sent = []
        for due in sorted(dues, key=lambda due: due.at_seconds):
            if (wait := began + due.at_seconds - clock()) > 0:
                await asyncio.sleep(wait)
            sent.append(group.create_task(send(await free.get(), due)))
    results = [each.result() for each in sent]
    load = Timings(clock() - began, [taken for taken, _ in results], cpu_seconds() - cpu)
    return load, [answer for _, answer in results]
