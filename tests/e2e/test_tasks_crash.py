"""A server is killed while tasks are created, worked on and reported: nothing acknowledged is lost.

CHARGEHAND_CHAOS_ROUNDS says how often, CHARGEHAND_CHAOS_SEED repeats a run's random choices (a failure prints its seed).
"""

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec
import pytest

from chargehand.doors.tasks.names import BASE

from .receiver import Delivery, Receiver, always
from .server import SECRET, Server, eventually

ROUNDS = int(os.environ.get("CHARGEHAND_CHAOS_ROUNDS", "0"))
SOON = 45.0
PRODUCERS, WORKERS, STREAMS = 3, 8, 2
# The webhooks of a dead node have a lease of 33 times the receiver's timeout.
SETTINGS: dict[str, Any] = {
    "tasks_backoff_base_seconds": 0.1,
    "tasks_backoff_max_seconds": 0.5,
    "tasks_result_webhook_max_attempts": 1000,
    "tasks_result_webhook_base_backoff_seconds": 0.1,
    "tasks_result_webhook_max_backoff_seconds": 0.5,
    "webhooks_timeout_seconds": 0.2,
    "webhooks_breaker_seconds": 0.1,
    "engine_poll_seconds": 0.2,
}

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.chaos,
    pytest.mark.timeout(120 + 15 * ROUNDS),
]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver(SECRET) as receiver:
        yield receiver


def a_server(store_url: str, folder: Path, name: str = "server") -> Server:
    return Server(store_url, folder, name, **{**SETTINGS, "server_data_dir": folder})


# The load ---------------------------------------------------------------------------------------------------------------


