"""Callers, workers and operators that use a server while it is killed, and record what it acknowledged."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import aiohttp

from .receiver import Delivery, hang
from .server import QUICK, eventually

QUEUES = ("red", "blue")
SUBMITTERS, WORKERS, MEDDLERS = 6, 24, 2
RECENT = 40  # the jobs that operators act on: older ones have ended
LEASE_SECONDS = float(str(QUICK["engine_lease_seconds"]))

STEPS = {"beat": 3, "advance": 3, "note": 1}
ENDS = {"succeed": 60, "retry": 12, "park": 12, "fail": 10, "vanish": 3, "dawdle": 3}
ANSWERS = {200: 80, 500: 8, 429: 2, 302: 2, 0: 3}  # 0: none


class Reply(NamedTuple):
    status: int
    body: Any


class Submitted(NamedTuple):
    key: str
    url: str | None  # the id of its webhook
    on: tuple[str, ...]


class Claimed(NamedTuple):
    job_id: str
    lease: int
    sequence: int
    owner: str


class Moved(NamedTuple):
    job_id: str
    asked: str
    lease: int | None
    sequence: int
    state: str | None


class Refused(NamedTuple):
    """A request without an answer, or with one that asks to come again."""

    node: str
    began: float
    ended: float
    reason: str


@dataclass
class Ledger:
    """What the server acknowledged. A request without an answer may have been carried out or not."""

    jobs: dict[str, Submitted] = field(default_factory=dict)
    claims: list[Claimed] = field(default_factory=list)
    moves: list[Moved] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    refused: list[Refused] = field(default_factory=list)


class Load:
    def __init__(
        self,
        nodes: Sequence[str],
        receiver_url: str,
        random: Random,
        submitters: int = SUBMITTERS,
        workers: int = WORKERS,
    ) -> None:
        self.ledger = Ledger()
        self._submitters = submitters
        self._workers = workers
        self._nodes = nodes
        self._hooks = [f"{receiver_url}/{name}" for name in ("one", "two", "three")]
        self._random = random
        self._wild = True  # while jobs are submitted, cancelled and failed
        self._working = True

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        unbounded = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(connector=unbounded, timeout=aiohttp.ClientTimeout(total=10)) as self._http,
            asyncio.TaskGroup() as group,
        ):
            for number in range(self._submitters):
                group.create_task(self._submit_on(number))
            for number in range(self._workers):
                group.create_task(self._work_on(f"worker-{number}"))
            for _ in range(MEDDLERS):
                group.create_task(self._meddle_on())
            yield

    async def settle(self, within: float) -> None:
        """Submit no more jobs and let workers only succeed, until every job has ended. Then check that old leases are refused: only
        the last one of a job may have ended it, and whoever says the same again is answered as before.
        """
        self._wild = False

        async def ended() -> bool:
            pages = [await self.call("GET", f"/engine/jobs?limit=1&state={state}") for state in ("queued", "running")]
            return all(page is not None and not page.body["jobs"] for page in pages)

        await eventually(ended, within, "every job has come to its end")
        self._working = False
        for late in self._random.sample(self.ledger.claims, min(100, len(self.ledger.claims))):
            reply = await self.insist("POST", f"/engine/jobs/{late.job_id}/succeed", {"lease": late.lease})
            last = max(each.lease for each in self.ledger.claims if each.job_id == late.job_id)
            again = reply.status == 200 and reply.body["state"] == "succeeded" and late.lease == last
            assert again or reply.body["code"].startswith("conflict"), reply

    async def answer(self, _: Delivery) -> int:
        """Answer like real receivers: most accept, some fail, some never answer."""
        if not self._wild:
            return 200
        status: int = self._pick(ANSWERS)
        return status or await hang(_)

    # one request ------------------------------------------------------------------------------------------------------

    async def call(self, method: str, path: str, body: object = None, **headers: str) -> Reply | None:
        """Send a request; return None if there is no answer, or one that does not say whether it was carried out."""
        node, began = self._random.choice(self._nodes), time.monotonic()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            async with self._http.request(method, node + path, json=body, headers=sent) as response:
                if response.status != 503:
                    text = await response.text()
                    assert response.status in (200, 202, 204, 409), f"{method} {path}: {response.status} {text}"
                    return Reply(response.status, await response.json() if text else None)
                reason = f"503, Retry-After: {response.headers.get('Retry-After')}"
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = repr(error)
        self.ledger.refused.append(Refused(node, began, time.monotonic(), reason))
        self.ledger.counts["unknown"] += 1
        await asyncio.sleep(self._random.uniform(0.02, 0.2))
        return None

    async def insist(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        while (reply := await self.call(method, path, body, **headers)) is None:
            pass
        return reply

    def _pick(self, weights: dict[Any, int]) -> Any:
        return self._random.choices(list(weights), list(weights.values()))[0]

    # callers ----------------------------------------------------------------------------------------------------------

    async def _submit_on(self, number: int) -> None:
        count = 0
        while self._wild:
            await self._submit(f"{number}-{count}")
            count += 1
            await asyncio.sleep(self._random.uniform(0, 0.1))

    async def _submit(self, key: str) -> None:
        url = self._random.choice([None, *self._hooks])
        on = self._random.choice([(), (), ("succeeded", "failed", "cancelled")])
        job = {
            "queue": self._random.choice(QUEUES),
            "payload": key,
            "priority": self._random.randrange(10),
            "max_attempts": self._random.choice((1, 3, 20)),
            "delay_seconds": self._random.choice((0, 0, 0, 0.3)),
            "webhook": None if url is None else {"url": url, "on": on},
        }
        again = self._random.random() < 0.1
        first = await self.insist("POST", "/engine/jobs", job, idempotency_key=key)
        self.ledger.jobs[first.body["job_id"]] = Submitted(key, url, on)
        if again:
            second = await self.insist("POST", "/engine/jobs", job, idempotency_key=key)
            assert second.body == first.body, f"the key {key} made two jobs"

    async def _meddle_on(self) -> None:
        while self._wild:
            await asyncio.sleep(self._random.uniform(0, 0.2))
            if self.ledger.jobs:
                job_id = self._random.choice(list(self.ledger.jobs)[-RECENT:])
                await self._move(job_id, self._random.choice(("cancel", "requeue")))

    # workers ----------------------------------------------------------------------------------------------------------

    async def _work_on(self, name: str) -> None:
        while self._working:
            limit = self._random.choice((1, 1, 1, 3))
            wanted = {"queues": QUEUES, "owner": name, "wait_seconds": 0.5, "limit": limit}
            reply = await self.call("POST", "/engine/claims", wanted)
            if reply is not None and reply.status == 200:
                jobs = [Claimed(job["id"], job["lease"], job["sequence"], name) for job in reply.body["jobs"]]
                self.ledger.claims += jobs
                for job in jobs:
                    await self._work(job)

    async def _work(self, job: Claimed) -> None:
        for _ in range(self._random.randrange(3) if self._wild else 0):
            await self._report(job, self._pick(STEPS))
        end = self._pick(ENDS) if self._wild else "succeed"
        if end == "vanish":
            return
        if end == "dawdle":  # beyond its lease: this must not affect the job's next owner
            await asyncio.sleep(LEASE_SECONDS * 1.6)
            end = "succeed"
        await self._report(job, end)

    async def _report(self, job: Claimed, move: str) -> None:
        details: dict[str, dict[str, object]] = {
            "advance": {"stage": self._random.choice(("one", "two"))},
            "note": {"message": "half way"},
            "succeed": {"result": {"lease": job.lease}},
            "retry": {"error": "it broke"},
            "park": {"waiting_for": "a part", "delay_seconds": self._random.choice((0, 0.3))},
            "fail": {"error": "it cannot be done"},
        }
        await self._move(job.job_id, move, {"lease": job.lease, **details.get(move, {})})

    async def _move(self, job_id: str, move: str, body: dict[str, Any] | None = None) -> None:
        lease = None if body is None else body["lease"]
        reply = await self.insist("POST", f"/engine/jobs/{job_id}/{move}", body)
        if reply.status == 409:
            self.ledger.counts["stale" if lease else "conflict"] += 1
        elif move != "beat":
            self.ledger.moves.append(Moved(job_id, move, lease, reply.body["sequence"], reply.body.get("state")))
