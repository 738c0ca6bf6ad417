"""Which model may use which target now: the rule by examples, and with random worlds."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from chargehand.doors.inference.residency import (
    TRUST_SECONDS,
    USED_SECONDS,
    Admit,
    Ask,
    Close,
    Load,
    LoadedModel,
    Step,
    TargetLedger,
    Want,
    choose,
    in_turn,
    reopen,
)

CAP = 100.0
A, B, C, D, E = (f"{letter}:latest" for letter in "abcde")
CLOUD = "big:cloud"


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def a_ledger(
    name: str = "one",
    *,
    slots: int = 2,
    parallel: int = 1,
    resident: tuple[str, ...] = (),
    installed: tuple[str, ...] | None = (A, B, C, D),
    models: tuple[str, ...] = (),
    up: bool = True,
    clock: Clock | None = None,
) -> TargetLedger:
    clock = clock or Clock()
    ledger = TargetLedger(name, slots, parallel, models, clock=clock, wall=clock)
    ledger.up = up
    ledger.installed = None if installed is None else dict.fromkeys(installed, "")
    ledger.saw({model: LoadedModel(model) for model in resident})
    return ledger


def wanted(model: str, *, ready: int = 1, priority: int = 3, waited: float = 0.0) -> Want:
    return Want(model, ready, priority, waited)


def step_for(want: Want, *ledgers: TargetLedger, rivals: tuple[Want, ...] = ()) -> Step | None:
    return choose(want, {each.model: each for each in (want, *rivals)}, ledgers, CAP)


# a model in memory ----------------------------------------------------------------------------------------------------


def test_a_model_in_memory_is_given_work_at_once() -> None:
    assert step_for(wanted(A), a_ledger(resident=(A,))) == Admit("one", A)


def test_a_model_takes_as_many_at_once_as_it_runs_in_parallel() -> None:
    ledger = a_ledger(resident=(A,), parallel=2)
    ledger.enter(A)
    assert step_for(wanted(A), ledger) == Admit("one", A)
    ledger.enter(A)
    assert step_for(wanted(A), ledger) is None
    ledger.leave(A)
    assert step_for(wanted(A), ledger) == Admit("one", A)


def test_a_job_waits_for_its_turn_if_its_model_is_busy_everywhere() -> None:
    ledger = a_ledger(resident=(A, B))
    ledger.enter(A)
    assert step_for(wanted(A, waited=CAP * 2), ledger) is None


def test_the_target_with_the_model_in_memory_goes_before_one_that_is_listed_earlier() -> None:
    assert step_for(wanted(A), a_ledger("one"), a_ledger("two", resident=(A,))) == Admit("two", A)


def test_of_two_targets_with_the_model_in_memory_the_first_is_preferred_while_it_has_room() -> None:
    one, two = a_ledger("one", resident=(A,)), a_ledger("two", resident=(A,))
    assert step_for(wanted(A), one, two) == Admit("one", A)
    one.enter(A)
    assert step_for(wanted(A), one, two) == Admit("two", A)


def test_a_busy_model_is_loaded_a_second_time_only_where_a_slot_is_free() -> None:
    one, two = a_ledger("one", resident=(A,)), a_ledger("two", resident=(B,))
    one.enter(A)
    step = step_for(wanted(A), one, two)
    assert isinstance(step, Load)
    assert (step.target, step.evict) == ("two", ())
    two.loaded(C)
    assert step_for(wanted(A, waited=CAP * 2), one, two) is None


def test_a_model_that_is_being_evicted_gets_no_work() -> None:
    ledger = a_ledger(resident=(A, B))
    ledger.closing[A] = C
    assert step_for(wanted(A), ledger) is None


def test_a_model_that_is_being_loaded_is_waited_for() -> None:
    one, two = a_ledger("one"), a_ledger("two")
    one.opening[A] = 0.0
    assert step_for(wanted(A), one, two) is None


# a model that is not in memory ----------------------------------------------------------------------------------------


def test_a_model_is_loaded_into_a_free_slot_and_none_is_evicted() -> None:
    step = step_for(wanted(B), a_ledger(resident=(A,)), rivals=(wanted(A),))
    assert step == Load("one", B, (), f"{B} has a free slot on one")


def test_a_model_that_is_being_loaded_takes_a_slot() -> None:
    ledger = a_ledger(slots=2, resident=(A,))
    ledger.opening[B] = 0.0
    assert step_for(wanted(C), ledger, rivals=(wanted(A), wanted(B))) is None


def test_a_slot_is_free_on_the_second_target_when_the_first_is_full() -> None:
    step = step_for(wanted(C), a_ledger("one", resident=(A, B)), a_ledger("two", resident=(D,)))
    assert isinstance(step, Load)
    assert (step.target, step.evict) == ("two", ())


def test_while_others_wait_for_the_models_in_memory_a_newcomer_waits_up_to_the_cap() -> None:
    ledger = a_ledger(slots=1, resident=(A,))
    assert step_for(wanted(B, waited=CAP - 0.01), ledger, rivals=(wanted(A),)) is None
    step = step_for(wanted(B, waited=CAP), ledger, rivals=(wanted(A),))
    assert isinstance(step, Load)
    assert step.evict == (A,)
    assert "the cap is 100 s" in step.reason


def test_a_more_urgent_job_does_not_wait_for_the_cap() -> None:
    ledger = a_ledger(slots=1, resident=(A,))
    step = step_for(wanted(B, priority=5), ledger, rivals=(wanted(A, priority=4),))
    assert isinstance(step, Load)
    assert step.evict == (A,)
    assert "priority 5 goes before 4" in step.reason
    assert step_for(wanted(B, priority=5), ledger, rivals=(wanted(A, priority=5),)) is None


def test_a_model_that_no_job_waits_for_makes_room_at_once() -> None:
    step = step_for(wanted(B), a_ledger(slots=1, resident=(A,)))
    assert isinstance(step, Load)
    assert step.evict == (A,)
    assert "nobody waits for it" in step.reason


def test_running_requests_end_before_their_model_is_evicted() -> None:
    ledger = a_ledger(slots=1, resident=(A,))
    ledger.enter(A)
    step = step_for(wanted(B), ledger)
    assert isinstance(step, Close)
    assert (step.target, step.model, step.wanted) == ("one", A, B)
    ledger.closing[A] = B
    assert step_for(wanted(B), ledger) is None
    assert step_for(wanted(A), ledger) is None
    ledger.leave(A)
    step = step_for(wanted(B), ledger, rivals=(wanted(A, priority=9),))
    assert isinstance(step, Load)
    assert step.evict == (A,)


def test_room_that_is_being_made_for_one_model_is_not_taken_by_another() -> None:
    ledger = a_ledger(slots=1, resident=(A,))
    ledger.closing[A] = B
    assert step_for(wanted(C, priority=9, waited=CAP), ledger, rivals=(wanted(B),)) is None


def test_a_model_that_a_caller_closed_is_not_evicted() -> None:
    ledger = a_ledger(slots=1, resident=(A,))
    ledger.closing[A] = "@ a caller asked to unload it"
    assert step_for(wanted(B, waited=CAP), ledger) is None


def test_of_idle_models_the_least_recently_used_is_evicted() -> None:
    clock = Clock()
    ledger = a_ledger(slots=3, resident=(A, B, C), clock=clock)
    for model in (B, C, A):
        clock.now += 10
        ledger.enter(model)
        ledger.leave(model, used=True)
    step = step_for(wanted(D), ledger)
    assert isinstance(step, Load)
    assert step.evict == (B,)


def test_a_model_that_was_never_used_is_evicted_first() -> None:
    ledger = a_ledger(slots=2, resident=(A, B))
    ledger.leave(A, used=True)
    step = step_for(wanted(C), ledger)
    assert isinstance(step, Load)
    assert step.evict == (B,)


def test_an_idle_model_is_evicted_before_a_busy_one() -> None:
    clock = Clock()
    ledger = a_ledger(resident=(A, B), clock=clock)
    ledger.enter(A)
    clock.now += 10
    ledger.leave(B, used=True)
    step = step_for(wanted(C), ledger)
    assert isinstance(step, Load)
    assert step.evict == (B,)


def test_an_unwanted_model_is_evicted_before_a_wanted_one_even_if_it_is_busy() -> None:
    ledger = a_ledger(resident=(A, B))
    ledger.enter(A)
    step = step_for(wanted(C), ledger, rivals=(wanted(B),))
    assert isinstance(step, Close)
    assert step.model == A


def test_of_wanted_models_the_one_with_the_least_urgent_job_is_evicted() -> None:
    ledger = a_ledger(resident=(A, B))
    step = step_for(wanted(C, waited=CAP), ledger, rivals=(wanted(A, priority=2), wanted(B, priority=7)))
    assert isinstance(step, Load)
    assert step.evict == (A,)


def test_an_idle_model_on_a_later_target_is_evicted_before_a_busy_one_on_the_first() -> None:
    one, two = a_ledger("one", slots=1, resident=(A,)), a_ledger("two", slots=1, resident=(B,))
    one.enter(A)
    step = step_for(wanted(C), one, two)
    assert isinstance(step, Load)
    assert (step.target, step.evict) == ("two", (B,))


def test_room_is_made_on_one_target_only() -> None:
    one, two = a_ledger("one", slots=1, resident=(A,)), a_ledger("two", slots=1, resident=(B,))
    one.enter(A)
    two.enter(B)
    assert isinstance(step_for(wanted(C), one, two), Close)
    one.closing[A] = C
    assert step_for(wanted(C), one, two) is None
    two.leave(B)
    step = step_for(wanted(C), one, two)
    assert isinstance(step, Load)
    assert step.target == "two"


def test_a_target_with_more_models_than_slots_is_brought_back_to_its_slots() -> None:
    step = step_for(wanted(D), a_ledger(slots=1, resident=(A, B)))
    assert isinstance(step, Load)
    assert set(step.evict) == {A, B}


# names that share weights ---------------------------------------------------------------------------------------------


def two_names(ledger: TargetLedger) -> TargetLedger:
    ledger.saw({A: LoadedModel(A, "f00d"), B: LoadedModel(B, "f00d")})
    return ledger


def test_two_names_of_the_same_weights_take_one_slot() -> None:
    step = step_for(wanted(C), two_names(a_ledger(slots=2)))
    assert isinstance(step, Load)
    assert step.evict == ()


def test_two_names_of_the_same_weights_are_evicted_together_when_both_are_idle() -> None:
    ledger = two_names(a_ledger(slots=1))
    ledger.enter(B)
    step = step_for(wanted(C), ledger)
    assert isinstance(step, Close)
    assert step.model == B
    ledger.closing[B] = C
    assert step_for(wanted(C), ledger) is None
    ledger.leave(B)
    step = step_for(wanted(C), ledger)
    assert isinstance(step, Load)
    assert set(step.evict) == {A, B}


# a model that did not fit ---------------------------------------------------------------------------------------------


def test_a_model_that_did_not_fit_is_loaded_alone() -> None:
    ledger = a_ledger(slots=4, resident=(A, B))
    ledger.cramped.add(C)
    step = step_for(wanted(C), ledger)
    assert isinstance(step, Load)
    assert set(step.evict) == {A, B}


def test_a_model_that_did_not_fit_is_tried_again_on_a_target_that_is_empty() -> None:
    ledger = a_ledger()
    ledger.cramped.add(C)
    step = step_for(wanted(C), ledger)
    assert isinstance(step, Load)
    assert step.evict == ()


def test_a_model_that_did_not_fit_waits_for_those_that_run_and_those_that_load() -> None:
    ledger = a_ledger(slots=4, resident=(A,))
    ledger.cramped.add(C)
    ledger.enter(A)
    assert isinstance(step_for(wanted(C), ledger), Close)
    ledger.leave(A)
    ledger.opening[B] = 0.0
    assert step_for(wanted(C), ledger) is None


def test_a_model_that_ran_out_of_memory_at_work_gets_the_target_for_itself() -> None:
    ledger = a_ledger(resident=(A, B))
    ledger.cramped.add(A)
    step = step_for(wanted(A), ledger)
    assert isinstance(step, Load)
    assert step.evict == (B,)


def test_a_model_that_was_loaded_after_all_is_no_longer_alone() -> None:
    ledger = a_ledger(resident=(A,))
    ledger.cramped.add(A)
    ledger.loaded(A)
    assert step_for(wanted(A), ledger) == Admit("one", A)
    step = step_for(wanted(B), ledger)
    assert isinstance(step, Load)
    assert step.evict == ()


# cloud models ---------------------------------------------------------------------------------------------------------


def test_a_cloud_model_runs_beside_full_slots() -> None:
    assert step_for(wanted(CLOUD), a_ledger(slots=1, resident=(A,))) == Admit("one", CLOUD)


def test_a_cloud_model_takes_no_slot_also_when_it_has_answered() -> None:
    ledger = a_ledger(slots=1)
    ledger.loaded(CLOUD)
    step = step_for(wanted(A), ledger)
    assert isinstance(step, Load)
    assert step.evict == ()


def test_a_cloud_model_obeys_the_allow_list() -> None:
    one, two = a_ledger("one", models=(A,)), a_ledger("two", models=(CLOUD,))
    assert step_for(wanted(CLOUD), one, two) == Admit("two", CLOUD)
    assert one.room(CLOUD) == 0


def test_a_cloud_model_that_a_target_did_not_find_is_not_requested_there_again() -> None:
    one, two = a_ledger("one"), a_ledger("two")
    one.missing.add(CLOUD)
    assert step_for(wanted(CLOUD), one, two) == Admit("two", CLOUD)


# where a model may be -------------------------------------------------------------------------------------------------


def test_only_models_on_its_list_are_requested_from_a_target() -> None:
    one, two = a_ledger("one", models=("B",)), a_ledger("two")
    step = step_for(wanted(A), one, two)
    assert isinstance(step, Load)
    assert step.target == "two"


def test_a_model_in_memory_that_is_not_on_the_list_has_no_room() -> None:
    ledger = a_ledger(models=("b",), resident=(A,))
    assert ledger.room(A) == 0


def test_a_model_in_memory_that_the_target_did_not_find_has_no_room() -> None:
    ledger = a_ledger(resident=(A,))
    ledger.missing.add(A)
    assert ledger.room(A) == 0


def test_a_target_that_does_not_have_the_model_is_passed_over() -> None:
    step = step_for(wanted(D), a_ledger("one", installed=(A,)), a_ledger("two", installed=(A, D)))
    assert isinstance(step, Load)
    assert step.target == "two"


def test_a_target_that_is_away_is_passed_over() -> None:
    step = step_for(wanted(A), a_ledger("one", up=False, resident=(A,)), a_ledger("two"))
    assert isinstance(step, Load)
    assert step.target == "two"


def test_a_model_that_no_target_lists_is_requested_from_a_target() -> None:
    assert step_for(wanted(E), a_ledger("one"), a_ledger("two")) == Ask("one", E)


def test_an_unlisted_model_waits_while_a_target_that_is_away_may_have_it() -> None:
    one = a_ledger("one")
    assert step_for(wanted(E), one, a_ledger("two", up=False, installed=None)) is None
    assert step_for(wanted(E), one, a_ledger("two", up=False, installed=(E,))) is None
    assert step_for(wanted(E), one, a_ledger("two", up=False, installed=(A,))) == Ask("one", E)
    assert step_for(wanted(E), one, a_ledger("two", up=False, installed=None, models=(A,))) == Ask("one", E)


def test_an_unlisted_model_is_requested_only_where_the_list_allows_it() -> None:
    assert step_for(wanted(E), a_ledger("one", models=(A,)), a_ledger("two", models=(E,))) == Ask("two", E)


def test_a_target_gets_one_request_for_an_unlisted_model_at_a_time() -> None:
    ledger = a_ledger()
    ledger.enter(E)
    assert step_for(wanted(E), ledger) is None


def test_a_model_that_no_list_allows_is_refused_and_does_not_wait_for_ever() -> None:
    one, two = a_ledger("one", models=(A,)), a_ledger("two", models=(B,))
    assert step_for(wanted(C), one, two) == Ask("one", C)
    one.up = False
    assert step_for(wanted(C), one, two) == Ask("two", C)


def test_without_a_target_a_job_waits() -> None:
    assert step_for(wanted(A)) is None


# what is believed -----------------------------------------------------------------------------------------------------


def test_the_list_of_a_target_is_trusted_for_a_while_and_a_use_for_a_moment() -> None:
    clock = Clock()
    ledger = a_ledger(resident=(A,), clock=clock)
    clock.now += TRUST_SECONDS - 0.1
    assert ledger.trusts(A)
    clock.now += 0.2
    assert not ledger.trusts(A)
    ledger.leave(A, used=True)
    assert ledger.trusts(A)
    clock.now += USED_SECONDS + 0.1
    assert not ledger.trusts(A)


def test_a_model_with_running_requests_is_in_memory() -> None:
    ledger = a_ledger(resident=(A,))
    ledger.seen_at = float("-inf")
    assert not ledger.trusts(A)
    ledger.enter(A)
    assert ledger.trusts(A)


def test_a_model_that_is_about_to_expire_is_checked_again() -> None:
    clock = Clock()
    ledger = a_ledger(clock=clock)
    ledger.saw({A: LoadedModel(A, expires_at=clock.now + 60), B: LoadedModel(B, expires_at=clock.now + 0.5)})
    assert ledger.trusts(A)
    assert not ledger.trusts(B)


def test_a_model_that_is_still_listed_long_after_it_should_have_expired_is_in_use() -> None:
    """Ollama keeps the old time while a request runs; and the target's clock may be wrong by hours."""
    clock = Clock()
    ledger = a_ledger(clock=clock)
    ledger.saw({A: LoadedModel(A, expires_at=clock.now - 600)})
    assert ledger.trusts(A)


