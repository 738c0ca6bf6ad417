"""Workers against the real server: no task is lost or done twice when either of them dies, stops or comes back."""

import asyncio
import sys
import threading
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from chargehand.app import Server as InProcess
from chargehand.client import AsyncClient, ClientError, Fail, Held, NewTask, Result, Retry, Task, TaskEnded, Worker
from chargehand.http.credentials import hash_token
from chargehand.testing import ChargehandServer
from tests.api.serving import serving, until
from tests.client.running_worker import working
from tests.e2e.server import Server

both_ways = pytest.mark.parametrize("stream", [True, False], ids=["stream", "poll"])

# A worker process. It writes a line when a task begins, and the task ends when the file `go` exists.
SCRIPT = """
import asyncio, pathlib, sys
from chargehand.client import Worker

url, folder, name, grace = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])
worker = Worker(url, concurrency=2, lease_seconds=2, grace_seconds=grace)

@worker.task("work")
async def work(task):
    with (folder / "begun").open("a") as begun:
        begun.write(f"{name} {task.id} {task.attempt}\\n")
    while not (folder / "go").exists():
        await asyncio.sleep(0.02)
    return {"by": name}

worker.run()
"""


@pytest.fixture
async def server(store_url: str) -> AsyncIterator[InProcess]:
    async with serving(store_url, {"tasks.backoff_base_seconds": 0}) as running:
        yield running


async def ended(client: AsyncClient, task_id: str, seconds: float = 20) -> tuple[Task, Result]:
    found = await client.tasks.result(task_id, seconds)
    assert found is not None, await client.tasks.get(task_id)
    return found


@both_ways
async def test_200_tasks_are_done_exactly_once(server: InProcess, stream: bool) -> None:
    ran: Counter[int] = Counter()
    now = peak = 0
    worker = Worker(server.url, concurrency=8, stream=stream)

    @worker.task("square")
    async def square(task: Held) -> dict[str, int]:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        ran[task.payload] += 1
        await asyncio.sleep(0.001)
        now -= 1
        return {"square": task.payload**2}

    async with AsyncClient(server.url) as client, working(worker):
        made = await client.tasks.create_many(NewTask("square", n) for n in range(200))
        for n, each in enumerate(made):
            assert each.task is not None
            task, result = await ended(client, each.task.id)
            assert (task.attempts, result.result) == (1, {"square": n**2})
    assert set(ran.values()) == {1}
    assert peak <= 8


async def test_the_producer_reads_how_the_function_ended(server: InProcess) -> None:
    worker = Worker(server.url, concurrency=4)

    @worker.task("fails")
    async def fails(_: Held) -> None:
        raise Fail("not a video")

    @worker.task("breaks")
    def breaks(_: Held) -> None:
        raise ZeroDivisionError("every time")

    @worker.task("retries")
    async def retries(task: Held) -> int:
        if task.attempt < 3:
            raise Retry(0, "not yet")
        return task.attempt

    @worker.task("attaches")
    def attaches(task: Held) -> None:
        task.attach("out.txt", b"all of it", "text/plain")

    async with AsyncClient(server.url) as client, working(worker):
        ids = {
            name: (await client.tasks.create(name, {}, max_attempts=3)).id
            for name in ("fails", "breaks", "retries", "attaches")
        }
        told = {name: await ended(client, task_id) for name, task_id in ids.items()}
        [artifact] = told["attaches"][1].artifacts or ()
        async with aiohttp.ClientSession() as http, http.get(artifact.url) as answer:
            assert (await answer.read(), answer.content_type) == (b"all of it", "text/plain")
    assert {name: (task.status, task.attempts, result.error) for name, (task, result) in told.items()} == {
        "fails": ("FAILED", 1, "not a video"),
        "breaks": ("FAILED", 3, "ZeroDivisionError: every time"),
        "retries": ("COMPLETED", 3, ""),
        "attaches": ("COMPLETED", 1, ""),
    }


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "fails"])
async def test_a_task_whose_files_the_server_refuses_fails_at_its_first_attempt(server: InProcess, fails: bool) -> None:
    worker = Worker(server.url, lease_seconds=1)

    @worker.task("attaches")
    async def attaches(task: Held) -> None:
        task.attach("../out.txt", b"x")
        if fails:
            raise Fail("not a video")

    async with AsyncClient(server.url) as client, working(worker):
        task, result = await ended(client, (await client.tasks.create("attaches", {})).id)
    assert (task.status, task.attempts) == ("FAILED", 1)
    assert "refused the result: 400 artifact '../out.txt'" in result.error
    assert ("not a video" in result.error) == fails


