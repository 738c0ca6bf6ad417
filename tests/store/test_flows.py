"""Flows: steps start when those before them have ended as they must, decided in the commit of that end."""

import asyncio

import msgspec
import pytest

from chargehand.engine import references
from chargehand.engine.flow import CancelFlow, FlowSteps, NewFlow, Occupied, RetryFlow
from chargehand.engine.job import NEVER, SECOND, State
from chargehand.engine.moves import Change, Moved, Prune, Submitted
from chargehand.engine.reads import StepFilter
from chargehand.engine.store import KeptJobs, OldJobs, Store
from tests.conftest import Clock
from tests.engine.given import an_engine
from tests.store.flow_given import a_flow, end, id_of, ready, states, submit_flow
from tests.store.given import TENANT, a_queue, a_report, get, seen, sql, submit, take_one, trace


async def test_a_step_waits_until_the_one_before_has_succeeded(store: Store) -> None:
    flow = await submit_flow(store, {"a": [], "b": ["a"]})
    assert await states(store, flow) == {"a": "ready", "b": "waiting"}
    moved = await end(store, flow, "a")
    assert [(each.job_id, each.move) for each in moved.others] == [(id_of(flow, "b"), "release")]
    assert await states(store, flow) == {"a": "succeeded", "b": "ready"}


async def test_a_flow_runs_from_its_submission_and_ends_with_its_last_step(store: Store) -> None:
    flow = await submit_flow(store, {"a": [], "b": ["a"]})
    assert (await get(store, flow.job.id)).topic == "running:steps"
    await end(store, flow, "a")
    assert (await get(store, flow.job.id)).state is State.RUNNING
    moved = await end(store, flow, "b")
    assert [(each.job_id, each.move) for each in moved.others] == [(flow.job.id, "succeed")]
    ended = await get(store, flow.job.id)
    assert (ended.state, ended.result) == (State.SUCCEEDED, b'{"steps":2,"succeeded":2,"failed":0,"skipped":0}')


async def test_a_flow_tells_its_receiver_that_it_began_and_how_it_ended(store: Store) -> None:
    flow = await submit_flow(store, {"a": []}, reports=(a_report(),))
    moved = await end(store, flow, "a")
    assert [len(each.endpoints) for each in moved.others] == [1]
    log = await store.list_events(flow.job.id)
    assert [(e.seq, e.move, e.step, e.message) for e in log if e.move == "note"] == [(3, "note", "a", "succeeded")]
    assert [e.move for e in log] == ["submit", "claim", "note", "succeed"]


@pytest.mark.parametrize(
    ("on", "move", "becomes"),
    [
        ("succeeded", "succeed", "ready"),
        ("succeeded", "fail", "skipped"),
        ("succeeded", "cancel", "skipped"),
        ("failed", "succeed", "skipped"),
        ("failed", "fail", "ready"),
        ("failed", "cancel", "ready"),
        ("finished", "succeed", "ready"),
        ("finished", "fail", "ready"),
        ("finished", "cancel", "ready"),
    ],
)
async def test_a_step_starts_or_is_skipped_by_how_the_one_before_ended(
    store: Store, on: str, move: str, becomes: str
) -> None:
    flow = await submit_flow(store, {"a": [], "b": [f"a:{on}"]})
    await end(store, flow, "a", move)
    assert (await states(store, flow))["b"] == becomes


async def test_the_error_of_a_skipped_step_says_which_step_was_to_blame(store: Store) -> None:
    flow = await submit_flow(store, {"a": [], "b": ["a"], "c": ["b"], "d": ["c:finished"]})
    await end(store, flow, "a", "fail")
    assert await states(store, flow) == {"a": "failed", "b": "skipped", "c": "skipped", "d": "ready"}
    assert (await get(store, id_of(flow, "b"))).error == "skipped: step 'a' failed"
    assert (await get(store, id_of(flow, "c"))).error == "skipped: step 'b' was skipped"


async def test_a_step_after_all_others_starts_with_the_last_of_them(store: Store) -> None:
    flow = await submit_flow(store, {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]})
    await end(store, flow, "a")
    await end(store, flow, "c")
    assert (await states(store, flow))["d"] == "waiting"
    await end(store, flow, "b")
    assert (await states(store, flow))["d"] == "ready"