def test_all_knowledge_of_a_target_that_went_away_is_dropped() -> None:
    ledger = a_ledger(resident=(A,))
    ledger.closing[A] = B
    ledger.lost()
    assert (ledger.up, ledger.resident, ledger.closing) == (False, {}, {})
    ledger.up = True
    assert not ledger.trusts(A)
    assert ledger.may_have(A), "what it has installed is still known"


# whose turn it is -----------------------------------------------------------------------------------------------------


def test_models_are_served_by_priority_and_then_by_waiting_time() -> None:
    wants = (wanted(A, waited=1), wanted(B, priority=9), wanted(C, waited=2))
    assert [want.model for want in in_turn(wants, CAP)] == [B, C, A]


def test_a_job_that_waited_for_the_cap_goes_before_urgent_ones() -> None:
    wants = (wanted(A, priority=9), wanted(B, priority=0, waited=CAP), wanted(C, priority=5, waited=CAP + 1))
    assert [want.model for want in in_turn(wants, CAP)] == [C, B, A]


def test_a_model_takes_work_again_when_no_job_waits_for_its_room() -> None:
    ledger = a_ledger(resident=(A,))
    ledger.closing[A] = B
    reopen({B: wanted(B)}, [ledger])
    assert ledger.closing == {A: B}
    reopen({}, [ledger])
    assert ledger.closing == {}


