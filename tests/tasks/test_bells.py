"""Whom `ring` notifies, and when: pure functions, with the time as an argument."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.doors.tasks.bells import MINUTE, Bell, Ringing, ring
from chargehand.doors.tasks.subscription import Book, Subscription, SubscriptionTerms
from chargehand.engine.job import SECOND
from chargehand.engine.reads import Pulse
from chargehand.engine.record import Record

AT = 1_800_000_000 * SECOND


def a_subscription(name: str, mode: Any = "fanout", group: str = "", interval: int = 5, *types: str) -> Subscription:
    terms = SubscriptionTerms("me", "https://worker.example/", types or ("*",), mode, group, 300, interval)
    return Subscription(name, "acme", terms, 0, AT * 2, 1)


def a_pulse(at: int, *run_ats: int, **fields: Any) -> Pulse:
    """The state of a queue that has these ready tasks."""
    values = {"ready": len(run_ats), "oldest_at": min(run_ats, default=None), "newest_at": max(run_ats, default=None)}
    return Pulse(**{**values, "delayed": False, "next_at": None, "paused": False, "at": at, **fields})


def told(rung: Ringing) -> list[str]:
    return [each.id for each in rung.notified]


ONE = [a_subscription("a")]


# edges ------------------------------------------------------------------------------------------------------------------


def test_the_first_task_of_an_empty_queue_is_notified_once() -> None:
    first = ring(Bell(), ONE, a_pulse(AT, AT - 1))
    assert (told(first), first.changed, first.again_at) == (["a"], True, None)
    second = ring(first.bell, ONE, a_pulse(AT + MINUTE, AT - 1))
    assert (told(second), second.changed) == ([], False)
    assert second.bell == first.bell


def test_more_work_in_a_queue_that_has_work_is_not_notified() -> None:
    bell = ring(Bell(), ONE, a_pulse(AT, AT)).bell
    more = ring(bell, ONE, a_pulse(AT + MINUTE, AT, AT + 1, AT + MINUTE))
    assert (told(more), more.changed) == ([], False)
    # Nor is the rest of the work new when the first task is gone: the rest was seen while the queue had work.
    assert told(ring(more.bell, ONE, a_pulse(AT + MINUTE + 1, AT + MINUTE))) == []


def test_work_that_is_newer_than_all_seen_work_is_notified() -> None:
    bell = ring(Bell(), ONE, a_pulse(AT, AT)).bell
    assert told(ring(bell, ONE, a_pulse(AT + MINUTE, AT + 1))) == ["a"]


def test_work_that_was_committed_late_is_notified_although_it_is_older_than_the_last_look() -> None:
    bell = ring(Bell(), ONE, a_pulse(AT, AT - 10)).bell
    assert told(ring(bell, ONE, a_pulse(AT + MINUTE, AT - 5))) == ["a"]


def test_a_delayed_task_that_becomes_ready_is_notified_even_in_a_queue_with_work() -> None:
    bell = ring(Bell(), ONE, a_pulse(AT, AT)).bell
    later = ring(bell, ONE, a_pulse(AT + MINUTE, AT, AT + 9, delayed=True))
    assert told(later) == ["a"]
    assert later.bell.until == AT + 9


def test_a_paused_queue_notifies_nobody_until_it_is_resumed() -> None:
    bell = ring(Bell(), ONE, a_pulse(AT, AT)).bell
    shut = ring(bell, ONE, a_pulse(AT + MINUTE, AT, AT + MINUTE, paused=True, delayed=True))
    assert (told(shut), shut.changed, shut.bell.shut) == ([], True, True)
    assert not ring(shut.bell, ONE, a_pulse(AT + MINUTE, AT, paused=True)).changed
    on = ring(shut.bell, ONE, a_pulse(AT + 2 * MINUTE, AT))
    assert (told(on), on.bell.shut) == (["a"], False)
    empty = ring(shut.bell, ONE, a_pulse(AT + 2 * MINUTE))
    assert (told(empty), empty.changed, empty.bell.shut) == ([], True, False)


def test_a_clock_that_was_set_back_stops_no_notification() -> None:
    bell = ring(Bell(), ONE, a_pulse(AT, AT)).bell
    back = AT - 60 * MINUTE
    assert told(ring(bell, ONE, a_pulse(back, back + 1))) == ["a"]


# throttling -------------------------------------------------------------------------------------------------------------


def test_a_subscriber_within_its_interval_is_notified_later_if_there_is_still_work() -> None:
    bell = ring(Bell(), ONE, a_pulse(AT, AT)).bell
    soon = ring(bell, ONE, a_pulse(AT + SECOND, AT + SECOND))
    assert (told(soon), soon.bell.owed, soon.again_at, soon.changed) == ([], ("one:a",), AT + 5 * SECOND, True)
    waiting = ring(soon.bell, ONE, a_pulse(AT + 2 * SECOND, AT + SECOND))
    assert (told(waiting), waiting.again_at, waiting.changed) == ([], AT + 5 * SECOND, False)
    served = ring(soon.bell, ONE, a_pulse(AT + 5 * SECOND, AT + SECOND))
    assert (told(served), served.bell.owed, served.again_at) == (["a"], (), None)
    gone = ring(soon.bell, ONE, a_pulse(AT + 5 * SECOND))
    assert (told(gone), gone.bell.owed) == ([], ())


def test_the_interval_of_a_subscriber_counts_from_any_notification() -> None:
    rung = ring(Bell(), ONE, a_pulse(AT, AT), {"a": AT - SECOND})
    assert (told(rung), rung.again_at) == ([], AT + 4 * SECOND)
    assert told(ring(rung.bell, ONE, a_pulse(AT + 4 * SECOND, AT), {"a": AT - SECOND})) == ["a"]


def test_a_subscriber_that_left_is_owed_no_notification() -> None:
    bell = Bell(until=AT, owed=("one:a", "one:b"))
    rung = ring(bell, ONE, a_pulse(AT + 1, AT))
    assert (told(rung), rung.bell.owed) == (["a"], ())


# modes ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 100])
def test_fanout_notifies_every_subscriber(count: int) -> None:
    members = [a_subscription(f"s{number:03}") for number in range(count)]
    assert told(ring(Bell(), members, a_pulse(AT, AT))) == [each.id for each in members]


@pytest.mark.parametrize("count", [1, 2, 100])
def test_the_members_of_a_group_are_notified_in_turn(count: int) -> None:
    members = [a_subscription(f"s{number:03}", "group", "g", 1) for number in range(count)]
    bell, order = Bell(), []
    for turn in range(2 * count):
        at = AT + turn * 2 * SECOND
        rung = ring(bell, members, a_pulse(at, at))
        order += told(rung)
        bell = rung.bell
    assert order == 2 * [each.id for each in members]


def test_a_member_within_its_interval_is_passed_over() -> None:
    members = [a_subscription(name, "group", "g", interval) for name, interval in (("a", 60), ("b", 60), ("c", 1))]
    bell, order = Bell(), []
    for turn in range(5):
        at = AT + turn * 2 * SECOND
        rung = ring(bell, members, a_pulse(at, at))
        order += told(rung)
        bell = rung.bell
    assert order == ["a", "b", "c", "c", "c"]


def test_a_member_that_leaves_does_not_make_another_one_miss_its_turn() -> None:
    members = [a_subscription(name, "group", "g", 1) for name in "abc"]
    bell = ring(Bell(), members, a_pulse(AT, AT)).bell
    bell = ring(bell, members, a_pulse(AT + 2 * SECOND, AT + 2 * SECOND)).bell
    at = AT + 4 * SECOND
    assert told(ring(bell, members[1:], a_pulse(at, at))) == ["c"]


def test_each_group_and_each_lone_subscriber_is_notified_separately() -> None:
    members = [
        a_subscription("a", "group", "one"),
        a_subscription("b", "group", "one"),
        a_subscription("c", "group", "two"),
        a_subscription("d", "hash"),
        a_subscription("e", "hash"),
        a_subscription("f"),
    ]
    found = told(ring(Bell(), members, a_pulse(AT, AT)))
    assert Counter("hash" if each in "de" else each for each in found) == {"a": 1, "c": 1, "hash": 1, "f": 1}


@pytest.mark.parametrize("count", [1, 2, 100])
def test_hash_notifies_the_subscriber_whose_minute_it_is(count: int) -> None:
    members = [a_subscription(f"s{number:03}", "hash") for number in range(count)]
    for minute in range(2 * count):
        at = AT + minute * MINUTE
        assert told(ring(Bell(), members, a_pulse(at, at))) == [members[at // MINUTE % count].id]


def test_hash_waits_for_its_subscriber_or_for_the_next_minute() -> None:
    members = [a_subscription(name, "hash", "", 90) for name in ("a", "b")]
    first = ring(Bell(), members, a_pulse(AT, AT))
    late = AT + 50 * SECOND
    waiting = ring(first.bell, members, a_pulse(late, late))
    assert (told(waiting), waiting.again_at) == ([], AT + MINUTE)
    other = ring(waiting.bell, members, a_pulse(AT + MINUTE, late))
    assert len(other.notified) == 1
    assert other.notified != first.notified


# always -----------------------------------------------------------------------------------------------------------------

MEMBERS = st.lists(
    st.tuples(st.sampled_from(["fanout", "group", "hash"]), st.sampled_from(["g", "h"]), st.integers(1, 90)),
    min_size=1,
    max_size=8,
).map(lambda rows: [a_subscription(f"s{number}", *row) for number, row in enumerate(rows)])
STEPS = st.lists(
    st.tuples(
        st.integers(1, 40 * SECOND),  # time that passes
        st.sampled_from(["put", "put", "take all", "pause", "resume", "nothing"]),
    ),
    max_size=40,
)


@given(MEMBERS, STEPS)
def test_notifications_keep_their_interval_need_work_and_reach_every_unit(
    members: list[Subscription], steps: list[tuple[int, str]]
) -> None:
    bell, at, queue, paused = Bell(), AT, list[int](), False
    last: dict[str, int] = {}
    unaware: set[str] = set()  # units that were not notified since the queue last got work
    for pause, act in [*steps, (1, "resume"), (1, "put"), *[(1, "wait")] * 200]:
        at += pause
        if act == "put":
            if not queue:
                unaware = {unit_of(each) for each in members}
            queue.append(at)
        elif act == "take all" and not paused:
            queue.clear()
        elif act in ("pause", "resume"):
            paused = act == "pause"
        rung = ring(bell, members, a_pulse(at, *queue, paused=paused))
        units = Counter(unit_of(each) for each in rung.notified)
        assert not rung.notified or (queue and not paused)
        assert all(count == 1 for count in units.values())
        assert rung.changed or not rung.notified
        for each in rung.notified:
            assert at - last.get(each.id, 0) >= each.interval
            last[each.id] = at
        unaware -= units.keys()
        if not queue:
            unaware = set()
        assert set(rung.bell.owed) >= unaware or paused
        assert rung.again_at is None or rung.again_at > at
        if act == "wait" and rung.again_at is not None:
            at = rung.again_at - 1  # as the notifier's timer would
        bell = rung.bell
    assert not unaware


def unit_of(subscription: Subscription) -> str:
    names = {"fanout": f"one:{subscription.id}", "group": f"group:{subscription.terms.group}", "hash": "hash"}
    return names[subscription.terms.mode]


# the book ---------------------------------------------------------------------------------------------------------------


def a_record(subscription: Subscription, version: int = 1) -> Record:
    body = msgspec.json.encode(subscription.terms)
    return Record("subscription", subscription.tenant, subscription.id, body, version, subscription.expires_at, 0, 0)


def test_the_book_finds_subscriptions_by_command_in_any_spelling_and_by_the_star() -> None:
    book = Book()
    for each in (
        a_subscription("b", "fanout", "", 5, "Render", "other"),
        a_subscription("a", "fanout", "", 5, "*"),
        a_subscription("c", "fanout", "", 5, "other"),
    ):
        book.learn(each)
    assert [each.id for each in book.matching("acme", "render", AT)] == ["a", "b"]
    assert [each.spelling("render") for each in book.matching("acme", "render", AT)] == ["render", "Render"]
    assert book.wanted("acme", "anything")
    assert not book.wanted("else", "render")
    assert book.matching("acme", "render", AT * 3) == []
    assert book.active(AT) == {("acme", "render"): 1, ("acme", "other"): 2, ("acme", "*"): 1}
    for name in "abc":
        book.forget("acme", name)
    assert (book.tenants, book.active(AT)) == ([], {})


def test_loading_the_records_does_not_undo_changes_made_during_the_read() -> None:
    book = Book()
    old, ended, new = (a_subscription(name) for name in ("old", "ended", "new"))
    book.load([a_record(old), a_record(ended)])
    book.begin()
    read = [a_record(old), a_record(ended)]
    book.learn(new)
    book.forget("acme", "ended")
    book.load(read)
    assert [each.id for each in book.matching("acme", "x", AT)] == ["new", "old"]
    book.begin()
    book.load([a_record(new, 2)])
    assert [each.version for each in book.matching("acme", "x", AT)] == [2]
