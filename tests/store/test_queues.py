"""The settings of queues, and the counts of their jobs."""

import asyncio
from unittest.mock import ANY

from chargehand.engine.job import SECOND, QueueCount, QueueSettings, SetQueue, State
from chargehand.engine.moves import Change
from chargehand.engine.queue import Queue
from chargehand.engine.reads import DueQueue, QueueHead
from chargehand.engine.store import Store
from tests.conftest import Clock
from tests.store.given import a_queue, claim, claimed_ids, get, job_in, move, seen, submit, submit_many


async def test_no_job_of_a_paused_queue_is_claimed_until_it_is_resumed(store: Store) -> None:
    job_id = await submit(store)
    free = await submit(store, queue="free")
    await store.write(SetQueue(QueueSettings(a_queue("q"), paused=True)))
    assert await claimed_ids(store, "q", "free", limit=5) == [free]
    await store.write(SetQueue(QueueSettings(a_queue("q"))))
    assert await claimed_ids(store) == [job_id]


async def test_a_paused_queue_accepts_jobs_and_lets_running_ones_finish(store: Store) -> None:
    await submit_many(store, 2)
    [job] = (await claim(store)).jobs
    await store.write(SetQueue(QueueSettings(a_queue("q"), paused=True)))
    await submit(store)
    assert await move(store, job, "succeed")
    assert [(count.ready, count.running) for count in await store.count_queues()] == [(2, 0)]


async def test_a_limited_queue_runs_no_more_than_its_limit(store: Store) -> None:
    job_ids = await submit_many(store, 5)
    await store.write(SetQueue(QueueSettings(a_queue("q"), max_running=2)))
    first = (await claim(store, limit=5)).jobs
    assert [job.id for job in first] == job_ids[:2]
    assert await claimed_ids(store) == []
    await move(store, first[0], "succeed")
    assert await claimed_ids(store, limit=5) == [job_ids[2]]


async def test_claims_of_one_group_share_the_limit(store: Store) -> None:
    await submit_many(store, 9)
    await store.write(SetQueue(QueueSettings(a_queue("q"), max_running=4)))
    answers = await asyncio.gather(
        *[claimed_ids(store, "q", limit=3), claimed_ids(store, "q", limit=3), claimed_ids(store, "q", "other", limit=3)]
    )
    assert sum(map(len, answers)) == 4


async def test_the_limit_of_a_queue_counts_all_priorities_and_no_other_queues(store: Store) -> None:
    for priority in (9, 5, 0):
        await submit(store, priority=priority)
    free = await submit_many(store, 3, queue="free")
    await store.write(SetQueue(QueueSettings(a_queue("q"), max_running=2)))
    claimed = (await claim(store, "q", "free", limit=9)).jobs
    assert [job.priority for job in claimed if job.queue.name == "q"] == [9, 5]
    assert [job.id for job in claimed if job.queue.name == "free"] == free


async def test_with_a_limit_of_zero_nothing_is_claimed_and_running_jobs_go_on(store: Store) -> None:
    await submit_many(store, 3)
    running = (await claim(store, limit=2)).jobs
    await store.write(SetQueue(QueueSettings(a_queue("q"), max_running=0)))
    assert await claimed_ids(store) == []
    assert all([await move(store, job, "succeed") for job in running])


async def test_only_queues_with_settings_have_a_row(store: Store) -> None:
    await store.write(SetQueue(QueueSettings(a_queue("b"), max_running=3)))
    await store.write(SetQueue(QueueSettings(a_queue("a"), paused=True)))
    await store.write(SetQueue(QueueSettings(a_queue("b"), paused=True, max_running=4)))
    assert await store.list_queue_settings() == [
        QueueSettings(a_queue("a"), True),
        QueueSettings(a_queue("b"), True, 4),
    ]
    await store.write(SetQueue(QueueSettings(a_queue("b"))))
    await store.write(SetQueue(QueueSettings(a_queue("never set"))))
    assert await store.list_queue_settings() == [QueueSettings(a_queue("a"), True)]