def test_a_model_stays_closed_while_the_one_that_takes_its_room_is_loaded() -> None:
    ledger = a_ledger(resident=(A,))
    ledger.closing[A] = B
    ledger.opening[B] = 0.0
    reopen({}, [ledger])
    assert ledger.closing == {A: B}


@pytest.mark.parametrize("place", ["opening", "resident"])
def test_a_model_takes_work_again_when_the_one_it_was_closed_for_found_room_elsewhere(place: str) -> None:
    one, two = a_ledger("one", resident=(A,)), a_ledger("two")
    one.closing[A] = B
    if place == "opening":
        two.opening[B] = 0.0
    else:
        two.loaded(B)
    reopen({B: wanted(B)}, [one, two])
    assert one.closing == {}


def test_a_model_that_a_caller_closed_is_not_reopened_by_the_scheduler() -> None:
    ledger = a_ledger(resident=(A,))
    ledger.closing[A] = "@ /api/delete changes it"
    reopen({}, [ledger])
    assert ledger.closing


# by chance ------------------------------------------------------------------------------------------------------------

GENERATION, LOADING = 5, 4  # the longest duration in seconds
CAP_SECONDS = 20


@dataclass
class Task:
    target: TargetLedger
    step: Admit | Load
    ends_at: float
    loads_until: float | None = None


