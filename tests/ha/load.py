"""Producers, workers and a receiver that use several nodes during a fault, and record all that they see."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from random import Random
from typing import Any, NamedTuple

import aiohttp
import msgspec

from chargehand.doors.tasks.names import BASE
from tests.e2e.receiver import Delivery
from tests.e2e.server import SECRET

from .history import (
    ENDS,
    Call,
    Completed,
    Created,
    Granted,
    History,
    Outcome,
    Read,
    Renewed,
    Returned,
    Told,
)

LEASE_SECONDS = 4
WAIT_SECONDS = 0.5  # of a claim that finds nothing
SLOW_SECONDS = 2.0  # a request that takes longer is trouble, as one that fails is
READY_SECONDS = 0.25  # between two probes of a node
PATIENCE_SECONDS = 60.0  # of a caller, who then gives up and tries again
READERS = 8
MODEL = "a"
TASKS, READYZ = f"{BASE}/tasks", "/readyz"
UNFINISHED = ("queued", "running")

# For nodes: short, so that leases, retries and timeouts happen within seconds, and nothing is given up.
SETTINGS: dict[str, Any] = {
    "engine_poll_seconds": 0.3,
    "tasks_backoff_base_seconds": 0.1,
    "tasks_backoff_max_seconds": 0.5,
    "tasks_result_webhook_max_attempts": 1000,
    "tasks_result_webhook_base_backoff_seconds": 0.1,
    "tasks_result_webhook_max_backoff_seconds": 0.5,
    "webhooks_secret": SECRET,
    "webhooks_timeout_seconds": 0.3,  # the webhooks of a dead node have a lease of 33 times as long
    "webhooks_breaker_seconds": 0.1,
    "inference_probe_seconds": 0.5,
    "inference_lease_seconds": 3,
}


class Answer(NamedTuple):
    status: int
    body: Any
    began: float
    ended: float


class Load:
    def __init__(self, nodes: Sequence[str], hook: str, history: History, random: Random, *, models: bool) -> None:
        self.history = history
        self._nodes = nodes
        self._hook = hook
        self._random = random
        self._models = models  # whether the nodes have a target for inference jobs
        self._producing = True

    @contextlib.asynccontextmanager
    async def running(self, producers: int = 6, workers: int = 6) -> AsyncIterator[None]:
        """Produce and work until the end of the block, which should `drain` at its end."""
        timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector) as self._http,
            asyncio.TaskGroup() as group,
        ):
            self._producers = [group.create_task(self._produce(number)) for number in range(producers)]
            if self._models:
                self._producers.append(group.create_task(self._ask_models()))
            others = [group.create_task(self._work()) for _ in range(workers)]
            others += [group.create_task(self._probe(node)) for node in range(len(self._nodes))]
            yield
            for task in (*self._producers, *others):
                task.cancel()

    async def drain(self, within: float) -> None:
        """Produce no more; let the workers go on until every job has ended, and record how each is shown then."""
        self._producing = False
        until = time.monotonic() + within
        await asyncio.wait(self._producers, timeout=within)
        waiting = {created.job_id: created.key for created in self.history.created}
        shown: dict[str, Read] = {}
        few = asyncio.Semaphore(READERS)

        async def read(job_id: str) -> Read | None:
            async with few:
                return await self._read(job_id, waiting[job_id])

        while waiting and time.monotonic() < until:
            reads = await asyncio.gather(*map(read, waiting))
            shown |= {each.job_id: each for each in reads if each is not None}
            waiting = {
                job_id: key
                for job_id, key in waiting.items()
                if job_id not in shown or shown[job_id].status not in ENDS
            }
            await asyncio.sleep(0.2)
        self.history.add(*shown.values(), *await self._left())

    # one request ------------------------------------------------------------------------------------------------------

    async def call(
        self, method: str, path: str, body: object = None, key: str = "", *, node: int | None = None, noted: bool = True
    ) -> Answer | None:
        """Send a request, to any node if none is given. Return None if there is no answer, or one that does not say whether it was
        carried out."""
        node = self._random.randrange(len(self._nodes)) if node is None else node
        began = time.time()
        status, read = 0, b""
        headers = {"Idempotency-Key": key} if key else {}
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with self._http.request(method, f"{self._nodes[node]}{path}", json=body, headers=headers) as response:
                status, read = response.status, await response.read()
                if status == 503:
                    assert "Retry-After" in response.headers, f"{method} {path}: {read.decode()}"
        ended = time.time()
        outcome = Outcome.UNKNOWN if not 0 < status < 500 else Outcome.REFUSED if status >= 400 else Outcome.DONE
        assert status in (0, 503) or outcome is not Outcome.UNKNOWN, f"{method} {path}: {status} {read.decode()}"
        if noted:
            self.history.add(Call(f"{method} {path}", node, outcome, began, ended))
        if outcome is Outcome.UNKNOWN:
            # Sooner than Retry-After asks for, to see how soon it would have been answered.
            await asyncio.sleep(self._random.uniform(0.1, 0.3))
            return None
        return Answer(status, msgspec.json.decode(read) if read else None, began, ended)

    async def _insist(self, method: str, path: str, body: object, key: str = "", node: int | None = None) -> Answer:
        while (answer := await self.call(method, path, body, key, node=node)) is None:
            pass
        return answer

    async def _probe(self, node: int) -> None:
        """Ask a node whether it is ready, as a load balancer does."""
        while True:
            await self.call("GET", READYZ, node=node)
            await asyncio.sleep(READY_SECONDS)

    # producers --------------------------------------------------------------------------------------------------------

    async def _produce(self, number: int) -> None:
        """The first producers stay with a node each, which shows how soon each node serves again; the others take any."""
        node = number if number < len(self._nodes) else None
        count = 0
        while self._producing:
            count += 1
            key = f"{number}/{count}"
            body = {
                "command": self._random.choice(("render", "send")),
                "payload": {"key": key},
                "webhook": self._hook,
                "idempotencyKey": key,
                "maxAttempts": 1000,
            }
            answer = await self._insist("POST", TASKS, body, node=node)
            assert answer.status == 202, answer
            self.history.add(Created(key, answer.body["id"], answer.began, answer.ended))
            await asyncio.sleep(self._random.uniform(0.1, 0.4))

    async def _ask_models(self) -> None:
        count = 0
        while self._producing:
            count += 1
            key = f"model/{count}"
            body = {"model": MODEL, "prompt": key, "state_webhook_url": self._hook, "max_attempts": 1000}
            answer = await self._insist("POST", "/jobs", body, key)
            assert answer.status == 202, answer
            self.history.add(Created(key, answer.body["job_id"], answer.began, answer.ended))
            await asyncio.sleep(self._random.uniform(0.5, 1.0))

    # workers ----------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            claim = {"leaseSeconds": LEASE_SECONDS, "waitSeconds": WAIT_SECONDS}
            answer = await self.call("POST", f"{BASE}/tasks/claim", claim)
            if answer is not None and answer.status == 200:
                task = answer.body
                at = datetime.fromisoformat(task["updatedAt"]).timestamp()
                self.history.add(Granted(task["id"], task["lease"], LEASE_SECONDS, at))
                await self._end(task["id"], task["lease"])

    async def _end(self, job_id: str, lease: int) -> None:
        one, held = f"{BASE}/tasks/{job_id}", {"lease": lease}
        drawn = self._random.random()
        if drawn < 0.2:
            answer = await self.call("POST", f"{one}/heartbeat", {**held, "extendSeconds": LEASE_SECONDS})
            if answer is not None and answer.status == 200:
                self.history.add(Renewed(job_id, lease, LEASE_SECONDS, answer.began))
        if drawn < 0.02 and self._producing:
            return  # the worker has died
        if drawn < 0.05 and self._producing:
            await asyncio.sleep(LEASE_SECONDS * 1.5)  # what it sends afterwards must not affect the next owner
        elif drawn > 0.95 and self._producing:
            began = time.time()
            answer = await self.call("POST", f"{one}/nack", {**held, "reason": "broken", "delaySeconds": 0})
            self.history.add(Returned(job_id, lease, _outcome(answer), began))
            return
        await self._complete(job_id, lease)

    async def _complete(self, job_id: str, lease: int) -> None:
        body = {"status": "COMPLETED", "result": {"lease": lease}, "lease": lease}
        outcome = Outcome.UNKNOWN
        while outcome is Outcome.UNKNOWN:
            began = time.time()
            answer = await self.call("POST", f"{BASE}/tasks/{job_id}/result", body)
            outcome = _outcome(answer)
            self.history.add(Completed(job_id, lease, outcome, began, time.time()))

    # the receiver, and the end ----------------------------------------------------------------------------------------

    async def answer(self, delivery: Delivery) -> int:
        """Take a webhook. One in ten is refused at first, so that there are repeats."""
        if self._producing and self._random.random() < 0.1:
            return 500
        body = msgspec.json.decode(delivery.body)
        status = body["status"] if "status" in body else _status(body["state"])
        lease = _lease(body) if "status" in body else None
        self.history.add(
            Told(delivery.webhook_id, delivery.job_id, delivery.sequence, status, lease, time.time()),
        )
        return 200

    async def _left(self) -> list[Read]:
        """Return what has not ended, by the lists: also jobs that nobody was told of."""
        lists = [await self._insist("GET", f"/engine/jobs?state={state}", None) for state in UNFINISHED]
        return [Read(job["id"], job["state"], None) for answer in lists for job in answer.body["jobs"]]

    async def _read(self, job_id: str, key: str) -> Read | None:
        if key.startswith("model/"):
            answer = await self.call("GET", f"/jobs/{job_id}", noted=False)
            if answer is None:
                return None
            return Read(job_id, _status(answer.body["state"]) if answer.status == 200 else "", None)
        answer = await self.call("GET", f"{BASE}/tasks/{job_id}/result", noted=False)
        if answer is None:
            return None
        if answer.status == 200:
            return Read(job_id, answer.body["task"]["status"], _lease(answer.body["result"]))
        answer = await self.call("GET", f"{BASE}/tasks/{job_id}", noted=False)
        if answer is None or (answer.status == 200 and answer.body["status"] in ENDS):
            return None  # it has ended meanwhile: read it again
        return Read(job_id, answer.body["status"] if answer.status == 200 else "", None)


def _outcome(answer: Answer | None) -> Outcome:
    if answer is None:
        return Outcome.UNKNOWN
    return Outcome.DONE if answer.status < 300 else Outcome.REFUSED


def _lease(ended: dict[str, Any]) -> int | None:
    lease: int | None = (ended.get("result") or {}).get("lease")
    return lease


def _status(state: str) -> str:
    """Return the state of an inference job in the words of tasks."""
    return {"done": "COMPLETED", "failed": "FAILED"}.get(state, state)
