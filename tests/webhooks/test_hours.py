import pytest

from chargehand.webhooks import hours
from chargehand.webhooks.hours import EndpointHour, Hours


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_endpoint_without_tries_has_no_rate_and_no_latency(clock: Clock) -> None:
    assert Hours(clock).hour("ep_a") == EndpointHour(0, 0, None, None, None, [], [])


def test_tries_are_counted_in_the_minute_in_which_they_ended(clock: Clock) -> None:
    book = Hours(clock)
    book.count("ep_a", True, 0.01)
    book.count("ep_a", False, 0.01)
    clock.seconds += 120
    book.count("ep_a", True, 0.01)
    hour = book.hour("ep_a")
    assert (hour.tries, hour.delivered) == (3, 2)
    assert hour.success_rate == pytest.approx(2 / 3)
    assert hour.delivered_by_minute == [0] * 57 + [1, 0, 1]
    assert hour.failed_by_minute == [0] * 57 + [1, 0, 0]


def test_tries_older_than_an_hour_do_not_count(clock: Clock) -> None:
    book = Hours(clock)
    book.count("ep_a", False, 9.0)
    clock.seconds += 59 * 60
    book.count("ep_a", True, 0.01)
    assert book.hour("ep_a").tries == 2
    clock.seconds += 60
    hour = book.hour("ep_a")
    assert (hour.tries, hour.success_rate, sum(hour.failed_by_minute)) == (1, 1.0, 0)
    assert hour.p95_seconds is not None
    assert hour.p95_seconds < 1
    clock.seconds += 3600
    assert book.hour("ep_a") == EndpointHour()


def test_p50_and_p95_are_at_most_twenty_percent_off(clock: Clock) -> None:
    book = Hours(clock)
    for number in range(1, 101):
        book.count("ep_a", True, number / 100)
    hour = book.hour("ep_a")
    assert hour.p50_seconds is not None
    assert hour.p95_seconds is not None
    assert 0.5 <= hour.p50_seconds <= 0.5 * 1.2
    assert 0.95 <= hour.p95_seconds <= 0.95 * 1.2


def test_one_slow_try_among_twenty_one_does_not_change_p95(clock: Clock) -> None:
    book = Hours(clock)
    for _ in range(20):
        book.count("ep_a", True, 0.01)
    book.count("ep_a", False, 30.0)
    p95 = book.hour("ep_a").p95_seconds
    assert p95 is not None
    assert p95 < 0.02


def test_durations_outside_the_bounds_are_counted_too(clock: Clock) -> None:
    book = Hours(clock)
    book.count("ep_a", True, 0.0)
    assert book.hour("ep_a").p50_seconds == hours.BOUNDS[0]
    book.count("ep_b", False, 1e9)
    assert book.hour("ep_b").p50_seconds == round(hours.BOUNDS[-1], 4)


def test_each_endpoint_has_its_own_statistics(clock: Clock) -> None:
    book = Hours(clock)
    book.count("ep_a", True, 0.01)
    book.count("ep_b", False, 0.01)
    assert (book.hour("ep_a").success_rate, book.hour("ep_b").success_rate) == (1.0, 0.0)


def test_beyond_the_bound_the_endpoint_with_the_oldest_last_try_is_dropped(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hours, "MAX_ENDPOINTS", 2)
    book = Hours(clock)
    for endpoint in ("ep_a", "ep_b", "ep_a", "ep_c"):
        book.count(endpoint, True, 0.01)
    assert [book.hour(each).tries for each in ("ep_a", "ep_b", "ep_c")] == [2, 0, 1]
