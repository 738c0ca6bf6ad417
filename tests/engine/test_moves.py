from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.engine.guard import Guard
from chargehand.engine.job import FINAL, SECOND, Job, State
from chargehand.engine.moves import TABLE, Attempt, Broke, Lapsed, Lease, Move, RetryPolicy, decide, expire
from tests.store.given import a_queue

POLICY = RetryPolicy(backoff_base_seconds=5, backoff_max_seconds=60)
QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED = State


def a_running_job(attempt: int = 1, max_attempts: int = 3) -> Job:
    fields: dict[str, Any] = dict.fromkeys(Job.__struct_fields__[:-2], "")
    fields |= {"id": "job", "state": RUNNING, "lease": 7, "lease_owner": "worker"}
    return Job(**fields | {"queue": a_queue(), "attempt": attempt, "max_attempts": max_attempts})


# the table --------------------------------------------------------------------------------------------------------------


def test_every_move_has_one_row() -> None:
    names = [move.name for move in TABLE]
    assert names == ["claim", "beat", "advance", "succeed", "retry", "park", "fail", "cancel", "expire", "requeue"]
    assert list(Move.by_name) == names


def test_every_state_can_be_reached_from_the_queue() -> None:
    reached = {QUEUED}
    for _ in TABLE:
        reached |= {move.to for move in TABLE if move.source & reached}
    assert reached == set(State)


def test_every_state_but_success_has_a_move_out_of_it() -> None:
    assert {state for move in TABLE for state in move.source} == set(State) - {SUCCEEDED}
    assert {move.name for move in TABLE if move.source & FINAL} == {"requeue"}


def test_a_job_has_a_lease_exactly_while_it_runs() -> None:
    for move in TABLE:
        assert (move.lease is not Lease.DROP) == (move.to is RUNNING), move.name


def test_only_a_claim_counts_an_attempt_and_only_parking_gives_one_back() -> None:
    counted = {move.name: move.attempt for move in TABLE if move.attempt is not Attempt.SAME}
    assert counted == {"claim": Attempt.UP, "park": Attempt.DOWN, "requeue": Attempt.RESET}


def test_every_row_has_a_description() -> None:
    assert all(move.meaning for move in TABLE)


# decide -----------------------------------------------------------------------------------------------------------------


def test_a_broken_attempt_is_retried_while_attempts_are_left() -> None:
    moves = [decide(a_running_job(attempt, 3), Broke("no"), POLICY, Random(0)).move for attempt in (1, 2, 3, 4)]
    assert moves == ["retry", "retry", "fail", "fail"]


def test_a_final_error_fails_the_job_at_once() -> None:
    change = decide(a_running_job(1, 3), Broke("bad image", "write", final=True), POLICY, Random(0))
    assert (change.move, change.error, change.failed_step, change.level) == ("fail", "bad image", "write", "error")


def test_a_change_is_guarded_by_the_lease_that_was_read() -> None:
    for outcome in (Broke("no"), Broke("no", final=True), Lapsed()):
        change = decide(a_running_job(), outcome, POLICY, Random(0))
        assert (change.guard, change.result) == (Guard.held(a_running_job()), None)


def test_a_lapsed_lease_is_decided_like_a_broken_attempt() -> None:
    again, end = (decide(a_running_job(attempt, 2), Lapsed(), POLICY, Random(0)) for attempt in (1, 2))
    assert (again.move, end.move) == ("retry", "fail")
    for change in (again, end):
        assert change.step == "lease"
        assert change.failed_step is None
        assert "worker" in (change.error or "")


def test_the_worker_may_choose_the_pause() -> None:
    change = decide(a_running_job(), Broke("busy", delay_seconds=7.5), POLICY, Random(0))
    assert (change.delay_seconds, change.waiting_for) == (7.5, "backoff")
    at_once = decide(a_running_job(), Broke("busy", delay_seconds=0), POLICY, Random(0))
    assert (at_once.delay_seconds, at_once.waiting_for) == (0, "")


@given(attempt=st.integers(1, 100), max_attempts=st.integers(1, 100), seed=st.integers())
def test_the_same_facts_always_give_the_same_decision(attempt: int, max_attempts: int, seed: int) -> None:
    first, second = (decide(a_running_job(attempt, max_attempts), Broke("no"), POLICY, Random(seed)) for _ in range(2))
    assert first == second
    assert first.move == ("retry" if attempt < max_attempts else "fail")
    assert 0 <= first.delay_seconds <= 60


@pytest.mark.parametrize("outcome", [Broke("the disk is full"), Broke("the disk is full", final=True)])
def test_the_message_says_which_attempt_of_how_many_and_why(outcome: Broke) -> None:
    message = decide(a_running_job(2, 5), outcome, POLICY, Random(0)).message
    assert "attempt 2 of 5" in message
    assert "the disk is full" in message


# expire -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "said"), [(90, "90"), (0.001, "0.001"), (2.5, "2.5"), (315_360_000, "315360000")])
def test_the_error_of_an_expired_job_names_its_deadline(seconds: float, said: str) -> None:
    job = msgspec.structs.replace(a_running_job(), created_at=SECOND, deadline_at=SECOND + int(seconds * SECOND))
    assert expire(job).error == f"the deadline of {said} s passed"


def test_the_message_of_an_expired_job_names_its_state() -> None:
    job = msgspec.structs.replace(a_running_job(), created_at=0, deadline_at=SECOND)
    running = expire(msgspec.structs.replace(job, stage="loading"))
    waiting = expire(msgspec.structs.replace(job, state=QUEUED, waiting_for="target"))
    assert running.message.startswith("expired while running:loading: ")
    assert waiting.message.startswith("expired while queued, waiting for target: ")


def test_an_expiry_is_guarded_by_the_deadline_and_by_no_lease() -> None:
    job = msgspec.structs.replace(a_running_job(), created_at=0, deadline_at=SECOND)
    change = expire(job)
    assert (change.move, change.deadline_at, change.lease_until) == ("expire", SECOND, None)
    assert change.guard == Guard.seen(job)
