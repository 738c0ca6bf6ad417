"""In-process workers: claim -> handler -> outcome. They claim through the same call as a remote worker."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import msgspec

from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import Job, Level
from chargehand.engine.moves import Broke, Change, Note
from chargehand.engine.queue import Wanted
from chargehand.engine.wakeups import wait_within
from chargehand.errors import BadRequest, Conflict, NotFound, StoreError
from chargehand.observability.logs import get_logger

IN_PROCESS = "@"  # prefix of the owners of in-process leases: no remote worker may use it
STORE_PAUSE_SECONDS = 1.0
CLEAN_UP_SECONDS = 0.5

log = get_logger(__name__)


class Done(msgspec.Struct, frozen=True):
    """The handler succeeded: its result as JSON."""

    result: bytes
    message: str = ""
    data: bytes | None = None  # of the event, as JSON


class Parked(msgspec.Struct, frozen=True):
    """The job cannot run now: try later; the attempt does not count."""

    waiting_for: str
    delay_seconds: float = 0.0
    message: str = ""
    data: bytes | None = None


Outcome = Done | Broke | Parked | Change  # a Change: the handler has decided on the move itself
Handler = Callable[[Job, "Hand"], Awaitable[Outcome]]


class Hand:
    """What a handler may do with the job it holds."""

    def __init__(self, engine: Engine, job: Job) -> None:
        self._engine = engine
        self.job = job

    async def advance(self, stage: str, message: str = "", data: bytes | None = None) -> None:
        await self._engine.advance(Guard.held(self.job), stage, message=message, data=data)

    async def note(self, message: str, level: Level = "info", step: str = "", data: bytes | None = None) -> None:
        await self._engine.note(Note(Guard.held(self.job), level, step, message, data))


class Holder:
    """Holds jobs that were claimed for it, each under a lease that it keeps alive while the handler works."""

    def __init__(self, engine: Engine, owner_name: str, lease_seconds: float = 30.0, resting_stage: str = "") -> None:
        self._engine = engine
        self._resting_stage = resting_stage  # of a job that is handed back: with one, callers still see its last state
        self.owner = f"{IN_PROCESS}{owner_name}"  # claim under this name
        self.lease_seconds = lease_seconds

    async def hold(self, job: Job, handler: Handler) -> None:
        """Run the handler and report its outcome. If the lease is lost, stop the handler and drop its outcome.

        Cancelling this stops the handler and hands the job back.
        """
        work = asyncio.ensure_future(handler(job, Hand(self._engine, job)))
        beats = asyncio.create_task(self._beat(job))
        try:
            await asyncio.wait({work, beats}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await self._apply(job, self._outcome(job, work))
            else:
                await self._stop(work)  # the job's log already says who took or cancelled it
        except asyncio.CancelledError:
            await self._stop(work)
            await self._hand_back(job)
            raise
        finally:
            beats.cancel()

    async def _apply(self, job: Job, outcome: Outcome) -> None:
        """Report the outcome until the store has it or the lease is lost, so that a short outage repeats no work."""
        while True:
            try:
                return await self._report(job, outcome)
            except (Conflict, NotFound):
                return None
            except BadRequest as error:
                log.error("the store refused an outcome", job_id=job.id, runner=self.owner, error=error.message)
                outcome = Broke(f"the outcome was refused: {error.message}", final=True)
            except StoreError as error:
                log.warning("an outcome waits for the store", job_id=job.id, runner=self.owner, error=error.message)
                await asyncio.sleep(STORE_PAUSE_SECONDS)

    async def _stop(self, work: "asyncio.Future[Outcome]") -> None:
        """Cancel the handler, and give it a moment to clean up."""
        work.cancel()
        await asyncio.wait({work}, timeout=CLEAN_UP_SECONDS)

    def _outcome(self, job: Job, work: "asyncio.Future[Outcome]") -> Outcome:
        if work.cancelled():
            return Broke("the handler cancelled itself")
        if (error := work.exception()) is None:
            return work.result()
        log.error("a handler broke", job_id=job.id, runner=self.owner, exc_info=error)
        return Broke(f"{type(error).__name__}: {error}")

    async def _report(self, job: Job, outcome: Outcome) -> None:
        guard = Guard.held(job)
        if isinstance(outcome, Done):
            await self._engine.succeed(guard, outcome.result, message=outcome.message, data=outcome.data)
        elif isinstance(outcome, Parked):
            await self._engine.park(
                guard,
                outcome.waiting_for,
                delay_seconds=outcome.delay_seconds,
                message=outcome.message,
                data=outcome.data,
            )
        elif isinstance(outcome, Change):
            await self._engine.change(outcome)
        else:
            await self._engine.broke(guard, outcome)

    async def _hand_back(self, job: Job) -> None:
        with contextlib.suppress(Conflict, NotFound, StoreError):
            await asyncio.shield(
                self._engine.park(
                    Guard.held(job), "", message="handed back: the server is stopping", stage=self._resting_stage
                )
            )

    async def _beat(self, job: Job) -> None:
        """Extend the lease each third of its length, so that two beats may be missed; return when it is lost."""
        news = asyncio.Event()
        stop = self._engine.watching(job.id, news)
        beat_at = time.monotonic() + self.lease_seconds / 3
        try:
            while True:
                await wait_within(news, max(0.0, beat_at - time.monotonic()))
                news.clear()
                try:
                    if time.monotonic() < beat_at:
                        if not await self._engine.holds(job.id, job.lease):
                            return
                    else:
                        beat_at = time.monotonic() + self.lease_seconds / 3
                        await self._engine.beat(Guard.held(job), self.lease_seconds)
                except (Conflict, NotFound):
                    return
                except StoreError:
                    continue  # two more beats may fail before the lease lapses
        finally:
            stop()


class Runner:
    """Claims jobs for as many handlers as may run at once, with one claim in flight."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        queues: tuple[Wanted, ...],
        handler: Handler,
        *,
        concurrency: int = 1,
        lease_seconds: float = 30.0,
        poll_seconds: float = 30.0,
        resting_stage: str = "",
    ) -> None:
        self._engine = engine
        self._holder = Holder(engine, name, lease_seconds, resting_stage)
        self._queues = queues
        self._handler = handler
        self._free = concurrency
        self._room = asyncio.Event()
        self._poll_seconds = poll_seconds

    async def run(self) -> None:
        """Run until cancelled or the engine drains; then park running jobs, so that nobody waits for a lease to lapse."""
        async with asyncio.TaskGroup() as group:
            while not self._engine.draining:
                for job in await self._claim():
                    self._free -= 1
                    group.create_task(self._hold(job))

    async def _claim(self) -> tuple[Job, ...]:
        while self._free < 1:
            self._room.clear()
            await self._room.wait()
        holder = self._holder
        try:
            return await self._engine.claim(
                self._queues, holder.owner, holder.lease_seconds, limit=self._free, wait_seconds=self._poll_seconds
            )
        except StoreError as error:
            log.warning("the store cannot serve; the runner waits", runner=holder.owner, error=str(error))
            await asyncio.sleep(STORE_PAUSE_SECONDS)
            return ()

    async def _hold(self, job: Job) -> None:
        try:
            await self._holder.hold(job, self._handler)
        except StoreError as error:
            log.warning("the store cannot serve; a job waits for its lease", job_id=job.id, error=str(error))
        finally:
            self._free += 1
            self._room.set()
