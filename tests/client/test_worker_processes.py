"""A worker whose functions run in child processes."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from chargehand.client import Held, Worker
from tests.api.serving import until
from tests.client import process_functions as functions
from tests.client.running_worker import working
from tests.client.stub_server import Stub, stub

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture
async def server() -> AsyncIterator[Stub]:
    async with stub() as running:
        yield running


def value_of(task: Any) -> Any:
    assert task.result is not None
    return task.result["result"].get("value")


def nacks(server: Stub) -> list[Any]:
    return [body for word, body in server.bodies if word == "nack"]


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def test_functions_run_in_processes_of_their_own_and_tell_what_they_do(server: Stub) -> None:
    tasks = [server.add("who", number) for number in range(20)]
    coroutine = server.add("who_async", 7)
    worker = Worker(server.url, processes=2)
    worker.task("who")(functions.who)
    worker.task("Who_Async")(functions.who_async)
    async with working(worker):
        await until(lambda: server.counts() == {"COMPLETED": 21}, 60)
    children = {value_of(task) for task in [*tasks, coroutine]}
    assert 1 <= len(children) <= 2
    assert os.getpid() not in children
    assert server.in_flight_peak == 2
    assert coroutine.progress == [{"percent": 50, "message": "half", "data": {"of": 7}}]
    assert coroutine.result is not None
    assert coroutine.result["artifacts"][0]["contentBase64"] == "AP8="
    assert not any(alive(pid) for pid in children)


async def test_what_a_function_raises_in_a_process_means_what_it_means_elsewhere(server: Stub) -> None:
    told = {how: server.add("work", how) for how in ("fail", "retry", "raise", "not json", "bad name", "exit", "none")}
    worker = Worker(server.url, processes=1)
    worker.task("work")(functions.ends)
    async with working(worker):
        await until(lambda: server.counts()["FAILED"] == 5 and told["none"].status == "COMPLETED", 60)
        await until(lambda: any("paper" in nack["reason"] for nack in nacks(server)))
    assert (told["fail"].error, told["fail"].attempts) == ("not a video", 1)
    assert told["fail"].result is not None
    assert told["fail"].result["artifacts"][0]["name"] == "why.txt"
    assert told["not json"].error.startswith("the result cannot be written as JSON: ")
    assert told["bad name"].error.startswith("the result cannot be sent: ")
    assert (told["raise"].error, told["raise"].attempts) == ("KeyError: 'no such file'", 5)
    assert told["exit"].error == "SystemExit: 3"
    assert next(nack["delaySeconds"] for nack in nacks(server) if "paper" in nack["reason"]) == 120


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("kill", "its process was ended by signal 9"),
        ("exit", "its process ended with exit code 7"),
    ],
)
async def test_a_process_that_ends_costs_its_own_task_alone(server: Stub, how: str, reason: str) -> None:
    broken, others = server.add("breaks", how), [server.add("who") for _ in range(5)]
    worker = Worker(server.url, processes=1)
    worker.task("breaks")(functions.breaks)
    worker.task("who")(functions.who)
    async with working(worker):
        await until(lambda: server.counts() == {"COMPLETED": 6}, 60)
    assert [nack["reason"] for nack in nacks(server)] == [reason]
    assert broken.attempts == 2
    assert {task.attempts for task in others} == {1}


async def test_a_function_that_keeps_pythons_lock_is_killed_at_its_timeout_and_costs_no_neighbour(
    server: Stub, tmp_path: Path
) -> None:
    hangs = server.add("hangs", str(tmp_path / "pids"))
    worker = Worker(server.url, processes=1, lease_seconds=2)
    worker.task("hangs", timeout=5)(functions.hangs)
    worker.task("who")(functions.who)
    async with working(worker):
        await until((tmp_path / "pids").exists, 60)
        other = server.add("who")
        await until(lambda: server.counts() == {"COMPLETED": 2}, 60)
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        await until(lambda: not any(alive(pid) for pid in pids))
    assert [nack["reason"] for nack in nacks(server)] == ["took longer than 5 s"]
    assert (hangs.attempts, other.attempts) == (2, 1)
    assert value_of(other) not in pids


async def test_a_function_that_keeps_pythons_lock_for_longer_than_its_lease_keeps_its_task(server: Stub) -> None:
    task = server.add("keeps", 5)
    worker = Worker(server.url, processes=1, lease_seconds=2)
    worker.task("keeps")(functions.keeps_the_lock)
    async with working(worker):
        await until(lambda: task.status == "COMPLETED", 60)
    assert (task.attempts, value_of(task)) == (1, "done")


async def test_a_soft_limit_reaches_a_function_in_a_process(server: Stub) -> None:
    task = server.add("work")
    worker = Worker(server.url, processes=1, soft_timeout=0.1, timeout=60)
    worker.task("work")(functions.waits_softly)
    async with working(worker):
        await until(lambda: task.status == "COMPLETED", 60)
    assert value_of(task) == "so far"


async def test_a_process_is_replaced_after_its_number_of_tasks(server: Stub) -> None:
    tasks = [server.add("who") for _ in range(3)]
    worker = Worker(server.url, processes=1, max_tasks_per_child=2)
    worker.task("who")(functions.who)
    async with working(worker):
        await until(lambda: server.counts() == {"COMPLETED": 3}, 60)
    children = [value_of(task) for task in tasks]
    assert children[0] == children[1] != children[2]


async def test_a_process_that_has_grown_is_replaced(server: Stub) -> None:
    tasks = [server.add("grows") for _ in range(2)]
    worker = Worker(server.url, processes=1, max_memory_per_child=64 << 20)
    worker.task("grows")(functions.grows)
    async with working(worker):
        await until(lambda: server.counts() == {"COMPLETED": 2}, 60)
    assert len({value_of(task) for task in tasks}) == 2


async def test_a_stop_after_the_grace_ends_the_process_and_hands_the_task_back(server: Stub, tmp_path: Path) -> None:
    task = server.add("hangs", str(tmp_path / "pids"))
    worker = Worker(server.url, processes=1, grace_seconds=0)
    worker.task("hangs")(functions.hangs)
    async with working(worker):
        await until((tmp_path / "pids").exists, 60)
    assert (task.status, task.attempts) == ("PENDING", 0)
    assert not any(alive(int(pid)) for pid in (tmp_path / "pids").read_text().split())


async def test_a_coroutine_that_lost_its_lease_is_cancelled_in_its_process(server: Stub, tmp_path: Path) -> None:
    task = server.add("waits", str(tmp_path / "begun"))
    worker = Worker(server.url, processes=1, lease_seconds=1)
    worker.task("waits")(functions.waits)
    worker.task("who")(functions.who)
    async with working(worker):
        await until((tmp_path / "begun").exists, 60)
        task.lease += 1
        task.until += 600
        other = server.add("who")
        await until(lambda: other.status == "COMPLETED", 60)
    assert (task.status, task.result, server.calls["nack"]) == ("IN_PROGRESS", None, 0)


def test_a_function_that_a_process_cannot_find_is_refused() -> None:
    worker = Worker(processes=1)

    @worker.task("work")
    def work(_: Held) -> None: ...

    with pytest.raises(ValueError, match="the function for 'work' cannot run in a process of its own"):
        asyncio.run(worker.serve())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"processes": -1}, "processes must be 0 or more, not -1"),
        ({"processes": 2, "concurrency": 4}, "give processes or concurrency, not both"),
        ({"processes": 2, "max_tasks_per_child": 0}, "max_tasks_per_child must be 1 or more, not 0"),
        ({"max_memory_per_child": 1}, "max_tasks_per_child and max_memory_per_child need processes"),
    ],
)
def test_wrong_options_of_processes_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=r"must|give|need") as refused:
        Worker(**options)
    assert str(refused.value).startswith(text)


SCRIPT = """
import os, subprocess, sys, time
from pathlib import Path
from chargehand.client import Worker

