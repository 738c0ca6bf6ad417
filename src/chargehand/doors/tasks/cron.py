"""Cron expressions in time zones: what is allowed, and when the next tick is. Pure: the time is an argument.

The five fields mean what they mean to Debian's cron, and so do the two nights on which clocks are changed. An expression that
names hours and minutes (`30 2 * * *`) runs once a day: where its time does not exist it runs as soon as the clock has jumped,
where its time comes twice it runs the first time. One that begins its minutes or hours with `*` follows the time that
passes: `*/10 * * * *` runs every ten minutes all night, and `*/10 2 * * *` not at all or for two hours.
"""

from datetime import UTC, datetime, tzinfo
from difflib import get_close_matches
from functools import cache, lru_cache
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from chargehand.engine.job import SECOND
from chargehand.errors import InvalidField

MINUTE = 60 * SECOND
MAX_CHARACTERS = 200
NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_SHAPE = f"minute hour day-of-month month day-of-week, or one of {', '.join(NAMED)}"
_LISTS = "*, lists (1,2), ranges (1-5) and steps (*/2)"
# The fields in their order, and CronSim's names for them.
_ALLOWED = {
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31 (of days that a named month has), L for the last day, LW for the last weekday",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 (0 and 7 are Sunday) or SUN-SAT, MON#2 for the second Monday, 5L for the last Friday",
}


def check(expression: str, timezone: str, now: int) -> None:
    """Raise InvalidField unless both are valid and there is a next tick."""
    fields = _fields(expression)
    zone(timezone)
    try:
        CronSim(fields, datetime(2000, 1, 1))
    except CronSimError as error:
        raise _wrong(fields, str(error)) from None
    if next_tick(expression, timezone, now) is None:
        raise InvalidField("cron", f"{expression!r} names days that do not come in the next 50 years")


def zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    if name not in _names():
        near = get_close_matches(name[:100].lower(), _names().values(), 1, 0.8)
        meant = [known for known, low in _names().items() if low in near]
        hint = f"; did you mean {meant[0]}?" if meant else ""
        raise InvalidField(
            "timezone", f"{name[:100]!r} is not known; allowed are IANA names such as Europe/Berlin or UTC{hint}"
        )
    return ZoneInfo(name)


def next_tick(expression: str, timezone: str, after: int) -> int | None:
    """Return the first tick after `after`, in microseconds; None if there is none within 50 years."""
    start = datetime.fromtimestamp(after // SECOND, UTC).astimezone(zone(timezone))
    for tick in CronSim(_fields(expression), start):
        # In the hour that is repeated when summer time ends, CronSim may return a tick of its first run, which is past.
        at = int(tick.timestamp()) * SECOND
        if at > after:
            return at
    return None


def latest_tick(expression: str, timezone: str, tick: int, now: int) -> int:
    """Return the last tick up to `now`, given an earlier one. Bisects: a year of minutes is half a million ticks."""
    until = now  # no tick after this one
    while until - tick >= MINUTE:
        middle = (tick + until) // 2
        found = next_tick(expression, timezone, middle)
        if found is not None and found <= now:
            tick = found
        else:
            until = middle
    return tick


def following(expression: str, timezone: str, after: int, count: int) -> list[int]:
    ticks: list[int] = []
    while len(ticks) < count:
        tick = next_tick(expression, timezone, ticks[-1] if ticks else after)
        if tick is None:
            break
        ticks.append(tick)
    return ticks


@lru_cache(maxsize=1024)
def _fields(expression: str) -> str:
    """Require five fields: CronSim would accept a sixth, for seconds."""
    text = expression.strip()
    if not 1 <= len(text) <= MAX_CHARACTERS:
        raise InvalidField("cron", f"must have 1 to {MAX_CHARACTERS} characters; allowed is {_SHAPE}")
    if text.startswith("@"):
        if text.lower() not in NAMED:
            raise InvalidField("cron", f"{text!r} is not known; allowed is {_SHAPE}")
        return NAMED[text.lower()]
    fields = text.split()
    if len(fields) != len(_ALLOWED):
        raise InvalidField("cron", f"{text!r} has {len(fields)} fields and not 5; allowed is {_SHAPE}")
    return " ".join(fields)


def _wrong(fields: str, said: str) -> InvalidField:
    name = said.removeprefix("Bad ")
    value = dict(zip(_ALLOWED, fields.split(), strict=True)).get(name, fields)
    allowed = f"; allowed are {_ALLOWED[name]}, with {_LISTS}" if name in _ALLOWED else ""
    return InvalidField("cron", f"the {name} {value!r} is not possible{allowed}")


@cache
def _names() -> dict[str, str]:
    """Return the names of time zones by their lower-case form, to suggest one. Without `localtime`, which differs by machine."""
    return {name: name.lower() for name in sorted(available_timezones() - {"localtime", "Factory"})}