async def test_due_queues_show_how_many_jobs_are_ready_and_when_the_next_is_due(store: Store, clock: Clock) -> None:
    await submit_many(store, 3, queue="busy")
    await submit(store, queue="busy", priority=9)
    await submit(store, queue="busy", delay_seconds=60)
    await submit(store, queue="busy", priority=9, delay_seconds=30)
    await submit(store, queue="later", delay_seconds=5)
    found = await store.due_queues([a_queue("busy"), a_queue("later"), a_queue("empty")], 100)
    assert sorted(found, key=lambda due: due.queue) == [
        DueQueue(a_queue("busy"), 4, clock.now + 30 * SECOND),
        DueQueue(a_queue("empty"), 0, None),
        DueQueue(a_queue("later"), 0, clock.now + 5 * SECOND),
    ]


async def test_due_queues_count_jobs_up_to_the_given_bound(store: Store) -> None:
    await submit_many(store, 5)
    [due] = await store.due_queues([a_queue("q")], 2)
    assert due.ready == 2


async def test_a_paused_or_full_queue_is_not_due(store: Store) -> None:
    for queue in ("paused", "full"):
        await submit_many(store, 2, queue=queue)
    await claim(store, "full")
    await store.write(SetQueue(QueueSettings(a_queue("paused"), paused=True)))
    await store.write(SetQueue(QueueSettings(a_queue("full"), max_running=1)))
    assert await store.due_queues([a_queue("paused"), a_queue("full")], 10) == []
    await store.write(SetQueue(QueueSettings(a_queue("full"), max_running=2)))
    assert [due.ready for due in await store.due_queues([a_queue("paused"), a_queue("full")], 10)] == [1]


async def test_queue_heads_show_the_most_urgent_job_and_the_one_that_waits_longest(store: Store, clock: Clock) -> None:
    await submit_many(store, 2, queue="a/busy", priority=3)
    oldest = clock.now
    clock.advance(1)
    await submit_many(store, 2, queue="a/busy", priority=7)
    await submit(store, queue="a/busy", priority=9, delay_seconds=60)
    await submit(store, queue="a/busy", priority=7, delay_seconds=30)
    await submit(store, queue="a/later", delay_seconds=5)
    await submit(store, queue="a/only one")
    await job_in(store, State.RUNNING, queue="a/running")
    await job_in(store, State.FAILED, queue="a/failed")
    assert await store.queue_heads("job", 100) == [
        QueueHead(a_queue("a/busy"), 4, 7, oldest, clock.now + 30 * SECOND),
        QueueHead(a_queue("a/later"), 0, -1, None, clock.now + 5 * SECOND),
        QueueHead(a_queue("a/only one"), 1, 0, clock.now, None),
    ]
    clock.advance(60)
    busy, later, _ = await store.queue_heads("job", 100)
    assert (busy.ready, busy.priority, busy.next_at) == (6, 9, None)
    assert (later.ready, later.priority, later.next_at) == (1, 0, None)


async def test_queue_heads_are_read_by_kind_and_tenant(store: Store) -> None:
    queues = [
        Queue(kind, tenant, name, node)
        for kind in ("job", "jobs", "task")
        for tenant in ("", "A", "acme", "acme-2", "é")
        for name, node in [("x", ""), ("x", "node-1"), ("x/y", ""), ("💥", ""), ("%", "")]
    ]
    for queue in queues:
        await submit(store, queue=queue)

    async def heads(kind: str, tenant: str | None = None) -> set[Queue]:
        found = [head.queue for head in await store.queue_heads(kind, 1, tenant)]
        assert len(found) == len(set(found))
        return set(found)

    for kind in ("job", "task"):
        assert await heads(kind) == {queue for queue in queues if queue.kind == kind}
        for tenant in ("", "acme", "é"):
            assert await heads(kind, tenant) == {
                queue for queue in queues if (queue.kind, queue.tenant) == (kind, tenant)
            }
    assert await heads("jo") == await heads("") == await heads("job", "ac") == await heads("%") == set()