async def test_a_step_after_any_others_starts_once_with_the_first_of_them(store: Store) -> None:
    flow = await submit_flow(store, {"a": [], "b": [], "c": [], "d": ["a", "b", "c"]}, need_any=["d"])
    await end(store, flow, "a", "fail")
    assert (await states(store, flow))["d"] == "waiting"
    await end(store, flow, "b")
    await end(store, flow, "d")
    assert (await end(store, flow, "c")).others[0].move == "fail"  # the flow: nothing took care of a
    assert await states(store, flow) == {"a": "failed", "b": "succeeded", "c": "succeeded", "d": "succeeded"}


async def test_a_step_after_any_others_is_skipped_when_none_of_them_did(store: Store) -> None:
    flow = await submit_flow(store, {"a": [], "b": [], "c": ["a", "b"]}, need_any=["c"])
    await end(store, flow, "a", "fail")
    await end(store, flow, "b", "fail")
    assert (await states(store, flow))["c"] == "skipped"


async def test_a_flow_fails_with_the_error_of_the_step_that_nothing_took_care_of(store: Store) -> None:
    flow = await submit_flow(store, {"a": [], "b": ["a"]})
    await end(store, flow, "a", "fail")
    ended = await get(store, flow.job.id)
    assert (ended.state, ended.error, ended.failed_step) == (State.FAILED, "step 'a' failed: broken", "a")


async def test_a_failure_that_another_step_took_care_of_does_not_fail_the_flow(store: Store) -> None:
    flow = await submit_flow(store, {"a": [], "b": ["a"], "mend": ["a:failed"]})
    await end(store, flow, "a", "fail")
    await end(store, flow, "mend")
    ended = await get(store, flow.job.id)
    assert (ended.state, ended.result) == (State.SUCCEEDED, b'{"steps":3,"succeeded":1,"failed":1,"skipped":1}')


async def test_a_step_that_was_to_take_care_of_a_failure_and_was_skipped_did_not(store: Store) -> None:
    flow = await submit_flow(store, {"a": [], "x": [], "mend": ["a:failed", "x:failed"]})
    await end(store, flow, "a", "fail")
    await end(store, flow, "x")
    assert (await get(store, flow.job.id)).failed_step == "a"


async def test_what_delays_a_step_counts_from_its_release(store: Store, clock: Clock) -> None:
    flow = a_flow({"a": [], "b": ["a"]}, fields={"delay_seconds": 5.0})
    await store.write(flow)
    assert (await get(store, id_of(flow, "b"))).run_at == NEVER
    clock.advance(100)
    await end(store, flow, "a")
    assert (await get(store, id_of(flow, "b"))).run_at == clock.now + 5 * SECOND


async def test_a_step_whose_deadline_passes_while_it_waits_fails(store: Store, clock: Clock) -> None:
    flow = await submit_flow(store, {"a": [], "b": ["a"], "c": ["b:failed"]}, fields={"deadline_seconds": 1.0})
    clock.advance(2)
    job = await get(store, id_of(flow, "b"))
    assert await store.write(Change(seen(job.id), "expire", deadline_at=job.deadline_at, error="late")) is not None
    assert (await states(store, flow))["c"] == "ready"


# submitting -----------------------------------------------------------------------------------------------------------


async def test_a_flow_that_is_submitted_again_is_the_one_that_was_there(store: Store) -> None:
    first = await submit_flow(store, {"a": []}, idempotency_key="k", fingerprint="f")
    again = a_flow({"a": []}, idempotency_key="k", fingerprint="f")
    answer = await store.write(again)
    assert isinstance(answer, Submitted)
    assert (answer.job_id, answer.created, answer.fingerprint) == (first.job.id, False, "f")
    assert await store.get_job(again.steps[0].job.id) is None


async def test_nothing_of_a_flow_is_submitted_if_the_unique_key_of_a_step_is_taken(store: Store) -> None:
    flow = a_flow({"a": [], "b": ["a"]}, fields={"unique_key": "k"})
    taken = await submit(store, queue=flow.steps[1].job.queue, unique_key="k")
    assert await store.write(flow) == Occupied(1, taken)
    assert [await store.get_job(each) for each in (flow.job.id, id_of(flow, "a"))] == [None, None]
    assert await store.write(a_flow({"a": []}))


