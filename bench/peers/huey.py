"""huey on SQLite, where a commit waits for the disk.

`python -m bench.peers.huey work FILE THREADS` works until its standard input ends; `… enqueue FILE THREADS SECONDS` prints a sample.
"""

import asyncio
import sys

from huey import SqliteHuey
from huey.consumer import Consumer

from bench.peers.timing import report

PRODUCERS = 1


def finish(bench: bool) -> dict[str, bool]:
    return {"ok": bench}


def opened(file: str) -> SqliteHuey:
    return SqliteHuey("bench", filename=file, fsync=True)


def work(file: str, threads: int) -> None:
    huey = opened(file)
    huey.task(name="finish")(finish)
    consumer = Consumer(huey, workers=threads, periodic=False, initial_delay=0.01, max_delay=0.01)
    consumer.start()
    print("ready", flush=True)
    sys.stdin.read()
    consumer.stop(graceful=True)


async def enqueue(file: str, seconds: float) -> None:
    huey = opened(file)
    task = huey.task(name="finish")(finish)

    async def put() -> None:
        task(True)

    async def finished() -> int:
        return int(huey.storage.result_store_size())

    await report(put, finished, seconds, PRODUCERS)


if __name__ == "__main__":
    verb, file, threads, *more = sys.argv[1:]
    if verb == "work":
        work(file, int(threads))
    else:
        asyncio.run(enqueue(file, float(more[0])))
