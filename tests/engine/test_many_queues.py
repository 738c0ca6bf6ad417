"""Claims by pattern, for every tenant or every name: they match the right queues, are woken like any other, and serve tenants in turn."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.engine.due import due_queues
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import Job, NewJob, QueueSettings, State
from chargehand.engine.moves import Broke, Change, Lapsed
from chargehand.engine.operation import Operation
from chargehand.engine.queue import Queue, Queues, Wanted, all_with
from chargehand.engine.store import Claim, Store
from chargehand.engine.wakeups import Wakeups
from chargehand.errors import StoreUnavailable
from tests.conftest import Clock
from tests.engine.given import AT_ONCE, LONG, POLICY, kept_up, until, until_met
from tests.store.given import a_job, opened

PATTERNS = ("k/acme/*", "k/*/render", "k/*/*")
OTHERS = ("k/other/send", "k/acme2/send", "other/acme/render", "kk/acme/render")


class LookingEngine(Engine):
    """Counts how often its claims looked for work, by name or by pattern."""

    looks = 0

    async def _claim_any(self, wanted: tuple[Wanted, ...], claim: Claim) -> tuple[Job, ...]:
        jobs = await super()._claim_any(wanted, claim)
        self.looks += 1
        return jobs


@pytest.fixture
def engine(store: Store, clock: Clock) -> LookingEngine:
    return LookingEngine(store, policy=POLICY, random=Random(0), now=clock)


def an_engine(store: Store) -> LookingEngine:
    return LookingEngine(store, policy=POLICY, random=Random(0))


def queue(text: str) -> Queue:
    return Queue(*text.split("/", 2))


def wanted(text: str) -> Wanted:
    """Parse `k/acme/render` as a queue; a star stands for any tenant or any name."""
    kind, tenant, name = text.split("/", 2)
    if "*" not in (tenant, name):
        return queue(text)
    return Queues(kind, None if tenant == "*" else tenant, None if name == "*" else name)


def means(text: str, other: str) -> bool:
    meant = wanted(text)
    assert isinstance(meant, Queues)
    return meant.has(queue(other))


def in_queue(text: str, **fields: Any) -> NewJob:
    return a_job(queue(text), **fields)


async def put(engine: Engine, *queues: str, **fields: Any) -> list[str]:
    return [(await engine.submit(in_queue(each, **fields))).job_id for each in queues]


async def claim(engine: Engine, *queues: str, limit: int = 1) -> list[Job]:
    return list(await engine.claim(tuple(map(wanted, queues)), "worker", 60, limit=limit))


async def waiting(engine: LookingEngine, *queues: str) -> "asyncio.Task[tuple[Job, ...]]":
    """Return a claim that has found nothing and waits."""
    before = engine.looks
    task = asyncio.create_task(engine.claim(tuple(map(wanted, queues)), "waiter", 60, wait_seconds=LONG))
    await until(lambda: engine.looks > before)
    assert not task.done()
    return task


async def woken(task: "asyncio.Task[tuple[Job, ...]]") -> list[str]:
    async with asyncio.timeout(AT_ONCE):
        return [job.id for job in await task]


# Patterns ---------------------------------------------------------------------------------------------------------------


TEXTS = st.text("ab/* ", max_size=4)


@given(TEXTS, TEXTS, TEXTS)
def test_a_queue_matches_the_patterns_of_its_tenant_its_name_and_its_kind(kind: str, tenant: str, name: str) -> None:
    meant = all_with(Queue(kind, tenant, name))
    assert meant == (Queues(kind, tenant), Queues(kind, None, name), Queues(kind))
    assert all(each.has(Queue(kind, tenant, name)) for each in meant)
    assert not Queues(kind, tenant).has(Queue(kind, tenant + "x", name))
    assert not Queues(kind, None, name).has(Queue(kind, tenant, name + "x"))
    assert not any(each.has(Queue(kind + "x", tenant, name)) for each in meant)


def test_a_queue_of_a_single_node_matches_no_pattern() -> None:
    own = Queue("k", "acme", "render", "node-1")
    assert all_with(own) == ()
    assert not any(each.has(own) for each in all_with(own.shared))
    assert own.shared == Queue("k", "acme", "render") != own


# Claims -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_a_pattern_claims_only_from_the_queues_that_it_matches(engine: Engine, pattern: str) -> None:
    [wanted] = await put(engine, "k/acme/render")
    others = await put(engine, *[other for other in OTHERS if not means(pattern, other)])
    assert [job.id for job in await claim(engine, pattern, limit=50)] == [wanted]
    assert await claim(engine, pattern, limit=50) == []
    for job_id in others:
        assert (await engine.get(job_id)).state is State.QUEUED


async def test_names_and_patterns_may_be_mixed_in_one_claim(engine: Engine) -> None:
    wanted = await put(engine, "k/acme/one", "k/acme/two", "k/other/three", "k/other/four")
    found = await claim(engine, "k/acme/*", "k/other/three", limit=50)
    assert {job.id for job in found} == set(wanted[:3])


async def test_for_one_tenant_all_names_are_served_by_priority_and_then_age(engine: Engine, clock: Clock) -> None:
    order = []
    for name, priority in [("a", 1), ("b", 5), ("c", 5), ("a", 9)]:
        order.append((-priority, clock.now, (await put(engine, f"k/acme/{name}", priority=priority))[0]))
        clock.advance(1)
    found = await claim(engine, "k/acme/*", limit=10)
    assert [job.id for job in found] == [job_id for *_, job_id in sorted(order)]


async def test_paused_and_full_queues_are_left_out(engine: Engine) -> None:
    await put(engine, "k/acme/paused", "k/acme/full", "k/acme/full", "k/acme/open")
    await engine.set_queue(QueueSettings(queue("k/acme/paused"), paused=True))
    await engine.set_queue(QueueSettings(queue("k/acme/full"), max_running=1))
    for pattern in PATTERNS[::2]:
        found = await claim(engine, pattern, limit=10)
        assert sorted(str(job.queue) for job in found) == (
            ["k/acme/full", "k/acme/open"] if pattern == PATTERNS[0] else []
        )


# In turn ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["k/*/render", "k/*/*"])
async def test_a_tenant_with_one_job_is_served_by_the_second_claim_beside_one_with_a_thousand(
    engine: Engine, pattern: str
) -> None:
    await asyncio.gather(*[engine.submit(in_queue("k/many/render", priority=9)) for _ in range(1000)])
    [one] = await put(engine, "k/few/render")
    tenants = [(await claim(engine, pattern))[0].tenant for _ in range(4)]
    assert sorted(tenants[:2]) == ["few", "many"]
    assert tenants[2:] == ["many", "many"]
    assert (await engine.get(one)).state is State.RUNNING


async def test_a_tenant_that_comes_later_is_served_next(engine: Engine) -> None:
    await put(engine, *["k/many/render"] * 20)
    assert {job.tenant for _ in range(5) for job in await claim(engine, "k/*/*")} == {"many"}
    await put(engine, "k/late/render")
    assert (await claim(engine, "k/*/*"))[0].tenant == "late"


async def test_one_claim_of_several_jobs_serves_the_tenants_in_turn(engine: Engine) -> None:
    for tenant, count in [("a", 50), ("b", 2), ("c", 50)]:
        await put(engine, *[f"k/{tenant}/render"] * count)
    found = await claim(engine, "k/*/*", limit=12)
    counts = {tenant: sum(job.tenant == tenant for job in found) for tenant in "abc"}
    assert counts["b"] == 2
    assert sorted((counts["a"], counts["c"])) == [5, 5]


async def test_parallel_claims_serve_the_tenants_evenly(engine: Engine) -> None:
    """Parallel claims do not all go to the same tenant."""
    for tenant in ("a", "b", "c", "d"):
        await put(engine, *[f"k/{tenant}/render"] * 20)
    found = await asyncio.gather(*[claim(engine, "k/*/render") for _ in range(40)])
    counts = [sum(job.tenant == tenant for jobs in found for job in jobs) for tenant in "abcd"]
    assert counts == [10] * 4


async def test_a_claim_gets_as_many_jobs_as_it_wants_although_others_take_some_first(engine: Engine) -> None:
    for tenant in ("a", "b"):
        await put(engine, *[f"k/{tenant}/render"] * 30)
    found = await asyncio.gather(*[claim(engine, "k/*/*", limit=10) for _ in range(6)])
    ids = [job.id for jobs in found for job in jobs]
    assert len(ids) == len(set(ids)) == 60


# Waiting ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_a_waiting_pattern_is_woken_by_a_job_that_it_matches(engine: LookingEngine, pattern: str) -> None:
    task = await waiting(engine, pattern)
    await put(engine, *[other for other in OTHERS if not means(pattern, other)])
    assert not task.done()
    assert await put(engine, "k/acme/render") == await woken(task)
    assert engine.wakeups.waiting == 0


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("back", ["retry", "park", "requeue", "resume", "room"])
async def test_a_waiting_pattern_is_woken_by_a_job_that_comes_back(
    engine: LookingEngine, pattern: str, back: str
) -> None:
    name = "k/acme/render"
    ids = await put(engine, name, max_attempts=2)
    [job] = await claim(engine, name)
    if back in ("requeue", "resume"):
        await engine.change(Change(Guard.held(job), "fail"))
    if back == "resume":
        await engine.set_queue(QueueSettings(job.queue, paused=True))
        await engine.requeue(Guard.seen(job))
    elif back == "room":
        await engine.set_queue(QueueSettings(job.queue, max_running=1))
        ids = await put(engine, name)
    task = await waiting(engine, pattern)
    match back:
        case "retry":
            await engine.broke(Guard.held(job), Broke("broke", delay_seconds=0))
        case "park":
            await engine.park(Guard.held(job), "")
        case "requeue":
            await engine.requeue(Guard.seen(job))
        case "resume":
            await engine.set_queue(QueueSettings(job.queue))
        case "room":
            await engine.succeed(Guard.held(job), b"1")
    assert await woken(task) == ids


async def test_one_job_wakes_one_claim_that_waits_by_name_or_pattern(engine: LookingEngine) -> None:
    tasks = [await waiting(engine, each) for each in ("k/acme/render", *PATTERNS)]
    for left in (3, 2, 1, 0):
        await put(engine, "k/acme/render")
        await until(lambda left=left: sum(not task.done() for task in tasks) == left)  # type: ignore[misc]
        assert engine.wakeups.waiting == left
    assert all(len(task.result()) == 1 for task in tasks)


async def test_a_wake_up_that_a_cancelled_pattern_did_not_use_goes_to_the_next(
    engine: LookingEngine, store: Store
) -> None:
    wide, narrow = await waiting(engine, "k/*/*"), await waiting(engine, "k/acme/*")
    job = in_queue("k/acme/render")
    await store.write(job)
    engine.wakeups.wake(job.queue)
    assert engine.wakeups.waiting == 1
    narrow.cancel()  # the claim that was woken is cancelled before it can look
    assert await woken(wide) == [job.id]
    await asyncio.gather(narrow, return_exceptions=True)


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_a_delayed_job_is_claimed_by_pattern_when_it_is_due(store_url: str, pattern: str) -> None:
    async with opened(store_url) as store:
        engine = an_engine(store)
        async with kept_up(engine, engine__poll_seconds=30):
            task = await waiting(engine, pattern)
            [job_id] = await put(engine, "k/acme/render", delay_seconds=0.3)
            assert await woken(task) == [job_id]


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_a_delayed_job_from_before_is_found_by_polling(store_url: str, pattern: str) -> None:
    async with opened(store_url) as store:
        engine = an_engine(store)
        [job_id] = await put(engine, "k/acme/render", delay_seconds=0.3)
        task = await waiting(engine, pattern)
        async with kept_up(engine, engine__poll_seconds=0.1):
            assert await woken(task) == [job_id]


async def test_polling_wakes_as_many_claims_as_there_are_jobs(store: Store, clock: Clock) -> None:
    """Jobs without a wake-up, as another node's may be: only polling finds them."""
    engine = LookingEngine(store, policy=POLICY, random=Random(0), now=clock)
    tasks = [await waiting(engine, pattern) for pattern in (*PATTERNS, "k/acme/render", "k/other/*")]
    for text in ("k/acme/render", "k/acme/render", "k/other/send"):
        await store.write(in_queue(text))
    for _ in range(3):
        await engine.look_for_due()
        await asyncio.sleep(0)
    await until(lambda: sum(task.done() for task in tasks) == 3)
    await until(lambda: engine.wakeups.waiting == 2)  # a claim that was woken and found nothing waits again
    engine.drain()
    assert sum(len(jobs) for jobs in await asyncio.gather(*tasks)) == 3


