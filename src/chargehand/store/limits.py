"""Limits of a queue, decided in the transaction of the claim: what it may start now, and which keys have the next turns.

Generators of statements, as in `steps.py`, since both databases do this alike. On PostgreSQL the row of the queue's settings is
locked meanwhile. A start counts for the length of the rate, in every window of that length: no clock divides time into windows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from chargehand.engine.held import PAUSED
from chargehand.engine.job import SECOND, Job, QueueSettings, Rate
from chargehand.engine.queue import Queue
from chargehand.engine.store import LOOK_ON
from chargehand.store.queries import columns
from chargehand.store.steps import Asking, Statement

KEYS_AT_ONCE = 16  # whose limits the first statement reads; each further one reads twice as many
MOST_KEYS = 4096  # that a claim looks at; the next one goes on behind them


class Found(NamedTuple):
    """A job that may be claimed."""

    priority: int
    run_at: int
    job_id: str
    key: str = ""  # whose turn it is, where keys take turns


class RoomToStart(NamedTuple):
    """How many jobs may start now, and when that changes although none ends."""

    free: int
    later_at: int | None = None


class Offer(NamedTuple):
    """What a queue may start, in the order of the turns, and when that changes although none ends."""

    found: list[Found]
    later_at: int | None


class _Key(NamedTuple):
    name: str
    room: RoomToStart


def rate_room(queue: Queue, rate: Rate | None, room: int) -> Asking[RoomToStart]:
    """Return how much of a room the queue's rate leaves."""
    if rate is None or not room:
        return RoomToStart(room)
    [(started, first_at)] = yield "recent_starts", columns(queue) | _window(rate)
    return _left(rate, room, int(started), first_at)


def offer(settings: QueueSettings, want: int) -> Asking[Offer]:
    """Find jobs of a queue whose keys are limited: the keys take turns, and within one it goes by priority, then age."""
    queue = settings.queue
    [(turn,)] = yield "last_turn", columns(queue)
    found: list[list[Found]] = []  # for each key that may start something, in the order of their turns
    later: int | None = None
    after, last, looked, wrapped, at_once = turn, "", 0, False, KEYS_AT_ONCE
    while sum(map(len, found)) < want and looked < MOST_KEYS:
        rows = yield "ready_keys", columns(queue) | _asked(settings, after, last, at_once)
        looked += len(rows)
        keys = [_key(settings, row) for row in rows]
        later = _sooner(later, *(key.room.later_at for key in keys))
        found += yield from _jobs_of(queue, [key for key in keys if key.room.free], want)
        if len(rows) == at_once:
            after, at_once = rows[-1][0], min(at_once * 2, MOST_KEYS - looked)
        elif wrapped:
            break
        else:  # behind the last key come the jobs without one, then the first key
            found += yield from _keyless(queue, want)
            if not turn:
                break
            after, last, wrapped = "", turn, True
    dealt = _deal(found, want)
    if looked >= MOST_KEYS and not dealt:
        yield "set_turn", columns(queue) | {"turn": after}
        return Offer([], LOOK_ON)
    return Offer(dealt, later)


def in_turn(chosen: Iterable[tuple[Queue, str]], offered: Mapping[Queue, Iterable[Found]]) -> list[tuple[Queue, str]]:
    """Of several queues, the most urgent jobs say how many each may start. Which of them start is said by the turns of its keys."""
    turns = {queue: iter(found) for queue, found in offered.items()}
    return [(queue, next(turns[queue]).job_id if queue in turns else job_id) for queue, job_id in chosen]


def moved_turn(settings: QueueSettings, started: Iterable[tuple[Queue, str]]) -> Iterator[Statement]:
    """Remember whose turn was the last, of the keys of these jobs in the order of their turns."""
    if keys := [key for queue, key in started if queue == settings.queue and settings.limits.by_key]:
        yield "set_turn", columns(settings.queue) | {"turn": keys[-1]}