@dataclass
class World:
    """Targets, jobs that come and go, and a scheduler that follows `choose`. Each round is a second."""

    ledgers: list[TargetLedger]
    clock: Clock
    durations: Iterator[int]
    queues: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # model -> (-priority, since)
    tasks: list[Task] = field(default_factory=list)
    served_at: dict[str, float] = field(default_factory=dict)
    done: int = 0

    def wants(self) -> dict[str, Want]:
        found = {}
        for model, jobs in self.queues.items():
            if jobs:
                since = max(min(at for _, at in jobs), self.served_at.get(model, 0.0))
                found[model] = Want(model, len(jobs), -min(jobs)[0], self.clock.now - since)
        return found

    def arrive(self, model: str, priority: int) -> None:
        self.queues.setdefault(model, []).append((-priority, self.clock.now))

    def second(self) -> None:
        self.clock.now += 1
        for task in list(self.tasks):
            self._go_on(task)
        wants = self.wants()
        reopen(wants, self.ledgers)
        for want in in_turn(wants.values(), CAP_SECONDS):
            self._serve(want, wants)
        self._check()

    def _serve(self, want: Want, wants: dict[str, Want]) -> None:
        while want.ready:
            step = choose(want, wants, self.ledgers, CAP_SECONDS)
            if step is None:
                return
            ledger = next(each for each in self.ledgers if each.name == step.target)
            assert not isinstance(step, Ask), "everybody's model is installed somewhere"
            if isinstance(step, Close):
                assert ledger.in_flight[step.model], "nobody is closed who could be thrown out"
                ledger.closing[step.model] = step.wanted
                return
            want.ready -= 1
            self._start(ledger, step)

    def _start(self, ledger: TargetLedger, step: Admit | Load) -> None:
        jobs = self.queues[step.model]
        jobs.remove(min(jobs))
        self.served_at[step.model] = self.clock.now
        task = Task(ledger, step, self.clock.now + next(self.durations) % GENERATION + 1)
        assert ledger.offers(step.model)
        ledger.enter(step.model)
        if isinstance(step, Load):
            assert not any(ledger.in_flight.get(victim) for victim in step.evict), "it drains before it is thrown out"
            if step.model in ledger.cramped:
                assert set(step.evict) == ledger.resident.keys() - {step.model}
                assert not ledger.opening
            ledger.opening[step.model] = self.clock.now
            for victim in step.evict:
                ledger.closing[victim] = step.model
            task.loads_until = self.clock.now + next(self.durations) % LOADING + 1
            task.ends_at += task.loads_until - self.clock.now
        else:
            assert step.model in ledger.resident
            assert step.model not in ledger.closing
        self.tasks.append(task)

    def _go_on(self, task: Task) -> None:
        ledger, step = task.target, task.step
        if task.loads_until is not None and task.loads_until <= self.clock.now and isinstance(step, Load):
            task.loads_until = None
            for victim in step.evict:
                ledger.unloaded(victim)
            ledger.opening.pop(step.model)
            if next(self.durations) % 10 == 0:
                task.ends_at = self.clock.now  # the model did not fit: try it once more, alone, and then never again
                if step.model not in ledger.cramped:
                    self.arrive(step.model, 3)
                ledger.cramped.add(step.model)
            else:
                ledger.loaded(step.model)
        if task.ends_at <= self.clock.now:
            self.tasks.remove(task)
            ledger.leave(step.model, used=True)
            self.served_at[step.model] = self.clock.now
            self.done += 1

    def _check(self) -> None:
        for ledger in self.ledgers:
            loads = [task.step for task in self.tasks if task.target is ledger and task.loads_until is not None]
            leaving = {victim for load in loads if isinstance(load, Load) for victim in load.evict}
            held = (ledger.resident.keys() | ledger.opening.keys()) - leaving
            assert len(held) <= ledger.slots, f"{ledger.name} has {held}"
            assert all(count <= ledger.parallel for count in ledger.in_flight.values())
        for want in self.wants().values():
            assert want.waited_seconds <= self.longest_wait(), f"{want} waits too long at {self.clock.now}"

    def longest_wait(self) -> float:
        """Return the cap and the turns of all that waited longer; each may have to drain every slot and to load."""
        models, slots = len(self.queues), max(ledger.slots for ledger in self.ledgers)
        return CAP_SECONDS + models * ((slots + 1) * (GENERATION + 1) + LOADING + 2)