worker = Worker(sys.argv[1], processes=2)

@worker.task("work")
def work(task):
    child = subprocess.Popen(["sleep", "300"])
    Path(sys.argv[2], task.id).write_text(f"{os.getpid()} {child.pid}\\n")
    while not Path(sys.argv[2], "go").exists():
        time.sleep(0.02)
    child.kill()
    return os.getpid()

worker.run()
"""


async def started(server: Stub, folder: Path) -> asyncio.subprocess.Process:
    program = folder / "program.py"
    program.write_text(SCRIPT)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, str(program), server.url, str(folder)), stderr=PIPE, start_new_session=True
    )


def written(file: Path) -> str:
    """Return the file's line, once it is there to its end."""
    text = file.read_text() if file.exists() else ""
    return text if text.endswith("\n") else ""


async def test_a_program_needs_no_guard_around_run_and_drains_after_sigterm_to_all_its_processes(
    server: Stub, tmp_path: Path
) -> None:
    tasks = [server.add("work"), server.add("work")]
    process = await started(server, tmp_path)
    await until(lambda: all(written(tmp_path / task.id) for task in tasks), 60)
    children = [int(written(tmp_path / task.id).split()[0]) for task in tasks]
    for pid in (process.pid, *children):
        os.kill(pid, signal.SIGTERM)
    (tmp_path / "go").touch()
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, {value_of(task) for task in tasks}) == (0, set(children))
    assert errors.decode().count("Working on work") == 1
    assert not any(alive(pid) for pid in children)


async def test_a_worker_whose_processes_cannot_start_ends_with_a_sentence(server: Stub, tmp_path: Path) -> None:
    task = server.add("work")
    program = tmp_path / "program.py"
    program.write_text("assert __name__ == '__main__', 'not here'\n" + SCRIPT)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(program), server.url, str(tmp_path)), stderr=PIPE, start_new_session=True
    )
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 1
    assert b"not here" in errors
    assert b"a process of this worker ended before it had its functions" in errors
    assert task.attempts == 0


async def test_a_worker_that_is_killed_takes_its_processes_and_what_they_started_with_it(
    server: Stub, tmp_path: Path
) -> None:
    task = server.add("work")
    process = await started(server, tmp_path)
    await until(lambda: written(tmp_path / task.id), 60)
    pids = [int(pid) for pid in written(tmp_path / task.id).split()]
    process.kill()
    await process.communicate()
    await until(lambda: not any(alive(pid) for pid in pids), 30)
