"""The failure table, row by row: how each observation is classified, and what then happens to a real job."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.doors.inference import attempt
from chargehand.doors.inference.failures import TABLE, FailureAction, FailureRow, Observed, Symptom, classify
from tests.api.serving import until
from tests.inference.calling import ran
from tests.inference.conformance import (
    BUSY,
    LOAD_STALLED,
    OUT_OF_MEMORY,
    RUNNER_STOPPED,
    RUNNER_TERMINATED,
    SERVER_OUT_OF_MEMORY,
    SERVER_STALLED,
    SERVER_TERMINATED,
    Answer,
)
from tests.inference.stories import (
    Place,
    a_place,
    failures,
    loads,
    outcomes,
    said,
    some_targets,
)

# what an observation is taken for -------------------------------------------------------------------------------------


def status(code: int, text: str = "", **fields: Any) -> Observed:
    return Observed(Symptom.STATUS, text, code, **{"path": "/api/chat", **fields})


# fmt: off
EXAMPLES = [
    (Observed(Symptom.UNREACHABLE, "Connection refused"), "target away", FailureAction.AWAY),
    (Observed(Symptom.SILENCE, "no answer within 2 s"), "target slept", FailureAction.AWAY),
    (Observed(Symptom.RESET, "Server disconnected", alive=False), "target away", FailureAction.AWAY),
    (Observed(Symptom.RESET, "Server disconnected"), "crash", FailureAction.RETRY),
    (Observed(Symptom.CUT, "Connection reset by peer", alive=False), "target away", FailureAction.AWAY),
    (status(429, "too many requests"), "cloud", FailureAction.LATER),
    (status(503, "overloaded", cloud=True), "cloud", FailureAction.LATER),
    (status(502, "cannot reach ollama.com", cloud=True), "cloud", FailureAction.LATER),
    (status(503, BUSY), "target busy", FailureAction.BUSY),
    (status(404, "model 'a' not found"), "no such model", FailureAction.ELSEWHERE),
    (status(400, '"a" does not support chat', path="/api/embed"), "permanent", FailureAction.FAIL),
    (status(400, "the input length exceeds the context length", path="/api/embed"), "permanent", FailureAction.FAIL),
    (status(400, "invalid character 'x' looking for beginning of value", path="/api/embed"), "permanent", FailureAction.FAIL),
    (status(400, "failed to encode response: json: unsupported value: NaN", path="/api/embed"), "ambiguous", FailureAction.RETRY_ONCE),
    (status(400, RUNNER_TERMINATED, path="/api/embed"), "ambiguous", FailureAction.RETRY_ONCE),
    (status(400, '"a" does not support thinking'), "permanent", FailureAction.FAIL),
    (status(400, "whatever"), "permanent", FailureAction.FAIL),
    (status(401, "unauthorized"), "permanent", FailureAction.FAIL),
    (status(403), "permanent", FailureAction.FAIL),
    (status(500, OUT_OF_MEMORY), "resource", FailureAction.MAKE_ROOM),
    (status(500, SERVER_OUT_OF_MEMORY), "resource", FailureAction.MAKE_ROOM),
    (status(500, "model is too large for system memory"), "resource", FailureAction.MAKE_ROOM),
    (status(500, "not enough memory to load the model"), "resource", FailureAction.MAKE_ROOM),
    (status(500, "CUDA error: out of memory"), "resource", FailureAction.MAKE_ROOM),
    (status(500, 'option "num_ctx" must be of type integer'), "permanent", FailureAction.FAIL),
    (status(500, 'invalid format: "5"; expected "json" or a valid JSON Schema object'), "permanent", FailureAction.FAIL),
    (status(500, "template: :1: unclosed action"), "permanent", FailureAction.FAIL),
    (status(500, RUNNER_TERMINATED), "transient", FailureAction.RETRY),
    (status(500, RUNNER_STOPPED), "transient", FailureAction.RETRY),
    (status(500, SERVER_TERMINATED), "transient", FailureAction.RETRY),
    (status(500, LOAD_STALLED), "transient", FailureAction.RETRY),
    (status(500, SERVER_STALLED), "transient", FailureAction.RETRY),
    (status(502, "bad gateway"), "transient", FailureAction.RETRY),
    (status(302), "transient", FailureAction.RETRY),
    (Observed(Symptom.ERROR_LINE, "unexpected EOF"), "transient", FailureAction.RETRY),
    (Observed(Symptom.CUT, "it ended without done:true", repeats=True), "degenerate", FailureAction.FAIL),
    (Observed(Symptom.CUT, "it ended without done:true"), "truncated", FailureAction.RETRY),
]
# fmt: on


@pytest.mark.parametrize(("seen", "kind", "action"), EXAMPLES, ids=lambda each: getattr(each, "text", "") or None)
def test_an_observation_is_classified_by_its_row(seen: Observed, kind: str, action: FailureAction) -> None:
    row = classify(seen)
    assert (row.kind, row.action) == (kind, action)


def test_every_row_has_an_example() -> None:
    assert [row.observation for row in TABLE if row not in {classify(seen) for seen, _, _ in EXAMPLES}] == []


@given(
    st.builds(
        Observed,
        st.sampled_from(Symptom),
        st.text(),
        st.integers(300, 599),
        st.sampled_from(["/api/chat", "/api/embed", "/v1/messages"]),
        cloud=st.booleans(),
        alive=st.booleans(),
        repeats=st.booleans(),
    )
)
def test_every_observation_has_a_row(seen: Observed) -> None:
    assert classify(seen) in TABLE


# what happens to a job ------------------------------------------------------------------------------------------------

Test = TypeVar("Test", bound=Callable[..., Any])
COVERED: set[str] = set()


def row(*observations: str) -> Callable[[Test], Test]:
    """Mark a test with the rows it is about; it fails unless an attempt met each of them."""
    assert {each.observation for each in TABLE} >= set(observations)
    COVERED.update(observations)

    def mark(test: Test) -> Test:
        test.rows = observations  # type: ignore[attr-defined]
        return test

    return mark


@pytest.fixture(autouse=True)
def found(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the rows that the attempts met, in order."""
    met: list[str] = []

    def classified(seen: Observed) -> FailureRow:
        row = classify(seen)
        met.append(row.observation)
        return row

    monkeypatch.setattr(attempt, "classify", classified)
    yield met
    assert set(getattr(request.function, "rows", ())) <= set(met)