WORKER_SCOPES = [f"codeq:{verb}" for verb in ("claim", "heartbeat", "abandon", "nack", "result", "subscribe")]


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_a_worker_needs_only_a_worker_token_and_a_wrong_one_is_refused(store_url: str) -> None:
    tokens = [
        {"name": "maker", "hash": hash_token("maker"), "scopes": ["codeq:produce"]},
        {"name": "doer", "hash": hash_token("doer"), "scopes": WORKER_SCOPES, "event_types": ["work"]},
    ]
    async with serving(store_url, {"auth.tokens": tokens}) as server, AsyncClient(server.url, "maker") as client:
        worker = Worker(server.url, "doer", grace_seconds=0)

        @worker.task("work")
        async def work(task: Held) -> str:
            await task.progress(1)
            task.attach("a", b"a")
            return "done"

        async with working(worker):
            task, result = await ended(client, (await client.tasks.create("work", {})).id)
        assert (task.worker_id, result.result) == ("", {"value": "done"})
        for token, command, status in [("maker", "work", 403), ("nobody", "work", 401), ("doer", "other", 403)]:
            refused = Worker(server.url, token)
            refused.task(command)(lambda _: None)
            with pytest.raises(ClientError) as error:
                await asyncio.wait_for(refused.serve(), 10)
            assert error.value.status == status


async def test_a_task_that_its_producer_cancels_is_cancelled_in_the_worker(server: InProcess) -> None:
    ends: list[TaskEnded] = []
    begun = asyncio.Event()
    worker = Worker(server.url, lease_seconds=1, watch=ends.append)

    @worker.task("work")
    async def work(_: Held) -> None:
        begun.set()
        await asyncio.sleep(60)

    async with AsyncClient(server.url) as client, working(worker):
        task_id = (await client.tasks.create("work", {})).id
        await asyncio.wait_for(begun.wait(), 10)
        await client.tasks.cancel(task_id)
        await until(lambda: ends)
        assert (await client.tasks.get(task_id)).error == "CANCELLED"
    assert [end.word for end in ends] == ["lost"]


async def test_a_notified_worker_claims_old_and_new_tasks(server: InProcess) -> None:
    done: list[str] = []
    worker = Worker(server.url, concurrency=2, wake_port=0)

    @worker.task("work")
    async def work(task: Held) -> None:
        done.append(task.id)

    async with AsyncClient(server.url) as client:
        before = (await client.tasks.create("work", {})).id
        async with working(worker):
            await until(lambda: done == [before])
            after = [(await client.tasks.create("work", {})).id for _ in range(5)]
            await until(lambda: sorted(done) == sorted([before, *after]))


def test_a_worker_runs_in_a_thread_of_a_program_without_a_loop(tmp_path: Path) -> None:
    with ChargehandServer(tmp_path) as server:
        worker = Worker(server.url, concurrency=2)
        threads = set()

        @worker.task("count")
        def count(task: Held) -> int:
            threads.add(threading.current_thread())
            task.progress(50, "half way", {"of": task.payload})
            return int(task.payload) * 2

        with worker.running():
            task = server.client.tasks.create("count", 21)
            _, result = server.client.tasks.wait(task.id, timeout=20)
            told = [event.progress for event in server.client.tasks.events(task.id) if event.progress]
        assert result.result == {"value": 42}
        assert [(each.percent, each.message, each.data) for each in told] == [(50, "half way", {"of": 21})]
        assert threading.current_thread() not in threads
        _nobody_works()
        worker.stop()  # stopping an ended worker does nothing

        refused = Worker(server.url)
        refused.task("*")(lambda _: None)
        with pytest.raises(ClientError, match="400"), refused.running():
            _nobody_works()