async def test_queue_heads_count_jobs_up_to_the_given_bound(store: Store) -> None:
    for priority in (0, 5, 9):
        await submit_many(store, 2, priority=priority)
    assert [[head.ready for head in await store.queue_heads("job", bound)] for bound in (1, 3, 6, 9)] == [
        [1],
        [3],
        [6],
        [6],
    ]


async def test_the_head_of_a_paused_or_full_queue_has_no_ready_jobs(store: Store, clock: Clock) -> None:
    for queue in ("full", "paused"):
        await submit_many(store, 2, queue=queue, priority=4)
    await claim(store, "full")
    await store.write(SetQueue(QueueSettings(a_queue("paused"), paused=True)))
    await store.write(SetQueue(QueueSettings(a_queue("full"), max_running=1)))
    expected = [QueueHead(a_queue("full"), 0, 4, clock.now, None), QueueHead(a_queue("paused"), 0, 4, clock.now, None)]
    assert await store.queue_heads("job", 10) == expected
    await store.write(SetQueue(QueueSettings(a_queue("full"), max_running=2)))
    await store.write(SetQueue(QueueSettings(a_queue("paused"))))
    assert [head.ready for head in await store.queue_heads("job", 10)] == [1, 2]


async def test_queues_count_their_jobs_by_what_they_wait_for(store: Store, clock: Clock) -> None:
    oldest = clock.now
    await submit_many(store, 2, queue="a/1")
    clock.advance(5)
    await submit(store, queue="a/1")
    await claim(store, "a/1")
    await submit(store, queue="a/1", delay_seconds=60)
    await submit(store, queue="b/1")
    await claim(store, "b/1")
    await job_in(store, State.SUCCEEDED)
    assert await store.count_queues() == [
        QueueCount(a_queue("a/1"), {0: 2}, 1, 1, oldest),
        QueueCount(a_queue("b/1"), {}, 0, 1, None),
    ]
    await submit(store, queue="a/1", tenant="other", kind="task")
    assert [count.queue for count in await store.count_queues()] == [
        a_queue("a/1"),
        a_queue("b/1"),
        a_queue("a/1", "other", "task"),
    ]


async def test_the_count_of_a_queue_includes_jobs_for_single_nodes(store: Store) -> None:
    for node in ("", "node-1", "node-2"):
        await submit(store, queue=Queue("job", "acme", "q", node))
    await claim(store, Queue("job", "acme", "q", "node-1"))
    assert await store.count_queues() == [QueueCount(a_queue("q"), {0: 2}, 0, 1, ANY)]


async def test_only_the_node_itself_claims_from_its_queue(store: Store) -> None:
    mine = Queue("job", "acme", "q", "node-1")
    shared, own = await submit(store), await submit(store, queue=mine)
    assert await claimed_ids(store, Queue("job", "acme", "q", "node-2"), limit=5) == []
    assert await claimed_ids(store, "q", limit=5) == [shared]
    assert await claimed_ids(store, mine, limit=5) == [own]
    assert (await get(store, own)).queue == mine


async def test_queues_of_the_same_name_have_their_own_settings(store: Store) -> None:
    queues = [a_queue("q"), a_queue("q", "other"), a_queue("q", kind="task"), Queue("job", "acme", "q", "node-1")]
    for queue in queues:
        await submit(store, queue=queue)
    await store.write(SetQueue(QueueSettings(a_queue("q"), paused=True)))
    assert [(await claim(store, queue)).jobs != () for queue in queues] == [False, True, True, True]


async def test_the_position_of_a_job_counts_the_jobs_that_go_first(store: Store, clock: Clock) -> None:
    await submit_many(store, 2)
    clock.advance(1)
    job_id = await submit(store)
    await submit(store)
    urgent = await submit(store, priority=9)
    await submit(store, queue="other", priority=9)

    async def position(of: str, bound: int) -> int | None:
        return (await store.waiting(await get(store, of), bound)).position

    assert await position(job_id, 100) == 3
    assert await position(job_id, 2) == 2
    assert await position(urgent, 100) == 0
    assert await position(job_id, 0) is None
    await store.write(Change(seen(job_id), "cancel"))
    assert await position(job_id, 100) is None
    assert (await get(store, job_id)).state is State.CANCELLED
