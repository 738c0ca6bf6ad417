"""In-process workers: claim -> handler -> outcome. They claim through the same call as a remote worker and own nothing else."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec

from chargehand.engine.engine import Engine
from chargehand.engine.job import Job
from chargehand.engine.moves import Broke
from chargehand.errors import BadRequest, Conflict, NotFound, StoreError
from chargehand.observability.logs import get_logger

IN_PROCESS = "@"  # how the owners of in-process leases begin: no remote worker may call itself so
STORE_PAUSE_SECONDS = 1.0
CLEAN_UP_SECONDS = 0.5

log = get_logger(__name__)


class Done(msgspec.Struct, frozen=True):
    """The handler's good end: a result as JSON."""

    result: bytes


class Parked(msgspec.Struct, frozen=True):
    """Nobody's fault: come back later, the attempt does not count."""

    waiting_for: str
    delay_seconds: float = 0.0


Outcome = Done | Broke | Parked
Handler = Callable[[Job, "Hand"], Awaitable[Outcome]]


class Hand:
    """What a handler may do with the job it holds."""

    def __init__(self, engine: Engine, job: Job) -> None:
        self._engine = engine
        self._job = job

    async def advance(self, stage: str, message: str = "") -> None:
        await self._engine.advance(self._job.id, self._job.lease, stage, message=message)


class Runner:
    def __init__(
        self,
        engine: Engine,
        name: str,
        queues: tuple[str, ...],
        handler: Handler,
        *,
        concurrency: int = 1,
        lease_seconds: float = 30.0,
        poll_seconds: float = 30.0,
    ) -> None:
        self._engine = engine
        self._owner = f"{IN_PROCESS}{name}"
        self._queues = queues
        self._handler = handler
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds

    async def run(self) -> None:
        """Until cancelled or the engine drains; then what runs is parked, so that nobody waits for a lease to lapse."""
        async with asyncio.TaskGroup() as slots:
            for _ in range(self._concurrency):
                slots.create_task(self._slot())

    async def _slot(self) -> None:
        while not self._engine.draining:
            try:
                jobs = await self._engine.claim(
                    self._queues, self._owner, self._lease_seconds, wait_seconds=self._poll_seconds
                )
                for job in jobs:
                    await self._hold(job)
            except StoreError as error:
                log.warning("the store cannot serve; the runner waits", runner=self._owner, error=str(error))
                await asyncio.sleep(STORE_PAUSE_SECONDS)

    async def _hold(self, job: Job) -> None:
        """The handler under a lease that is kept alive. A handler whose lease is lost is stopped and its outcome dropped."""
        work = asyncio.ensure_future(self._handler(job, Hand(self._engine, job)))
        beats = asyncio.create_task(self._beat(job))
        try:
            await asyncio.wait({work, beats}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await self._tell(job, self._outcome(job, work))
            else:
                await self._stop(work)  # whoever took the job, or cancelled it, has written that down
        except asyncio.CancelledError:
            await self._stop(work)
            await self._hand_back(job)
            raise
        finally:
            beats.cancel()

    async def _tell(self, job: Job, outcome: Outcome) -> None:
        """Until the store has it or the lease is lost: what was done must not be done again for a moment's trouble."""
        while True:
            try:
                return await self._report(job, outcome)
            except (Conflict, NotFound):
                return None
            except BadRequest as error:
                log.error("the store refused an outcome", job_id=job.id, runner=self._owner, error=error.message)
                outcome = Broke(f"the outcome was refused: {error.message}", final=True)
            except StoreError as error:
                log.warning("an outcome waits for the store", job_id=job.id, runner=self._owner, error=error.message)
                await asyncio.sleep(STORE_PAUSE_SECONDS)

    async def _stop(self, work: "asyncio.Future[Outcome]") -> None:
        """It may clean up, but not for ever."""
        work.cancel()
        await asyncio.wait({work}, timeout=CLEAN_UP_SECONDS)

    def _outcome(self, job: Job, work: "asyncio.Future[Outcome]") -> Outcome:
        if work.cancelled():
            return Broke("the handler cancelled itself")
        if (error := work.exception()) is None:
            return work.result()
        log.error("a handler broke", job_id=job.id, runner=self._owner, exc_info=error)
        return Broke(f"{type(error).__name__}: {error}")

    async def _report(self, job: Job, outcome: Outcome) -> None:
        if isinstance(outcome, Done):
            await self._engine.succeed(job.id, job.lease, outcome.result)
        elif isinstance(outcome, Parked):
            await self._engine.park(job.id, job.lease, outcome.waiting_for, delay_seconds=outcome.delay_seconds)
        else:
            await self._engine.broke(job.id, job.lease, outcome)

    async def _hand_back(self, job: Job) -> None:
        with contextlib.suppress(Conflict, NotFound, StoreError):
            await asyncio.shield(
                self._engine.park(job.id, job.lease, "", message="handed back: the server is stopping")
            )

    async def _beat(self, job: Job) -> None:
        """Ends when the lease is lost. A third of it, so that two beats may be missed; sooner when something happened."""
        news = asyncio.Event()
        stop = self._engine.watching(job.id, news)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._lease_seconds / 3):
                        await news.wait()
                news.clear()
                try:
                    await self._engine.beat(job.id, job.lease, self._lease_seconds)
                except (Conflict, NotFound):
                    return
                except StoreError:
                    continue  # the lease has two more beats of patience
        finally:
            stop()