def test_every_row_happens_to_a_job_in_one_of_these_tests() -> None:
    assert {row.observation for row in TABLE} - COVERED == set()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with some_targets() as [target], a_place(tmp_path, target) as place:
        yield place


# the target is away


@row("refused, unreachable, unknown name, no connection in time")
async def test_a_job_whose_target_refuses_the_connection_is_parked_and_runs_when_it_is_back(tmp_path: Path) -> None:
    async with some_targets() as [target], a_place(tmp_path, target, inference__probe_seconds=60) as place:
        await place.run()
        await target.go_away()
        job_id = await place.ask(max_attempts=1)  # before any probe could notice it
        job = await place.parked(job_id)
        assert (job["state"], job["attempt"], job["waiting_for"]) == ("queued", 1, "target")
        assert failures(job) == ["target away"]
        assert "laptop" in job["waiting"]
        assert len(ran(target)) == 1
        await target.come_back()
        job = await place.done(job_id)
        assert (job["attempt"], outcomes(job), job["error"]) == (1, ["park", "succeed"], None)


async def test_a_target_that_is_gone_before_a_load_is_away_and_not_busy(tmp_path: Path) -> None:
    async with some_targets() as [target], a_place(tmp_path, target, inference__probe_seconds=60) as place:
        await place.run(model="b")
        await target.go_away()
        job_id = await place.ask(max_attempts=1)
        job = await place.parked(job_id)
        assert failures(job) == ["target away"]
        assert "busy" not in job["attempts"][0]["message"]
        await target.come_back()
        assert (await place.done(job_id))["attempt"] == 1


