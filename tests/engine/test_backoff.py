from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.engine.backoff import ceiling, equal_jitter, full_jitter

attempts = st.integers(-1, 10_000)
seconds = st.floats(0, 1e6)


@given(attempts, seconds, seconds, st.randoms(use_true_random=False))
def test_a_backoff_pause_stays_within_its_bounds(attempt: int, base: float, most: float, random: Random) -> None:
    top = ceiling(attempt, base, most)
    assert 0 <= top <= most
    assert 0 <= full_jitter(attempt, base, most, random) <= top
    assert top / 2 <= equal_jitter(attempt, base, most, random) <= top


@given(attempts, seconds, seconds)
def test_a_pause_never_shrinks_with_the_next_attempt(attempt: int, base: float, most: float) -> None:
    assert ceiling(attempt, base, most) <= ceiling(attempt + 1, base, most)


def test_pauses_double_from_the_base_to_the_maximum() -> None:
    assert [ceiling(attempt, 5, 60) for attempt in range(1, 7)] == [5, 10, 20, 40, 60, 60]


@pytest.mark.parametrize("jitter", [full_jitter, equal_jitter])
def test_jobs_that_failed_together_are_not_retried_together(jitter: object) -> None:
    assert callable(jitter)
    random = Random(0)
    pauses = sorted(jitter(5, 1, 1000, random) for _ in range(100))
    assert len(set(pauses)) == 100
    assert pauses[-1] - pauses[0] > 6, "spread over the sixteen seconds, or over the eight that are random"
