"""A worker against a small scripted tasks server."""

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import aiohttp
import pytest

from chargehand.client import ClientError, Fail, Held, Retry, TaskEnded, Worker
from chargehand.webhooks.signature import Keys, sign
from tests.api.serving import until
from tests.client.running_worker import Log, working
from tests.client.stub_server import Stub, stub

both_ways = pytest.mark.parametrize("stream", [True, False], ids=["stream", "poll"])


# ── done ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@both_ways
async def test_200_tasks_are_done_exactly_once_and_never_more_than_8_at_once(server: Stub, stream: bool) -> None:
    for number in range(200):
        server.add("square", number)
    ran: Counter[str] = Counter()
    now = peak = 0
    worker = Worker(server.url, concurrency=8, stream=stream)

    @worker.task("square")
    async def square(task: Held) -> int:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        ran[task.id] += 1
        await asyncio.sleep(0.001)
        now -= 1
        return int(task.payload) ** 2

    async with working(worker):
        await until(lambda: server.counts() == {"COMPLETED": 200}, 20)
    assert set(ran.values()) == {1}
    assert {task.runs for task in server.tasks.values()} == {1}
    assert peak == server.in_flight_peak == 8
    results = {int(task.payload): task.result for task in server.tasks.values()}
    assert all(result and result["result"] == {"value": number**2} for number, result in results.items())


async def test_with_codeq_a_worker_polls_and_sends_no_lease() -> None:
    async with stub(codeq=True) as codeq:
        for number in range(30):
            codeq.add("GENERATE_MASTER", number)
        worker = Worker(codeq.url, concurrency=4)

        @worker.task("generate_master")
        async def generate(task: Held) -> None:
            await task.progress(10, "codeQ does not know this")

        async with working(worker):
            await until(lambda: codeq.counts() == {"COMPLETED": 30})
        assert codeq.calls["stream"] == 1
        assert [body for word, body in codeq.bodies if "lease" in body] == []


@both_ways
async def test_a_plain_function_runs_in_a_thread_and_a_coroutine_in_the_loop(server: Stub, stream: bool) -> None:
    server.add("plain", "x")
    server.add("coroutine", "x")
    where = {}
    worker = Worker(server.url, concurrency=2, stream=stream)

    @worker.task("plain")
    def plain(task: Held) -> dict[str, Any]:
        where["plain"] = threading.current_thread()
        task.progress(25, "a quarter")
        return {"by": "thread"}

    @worker.task("coroutine")
    async def coroutine(task: Held) -> dict[str, Any]:
        where["coroutine"] = threading.current_thread()
        await task.progress(50, "half", {"frames": 12})
        return {"by": "loop"}

    async with working(worker):
        await until(lambda: server.counts() == {"COMPLETED": 2})
    assert where["coroutine"] is threading.current_thread()
    assert where["plain"] is not threading.current_thread()
    progress = {task.command: task.progress for task in server.tasks.values()}
    assert progress == {
        "plain": [{"percent": 25, "message": "a quarter"}],
        "coroutine": [{"percent": 50, "message": "half", "data": {"frames": 12}}],
    }


@pytest.mark.parametrize(
    ("returned", "result"),
    [(None, {}), ({"a": 1}, {"a": 1}), ([1, 2], {"value": [1, 2]}), ("text", {"value": "text"}), (0, {"value": 0})],
)
async def test_a_return_value_becomes_an_object(server: Stub, returned: Any, result: dict[str, Any]) -> None:
    task = server.add("work")
    worker = Worker(server.url)
    worker.task("work")(lambda _: returned)
    async with working(worker):
        await until(lambda: task.status == "COMPLETED")
    assert task.result is not None
    assert task.result["result"] == result


async def test_attached_files_go_with_the_result(server: Stub, tmp_path: Any) -> None:
    task = server.add("work")
    (tmp_path / "b.txt").write_text("from a file")
    worker = Worker(server.url)

    @worker.task("work")
    async def work(held: Held) -> None:
        held.attach("a.bin", b"\x00\xff", "application/octet-stream")
        held.attach("b.txt", tmp_path / "b.txt")

    async with working(worker):
        await until(lambda: task.status == "COMPLETED")
    assert task.result is not None
    assert task.result["artifacts"] == [
        {"name": "a.bin", "contentBase64": "AP8=", "contentType": "application/octet-stream"},
        {"name": "b.txt", "contentBase64": "ZnJvbSBhIGZpbGU="},
    ]