@row("connected, then silence, and the side probe fails")
async def test_a_job_whose_target_falls_asleep_in_mid_stream_is_parked_and_keeps_its_partial_answer(
    place: Place,
) -> None:
    place.target.script("a", Answer(chunks=["one", " two", " three"], hold=asyncio.Event(), hold_after=2))
    job_id = await place.ask(max_attempts=1)
    await until(lambda: [seen.chunks for seen in ran(place.target)] == [2])
    place.target.sleep()
    job = await place.parked(job_id, 5)
    assert (job["state"], job["attempt"], failures(job)) == ("queued", 1, ["target slept"])
    assert (await place.artifact(job, "attempt-1.ndjson")).count(b"\n") == 2
    place.target.wake()
    job = await place.done(job_id)
    assert (job["attempt"], outcomes(job), said(job)) == (1, ["park", "succeed"], "a says: one two three")
    assert [seen.aborted for seen in ran(place.target)] == [True, False]


@row("reset or end before an answer, and the target is gone")
async def test_a_job_whose_target_dies_before_it_answers_is_parked(place: Place) -> None:
    place.target.habits.hold = asyncio.Event()
    job_id = await place.ask(max_attempts=1)
    await until(lambda: len(ran(place.target)) == 1)
    await place.target.go_away()
    job = await place.parked(job_id)
    assert (job["state"], job["attempt"], failures(job)) == ("queued", 1, ["target away"])
    assert job["artifacts"] == []
    place.target.habits.hold.set()
    await place.target.come_back()
    assert (await place.done(job_id))["attempt"] == 1


@row("an end in mid-stream, and the target is gone")
async def test_a_job_whose_target_dies_in_mid_stream_is_parked_and_keeps_its_partial_answer(place: Place) -> None:
    place.target.script("a", Answer(chunks=["one", " two", " three"], hold=asyncio.Event(), hold_after=1))
    job_id = await place.ask(max_attempts=1)
    await place.in_state(job_id, "working")  # what the target sent has arrived; the rest is lost with the target
    await place.target.go_away(restart=True)
    job = await place.parked(job_id)
    assert (job["state"], job["attempt"], failures(job)) == ("queued", 1, ["target away"])
    assert (await place.artifact(job, "attempt-1.ndjson")).count(b"\n") == 1
    await place.target.come_back()
    job = await place.done(job_id)
    assert (job["attempt"], outcomes(job)) == (1, ["park", "succeed"])


@row("reset or end before an answer, and the target is alive")
@pytest.mark.parametrize("cold", [True, False], ids=["at the load", "at the request"])
async def test_a_target_that_resets_the_connection_and_is_still_up_costs_an_attempt(place: Place, cold: bool) -> None:
    if not cold:
        await place.run()
    before = len(ran(place.target))
    place.target.habits.resets = 2
    job = await place.run()
    assert (job["attempt"], outcomes(job)) == (3, ["retry", "retry", "succeed"])
    assert failures(job) == ["crash", "crash", ""]
    assert len(ran(place.target)) - before == (1 if cold else 3)


async def test_a_job_that_kills_every_runner_fails_when_its_attempts_are_used_up(place: Place) -> None:
    place.target.habits.resets = 10
    job = await place.failed(await place.ask(max_attempts=2))
    assert (job["attempt"], outcomes(job), place.target.habits.resets) == (2, ["retry", "fail"], 8)
    assert job["error"].startswith("laptop: crash: ")


# the target does not want to