def _nobody_works(seconds: float = 20) -> None:
    """Wait until no worker runs in a thread."""
    for thread in threading.enumerate():
        if thread.name == "chargehand worker":
            thread.join(seconds)
            assert not thread.is_alive()


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def process(server: Server, folder: Path, name: str, grace: float = 10) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SCRIPT, server.url, str(folder), name, str(grace)), stdout=DEVNULL, stderr=PIPE
    )


def begun(folder: Path) -> list[str]:
    file = folder / "begun"
    return file.read_text().splitlines() if file.exists() else []


async def end(worker: Process) -> str:
    """Return what the worker printed, except its introduction and that it stops."""
    _, errors = await asyncio.wait_for(worker.communicate(), 20)
    expected = ("Working on work for http://127.0.0.1:", "stopping: ")
    return "\n".join(line for line in errors.decode().splitlines() if not line.startswith(expected))


async def stopping(worker: Process) -> None:
    """Tell the worker to stop, and wait until it says that it does: from then on it claims nothing."""
    assert worker.stderr is not None
    worker.terminate()
    async with asyncio.timeout(20):
        while not (line := await worker.stderr.readline()).startswith(b"stopping: "):
            assert line, "the worker has ended without a word"


@pytest.mark.xdist_group("processes")
async def test_the_task_of_a_worker_that_was_killed_goes_to_another(tmp_path: Path) -> None:
    running = Server(f"sqlite:///{tmp_path}/chargehand.db", tmp_path, tasks_backoff_base_seconds=0)
    async with running as server, AsyncClient(server.url) as client:
        task_id = (await client.tasks.create("work", {})).id
        first = await process(server, tmp_path, "first")
        await until(lambda: begun(tmp_path) == [f"first {task_id} 1"])
        second = await process(server, tmp_path, "second")
        first.kill()
        await end(first)
        await until(lambda: f"second {task_id} 2" in begun(tmp_path), 20)
        (tmp_path / "go").touch()
        task, result = await ended(client, task_id)
        assert (task.attempts, result.result) == (2, {"by": "second"})
        second.terminate()
        assert (await end(second), second.returncode) == ("", 0)


@pytest.mark.xdist_group("processes")
async def test_after_sigterm_tasks_may_end_and_the_others_are_handed_back(tmp_path: Path) -> None:
    async with Server(f"sqlite:///{tmp_path}/chargehand.db", tmp_path) as server, AsyncClient(server.url) as client:
        patient = await process(server, tmp_path, "patient", grace=20)
        one = (await client.tasks.create("work", {})).id
        await until(lambda: begun(tmp_path) == [f"patient {one} 1"])
        await stopping(patient)
        two = (await client.tasks.create("work", {})).id
        (tmp_path / "go").touch()
        assert (await end(patient), patient.returncode) == ("", 0)
        assert (await ended(client, one))[1].result == {"by": "patient"}
        assert (await client.tasks.get(two)).status == "PENDING"

        (tmp_path / "go").unlink()
        hasty = await process(server, tmp_path, "hasty", grace=0.1)
        await until(lambda: begun(tmp_path)[1:] == [f"hasty {two} 1"])
        hasty.terminate()
        assert (await end(hasty), hasty.returncode) == ("", 0)
        task = await client.tasks.get(two)
        assert (task.status, task.attempts) == ("PENDING", 0)


@pytest.mark.xdist_group("processes")
async def test_a_server_that_is_killed_and_comes_back_loses_no_task_and_no_result(tmp_path: Path) -> None:
    server = Server(f"sqlite:///{tmp_path}/chargehand.db", tmp_path)
    async with server, AsyncClient(server.url) as client:
        ids = [
            each.task.id for each in await client.tasks.create_many(NewTask("work", n) for n in range(6)) if each.task
        ]
        worker = Worker(server.url, concurrency=2, lease_seconds=10)
        gate = asyncio.Event()
        runs: Counter[str] = Counter()

        @worker.task("work")
        async def work(task: Held) -> int:
            runs[task.id] += 1
            await gate.wait()
            return int(task.payload)

        async with working(worker):
            await until(lambda: len(runs) == 2)
            await server.kill_with_writer()
            gate.set()  # their results cannot be sent yet, and are kept
            await server.start()
            told = [await ended(client, task_id) for task_id in ids]
        assert [result.result for _, result in told] == [{"value": n} for n in range(6)]
        assert set(runs.values()) == {1}
