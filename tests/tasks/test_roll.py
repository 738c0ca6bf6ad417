from typing import Any

import pytest

from chargehand.doors.tasks import roll
from chargehand.doors.tasks.names import ALL_TENANTS, task_queue
from chargehand.doors.tasks.roll import Roll
from chargehand.engine.job import SECOND, rfc3339
from chargehand.engine.queue import Queues
from chargehand.http.auth import Caller

ANNA = Caller("anna", "acme", worker_group="films")
BERT = Caller("bert", "acme")


class Clock:
    def __init__(self) -> None:
        self.at = 1_800_000_000 * SECOND

    def __call__(self) -> int:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


def commands(book: Roll, tenant: str = "acme") -> dict[str, Any]:
    return {each.worker_id: [(c.command, c.waiting) for c in each.commands] for each in book.seen(tenant)}


def test_a_worker_is_present_while_its_claim_is_open(clock: Clock) -> None:
    book, began = Roll(clock), rfc3339(clock.at)
    with book.asking(ANNA, (task_queue("acme", "render"), task_queue("acme", "resize"))):
        clock.at += 20 * SECOND
        [worker] = book.seen("acme")
        assert (worker.worker_id, worker.worker_group, worker.all_tenants) == ("anna", "films", False)
        assert worker.last_seen_at == rfc3339(clock.at) != began
        assert commands(book) == {"anna": [("render", 1), ("resize", 1)]}
    clock.at += 5 * SECOND
    [worker] = book.seen("acme")
    assert worker.last_seen_at == rfc3339(clock.at - 5 * SECOND)
    assert commands(book) == {"anna": [("render", 0), ("resize", 0)]}


def test_two_processes_with_one_name_are_one_worker_with_two_claims(clock: Clock) -> None:
    book = Roll(clock)
    with book.asking(ANNA, (task_queue("acme", "render"),)), book.asking(ANNA, (task_queue("acme", "render"),)):
        assert commands(book) == {"anna": [("render", 2)]}
    with book.asking(ANNA, (task_queue("acme", "resize"),)):
        assert commands(book) == {"anna": [("render", 0), ("resize", 1)]}


def test_a_claim_that_breaks_is_no_longer_open(clock: Clock) -> None:
    book = Roll(clock)
    with pytest.raises(RuntimeError), book.asking(ANNA, (task_queue("acme", "render"),)):
        raise RuntimeError
    assert commands(book) == {"anna": [("render", 0)]}


def test_a_heartbeat_is_a_sign_of_life_and_no_claim(clock: Clock) -> None:
    book = Roll(clock)
    book.beat(BERT)
    [worker] = book.seen("acme")
    assert (worker.last_heartbeat_at, worker.commands) == (rfc3339(clock.at), [])


def test_a_tenant_sees_its_own_workers_and_those_for_all_tenants(clock: Clock) -> None:
    book = Roll(clock)
    fleet = Caller("fleet", "ops", frozenset({ALL_TENANTS}))
    with book.asking(ANNA, (task_queue("acme", "render"),)), book.asking(fleet, (Queues("task"),)):
        assert commands(book) == {"fleet": [("*", 1)], "anna": [("render", 1)]}
        [worker] = book.seen("other")
    assert (worker.worker_id, worker.all_tenants) == ("fleet", True)


def test_a_worker_that_was_silent_for_an_hour_is_forgotten(clock: Clock) -> None:
    book = Roll(clock)
    book.beat(BERT)
    with book.asking(ANNA, (task_queue("acme", "render"),)):
        clock.at += (roll.FORGET_SECONDS + 1) * SECOND
        assert list(commands(book)) == ["anna"]


def test_a_command_that_is_no_longer_asked_for_is_forgotten(clock: Clock) -> None:
    book = Roll(clock)
    with book.asking(ANNA, (task_queue("acme", "render"),)):
        pass
    clock.at += (roll.FORGET_SECONDS + 1) * SECOND
    book.beat(ANNA)
    assert commands(book) == {"anna": []}


def test_the_roll_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll, "MAX_WORKERS", 2)
    monkeypatch.setattr(roll, "MAX_COMMANDS", 3)
    book = Roll(clock)
    with book.asking(ANNA, (task_queue("acme", "a"),)):
        for name in ("b", "c", "d"):
            book.beat(Caller(name, "acme"))
        assert list(commands(book)) == ["d", "c"]
    assert commands(book)["anna"] == [("a", 0)]  # forgotten while its claim waited: it counts from 0 again, never below
    with book.asking(ANNA, tuple(task_queue("acme", str(n)) for n in range(9))):
        assert len(commands(book)["anna"]) == 3
    assert all(waiting == 0 for _, waiting in commands(book)["anna"])
