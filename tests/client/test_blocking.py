"""The blocking client: the same calls with the same types, in any number of threads, and in forked processes."""

import asyncio
import gc
import inspect
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, assert_type

import pytest

from chargehand.client import AsyncClient, Client, ClientError, JobFailed, NoAnswer, NotDone, Result, Task, Token
from chargehand.client.transport.background import Background
from chargehand.client.types.deliveries import Delivery
from chargehand.client.types.engine import LeasedJob
from chargehand.client.types.inference import Job
from chargehand.testing import ChargehandServer

IN_A_LOOP_ONLY = {"claims"}  # a streamed claim needs an event loop
SECONDS = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChargehandServer]:
    with ChargehandServer(tmp_path_factory.mktemp("chargehand"), {"webhooks.max_attempts": 1}) as running:
        yield running


@pytest.fixture
def client(server: ChargehandServer) -> Iterator[Client]:
    with Client(server.url) as opened:
        yield opened


def calls(part: object) -> dict[str, inspect.Signature]:
    """Return the calls of a part of the client with their parameters. The two clients differ only in return types."""
    found = inspect.getmembers(part, inspect.ismethod)
    return {
        name: inspect.signature(call).replace(return_annotation=None)
        for name, call in found
        if not name.startswith("_") and name not in IN_A_LOOP_ONLY
    }


@pytest.mark.parametrize("part", ["", "tasks", "schedules", "topics", "engine", "deliveries", "provisioning"])
def test_both_clients_have_the_same_calls(part: str) -> None:
    blocking, looped = Client(), AsyncClient()
    ours, theirs = (getattr(each, part) if part else each for each in (blocking, looped))
    assert calls(ours) == calls(theirs)
    assert "wait" in calls(ours) or part in ("deliveries", "schedules", "topics")


def test_type_checkers_know_the_return_types(client: Client) -> None:
    """The assertions on types are checked by mypy, in `make check`."""
    task = assert_type(client.tasks.create("typed", {"n": 1}), Task)
    assert_type(client.deliveries.find(state="dead"), Iterator[Delivery])
    assert_type(client.engine.claim(["typed"]), list[LeasedJob])

    def never() -> None:
        assert_type(client.chat("a", "b"), Job)
        assert_type(client.stream("a"), Iterator[Token])
        assert_type(client.tasks.wait("a"), tuple[Task, Result])

    assert (task.payload, inspect.signature(client.chat).parameters.keys() >= {"timeout"}) == ({"n": 1}, True)
    assert never.__doc__ is None


def test_a_task_from_its_creation_to_its_end(client: Client) -> None:
    task = client.tasks.create("render", {"film": "fox.mp4"})
    claimed = client.tasks.claim(["render"])
    assert claimed is not None
    client.tasks.progress(task.id, 50, "half", lease=claimed.lease)
    client.tasks.complete(task.id, {"ok": True}, lease=claimed.lease)
    ended, result = client.tasks.wait(task.id, timeout=SECONDS)
    assert (ended.status, result.result) == ("COMPLETED", {"ok": True})
    assert [event.move for event in client.tasks.watch(task.id)] == ["submit", "claim", "note", "succeed"]
    assert [event.progress.percent for event in client.tasks.events(task.id) if event.progress] == [50]
    assert [each.id for each in client.tasks.find(command="render")] == [task.id]


def test_a_job_of_the_engine_from_its_submission_to_its_webhook(client: Client, server: ChargehandServer) -> None:
    hook = server.receiver.url + "life"
    made = client.engine.submit("thumbnails", {"image": "cat.png"}, webhook=hook, metadata={"for": "me"})
    with pytest.raises(NotDone):
        client.engine.wait(made.job_id, timeout=0.1)
    [claimed] = client.engine.claim(["thumbnails"], wait_seconds=5)
    client.engine.beat(claimed.id, claimed.lease)
    client.engine.advance(claimed.id, claimed.lease, "drawing")
    client.engine.note(claimed.id, claimed.lease, "half way", data={"percent": 50})
    client.engine.succeed(claimed.id, claimed.lease, {"file": "cat-320.png"})
    job = client.engine.wait(made.job_id, timeout=SECONDS)
    assert (job.payload, job.result, job.metadata) == ({"image": "cat.png"}, {"file": "cat-320.png"}, {"for": "me"})
    told = server.receiver.wait_for(lambda each: each.body["data"]["state"] == "succeeded")
    assert (told.path, told.body["data"]["job_id"]) == ("/life", made.job_id)
    with pytest.raises(ClientError, match="409"):
        client.engine.fail(claimed.id, claimed.lease, "too late")


