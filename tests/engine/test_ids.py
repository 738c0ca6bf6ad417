from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from chargehand.engine.ids import UlidMaker, is_ulid, made_at

NOW = 1_800_000_000_000


def made(times: list[int], random: bytes = b"\xff" * 10) -> list[str]:
    clock = iter(times)
    make = UlidMaker(lambda: next(clock), lambda _: random)
    return [make() for _ in times]


@given(st.lists(st.integers(0, 2**48 - 1), min_size=2, max_size=50), st.binary(min_size=10, max_size=10))
def test_ids_are_valid_and_grow_whatever_the_clock_does(times: list[int], random: bytes) -> None:
    ids = made([1, *times], random)
    assert all(map(is_ulid, ids))
    assert ids == sorted(set(ids))


def test_ids_of_one_moment_are_sorted_as_they_were_made() -> None:
    make = UlidMaker(lambda: NOW)
    ids = [make() for _ in range(10_000)]
    assert ids == sorted(set(ids))


def test_ids_grow_although_the_clock_steps_back() -> None:
    first, second, third = made([NOW, NOW - 3_600_000, NOW + 1])
    assert first < second < third
    assert first[:10] == second[:10]


def test_an_id_begins_with_its_time() -> None:
    # From the ULID specification: the first ten characters are the milliseconds.
    assert made([1_469_918_176_385])[0].startswith("01ARYZ6S41")


def test_ids_made_in_different_moments_share_no_randomness() -> None:
    random = count()
    ticks = count(NOW)
    make = UlidMaker(lambda: next(ticks), lambda size: (next(random) * 2).to_bytes(size, "big"))
    assert [make()[10:] for _ in range(3)] == ["0" * 16, "0" * 15 + "1", "0" * 15 + "2"]


def test_two_generators_make_no_equal_ids() -> None:
    a, b = UlidMaker(lambda: NOW), UlidMaker(lambda: NOW)
    assert not {a() for _ in range(1000)} & {b() for _ in range(1000)}


def test_invalid_ids_are_recognised() -> None:
    good = UlidMaker()()
    assert is_ulid(good)
    wrong = ["", good[:-1], good + "0", good.lower(), "8" + good[1:], good[:-1] + "U", good[:-1] + "\n", good + "\n"]
    assert not [text for text in wrong if is_ulid(text)]


@given(st.integers(1, 2**47))
def test_the_time_of_an_id_can_be_read_from_it(at: int) -> None:
    assert made_at(made([at])[0]) == at / 1000