@row("429, or 502 and 503 of a cloud model")
@pytest.mark.parametrize(("model", "status"), [("a", 429), ("big:cloud", 429), ("big:cloud", 502), ("big:cloud", 503)])
async def test_a_job_is_retried_when_the_target_says_so(place: Place, model: str, status: int) -> None:
    place.target.script(model, Answer(status=status, error="slow down", headers={"Retry-After": "1"}))
    job = await place.run(model=model, max_attempts=1)
    assert (job["attempt"], outcomes(job), failures(job)) == (1, ["park", "succeed"], ["cloud", ""])
    refused, answered = ran(place.target)
    assert (refused.status, answered.status) == (status, 200)
    assert 1.0 <= answered.at - refused.at < 5


@row("503")
@pytest.mark.parametrize("cold", [True, False], ids=["at the load", "at the request"])
async def test_a_job_for_a_busy_target_is_retried_soon(place: Place, cold: bool) -> None:
    if not cold:
        await place.run()
    place.target.habits.busy = 1
    job = await place.run(max_attempts=1)
    assert (job["attempt"], outcomes(job), failures(job)) == (1, ["park", "succeed"], ["target busy", ""])
    assert BUSY in job["attempts"][0]["message"]


async def test_a_target_that_stays_busy_is_called_less_and_less_often(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "BUSY_SECONDS", 0.1)
    monkeypatch.setattr(attempt, "BUSY_MAX_SECONDS", 0.3)
    await place.run()
    place.target.habits.busy = 4
    job = await place.run(max_attempts=1)
    assert outcomes(job) == [*["park"] * 4, "succeed"]
    at = [seen.at for seen in ran(place.target)[1:]]
    pauses = [later - earlier for earlier, later in pairwise(at)]
    assert all(pause >= least for pause, least in zip(pauses, [0.1, 0.2, 0.3, 0.3], strict=True)), pauses
    assert max(pauses) < 1


@row("404 for the model")
async def test_a_model_that_no_target_has_fails_the_job_with_the_targets_text(place: Place) -> None:
    job = await place.failed(await place.ask(model="nobody"))
    assert (job["attempt"], outcomes(job), failures(job)) == (1, ["fail"], ["no such model"])
    assert "model 'nobody:latest' not found" in job["error"]
    assert ran(place.target) == loads(place.target) == []


@row("404 for the model")
async def test_a_model_that_is_listed_and_not_found_fails_the_job_at_once(place: Place) -> None:
    place.target.script("/api/chat", Answer(status=404, error="model 'a' not found"), always=True)
    job = await place.failed(await place.ask())
    assert (job["attempt"], len(ran(place.target))) == (1, 1)


# the request is wrong


@row("400 on /api/embed whose text blames the request")
async def test_an_embedding_that_is_refused_for_its_request_fails_at_once(place: Place) -> None:
    error = "the input length exceeds the context length"
    place.target.script("/api/embed", Answer(status=400, error=error), always=True)
    job = await place.failed(await place.embedding())
    assert (job["attempt"], outcomes(job), failures(job)) == (1, ["fail"], ["permanent"])
    assert len(ran(place.target, "/api/embed")) == 1
    assert error in job["error"]


@row("400 on /api/embed otherwise")
async def test_an_embedding_that_may_be_the_targets_fault_is_retried_once(place: Place) -> None:
    place.target.script("/api/embed", Answer(status=400, error="unsupported value: NaN"), always=True)
    job = await place.failed(await place.embedding())
    assert (job["attempt"], outcomes(job), failures(job)) == (2, ["retry", "fail"], ["ambiguous", "ambiguous"])
    assert len(ran(place.target, "/api/embed")) == 2


async def test_an_embedding_that_works_the_second_time_is_done(place: Place) -> None:
    place.target.script("/api/embed", Answer(status=400, error="unsupported value: NaN"))
    job = await place.done(await place.embedding())
    assert (job["attempt"], outcomes(job)) == (2, ["retry", "succeed"])


