"""The checker finds every anomaly in a history that has it, and none in one that has none."""

import pytest

from chargehand.engine.job import LEASE_RANDOM_BITS

from .check import Anomaly, check
from .history import Completed, Created, Entry, Granted, History, Outcome, Read, Renewed, Returned, Told

DONE, REFUSED, UNKNOWN = Outcome.DONE, Outcome.REFUSED, Outcome.UNKNOWN


def lease(count: int, random: int = 7) -> int:
    return (count << LEASE_RANDOM_BITS) + random


ONE, TWO, THREE = lease(1), lease(2), lease(3)

CREATED = Created("key", "a", 0.0, 0.1)
GRANTED = Granted("a", ONE, 5.0, 1.0)
COMPLETED = Completed("a", ONE, DONE, 2.0, 2.1)
READ = Read("a", "COMPLETED", ONE)
TOLD = Told("w1", "a", 3, "COMPLETED", ONE, 2.2)
GOOD: tuple[Entry, ...] = (CREATED, GRANTED, COMPLETED, READ, TOLD)


def kinds(*entries: Entry) -> list[str]:
    return [anomaly.kind for anomaly in check(History.of(entries))]


def a_history_with(*more: Entry, without: tuple[Entry, ...] = ()) -> list[Entry]:
    return [*(entry for entry in GOOD if entry not in without), *more]


def granted_again(at: float, *before: Entry) -> list[Entry]:
    """Return a history in which another worker gets the job at that moment, and completes it."""
    return [
        *(CREATED, GRANTED, *before, Granted("a", TWO, 5.0, at), Completed("a", TWO, DONE, at + 1, at + 1.1)),
        *(Read("a", "COMPLETED", TWO), Told("w1", "a", 9, "COMPLETED", TWO, at + 2)),
    ]


def test_a_history_in_which_all_went_well_has_no_anomaly() -> None:
    assert check(History.of(GOOD)) == []


def test_an_empty_history_has_no_anomaly() -> None:
    assert check(History()) == []


def test_an_anomaly_says_which_job_it_is_about_and_what_is_wrong() -> None:
    assert check(History.of(a_history_with(Read("b", "PENDING", None)))) == [
        Anomaly("stuck", "b", "is PENDING at the end")
    ]


# Jobs -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [(), (Read("b", "", None),)], ids=["not read", "not found"])
def test_an_acknowledged_job_that_is_not_there_is_lost(read: tuple[Entry, ...]) -> None:
    assert kinds(*GOOD, Created("other", "b", 0.0, 0.1), *read) == ["lost"]


@pytest.mark.parametrize("status", ["PENDING", "IN_PROGRESS"])
def test_a_job_that_never_ends_is_stuck(status: str) -> None:
    assert kinds(*GOOD, Created("other", "b", 0.0, 0.1), Read("b", status, None)) == ["stuck"]


def test_a_repeated_request_that_is_answered_with_the_same_job_is_fine() -> None:
    assert kinds(*GOOD, Created("key", "a", 0.2, 0.3)) == []


def test_a_repeated_request_that_made_another_job_is_found() -> None:
    again = (Created("key", "b", 0.2, 0.3), Read("b", "FAILED", None), Told("w2", "b", 1, "FAILED", None, 9.0))
    assert kinds(*GOOD, *again) == ["duplicated"]


def test_a_job_that_nobody_was_told_was_made_is_found_when_it_is_granted() -> None:
    assert kinds(*GOOD, Granted("b", ONE, 5.0, 1.0)) == ["unasked"]


# Leases -----------------------------------------------------------------------------------------------------------------


def test_a_job_may_be_granted_again_when_its_lease_has_ended() -> None:
    assert kinds(*granted_again(6.1)) == []


def test_a_job_that_is_granted_while_its_lease_lasts_is_found() -> None:
    assert kinds(*granted_again(5.9)) == ["granted twice"]


def test_an_acknowledged_heartbeat_makes_a_lease_last_longer() -> None:
    assert kinds(*granted_again(6.1, Renewed("a", ONE, 5.0, 3.0))) == ["granted twice"]
    assert kinds(*granted_again(8.1, Renewed("a", ONE, 5.0, 3.0))) == []


@pytest.mark.parametrize("outcome", [DONE, UNKNOWN])
def test_a_job_that_was_given_back_or_may_have_been_can_be_granted_at_once(outcome: Outcome) -> None:
    assert kinds(*granted_again(2.0, Returned("a", ONE, outcome, 1.5))) == []


def test_a_job_that_was_not_given_back_is_still_held() -> None:
    assert kinds(*granted_again(2.0, Returned("a", ONE, REFUSED, 1.5))) == ["granted twice"]


def test_a_job_that_is_given_back_too_late_was_granted_twice() -> None:
    assert kinds(*granted_again(2.0, Returned("a", ONE, REFUSED, 2.5))) == ["granted twice"]


def test_a_grant_that_was_forgotten_is_found_by_the_number_of_the_next() -> None:
    """As after a failover to a database that lacks it: the job is granted as if for the first time."""
    forgotten = Granted("a", lease(1, random=8), 5.0, -9.0)
    assert kinds(*a_history_with(forgotten)) == ["granted twice"]


def test_three_grants_are_compared_with_each_other() -> None:
    ended = (
        Completed("a", THREE, DONE, 21.0, 21.1),
        Read("a", "COMPLETED", THREE),
        Told("w1", "a", 9, "COMPLETED", THREE, 22.0),
    )
    history: list[Entry] = [CREATED, GRANTED, Granted("a", TWO, 5.0, 6.1), Granted("a", THREE, 5.0, 20.0), *ended]
    assert kinds(*history) == []
    assert kinds(*history, Renewed("a", ONE, 60.0, 2.0)) == ["granted twice", "granted twice"]