def started(settings: QueueSettings, jobs: Sequence[Job]) -> Iterator[dict[str, Any]]:
    """Return the rows that remember the starts of these jobs, if a rate counts them."""
    if settings.window:
        for job in jobs:
            if job.queue == settings.queue:
                yield columns(job.queue) | {"limit_key": job.limit_key, "at": job.updated_at}


def holding(settings: QueueSettings, key: str) -> Asking[str]:
    """Say which limit a due job of this queue and key waits for; nothing if it is none."""
    queue, limits = settings.queue, settings.limits
    if settings.paused:
        return PAUSED
    if settings.max_running is not None:
        [(running,)] = yield "running_in", columns(queue)
        if running >= settings.max_running:
            return f"limit: {settings.max_running} of this queue at once"
    if limits.rate is not None and not (yield from rate_room(queue, limits.rate, 1)).free:
        return f"limit: {limits.rate} of this queue"
    if not (key and limits.by_key):
        return ""
    [row] = yield "state_of_key", columns(queue) | _asked(settings) | {"limit_key": key}
    if limits.key_max_running is not None and row[1] >= limits.key_max_running:
        return f"limit: {limits.key_max_running} of the key {key} at once"
    return "" if _key(settings, row).room.free else f"limit: {limits.key_rate} of the key {key}"


def _asked(settings: QueueSettings, after: str = "", last: str = "", limit: int = 0) -> dict[str, Any]:
    limits = settings.limits
    return {
        "after": after,
        "last": last,
        "limit": limit,
        "most": limits.key_max_running or 0,
        **_window(limits.key_rate or Rate(0, 0)),
    }


def _window(rate: Rate) -> dict[str, Any]:
    return {"count": rate.count, "length": int(rate.seconds * SECOND)}


def _key(settings: QueueSettings, row: Sequence[Any]) -> _Key:
    name, running, started, first_at = row
    limits = settings.limits
    room = MOST_KEYS if limits.key_max_running is None else max(0, limits.key_max_running - int(running))
    return _Key(
        name, RoomToStart(room) if limits.key_rate is None else _left(limits.key_rate, room, int(started), first_at)
    )


def _left(rate: Rate, room: int, started: int, first_at: int | None) -> RoomToStart:
    left = max(0, rate.count - started)
    later_at = first_at + int(rate.seconds * SECOND) if room and not left and first_at is not None else None
    return RoomToStart(min(room, left), later_at)


def _sooner(*instants: int | None) -> int | None:
    return min((at for at in instants if at is not None), default=None)


def _jobs_of(queue: Queue, keys: Sequence[_Key], want: int) -> Asking[list[list[Found]]]:
    """Find the next jobs of each key: one of each if there are keys enough, unless some have nothing due."""
    if not keys:
        return []
    for each in (1, want) if len(keys) >= want else (want,):
        rows = yield "jobs_of_keys", columns(queue) | {"keys": [key.name for key in keys], "each": each}
        found = {key.name: list[Found]() for key in keys}
        for name, priority, run_at, job_id in rows:
            found[name].append(Found(priority, run_at, job_id, name))
        of_keys = [_in_order(found[key.name])[: key.room.free] for key in keys]
        if sum(map(len, of_keys)) >= want:
            break
    return [each for each in of_keys if each]


def _keyless(queue: Queue, want: int) -> Asking[list[list[Found]]]:
    rows = yield "keyless_jobs", columns(queue) | {"each": want}
    return [_in_order([Found(*row) for row in rows])] if rows else []


def _in_order(found: list[Found]) -> list[Found]:
    return sorted(found, key=lambda each: (-each.priority, each.run_at, each.job_id))


def _deal(found: Sequence[Sequence[Found]], want: int) -> list[Found]:
    """Take one job of each key in turn until there are as many as wanted."""
    rounds = max(map(len, found), default=0)
    return [of_key[number] for number in range(rounds) for of_key in found if number < len(of_key)][:want]