@row("any other status from 400 to 499")
async def test_a_request_that_the_target_calls_wrong_fails_at_once(place: Place) -> None:
    job = await place.failed(await place.ask(think=True))
    assert (job["attempt"], outcomes(job), failures(job)) == (1, ["fail"], ["permanent"])
    assert job["error"] == 'laptop: permanent: 400 "a" does not support thinking'
    assert len(ran(place.target)) == 1


@row("500 about the type of an option, the format or the template")
@pytest.mark.parametrize(
    ("fields", "text"), [({"options": {"top_k": "many"}}, "must be of type integer"), ({"format": 5}, "invalid format")]
)
async def test_a_500_that_blames_the_request_fails_at_once(place: Place, fields: dict[str, Any], text: str) -> None:
    job = await place.failed(await place.ask(**fields))
    assert (job["attempt"], outcomes(job), failures(job)) == (1, ["fail"], ["permanent"])
    assert text in job["error"]


# the target cannot


@row("500 about memory")
async def test_a_model_that_does_not_fit_beside_others_is_loaded_alone(place: Place) -> None:
    await place.run(model="b")
    place.target.habits.load_failure, place.target.habits.load_failures = OUT_OF_MEMORY, 1
    job = await place.run()
    assert (job["attempt"], outcomes(job), failures(job)) == (2, ["retry", "succeed"], ["resource", ""])
    assert place.target.unloads == ["b"]
    assert [*place.target.resident] == ["a"]


@pytest.mark.parametrize("others", [(), ("b",), ("b", "c")], ids=len)
async def test_a_model_that_fits_nowhere_fails_after_one_retry_with_advice(
    place: Place, others: tuple[str, ...]
) -> None:
    for model in others:
        await place.run(model=model)
    place.target.habits.load_failure = OUT_OF_MEMORY
    job = await place.failed(await place.ask(), 5)
    assert (job["attempt"], outcomes(job), place.target.failed_loads) == (2, ["retry", "fail"], 2)
    assert OUT_OF_MEMORY in job["error"]
    assert "choose a smaller model or num_ctx" in job["error"]
    assert place.target.resident == {}


async def test_a_model_that_runs_out_of_memory_at_work_gets_the_target_for_itself(place: Place) -> None:
    await place.run(model="b")
    await place.run(model="a")
    place.target.script("a", Answer(status=500, error="CUDA error: out of memory"))
    job = await place.run()
    assert (job["attempt"], failures(job)) == (2, ["resource", ""])
    assert place.target.unloads == ["b"]


async def test_a_model_that_always_runs_out_of_memory_at_work_fails_after_one_retry(place: Place) -> None:
    await place.run(model="b")
    place.target.script("a", Answer(status=500, error="CUDA error: out of memory"), always=True)
    job = await place.failed(await place.ask())
    assert (job["attempt"], failures(job)) == (2, ["resource", "resource"])
    assert place.target.unloads == ["b"]


async def test_a_model_that_runs_out_of_memory_after_another_failure_still_gets_its_one_retry(place: Place) -> None:
    await place.run(model="b")
    await place.run(model="a")
    place.target.script("a", Answer(status=500, error=RUNNER_STOPPED), Answer(status=500, error="out of memory"))
    job = await place.run()
    assert (job["attempt"], failures(job)) == (3, ["transient", "resource", ""])
    assert place.target.unloads == ["b"]


async def test_a_model_that_did_not_fit_for_one_job_is_tried_for_the_next(place: Place) -> None:
    place.target.habits.load_failure = OUT_OF_MEMORY
    await place.failed(await place.ask(), 5)
    place.target.habits.load_failure = None
    assert (await place.run())["attempt"] == 1


@row("any other bad status, such as a runner that stopped or a load that stalled")
async def test_a_load_that_fails_for_a_passing_reason_is_retried(place: Place) -> None:
    place.target.habits.load_failure, place.target.habits.load_failures = LOAD_STALLED, 2
    job = await place.run()
    assert (job["attempt"], outcomes(job)) == (3, ["retry", "retry", "succeed"])
    assert failures(job) == ["transient", "transient", ""]
    assert LOAD_STALLED.strip() in job["attempts"][0]["error"]


