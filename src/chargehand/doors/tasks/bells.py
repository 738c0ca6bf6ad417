"""Which subscribers are notified that a queue has work, and when. Pure: no clock, no store, no network.

Subscribers are notified of the edge at which a queue gets work, not of work that they know of. It is an edge when all ready
tasks became ready after the queue was last known to have work; when a delayed task becomes ready; and when a paused queue
resumes. An edge is owed to each *unit*: every fanout subscription by itself, every group, and all hash subscriptions together.
A unit whose members were all notified a moment ago stays owed until one of them may be notified again, and is then notified if
there is still work: no worker sleeps beside work that it does not know of.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from chargehand.doors.tasks.subscription import Subscription
from chargehand.engine.job import SECOND
from chargehand.engine.reads import Pulse

MINUTE = 60 * SECOND
# How long `sent` keeps a subscriber that this node does not know: another node may know it already.
KEPT = 60 * MINUTE
HASH = "hash"


class Bell(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a queue that has subscribers; stored as a record."""

    until: int = 0  # run_at of the newest work that was seen: newer work is an edge
    owed: tuple[str, ...] = ()  # the units that are still to be notified of the last edge
    turns: dict[str, str] = {}  # group -> the member that was notified last
    sent: dict[str, int] = {}  # subscription -> when it was notified last
    shut: bool = False  # the queue was paused when last seen: resuming it is an edge


class Ringing(msgspec.Struct, frozen=True):
    bell: Bell
    notified: tuple[Subscription, ...] = ()
    again_at: int | None = None  # when a unit that is owed may be notified
    changed: bool = False  # the bell must be stored before anybody is notified: only one of several nodes can store it


def ring(
    bell: Bell, subscriptions: Sequence[Subscription], pulse: Pulse, sent_elsewhere: Mapping[str, int] = {}
) -> Ringing:
    """Decide whom to notify of a queue whose state is `pulse`.

    `subscriptions` are those that match and have not expired, sorted by id. `sent_elsewhere` is when they were last notified
    of other queues: the least interval between two notifications counts over all queues of a subscriber.
    """
    if pulse.paused:
        return Ringing(replace(bell, owed=(), shut=True), changed=not bell.shut)
    if not pulse.ready:
        return Ringing(replace(bell, owed=(), shut=False), changed=bell.shut)
    at = pulse.at
    until = min(bell.until, at)  # after the clock was set back, new work must still count as new
    units = _units(subscriptions)
    edge = bell.shut or pulse.delayed or (pulse.oldest_at or 0) > until
    owed = set(units) if edge else units.keys() & bell.owed
    known = {each.id for each in subscriptions}
    sent = {each: when for each, when in bell.sent.items() if each in known or at - when < KEPT}
    turns = {unit: member for unit, member in bell.turns.items() if unit in units}
    notified: list[Subscription] = []
    waits: list[int] = []
    for unit in sorted(owed):
        candidates = _candidates(unit, units[unit], turns.get(unit, ""), at)
        free_ats = [_free_at(each, sent, sent_elsewhere, at) for each in candidates]
        chosen = next((each for each, free in zip(candidates, free_ats, strict=True) if free <= at), None)
        if chosen is None:
            # In the next minute the hash may choose another member.
            waits.append(min(*free_ats, at - at % MINUTE + MINUTE) if unit == HASH else min(free_ats))
            continue
        notified.append(chosen)
        owed.discard(unit)
        sent[chosen.id] = at
        if chosen.terms.mode == "group":
            turns[unit] = chosen.id
    changed = bool(notified) or bell.shut or not owed <= set(bell.owed)
    now = Bell(max(until, pulse.newest_at or 0), tuple(sorted(owed)), turns, sent)
    return Ringing(now, tuple(notified), min(waits, default=None), changed)


def _units(subscriptions: Sequence[Subscription]) -> dict[str, list[Subscription]]:
    units: dict[str, list[Subscription]] = {}
    for each in subscriptions:
        names = {"fanout": f"one:{each.id}", "group": f"group:{each.terms.group}", "hash": HASH}
        units.setdefault(names[each.terms.mode], []).append(each)
    return units


def _candidates(unit: str, members: list[Subscription], last: str, at: int) -> list[Subscription]:
    """Return the members in the order in which one of them is chosen."""
    if unit == HASH:
        return [members[at // MINUTE % len(members)]]
    begin = bisect_right([each.id for each in members], last)
    return members[begin:] + members[:begin]


def _free_at(subscription: Subscription, sent: Mapping[str, int], elsewhere: Mapping[str, int], at: int) -> int:
    last = max(sent.get(subscription.id, 0), elsewhere.get(subscription.id, 0))
    if not last or last > at + subscription.interval:
        return 0  # never notified, or in the future because the clock was set back
    return last + subscription.interval
