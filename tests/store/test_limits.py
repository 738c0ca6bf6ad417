"""Limits of a queue and of each key in it: how many run at once, how many start in a time, and whose turn it is."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from random import Random

import pytest

from chargehand.engine.job import SECOND, QueueLimits, QueueSettings, Rate, SetQueue
from chargehand.engine.moves import Change
from chargehand.engine.reads import JobFilter
from chargehand.engine.store import LOOK_ON, Store
from chargehand.store import limits as limiting
from tests.conftest import Clock
from tests.store.given import a_queue, claim, claimed_ids, get, move, opened, seen, sql, submit, submit_many, take_one


async def limit(store: Store, *, max_running: int | None = None, paused: bool = False, **limits: object) -> None:
    queue_limits = QueueLimits(**limits)  # type: ignore[arg-type]
    await store.write(SetQueue(QueueSettings(a_queue("q"), paused, max_running, queue_limits)))


async def keys_of(store: Store, limit: int = 1) -> list[str]:
    return [job.limit_key for job in (await claim(store, limit=limit)).jobs]


async def test_no_more_jobs_of_a_queue_start_in_a_time_than_its_rate_allows(store: Store, clock: Clock) -> None:
    job_ids = await submit_many(store, 6)
    await limit(store, rate=Rate(2, 10))
    assert await claimed_ids(store, limit=1) == job_ids[:1]
    clock.advance(4)
    claimed = await claim(store, limit=5)
    assert [job.id for job in claimed.jobs] == job_ids[1:2]
    clock.advance(5)
    nothing = await claim(store, limit=5)
    assert (nothing.jobs, nothing.later_at) == ((), clock.now + 1 * SECOND)
    clock.advance(1)
    assert await claimed_ids(store, limit=5) == job_ids[2:3]
    clock.advance(4)
    assert await claimed_ids(store, limit=5) == job_ids[3:4]


async def test_a_job_that_ended_still_counts_for_the_rate(store: Store, clock: Clock) -> None:
    await submit_many(store, 3)
    await limit(store, rate=Rate(1, 10), max_running=5)
    await move(store, await take_one(store), "succeed")
    assert await claimed_ids(store) == []
    clock.advance(10)
    assert len(await claimed_ids(store, limit=5)) == 1


async def test_each_key_runs_no_more_at_once_than_allowed(store: Store) -> None:
    for key in ("a", "a", "a", "b", "b", "b"):
        await submit(store, limit_key=key)
    await limit(store, key_max_running=2)
    first = (await claim(store, limit=6)).jobs
    assert sorted(job.limit_key for job in first) == ["a", "a", "b", "b"]
    assert await claimed_ids(store, limit=6) == []
    await move(store, next(job for job in first if job.limit_key == "b"), "park", delay_seconds=3600)
    assert await keys_of(store, limit=6) == ["b"]


async def test_each_key_starts_no_more_in_a_time_than_allowed(store: Store, clock: Clock) -> None:
    for key in ("a", "a", "a", "b"):
        await submit(store, limit_key=key)
    await limit(store, key_rate=Rate(1, 10))
    assert sorted(await keys_of(store, limit=6)) == ["a", "b"]
    nothing = await claim(store, limit=6)
    assert (nothing.jobs, nothing.later_at) == ((), clock.now + 10 * SECOND)
    clock.advance(10)
    assert await keys_of(store, limit=6) == ["a"]


async def test_the_limits_of_the_queue_hold_beside_those_of_its_keys(store: Store, clock: Clock) -> None:
    for number in range(9):
        await submit(store, limit_key=f"key-{number}")
    await limit(store, key_max_running=1, max_running=5, rate=Rate(3, 10))
    assert len(await claimed_ids(store, limit=9)) == 3
    clock.advance(10)
    assert len(await claimed_ids(store, limit=9)) == 2
    assert await claimed_ids(store, limit=9) == []


async def test_keys_take_turns_whoever_has_more_or_older_jobs(store: Store) -> None:
    for key in [*"aaaaaaaa", *"bbb", "c"]:
        await submit(store, limit_key=key)
    await limit(store, key_max_running=100)
    served = [key for _ in range(8) for key in await keys_of(store)]
    assert served == ["a", "b", "c", "a", "b", "a", "b", "a"]


async def test_jobs_without_a_key_have_their_turn_while_others_wait_too(store: Store) -> None:
    for key in [*"aaaa", *"bbbb", *[""] * 3]:
        await submit(store, limit_key=key)
    await limit(store, key_max_running=100)
    served = [key for _ in range(7) for key in await keys_of(store)]
    assert served == ["a", "b", "", "a", "b", "", "a"]


async def test_several_jobs_at_once_are_dealt_by_turns_too(store: Store) -> None:
    for key in [*"aaaaaaaa", *"bbb", "c"]:
        await submit(store, limit_key=key)
    await limit(store, key_max_running=100)
    assert Counter(await keys_of(store, limit=5)) == Counter("aabbc")
    assert Counter(await keys_of(store, limit=5)) == Counter("aaaab")


async def test_of_a_key_the_most_urgent_goes_first_and_then_the_oldest(store: Store, clock: Clock) -> None:
    ids = {}
    for name, priority, delay in (("low", 0, 0), ("later", 9, 60), ("high", 5, 0), ("low too", 0, 0)):
        clock.advance(1)
        ids[await submit(store, limit_key="a", priority=priority, delay_seconds=delay)] = name
    await limit(store, key_max_running=100)
    assert [ids[job_id] for _ in range(4) for job_id in await claimed_ids(store)] == ["high", "low", "low too"]


async def test_jobs_without_a_key_have_a_turn_and_no_limit_of_a_key(store: Store) -> None:
    for key in ("a", "a", "", "", "", "b"):
        await submit(store, limit_key=key)
    await limit(store, key_max_running=1)
    assert Counter(await keys_of(store, limit=9)) == {"a": 1, "b": 1, "": 3}


async def test_jobs_without_a_key_are_found_behind_those_of_a_key_that_may_not_start(store: Store) -> None:
    await asyncio.gather(*[submit(store, limit_key="a") for _ in range(1200)])
    keyless = await submit(store)
    await limit(store, key_max_running=1)
    assert await keys_of(store) == ["a"]
    assert await claimed_ids(store) == [keyless]


async def test_without_limits_of_keys_the_order_is_that_of_any_queue(store: Store) -> None:
    jobs = [await submit(store, limit_key=key) for key in ("b", "b", "a")]
    await limit(store, max_running=100)
    assert await claimed_ids(store, limit=3) == jobs


async def test_a_claim_of_several_queues_keeps_the_limits_of_each(store: Store) -> None:
    for key in ("a", "a", "b"):
        await submit(store, limit_key=key)
    free = await submit_many(store, 3, queue="free")
    await limit(store, key_max_running=1)
    claimed = (await claim(store, "free", "q", limit=9)).jobs
    assert Counter(job.limit_key for job in claimed) == {"a": 1, "b": 1, "": 3}
    assert [job.id for job in claimed if job.queue.name == "free"] == free


async def test_a_key_keeps_its_turn_if_a_claim_of_several_queues_takes_another_job(store: Store) -> None:
    for key in "abab":
        await submit(store, limit_key=key)
    await submit(store, queue="urgent", priority=9)
    await limit(store, key_max_running=100)
    both = [(await claim(store, "q", "urgent")).jobs[0] for _ in range(4)]
    assert [(job.queue.name, job.limit_key) for job in both] == [("urgent", ""), ("q", "a"), ("q", "b"), ("q", "a")]


async def test_in_a_claim_of_several_queues_the_turns_say_which_job_of_a_queue_starts(store: Store) -> None:
    for key, priority in (("a", 0), ("b", 5), ("c", 5)):
        await submit(store, limit_key=key, priority=priority)
    await submit_many(store, 9, queue="other", priority=3)
    await limit(store, key_max_running=100)
    first = (await claim(store, "q", "other", limit=3)).jobs
    assert Counter((job.queue.name, job.limit_key) for job in first) == {("q", "a"): 1, ("q", "b"): 1, ("other", ""): 1}
    assert await keys_of(store) == ["c"]


async def test_a_key_is_found_however_many_before_it_may_not_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiting, "KEYS_AT_ONCE", 3)
    keys = [f"key-{number:02}" for number in range(20)]
    for key in keys:
        await submit_many(store, 2, limit_key=key)
    await limit(store, key_max_running=1)
    claimed = (await claim(store, limit=40)).jobs
    assert sorted(job.limit_key for job in claimed) == keys
    [one] = [job for job in claimed if job.limit_key == "key-17"]
    await move(store, one, "succeed")
    assert await keys_of(store) == ["key-17"]


async def test_a_claim_looks_at_so_many_keys_and_the_next_one_goes_on_behind_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiting, "KEYS_AT_ONCE", 3)
    monkeypatch.setattr(limiting, "MOST_KEYS", 10)
    for number in range(25):
        await submit_many(store, 2, limit_key=f"key-{number:02}")
    await limit(store, key_max_running=1)
    assert sum([len(await keys_of(store, limit=30)) for _ in range(4)]) == 25
    free = await submit(store, limit_key="key-99")
    for _ in range(6):
        claimed = await claim(store)
        if claimed.jobs:
            break
        assert claimed.later_at == LOOK_ON
    assert [job.id for job in claimed.jobs] == [free]


async def test_limits_are_read_as_they_were_set_and_a_queue_without_any_has_no_settings(store: Store) -> None:
    limits = QueueLimits(Rate(5, 0.5), 3, Rate(10, 60))
    settings = QueueSettings(a_queue("q"), False, None, limits)
    await store.write(SetQueue(settings))
    assert await store.list_queue_settings() == [settings]
    await store.write(SetQueue(QueueSettings(a_queue("q"))))
    assert await store.list_queue_settings() == []


async def test_starts_are_forgotten_when_they_count_no_more(store: Store, store_url: str, clock: Clock) -> None:
    await submit_many(store, 5, limit_key="a")
    await limit(store, rate=Rate(2, 10), key_rate=Rate(2, 5))
    await claim(store, limit=2)
    clock.advance(10)
    await claim(store, limit=1)
    assert await sql(store_url, "SELECT COUNT(*) FROM limit_starts") == [(1,)]
    await limit(store, key_max_running=5)
    assert await sql(store_url, "SELECT COUNT(*) FROM limit_starts") == [(0,)]


async def test_a_waiting_job_says_which_limit_it_waits_for(store: Store, clock: Clock) -> None:
    await submit_many(store, 3, limit_key="acme")
    waiting = await get(store, await submit(store, limit_key="acme"))
    keyless = await get(store, await submit(store))
    assert (await store.waiting(waiting)).held_by == ""
    await limit(store, max_running=9)
    assert (await store.waiting(waiting)).held_by == ""
    await claim(store, limit=2)
    for limits, why, of_keyless in (
        ({"paused": True}, "queue paused", "queue paused"),
        ({"max_running": 2}, "limit: 2 of this queue at once", "limit: 2 of this queue at once"),
        ({"key_max_running": 2}, "limit: 2 of the key acme at once", ""),
        ({"key_max_running": 3}, "", ""),
    ):
        await limit(store, **limits)
        assert ((await store.waiting(waiting)).held_by, (await store.waiting(keyless)).held_by) == (why, of_keyless)
    await limit(store, key_rate=Rate(1, 60))
    await claim(store)
    assert (await store.waiting(waiting)).held_by == "limit: 1 in 60 s of the key acme"
    await limit(store, rate=Rate(1, 0.5))
    assert (await store.waiting(waiting)).held_by == "limit: 1 in 0.5 s of this queue"
    clock.advance(1)
    assert (await store.waiting(waiting)).held_by == ""


# the whole history --------------------------------------------------------------------------------------------------------

KEYS = {"big": 60, "small": 12, "tiny": 2, "": 10}
ROUNDS = 3
ANY_ENDS = ("succeed", "succeed", "succeed", "retry", "park", "lapse", "fail and requeue", "cancel and requeue")


async def test_three_nodes_together_never_exceed_a_limit_and_starve_no_key(postgres_url: str, random: Random) -> None:
    limits = QueueLimits(Rate(25, 0.5), 2, Rate(4, 0.5))
    async with opened(postgres_url) as one, opened(postgres_url) as two, opened(postgres_url) as three:
        ids = [
            await submit(one, limit_key=key, priority=random.randrange(10) if key == "big" else 0)
            for key, count in KEYS.items()
            for _ in range(count)
        ]
        await one.write(SetQueue(QueueSettings(a_queue("q"), False, 6, limits)))
        order = await worked((one, two, three), "q", ids, random, 6, limits, ends=("succeed",))
    # While the big customer has a backlog of sixty, the others are served with it and not behind it.
    assert order.index("tiny") < 8
    assert max(place for place, key in enumerate(order) if key == "tiny") < len(order) / 2


async def test_no_limit_is_ever_exceeded_however_jobs_end(store_url: str, random: Random) -> None:
    """Any limits, on three nodes where there can be as many: jobs succeed, break, are parked, lapse, and are started over."""
    async with AsyncExitStack() as stack:
        nodes = 1 if store_url.startswith("sqlite:") else 3
        stores = [await stack.enter_async_context(opened(store_url)) for _ in range(nodes)]
        for number in range(ROUNDS):
            queue, most = f"q{number}", random.choice([None, random.randint(1, 8)])
            rates = [random.choice([None, Rate(random.randint(8, 20), random.uniform(0.1, 0.3))]) for _ in range(2)]
            limits = QueueLimits(rates[0], random.choice([None, random.randint(1, 3)]), rates[1])
            print(queue, most, limits)
            ids = [
                await submit(
                    stores[0],
                    queue=queue,
                    limit_key=random.choice(["a", "a", "a", "b", "c", ""]),
                    priority=random.randrange(3),
                )
                for _ in range(40)
            ]
            await stores[0].write(SetQueue(QueueSettings(a_queue(queue), False, most, limits)))
            await worked(stores, queue, ids, random, most, limits, ANY_ENDS)


async def worked(
    stores: Sequence[Store],
    queue: str,
    ids: Sequence[str],
    random: Random,
    most: int | None,
    limits: QueueLimits,
    ends: Sequence[str],
) -> list[str]:
    """Let every node work until all jobs have succeeded. Check the limits at each time; return the keys in the order of the starts.

    By the database's own clock: every start and every end is read from the log of the jobs.
    """
    done: set[str] = set()
    everybody = [work(store, queue, len(ids), done, random, ends) for store in stores for _ in range(3)]
    await asyncio.wait_for(asyncio.gather(*everybody), 60)
    history: list[tuple[int, bool, str]] = []
    for job_id in ids:
        key, was = (await get(stores[0], job_id)).limit_key, "queued"
        for event in await stores[0].list_events(job_id):
            if event.move == "claim" or was == "running":
                history.append((event.at, event.move == "claim", key))
            was = event.state
    at_once: Counter[str] = Counter()
    for _, is_start, key in sorted(history):  # of one instant the ends come first
        at_once[key] += 1 if is_start else -1
        assert most is None or at_once.total() <= most
        assert not key or limits.key_max_running is None or at_once[key] <= limits.key_max_running
    assert at_once.total() == 0
    starts = [(at, key) for at, is_start, key in sorted(history) if is_start]
    check_rate([at for at, _ in starts], limits.rate)
    for each in {key for _, key in starts} - {""}:
        check_rate([at for at, key in starts if key == each], limits.key_rate)
    return [key for _, key in starts]


def check_rate(starts: list[int], rate: Rate | None) -> None:
    if rate is not None:
        for first, beyond in zip(starts, starts[rate.count :], strict=False):
            assert beyond - first >= int(rate.seconds * SECOND)


async def work(store: Store, queue: str, count: int, done: set[str], random: Random, ends: Sequence[str]) -> None:
    while len(done) < count:
        end = random.choice(ends)
        lease_seconds = 0.01 if end == "lapse" else 60
        jobs = (await claim(store, queue, limit=random.randrange(1, 5), lease_seconds=lease_seconds)).jobs
        for job in jobs:
            await asyncio.sleep(random.random() / 200)  # the work
            if end == "succeed":
                assert await move(store, job, end)
                done.add(job.id)
            elif end != "lapse":
                first, _, then = end.partition(" and ")
                assert await move(store, job, first, delay_seconds=random.choice([0, 0.01]))
                if then:
                    assert await store.write(Change(seen(job.id), then))
        for job in await store.list_jobs(JobFilter(late="lease", limit=100)):
            await store.write(Change(seen(job.id), "retry", lease_until=job.lease_until))
        if not jobs:
            await asyncio.sleep(0.005)