async def test_a_load_that_always_fails_fails_the_job_when_its_attempts_are_used_up(place: Place) -> None:
    place.target.habits.load_failure = RUNNER_TERMINATED
    job = await place.failed(await place.ask(max_attempts=3))
    assert (job["attempt"], place.target.failed_loads) == (3, 3)
    assert ran(place.target) == []


@row("any other bad status, such as a runner that stopped or a load that stalled")
async def test_a_runner_that_crashes_before_the_first_token_costs_an_attempt(place: Place) -> None:
    place.target.script("a", Answer(status=500, error=RUNNER_STOPPED))
    job = await place.run()
    assert (job["attempt"], failures(job), job["artifacts"]) == (2, ["transient", ""], [])


async def test_a_load_that_takes_longer_than_allowed_costs_an_attempt(tmp_path: Path) -> None:
    async with some_targets() as [target], a_place(tmp_path, target, inference__load_timeout_seconds=0.1) as place:
        target.habits.load_seconds = 60
        job = await place.failed(await place.ask(max_attempts=2))
        assert (job["attempt"], failures(job)) == (2, ["transient", "transient"])
        assert "in time" in job["error"]
        await target.until(lambda: target.aborted_loads == 2)


# the answer breaks


@row("an error line in mid-stream")
async def test_an_error_in_mid_stream_costs_an_attempt_and_the_partial_answer_is_kept(place: Place) -> None:
    place.target.script("a", Answer(chunks=["one", " two", " three"], error_after=2, error="the runner fell over"))
    job = await place.run()
    assert (job["attempt"], outcomes(job), failures(job)) == (2, ["retry", "succeed"], ["transient", ""])
    assert job["attempts"][0]["error"] == "laptop: transient: the runner fell over"
    kept = (await place.artifact(job, "attempt-1.ndjson")).splitlines()
    assert len(kept) == 3
    assert kept[-1] == b'{"error":"the runner fell over"}'
    assert [each["name"] for each in job["artifacts"]] == ["attempt-1.ndjson"]
    assert said(job) == "a says: one two three"


async def test_a_runner_that_crashes_in_mid_stream_costs_an_attempt(place: Place) -> None:
    hold = asyncio.Event()
    place.target.script("a", Answer(chunks=["one", " two", " three"], hold=hold, hold_after=1))
    job_id = await place.ask()
    await until(lambda: [seen.chunks for seen in ran(place.target)] == [1])
    await place.target.crash_runner("a", reset=False)
    job = await place.done(job_id)
    assert (job["attempt"], failures(job)) == (2, ["transient", ""])


async def test_errors_in_mid_stream_use_up_the_attempts_and_each_keeps_its_partial_answer(place: Place) -> None:
    place.target.script("a", Answer(chunks=["one", " two"], error_after=1), always=True)
    job = await place.failed(await place.ask(max_attempts=2))
    assert (job["attempt"], job["result"]) == (2, None)
    assert sorted(each["name"] for each in job["artifacts"]) == ["attempt-1.ndjson", "attempt-2.ndjson"]


@row("an end without done:true")
@pytest.mark.parametrize(
    "how",
    [Answer(chunks=["one", " two"], end_after=1), Answer(chunks=["one", " two"], reset_after=1)],
    ids=["end", "reset"],
)
async def test_an_answer_without_its_end_is_a_failure_and_is_kept(place: Place, how: Answer) -> None:
    place.target.script("a", how)
    job = await place.run()
    assert (job["attempt"], outcomes(job), failures(job)) == (2, ["retry", "succeed"], ["truncated", ""])
    assert job["attempts"][0]["evidence"]["finish"] == "truncated"
    assert (await place.artifact(job, "attempt-1.ndjson")).count(b"\n") == 1


