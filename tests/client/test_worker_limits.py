"""Time limits of a worker's functions."""

import asyncio
import math
import threading
import time
from typing import Any

import pytest

from chargehand.client import Held, SoftTimeLimit, TaskEnded, Worker
from tests.api.serving import until
from tests.client.running_worker import Log, working
from tests.client.stub_server import Stub


def reasons(server: Stub) -> set[str]:
    return {body["reason"] for word, body in server.bodies if word == "nack"}


async def waits(_: Held) -> None:
    await asyncio.sleep(60)


def loops(task: Held) -> None:
    while not task.lost.is_set():
        time.sleep(0.01)


# ── soft ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("function", [waits, loops], ids=["coroutine", "thread"])
async def test_a_function_past_its_soft_limit_is_ended_and_its_task_tried_again(server: Stub, function: Any) -> None:
    server.add("work")
    worker = Worker(server.url, soft_timeout=0.1)
    worker.task("work")(function)
    async with working(worker):
        await until(lambda: server.calls["nack"] >= 2)
    assert reasons(server) == {"took longer than 0.1 s, its soft limit"}


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_function_that_catches_its_soft_limit_may_still_return(server: Stub, kind: str) -> None:
    task = server.add("work")
    worker = Worker(server.url)

    async def in_the_loop(_: Held) -> str:
        try:
            await asyncio.sleep(60)
        except SoftTimeLimit:
            await asyncio.sleep(0)
        return "so far"

    def in_a_thread(held: Held) -> str:
        try:
            loops(held)
        except SoftTimeLimit:
            time.sleep(0)
        return "so far"

    worker.task("work", soft_timeout=0.1)(in_the_loop if kind == "coroutine" else in_a_thread)
    async with working(worker):
        await until(lambda: task.status == "COMPLETED")
    assert task.result is not None
    assert (task.result["result"], task.runs) == ({"value": "so far"}, 1)


async def test_what_a_coroutine_has_begun_is_cancelled_at_its_soft_limit(server: Stub) -> None:
    server.add("work")
    ended: list[str] = []
    worker = Worker(server.url)

    async def part(name: str) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(name)
            raise

    @worker.task("work", soft_timeout=0.1)
    async def work(_: Held) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(part("a"))
            group.create_task(part("b"))

    async with working(worker):
        await until(lambda: server.calls["nack"])
        assert sorted(ended[:2]) == ["a", "b"]
    assert reasons(server) == {"took longer than 0.1 s, its soft limit"}


async def test_a_time_limit_that_is_not_reached_changes_nothing(server: Stub) -> None:
    tasks = [server.add("loop", number) for number in range(20)] + [
        server.add("thread", number) for number in range(20)
    ]
    worker = Worker(server.url, concurrency=4, timeout=60, soft_timeout=50)

    @worker.task("loop")
    async def in_the_loop(task: Held) -> int:
        with pytest.raises(ZeroDivisionError):
            await _raising()
        return int(task.payload)

    worker.task("thread")(lambda task: task.payload)
    async with working(worker):
        await until(lambda: server.counts() == {"COMPLETED": 40})
    assert {task.attempts for task in tasks} == {1}


async def _raising() -> None:
    await asyncio.sleep(0)
    failed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(failed.set_exception, ZeroDivisionError())
    await failed


# ── hard ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_coroutine_past_its_hard_limit_frees_its_place(server: Stub) -> None:
    hangs, other = server.add("hang"), server.add("other")
    ended: list[TaskEnded] = []
    worker = Worker(server.url, watch=ended.append)
    worker.task("hang", timeout=0.1)(waits)
    worker.task("other")(lambda _: None)
    async with working(worker):
        await until(lambda: other.status == "COMPLETED" and hangs.attempts >= 2)
    assert reasons(server) == {"took longer than 0.1 s"}
    assert (ended[0].word, ended[0].text) == ("retry", "took longer than 0.1 s")


async def test_a_thread_past_its_hard_limit_gives_its_task_back_and_keeps_its_place(server: Stub, log: Log) -> None:
    hangs = server.add("hang", attempts=4)  # the fifth is the last
    release = threading.Event()
    worker = Worker(server.url)

    @worker.task("hang", timeout=0.1)
    def hang(task: Held) -> None:
        task.lost.wait(60)
        release.wait(60)

    worker.task("other")(lambda _: None)
    async with working(worker):
        await until(lambda: hangs.status == "FAILED")
        other = server.add("other")
        await server.tell()
        await until(lambda: log.lines)
        assert other.runs == 0
        release.set()
        await until(lambda: other.status == "COMPLETED")
    assert log.lines == [
        f"task {hangs.id} (hang) is past its timeout and cannot be stopped: its place stays taken until it ends"
    ]
    assert reasons(server) == {"took longer than 0.1 s"}


async def test_a_worker_that_stops_does_not_wait_for_a_function_past_its_hard_limit(server: Stub, log: Log) -> None:
    server.add("hang", attempts=4)
    release = threading.Event()
    worker = Worker(server.url, grace_seconds=300)
    worker.task("hang", timeout=0.1)(lambda _: release.wait(60))
    serving = asyncio.create_task(worker.serve())
    await until(lambda: log.lines)
    worker.stop()
    await asyncio.wait_for(serving, 30)
    assert not release.is_set()
    release.set()


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"timeout": 0}, "timeout must be a number of seconds above 0, or None for no limit, not 0"),
        ({"soft_timeout": math.inf}, "soft_timeout must be a number of seconds above 0, or None for no limit, not inf"),
        ({"timeout": 5, "soft_timeout": 5}, "soft_timeout (5) must be less than timeout (5)"),
    ],
)
def test_wrong_time_limits_are_refused_with_their_name(limits: dict[str, Any], text: str) -> None:
    for make in (lambda: Worker(**limits), lambda: Worker().task("work", **limits)):
        with pytest.raises(ValueError, match="must be") as refused:
            make()
        assert str(refused.value) == text