async def test_results_that_end_together_go_in_batches_and_one_alone_goes_alone(server: Stub) -> None:
    worker = Worker(server.url, concurrency=50)
    gate = asyncio.Event()
    begun = 0

    @worker.task("work")
    async def work(_: Held) -> None:
        nonlocal begun
        begun += 1
        await gate.wait()

    for _ in range(50):
        server.add("work")
    async with working(worker):
        await until(lambda: begun == 50)
        gate.set()
        await until(lambda: server.counts() == {"COMPLETED": 50})
        assert (server.calls["results"], server.calls["result"]) == (1, 0)
        server.add("work")
        await until(lambda: server.counts() == {"COMPLETED": 51})
        assert (server.calls["results"], server.calls["result"]) == (1, 1)


# ── not done ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_exception_is_a_nack_with_its_reason_and_the_servers_backoff(server: Stub, log: Log) -> None:
    task = server.add("work")
    worker = Worker(server.url)

    @worker.task("work")
    def work(held: Held) -> str:
        if held.attempt == 1:
            raise KeyError("no such file")
        return "second try"

    async with working(worker):
        await until(lambda: task.status == "COMPLETED")
    assert task.attempts == 2
    [nack] = [body for word, body in server.bodies if word == "nack"]
    assert nack == {"reason": "KeyError: 'no such file'", "lease": 1}
    assert log.lines == [f"task {task.id} (work) raised"]


async def test_retry_is_a_nack_with_a_delay_and_a_reason(server: Stub) -> None:
    task = server.add("work")
    worker = Worker(server.url)

    @worker.task("work")
    async def work(_: Held) -> None:
        raise Retry(120, "the printer is out of paper")

    async with working(worker):
        await until(lambda: server.calls["nack"] == 1)
    assert task.status == "PENDING"
    [nack] = [body for word, body in server.bodies if word == "nack"]
    assert nack == {"reason": "the printer is out of paper", "delaySeconds": 120, "lease": 1}


async def test_fail_ends_a_task_for_good(server: Stub) -> None:
    task = server.add("work")
    worker = Worker(server.url)

    @worker.task("work")
    async def work(_: Held) -> None:
        raise Fail("the file is not a video")

    async with working(worker):
        await until(lambda: task.status == "FAILED")
    assert (task.error, task.attempts) == ("the file is not a video", 1)


async def test_a_result_that_is_not_json_fails_with_a_clear_text(server: Stub) -> None:
    task = server.add("work")
    worker = Worker(server.url)
    worker.task("work")(lambda _: {"thread": threading.current_thread()})
    async with working(worker):
        await until(lambda: task.status == "FAILED")
    assert task.error.startswith("the result cannot be written as JSON: ")


async def test_a_task_whose_result_the_server_refuses_fails_with_the_servers_text(server: Stub) -> None:
    task = server.add("work")
    server.faults["result"] = [413]
    worker = Worker(server.url)
    worker.task("work")(lambda _: "too large")
    async with working(worker):
        await until(lambda: task.status == "FAILED")
    assert task.error == "the server refused the result: 413 not now: a test"


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_sys_exit_in_a_function_ends_that_task_only(server: Stub, kind: str) -> None:
    bad, good = server.add("bad"), server.add("good")
    worker = Worker(server.url)

    async def leave(_: Held) -> None:
        raise SystemExit(3)

    def leave_in_a_thread(_: Held) -> None:
        raise SystemExit(3)

    worker.task("bad")(leave if kind == "coroutine" else leave_in_a_thread)
    worker.task("good")(lambda _: None)
    async with working(worker):
        await until(lambda: good.status == "COMPLETED" and bad.status == "FAILED")
    assert "SystemExit: 3" in bad.error


