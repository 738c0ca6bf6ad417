"""What follows a broken attempt: a retry after a pause, or the dead letters."""

from random import Random

from msgspec.structs import replace

from chargehand.config import TasksConfig
from chargehand.doors.tasks.names import task_queue
from chargehand.doors.tasks.topics import Topics, attempts, keep_seconds, tier
from chargehand.doors.tasks.views import DEAD, command_of, metadata, metadata_of
from chargehand.engine.engine import Engine
from chargehand.engine.job import Job, NewJob
from chargehand.engine.moves import Broke, Change, Lapsed, give_up, try_again

LEASE_EXPIRED = "LEASE_EXPIRED"
MAX_ATTEMPTS = "MAX_ATTEMPTS"
NO_REASON = "the worker gave no reason"


def pause(policy: str, attempt: int, base: float, longest: float, random: Random) -> int:
    """Return the whole seconds before the next attempt."""
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


class TaskRetries:
    """Decides what follows a nack or a lapsed lease; the engine calls it for jobs of this door's kind."""

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
            dead = give_up(job, replace(outcome, error=outcome.error or MAX_ATTEMPTS), lease_until)
            return replace(dead, stage=DEAD, successor=await self._copy(job))
        delay = min(self._pause(job, outcome.delay_seconds), self._config.backoff_max_seconds)
        return try_again(job, replace(outcome, error=outcome.error or NO_REASON), delay, lease_until)

    def _pause(self, job: Job, asked: float | None) -> float:
        if asked is not None:
            return asked
        config = self._config
        return pause(
            config.backoff_policy, job.attempt, config.backoff_base_seconds, config.backoff_max_seconds, self._random
        )

    async def _copy(self, job: Job) -> NewJob | None:
        """Return the copy for the dead-letter topic if the policy names one; it is submitted in the commit of the end."""
        policy = self._topics.policy(job.tenant, command_of(job))
        if policy is None or not policy.dead_letter_topic_ref:
            return None
        whole = await self._engine.jobs.get_job(
            job.id
        )  # a job that was found by its lapsed lease comes without its payload
        if whole is None:
            return None
        topic = policy.dead_letter_topic_ref
        its_own = self._topics.policy(job.tenant, topic)
        return NewJob(
            self._engine.new_id(),
            task_queue(job.tenant, topic),
            whole.payload,
            tier(its_own, job.priority),
            attempts(its_own, self._config.max_attempts),
            traceparent=job.traceparent,
            tracestate=job.tracestate,
            metadata=metadata(topic, metadata_of(whole)),
            keep_seconds=keep_seconds(its_own),
            limit_key=job.limit_key,
        )
