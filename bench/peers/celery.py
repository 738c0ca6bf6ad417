"""Celery with Redis as its broker and for its results; Redis waits for the disk, and a task is acknowledged when it is done.

`python -m bench.peers.celery work URL PRODUCERS` works until its standard input ends; `… enqueue URL PRODUCERS SECONDS` prints a sample.
It works in as many processes as there are cores, as it does by itself.
"""

import asyncio
import os
import signal
import sys
import threading
import warnings

import redis
from celery import Celery, signals

from bench.peers.timing import report

AHEAD = 32  # tasks that a worker process takes at once


def opened(url: str) -> Celery:
    app = Celery("bench", broker=f"{url}/0", backend=f"{url}/1", set_as_current=False)
    app.conf.update(task_acks_late=True, worker_prefetch_multiplier=AHEAD, broker_connection_retry_on_startup=True)
    app.conf.worker_redirect_stdouts = False
    return app


def finish(bench: bool) -> dict[str, bool]:
    return {"ok": bench}


def work(url: str) -> None:
    def ready(**_: object) -> None:
        print("ready", flush=True)

    def end_with_input() -> None:
        while os.read(0, 1024):  # not sys.stdin: its lock would be held for ever in the processes that are forked
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    app = opened(url)
    app.task(name="finish")(finish)
    signals.worker_ready.connect(ready, weak=False)
    warnings.simplefilter("ignore")  # a warning against running as root
    threading.Thread(target=end_with_input, daemon=True).start()
    app.worker_main(["--quiet", "worker", "--loglevel=ERROR", "--without-gossip", "--without-mingle"])


async def enqueue(url: str, producers: int, seconds: float) -> None:
    task = opened(url).task(name="finish")(finish)
    results = redis.Redis.from_url(f"{url}/1")

    async def put() -> None:
        await asyncio.to_thread(task.delay, True)

    async def finished() -> int:
        return int(results.dbsize())

    await report(put, finished, seconds, producers)


if __name__ == "__main__":
    verb, url, producers, *more = sys.argv[1:]
    if verb == "work":
        work(url)
    else:
        asyncio.run(enqueue(url, int(producers), float(more[0])))