MODELS = (A, B, C, D, E)
targets = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 2), st.sets(st.sampled_from(MODELS))), min_size=1, max_size=3
)
arrivals = st.lists(
    st.lists(st.tuples(st.sampled_from(MODELS), st.integers(0, 9)), max_size=3), min_size=1, max_size=120
)


def a_world(shape: list[tuple[int, int, set[str]]], durations: list[int]) -> World:
    clock = Clock(0.0)
    ledgers = []
    for number, (slots, parallel, absent) in enumerate(shape):
        installed = MODELS if number == 0 else tuple(set(MODELS) - absent)
        ledgers.append(a_ledger(f"t{number}", slots=slots, parallel=parallel, installed=installed, clock=clock))

    def chance() -> Iterator[int]:
        while True:
            yield from durations

    return World(ledgers, clock, chance())


@settings(max_examples=100, phases=(Phase.reuse, Phase.generate))  # shrinking takes minutes
@given(shape=targets, coming=arrivals, durations=st.lists(st.integers(0, 100), min_size=1, max_size=30))
def test_in_any_world_the_slots_are_never_exceeded_and_no_job_waits_for_ever(
    shape: list[tuple[int, int, set[str]]], coming: list[list[tuple[str, int]]], durations: list[int]
) -> None:
    world = a_world(shape, [*durations, 1])
    for jobs in coming:
        for model, priority in jobs:
            world.arrive(model, priority)
        world.second()
    for _ in range(2000):
        if not any(world.queues.values()) and not world.tasks:
            break
        world.second()
    assert not any(world.queues.values())
    assert all(not ledger.in_flight and not ledger.opening for ledger in world.ledgers)


@pytest.mark.parametrize("urgent", [False, True])
def test_a_backlog_for_two_models_does_not_swap_them_for_every_job(urgent: bool) -> None:
    """All jobs have waited for the cap by then; each model still gets its time, and the other waits no longer than the cap."""
    world = a_world([(1, 1, set())], [1])
    for number in range(100):
        world.arrive((A, B)[number % 2], 5 if urgent and number % 2 else 3)
    loads = 0
    while any(world.queues.values()):
        before = dict(world.ledgers[0].opening)
        world.second()
        loads += not before and bool(world.ledgers[0].opening)
    assert world.clock.now > 10 * CAP_SECONDS
    swaps = world.clock.now / (CAP_SECONDS - LOADING) + 1
    assert loads <= (2 * swaps if urgent else swaps)
