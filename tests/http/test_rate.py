from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.http.rate import RateLimiter


@dataclass
class Clock:
    at: float = 1_000_000.0

    def __call__(self) -> float:
        return self.at


def test_a_burst_passes_and_the_next_call_gets_the_time_to_wait() -> None:
    limiter = RateLimiter(Clock())
    assert [limiter.take("a", rate=2, burst=3) for _ in range(3)] == [0, 0, 0]
    assert limiter.take("a", rate=2, burst=3) == pytest.approx(0.5)


def test_a_call_passes_after_the_time_to_wait() -> None:
    clock = Clock()
    limiter = RateLimiter(clock)
    while not (wait := limiter.take("a", rate=3, burst=2)):
        pass
    clock.at += wait
    assert limiter.take("a", rate=3, burst=2) == 0
    assert limiter.take("a", rate=3, burst=2) > 0


def test_a_refused_call_takes_no_token() -> None:
    clock = Clock()
    limiter = RateLimiter(clock)
    limiter.take("a", rate=1, burst=1)
    waits = {round(limiter.take("a", rate=1, burst=1), 6) for _ in range(100)}
    assert waits == {1.0}


def test_an_idle_bucket_holds_at_most_the_burst() -> None:
    clock = Clock()
    limiter = RateLimiter(clock)
    limiter.take("a", rate=10, burst=4)
    clock.at += 3600
    assert [limiter.take("a", rate=10, burst=4) == 0 for _ in range(6)] == [True] * 4 + [False] * 2


def test_rounding_does_not_refuse_the_last_call_of_a_burst() -> None:
    for rate in range(1, 200):
        limiter = RateLimiter(Clock())
        assert [limiter.take("a", rate, burst=rate) == 0 for _ in range(rate + 1)] == [True] * rate + [False]


def test_keys_do_not_share_a_bucket() -> None:
    limiter = RateLimiter(Clock())
    assert limiter.take("a", rate=1, burst=1) == 0
    assert limiter.take("b", rate=1, burst=1) == 0
    assert limiter.take("a", rate=1, burst=1) > 0


def test_a_burst_of_zero_is_two_seconds_worth_and_at_least_one() -> None:
    limiter = RateLimiter(Clock())
    assert [limiter.take("a", rate=2) == 0 for _ in range(5)] == [True] * 4 + [False]
    assert [limiter.take("b", rate=0.1) == 0 for _ in range(2)] == [True, False]
    assert limiter.take("b", rate=0.1) == pytest.approx(10)


def test_a_rate_of_zero_is_no_limit_and_stores_nothing() -> None:
    limiter = RateLimiter(Clock())
    assert all(limiter.take("a", rate=0, burst=1) == 0 for _ in range(1000))
    assert len(limiter) == 0


def test_the_number_of_keys_is_bounded_and_the_least_recently_used_is_evicted_first() -> None:
    limiter = RateLimiter(Clock(), max_keys=3)
    for key in ("a", "b", "c", "a", "d"):
        limiter.take(key, rate=1, burst=1)
    assert len(limiter) == 3
    assert limiter.take("a", rate=1, burst=1) > 0, "used after b, so b was forgotten and not a"
    assert limiter.take("b", rate=1, burst=1) == 0


@given(
    rate=st.floats(0.01, 10_000),
    burst=st.integers(1, 50),
    pauses=st.lists(st.floats(0, 5), min_size=1, max_size=200),
)
def test_no_more_pass_than_rate_and_burst_allow(rate: float, burst: int, pauses: list[float]) -> None:
    clock = Clock()
    limiter = RateLimiter(clock)
    passed = 0
    for pause in pauses:
        clock.at += pause
        passed += limiter.take("a", rate, burst) == 0
    assert passed <= burst + rate * (sum(pauses) - pauses[0]) + 0.1
