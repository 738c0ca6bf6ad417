"""procrastinate on PostgreSQL. It keeps no results: a task that is done is all there is to store.

`python -m bench.peers.procrastinate work URL AT_ONCE` works until its standard input ends; `… enqueue URL AT_ONCE SECONDS` prints a
sample.
"""

import asyncio
import logging
import sys
from typing import Any

import psycopg
from procrastinate import App, PsycopgConnector

from bench.peers.timing import report


def opened(url: str, at_once: int) -> tuple[App, Any]:
    app = App(connector=PsycopgConnector(conninfo=url, min_size=at_once, max_size=at_once + 4))
    return app, app.task(name="finish")(finish)


async def finish(bench: bool) -> dict[str, bool]:
    return {"ok": bench}


async def work(url: str, at_once: int) -> None:
    app, _ = opened(url, at_once)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        working = asyncio.create_task(app.run_worker_async(concurrency=at_once, install_signal_handlers=False))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def enqueue(url: str, at_once: int, seconds: float) -> None:
    app, task = opened(url, at_once)
    async with app.open_async(), await psycopg.AsyncConnection.connect(url, autocommit=True) as asking:
        [durable] = await (await asking.execute("SHOW fsync")).fetchone()
        if durable != "on":
            raise RuntimeError("PostgreSQL does not wait for the disk")

        async def put() -> None:
            await task.defer_async(bench=True)

        async def finished() -> int:
            found = await asking.execute("SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'")
            return int((await found.fetchone())[0])

        await report(put, finished, seconds, at_once)


if __name__ == "__main__":
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    verb, url, at_once, *more = sys.argv[1:]
    asyncio.run(work(url, int(at_once)) if verb == "work" else enqueue(url, int(at_once), float(more[0])))