async def test_polling_for_patterns_finds_each_matching_queue_once_and_no_other(store: Store, clock: Clock) -> None:
    engine = LookingEngine(store, policy=POLICY, random=Random(0), now=clock)
    await put(engine, "k/acme/render", "k/acme/send", "k/other/send", delay_seconds=5)
    due = await due_queues(store, [*map(wanted, ("k/*/render", "k/acme/*", "k/acme/render"))], 10)
    assert sorted((str(each.queue), each.ready) for each in due if each.next_at) == [
        ("k/acme/render", 0),
        ("k/acme/send", 0),
    ]


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_a_job_at_one_node_wakes_a_pattern_at_another(postgres_url: str, pattern: str) -> None:
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(postgres_url)) for _ in range(2)]
        a, b = map(an_engine, stores)
        await until_met(*stores)  # a hint before that is lost, and nothing polls here
        task = await waiting(b, pattern)
        assert await put(a, "k/acme/render") == await woken(task)


# Cancelling -------------------------------------------------------------------------------------------------------------


class StuckStore:
    """A store whose first claims succeed and later ones hang or fail, as if the database went away."""

    def __init__(self, store: Store, good: int, error: Exception | None = None) -> None:
        self._store = store
        self._good = good
        self._error = error
        self.stuck = asyncio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def write(self, operation: Operation[Any]) -> object:
        self._good -= isinstance(operation, Claim)
        if self._good >= 0 or not isinstance(operation, Claim):
            return await self._store.write(operation)
        self.stuck.set()
        if self._error is not None:
            raise self._error
        return await asyncio.get_running_loop().create_future()


