"""What comes of a broken attempt: again after a pause, or the dead letters. The pause is arithmetic, chance comes in."""

from random import Random

from chargehand.config import TasksConfig
from chargehand.doors.tasks.names import KIND, task_queue
from chargehand.doors.tasks.topics import Topics, tier
from chargehand.doors.tasks.views import DEAD, command_of, metadata
from chargehand.engine.engine import Engine
from chargehand.engine.job import Job, NewJob
from chargehand.engine.moves import Broke, Change, Lapsed

LEASE_EXPIRED = "LEASE_EXPIRED"
MAX_ATTEMPTS = "MAX_ATTEMPTS"


def pause(policy: str, attempt: int, base: float, longest: float, random: Random) -> int:
    """Whole seconds before the attempt after this one."""
    doubled = int(min(base * 2.0 ** min(attempt, 62), longest))
    match policy:
        case "fixed":
            return int(min(base, longest))
        case "linear":
            return int(min(base * max(1, attempt), longest))
        case "exponential":
            return doubled
        case "exp_equal_jitter":
            return doubled // 2 + random.randint(0, doubled // 2)
    return random.randint(0, doubled)


class Judge:
    """Registered with the engine for this door's kind: nacks and lapsed leases come here."""

    def __init__(
        self,
        engine: Engine,
        config: TasksConfig,
        topics: Topics,
        random: Random | None = None,
    ) -> None:
        self._engine = engine
        self._config = config
        self._topics = topics
        self._random = random or Random()  # noqa: S311 - for jitter

    async def __call__(self, job: Job, outcome: Broke | Lapsed) -> Change:
        lease_until = None
        if isinstance(outcome, Lapsed):
            lease_until = job.lease_until
            outcome = Broke(LEASE_EXPIRED, failed_step="lease")
        if outcome.final or job.attempt >= job.max_attempts:
            return await self._bury(job, outcome, lease_until)
        config = self._config
        delay = outcome.delay_seconds
        if delay is None:
            delay = pause(
                config.backoff_policy,
                job.attempt,
                config.backoff_base_seconds,
                config.backoff_max_seconds,
                self._random,
            )
        delay = min(delay, config.backoff_max_seconds)
        error = outcome.error or "the worker gave no reason"
        return Change(
            job.id,
            "retry",
            lease=job.lease,
            lease_until=lease_until,
            delay_seconds=delay,
            waiting_for="backoff" if delay else "",
            error=error,
            failed_step=outcome.failed_step,
            level="warn",
            step=outcome.failed_step or "",
            message=f"attempt {job.attempt} of {job.max_attempts} broke, again in {delay:g} s: {error}",
        )

    async def _bury(self, job: Job, outcome: Broke, lease_until: int | None) -> Change:
        error = outcome.error or MAX_ATTEMPTS
        return Change(
            job.id,
            "fail",
            lease=job.lease,
            lease_until=lease_until,
            stage=DEAD,
            error=error,
            failed_step=outcome.failed_step,
            level="error",
            step=outcome.failed_step or "",
            message=f"dead after attempt {job.attempt} of {job.max_attempts}: {error}",
            successor=await self._copy(job),
        )

    async def _copy(self, job: Job) -> NewJob | None:
        """For the dead-letter topic, where the policy names one: put there in the same commit as the end."""
        policy = self._topics.policy(job.tenant, command_of(job))
        if policy is None or not policy.dead_letter_topic_ref:
            return None
        whole = await self._engine.store.get_job(job.id)  # a job that was found by its lease comes without its payload
        if whole is None:
            return None
        topic = policy.dead_letter_topic_ref
        its_own = self._topics.policy(job.tenant, topic)
        keep = its_own.retention_seconds if its_own is not None else 0
        return NewJob(
            self._engine.new_id(),
            job.tenant,
            KIND,
            task_queue(job.tenant, topic),
            whole.payload,
            tier(its_own, job.priority),
            (its_own.max_attempts if its_own is not None else 0) or self._config.max_attempts,
            traceparent=job.traceparent,
            tracestate=job.tracestate,
            metadata=metadata(topic),
            keep_seconds=float(keep) if keep else None,
        )
