"""Who is told that a queue has work, and when. No clock, no store, no network: a bell and a pulse in, a bell and names out.

Subscribers are told of the edge at which a queue gets work, not of work that they were told of. That is when all that is
ready became ready after the queue was last known to have work; or a task that was put in for later became ready; or a paused
queue goes on. An edge is owed to each *unit*: every fanout subscription by itself, every group, and all hash subscriptions
together. A unit whose members were all told a moment ago stays owed until one may be told again, and is then told if there is
still work: a sleeping worker is never left with work that it was not told of.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from chargehand.doors.tasks.subscription import Subscription
from chargehand.engine.job import SECOND
from chargehand.engine.store import Pulse

MINUTE = 60 * SECOND
KEPT = (
    60 * MINUTE
)  # another node may know a subscriber that this one does not know yet: when it was told is kept for a while
HASH = "hash"


class Bell(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is remembered of a queue that has subscribers."""

    until: int = 0  # the newest work that was seen; what is newer than that was not there
    owed: tuple[str, ...] = ()  # the units that are still to be told of the last edge
    turns: dict[str, str] = {}  # group -> the member told last
    sent: dict[str, int] = {}  # subscription -> when it was told last
    shut: bool = False  # it was paused when last seen: to workers, what is in it will be new


class Ringing(msgspec.Struct, frozen=True):
    bell: Bell
    told: tuple[Subscription, ...] = ()
    again_at: int | None = None  # when somebody may be told who may not now
    changed: bool = False  # must be written down, before anybody is told: of several nodes, one may


def ring(
    bell: Bell, subscriptions: Sequence[Subscription], pulse: Pulse, sent_elsewhere: Mapping[str, int] = {}
) -> Ringing:
    """`subscriptions` are those that match and have not expired, sorted by id; `sent_elsewhere` is when they were last
    told of other queues, since the least interval between two notifications is the subscriber's, whatever they are about."""
    if pulse.paused:
        return Ringing(replace(bell, owed=(), shut=True), changed=not bell.shut)
    if not pulse.ready:
        return Ringing(replace(bell, owed=(), shut=False), changed=bell.shut)
    at = pulse.at
    until = min(bell.until, at)  # a clock that was set back must not make us deaf
    units = _units(subscriptions)
    edge = bell.shut or pulse.delayed or (pulse.oldest_at or 0) > until
    owed = set(units) if edge else units.keys() & bell.owed
    known = {each.id for each in subscriptions}
    sent = {each: when for each, when in bell.sent.items() if each in known or at - when < KEPT}
    turns = {unit: member for unit, member in bell.turns.items() if unit in units}
    told: list[Subscription] = []
    waits: list[int] = []
    for unit in sorted(owed):
        candidates = _candidates(unit, units[unit], turns.get(unit, ""), at)
        free_ats = [_free_at(each, sent, sent_elsewhere, at) for each in candidates]
        chosen = next((each for each, free in zip(candidates, free_ats, strict=True) if free <= at), None)
        if chosen is None:
            # In the next minute it may be another one's turn.
            waits.append(min(*free_ats, at - at % MINUTE + MINUTE) if unit == HASH else min(free_ats))
            continue
        told.append(chosen)
        owed.discard(unit)
        sent[chosen.id] = at
        if chosen.terms.mode == "group":
            turns[unit] = chosen.id
    changed = bool(told) or bell.shut or not owed <= set(bell.owed)
    now = Bell(max(until, pulse.newest_at or 0), tuple(sorted(owed)), turns, sent)
    return Ringing(now, tuple(told), min(waits, default=None), changed)


def _units(subscriptions: Sequence[Subscription]) -> dict[str, list[Subscription]]:
    units: dict[str, list[Subscription]] = {}
    for each in subscriptions:
        names = {"fanout": f"one:{each.id}", "group": f"group:{each.terms.group}", "hash": HASH}
        units.setdefault(names[each.terms.mode], []).append(each)
    return units


def _candidates(unit: str, members: list[Subscription], last: str, at: int) -> list[Subscription]:
    """In the order in which they are asked."""
    if unit == HASH:
        return [members[at // MINUTE % len(members)]]
    begin = bisect_right([each.id for each in members], last)
    return members[begin:] + members[:begin]


def _free_at(subscription: Subscription, sent: Mapping[str, int], elsewhere: Mapping[str, int], at: int) -> int:
    last = max(sent.get(subscription.id, 0), elsewhere.get(subscription.id, 0))
    if not last or last > at + subscription.interval:
        return 0  # never, or in a future that a clock which was set back has not seen
    return last + subscription.interval
