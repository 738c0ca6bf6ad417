"""A lane is what this node knows of one endpoint: its deliveries in flight, its buffer of deliveries and its circuit breaker."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from chargehand.engine.backoff import ceiling
from chargehand.engine.delivery import Outgoing

MAX_COOL_DOWN = 16  # times the breaker's first pause


class Pace(NamedTuple):
    """How a delivery would be retried by its own policy, after the try that failed."""

    attempt: int
    base_seconds: float
    max_seconds: float


@dataclass(slots=True, eq=False)
class Lane:
    endpoint_id: str
    buffer: deque[Outgoing] = field(default_factory=deque)  # taken, not yet sent
    fresh_until: float = 0.0  # monotonic; after that the leases of the buffered deliveries may have lapsed
    busy_jobs: set[str] = field(default_factory=set)
    in_flight: int = 0
    failures: int = 0  # in a row
    trips: int = 0  # times the breaker opened since the last success
    backoff_until: float = 0.0  # monotonic; nothing is sent before that
    wanted: bool = False  # there may be more to take
    taking: bool = False

    def next_outgoing(self, now: float) -> Outgoing | None:
        """Remove and return the oldest delivery whose job has no other in flight, so that a job's events arrive in order."""
        if now > self.fresh_until:
            self.buffer.clear()  # their leases may have lapsed: take them again
            self.wanted = True
        for place, outgoing in enumerate(self.buffer):
            if outgoing.job.id not in self.busy_jobs:
                del self.buffer[place]
                return outgoing
        return None

    def fill(self, taken: Iterable[Outgoing], fresh_until: float) -> None:
        self.fresh_until = min(self.fresh_until, fresh_until) if self.buffer else fresh_until
        self.buffer.extend(taken)

    def begin(self, outgoing: Outgoing) -> None:
        self.in_flight += 1
        self.busy_jobs.add(outgoing.job.id)

    def end(self, outgoing: Outgoing) -> None:
        self.in_flight -= 1
        self.busy_jobs.discard(outgoing.job.id)

    def in_backoff(self, now: float) -> bool:
        """Is the breaker open, so that nothing may be sent now?"""
        return now < self.backoff_until

    def on_probation(self) -> bool:
        """Has the breaker opened since the last success? Then only one delivery may be in flight."""
        return self.trips > 0

    def succeeded(self) -> None:
        self.failures = self.trips = 0
        self.backoff_until = 0.0

    def failed(self, now: float, threshold: int, pause_seconds: float, spread: float, pace: Pace) -> None:
        """Count a failure; after too many in a row open the breaker, each time for longer.

        It opens for no longer than the delivery's own policy would wait, so that a receiver that is soon back is soon asked.
        """
        if self.in_backoff(now):
            return  # was in flight when the breaker opened: already counted for
        self.failures += 1
        if self.failures >= threshold or self.trips:
            pause = min(pause_seconds * min(2**self.trips, MAX_COOL_DOWN), self._pause_of(pace))
            self.trips += 1
            self.failures = 0
            self.backoff_until = max(self.backoff_until, now + pause * (1 + spread / 4))

    def _pause_of(self, pace: Pace) -> float:
        """Return the pause of a policy after as many tries as this delivery has had, or after as many probes if those are more.

        A policy without pauses would let the breaker never close the lane: it has no say.
        """
        if not pace.base_seconds:
            return inf
        return ceiling(max(pace.attempt, self.trips + 1), pace.base_seconds, pace.max_seconds)

    def idle(self, now: float) -> bool:
        """Return whether the lane holds nothing worth keeping, so that it can be dropped."""
        return not (self.buffer or self.in_flight or self.wanted or self.taking or self.trips or self.failures) and (
            not self.in_backoff(now)
        )