def test_a_job_is_parked_retried_paused_and_cancelled(client: Client) -> None:
    job_id = client.engine.submit("given-back", None, max_attempts=1).job_id
    [first] = client.engine.claim(["given-back"])
    client.engine.park(job_id, first.lease, "the printer")
    [second] = client.engine.claim(["given-back"])
    assert second.attempt == 1, "what was parked did not count"
    client.engine.retry(job_id, second.lease, "out of paper")
    with pytest.raises(JobFailed, match="out of paper") as failed:
        client.engine.wait(job_id, timeout=SECONDS)
    assert failed.value.job.state == "failed"
    client.engine.set_queue("given-back", paused=True)
    client.engine.requeue(job_id)
    assert client.engine.claim(["given-back"]) == []
    [queue] = [each for each in client.engine.queues() if each.queue == "given-back"]
    assert (queue.paused, queue.ready) == (True, 1)
    client.engine.cancel(job_id)
    assert [job.id for job in client.engine.jobs(state="cancelled", queue="given-back")] == [job_id]
    assert [event.move for event in client.engine.events(job_id)][-2:] == ["requeue", "cancel"]


def test_dead_deliveries_are_found_and_replayed(client: Client, server: ChargehandServer) -> None:
    server.receiver.answer(500)
    job_id = client.engine.submit("told", None, webhook=server.receiver.url + "dying").job_id
    server.receiver.wait_for(lambda each: each.path == "/dying" and each.answered == 500)
    until = time.monotonic() + SECONDS
    while not (dead := list(client.deliveries.find(state="dead", job=job_id))):
        assert time.monotonic() < until
    detail = client.deliveries.get(dead[0].id)
    assert [each.status for each in detail.attempts] == [500]
    [endpoint] = [each for each in client.deliveries.endpoints() if each.url.endswith("/dying")]
    assert (endpoint.dead, client.deliveries.endpoint(endpoint.id).state) == (1, "active")
    assert client.deliveries.pause(endpoint.id).state == "paused"
    assert client.deliveries.replay_all(endpoint.id) == 1
    assert client.deliveries.resume(endpoint.id).state == "active"
    again = server.receiver.wait_for(lambda each: each.path == "/dying" and each.answered == 200)
    assert again.id == dead[0].id
    client.engine.cancel(job_id)


def test_a_list_is_read_page_by_page_as_far_as_the_caller_goes(client: Client) -> None:
    ids = [client.engine.submit("many", n).job_id for n in range(120)]
    found = client.engine.jobs(queue="many")
    assert next(found).id == ids[-1]
    found.close()  # type: ignore[attr-defined]  # it is a generator, so it can be closed
    assert [job.id for job in client.engine.jobs(queue="many")] == ids[::-1]


def test_many_threads_share_one_client(client: Client) -> None:
    def life(n: int) -> Any:
        task = client.tasks.create(f"thread-{n}", n)
        claimed = client.tasks.claim([f"thread-{n}"], wait_seconds=5)
        assert claimed is not None
        client.tasks.complete(task.id, {"n": n}, lease=claimed.lease)
        return client.tasks.wait(task.id, timeout=SECONDS)[1].result

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(life, range(64))) == [{"n": n} for n in range(64)]
    assert sum(thread.name == "chargehand client" for thread in threading.enumerate()) <= 2


def test_a_call_within_a_call_raises_and_does_not_hang(server: ChargehandServer) -> None:
    with Client(server.url, retries=0) as client:
        job_id = client.engine.submit("nested", None).job_id

        def back() -> None:
            client.engine.job(job_id)

        with pytest.raises(RuntimeError, match="wait for itself"):
            next(client.engine.watch(job_id, back=back))
        client.engine.cancel(job_id)


def test_a_closed_client_opens_again_for_another_call(server: ChargehandServer) -> None:
    client = Client(server.url)
    client.close()
    assert list(client.tasks.find(command="nothing like this")) == []
    client.close()
    client.close()
    with pytest.raises(NoAnswer, match="cannot be reached") as lost, Client("http://127.0.0.1:1", retries=0) as nobody:
        nobody.targets()
    assert "chargehand serve" in lost.value.advice


def test_a_call_that_waits_while_the_client_is_closed_raises(server: ChargehandServer) -> None:
    client = Client(server.url)
    task = client.tasks.create("closed", {})
    begun = threading.Event()

    def wait() -> str:
        for _ in client.tasks.watch(task.id):
            begun.set()
        return "it ended"

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        assert begun.wait(SECONDS)
        client.close()
        with pytest.raises(NoAnswer, match="the client was closed"):
            waiting.result(SECONDS)


def test_an_iterator_raises_when_the_client_is_closed() -> None:
    ending, late = threading.Event(), threading.Event()

    async def farewell() -> None:
        ending.set()
        await asyncio.to_thread(late.wait, SECONDS)

    async def count() -> AsyncGenerator[int, None]:
        yield 1
        await asyncio.Event().wait()

    background = Background(farewell)
    counting = background.iterate(count)
    assert next(counting) == 1
    with ThreadPoolExecutor(2) as pool:
        closing = pool.submit(background.close)
        assert ending.wait(SECONDS)
        reading = pool.submit(next, counting)
        wait([reading], 0.2)
        late.set()
        closing.result(SECONDS)
        with pytest.raises(NoAnswer, match="the client was closed"):
            reading.result(SECONDS)


