"""Look for anomalies in a whole history: what was promised and not kept. It knows no server, only what was seen of one."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from math import inf
from typing import NamedTuple, Protocol, TypeVar

from chargehand.engine.job import LEASE_RANDOM_BITS

from .history import ENDS, Completed, Granted, History, Outcome, Read, Renewed, Returned

ROUNDING_SECONDS = 0.002  # times in answers have milliseconds


class Anomaly(NamedTuple):
    kind: str
    job_id: str
    what: str


class OfJob(Protocol):
    @property
    def job_id(self) -> str: ...


T = TypeVar("T", bound=OfJob)


def check(history: History) -> list[Anomaly]:
    """Return all anomalies; the jobs must have been read after the last request that could change one."""
    return [anomaly for look in CHECKS for anomaly in look(history)]


def _by_job(entries: Iterable[T]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = defaultdict(list)
    for entry in entries:
        found[entry.job_id].append(entry)
    return found


def _read(history: History) -> dict[str, Read]:
    return {read.job_id: read for read in history.read}


# Jobs -------------------------------------------------------------------------------------------------------------------


def lost(history: History) -> Iterator[Anomaly]:
    """A job was acknowledged, and is not there."""
    read = _read(history)
    for job_id in _by_job(history.created):
        if job_id not in read or not read[job_id].status:
            yield Anomaly("lost", job_id, "was acknowledged and is not there")


def stuck(history: History) -> Iterator[Anomaly]:
    """A job was still not at its end when all work was done."""
    for read in history.read:
        if read.status and read.status not in ENDS:
            yield Anomaly("stuck", read.job_id, f"is {read.status} at the end")


def duplicated(history: History) -> Iterator[Anomaly]:
    """A request that was repeated made two jobs."""
    jobs: dict[str, set[str]] = defaultdict(set)
    for created in history.created:
        jobs[created.key].add(created.job_id)
    for key, ids in jobs.items():
        if len(ids) > 1:
            yield Anomaly("duplicated", min(ids), f"the key {key} made {len(ids)} jobs: {', '.join(sorted(ids))}")


def unasked(history: History) -> Iterator[Anomaly]:
    """A worker got a job that no request was ever answered with: one of a repeated request made it besides the answered one."""
    acknowledged = {created.job_id for created in history.created}
    for job_id in _by_job(history.granted).keys() - acknowledged:
        yield Anomaly("unasked", job_id, "was granted, and nobody was told that it was made")


# Leases -----------------------------------------------------------------------------------------------------------------


def granted_twice(history: History) -> Iterator[Anomaly]:
    """Two workers held a job at once: the second got it while the first's lease lasted and was not given back."""
    until = {(grant.job_id, grant.lease): grant.at + grant.seconds for grant in history.granted}
    for renewed in history.renewed:
        # The heartbeat was carried out after it was sent, so the lease lasts at least until then.
        held = (renewed.job_id, renewed.lease)
        until[held] = max(until.get(held, 0.0), renewed.began + renewed.seconds)
    let_go = _let_go(history)
    for job_id, grants in _by_job(history.granted).items():
        for first, second in combinations(sorted(grants, key=_order), 2):
            if _count(first.lease) == _count(second.lease):
                # Each claim counts, so one of the two was forgotten after it was acknowledged.
                yield Anomaly("granted twice", job_id, f"the leases {first.lease} and {second.lease} have one number")
                continue
            early = until[job_id, first.lease] - second.at
            returned = let_go.get((job_id, first.lease), inf) < second.at
            if early > ROUNDING_SECONDS and not returned:
                yield Anomaly("granted twice", job_id, f"again {early:.3f} s before the lease {first.lease} ended")


def _order(grant: Granted) -> tuple[int, float]:
    return _count(grant.lease), grant.at


def _count(lease: int) -> int:
    return lease >> LEASE_RANDOM_BITS


def _let_go(history: History) -> dict[tuple[str, int], float]:
    """Return since when a lease may have been given back: by a result, or by a worker who did not want the job."""
    since: dict[tuple[str, int], float] = {}
    entries: list[Returned | Completed] = [*history.returned, *history.completed]
    for entry in entries:
        if entry.outcome is not Outcome.REFUSED:
            held = (entry.job_id, entry.lease)
            since[held] = min(since.get(held, entry.began), entry.began)
    return since


def granted_after_the_end(history: History) -> Iterator[Anomaly]:
    """A worker got a job whose result had been acknowledged."""
    grants = _by_job(history.granted)
    for done in _done(history):
        for grant in grants.get(done.job_id, ()):
            if grant.at > done.ended + ROUNDING_SECONDS:
                yield Anomaly("granted after its end", done.job_id, f"{grant.lease} got it after {done.lease} ended it")


