"""When a schedule ticks: pure functions, without a clock or a store."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.doors.tasks import cron
from chargehand.engine.job import SECOND
from chargehand.errors import InvalidField

BERLIN = "Europe/Berlin"
ZONES = [
    "UTC",
    BERLIN,
    "America/New_York",
    "Africa/Cairo",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Sao_Paulo",
]
NOW = 1_800_000_000 * SECOND
YEAR = 366 * 86_400 * SECOND


def micros(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * SECOND


def ticks(expression: str, after: str, count: int, zone: str = "UTC") -> list[str]:
    """Return the ticks with their offset, which distinguishes the two passages of an hour in autumn."""
    found = cron.following(expression, zone, micros(after, zone), count)
    return [datetime.fromtimestamp(tick // SECOND, ZoneInfo(zone)).isoformat(timespec="minutes") for tick in found]


def test_the_next_tick_is_later_than_the_given_time() -> None:
    at = micros("2026-05-01T10:00")
    assert cron.next_tick("0 10 * * *", "UTC", at - 1) == at
    assert cron.next_tick("0 10 * * *", "UTC", at) == at + 86_400 * SECOND


def test_a_daily_time_that_spring_skips_runs_right_after_the_clock_change() -> None:
    assert ticks("30 2 * * *", "2026-03-28T12:00", 2, BERLIN) == ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]


def test_a_daily_time_that_autumn_repeats_runs_the_first_time_only() -> None:
    assert ticks("30 2 * * *", "2026-10-24T12:00", 2, BERLIN) == ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]


def test_in_the_second_passage_of_an_hour_the_next_daily_tick_is_tomorrow() -> None:
    second_passage = micros("2026-10-25T01:10")  # 02:10 in Berlin, the second time on that day
    assert cron.next_tick("30 2 * * *", BERLIN, second_passage) == micros("2026-10-26T01:30")


def test_an_hourly_schedule_ticks_every_elapsed_hour_in_spring_and_in_autumn() -> None:
    assert ticks("0 * * * *", "2026-03-29T00:30", 3, BERLIN) == [
        "2026-03-29T01:00+01:00", "2026-03-29T03:00+02:00", "2026-03-29T04:00+02:00"
    ]  # fmt: skip
    assert ticks("0 * * * *", "2026-10-25T01:30", 3, BERLIN) == [
        "2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00", "2026-10-25T03:00+01:00"
    ]  # fmt: skip


def test_a_time_of_day_follows_the_zone_and_not_utc() -> None:
    assert ticks("0 9 * * *", "2026-03-28T08:00", 2, BERLIN) == ["2026-03-28T09:00+01:00", "2026-03-29T09:00+02:00"]


def test_the_31st_comes_in_the_months_that_have_one() -> None:
    assert ticks("0 0 31 * *", "2026-01-31T00:00", 3) == [
        "2026-03-31T00:00+00:00", "2026-05-31T00:00+00:00", "2026-07-31T00:00+00:00"
    ]  # fmt: skip


def test_the_last_day_of_the_month_is_found_also_in_a_leap_year() -> None:
    assert ticks("0 0 L * *", "2028-01-31T00:00", 2) == ["2028-02-29T00:00+00:00", "2028-03-31T00:00+00:00"]


def test_a_leap_day_comes_in_leap_years() -> None:
    assert ticks("0 0 29 2 *", "2026-01-01T00:00", 2) == ["2028-02-29T00:00+00:00", "2032-02-29T00:00+00:00"]


def test_a_year_goes_over_into_the_next() -> None:
    assert ticks("59 23 31 12 *", "2026-12-31T23:59", 1) == ["2027-12-31T23:59+00:00"]


@pytest.mark.parametrize(
    ("name", "following"),
    [
        ("@hourly", "2026-05-15T11:00+00:00"),
        ("@daily", "2026-05-16T00:00+00:00"),
        ("@weekly", "2026-05-17T00:00+00:00"),  # a Sunday
        ("@monthly", "2026-06-01T00:00+00:00"),
        ("@yearly", "2027-01-01T00:00+00:00"),
        ("@Daily", "2026-05-16T00:00+00:00"),
    ],
)
def test_named_schedules_tick_as_their_names_say(name: str, following: str) -> None:
    assert ticks(name, "2026-05-15T10:20", 1) == [following]


def test_steps_lists_ranges_and_names_are_known() -> None:
    assert ticks("*/20 8-9,12 * JAN-mar,12 mon", "2026-02-28T12:00", 4) == [
        "2026-03-02T08:00+00:00", "2026-03-02T08:20+00:00", "2026-03-02T08:40+00:00", "2026-03-02T09:00+00:00"
    ]  # fmt: skip
    assert ticks("0 0 * * 7", "2026-05-15T10:20", 1) == ticks("0 0 * * 0", "2026-05-15T10:20", 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("60 * * * *", "the minute '60' is not possible; allowed are 0-59"),
        ("-1 * * * *", "the minute '-1' is not possible; allowed are 0-59"),
        ("*/0 * * * *", "the minute '*/0' is not possible; allowed are 0-59"),
        ("1, * * * *", "the minute '1,' is not possible; allowed are 0-59"),
        ("5-1 * * * *", "the minute '5-1' is not possible; allowed are 0-59"),
        ("* 24 * * *", "the hour '24' is not possible; allowed are 0-23"),
        ("* * 0 * *", "the day-of-month '0' is not possible; allowed are 1-31"),
        ("0 0 30 2 *", "the day-of-month '30' is not possible; allowed are 1-31 (of days that a named month has)"),
        ("* * * 13 *", "the month '13' is not possible; allowed are 1-12 or JAN-DEC"),
        ("* * * MAI *", "the month 'MAI' is not possible; allowed are 1-12 or JAN-DEC"),
        ("* * * * 8", "the day-of-week '8' is not possible; allowed are 0-7 (0 and 7 are Sunday) or SUN-SAT"),
        ("* * * *", "'* * * *' has 4 fields and not 5; allowed is minute hour day-of-month month day-of-week"),
        ("0 * * * * *", "'0 * * * * *' has 6 fields and not 5; allowed is minute hour day-of-month"),
        ("@often", "'@often' is not known; allowed is minute hour day-of-month month day-of-week, or one of @hourly"),
        ("", "must have 1 to 200 characters"),
        ("* " * 200, "must have 1 to 200 characters"),
        ("0 0 */20 * MON#2", "names days that do not come in the next 50 years"),
    ],
)
def test_an_invalid_expression_is_refused_with_what_is_wrong_and_what_is_allowed(wrong: str, message: str) -> None:
    with pytest.raises(InvalidField) as refused:
        cron.check(wrong, "UTC", NOW)
    assert refused.value.field == "cron"
    assert message in refused.value.message


@pytest.mark.parametrize(
    "wrong", ["", "Mars/Olympus", "../UTC", "/etc/localtime", "localtime", "Europe", "right/UTC", "CEST"]
)
def test_an_unknown_time_zone_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidField, match="allowed are IANA names such as Europe/Berlin or UTC") as refused:
        cron.check("@daily", wrong, NOW)
    assert refused.value.field == "timezone"


def test_a_time_zone_in_another_spelling_is_refused_with_the_right_one() -> None:
    with pytest.raises(InvalidField, match=r"did you mean Europe/Berlin\?"):
        cron.check("@daily", "europe/berlin", NOW)


def test_the_latest_of_a_million_missed_ticks_is_found_without_counting_them() -> None:
    first = micros("2020-01-01T00:00", BERLIN)
    now = micros("2026-07-01T12:34", BERLIN) + 5 * SECOND
    began = datetime.now(UTC)
    assert cron.latest_tick("* * * * *", BERLIN, first, now) == now - 5 * SECOND
    assert datetime.now(UTC) - began < timedelta(seconds=1)


expressions = st.builds(
    " ".join,
    st.tuples(
        st.sampled_from(["*", "0", "30", "59", "*/7", "10-20", "0,1,2"]),
        st.sampled_from(["*", "0", "2", "23", "*/5", "1-3"]),
        st.sampled_from(["*", "1", "31", "L", "*/10"]),
        st.sampled_from(["*", "1", "3,10", "1-6"]),
        st.sampled_from(["*", "0", "MON", "1-5", "SUN#2", "5L"]),
    ),
)


@given(expressions, st.sampled_from(ZONES), st.integers(NOW, NOW + YEAR), st.integers(0, 40 * 86_400 * SECOND))
def test_ticks_grow_lie_on_whole_minutes_and_the_latest_is_the_last_up_to_now(
    expression: str, zone: str, start: int, passed: int
) -> None:
    ticks = cron.following(expression, zone, start, 200)
    assert all(earlier < later for earlier, later in zip([start, *ticks], ticks, strict=False))
    assert all(tick % cron.MINUTE == 0 for tick in ticks)
    if ticks:
        now = min(ticks[0] + passed, ticks[-1])
        assert cron.latest_tick(expression, zone, ticks[0], now) == max(tick for tick in ticks if tick <= now)


junk = st.lists(st.text("0123456789*/-,#LWMONJA", min_size=1, max_size=6), min_size=5, max_size=5).map(" ".join)


@given(st.text(max_size=30) | junk, st.sampled_from(ZONES))
def test_every_text_is_either_refused_or_has_a_next_tick(text: str, zone: str) -> None:
    try:
        cron.check(text, zone, NOW)
    except InvalidField:
        return
    assert (cron.next_tick(text, zone, NOW) or 0) > NOW
