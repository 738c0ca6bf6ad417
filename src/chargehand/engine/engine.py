"""The engine: submit claim beat note advance succeed broke park cancel requeue. Every door goes through these.

A call returns when what it did is durable, and has then woken whoever waits for it: claimers of the queue, watchers of the job,
the outbox. A lost race is an error with a name, never a silent overwrite.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from random import Random
from secrets import randbits

from msgspec.structs import replace

from chargehand.engine.counts import JobCounts
from chargehand.engine.due import due_by_tenant, due_queues
from chargehand.engine.flow import KIND as FLOW
from chargehand.engine.flow import CancelFlow, NewFlow, Occupied, RetryFlow
from chargehand.engine.guard import Guard
from chargehand.engine.hint import Hint
from chargehand.engine.ids import UlidMaker
from chargehand.engine.job import FINAL, LEASE_RANDOM_BITS, RESTING, Event, Job, NewJob, QueueSettings, SetQueue, State
from chargehand.engine.moves import (
    Beat,
    Broke,
    Change,
    Lapsed,
    Move,
    Moved,
    Note,
    Prune,
    RetryPolicy,
    Submitted,
    decide,
    expire,
)
from chargehand.engine.queue import Queue, Wanted
from chargehand.engine.reads import JobFilter, JobReads, StepFilter
from chargehand.engine.records import Records
from chargehand.engine.references import MARK, Filling, Missing, portions
from chargehand.engine.store import Claim, Claimed, FinishedJobs, KeptJobs, OldDeliveries, OldJobs, OldPeriods, Store
from chargehand.engine.texts import clean, cut
from chargehand.engine.wakeups import Wakeups, wait_within
from chargehand.errors import Conflict, IdempotencyMismatch, NotFound, StaleLease, StoreError

WATCH_PAGE = 100  # events, each up to 64 KiB, held for a watcher that may read slowly
WATCH_POLL_SECONDS = 5.0  # how often a watched job is read besides, should a wake-up be lost
SWEEP_BATCH = 200
PURGE_BATCH = 500
REFERENCES = "references"  # the failed step of a job that refers to what no result has
MAX_TENANTS = 100_000  # whose last turn is remembered

Decider = Callable[[Job, Broke | Lapsed], Awaitable[Change]]
Canceller = Callable[[Job, str], Awaitable[Moved]]


class Engine:
    def __init__(
        self,
        store: Store,
        *,
        policy: RetryPolicy,
        random: Random | None = None,
        now: Callable[[], int] = lambda: time.time_ns() // 1000,
        lease_random: Callable[[], int] = lambda: randbits(LEASE_RANDOM_BITS),
    ) -> None:
        self._store = store
        self.jobs: JobReads = store
        self.counts = JobCounts(store)
        self.records = Records(store)
        self.new_id = UlidMaker()
        self.wakeups = Wakeups()
        self._policy = policy
        self._random = random or Random()  # noqa: S311 - for jitter
        self.now = now
        self._lease_random = lease_random
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._listeners: list[tuple[Callable[[Moved], None], str]] = []
        self._listeners_of: dict[str, list[Callable[[Moved], None]]] = {}  # by kind, made when a job of that kind moves
        self._hint_listeners: list[Callable[[Hint], None]] = []
        self._lapse_listeners: list[Callable[[Moved], None]] = []
        self._deciders: dict[str, Decider] = {}
        self._cancellers: dict[str, Canceller] = {}
        self._served: dict[str, int] = {}  # tenant -> the turn in which a claim for all tenants last served it
        self._turn = 0
        self._limited: set[Queue] = set()
        self._parking: set[asyncio.Future[Moved]] = set()
        self._open = True
        store.listen(self._heard)

    @property
    def draining(self) -> bool:
        return not self._open

    # the life of a job --------------------------------------------------------------------------------------------------

    async def submit(self, job: NewJob) -> Submitted:
        return self._submitted(job, await self._store.write(job))

    async def submit_flow(self, flow: NewFlow) -> Submitted:
        submitted = await self._store.write(flow)
        if isinstance(submitted, Occupied):
            raise Conflict(
                f"steps[{submitted.step}]: job {submitted.job_id} is live and has the unique key of this step; "
                "wait, or cancel it. Nothing was submitted"
            )
        return self._submitted(flow.job, submitted)

    async def change_flow(self, operation: CancelFlow | RetryFlow) -> Moved | None:
        """Change a flow with its steps; return None if it is no longer as the caller saw it."""
        moved = await self._store.write(operation)
        if moved is not None:
            self._moved(moved)
        return moved

    def _submitted(self, job: NewJob, submitted: Submitted) -> Submitted:
        if submitted.moved is not None:
            self._moved(submitted.moved)
        elif submitted.fingerprint != job.fingerprint:
            raise IdempotencyMismatch(
                f"the idempotency key {job.idempotency_key!r} was used before with another request (job {submitted.job_id}); "
                "send the same request again, or use a new key"
            )
        return submitted

    async def claim(
        self,
        queues: tuple[Wanted, ...],
        owner: str,
        lease_seconds: float,
        *,
        limit: int = 1,
        wait_seconds: float = 0.0,
        stage: str = "",
    ) -> tuple[Job, ...]:
        """Claim due jobs; return none when `wait_seconds` have passed. In-process runners and remote workers call this alike.

        Where many queues are meant at once (`Queues`), tenants are served in turn.

        If the caller is cancelled while it waits, what was claimed for it is handed back.
        """
        until = time.monotonic() + wait_seconds
        named = tuple([queue for queue in queues if isinstance(queue, Queue)])
        claim = Claim(named, owner, lease_seconds, limit, stage, self._lease_random())
        while self._open:
            if not wait_seconds:
                return await self._claim_any(queues, claim)
            with self.wakeups.line_up(queues) as waiter:
                jobs = await self._claim_any(queues, claim)
                remaining = until - time.monotonic()
                if jobs or remaining <= 0 or not await waiter.wait(remaining):
                    return jobs
        return ()

    async def _claim_any(self, wanted: tuple[Wanted, ...], claim: Claim) -> tuple[Job, ...]:
        if len(claim.queues) == len(wanted):
            return await self._claim(claim)
        jobs: list[Job] = []
        by_tenant = await due_by_tenant(self._store, wanted)
        while by_tenant and len(jobs) < claim.limit:
            # The tenant served longest ago goes first, and each gets one job: a tenant with a million jobs waits like one with two.
            tenant = min(by_tenant, key=lambda each: self._served.get(each, 0))
            self._turn += 1
            self._served[tenant] = self._turn
            limit = claim.limit - len(jobs) if len(by_tenant) == 1 else 1
            try:
                found = await self._claim(replace(claim, queues=by_tenant[tenant], limit=limit))
            except asyncio.CancelledError:
                self._give_back(jobs)
                raise
            except StoreError:
                if not jobs:
                    raise
                break  # the jobs claimed before must be returned, or nobody would do them
            if len(found) < limit:
                del by_tenant[tenant]
            jobs += found
        if len(self._served) > MAX_TENANTS:
            self._served.clear()
        return tuple(jobs)

    async def _claim(self, claim: Claim) -> tuple[Job, ...]:
        claiming = asyncio.ensure_future(self._store.write(claim))
        try:
            claimed = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            claiming.add_done_callback(self._hand_back)
            raise
        self.wakeups.found(job.queue for job in claimed.jobs)
        if claimed.later_at is not None:
            for queue in claim.queues:
                self.wakeups.again_at(queue, claimed.later_at, self.now)
        for job in claimed.jobs:
            self._moved(_claimed(job, claimed.endpoints if job is claimed.jobs[0] else ()))
        if any(job.flow is not None and MARK in job.payload for job in claimed.jobs):
            return await self._with_results(claimed.jobs)
        return claimed.jobs

    async def _with_results(self, jobs: Sequence[Job]) -> tuple[Job, ...]:
        """Put the results that steps of flows refer to into their payloads."""
        whole = []
        for place, job in enumerate(jobs):
            try:
                whole.append(await self._with_its_results(job))
            except Missing as missing:
                await self._fail_claimed(job, str(missing))
            except BaseException:
                self._give_back([*whole, *jobs[place:]])
                raise
        return tuple(whole)

    async def _with_its_results(self, job: Job) -> Job:
        filling = Filling(job.payload)
        if job.flow is None or not filling.names:
            return job
        wanted = StepFilter(job.flow, names=filling.names)
        for names in portions((await self._store.list_steps(replace(wanted, measured=True))).lengths):
            for step in (await self._store.list_steps(replace(wanted, names=names))).steps:
                filling.take(step)
        return replace(job, payload=filling.filled())

    async def _fail_claimed(self, job: Job, error: str) -> None:
        with contextlib.suppress(Conflict, NotFound):  # cancelled meanwhile
            await self.change(
                Change(
                    Guard.held(job),
                    "fail",
                    error=error,
                    failed_step=REFERENCES,
                    level="error",
                    step=REFERENCES,
                    message=error,
                )
            )

    def _hand_back(self, claiming: "asyncio.Future[Claimed]") -> None:
        if not (claiming.cancelled() or claiming.exception()):
            self._give_back(claiming.result().jobs)

    def _give_back(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            before = job.previous if job.stage else job.topic  # what callers saw until this claim
            stage = "" if before == State.QUEUED else RESTING
            parking = asyncio.ensure_future(
                self.park(Guard.held(job), "", message="handed back: the claimer is gone", stage=stage)
            )
            self._parking.add(parking)
            parking.add_done_callback(self._parking.discard)

    async def handed_back(self) -> None:
        """Wait until the jobs that were claimed for callers who are gone are in their queues again."""
        while self._parking:
            await asyncio.wait(self._parking)

    async def beat(self, guard: Guard, lease_seconds: float) -> int:
        """Extend the lease; return until when it holds now."""
        until = await self._store.write(Beat(_with_holder(guard, "beat"), lease_seconds))
        if until is None:
            raise await self._lost(guard, "beat")
        return until

    async def note(self, note: Note) -> int:
        """Add a line to the job's log; return its number."""
        seq = await self._store.write(replace(note, message=clean(note.message), step=clean(note.step)))
        if seq is None:
            raise await self._lost(note.guard, "note")
        self._wake_watchers(note.guard.job_id)
        self._store.notify(job_id=note.guard.job_id)
        return seq

    async def advance(self, guard: Guard, stage: str, *, message: str = "", data: bytes | None = None) -> Moved:
        return await self.change(Change(guard, "advance", stage, message=message, data=data))

    async def succeed(self, guard: Guard, result: bytes, *, message: str = "", data: bytes | None = None) -> Moved:
        return await self.change(Change(guard, "succeed", result=result, message=message, data=data))

    async def broke(self, guard: Guard, outcome: Broke) -> Moved:
        """Count the attempt as broken: retry after a backoff while attempts are left, else fail the job."""
        job = await self._store.get_job(guard.job_id, guard.tenant)
        if job is None or job.state is not State.RUNNING or not _with_holder(guard, "retry").admits(job):
            raise await self._lost(guard, "retry")
        return await self.change(await self._decide(job, outcome))

    async def park(
        self,
        guard: Guard,
        waiting_for: str,
        *,
        delay_seconds: float = 0.0,
        message: str = "",
        data: bytes | None = None,
        stage: str = "",
    ) -> Moved:
        return await self.change(
            Change(
                guard,
                "park",
                stage,
                delay_seconds=delay_seconds,
                waiting_for=waiting_for,
                message=message or f"parked: waits for {waiting_for or 'somebody else'}",
                data=data,
            )
        )

    async def cancel(self, guard: Guard, *, message: str = "cancelled on request") -> Moved:
        if (canceller := self._cancellers.get(guard.kind)) is not None:
            job = await self._store.get_job(guard.job_id, guard.tenant)
            if job is None or not guard.admits(job):
                raise await self._lost(guard, "cancel")
            return await canceller(job, message)
        return await self.change(Change(guard, "cancel", error="cancelled", level="warn", message=message))

    async def requeue(self, guard: Guard, *, message: str = "requeued", payload: bytes | None = None) -> Moved:
        return await self.change(Change(guard, "requeue", message=message, payload=payload))

    async def lapse(self, job: Job) -> Moved | None:
        """Retry or fail a job whose lease has lapsed; return None if its owner or another node moved it first."""
        moved = await self._store.write(cut(await self._decide(job, Lapsed())))
        if moved is not None:
            self._moved(moved)
            for listener in self._lapse_listeners:
                listener(moved)
        return moved

    async def expire(self, job: Job) -> Moved | None:
        """Fail a job whose deadline has passed; return None if it ended before, or was requeued without one."""
        moved = await self._store.write(cut(expire(job)))
        if moved is not None:
            self._moved(moved)
        return moved

    def decide_by(self, kind: str, decider: "Decider") -> None:
        """Let a door decide what follows a broken attempt or a lapsed lease of its jobs."""
        self._deciders[kind] = decider

    def cancel_by(self, kind: str, canceller: "Canceller") -> None:
        """Let a door cancel its own jobs, because they need cleaning up first."""
        self._cancellers[kind] = canceller

    async def _decide(self, job: Job, outcome: Broke | Lapsed) -> Change:
        decider = self._deciders.get(job.kind)
        return decide(job, outcome, self._policy, self._random) if decider is None else await decider(job, outcome)

    async def change(self, change: Change) -> Moved:
        """Make one guarded move. All of the above end here."""
        if Move.by_name[change.move].needs_holder and change.seen_stage is None:
            _with_holder(change.guard, change.move)
        moved = await self._store.write(cut(change))
        if moved is None:
            raise await self._lost(change.guard, change.move)
        self._moved(moved)
        return moved

    async def _lost(self, guard: Guard, move: str) -> Conflict | NotFound:
        job = await self._store.get_job(guard.job_id, guard.tenant)
        if job is None or job.kind != guard.kind:
            return NotFound(f"there is no job {guard.job_id}")
        if guard.lease is not None and guard.lease == job.lease and job.finished:
            return StaleLease(f"job {job.id} ended as {job.state} under lease {guard.lease}; {move} changed nothing")
        if guard.lease is not None:
            return StaleLease(
                f"job {job.id} is {job.state} and lease {guard.lease} is no longer held; "
                f"drop the work, {move} changed nothing"
            )
        if move == "requeue" and (job.flow is not None or job.kind == FLOW):
            flow = f"a step of flow {job.flow}" if job.flow else "a flow"
            return Conflict(f"job {job.id} is {flow}: retry it with POST /engine/flows/{job.flow or job.id}/retry")
        return Conflict(f"job {job.id} is {job.state}; {move} is not possible from there")

    # reading ------------------------------------------------------------------------------------------------------------

    async def get(self, job_id: str, tenant: str | None = None) -> Job:
        job = await self._store.get_job(job_id, tenant)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        return job

    async def holds(self, job_id: str, lease: int) -> bool:
        """Return whether the job still runs under this lease."""
        job = await self._store.get_job(job_id, whole=False)
        return job is not None and job.state is State.RUNNING and job.lease == lease

    async def watch(self, job_id: str, after: int = 0, tenant: str | None = None) -> AsyncIterator[Event]:
        """Yield the job's events after `after`, then new ones as they come, until the job has finished."""
        await self.get(job_id, tenant)
        news = asyncio.Event()
        stop = self.watching(job_id, news)
        try:
            while self._open:
                news.clear()
                events = await self._store.list_events(job_id, after, WATCH_PAGE)
                for event in events:
                    yield event
                    after = event.seq
                if not events:
                    job = await self._store.get_job(job_id, tenant)
                    if job is None or (job.state in FINAL and job.seq <= after):
                        return
                    await wait_within(news, WATCH_POLL_SECONDS)
        finally:
            stop()

    # queues -------------------------------------------------------------------------------------------------------------

    async def set_queue(self, settings: QueueSettings) -> None:
        await self._store.write(SetQueue(settings))
        if not settings.paused:
            self.wakeups.wake(settings.queue, settings.max_running or 1_000_000)
            self._store.notify(settings.queue)
        await self.refresh_limits()

    async def refresh_limits(self) -> None:
        """Read again which queues have a limit: there a finished job makes room for a waiting one."""
        self._limited = {s.queue for s in await self._store.list_queue_settings() if s.frees_room}

    # removing -----------------------------------------------------------------------------------------------------------

    async def purge(self, tenant: str, kind: str, ids: tuple[str, ...]) -> int:
        """Remove finished jobs of a tenant now, whatever time they had left; return how many."""
        return await self._store.write(Prune(ids, 0, (tenant, kind))) if ids else 0

    async def purge_finished(self, tenant: str, kind: str, before: int, age: int, limit: int) -> int:
        """Remove a tenant's jobs of a kind whose own time, or else this age, was over at `before`; return how many."""
        finished, count = FinishedJobs(tenant, kind, before, age), 0
        while count < limit:
            portion = min(PURGE_BATCH, limit - count)  # a commit each: those of others get in between
            gone = await self._store.prune(finished, portion)
            count += gone
            if gone < portion:
                break
        return count

    async def turn_periods(self, age_seconds: float) -> None:
        """Let the store drop finished jobs of this age (0: never) many at once, if it can. `prune` removes all others."""
        if age_seconds:
            await self._store.prune(OldPeriods(age_seconds), limit=1)

    async def prune(self, age_seconds: float, limit: int) -> int:
        """Remove finished jobs: those whose own time is over, and those of this age (0: never); return how many."""
        old = await self._store.prune(OldJobs(age_seconds), limit) if age_seconds else 0
        return old + await self._store.prune(KeptJobs(), limit)

    async def give_up_deliveries(self, age_seconds: float, limit: int) -> int:
        return await self._store.prune(OldDeliveries(age_seconds), limit)

    # waking whoever waits -----------------------------------------------------------------------------------------------

    def on_move(self, listener: Callable[[Moved], None], kind: str = "") -> None:
        """Call the listener after every move, or after those of one kind of jobs."""
        self._listeners.append((listener, kind))
        self._listeners_of.clear()

    def on_lapse(self, listener: Callable[[Moved], None]) -> None:
        """Call the listener after a lapse was handled, on the node that found it."""
        self._lapse_listeners.append(listener)

    def on_hint(self, listener: Callable[[Hint], None]) -> None:
        """Call the listener with every hint of another node."""
        self._hint_listeners.append(listener)

    def _moved(self, moved: Moved) -> None:
        queue: Queue | None = None
        run_at = 0
        if moved.state is State.QUEUED:
            queue, run_at = moved.queue, moved.run_at
            self.wakeups.due_at(queue, run_at, self.now)
        if moved.queue in self._limited and moved.state is not State.RUNNING and moved.move != "submit":
            queue, run_at = moved.queue, 0  # there is room for another
            self.wakeups.wake(queue)
        if self._watchers:
            self._wake_watchers(moved.job_id)
        listeners = self._listeners_of.get(moved.kind)
        if listeners is None:
            listeners = [listener for listener, kind in self._listeners if kind in ("", moved.kind)]
            self._listeners_of[moved.kind] = listeners
        for listener in listeners:
            listener(moved)
        self._store.notify(queue, run_at, moved.job_id, moved.endpoints)
        if moved.successor is not None:
            self._moved(moved.successor)
        if moved.flow:
            self._wake_watchers(moved.flow)
            self._store.notify(job_id=moved.flow)
        for other in moved.others:
            self._moved(other)

    def _heard(self, hint: Hint) -> None:
        for queue, run_at in hint.queues:
            self.wakeups.due_at(queue, run_at, self.now)
        for job_id in hint.jobs:
            self._wake_watchers(job_id)
        for listener in self._hint_listeners:
            listener(hint)

    def _wake_watchers(self, job_id: str) -> None:
        for news in self._watchers.get(job_id, ()):
            news.set()

    def watching(self, job_id: str, news: asyncio.Event) -> Callable[[], None]:
        """Set `news` whenever something happens to the job; call the returned function to stop."""
        watchers = self._watchers.setdefault(job_id, set())
        watchers.add(news)

        def stop() -> None:
            watchers.discard(news)
            if not watchers and self._watchers.get(job_id) is watchers:
                del self._watchers[job_id]

        return stop

    # periodic -----------------------------------------------------------------------------------------------------------

    async def lapse_all(self, owner_prefix: str = "") -> int:
        """Retry or fail all jobs whose lease has lapsed, or whose owner is known to be gone; return how many."""
        return await self._sweep(JobFilter(late="lease", owner_prefix=owner_prefix, limit=SWEEP_BATCH), self.lapse)

    async def expire_all(self) -> int:
        return await self._sweep(JobFilter(late="deadline", limit=SWEEP_BATCH), self.expire)

    async def _sweep(self, late: JobFilter, end: Callable[[Job], Awaitable[Moved | None]]) -> int:
        """Two sweeps at once cannot both win: moves are guarded."""
        count = 0
        while jobs := await self._store.list_jobs(late):
            moved = await asyncio.gather(*[end(job) for job in jobs])
            count += sum(each is not None for each in moved)
            if len(jobs) < SWEEP_BATCH or not any(moved):
                break
        return count

    async def look_for_due(self) -> None:
        await self.wakeups.look(partial(due_queues, self._store))

    def end_stream(self, name: str) -> None:
        """Tell the other nodes that a worker's stream is to end: one of them may have it."""
        self._store.notify(stream=name)

    async def check(self) -> None:
        """Raise a StoreError unless the store can serve now."""
        await self._store.check()

    def drain(self) -> None:
        """Refuse new claims and end all waiting. Running jobs may still report."""
        self._open = False
        self.wakeups.close()
        for watchers in self._watchers.values():
            for news in watchers:
                news.set()


def _claimed(job: Job, endpoints: Sequence[str]) -> Moved:
    return Moved(
        job.id, job.queue, "claim", job.state, job.stage, job.attempt, job.seq, job.run_at,
        job.updated_at, job.created_at, tuple(endpoints),
    )  # fmt: skip


def _with_holder(guard: Guard, move: str) -> Guard:
    """Return the guard if it names a lease or an owner; without one anybody could move the job, which is a bug of ours."""
    if not guard.has_holder:
        raise ValueError(f"{move} needs a lease or an owner in its guard")
    return guard