async def test_a_step_is_not_requeued_by_itself(store: Store) -> None:
    flow = await submit_flow(store, {"a": []})
    await end(store, flow, "a", "fail")
    for job_id, kind in ((id_of(flow, "a"), "job"), (flow.job.id, "flow")):
        assert await store.write(Change(seen(job_id, kind=kind), "requeue")) is None


# cancelling -----------------------------------------------------------------------------------------------------------


async def cancel(store: Store, flow: NewFlow) -> Moved | None:
    return await store.write(CancelFlow(flow.job.id, TENANT, "cancelled by me"))


async def test_cancelling_a_flow_cancels_what_waits_and_ends_it_with_the_last_running_step(store: Store) -> None:
    flow = await submit_flow(store, {"a": [], "b": ["a"], "c": ["b:finished"]})
    job = await take_one(store, flow.steps[0].job.queue)
    moved = await cancel(store, flow)
    assert moved is not None
    assert sorted(each.job_id for each in moved.others) == sorted([id_of(flow, "b"), id_of(flow, "c")])
    assert await states(store, flow) == {"a": "running", "b": "cancelled", "c": "cancelled"}
    assert (await get(store, flow.job.id)).topic == "running:cancelling"
    await store.write(Change(seen(job.id), "succeed", result=b"1"))
    assert (await get(store, flow.job.id)).state is State.CANCELLED


async def test_a_flow_that_has_ended_is_not_cancelled(store: Store) -> None:
    flow = await submit_flow(store, {"a": []})
    await end(store, flow, "a")
    before = await trace(store, flow.job.id)
    assert await cancel(store, flow) is None
    assert await trace(store, flow.job.id) == before


# trying again ---------------------------------------------------------------------------------------------------------


async def retry(store: Store, flow: NewFlow, step: str = "") -> Moved | None:
    seq = (await get(store, flow.job.id)).seq
    return await store.write(RetryFlow(flow.job.id, TENANT, seq, step, "again"))


async def test_a_retry_from_a_step_runs_it_and_all_that_come_after_it(store: Store) -> None:
    flow = await submit_flow(store, {"a": [], "b": ["a"], "c": ["b"], "x": ["a"]})
    for name in ("a", "b", "x"):
        await end(store, flow, name)
    await end(store, flow, "c", "fail")
    moved = await retry(store, flow, "b")
    assert moved is not None
    assert [each.move for each in moved.others] == ["claim", "requeue", "requeue"]
    assert await states(store, flow) == {"a": "succeeded", "b": "ready", "c": "waiting", "x": "succeeded"}
    again = await get(store, id_of(flow, "b"))
    assert (again.topic, again.attempt, again.result, again.error) == ("queued", 0, None, None)
    await end(store, flow, "b", result=b'"new"')
    await end(store, flow, "c")
    assert (await get(store, flow.job.id)).state is State.SUCCEEDED
    assert (await get(store, id_of(flow, "b"))).result == b'"new"'


async def test_a_retry_without_a_step_runs_all_that_did_not_succeed(store: Store) -> None:
    flow = await submit_flow(store, {"a": [], "b": [], "c": ["a", "b"], "d": ["c"]})
    await end(store, flow, "a")
    await end(store, flow, "b", "fail")
    assert await retry(store, flow) is not None
    assert await states(store, flow) == {"a": "succeeded", "b": "ready", "c": "waiting", "d": "waiting"}
    await end(store, flow, "b")
    assert (await states(store, flow))["c"] == "ready"


async def test_a_cancelled_flow_can_be_tried_again(store: Store) -> None:
    flow = await submit_flow(store, {"a": [], "b": ["a"]})
    job = await take_one(store, flow.steps[0].job.queue)
    await cancel(store, flow)
    await store.write(Change(seen(job.id), "cancel", error="cancelled"))
    assert await retry(store, flow) is not None
    await end(store, flow, "a")
    await end(store, flow, "b")
    assert (await get(store, flow.job.id)).state is State.SUCCEEDED


