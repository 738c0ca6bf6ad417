"""Statistics of each endpoint for the last hour at this node: tries, successes and durations.

Kept in memory and lost with the process. The tries themselves are in the store.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Annotated

import msgspec

from chargehand.observability.hour import LastHour

MAX_ENDPOINTS = 1000  # beyond that, the one whose last try is oldest is dropped
# From 1 ms to over a minute in steps of 20 %, so that an estimate is at most 20 % too high.
BOUNDS = tuple(0.001 * 1.2**step for step in range(64))


class EndpointHour(msgspec.Struct):
    """One endpoint's last hour at this node. The lists have sixty numbers, the last for this minute; empty if there was no try."""

    tries: int = 0
    delivered: int = 0
    success_rate: Annotated[float | None, msgspec.Meta(description="delivered / tries; null if there was no try")] = (
        None
    )
    p50_seconds: Annotated[float | None, msgspec.Meta(description="Half of the tries took at most so long")] = None
    p95_seconds: Annotated[float | None, msgspec.Meta(description="95 % of the tries took at most so long")] = None
    delivered_by_minute: list[int] = msgspec.field(default_factory=list)
    failed_by_minute: list[int] = msgspec.field(default_factory=list)


class _Minute:
    __slots__ = ("delivered", "failed", "lengths")

    def __init__(self) -> None:
        self.delivered = self.failed = 0
        self.lengths: Counter[int] = Counter()  # tries, by index into BOUNDS


class Hours:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._endpoints: dict[str, LastHour[_Minute]] = {}  # ordered by last try

    def count(self, endpoint_id: str, delivered: bool, seconds: float) -> None:
        hour = self._endpoints[endpoint_id] = self._endpoints.pop(endpoint_id, LastHour(_Minute))
        if len(self._endpoints) > MAX_ENDPOINTS:
            del self._endpoints[next(iter(self._endpoints))]
        minute = hour.at(self._minute())
        minute.lengths[bisect_left(BOUNDS, seconds)] += 1
        if delivered:
            minute.delivered += 1
        else:
            minute.failed += 1

    def hour(self, endpoint_id: str) -> EndpointHour:
        if endpoint_id not in self._endpoints:
            return EndpointHour()
        shown = self._endpoints[endpoint_id].until(self._minute())
        delivered = [0 if each is None else each.delivered for each in shown]
        failed = [0 if each is None else each.failed for each in shown]
        tries, good = sum(delivered) + sum(failed), sum(delivered)
        if not tries:
            return EndpointHour()
        lengths: Counter[int] = Counter()
        for each in shown:
            if each is not None:
                lengths.update(each.lengths)
        return EndpointHour(tries, good, good / tries, _within(lengths, 0.5), _within(lengths, 0.95), delivered, failed)

    def _minute(self) -> int:
        return int(self._clock() // 60)


def _within(lengths: Counter[int], share: float) -> float:
    """Return the duration that this share of the tries does not exceed, at most the last bound."""
    places = sorted(lengths)
    wanted = math.ceil(lengths.total() * share)
    counts: Iterable[int] = accumulate(lengths[place] for place in places)
    place = next(place for place, count in zip(places, counts, strict=True) if count >= wanted)
    return round(BOUNDS[min(place, len(BOUNDS) - 1)], 4)
