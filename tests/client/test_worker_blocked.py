"""Functions that hold up the loop that they run in, and what their neighbours notice of it."""

import asyncio
import sys
import threading
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chargehand.client import Held, Worker
from chargehand.client.worker import loop_watch
from tests.api.serving import until
from tests.client.running_worker import Log
from tests.client.stub_server import Stub


class Blocking:
    """A worker in a thread, so that its loop is not the server's. Its function `block` blocks that loop until it is released."""

    def __init__(self, server: Stub) -> None:
        self.worker = Worker(server.url, concurrency=3, lease_seconds=2, grace_seconds=0)
        self.begun = threading.Event()
        self.release = threading.Event()

        @self.worker.task("block")
        async def block(_: Held) -> None:
            self.begun.set()
            self.release.wait(60)

    async def until_blocked(self) -> None:
        await until(self.begun.is_set)


@pytest.fixture
async def blocking(server: Stub) -> AsyncIterator[Blocking]:
    made = Blocking(server)
    yield made
    made.release.set()


async def running(worker: Worker, over: asyncio.Event) -> None:
    def work() -> None:
        with worker.running():
            asyncio.run_coroutine_threadsafe(over.wait(), loop).result()

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(work)


async def test_a_function_that_blocks_the_loop_costs_nobody_a_lease(server: Stub, blocking: Blocking) -> None:
    gate = threading.Event()

    @blocking.worker.task("neighbour")
    async def neighbour(_: Held) -> None:
        await until(gate.is_set, 60)

    before = server.add("neighbour")
    over = asyncio.Event()
    serving = asyncio.create_task(running(blocking.worker, over))
    await until(lambda: before.status == "IN_PROGRESS")
    blocker = server.add("block")
    await server.tell()
    await blocking.until_blocked()
    during = server.add("neighbour")
    await server.tell()
    blocked_at = time.monotonic()
    await until(lambda: during.status == "IN_PROGRESS" and time.monotonic() > blocked_at + 3)  # more than a lease
    gate.set()
    blocking.release.set()
    await until(lambda: server.counts() == {"COMPLETED": 3})
    over.set()
    await serving
    assert [task.attempts for task in (before, blocker, during)] == [1, 1, 1]


async def test_a_blocked_loop_is_logged_with_the_task_and_the_line(
    server: Stub, blocking: Blocking, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "BLOCKED_SECONDS", 0.2)
    task = server.add("block")
    over = asyncio.Event()
    serving = asyncio.create_task(running(blocking.worker, over))
    await until(lambda: any("blocks the loop" in line for line in log.lines))
    blocking.release.set()
    await until(lambda: any("blocked the loop" in line for line in log.lines))
    over.set()
    await serving
    begun, ended = (line for line in log.lines if "block" in line)
    assert begun.startswith(f"task {task.id} (block) blocks the loop of all coroutines, at ")
    assert "threading.py" in begun or "test_worker_blocked.py" in begun
    assert ended.startswith(f"task {task.id} (block) blocked the loop of all coroutines for ")


async def test_a_call_that_keeps_pythons_lock_is_logged(
    server: Stub, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "BLOCKED_SECONDS", 0.2)
    task = server.add("compute")
    worker = Worker(server.url)
    numbers = 20_000_000

    @worker.task("compute")
    def compute(_: Held) -> int:
        nonlocal numbers
        total = 0
        while not any("nothing in this process ran" in line for line in log.lines):
            total += sum(range(numbers))  # one call into C
            numbers += numbers // 2
            time.sleep(0.1)
        return total

    over = asyncio.Event()
    serving = asyncio.create_task(running(worker, over))
    await until(lambda: task.status == "COMPLETED", 60)
    over.set()
    await serving
    assert any("running: " in line and f"task {task.id} (compute)" in line for line in log.lines)


BLOCKS = """
import pathlib, sys, time
from chargehand.client import Worker

folder = pathlib.Path(sys.argv[2])
worker = Worker(sys.argv[1], grace_seconds=60)

@worker.task("work")
async def work(task):
    (folder / "begun").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)

worker.run()
"""


async def test_a_stop_is_heard_while_a_function_blocks_the_loop(server: Stub, tmp_path: Path) -> None:
    task = server.add("work")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", BLOCKS, server.url, str(tmp_path), stderr=PIPE)
    assert process.stderr is not None
    await until((tmp_path / "begun").exists, 20)
    process.terminate()
    said = b""
    while b"stopping: " not in said:
        said = await asyncio.wait_for(process.stderr.readline(), 20)
    (tmp_path / "go").touch()
    await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, task.status) == (0, "COMPLETED")


async def test_the_end_of_a_worker_leaves_no_error_in_the_loop_of_its_functions() -> None:
    here, errors = asyncio.get_running_loop(), list[object]()
    here.set_exception_handler(lambda _, context: errors.append(context))

    async def look_and_end() -> None:
        asyncio.create_task(loop_watch.LoopWatch(here, 0).run())  # noqa: RUF006 - it ends with its loop
        await asyncio.sleep(0)

    worker = threading.Thread(target=asyncio.run, args=(look_and_end(),))
    worker.start()
    worker.join()  # this loop answers only now that the other one is closed
    await asyncio.sleep(0)
    assert errors == []
