"""A lane is what a sender knows of one endpoint: what is in flight, what waits, and whether it is better left alone."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from chargehand.engine.delivery import Outgoing

MAX_COOL_DOWN = 16  # times the breaker's first pause


@dataclass(slots=True, eq=False)
class Lane:
    endpoint_id: str
    buffer: deque[Outgoing] = field(default_factory=deque)  # taken, not yet sent
    fresh_until: float = 0.0  # monotonic; after that somebody else may have taken what is in the buffer
    busy_jobs: set[str] = field(default_factory=set)
    in_flight: int = 0
    failures: int = 0  # in a row
    trips: int = 0  # times the breaker opened since the last success
    closed_until: float = 0.0  # monotonic; nothing is sent before
    wanted: bool = False  # there may be more to take
    taking: bool = False

    def next_outgoing(self, now: float) -> Outgoing | None:
        """The oldest whose job has nothing else in flight here, so that a job's events arrive in their order."""
        if now > self.fresh_until:
            self.buffer.clear()  # waited too long: whoever takes it next, sends it
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

    def is_open(self, now: float) -> bool:
        """The breaker is open: left alone."""
        return now < self.closed_until

    def on_probation(self) -> bool:
        """After a pause one delivery goes ahead alone."""
        return self.trips > 0

    def succeeded(self) -> None:
        self.failures = self.trips = 0
        self.closed_until = 0.0

    def failed(self, now: float, threshold: int, pause_seconds: float, spread: float) -> None:
        """Counts a failure; opens the breaker when there were too many in a row, longer each time."""
        if self.is_open(now):
            return  # was in flight when the breaker opened: says nothing new
        self.failures += 1
        if self.failures >= threshold or self.trips:
            pause = pause_seconds * min(2**self.trips, MAX_COOL_DOWN) * (1 + spread / 4)
            self.trips += 1
            self.failures = 0
            self.closed_until = max(self.closed_until, now + pause)

    def idle(self, now: float) -> bool:
        """Nothing to remember: the lane can be forgotten."""
        return not (self.buffer or self.in_flight or self.wanted or self.taking or self.trips or self.failures) and (
            not self.is_open(now)
        )