@row("an end without done:true while one token was repeated")
@pytest.mark.parametrize("tokens", [["ha"], ["ha", " ha"], [" ", "\n"]], ids=["the same", "but for spaces", "nothing"])
async def test_a_model_that_repeats_one_token_fails_at_once_with_advice(place: Place, tokens: list[str]) -> None:
    """Ollama ends the stream without an error after many tokens in a row that are equal except for spaces."""
    place.target.script("a", Answer(chunks=["Well", *tokens * 40]), always=True)
    job = await place.failed(await place.ask())
    assert (job["attempt"], outcomes(job), failures(job)) == (1, ["fail"], ["degenerate"])
    assert job["evidence"]["finish"] == "repeats"
    assert "repeat_penalty may help" in job["error"]
    assert (await place.artifact(job, "attempt-1.ndjson")).count(b"\n") > 30
    assert len(ran(place.target)) == 1


async def test_a_model_that_is_cut_off_in_long_thinking_is_not_taken_for_repeating(place: Place) -> None:
    thoughts = [f" thought {number}" for number in range(60)]
    place.target.script("thinker", Answer(thinking=thoughts, chunks=["so"], end_after=50))
    job = await place.run(model="thinker")
    assert (job["attempt"], failures(job)) == (2, ["truncated", ""])


async def test_a_model_that_repeats_one_token_in_its_thinking_fails(place: Place) -> None:
    place.target.script("thinker", Answer(thinking=["hm"] * 60, chunks=["so"]))
    job = await place.failed(await place.ask(model="thinker"))
    assert failures(job) == ["degenerate"]


# the answer is whole


async def test_an_answer_that_reached_its_limit_is_a_success_with_finish_length(place: Place) -> None:
    job = await place.run(options={"num_predict": 2})
    assert (job["attempt"], job["evidence"]["finish"], job["result"]["done_reason"]) == (1, "length", "length")
    assert (job["evidence"]["tokens"], failures(job)) == (2, [""])


async def test_an_answer_with_an_unknown_done_reason_is_a_success(place: Place) -> None:
    place.target.script("a", Answer(chunks=["one"], done_reason="content_filter"))
    job = await place.run()
    assert (job["attempt"], job["evidence"]["finish"]) == (1, "content_filter")


async def test_an_answer_of_thousands_of_lines_in_tiny_pieces_is_whole(place: Place) -> None:
    place.target.habits.fragment_bytes = 7
    place.target.habits.tokens = 300
    job = await place.run(text="tell")
    assert said(job).endswith(" 298")
    assert job["evidence"]["tokens"] == 300


async def test_the_evidence_of_an_attempt_has_what_was_measured(place: Place) -> None:
    place.target.habits.load_seconds, place.target.habits.prefill_seconds = 0.05, 0.05
    cold, warm = (await place.run())["evidence"], (await place.run())["evidence"]
    assert cold["target"] == warm["target"] == "laptop"
    assert cold["load_seconds"] >= 0.05
    assert cold["first_token_seconds"] >= 0.05
    assert cold["seconds"] >= 0.1
    assert (cold["prompt_tokens"], cold["tokens"], cold["finish"]) == (3, 4, "stop")
    assert warm["resident"] is True
    assert "load_seconds" not in warm or warm["load_seconds"] is None


async def test_an_answer_over_the_limit_fails_at_once_and_says_which_limit(tmp_path: Path) -> None:
    async with some_targets() as [target], a_place(tmp_path, target, inference__max_answer_bytes=2000) as place:
        target.habits.tokens = 500
        job = await place.failed(await place.ask())
        assert "inference.max_answer_bytes" in job["error"]
        assert (job["attempt"], job["evidence"]["target"]) == (1, "laptop")
        assert len(await place.artifact(job, "attempt-1.ndjson")) > 2000
        await until(lambda: ran(target)[0].aborted or ran(target)[0].finished)