async def test_a_claim_cancelled_between_two_tenants_gives_its_jobs_back(store: Store, clock: Clock) -> None:
    stuck = StuckStore(store, good=2)
    engine = LookingEngine(stuck, policy=POLICY, now=clock)  # type: ignore[arg-type]
    ids = await put(engine, "k/a/x", "k/b/x", "k/c/x")
    task = asyncio.create_task(claim(engine, "k/*/*", limit=3))
    await stuck.stuck.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: not engine._parking)
    jobs = [await engine.get(job_id) for job_id in ids]
    assert [(job.state, job.attempt) for job in jobs] == [(State.QUEUED, 0)] * 3


async def test_a_claim_that_fails_between_two_tenants_returns_the_jobs_that_it_has(store: Store, clock: Clock) -> None:
    stuck = StuckStore(store, good=2, error=StoreUnavailable("gone"))
    engine = LookingEngine(stuck, policy=POLICY, now=clock)  # type: ignore[arg-type]
    await put(engine, "k/a/x", "k/b/x", "k/c/x")
    assert len(await claim(engine, "k/*/*", limit=3)) == 2
    with pytest.raises(StoreUnavailable):
        await claim(engine, "k/*/*", limit=3)


async def test_waiting_patterns_are_counted_right() -> None:
    wakeups = Wakeups()
    for texts in [("k/a/*",), ("k/a/*", "k/*/b"), ("k/a/b", "k/*/*")] * 2:
        queues = tuple(map(wanted, texts))
        with wakeups.line_up(queues), wakeups.line_up(queues):
            pass
    assert (wakeups.waiting, wakeups._many) == (0, 0)
    with wakeups.line_up((Queues("k", "a"),)) as waiter:
        wakeups.wake(queue("k/a/b"))
        assert await waiter.wait(0) is True
        assert wakeups._many == 0
    assert wakeups._many == 0


