"""What is measured of a fault: waits, outages of the database, and how soon each node served again once it could."""

from collections.abc import Sequence

from .history import Call, Created, History, Outcome
from .load import READYZ, TASKS
from .measure import Away, Measured, Seen, measure

STRUCK, UNTIL = 10.0, 30.0
PROBED = Call(f"GET {READYZ}", 0, Outcome.DONE, 11.0, 11.25)
COMMITS = tuple(each / 10 for each in range(400))
AWAY = Away(0, False, 12.0, 16.0)


def served(*ats: float) -> list[Call]:
    return [Call(f"POST {TASKS}", 0, Outcome.DONE, at - 0.1, at) for at in ats]


def refused(began: float, ended: float) -> Call:
    return Call(f"POST {TASKS}", 0, Outcome.UNKNOWN, began, ended)


def measured(*calls: Call, commits: Sequence[float] = COMMITS, away: Sequence[Away] = ()) -> Measured:
    history = History.of([*calls, PROBED, Created("key", "a", 0.0, 0.1)])
    return measure(history, Seen(STRUCK, UNTIL, commits, away, [0.0, 0.5, 0.1]), 1)


def without(began: float, ended: float) -> list[float]:
    return [at for at in COMMITS if not began < at < ended]


def test_a_node_that_serves_all_the_time_is_back_at_once() -> None:
    seen = measured(*served(*range(9, 31)))
    assert (seen.jobs, seen.outage, seen.settled, seen.back) == (1, 0.0, 0.0, (1.0,))
    assert seen.ready == 0.25
    assert seen.held == 0.5


def test_a_node_is_back_when_it_serves_again_after_an_outage_of_the_database() -> None:
    seen = measured(*served(11.0, 19.0, *range(20, 31)), commits=without(11.5, 16.0))
    assert seen.outage == 4.5
    assert seen.back == (3.0,)


def test_a_node_that_serves_no_more_is_not_back_at_all() -> None:
    assert measured(*served(11.0), commits=without(11.5, 16.0)).back == (14.0,)
    assert measured(refused(11.0, 12.0)).back == (20.0,)


def test_what_a_fault_does_to_a_node_itself_is_no_delay_of_it() -> None:
    assert measured(*served(11.0, 18.0, *range(19, 31)), away=[AWAY]).back == (2.0,)
    assert measured(*served(11.0, 18.0, *range(19, 31)), away=[AWAY._replace(node=1)]).back == (7.0,)


def test_the_longest_wait_is_named() -> None:
    seen = measured(*served(11.0), refused(12.0, 16.0))
    assert (seen.wait, seen.waited_for, seen.settled) == (4.0, f"POST {TASKS}", 6.0)


def test_a_node_that_cannot_even_refuse_makes_nobody_wait_too_long() -> None:
    calls = [*served(11.0, 17.0), refused(12.5, 16.5)]
    assert measured(*calls, away=[AWAY]).wait == 4.0
    assert measured(*calls, away=[AWAY._replace(silent=True)]).wait < 0.2