# ── leases ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_heartbeats_keep_a_task_that_takes_longer_than_its_lease(server: Stub) -> None:
    task = server.add("work")
    worker = Worker(server.url)

    @worker.task("work", lease_seconds=2)
    async def work(_: Held) -> None:
        await until(lambda: server.calls["heartbeat"] >= 4)

    async with working(worker):
        await until(lambda: task.status == "COMPLETED")
    assert (task.attempts, task.runs) == (1, 1)


async def test_each_function_may_have_its_own_lease_seconds(server: Stub) -> None:
    server.add("short")
    server.add("long")
    worker = Worker(server.url, concurrency=2)

    async def work(_: Held) -> None:
        await until(lambda: server.calls["heartbeat"] >= 3)

    worker.task("short", lease_seconds=1)(work)
    worker.task("long", lease_seconds=100)(work)
    async with working(worker):
        await until(lambda: server.counts() == {"COMPLETED": 2})
    asked = Counter(body["extendSeconds"] for word, body in server.bodies if word == "heartbeat")
    assert asked[100] == 1
    assert asked[1] >= 2


async def test_a_lost_lease_cancels_the_coroutine_and_nothing_is_sent(server: Stub) -> None:
    task = server.add("work")
    ended: list[TaskEnded] = []
    cancelled = asyncio.Event()
    worker = Worker(server.url, watch=ended.append)

    @worker.task("work", lease_seconds=1)
    async def work(_: Held) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "never"

    async with working(worker):
        await until(lambda: task.status == "IN_PROGRESS")
        task.lease += 1  # another worker has the task now
        task.until += 60
        await asyncio.wait_for(cancelled.wait(), 5)
        await until(lambda: ended)
    assert (ended[0].word, ended[0].text) == ("lost", "409 lease-lost")
    assert [server.calls[word] for word in ("result", "results", "nack", "abandon")] == [0, 0, 0, 0]


async def test_a_thread_sees_that_its_lease_is_lost_and_its_result_is_dropped(server: Stub) -> None:
    task, other = server.add("work"), server.add("other")
    ended: list[TaskEnded] = []
    worker = Worker(server.url, watch=ended.append)
    told = []

    @worker.task("work", lease_seconds=1)
    def work(held: Held) -> str:
        told.append(held.lost.wait(10))
        assert other.status == "PENDING", "the place is taken until the thread has ended"
        return "dropped"

    worker.task("other")(lambda _: None)
    async with working(worker):
        await until(lambda: task.status == "IN_PROGRESS")
        task.lease += 1
        task.until += 60
        await until(lambda: other.status == "COMPLETED")
    assert (told, task.result, task.status) == ([True], None, "IN_PROGRESS")
    assert [end.word for end in ended] == ["lost", "completed"]


async def test_a_result_is_sent_until_the_server_answers(server: Stub, log: Log) -> None:
    task = server.add("work")
    server.faults["result"] = [503, 500, 429, 502]
    worker = Worker(server.url)
    worker.task("work")(lambda _: "at last")
    async with working(worker):
        await until(lambda: task.status == "COMPLETED")
    assert (task.runs, server.calls["result"]) == (1, 5)
    assert log.lines == [f"{server.url} is away, trying again: 503 not now: a test", f"{server.url} is back"]


async def test_a_result_whose_answer_was_lost_counts_if_the_server_has_it(server: Stub) -> None:
    task = server.add("work")
    server.faults["result"] = ["drop"]
    ended: list[TaskEnded] = []
    worker = Worker(server.url, watch=ended.append)
    worker.task("work")(lambda _: "heard")
    async with working(worker):
        await until(lambda: ended)
    assert (task.runs, ended[0].word, server.calls["result"]) == (1, "completed", 2)


@pytest.mark.parametrize("fails", [False, True], ids=["completed", "failed"])
async def test_a_repeated_result_that_the_server_takes_again_counts_and_nothing_else_is_asked(
    server: Stub, fails: bool
) -> None:
    task = server.add("work")
    server.takes_repeats = True
    server.faults["result"] = ["drop"]
    ended: list[TaskEnded] = []
    worker = Worker(server.url, watch=ended.append)

    @worker.task("work")
    async def work(_: Held) -> str:
        if fails:
            raise Fail("not a video")
        return "heard"

    async with working(worker):
        await until(lambda: ended)
    assert ended[0].word == ("failed" if fails else "completed")
    assert (task.runs, server.calls["result"], server.calls[task.id]) == (1, 2, 0)


