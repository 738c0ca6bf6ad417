"""No two workers hold one task: 64 claimers at once, over every way to claim, on both stores."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import count
from random import Random
from typing import Any, NamedTuple

import aiohttp
import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from chargehand.doors.tasks.names import BASE, KIND, task_queue
from chargehand.doors.tasks.views import CLAIMED
from chargehand.engine.guard import Guard
from chargehand.engine.job import FINAL, LEASE_RANDOM_BITS
from chargehand.engine.moves import Broke, Change
from chargehand.engine.queue import Queues
from chargehand.engine.reads import JobFilter
from chargehand.errors import Conflict
from tests.api.serving import Api, serving, until
from tests.tasks.calling import SECRET, WORK, Caller, a_jwt, calling

CLAIMERS = 64
FLEETS = 4  # names that claimers share, as processes with the same token do: only the lease distinguishes them
COMMANDS = ("render", "send", "sum up")
LONG = 60.0  # a lease that outlasts the test
PATIENCE = 30.0
_tenants = count()


class Plan(NamedTuple):
    tasks: int
    max_attempts: int
    seed: int
    # For how many tasks out of a hundred a claimer does each of these.
    fail: int
    nack: int
    abandon: int
    vanish: int


plans = st.builds(
    Plan,
    tasks=st.integers(1, 120),
    max_attempts=st.integers(1, 4),
    seed=st.integers(0, 1_000_000),
    fail=st.integers(0, 20),
    nack=st.integers(0, 30),
    abandon=st.integers(0, 20),
    vanish=st.integers(0, 20),
)


class Held(NamedTuple):
    id: str
    lease: int
    attempts: int


class Storm:
    """One run: its claimers, the leases they got, and the reports that the server accepted."""

    def __init__(self, world: "World", plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.random = Random(plan.seed)
        self.tenant = f"tenant-{next(_tenants)}"
        self.created: list[str] = []
        self.seen: set[tuple[str, int]] = set()
        self.in_hand: dict[str, int] = {}  # task -> lease, for leases that do not lapse during the test
        self.ends: Counter[str] = Counter()
        self.reporting = 0  # reports whose answer has not come yet
        self.counts: Counter[str] = Counter()

    def caller(self, name: str) -> Caller:
        claims: dict[str, Any] = {"tid": self.tenant, "eventTypes": ["*"]}
        token = a_jwt(name, scope=f"{WORK} codeq:produce", **claims)
        return Caller(self.world.api.of(token))

    # creating

    async def produce(self) -> None:
        caller = self.caller("producer")
        left = self.plan.tasks
        while left:
            some = min(left, self.random.choice((1, 1, 5, 20)))
            bodies = [self._body() for _ in range(some)]
            if some == 1:
                self.created.append((await caller.create(**bodies[0]))["id"])
            else:
                results = (await caller.post("/tasks/batch", {"tasks": bodies})).good()["results"]
                self.created += [each["task"]["id"] for each in results]
            left -= some

    def _body(self) -> dict[str, Any]:
        return {
            "command": self.random.choice(COMMANDS),
            "payload": {"n": 1},
            "priority": self.random.randrange(10),
            "maxAttempts": self.plan.max_attempts,
            "delaySeconds": self.random.choice((0, 0, 0, 0.05)),
        }

    # claiming

    async def claim_over_http(self, name: str) -> None:
        caller, batch = self.caller(name), self.random.random() < 0.5
        while True:
            lease, commands = self._lease(), self.random.choice([None, COMMANDS, COMMANDS[:1], COMMANDS[1:]])
            body = {"leaseSeconds": lease, "commands": commands}
            if batch:
                answer = await caller.post("/tasks/claim/batch", {**body, "count": self.random.randint(1, 10)})
                found = answer.good()["tasks"] if answer.status == 200 else []
            else:
                answer = await caller.post("/tasks/claim", {**body, "waitSeconds": 0.2})
                found = [answer.good()] if answer.status == 200 else []
            await self._work([_held(task) for task in found], lease, self._reports(caller))
            if not found:
                await asyncio.sleep(0.02)

    async def claim_by_stream(self, name: str) -> None:
        caller = self.caller(name)
        api = caller.api
        while True:
            lease, bound = self._lease(), self.random.randint(1, 8)
            url, body = f"{api.url}{BASE}/tasks/claim/stream", {"leaseSeconds": lease, "maxInFlight": bound}
            async with api.session.post(url, json=body, headers=api._headers) as response:
                async for line in response.content:
                    if line != b"\n":
                        held = _held(msgspec.json.decode(line))
                        await self._work([held], lease, self._reports(caller))
                    if lease != LONG and self.random.random() < 0.2:
                        break  # the tasks that were sent and not read lapse

    async def claim_in_process(self, name: str) -> None:
        engine = self.world.engine
        every = (Queues(KIND, self.tenant),)
        while True:
            lease = self._lease()
            named = tuple(task_queue(self.tenant, command) for command in COMMANDS)
            jobs = await engine.claim(
                self.random.choice((every, named)), name, lease, limit=self.random.randint(1, 4), wait_seconds=0.2,
                stage=CLAIMED,
            )  # fmt: skip
            await self._work([Held(job.id, job.lease, job.attempt) for job in jobs], lease, self._moves)

    def _lease(self) -> float:
        return self.random.choice((LONG, LONG, LONG, 0.1))

    # working

    async def _work(self, found: list[Held], lease: float, report: "Report") -> None:
        for held in found:
            assert (held.id, held.lease) not in self.seen, "given out twice"
            self.seen.add((held.id, held.lease))
            assert 1 <= held.attempts <= self.plan.max_attempts
            # A lease that lapsed while its answer was on the way may arrive after the lease that followed it.
            other = self.in_hand.get(held.id)
            assert other is None or (lease != LONG and held.lease < other), "in two hands"
            if lease == LONG:
                self.in_hand[held.id] = held.lease
        for held in found:
            verb = self._verb(lease)
            if self.random.random() < 0.2:
                # Some work so long that the late report of an earlier claimer arrives meanwhile.
                await asyncio.sleep(self.random.choice((0.005, 0.3 if lease == LONG else 0.01)))
            if verb == "vanish":
                await asyncio.sleep(self.random.choice((0, 0.15)))
                verb = self.random.choice(("complete", "nack", "nothing"))  # late: the lease may have lapsed
                if verb == "nothing":
                    self.counts["vanished"] += 1
                    continue
            # Forget the lease before reporting: another claimer may hold the task before the answer arrives.
            if lease == LONG:
                assert self.in_hand.pop(held.id) == held.lease
            self.reporting += 1
            ended = await report(held, verb)
            self.reporting -= 1
            self.counts[f"{verb}: {ended}"] += 1
            assert ended is not None or lease != LONG, f"{verb} was refused to the one who has it"
            self.ends[held.id] += ended is True

    def _verb(self, lease: float) -> str:
        plan, drawn = self.plan, self.random.randrange(100)
        for verb, share in [("fail", plan.fail), ("nack", plan.nack), ("abandon", plan.abandon)]:
            if drawn < share:
                return verb
            drawn -= share
        return "vanish" if lease != LONG and drawn < plan.vanish * 5 else "complete"

    def _reports(self, caller: Caller) -> "Report":
        async def report(held: Held, verb: str) -> bool | None:
            """Return whether the report ended the task, or None if it was refused."""
            task = {"id": held.id}
            if verb == "nack":
                answer = await caller.on(task, "nack", delaySeconds=0, lease=held.lease)
            elif verb == "abandon":
                answer = await caller.on(task, "abandon", lease=held.lease)
            else:
                status = "COMPLETED" if verb == "complete" else "FAILED"
                body = {"status": status, "result": {}, "error": "no", "lease": held.lease}
                answer = await caller.on(task, "result", **body)
            if answer.status == 409:
                return None
            said = answer.good()
            return verb in ("complete", "fail") or said["status"] == "dlq"

        return report

    async def _moves(self, held: Held, verb: str) -> bool | None:
        engine, guard = self.world.engine, Guard(held.id, self.tenant, KIND, held.lease, None)
        try:
            if verb == "nack":
                moved = await engine.broke(guard, Broke("broken", delay_seconds=0))
            else:
                name = {"complete": "succeed", "fail": "fail", "abandon": "park"}[verb]
                moved = await engine.change(Change(guard, name, result=b"{}"))
        except Conflict:
            return None
        return moved.state in FINAL

    # the whole run

    async def run(self) -> None:
        ways = [self.claim_over_http] * 3 + [self.claim_by_stream] + [self.claim_in_process]
        claimers = [asyncio.create_task(ways[n % len(ways)](f"fleet-{n % FLEETS}")) for n in range(CLAIMERS)]
        sweeper = asyncio.create_task(self._sweep())
        finishing = asyncio.create_task(self._finish())
        try:
            async with asyncio.timeout(PATIENCE):
                done, _ = await asyncio.wait({finishing, sweeper, *claimers}, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
            assert finishing in done
        finally:
            for task in (*claimers, sweeper, finishing):
                task.cancel()
            await asyncio.gather(*claimers, sweeper, finishing, return_exceptions=True)
        await self._check()

    async def _finish(self) -> None:
        await self.produce()

        async def over() -> bool:
            counted = await self.world.engine.jobs.count_queues()
            queues = [each for each in counted if (each.queue.kind, each.queue.tenant) == (KIND, self.tenant)]
            return not queues and not self.reporting

        await until(over, PATIENCE)

    async def _sweep(self) -> None:
        """Lapse leases more often than the server does and beside it, as another node would."""
        while True:
            await self.world.engine.lapse_all()
            await asyncio.sleep(0.02)

    async def _check(self) -> None:
        store = self.world.engine.jobs
        jobs = {job.id: job for job in await store.list_jobs(JobFilter(self.tenant, KIND, limit=1000))}
        assert sorted(jobs) == sorted(self.created)
        assert len(self.created) == self.plan.tasks
        for job in jobs.values():
            events = await store.list_events(job.id)
            ends = [event for event in events if event.state in FINAL]
            assert len(ends) == 1
            assert ends[0] is events[-1]
            assert 1 <= job.attempt <= job.max_attempts
            claims = [event for event in events if event.move == "claim"]
            assert len(claims) == job.claims
            granted = [lease >> LEASE_RANDOM_BITS for job_id, lease in self.seen if job_id == job.id]
            assert len(set(granted)) == len(granted)
            assert set(granted) <= set(range(1, job.claims + 1))
            # Either one accepted report ended the task, or the sweep did, and then no report was accepted.
            assert self.ends[job.id] == (0 if ends[0].error == "LEASE_EXPIRED" else 1)


Report = Callable[[Held, str], Awaitable[bool | None]]


def _held(task: dict[str, Any]) -> Held:
    return Held(task["id"], task["lease"], task["attempts"])


class World:
    """A server and a client for all examples; each example has its own tenant."""

    def __init__(self, store_url: str) -> None:
        self._url = store_url
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()

    def __enter__(self) -> "World":
        self._runner.run(self._open())
        return self

    async def _open(self) -> None:
        config = {"auth.jwt_secret": SECRET, "tasks.backoff_base_seconds": 0}
        server = await self._stack.enter_async_context(serving(self._url, config))
        connector = aiohttp.TCPConnector(limit=0)
        session = await self._stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        self.engine = server.engine
        self.api = Api(server.url, session)

    def run(self, storm: Storm) -> None:
        self._runner.run(storm.run())

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


def test_no_two_claimers_hold_one_task_and_each_task_ends_once(store_url: str) -> None:
    counts: Counter[str] = Counter()

    # No shrinking: a failure is a race, and a smaller example would not show it again.
    @settings(
        max_examples=8,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(plans)
    def every(plan: Plan) -> None:
        storm = Storm(world, plan)
        world.run(storm)
        counts.update(storm.counts)

    with World(store_url) as world:
        every()
    print(dict(counts))
    assert counts["complete: True"]


async def test_a_fleet_for_all_tenants_serves_the_tenants_in_turn(store_url: str) -> None:
    """One tenant has a thousand tasks, another has one: the second claim gets that one."""
    async with calling(store_url) as shop:
        bodies = [{"command": "render", "payload": {"n": 1}, "priority": 9}] * 100
        for _ in range(10):
            (await shop.producer.post("/tasks/batch", {"tasks": bodies})).good()
        await shop.other_producer.create("render")
        for commands in ([], ["render"]):
            fleet = shop.by(a_jwt("fleet", tid="fleet", scope=f"{WORK} codeq:all-tenants", eventTypes=["*"]))
            tenants = [(await fleet.claim(*commands))["tenantId"] for _ in range(3)]
            assert sorted(tenants[:2]) == ["acme", "globex"]
            assert tenants[2] == "acme"
            await shop.other_producer.create("render")
