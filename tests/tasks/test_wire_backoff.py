"""The five policies for the pause after a broken attempt: arithmetic, with the random generator as an argument."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.doors.tasks.policy import pause

POLICIES = ("fixed", "linear", "exponential", "exp_equal_jitter", "exp_full_jitter")


class Always(Random):
    """A generator that always returns one end of the range."""

    def __init__(self, high: bool) -> None:
        super().__init__(1)
        self.high = high

    def randint(self, a: int, b: int) -> int:
        return b if self.high else a


@pytest.mark.parametrize(
    ("policy", "pauses"),
    [
        ("fixed", [5, 5, 5, 5, 5, 5, 5, 5, 5, 5]),
        ("linear", [5, 5, 10, 15, 20, 25, 30, 35, 40, 45]),
        ("exponential", [5, 10, 20, 40, 80, 160, 320, 640, 900, 900]),
    ],
)
def test_each_policy_without_jitter_has_fixed_pauses(policy: str, pauses: list[int]) -> None:
    assert [pause(policy, attempt, 5.0, 900.0, Random(1)) for attempt in range(10)] == pauses


@pytest.mark.parametrize(
    ("policy", "shortest", "longest"),
    [
        ("exp_full_jitter", [0, 0, 0, 0], [5, 10, 20, 900]),
        ("exp_equal_jitter", [2, 5, 10, 450], [4, 10, 20, 900]),
        ("unknown", [0, 0, 0, 0], [5, 10, 20, 900]),
    ],
)
def test_jitter_stays_between_its_ends(policy: str, shortest: list[int], longest: list[int]) -> None:
    for high, ends in ((False, shortest), (True, longest)):
        assert [pause(policy, attempt, 5.0, 900.0, Always(high)) for attempt in (0, 1, 2, 9)] == ends


def test_full_jitter_reaches_everything_between_its_ends() -> None:
    random = Random(7)
    seen = {pause("exp_full_jitter", 1, 5.0, 900.0, random) for _ in range(1000)}
    assert seen == set(range(11))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_pauses(policy: str) -> None:
    first, second = ([pause(policy, n, 5.0, 900.0, random) for n in range(20)] for random in (Random(3), Random(3)))
    assert first == second


@given(
    st.sampled_from(POLICIES),
    st.integers(0, 10**6),
    st.floats(0, 10**6),
    st.floats(0, 10**6),
    st.integers(0, 10**6),
)
def test_no_pause_is_negative_or_over_the_maximum(
    policy: str, attempt: int, base: float, longest: float, seed: int
) -> None:
    assert 0 <= pause(policy, attempt, base, longest, Random(seed)) <= longest