class Load:
    """Producers and workers that record what was acknowledged."""

    def __init__(self, nodes: Sequence[str], hook: str, random: Random) -> None:
        self.created: dict[str, tuple[str, str]] = {}  # task -> its key, and the payload as text
        self.results: dict[str, dict[str, Any]] = {}  # task -> the record that its worker got
        self.dead: set[str] = set()  # tasks that a worker was told are dead letters
        self.beaten: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._nodes = nodes
        self._hook = hook
        self._random = random
        self._producing = True
        self._working = True

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2, sock_read=5)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as self._http,
            asyncio.TaskGroup() as group,
        ):
            self._group = group
            producers = [group.create_task(self._produce(number)) for number in range(PRODUCERS)]
            workers = [group.create_task(self._work()) for _ in range(WORKERS)]
            workers += [group.create_task(self._stream()) for _ in range(STREAMS)]
            yield
            self._producing = False
            await asyncio.gather(*producers)
            await eventually(self._all_ended, SOON, "every task has come to its end")
            self._working = False
            for worker in workers:
                worker.cancel()

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, Any] | None:
        """Send a request; return None if there is no answer, or one that does not say whether it was carried out."""
        try:
            url = f"{self._random.choice(self._nodes)}{path}"
            async with self._http.request(method, url, json=body) as response:
                if response.status < 500:
                    data = await response.read()
                    return response.status, msgspec.json.decode(data) if data else None
        except (aiohttp.ClientError, TimeoutError):
            pass
        self.counts["unknown"] += 1
        await asyncio.sleep(self._random.uniform(0.01, 0.1))
        return None

    async def insist(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        while (answer := await self.call(method, path, body)) is None:
            pass
        return answer

    # producers

    async def _produce(self, number: int) -> None:
        turn = 0
        while self._producing:
            turn += 1
            bodies = [self._body(f"{number}/{turn}/{each}") for each in range(self._random.choice((1, 1, 4)))]
            if len(bodies) == 1:
                status, task = await self.insist("POST", f"{BASE}/tasks", bodies[0])
                assert status == 202, task
                tasks = [task]
            else:
                status, said = await self.insist("POST", f"{BASE}/tasks/batch", {"tasks": bodies})
                assert status == 200, said
                # Each task of a batch is acknowledged separately: those that the store could not accept were not.
                tasks = [each["task"] for each in said["results"] if "task" in each]
            by_payload = {msgspec.json.encode(body["payload"]): body for body in bodies}
            for task in tasks:
                body = by_payload[msgspec.json.encode(msgspec.json.decode(task["payload"]))]
                assert (
                    self.created.setdefault(task["id"], (body["idempotencyKey"], task["payload"]))[0]
                    == (body["idempotencyKey"])
                )
            await asyncio.sleep(self._random.uniform(0, 0.03))

    def _body(self, key: str) -> dict[str, Any]:
        return {
            "command": self._random.choice(("render", "send")),
            "payload": {"key": key},
            "webhook": self._hook,
            "idempotencyKey": key,
            "priority": self._random.randrange(10),
            "maxAttempts": self._random.choice((2, 50)),
        }

    # workers

    async def _work(self) -> None:
        while self._working:
            body = {"leaseSeconds": self._random.choice((1, 5)), "waitSeconds": 0.5}
            if self._random.random() < 0.5:
                answer = await self.call("POST", f"{BASE}/tasks/claim", body)
                tasks = [answer[1]] if answer and answer[0] == 200 else []
            else:
                answer = await self.call("POST", f"{BASE}/tasks/claim/batch", {**body, "count": 4})
                tasks = answer[1]["tasks"] if answer and answer[0] == 200 else []
                if not tasks:
                    await asyncio.sleep(0.05)
            await self._end(tasks)

    async def _stream(self) -> None:
        while self._working:
            url = f"{self._random.choice(self._nodes)}{BASE}/tasks/claim/stream"
            try:
                async with self._http.post(url, json={"leaseSeconds": 2, "maxInFlight": 3}) as response:
                    async for line in response.content:
                        if line.strip():
                            await self._end([msgspec.json.decode(line)])
            except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):  # also half a line
                await asyncio.sleep(0.05)

    async def _end(self, tasks: list[dict[str, Any]]) -> None:
        ends: list[dict[str, Any]] = []
        for task in tasks:
            one, lease = f"{BASE}/tasks/{task['id']}", {"lease": task["lease"]}
            drawn = self._random.random()
            if drawn < 0.3:
                answer = await self.call("POST", f"{one}/heartbeat", {**lease, "extendSeconds": 5})
                self.beaten[f"{answer and answer[0]}"] += 1
            if drawn < 0.05 and self._producing:
                continue  # the worker abandons this one silently
            if drawn < 0.15 and self._producing:
                answer = await self.call("POST", f"{one}/nack", {**lease, "reason": "broken"})
                if answer is not None and answer[0] == 200 and answer[1]["status"] == "dlq":
                    self.dead.add(task["id"])
                continue
            failed = drawn > 0.9
            result = {"of": msgspec.json.decode(task["payload"])["key"], "lease": task["lease"]}
            ends.append(
                {"taskId": task["id"], "status": "FAILED", "error": f"no: {task['lease']}", **lease}
                if failed
                else {"taskId": task["id"], "status": "COMPLETED", "result": result, **lease}
            )
        if len(ends) == 1:
            answer = await self.call("POST", f"{BASE}/tasks/{ends[0]['taskId']}/result", ends[0])
            if answer is not None and answer[0] == 200:
                self._keep(answer[1])
        elif ends:
            answer = await self.call("POST", f"{BASE}/tasks/batch/results", {"results": ends})
            for each in answer[1]["results"] if answer is not None and answer[0] == 200 else ():
                if "result" in each:
                    self._keep(each["result"])

    def _keep(self, record: dict[str, Any]) -> None:
        assert record["taskId"] not in self.results, "two results were accepted for one task"
        self.results[record["taskId"]] = record

    async def _all_ended(self) -> bool:
        # All counts of one moment: codeQ's page reads the pending tasks apart, and one may be claimed in between.
        answer = await self.call("GET", "/engine/queues")
        if answer is None:
            return False
        return not any(queue["ready"] + queue["delayed"] + queue["running"] for queue in answer[1]["queues"])


# The results ------------------------------------------------------------------------------------------------------------


async def survive(servers: Sequence[Server], receiver: Receiver, random: Random, rounds: int) -> None:
    async def answer(_: Delivery) -> int:
        return random.choice((200, 200, 200, 500))

    receiver.answer = answer
    load = Load([server.url for server in servers], f"{receiver.url}/hook", random)
    async with load.running():
        for _ in range(rounds):
            await asyncio.sleep(random.uniform(0.3, 1.2))
            struck = random.choice(servers)
            await struck.kill()
            await struck.start()
        await asyncio.sleep(0.3)
        receiver.answer = always(200)
    assert load.created
    assert load.results
    records = await read_all(load, servers)
    nothing_is_lost(load, records)
    await every_end_is_told(load, records, receiver)
    print(
        f"{rounds} blows, {len(records)} tasks, {len(load.results)} results and {len(load.dead)} deaths acknowledged, "
        f"{dict(load.counts)}, heartbeats {dict(load.beaten)}, {len(receiver.received)} copies"
    )


async def read_all(load: Load, servers: Sequence[Server]) -> dict[str, dict[str, Any]]:
    """Read all tasks by every id that was ever acknowledged."""
    few = asyncio.Semaphore(16)
    async with aiohttp.ClientSession(servers[-1].url) as http:

        async def read(task_id: str) -> dict[str, Any]:
            async with few, http.get(f"{BASE}/tasks/{task_id}/result") as response:
                assert response.status == 200, f"{task_id}: {await response.text()}"
                said: dict[str, Any] = await response.json()
                return said

        ids = list(load.created)
        return dict(zip(ids, await asyncio.gather(*map(read, ids)), strict=True))