# A door's own decider ---------------------------------------------------------------------------------------------------


class ItsOwn:
    """Decides to retry everything in 7 seconds."""

    def __init__(self) -> None:
        self.decided: list[Broke | Lapsed] = []

    async def __call__(self, job: Job, outcome: Broke | Lapsed) -> Change:
        self.decided.append(outcome)
        until = job.lease_until if isinstance(outcome, Lapsed) else None
        return Change(Guard.held(job), "retry", lease_until=until, delay_seconds=7, error="decided")


@pytest.mark.parametrize("outcome", [Broke("broken"), Lapsed()], ids=["broke", "lapsed"])
async def test_a_door_decides_about_its_own_jobs_and_no_others(
    engine: Engine, clock: Clock, outcome: Broke | Lapsed
) -> None:
    decider = ItsOwn()
    engine.decide_by("k", decider)
    queues: Sequence[str] = ("k/acme/render", "other/acme/render")
    jobs = []
    for queue in queues:
        await put(engine, queue, max_attempts=1)
        jobs += await claim(engine, queue)
    if isinstance(outcome, Broke):
        for job in jobs:
            await engine.broke(Guard.held(job), outcome)
    else:
        clock.advance(61)
        assert await engine.lapse_all() == 2
    mine, other = [await engine.get(job.id) for job in jobs]
    assert (mine.state, mine.error, mine.run_at) == (State.QUEUED, "decided", clock.now + 7_000_000)
    assert other.state is State.FAILED
    assert decider.decided == [outcome]


async def test_a_beat_after_the_decision_keeps_the_job(engine: Engine, clock: Clock) -> None:
    decider = ItsOwn()
    engine.decide_by("k", decider)
    await put(engine, "k/acme/render")
    [job] = await claim(engine, "k/*/*")
    clock.advance(61)
    await engine.beat(Guard.held(job), 60)
    assert await engine.lapse(job) is None
    assert (await engine.get(job.id)).state is State.RUNNING