def test_a_result_of_a_worker_that_had_lost_its_lease_is_found() -> None:
    late = (Granted("a", TWO, 5.0, 6.5), Completed("a", ONE, DONE, 7.0, 7.1), TOLD._replace(at=7.2))
    assert kinds(*a_history_with(*late, without=(COMPLETED, TOLD))) == ["late worker"]


def test_a_heartbeat_of_a_worker_that_had_lost_its_lease_is_found() -> None:
    assert kinds(*granted_again(6.5, Renewed("a", ONE, 0.1, 7.0))) == ["granted twice", "late worker"]


def test_a_job_that_is_given_back_by_a_worker_that_had_lost_its_lease_is_found() -> None:
    assert kinds(*granted_again(6.5, Returned("a", ONE, DONE, 7.0))) == ["late worker"]


def test_a_job_that_is_granted_after_its_result_was_acknowledged_is_found() -> None:
    """Though its lease had ended, and though the second result is refused."""
    again = (Granted("a", TWO, 5.0, 6.5), Completed("a", TWO, REFUSED, 12.0, 12.1))
    assert kinds(*a_history_with(*again)) == ["granted after its end"]


def test_a_result_that_was_under_way_when_the_job_was_granted_again_is_fine() -> None:
    slow = (Completed("a", ONE, DONE, 5.9, 7.0), Granted("a", TWO, 5.0, 6.5), TOLD._replace(at=7.0))
    assert kinds(*a_history_with(*slow, without=(COMPLETED, TOLD))) == []


def test_a_worker_that_is_refused_while_its_lease_lasts_is_found() -> None:
    """As after a failover to a database that lacks the grant."""
    refused = Completed("a", ONE, REFUSED, 2.0, 2.1)
    later = (Completed("a", TWO, DONE, 8.0, 8.1), Read("a", "COMPLETED", TWO), TOLD._replace(lease=TWO, at=9.0))
    history: list[Entry] = [CREATED, GRANTED, refused, Granted("a", TWO, 5.0, 6.5), *later]
    assert kinds(*history) == ["grant forgotten"]
    assert kinds(*history, Completed("a", ONE, UNKNOWN, 1.5, 1.9)) == []
    assert kinds(*(refused._replace(ended=6.1) if entry is refused else entry for entry in history)) == []


# Results ----------------------------------------------------------------------------------------------------------------


def test_two_acknowledged_results_of_a_job_are_found() -> None:
    assert kinds(*a_history_with(Completed("a", ONE, DONE, 2.5, 2.6))) == ["completed twice"]


@pytest.mark.parametrize("outcome", [REFUSED, UNKNOWN])
def test_a_result_that_is_sent_again_and_refused_or_not_answered_is_fine(outcome: Outcome) -> None:
    assert kinds(*a_history_with(Completed("a", ONE, outcome, 2.5, 2.6))) == []


def test_an_acknowledged_result_that_the_job_does_not_show_is_lost() -> None:
    other = (Read("a", "COMPLETED", TWO), Told("w1", "a", 3, "COMPLETED", TWO, 4), Completed("a", TWO, UNKNOWN, 3, 4))
    assert kinds(*a_history_with(*other, without=(READ, TOLD))) == ["completion lost"]


def test_an_acknowledged_result_of_a_job_that_is_pending_again_is_lost() -> None:
    again = a_history_with(Read("a", "PENDING", None), without=(READ, TOLD))
    assert kinds(*again) == ["stuck", "completion lost"]


def test_a_result_without_an_answer_may_count_or_not() -> None:
    unanswered = COMPLETED._replace(outcome=UNKNOWN)
    assert kinds(*a_history_with(unanswered, without=(COMPLETED,))) == []
    nothing = (Read("a", "FAILED", None), TOLD._replace(status="FAILED", lease=None))
    assert kinds(*a_history_with(unanswered, *nothing, without=(COMPLETED, READ, TOLD))) == []


def test_a_result_that_was_refused_and_counts_is_found() -> None:
    late = COMPLETED._replace(outcome=REFUSED, began=0.9, ended=6.5)
    assert kinds(*a_history_with(late, without=(COMPLETED,))) == ["completion invented"]


def test_a_result_that_nobody_sent_is_found() -> None:
    assert kinds(*a_history_with(without=(COMPLETED,))) == ["completion invented"]


# Webhooks ---------------------------------------------------------------------------------------------------------------


def test_an_end_that_nobody_was_told_of_is_found() -> None:
    assert kinds(*a_history_with(without=(TOLD,))) == ["webhook missing"]


def test_a_webhook_of_an_earlier_state_does_not_tell_the_end() -> None:
    assert kinds(*a_history_with(TOLD._replace(status="running", lease=None), without=(TOLD,))) == ["webhook missing"]


def test_a_webhook_may_come_again_under_its_id() -> None:
    assert kinds(*GOOD, TOLD._replace(at=9.0)) == []


def test_an_event_that_comes_under_two_ids_is_found() -> None:
    assert kinds(*GOOD, TOLD._replace(webhook_id="w2")) == ["webhook twice"]


def test_a_webhook_that_tells_another_end_is_found() -> None:
    assert kinds(*GOOD, Told("w2", "a", 4, "FAILED", None, 3.0)) == ["webhook wrong"]


def test_a_webhook_about_a_job_that_is_not_there_is_found() -> None:
    assert kinds(*GOOD, Told("w2", "b", 3, "COMPLETED", ONE, 3.0)) == ["webhook wrong"]


def test_a_webhook_that_tells_a_result_before_it_was_sent_is_found() -> None:
    assert kinds(*a_history_with(TOLD._replace(at=1.9), without=(TOLD,))) == ["webhook early"]