def nothing_is_lost(load: Load, records: dict[str, dict[str, Any]]) -> None:
    keys = Counter(key for key, _ in load.created.values())
    assert not [key for key, count in keys.items() if count > 1], "a key made two tasks"
    for task_id, (_, payload) in load.created.items():
        task = records[task_id]["task"]
        assert task["payload"] == payload
        assert task["status"] in ("COMPLETED", "FAILED")
        assert 1 <= task["attempts"] <= task["maxAttempts"]
    for task_id, record in load.results.items():
        assert records[task_id]["result"] == record
    for task_id in load.dead - load.results.keys():
        assert records[task_id]["task"]["lastKnownLocation"] == "DLQ_SET"
    assert not load.dead & load.results.keys()


async def every_end_is_told(load: Load, records: dict[str, dict[str, Any]], receiver: Receiver) -> None:
    def missing() -> set[str]:
        return records.keys() - {delivery.job_id for delivery in receiver.taken}

    await eventually(lambda: not missing(), SOON, lambda: f"the callbacks of these arrive: {missing()}")
    assert receiver.forged == []
    bodies: dict[str, set[bytes]] = {}
    for delivery in receiver.received:
        bodies.setdefault(delivery.job_id, set()).add(delivery.body)
    for task_id, record in records.items():
        [body] = bodies[task_id]  # repeated reads return the same
        told = msgspec.json.decode(body)
        ended = record["result"]
        assert (told["taskId"], told["status"], told["completedAt"]) == (task_id, ended["status"], ended["completedAt"])
        assert (told["result"], told["error"]) == (ended.get("result"), ended.get("error", ""))


async def test_a_killed_server_on_sqlite_loses_nothing_acknowledged(
    tmp_path: Path, receiver: Receiver, random: Random
) -> None:
    async with a_server(f"sqlite:///{tmp_path}/chargehand.db", tmp_path) as server:
        await survive([server], receiver, random, ROUNDS or 3)


async def test_killed_nodes_on_one_postgres_lose_nothing_acknowledged(
    postgres_url: str, tmp_path: Path, receiver: Receiver, random: Random
) -> None:
    async with a_server(postgres_url, tmp_path, "one") as one, a_server(postgres_url, tmp_path, "two") as two:
        await survive([one, two], receiver, random, ROUNDS or 2)


# Lapsed leases ----------------------------------------------------------------------------------------------------------


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def dead_letter_to_be(server: Server, hook: str, lease_seconds: float) -> str:
    """Create a task in its last attempt, whose worker never calls again."""
    async with aiohttp.ClientSession(server.url, raise_for_status=True) as http:
        body = {"command": "render", "payload": 1, "webhook": hook, "maxAttempts": 1}
        async with http.post(f"{BASE}/tasks", json=body) as response:
            task_id: str = (await response.json())["id"]
        async with http.post(f"{BASE}/tasks/claim", json={"leaseSeconds": lease_seconds}) as response:
            assert (await response.json())["id"] == task_id
    return task_id


async def test_a_lapsed_lease_is_found_within_two_seconds_without_any_worker(
    store_url: str, tmp_path: Path, receiver: Receiver
) -> None:
    async with a_server(store_url, tmp_path) as server:
        began = time.time()
        task_id = await dead_letter_to_be(server, f"{receiver.url}/hook", 1.0)
        claimed = time.time()
        await eventually(lambda: receiver.taken, 10, "the callback of the lapse arrives")
        told = msgspec.json.decode(receiver.taken[0].body)
        assert (told["taskId"], told["status"], told["error"]) == (task_id, "FAILED", "LEASE_EXPIRED")
        assert began + 1.0 <= seconds(told["completedAt"]) + 0.001
        assert seconds(told["completedAt"]) <= claimed + 1.0 + 2.0


async def test_a_lease_that_lapsed_while_the_server_was_down_is_found_within_two_seconds_after_its_start(
    store_url: str, tmp_path: Path, receiver: Receiver
) -> None:
    async with a_server(store_url, tmp_path) as server:
        task_id = await dead_letter_to_be(server, f"{receiver.url}/hook", 0.2)
        await server.kill()
        await server.start()
        ready = time.time()
        await eventually(lambda: receiver.taken, 10, "the callback of the lapse arrives")
        told = msgspec.json.decode(receiver.taken[0].body)
        assert (told["taskId"], told["error"]) == (task_id, "LEASE_EXPIRED")
        assert seconds(told["completedAt"]) <= ready + 2.0