def test_a_call_raises_if_its_loop_is_closed_at_any_moment() -> None:
    """Another thread may close the loop after a caller has found it and before it has used it."""

    async def farewell() -> None:
        pass

    background = Background(farewell)
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            with suppress(NoAnswer):
                background.run(lambda: asyncio.sleep(3600))

    callers = [threading.Thread(target=call, daemon=True) for _ in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for caller in callers:
            caller.start()
        for _ in range(500):
            background.close()
        stop.set()
        until = time.monotonic() + SECONDS
        while any(caller.is_alive() for caller in callers) and time.monotonic() < until:
            background.close()  # ends calls that began after the last close
    finally:
        sys.setswitchinterval(interval)
    assert not any(caller.is_alive() for caller in callers)


def test_a_call_at_the_end_of_a_loop_is_not_started() -> None:
    late: Future[None] = Future()

    async def farewell() -> None:
        if not late.cancelled():
            loop.begin(lambda: asyncio.sleep(3600), late)  # runs only when everything else on the loop has ended

    background = Background(farewell)
    background.run(lambda: asyncio.sleep(0))
    loop = background._running()
    background.close()
    assert late.cancelled()


def test_a_client_may_be_closed_repeatedly_while_other_threads_call(server: ChargehandServer) -> None:
    client = Client(server.url)
    task = client.tasks.create("shared", {})
    stop = threading.Event()

    def call() -> int:
        answers = 0
        while not stop.is_set():
            with suppress(NoAnswer):
                answers += client.tasks.get(task.id).id == task.id
        return answers

    with ThreadPoolExecutor(4) as pool:
        calling = [pool.submit(call) for _ in range(4)]
        for _ in range(100):
            client.close()
            client.tasks.get(task.id)
        stop.set()
        assert min(each.result(SECONDS) for each in calling) > 0
    client.close()


def test_a_client_that_is_garbage_ends_its_thread(server: ChargehandServer) -> None:
    def threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "chargehand client"}

    before = threads()
    tasks = Client(server.url).tasks  # the client is garbage already, but its part still works
    task = tasks.create("forgotten", {})
    watching = tasks.watch(task.id)
    next(watching)
    [thread] = threads() - before
    del tasks, watching
    gc.collect()
    thread.join(SECONDS)
    assert not thread.is_alive()


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────

FORKING = """
import os, sys
from chargehand.client import Client, NoAnswer

client = Client(sys.argv[1])
made = client.tasks.create("forked", 0)
watching = client.tasks.watch(made.id)
next(watching)
children = []
for n in range(3):
    pid = os.fork()
    if pid == 0:
        if n == 1:  # what the parent reads is the parent's
            try:
                next(watching)
            except NoAnswer:
                client.tasks.create("forked", 3)
        if n:  # the first one does nothing, and that must do no harm either
            watching.close()
            client.tasks.create("forked", n)
        if n == 2:
            client.close()
        sys.exit(0)
    children.append(pid)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    client.tasks.get(made.id)
assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
print(sorted(client.tasks.get(task.id).payload for task in client.tasks.find(command="forked")))
client.tasks.cancel(made.id)
print([event.move for event in watching])
client.close()
"""

WAITING = """
import logging, signal, sys
from chargehand.client import Client

signal.signal(signal.SIGINT, signal.default_int_handler)  # which may be ignored where the tests were started

logging.getLogger("asyncio").setLevel(logging.ERROR)  # that a machine is slow is no complaint of ours
client = Client(sys.argv[1])
made = client.tasks.create("waited for", {})
try:
    print("waiting", flush=True)
    client.tasks.wait(made.id)
except KeyboardInterrupt:
    print(client.tasks.cancel(made.id).status)
"""


def test_forked_processes_use_the_client_of_their_parent_and_do_not_disturb_it(server: ChargehandServer) -> None:
    command = [sys.executable, "-W", "error", "-c", FORKING, server.url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout.splitlines(), ended.stderr, ended.returncode) == (["[0, 1, 2, 3]", "['cancel']"], "", 0)


def test_ctrl_c_ends_a_wait_and_the_client_goes_on(server: ChargehandServer) -> None:
    """The client is never closed, and prints no warning."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", WAITING, server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waiting\n"
        waiting.send_signal(signal.SIGINT)
        assert waiting.communicate(timeout=SECONDS) == ("FAILED\n", "")
    assert waiting.returncode == 0


def test_importing_the_client_does_not_import_the_server(tmp_path: Path) -> None:
    script = "import sys, chargehand.client; print(*sorted(sys.modules))"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    loaded = set(said.stdout.split())
    heavy = {"apsw", "asyncpg", "httptools", "uvloop", "typer", "rich", "structlog", "cryptography", "pytest"}
    assert loaded & heavy == set()
    ours = {name for name in loaded if name.startswith("chargehand.") and not name.startswith("chargehand.client")}
    assert ours == {"chargehand.lifeline", "chargehand.webhooks", "chargehand.webhooks.signature"}