async def test_a_result_that_cannot_be_sent_is_given_up_when_the_lease_is_over(server: Stub) -> None:
    server.add("work")
    server.faults["result"] = [500] * 1000
    ended: list[TaskEnded] = []
    worker = Worker(server.url, watch=ended.append)
    worker.task("work", lease_seconds=1)(lambda _: "unheard")
    async with working(worker):
        await until(lambda: ended)
    assert ended[0].word == "lost"
    assert 2 <= server.calls["result"] <= 10


# ── stopping ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@both_ways
async def test_stop_lets_running_tasks_end_and_takes_no_new_ones(server: Stub, stream: bool) -> None:
    first = server.add("work")
    worker = Worker(server.url, stream=stream)
    gate = asyncio.Event()

    @worker.task("work")
    async def work(_: Held) -> str:
        await gate.wait()
        return "done"

    serving = asyncio.create_task(worker.serve())
    await until(lambda: first.status == "IN_PROGRESS")
    worker.stop()
    second = server.add("work")
    gate.set()
    await asyncio.wait_for(serving, 5)
    assert (first.status, second.status, second.lease) == ("COMPLETED", "PENDING", 0)


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_task_that_outlasts_the_grace_is_handed_back_and_its_attempt_does_not_count(
    server: Stub, kind: str
) -> None:
    task = server.add("work")
    ended: list[TaskEnded] = []
    worker = Worker(server.url, grace_seconds=0.1, watch=ended.append)
    late = threading.Event()

    async def hang(_: Held) -> None:
        await asyncio.sleep(60)

    worker.task("work")(hang if kind == "coroutine" else lambda _: late.wait(60))
    serving = asyncio.create_task(worker.serve())
    await until(lambda: task.status == "IN_PROGRESS")
    worker.stop()
    await asyncio.wait_for(serving, 5)
    late.set()
    assert (task.status, task.attempts) == ("PENDING", 0)
    assert [end.word for end in ended] == ["abandoned"]


async def test_a_second_stop_cuts_the_grace_short(server: Stub) -> None:
    task = server.add("work")
    worker = Worker(server.url, grace_seconds=60)

    @worker.task("work")
    async def work(_: Held) -> None:
        await asyncio.sleep(60)

    serving = asyncio.create_task(worker.serve())
    await until(lambda: task.status == "IN_PROGRESS")
    worker.stop()
    await asyncio.sleep(0)
    worker.stop()
    await asyncio.wait_for(serving, 5)
    assert (task.status, task.attempts) == ("PENDING", 0)


# ── a server that goes ────────────────────────────────────────────────────────────────────────────────────────────────


@both_ways
async def test_a_worker_waits_for_a_server_that_goes_away_and_comes_back(server: Stub, log: Log, stream: bool) -> None:
    before = server.add("work")
    worker = Worker(server.url, concurrency=2, stream=stream)
    worker.task("work")(lambda _: None)
    async with working(worker):
        await until(lambda: before.status == "COMPLETED")
        await server.stop()
        await until(lambda: log.lines)
        after = server.add("work")
        await server.start()
        await until(lambda: after.status == "COMPLETED")
        assert [line.removeprefix(server.url)[:8] for line in log.lines] == [" is away", " is back"]


async def test_a_broken_stream_never_leads_to_more_tasks_than_places(server: Stub) -> None:
    """The server has forgotten what it sent over the old stream, and would send as many again."""
    for _ in range(12):
        server.add("work")
    gate = asyncio.Event()
    now = peak = 0
    worker = Worker(server.url, concurrency=4)

    @worker.task("work")
    async def work(_: Held) -> None:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await gate.wait()
        now -= 1

    async with working(worker):
        await until(lambda: now == 4)
        await server.stop()
        await server.start()
        server.add("work")
        gate.set()
        await until(lambda: server.counts() == {"COMPLETED": 13})
        await until(lambda: server.streams == 1)
    assert peak == 4
    assert {task.attempts for task in server.tasks.values()} == {1}


