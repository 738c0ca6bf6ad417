"""Random sequences of calls, compared with a simple model in memory."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from msgspec.structs import replace

from chargehand.engine.delivery import DeliveryState
from chargehand.engine.job import (
    FINAL,
    LEASE_RANDOM_BITS,
    SECOND,
    NewJob,
    QueueSettings,
    SetQueue,
    State,
    topic_of,
    visible,
)
from chargehand.engine.moves import Attempt, Beat, Change, Lease, Move, Note, expire
from chargehand.engine.operation import Operation
from chargehand.engine.reads import DeliveryFilter, JobFilter
from chargehand.engine.store import Claim, OldJobs, Store
from chargehand.store import open_store
from tests.conftest import Clock
from tests.store.given import a_job, a_queue, a_report, a_settle, a_take, new_id, seen

T = TypeVar("T")
CHANGES = ("advance", "succeed", "retry", "park", "fail", "cancel", "requeue")


@dataclass
class Model:
    """A job as its callers understand it."""

    given: NewJob
    run_at: int
    deadline_at: int | None
    state: State = State.QUEUED
    topic: str = "queued"
    attempt: int = 0
    lease: int = 0
    lease_until: int | None = None
    log: list[str] = field(default_factory=lambda: ["submit"])
    announced: list[int] = field(default_factory=lambda: [1])
    pending: set[int] = field(default_factory=lambda: {1})
    result: bytes | None = None
    pruned: bool = False

    @property
    def turn(self) -> tuple[int, int, str]:
        return -self.given.priority, self.run_at, self.given.id

    def move(self, name: str, stage: str) -> None:
        move = Move.by_name[name]
        self.state = move.to
        self.log.append(name)
        counted = {Attempt.UP: 1, Attempt.DOWN: -1, Attempt.SAME: 0, Attempt.RESET: -self.attempt}
        self.attempt += counted[move.attempt]
        if move.lease is Lease.DROP:
            self.lease_until = None
        if name == "requeue":
            self.deadline_at = None
        if visible(self.state, stage) and topic_of(self.state, stage) != self.topic:
            self.topic = topic_of(self.state, stage)
            if self.given.reports:
                self.announced.append(len(self.log))
                self.pending.add(len(self.log))


class Comparison(RuleBasedStateMachine):
    loop: asyncio.AbstractEventLoop
    store: Store
    clock: Clock
    jobs = Bundle("jobs")

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def __init__(self) -> None:
        super().__init__()
        self.queue = a_queue(new_id())
        self.url = f"https://receiver.example/{self.queue.name}"
        self.settings = QueueSettings(self.queue)
        self.known: dict[str, Model] = {}

    # rules --------------------------------------------------------------------------------------------------------------

    @rule(
        target=jobs,
        priority=st.sampled_from([0, 5, 9]),
        delay=st.sampled_from([0, 0, 3]),
        deadline=st.sampled_from([None, 1, 4]),
        reports=st.booleans(),
    )
    def submit(self, priority: int, delay: int, deadline: int | None, reports: bool) -> Model:
        told = (a_report(self.url),) if reports else ()
        given = a_job(
            queue=self.queue, priority=priority, delay_seconds=delay, reports=told, idempotency_key=new_id(),
            deadline_seconds=deadline,
        )  # fmt: skip
        until = None if deadline is None else self.clock.now + deadline * SECOND
        model = Model(given, self.clock.now + delay * SECOND, until)
        if not reports:
            model.announced, model.pending = [], set()
        assert self.run(_submit(self.store, given)) == (given.id, True)
        self.known[given.id] = model
        return model

    @rule(job=jobs)
    def submit_again(self, job: Model) -> None:
        assume(not job.pruned)
        again = a_job(queue=self.queue, idempotency_key=job.given.idempotency_key)
        assert self.run(_submit(self.store, again)) == (job.given.id, False)

    @rule(limit=st.integers(1, 4), stage=st.sampled_from(["", "working"]), lease=st.sampled_from([2, 60]))
    def claim(self, limit: int, stage: str, lease: int) -> None:
        running = [job for job in self.known.values() if job.state is State.RUNNING]
        room = limit if self.settings.max_running is None else max(0, self.settings.max_running - len(running))
        due = [job for job in self.known.values() if job.state is State.QUEUED and job.run_at <= self.clock.now]
        expected = [] if self.settings.paused else sorted(due, key=lambda job: job.turn)[: min(limit, room)]
        claimed = self.run(_claim(self.store, Claim((self.queue,), "w", lease, limit, stage)))
        assert claimed == [job.given.id for job in expected]
        for job in expected:
            job.move("claim", stage)
            job.lease += 1 << LEASE_RANDOM_BITS
            job.lease_until = self.clock.now + lease * SECOND

    @rule(
        job=jobs,
        name=st.sampled_from(CHANGES),
        late=st.sampled_from([0, 0, 0, 1]),
        stage=st.sampled_from(["loading", "working"]),
        delay=st.sampled_from([0, 3]),
    )
    def change(self, job: Model, name: str, late: int, stage: str, delay: int) -> None:
        move = Move.by_name[name]
        stage = stage if name == "advance" else ""
        result = b"result" if name == "succeed" else None
        guard = replace(seen(job.given.id), lease=job.lease - late)
        change = Change(guard, name, stage, delay, result=result)
        happened = self.run(_change(self.store, change))
        assert happened == (job.state in move.source and not late and not job.pruned)
        if happened:
            job.move(name, stage)
            job.run_at = self.clock.now + delay * SECOND if move.to is State.QUEUED else job.run_at
            job.result = result or job.result

    @rule(job=jobs, late=st.sampled_from([0, 0, 1]))
    def beat(self, job: Model, late: int) -> None:
        until = self.run(_write(self.store, Beat(replace(seen(job.given.id), lease=job.lease - late), 60)))
        alive = job.state is State.RUNNING and not late
        assert until == (self.clock.now + 60 * SECOND if alive else None)
        job.lease_until = until or job.lease_until

    @rule(job=jobs)
    def note(self, job: Model) -> None:
        job.log.append("note")
        assert self.run(_write(self.store, Note(seen(job.given.id)))) == (None if job.pruned else len(job.log))

    @rule()
    def expire(self) -> None:
        for found in self.run(self.store.list_jobs(JobFilter(late="deadline", limit=10_000))):
            if found.queue == self.queue:
                assert self.run(_change(self.store, expire(found)))
                self.known[found.id].move("expire", "")

    @rule(job=jobs)
    def expire_too_late(self, job: Model) -> None:
        """Expire by a deadline that the job does not have, or no longer has."""
        other = (job.deadline_at or 0) + 1
        assert not self.run(_change(self.store, Change(seen(job.given.id), "expire", deadline_at=other)))

    @rule(seconds=st.sampled_from([0.000_001, 1, 3]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(paused=st.booleans(), max_running=st.sampled_from([None, 0, 2]))
    def set_queue(self, paused: bool, max_running: int | None) -> None:
        self.settings = QueueSettings(self.queue, paused, max_running)
        self.run(_write(self.store, SetQueue(self.settings)))

    @rule(state=st.sampled_from(DeliveryState), limit=st.integers(1, 5))
    def deliver(self, state: DeliveryState, limit: int) -> None:
        taken = self.run(_take_and_settle(self.store, self.url, limit, state))
        waiting = sum(len(job.pending) for job in self.known.values())
        assert len(taken) == min(limit, waiting)
        for job_id, seq in taken:
            assert seq in self.known[job_id].pending
            if state is not DeliveryState.PENDING:
                self.known[job_id].pending.discard(seq)

    @rule()
    def prune(self) -> None:
        self.run(self.store.prune(OldJobs(0), 1000))
        for key, job in list(self.known.items()):
            if job.state in FINAL and not job.pending:
                job.pruned = True
                del self.known[key]
                assert self.run(self.store.get_job(key)) is None

    # invariants ---------------------------------------------------------------------------------------------------------

    @invariant()
    def the_jobs_are_as_expected(self) -> None:
        jobs = self.run(self.store.list_jobs(JobFilter(self.queue.tenant, queue=self.queue.name, limit=1000)))
        assert {job.id for job in jobs} == set(self.known)
        for job in jobs:
            model = self.known[job.id]
            seen = (job.state, job.topic, job.attempt, job.run_at, job.lease, job.lease_until)
            expected = (model.state, model.topic, model.attempt, model.run_at, model.lease, model.lease_until)
            assert (*seen, job.deadline_at, job.seq) == (*expected, model.deadline_at, len(model.log))

    @invariant()
    def lapsed_leases_are_found(self) -> None:
        lapsed = {
            job.id
            for job in self.run(self.store.list_jobs(JobFilter(late="lease", limit=10_000)))
            if job.queue == self.queue
        }
        held = {key: job.lease_until for key, job in self.known.items() if job.lease_until is not None}
        assert lapsed == {key for key, until in held.items() if until <= self.clock.now}

    @invariant()
    def overdue_jobs_are_found(self) -> None:
        overdue = {
            job.id
            for job in self.run(self.store.list_jobs(JobFilter(late="deadline", limit=10_000)))
            if job.queue == self.queue
        }
        live = {key: job.deadline_at for key, job in self.known.items() if job.state not in FINAL}
        assert overdue == {key for key, until in live.items() if until is not None and until <= self.clock.now}

    def teardown(self) -> None:
        """Compare logs and deliveries, which only grow, once at the end."""
        for job_id, model in self.known.items():
            job = self.run(self.store.get_job(job_id))
            assert job is not None
            assert (job.payload, job.result) == (model.given.payload, model.result)
            log = self.run(self.store.list_events(job_id))
            assert [(event.seq, event.move) for event in log] == list(enumerate(model.log, 1))
            deliveries = self.run(self.store.list_deliveries(DeliveryFilter(job_id=job_id)))
            assert sorted(delivery.seq for delivery in deliveries) == model.announced


async def _submit(store: Store, job: NewJob) -> tuple[str, bool]:
    submitted = await store.write(job)
    return submitted.job_id, submitted.created


async def _claim(store: Store, claim: Claim) -> list[str]:
    return [job.id for job in (await store.write(claim)).jobs]


async def _change(store: Store, change: Change) -> bool:
    return await store.write(change) is not None


async def _write(store: Store, operation: Operation[T]) -> T:
    return await store.write(operation)


async def _take_and_settle(store: Store, url: str, limit: int, state: DeliveryState) -> list[tuple[str, int]]:
    taken = await store.write(a_take(url, limit))
    sent = [(outgoing.job.id, outgoing.event.seq) for outgoing in await store.outgoing(taken.ids)]
    settles = [a_settle(*pair, state) for pair in zip(taken.ids, taken.leases, strict=True)]
    assert all(await asyncio.gather(*map(store.write, settles)))
    return sent


def test_the_store_does_what_a_model_in_memory_does(store_url: str, clock: Clock) -> None:
    with asyncio.Runner() as runner:
        store = runner.run(open_store(store_url, clock=clock))
        machine = type("Here", (Comparison,), {"loop": runner.get_loop(), "store": store, "clock": clock})
        run_machine(machine, settings=settings(max_examples=30, stateful_step_count=30))
        runner.run(store.close())