def heard_of_a_late_worker(history: History) -> Iterator[Anomaly]:
    """A result, a heartbeat or a job given back was taken from a worker after another had got the job."""
    grants = _by_job(history.granted)
    returned = [each for each in history.returned if each.outcome is Outcome.DONE]
    acts: list[Completed | Renewed | Returned] = [*_done(history), *history.renewed, *returned]
    for act in acts:
        for grant in grants.get(act.job_id, ()):
            if _count(grant.lease) > _count(act.lease) and grant.at < act.began:
                yield Anomaly("late worker", act.job_id, f"the lease {act.lease} counted after {grant.lease} had it")


def grant_forgotten(history: History) -> Iterator[Anomaly]:
    """A worker was refused while its lease lasted, though nothing that it had sent before can have ended the lease."""
    until = {(grant.job_id, grant.lease): grant.at + grant.seconds for grant in history.granted}
    let_go = _let_go(history)
    refused = [each for each in history.completed if each.outcome is Outcome.REFUSED]
    for each in refused:
        held = (each.job_id, each.lease)
        if each.ended < until.get(held, 0.0) - ROUNDING_SECONDS and let_go.get(held, inf) > each.began:
            yield Anomaly("grant forgotten", each.job_id, f"the lease {each.lease} was refused while it lasted")


# Results ----------------------------------------------------------------------------------------------------------------


def _done(history: History) -> list[Completed]:
    return [completed for completed in history.completed if completed.outcome is Outcome.DONE]


def completed_twice(history: History) -> Iterator[Anomaly]:
    """Two results of one job were acknowledged."""
    for job_id, done in _by_job(_done(history)).items():
        if len(done) > 1:
            yield Anomaly("completed twice", job_id, f"{len(done)} results were acknowledged")


def completion_lost(history: History) -> Iterator[Anomaly]:
    """A result was acknowledged, and the job shows none or another."""
    read = _read(history)
    for done in _done(history):
        shown = read.get(done.job_id)
        if shown is None or shown.status not in ENDS or shown.lease != done.lease:
            yield Anomaly("completion lost", done.job_id, f"the result of the lease {done.lease} is not what it shows")


def completion_invented(history: History) -> Iterator[Anomaly]:
    """A job shows a result that nobody sent, or one that was refused."""
    sent = {(each.job_id, each.lease) for each in history.completed if each.outcome is not Outcome.REFUSED}
    for read in history.read:
        if read.lease is not None and (read.job_id, read.lease) not in sent:
            yield Anomaly("completion invented", read.job_id, f"shows a result of the lease {read.lease}")


# Webhooks ---------------------------------------------------------------------------------------------------------------


def webhook_missing(history: History) -> Iterator[Anomaly]:
    """A job ended, and nobody was told."""
    told = {(told.job_id, told.status, told.lease) for told in history.told}
    for read in history.read:
        if read.status in ENDS and (read.job_id, read.status, read.lease) not in told:
            yield Anomaly("webhook missing", read.job_id, f"nobody was told that it is {read.status}")


def webhook_twice(history: History) -> Iterator[Anomaly]:
    """An event was told under two ids, so that the receiver takes it for two."""
    ids: dict[tuple[str, int], set[str]] = defaultdict(set)
    for told in history.told:
        ids[told.job_id, told.sequence].add(told.webhook_id)
    for (job_id, sequence), known in ids.items():
        if len(known) > 1:
            yield Anomaly("webhook twice", job_id, f"event {sequence} came as {', '.join(sorted(known))}")


def webhook_wrong(history: History) -> Iterator[Anomaly]:
    """A webhook told an end that the job does not show."""
    read = _read(history)
    for told in history.told:
        shown = read.get(told.job_id)
        if told.status in ENDS and (shown is None or (shown.status, shown.lease) != (told.status, told.lease)):
            yield Anomaly("webhook wrong", told.job_id, f"{told.status} by the lease {told.lease} was told")


def webhook_early(history: History) -> Iterator[Anomaly]:
    """A webhook told a result before a worker had sent it."""
    sent = {(each.job_id, each.lease): each.began for each in reversed(history.completed)}
    for told in history.told:
        if told.lease is not None and told.at < sent.get((told.job_id, told.lease), -inf):
            yield Anomaly(
                "webhook early", told.job_id, f"the result of the lease {told.lease} was told before it was sent"
            )


CHECKS: tuple[Callable[[History], Iterator[Anomaly]], ...] = (
    lost,
    stuck,
    duplicated,
    unasked,
    granted_twice,
    granted_after_the_end,
    heard_of_a_late_worker,
    grant_forgotten,
    completed_twice,
    completion_lost,
    completion_invented,
    webhook_missing,
    webhook_twice,
    webhook_wrong,
    webhook_early,
)