async def test_a_step_that_cannot_start_is_not_tried_again(store: Store) -> None:
    flow = await submit_flow(store, {"a": [], "b": ["a"]})
    await end(store, flow, "a", "fail")
    before = await trace(store, flow.job.id)
    assert await retry(store, flow, "b") is None
    assert await trace(store, flow.job.id) == before


async def test_a_flow_is_not_tried_again_while_it_runs_or_twice(store: Store) -> None:
    flow = await submit_flow(store, {"a": []})
    assert await retry(store, flow) is None
    await end(store, flow, "a", "fail")
    seq = (await get(store, flow.job.id)).seq
    both = [store.write(RetryFlow(flow.job.id, TENANT, seq, "", "again")) for _ in range(2)]
    assert sorted(moved is not None for moved in await asyncio.gather(*both)) == [False, True]


async def test_a_flow_stays_as_it_is_if_the_unique_key_of_a_step_was_taken_meanwhile(store: Store) -> None:
    flow = await submit_flow(store, {"a": []}, fields={"unique_key": "k"})
    await end(store, flow, "a", "fail")
    await submit(store, queue=flow.steps[0].job.queue, unique_key="k")
    before = await trace(store, flow.job.id)
    assert await retry(store, flow) is None
    assert await trace(store, flow.job.id) == before


# taking over results -------------------------------------------------------------------------------------------------


async def test_results_are_taken_over_without_holding_more_of_them_than_a_payload_may_have(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "MAX_BYTES", 10_000)
    most = 0
    list_steps = store.list_steps

    async def listing(by: StepFilter) -> FlowSteps:
        nonlocal most
        found = await list_steps(by)
        most = max(most, sum(len(step.job.result or b"") for step in found.steps))
        return found

    monkeypatch.setattr(store, "list_steps", listing)
    names = [f"s{number}" for number in range(8)]
    wants_little = b'{"all": ["' + b'", "'.join(b"{{%s.few}}" % name.encode() for name in names) + b'"]}'
    wants_much = wants_little.replace(b".few", b".many")
    engine = an_engine(store)
    for payload in (wants_little, wants_much):
        flow = await submit_flow(store, {**{name: [] for name in names}, "last": names}, fields={"payload": payload})
        for name in names:
            await end(store, flow, name, result=b'{"few": "%s", "many": "%s"}' % (name.encode(), b"x" * 3_000))
        claimed = await engine.claim((a_queue(f"{flow.job.id}/last"),), "worker", 60)
        if payload is wants_little:
            assert msgspec.json.decode(claimed[0].payload) == {"all": names}
        else:
            assert claimed == ()
            error = (await get(store, id_of(flow, "last"))).error
            assert error == "with the results put in, the payload is larger than 10000 bytes"
    assert most <= 10_000


# what steps are to all others -----------------------------------------------------------------------------------------


async def test_a_waiting_step_is_not_claimed_however_late_it_is(store: Store, clock: Clock) -> None:
    flow = await submit_flow(store, {"a": [], "b": ["a"]})
    clock.advance(3_000_000_000)
    assert await ready(store, flow) == ["a"]


async def test_a_finished_step_stays_as_long_as_its_flow(store: Store, store_url: str, clock: Clock) -> None:
    flow = await submit_flow(store, {"a": [], "b": ["a"]}, fields={"keep_seconds": 60.0})
    await end(store, flow, "a")
    clock.advance(10_000)
    assert await prune(store) == 0
    assert await store.write(Prune((id_of(flow, "a"),), 0, (TENANT, "job"))) == 0
    await end(store, flow, "b")
    clock.advance(10_000)
    assert await prune(store) == 3
    for table, column in (("jobs", "id"), ("job_events", "job_id"), ("flow_steps", "job_id"), ("flow_edges", "job_id")):
        assert await sql(store_url, f"SELECT {column} FROM {table}") == [], table


async def prune(store: Store) -> int:
    """Remove what can go: steps go after their flow."""
    return sum([await store.prune(old, 100) for old in (OldJobs(100), KeptJobs()) for _ in range(2)])