async def test_a_new_stream_asks_for_the_free_places_and_another_for_the_rest(server: Stub) -> None:
    held = [server.add("slow") for _ in range(3)]
    gate = asyncio.Event()
    worker = Worker(server.url, concurrency=4)

    @worker.task("slow")
    async def slow(_: Held) -> None:
        await gate.wait()

    worker.task("quick")(lambda _: None)
    async with working(worker):
        await until(lambda: all(task.status == "IN_PROGRESS" for task in held))
        await server.stop()
        await server.start()
        quick = server.add("quick")
        await until(lambda: quick.status == "COMPLETED")
        gate.set()
        await until(lambda: server.streams == 2)
        limits = [body["maxInFlight"] for word, body in server.bodies if word == "stream"]
        assert (limits[0], limits[-2:]) == (4, [1, 3])


async def test_a_refusal_at_the_start_is_raised_and_a_later_refusal_is_waited_out(server: Stub) -> None:
    server.faults["stream"] = [401]
    worker = Worker(server.url)
    worker.task("work")(lambda _: None)
    with pytest.raises(ClientError, match="401 not now") as refused:
        await asyncio.wait_for(worker.serve(), 5)
    assert refused.value.status == 401


async def test_a_worker_started_before_its_server_waits_for_it(server: Stub, log: Log) -> None:
    await server.stop()
    task = server.add("work")
    worker = Worker(server.url)
    worker.task("work")(lambda _: None)
    async with working(worker):
        await until(lambda: log.lines)
        await server.start()
        await until(lambda: task.status == "COMPLETED")


async def test_a_worker_pauses_though_the_server_asks_for_no_pause(server: Stub) -> None:
    """The stub is busy with `Retry-After: 0`."""
    server.faults["claim"] = [429, 429, 429]
    task = server.add("work")
    worker = Worker(server.url, stream=False)
    worker.task("work")(lambda _: None)
    since = time.monotonic()
    async with working(worker):
        await until(lambda: task.status == "COMPLETED")
    assert time.monotonic() - since >= 0.1 + 0.2 + 0.4


# ── rung ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_with_a_secret_only_signed_notifications_are_accepted(server: Stub) -> None:
    worker = Worker(server.url, wake_port=0, wake_secret="s3cret")
    worker.task("work")(lambda _: None)
    async with working(worker), aiohttp.ClientSession() as http:
        bell = str(
            await until(
                lambda: next((body["callbackUrl"] for word, body in server.bodies if word == "subscriptions"), "")
            )
        )
        # One at the start, one for tasks that were there before the subscription.
        await until(lambda: server.calls["claim"] >= 2)
        looked = server.calls["claim"]
        task = server.add("work")
        async with http.post(bell, data=b"{}") as answer:
            assert answer.status == 401
        assert (server.calls["claim"], task.status) == (looked, "PENDING")
        async with http.post(
            bell, data=b"{}", headers=sign("codeq", Keys("s3cret"), "n", int(time.time()), b"{}")
        ) as answer:
            assert answer.status == 204
        await until(lambda: task.status == "COMPLETED")
        # codeQ itself sends no other signature.
        task = server.add("work")
        signed = sign("codeq", Keys("s3cret"), "n", int(time.time()), b"{}")
        codeq = {name: value for name, value in signed.items() if name.startswith("X-CodeQ")}
        async with http.post(bell, data=b"{}", headers=codeq) as answer:
            assert answer.status == 204
        await until(lambda: task.status == "COMPLETED")
    assert server.calls["sub-1"] == 1, "it unsubscribes when it stops"


async def test_a_worker_subscribes_again_when_the_server_lost_its_subscription(
    server: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chargehand.client.worker.notifications.TTL_SECONDS", 0.15)
    worker = Worker(server.url, wake_port=0)
    worker.task("work")(lambda _: None)
    async with working(worker):
        await until(lambda: server.calls["heartbeat"] >= 2)
        assert server.calls["subscriptions"] == 1
        server.faults["heartbeat"] = [404]
        await until(lambda: server.calls["subscriptions"] == 2)
