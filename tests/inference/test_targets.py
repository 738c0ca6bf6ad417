"""Targets that come and go, models that come and go on them, and what callers see of their jobs meanwhile."""

import asyncio
import gc
import sys
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from chargehand.store import open_store
from tests.api.serving import serving, talking, until
from tests.inference.calling import is_away, ran, scheduler_of, settings_for
from tests.inference.conformance import Answer, Model, OllamaTarget
from tests.inference.stories import (
    Place,
    a_place,
    failures,
    loads,
    outcomes,
    said,
    some_targets,
    story,
    target_tables,
    told,
    unloads,
    whole_story,
)
from tests.webhooks.receiver import Receiver, receiving

HURRIED = {"inference__probe_seconds": 0.1, "inference__probe_failures": 3}
SILENCE = 0.1  # how long to wait when asserting that nothing happens


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with some_targets() as [target], a_place(tmp_path, target, **HURRIED) as place:
        yield place


@pytest.fixture
async def narrow(tmp_path: Path) -> AsyncIterator[Place]:
    """A target with one slot."""
    async with some_targets() as [target]:
        tables = target_tables(target, slots=1)
        async with a_place(tmp_path, target, inference__targets=tables, inference__wait_cap_seconds=60) as place:
            yield place


def held(chunks: int = 3, after: int = 1) -> tuple[asyncio.Event, Answer]:
    """Return an answer that stops after so many chunks until the event is set."""
    hold = asyncio.Event()
    return hold, Answer(chunks=[f" {number}" for number in range(chunks)], hold=hold, hold_after=after)


async def saying(target: OllamaTarget, chunks: int = 1, number: int = -1) -> None:
    """Wait until the last request has got so many chunks."""
    await until(lambda: ran(target) and ran(target)[number].chunks >= chunks)


# a target goes away ---------------------------------------------------------------------------------------------------


async def test_a_job_for_a_target_that_is_away_waits_and_runs_when_it_is_back(place: Place, receiver: Receiver) -> None:
    await place.target.go_away(restart=True)
    await is_away(place.server)
    job_id = await place.ask(state_webhook_url=receiver.url(), max_attempts=1)
    await until(lambda: story(receiver, job_id) == ["queued"])
    job = await place.seen(job_id)
    assert (job["state"], job["waiting_for"], job["attempt"]) == ("queued", "target", 1)
    assert "laptop is away" in job["waiting"]
    await place.target.come_back()
    await place.done(job_id)
    assert await whole_story(receiver, job_id) == ["queued", "loading", "working", "done"]
    assert {body["attempt"] for body in told(receiver, job_id)} == {1}


@pytest.mark.parametrize("restart", [True, False], ids=["and forgets its models", "and keeps its models"])
async def test_the_webhooks_show_that_a_target_went_away_in_mid_stream(
    place: Place, receiver: Receiver, restart: bool
) -> None:
    _, answer = held()
    place.target.script("a", answer)
    job_id = await place.ask(state_webhook_url=receiver.url(), max_attempts=1)
    await place.in_state(job_id, "working")
    await place.target.go_away(restart=restart)
    job = await place.parked(job_id)
    assert (job["state"], job["attempt"]) == ("queued", 1)
    await place.target.come_back()
    await place.done(job_id)
    again = ["loading", "working"] if restart else ["working"]
    assert await whole_story(receiver, job_id) == ["queued", "loading", "working", "queued", *again, "done"]
    assert {body["attempt"] for body in told(receiver, job_id)} == {1}
    assert len(loads(place.target)) == 1 + restart


async def test_a_job_that_moves_while_it_is_read_is_shown_consistently(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, answer = held()
    place.target.script("a", answer)
    job_id = await place.ask()
    await place.in_state(job_id, "working")
    store = place.server.store
    read = store.list_events

    async def after_it_was_cancelled(*asked: Any) -> Any:
        monkeypatch.undo()
        await place.cancel(job_id)
        return await read(*asked)

    monkeypatch.setattr(store, "list_events", after_it_was_cancelled)
    job = await place.seen(job_id)
    assert (job["state"], outcomes(job)) == ("working", [])
    assert outcomes(await place.seen(job_id)) == ["cancel"]


async def test_the_webhooks_show_that_a_target_went_away_during_a_load(place: Place, receiver: Receiver) -> None:
    place.target.habits.load_seconds = 60
    job_id = await place.ask(state_webhook_url=receiver.url(), max_attempts=1)
    await until(lambda: place.target.loading)
    await place.target.go_away(restart=True)
    place.target.habits.load_seconds = 0
    assert (await place.parked(job_id))["attempt"] == 1
    await place.target.come_back()
    await place.done(job_id)
    assert await whole_story(receiver, job_id) == ["queued", "loading", "queued", "loading", "working", "done"]


async def test_a_laptop_that_falls_asleep_in_mid_stream_is_noticed_within_seconds(place: Place) -> None:
    _, answer = held()
    place.target.script("a", answer)
    job_id = await place.ask(max_attempts=1)
    await saying(place.target)
    place.target.sleep()
    began = time.monotonic()
    job = await place.parked(job_id)
    assert time.monotonic() - began < 2
    assert (job["state"], job["attempt"], failures(job)) == ("queued", 1, ["target slept"])
    place.target.wake()
    assert (await place.done(job_id))["attempt"] == 1


async def test_a_laptop_that_falls_asleep_while_it_loads_is_noticed_within_seconds(place: Place) -> None:
    place.target.habits.load_seconds = 0.5
    job_id = await place.ask(max_attempts=1)
    await until(lambda: place.target.loading)
    place.target.sleep()
    began = time.monotonic()
    job = await place.parked(job_id)
    assert time.monotonic() - began < 2
    assert failures(job) == ["target slept"]
    place.target.wake()
    assert (await place.done(job_id))["attempt"] == 1


async def test_a_long_prompt_is_not_taken_for_sleep(place: Place) -> None:
    place.target.habits.prefill_seconds = 1  # as long as ten probes
    job = await place.run(max_attempts=1)
    assert outcomes(job) == ["succeed"]


async def test_a_target_is_not_away_after_two_lost_probes(place: Place) -> None:
    """Only three lost probes in a row count; until then running requests go on."""
    hold, answer = held()
    place.target.script("a", answer)
    job_id = await place.ask(max_attempts=1)
    await saying(place.target)
    probes = len(place.target.at("/api/version"))
    place.target.script("/api/version", Answer(status=500), Answer(status=500))
    await until(lambda: len(place.target.at("/api/version")) > probes + 3)
    hold.set()
    assert outcomes(await place.done(job_id)) == ["succeed"]


async def test_all_jobs_of_a_target_that_goes_away_are_resumed(tmp_path: Path) -> None:
    async with some_targets(parallel=4) as [target]:
        tables = target_tables(target, parallel=4)
        async with a_place(tmp_path, target, inference__targets=tables, **HURRIED) as place:
            target.habits.hold = asyncio.Event()
            ids = [await place.ask(max_attempts=1) for _ in range(8)]
            await until(lambda: target.in_flight["a"] == 4)
            await target.go_away(restart=True)
            await is_away(place.server)
            target.habits.hold.set()
            await target.come_back()
            for job_id in ids:
                assert (await place.done(job_id))["attempt"] == 1
            assert target.max_in_flight["a"] == 4


async def test_a_job_with_a_whole_answer_is_done_even_if_its_target_then_goes_away(tmp_path: Path) -> None:
    async with some_targets() as [target], a_place(tmp_path, target, inference__probe_seconds=0.01) as place:
        wishes = [{"name": f"{number}.txt"} for number in range(32)]  # storing all of them takes a while
        job_id = await place.ask(artifacts=wishes, max_attempts=1)
        await until(lambda: any(seen.finished for seen in ran(target)))
        await target.go_away(restart=True)
        await is_away(place.server)
        job = await place.done(job_id)
        assert outcomes(job) == ["succeed"]
        assert len(job["artifacts"]) == 32


async def test_an_unlisted_model_is_requested_again_when_its_target_is_back(
    tmp_path: Path,
) -> None:
    async with some_targets() as [target], a_place(tmp_path, target, inference__probe_seconds=60) as place:
        await place.run()
        await target.go_away()
        job_id = await place.ask(model="new", max_attempts=1)
        job = await place.parked(job_id)
        assert "laptop is away" in job["waiting"]
        assert (job["state"], failures(job)) == ("queued", ["target away"])
        target.models["new"] = Model()
        await target.come_back()
        assert (await place.done(job_id))["attempt"] == 1


async def test_a_newly_installed_model_is_found(place: Place, receiver: Receiver) -> None:
    place.target.models["new"] = Model()
    job_id = await place.ask(model="new", max_attempts=1, state_webhook_url=receiver.url())
    assert (await place.done(job_id))["attempt"] == 1
    assert await whole_story(receiver, job_id) == ["queued", "loading", "working", "done"]


async def test_every_webhook_has_the_number_of_its_attempt(place: Place, receiver: Receiver) -> None:
    place.target.script("a", Answer(chunks=["one", " two"], error_after=1, error="it fell over"))
    place.target.script("a", Answer(status=503, error="busy"))
    job_id = await place.ask(state_webhook_url=receiver.url())
    await place.done(job_id)
    await whole_story(receiver, job_id)
    assert [(body["state"], body["attempt"]) for body in told(receiver, job_id)] == [
        ("queued", 1),
        ("loading", 1),
        ("working", 1),
        ("queued", 2),  # the first one counted
        ("working", 2),
        ("queued", 2),  # this one did not
        ("working", 2),
        ("done", 2),
    ]


async def test_no_state_is_sent_for_an_attempt_whose_connection_is_refused(tmp_path: Path, receiver: Receiver) -> None:
    async with some_targets() as [target], a_place(tmp_path, target, inference__probe_seconds=60) as place:
        await place.run()
        await target.go_away()
        warm = await place.ask(state_webhook_url=receiver.url())
        await place.parked(warm)
        await is_away(place.server)
        await target.come_back()
        await place.done(warm)
        await target.go_away()
        cold = await place.ask(model="b", state_webhook_url=receiver.url())
        await place.parked(cold)
        other = await place.ask(model="c", state_webhook_url=receiver.url())
        await until(lambda: story(receiver, other) and story(receiver, cold))
        await asyncio.sleep(SILENCE)
        assert story(receiver, cold) == story(receiver, other) == ["queued"]
        await target.come_back()
        await place.done(cold)
        await place.done(other)
        assert await whole_story(receiver, warm) == ["queued", "working", "done"]
        assert await whole_story(receiver, cold) == ["queued", "loading", "working", "done"]


async def test_a_job_waits_for_a_target_that_was_never_up(tmp_path: Path) -> None:
    async with some_targets(2) as [here, there]:
        await there.go_away()
        tables = target_tables(here, there)
        tables[0]["models"] = ["b"]
        store_url = f"sqlite:///{tmp_path}/chargehand.db"
        async with (
            serving(store_url, settings_for(tmp_path, inference__targets=tables)) as server,
            talking(server) as api,
        ):
            place = Place(api.url, api.session)
            job_id = await place.ask()
            await until(lambda: scheduler_of(server).targets["laptop"].up)
            assert "desktop is away" in (await place.seen(job_id))["waiting"]
            await there.come_back()
            assert (await place.done(job_id))["evidence"]["target"] == "desktop"


# a target that is slow to say what it has -----------------------------------------------------------------------------


async def test_a_list_of_resident_models_that_blocks_means_busy_and_not_down(place: Place, receiver: Receiver) -> None:
    target = scheduler_of(place.server).targets["laptop"]
    since = target.since
    hold, answer = held()
    place.target.script("a", answer)
    running = await place.ask()
    await saying(place.target)
    place.target.habits.ps_seconds = 1  # as long as ten probes
    job_id = await place.ask(model="b", max_attempts=1, state_webhook_url=receiver.url())
    await until(lambda: place.target.loads == ["a", "b"])
    hold.set()
    assert outcomes(await place.done(running)) == ["succeed"]
    assert (await place.done(job_id))["attempt"] == 1
    assert await whole_story(receiver, job_id) == ["queued", "loading", "working", "done"]
    assert (target.up, target.since) == (True, since)


@pytest.mark.parametrize("blocks", [True, False], ids=["ps blocks", "ps lists it still"])
async def test_a_load_waits_for_the_end_of_an_unload_that_was_already_answered(narrow: Place, blocks: bool) -> None:
    target = narrow.target
    target.habits.ps_blocks_while_unloading = blocks
    target.habits.unload_seconds = 0.3
    await narrow.run(model="a")
    job_id = await narrow.ask(model="b")
    await target.until(lambda: [seen.json["model"] for seen in loads(target)] == ["a", "b"])
    assert target.unloads == ["a"], "b was loaded while a was still there"
    assert outcomes(await narrow.done(job_id)) == ["succeed"]


async def test_a_refused_order_to_unload_is_sent_again(narrow: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chargehand.doors.inference.target.UNLOAD_AGAIN_SECONDS", 0.1)
    await narrow.run(model="a")
    narrow.target.habits.busy = 1
    job = await narrow.done(await narrow.ask(model="b", max_attempts=1), 3)
    assert outcomes(job) == ["succeed"]
    assert (len(unloads(narrow.target)), narrow.target.unloads) == (2, ["a"])


async def test_a_model_that_stays_in_memory_keeps_the_job_waiting_and_costs_no_attempt(
    narrow: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chargehand.doors.inference.target.UNLOAD_SECONDS", 0.2)
    monkeypatch.setattr("chargehand.doors.inference.target.PS_TIMEOUT_SECONDS", 0.2)
    await narrow.run(model="a")
    narrow.target.habits.unload_seconds = 1
    narrow.target.habits.unload_answers_first = False
    job_id = await narrow.ask(model="b", max_attempts=1)
    job = await narrow.parked(job_id)
    assert "a:latest is still in the memory of laptop" in job["attempts"][0]["message"]
    assert (await narrow.done(job_id))["attempt"] == 1


async def test_a_model_that_expired_is_loaded_again_with_a_loading_state(place: Place, receiver: Receiver) -> None:
    await place.run(keep_alive="100ms")
    await place.target.until(lambda: place.target.unloads == ["a"])
    job_id = await place.ask(state_webhook_url=receiver.url())
    await place.done(job_id)
    stories = await whole_story(receiver, job_id)
    assert stories in (["queued", "loading", "working", "done"], ["queued", "working", "done"])


async def test_a_model_that_is_listed_beyond_its_time_is_used(place: Place) -> None:
    """Ollama keeps the old time while a request runs; or the target's clock is wrong."""
    listed = b'{"models":[{"name":"a:latest","model":"a:latest","expires_at":"2020-01-01T00:00:00Z"}]}'
    place.target.script("/api/ps", Answer(raw=listed), always=True)
    scheduler_of(place.server).targets["laptop"].refresh()
    await until(lambda: place.target.at("/api/ps")[-1].finished and scheduler_of(place.server).ledgers[0].resident)
    job = await place.done(await place.ask(), 3)
    assert job["evidence"]["resident"] is True


# loading --------------------------------------------------------------------------------------------------------------


async def test_a_load_goes_on_after_its_caller_hung_up(place: Place, receiver: Receiver) -> None:
    place.target.habits.load_seconds = 0.3
    first = await place.ask(state_webhook_url=receiver.url())
    await until(lambda: place.target.loading)
    await place.cancel(first)
    second = await place.ask(state_webhook_url=receiver.url())
    await place.done(second)
    assert (place.target.aborted_loads, place.target.loads) == (0, ["a"])
    assert await whole_story(receiver, first) == ["queued", "loading", "failed"]
    assert await whole_story(receiver, second) == ["queued", "working", "done"]
    assert not any(seen.aborted for seen in place.target.seen)


async def test_a_load_that_no_job_waits_for_may_fail(place: Place) -> None:
    place.target.habits.load_seconds = 0.2
    place.target.habits.load_failure, place.target.habits.load_failures = "no luck", 1
    await place.cancel(await _loading(place))
    assert (await place.run())["attempt"] == 1
    assert (place.target.failed_loads, place.target.loads) == (1, ["a"])


async def _loading(place: Place, **fields: Any) -> str:
    job_id = await place.ask(**fields)
    await until(lambda: place.target.loading)
    return job_id


async def test_jobs_that_arrive_during_a_load_wait_for_that_load(place: Place, receiver: Receiver) -> None:
    place.target.habits.load_seconds = 0.2
    first = await _loading(place, state_webhook_url=receiver.url())
    others = [await place.ask(state_webhook_url=receiver.url()) for _ in range(3)]
    for job_id in (first, *others):
        await place.done(job_id)
    assert place.target.loads == ["a"]
    assert [await whole_story(receiver, job_id) for job_id in others] == [["queued", "working", "done"]] * 3


async def test_a_job_with_keep_alive_0_has_its_model_loaded_first(place: Place, receiver: Receiver) -> None:
    """A load with keep_alive 0 would be an order to unload."""
    place.target.habits.load_seconds = 0.05
    for number in (1, 2):
        job_id = await place.ask(keep_alive=0, state_webhook_url=receiver.url())
        job = await place.done(job_id)
        assert place.target.loads == ["a"] * number
        assert job["evidence"]["load_seconds"] >= 0.05
        assert await whole_story(receiver, job_id) == ["queued", "loading", "working", "done"]
        assert ran(place.target)[-1].json["keep_alive"] == 0
    await place.target.until(lambda: place.target.unloads == ["a", "a"])


async def test_all_spellings_of_a_name_are_one_model(narrow: Place) -> None:
    for name in ("a", "A", "a:latest", "library/a", "registry.ollama.ai/library/A:latest"):
        job = await narrow.run(model=name)
        assert job["model"] == name
    assert (narrow.target.loads, narrow.target.unloads) == (["a"], [])


async def test_a_model_in_memory_under_another_name_is_not_loaded(tmp_path: Path, receiver: Receiver) -> None:
    blob = "f00d" * 16
    models = {"base": Model(blob=blob), "tuned": Model(blob=blob), "other": Model()}
    for slots in (1, 2):
        async with OllamaTarget(models, max_loaded=slots) as target:
            tables = target_tables(target, slots=slots)
            folder = tmp_path / str(slots)
            folder.mkdir()
            async with a_place(folder, target, inference__targets=tables) as place:
                await place.run(model="base")
                job_id = await place.ask(model="tuned", state_webhook_url=receiver.url())
                job = await place.done(job_id)
                assert (target.loads, target.unloads) == (["base"], [])
                assert await whole_story(receiver, job_id) == ["queued", "working", "done"]
                assert job["evidence"]["resident"] is True
                await place.run(model="base")
                await place.run(model="other")
                assert target.loads == ["base", "other"]
                assert target.unloads == (["base"] if slots == 1 else [])


async def test_pinned_options_are_sent_with_the_load_and_with_the_request(tmp_path: Path) -> None:
    pins = {"A": {"options": {"num_ctx": 8192, "top_k": 7}, "keep_alive": "30m"}}
    async with some_targets() as [target], a_place(tmp_path, target, inference__models=pins) as place:
        await place.run(options={"num_ctx": 2048, "temperature": 0.5}, keep_alive="1m")
        await place.run()
        await place.run(prompt="hello")
        await place.run(model="b", options={"num_ctx": 2048})
        [load, load_b] = [seen.json for seen in loads(target)]
        first, second = (seen.json for seen in ran(target)[:2])
        [third] = [seen.json for seen in ran(target, "/api/generate")]
        assert load["options"] == first["options"] == {"num_ctx": 8192, "top_k": 7, "temperature": 0.5}
        assert second["options"] == third["options"] == {"num_ctx": 8192, "top_k": 7}
        assert {each["keep_alive"] for each in (load, first, second, third)} == {"30m"}
        assert load_b["options"] == {"num_ctx": 2048}
        assert "keep_alive" not in load_b
        assert target.loads == ["a", "b"], "no options made it load again"


async def test_pinned_options_are_sent_with_embeddings(tmp_path: Path) -> None:
    pins = {"embedder": {"options": {"num_ctx": 512}}}
    async with some_targets() as [target], a_place(tmp_path, target, inference__models=pins) as place:
        await place.done(await place.embedding(options={"num_ctx": 2048}))
        assert [seen.json["options"] for seen in target.at("/api/embed")] == [{"num_ctx": 512}] * 2
        await place.post("/api/embed", {"model": "embedder", "input": "past the queue", "options": {"num_ctx": 2048}})
        assert target.at("/api/embed")[-1].json["options"] == {"num_ctx": 512}
        assert target.loads == ["embedder"]


async def test_a_reload_within_the_request_is_detected_and_recorded(place: Place) -> None:
    await place.run()
    place.target.habits.load_seconds = 1.1
    job = await place.run(options={"num_ctx": 8192})
    assert place.target.loads == ["a", "a"]
    assert job["evidence"]["resident"] is True
    assert job["evidence"]["reloaded"] is True
    [warning] = [event for event in await place.events(job["id"]) if event["level"] == "warn"]
    assert "loaded a:latest again within the request" in warning["message"]


async def test_a_load_for_the_job_is_not_recorded_as_a_reload(place: Place) -> None:
    place.target.habits.load_seconds = 0.2
    job = await place.run()
    assert not job["evidence"].get("reloaded")
    assert job["evidence"]["load_seconds"] >= 0.2


# several models on a target -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap_seconds", [60, 0.4])
async def test_jobs_for_two_models_in_turn_do_not_swap_them_in_turn(tmp_path: Path, cap_seconds: float) -> None:
    async with some_targets() as [target]:
        tables = target_tables(target, slots=1)
        settings = {"inference__targets": tables, "inference__wait_cap_seconds": cap_seconds}
        async with a_place(tmp_path, target, **settings) as place:
            target.habits.prefill_seconds, target.habits.load_seconds = 0.05, 0.05
            began = time.monotonic()
            ids = [await place.ask(model="ab"[number % 2]) for number in range(20)]
            asked = time.monotonic() - began
            for job_id in ids:
                await place.done(job_id)
            took = time.monotonic() - began
            swaps = len(target.loads) - 1
            assert swaps <= took / cap_seconds + 1, target.loads
            order = [(seen.json["model"], seen.at - began) for seen in ran(target)]
            assert Counter(model for model, _ in order) == {"a": 10, "b": 10}
            turns = [0.0, *(at for _, at in order)]
            # The slowest generation or load in this run.
            slowest = max(later - earlier for earlier, later in pairwise(turns))
            for model in "ab":  # no job waited longer than the cap, one generation and the load
                mine = [0.0, *(at for name, at in order if name == model)]
                longest = max(later - earlier for earlier, later in pairwise(mine))
                assert longest < min(cap_seconds, turns[-1]) + asked + 2 * slowest, (model, order)


async def test_a_model_drains_before_it_is_evicted_and_gets_no_new_work_meanwhile(tmp_path: Path) -> None:
    async with some_targets() as [target]:
        settings = {"inference__targets": target_tables(target, slots=1), "inference__wait_cap_seconds": 0.2}
        async with a_place(tmp_path, target, **settings) as place:
            hold, answer = held()
            target.script("a", answer)
            first = await place.ask()
            await saying(target)
            rival = await place.ask()  # waits for a, which is in memory, so that b has to wait for the cap
            other = await place.ask(model="b")
            closing = scheduler_of(place.server).targets["laptop"].ledger.closing
            await until(lambda: closing == {"a:latest": "b:latest"})
            late = await place.ask()
            assert (await place.seen(late))["waiting_for"] == "slot"
            assert "takes no new work" in (await place.seen(rival))["waiting"]
            assert (len(ran(target)), unloads(target)) == (1, [])
            hold.set()
            for job_id in (first, rival, other, late):
                await place.done(job_id)
            assert [seen.json["model"] for seen in ran(target)] == ["a", "b", "a", "a"]
            assert target.loads == ["a", "b", "a"]


async def test_an_urgent_job_does_not_wait_until_the_model_in_memory_is_unwanted(narrow: Place) -> None:
    hold, answer = held()
    narrow.target.script("a", answer)
    ids = [await narrow.ask() for _ in range(3)]
    await saying(narrow.target)
    ids.append(await narrow.ask(model="b", priority=9))
    closing = scheduler_of(narrow.server).targets["laptop"].ledger.closing
    await until(lambda: closing)
    hold.set()
    for job_id in ids:
        await narrow.done(job_id)
    assert [seen.json["model"] for seen in ran(narrow.target)] == ["a", "b", "a", "a"]


async def test_jobs_for_one_model_run_by_priority_and_then_by_age(place: Place) -> None:
    hold, answer = held()
    place.target.script("a", answer)
    ids = [await place.ask(text="first")]
    await saying(place.target)
    for text, priority in (("low", 1), ("old", 5), ("new", 5), ("high", 9)):
        ids.append(await place.ask(text=text, priority=priority))
    hold.set()
    for job_id in ids:
        await place.done(job_id)
    texts = [seen.json["messages"][0]["content"] for seen in ran(place.target)]
    assert texts == ["first", "high", "old", "new", "low"]


async def test_a_model_closed_for_a_job_that_was_cancelled_takes_work_again(tmp_path: Path) -> None:
    async with some_targets() as [target]:
        settings = {"inference__targets": target_tables(target, slots=1), "inference__wait_cap_seconds": 0}
        async with a_place(tmp_path, target, **settings) as place:
            hold, answer = held()
            target.script("a", answer)
            first, second, other = await place.ask(), await place.ask(), await place.ask(model="b")
            await saying(target)
            closing = scheduler_of(place.server).targets["laptop"].ledger.closing
            await until(lambda: closing)
            await place.cancel(other)
            hold.set()
            await place.done(first)
            await place.done(second)
            assert (target.loads, target.unloads) == (["a"], [])


async def test_a_job_cancelled_while_room_is_made_for_it_leaves_the_records_correct(
    narrow: Place, receiver: Receiver
) -> None:
    """The model that was being evicted is still unloaded, whichever model is wanted next."""
    narrow.target.habits.ps_blocks_while_unloading = False
    await narrow.run(model="a")
    narrow.target.habits.unload_seconds = 0.3
    other = await narrow.ask(model="b")
    await until(lambda: unloads(narrow.target))
    await narrow.cancel(other)
    job_id = await narrow.ask(model="a", state_webhook_url=receiver.url())
    await narrow.done(job_id)
    assert narrow.target.loads == ["a", "a"]
    assert await whole_story(receiver, job_id) == ["queued", "loading", "working", "done"]


async def test_a_cloud_model_takes_no_slot_and_is_never_unloaded(narrow: Place, receiver: Receiver) -> None:
    await narrow.run(model="a")
    narrow.target.script("big:cloud", Answer(raw=b'{"message":{"content":"hi"},"done":true,"done_reason":"stop"}\n'))
    job_id = await narrow.ask(model="big:cloud", state_webhook_url=receiver.url())
    assert said(await narrow.done(job_id)) == "hi"
    await narrow.run(model="a")
    assert unloads(narrow.target) == []
    assert await whole_story(receiver, job_id) == ["queued", "working", "done"]
    await narrow.run(model="b")
    assert [seen.json["model"] for seen in unloads(narrow.target)] == ["a:latest"]


async def test_a_model_gets_as_many_requests_at_once_as_it_runs_in_parallel_and_no_more(tmp_path: Path) -> None:
    async with some_targets(parallel=8) as [target]:
        tables = target_tables(target, parallel=3)
        async with a_place(tmp_path, target, inference__targets=tables) as place:
            target.habits.hold = asyncio.Event()
            ids = [await place.ask(model="ab"[number % 2]) for number in range(20)]
            await until(lambda: target.in_flight == {"a": 3, "b": 3})
            target.habits.hold.set()
            for job_id in ids:
                await place.done(job_id)
            assert target.max_in_flight == {"a": 3, "b": 3}


# several targets ------------------------------------------------------------------------------------------------------


async def test_a_job_goes_to_the_target_that_has_its_model_in_memory(tmp_path: Path) -> None:
    async with some_targets(2) as [one, two]:
        async with aiohttp.ClientSession() as other:
            await (await other.post(f"{two.url}/api/chat", json={"model": "b"})).read()
        async with a_place(tmp_path, one, two) as place:
            assert (await place.run(model="b"))["evidence"]["target"] == "desktop"
            assert (await place.run(model="a"))["evidence"]["target"] == "laptop"
            assert (one.loads, two.loads) == (["a"], ["b"])


async def test_a_job_goes_to_the_only_target_that_has_its_model(tmp_path: Path) -> None:
    async with some_targets(2) as [one, two]:
        del one.models["a"]
        async with a_place(tmp_path, one, two) as place:
            assert (await place.run())["evidence"]["target"] == "desktop"
            assert ran(one) == loads(one) == []


async def test_jobs_beyond_the_places_of_a_busy_target_go_to_the_next_one(tmp_path: Path) -> None:
    async with some_targets(2) as [one, two], a_place(tmp_path, one, two) as place:
        hold, answer = held()
        one.script("a", answer)
        first = await place.ask()
        await saying(one)
        assert (await place.run())["evidence"]["target"] == "desktop"
        hold.set()
        await place.done(first)


@pytest.mark.parametrize("warm", [False, True], ids=["not in memory", "thought to be in memory"])
async def test_a_job_moves_to_the_other_target_if_the_first_lacks_the_model_after_all(
    tmp_path: Path, warm: bool
) -> None:
    async with some_targets(2) as [one, two], a_place(tmp_path, one, two) as place:
        if warm:
            assert (await place.run())["evidence"]["target"] == "laptop"
        before = len(loads(one)) + len(ran(one))
        one.resident.clear()
        del one.models["a"]  # another user removed the model
        job = await place.run(max_attempts=1)
        assert (job["attempt"], outcomes(job), failures(job)) == (1, ["park", "succeed"], ["no such model", ""])
        assert job["evidence"]["target"] == "desktop"
        assert len(loads(one)) + len(ran(one)) == before + 1


async def test_a_model_that_both_targets_lack_after_all_fails_the_job(tmp_path: Path) -> None:
    async with some_targets(2) as [one, two], a_place(tmp_path, one, two) as place:
        del one.models["a"]
        del two.models["a"]
        job = await place.failed(await place.ask())
        assert (job["attempt"], outcomes(job)) == (1, ["park", "fail"])
        assert "not found" in job["error"]


async def test_an_unknown_cloud_model_fails_the_job(tmp_path: Path) -> None:
    async with some_targets(2) as [one, two], a_place(tmp_path, one, two) as place:
        job = await place.failed(await place.ask(model="nobody:cloud"), 3)
        assert "not found" in job["error"]
        assert len(ran(one)) + len(ran(two)) <= 2


async def test_a_job_waits_for_the_target_that_has_its_model_even_if_another_is_up(tmp_path: Path) -> None:
    async with some_targets(2) as [one, two]:
        two.models["rare"] = Model()
        async with a_place(tmp_path, one, two, **HURRIED) as place:
            await two.go_away()
            await is_away(place.server, "desktop")
            job_id = await place.ask(model="rare", max_attempts=1)
            await asyncio.sleep(SILENCE)
            job = await place.seen(job_id)
            assert (job["state"], job["waiting_for"], outcomes(job)) == ("queued", "target", [])
            assert "desktop is away" in job["waiting"]
            await two.come_back()
            assert (await place.done(job_id))["evidence"]["target"] == "desktop"


async def test_the_job_of_a_target_that_goes_away_is_finished_by_the_other(tmp_path: Path) -> None:
    async with some_targets(2) as [one, two], a_place(tmp_path, one, two, **HURRIED) as place:
        _, answer = held()
        one.script("a", answer)
        job_id = await place.ask(max_attempts=1)
        await saying(one)
        one.sleep()
        job = await place.done(job_id)
        assert (job["attempt"], job["evidence"]["target"], outcomes(job)) == (1, "desktop", ["park", "succeed"])
        one.wake()


async def test_a_model_that_is_not_on_the_list_of_a_target_is_never_requested_from_it(tmp_path: Path) -> None:
    async with some_targets(2) as [one, two]:
        async with aiohttp.ClientSession() as other:
            await (await other.post(f"{one.url}/api/chat", json={"model": "a"})).read()
        one.seen.clear()
        tables = target_tables(one, two)
        tables[0]["models"] = ["b"]
        async with a_place(tmp_path, one, two, inference__targets=tables) as place:
            for _ in range(3):
                assert (await place.run())["evidence"]["target"] == "desktop"
            assert ran(one) == loads(one) == []


async def test_a_model_that_is_on_no_list_fails_the_job_and_says_why(tmp_path: Path) -> None:
    async with some_targets() as [target]:
        tables = target_tables(target, models=["b"])
        async with a_place(tmp_path, target, inference__targets=tables) as place:
            job = await place.failed(await place.ask(), 3)
            assert "a:latest" in job["error"]
            assert "inference.targets" in job["error"]
            assert ran(target) == loads(target) == target.at("/api/show") == []


async def test_a_backlog_on_one_target_does_not_keep_a_model_on_another_closed(tmp_path: Path) -> None:
    """Room was being made on the first target when the second had room sooner: the first goes on as before."""
    async with some_targets(2) as [one, two]:
        del two.models["a"]
        settings = {"inference__targets": target_tables(one, two, slots=1), "inference__wait_cap_seconds": 0}
        async with a_place(tmp_path, one, two, **settings) as place:
            hold_a, answer_a = held()
            hold_c, answer_c = held()
            hold_b, answer_b = held()
            one.script("a", answer_a)
            two.script("c", answer_c)
            two.script("b", answer_b)
            first = await place.ask(model="a")
            await saying(one)
            other = await place.ask(model="c")
            await until(lambda: ran(two) or len(ran(one)) > 1)
            backlog = [await place.ask(model="b") for _ in range(3)]
            ledger = scheduler_of(place.server).targets["laptop"].ledger
            await until(lambda: ledger.closing)
            hold_c.set()
            await saying(two, 1)
            await until(lambda: [seen.json["model"] for seen in ran(two)] == ["c", "b"])
            second = await place.ask(model="a")
            hold_a.set()
            await place.done(first)
            await place.done(second, 3)
            hold_b.set()
            for job_id in (other, *backlog):
                await place.done(job_id)


# waking a target ------------------------------------------------------------------------------------------------------


def wake_command(file: Path) -> list[str]:
    code = "import sys, time; open(sys.argv[1], 'a').write(f'{time.time()}\\n')"
    return [sys.executable, "-S", "-E", "-c", code, str(file)]


async def test_a_target_is_woken_when_work_waits_for_it_and_not_too_often(tmp_path: Path) -> None:
    async with some_targets() as [target]:
        file = tmp_path / "woken"
        tables = target_tables(target, wake_command=wake_command(file))
        settings = {"inference__targets": tables, "inference__wake_seconds": 0.4, **HURRIED}
        async with a_place(tmp_path, target, **settings) as place:
            await target.go_away()
            await is_away(place.server)
            await asyncio.sleep(SILENCE)
            assert not file.exists(), "no work waits"
            job_id = await place.ask()
            await until(lambda: file.exists() and len(file.read_text().splitlines()) >= 3)
            at = [float(line) for line in file.read_text().splitlines()]
            assert at[2] - at[0] >= 0.7, "twice the pause, but for the time that it takes to start"
            await target.come_back()
            await place.done(job_id)
            woken = len(file.read_text().splitlines())
            await place.run()
            await asyncio.sleep(0.5)
            assert len(file.read_text().splitlines()) <= woken + 1, "one may have been on its way"


async def test_a_target_that_is_up_is_not_woken(tmp_path: Path) -> None:
    async with some_targets() as [target]:
        file = tmp_path / "woken"
        tables = target_tables(target, wake_command=wake_command(file), slots=1)
        async with a_place(tmp_path, target, inference__targets=tables, inference__wake_seconds=0.05) as place:
            target.habits.prefill_seconds = 0.1
            ids = [await place.ask(model=model) for model in "abab"]
            for job_id in ids:
                await place.done(job_id)
            assert not file.exists()


async def test_a_wake_command_that_cannot_be_run_does_not_stop_the_job(tmp_path: Path) -> None:
    async with some_targets() as [target]:
        tables = target_tables(target, wake_command=["/does/not/exist"])
        settings = {"inference__targets": tables, "inference__wake_seconds": 0.05, **HURRIED}
        async with a_place(tmp_path, target, **settings) as place:
            await target.go_away()
            await is_away(place.server)
            job_id = await place.ask()
            await asyncio.sleep(0.2)
            await target.come_back()
            await place.done(job_id)


# cancelling, deadlines, retrying --------------------------------------------------------------------------------------


async def test_a_queued_job_is_cancelled_at_once_and_never_reaches_the_target(place: Place, receiver: Receiver) -> None:
    hold, answer = held()
    place.target.script("a", answer)
    running = await place.ask()
    await saying(place.target)
    job_id = await place.ask(state_webhook_url=receiver.url())
    await place.cancel(job_id)
    job = await place.seen(job_id)
    assert (job["state"], job["error"]) == ("failed", "cancelled")
    hold.set()
    await place.done(running)
    await place.run()
    assert len(ran(place.target)) == 2
    assert await whole_story(receiver, job_id) == ["queued", "failed"]


async def test_a_working_job_is_cancelled_by_closing_the_targets_connection(place: Place, receiver: Receiver) -> None:
    _, answer = held()
    place.target.script("a", answer)
    job_id = await place.ask(state_webhook_url=receiver.url())
    await saying(place.target)
    await place.in_state(job_id, "working")
    await place.cancel(job_id)
    await place.target.until(lambda: ran(place.target)[0].aborted)
    assert (await place.seen(job_id))["error"] == "cancelled"
    assert await whole_story(receiver, job_id) == ["queued", "loading", "working", "failed"]
    began = time.monotonic()
    await place.run()
    assert time.monotonic() - began < 1, "its room was given to the next at once"
    assert (await place.seen(job_id))["state"] == "failed"


async def test_the_place_of_a_request_cancelled_before_its_first_token_stays_taken_for_a_while(place: Place) -> None:
    """A runner in a long prompt notices a cancel only at its next token; another request would wait in the target."""
    await place.run()
    place.target.habits.cancel_seconds = 0.5
    place.target.habits.hold = asyncio.Event()
    job_id = await place.ask()
    await until(lambda: place.target.in_flight["a"])
    await place.cancel(job_id)
    await place.target.until(lambda: ran(place.target)[1].aborted)
    place.target.habits.hold = None
    began = time.monotonic()
    await place.run()
    assert 0.5 < time.monotonic() - began < 4
    assert not any(seen.at < began + 0.5 for seen in ran(place.target)[2:])


async def test_a_job_that_waits_past_its_deadline_fails(place: Place, receiver: Receiver) -> None:
    await place.target.go_away()
    await is_away(place.server)
    job_id = await place.ask(deadline_seconds=0.1, state_webhook_url=receiver.url())
    job = await place.failed(job_id, 4)
    assert "the deadline of 0.1 s passed" in job["error"]
    assert await whole_story(receiver, job_id) == ["queued", "failed"]
    await place.target.come_back()


async def test_a_job_that_works_past_its_deadline_is_stopped_at_the_target(place: Place, receiver: Receiver) -> None:
    _, answer = held()
    place.target.script("a", answer)
    job_id = await place.ask(deadline_seconds=0.3, state_webhook_url=receiver.url())
    job = await place.failed(job_id, 4)
    assert "the deadline of 0.3 s passed" in job["error"]
    await place.target.until(lambda: ran(place.target)[0].aborted)
    assert await whole_story(receiver, job_id) == ["queued", "loading", "working", "failed"]
    assert (await place.run())["state"] == "done"


async def test_a_delayed_job_does_not_run_now_even_if_its_model_is_in_memory(place: Place) -> None:
    await place.run()
    began = time.monotonic()
    job = await place.run(delay_seconds=0.4)
    assert ran(place.target)[1].at - began >= 0.39
    assert job["attempt"] == 1


async def test_a_long_answer_outlasts_its_lease(tmp_path: Path) -> None:
    async with some_targets() as [target], a_place(tmp_path, target, inference__lease_seconds=0.3) as place:
        target.habits.prefill_seconds = 1
        job = await place.run(max_attempts=1)
        assert outcomes(job) == ["succeed"]


async def test_the_key_of_a_target_is_sent_with_every_request(tmp_path: Path) -> None:
    async with some_targets() as [target]:
        tables = target_tables(target, api_key="the-key-of-the-laptop")
        async with a_place(tmp_path, target, inference__targets=tables) as place:
            await place.run()
            assert {seen.headers.get("authorization") for seen in target.seen} == {"Bearer the-key-of-the-laptop"}


async def test_a_failed_job_can_be_retried_with_all_its_attempts(place: Place, receiver: Receiver) -> None:
    place.target.habits.load_failure, place.target.habits.load_failures = "no luck", 2
    job_id = await place.ask(max_attempts=2, state_webhook_url=receiver.url())
    assert (await place.failed(job_id))["attempt"] == 2
    (await place.post(f"/jobs/{job_id}/retry")).good()
    job = await place.done(job_id)
    assert (job["attempt"], job["error"], outcomes(job)) == (1, None, ["retry", "fail", "succeed"])
    await until(lambda: told(receiver, job_id)[-1]["state"] == "done")
    states = ["queued", "loading", "queued", "loading", "failed", "queued", "loading", "working", "done"]
    assert story(receiver, job_id) == states
    assert (await place.post(f"/jobs/{job_id}/retry")).status == 409


async def test_a_cancelled_job_can_be_retried(place: Place) -> None:
    await place.target.go_away()
    await is_away(place.server)
    job_id = await place.ask()
    await place.cancel(job_id)
    await place.target.come_back()
    (await place.post(f"/jobs/{job_id}/retry")).good()
    assert (await place.done(job_id))["attempt"] == 1


async def test_a_job_that_runs_when_the_server_stops_is_handed_back_and_runs_after_the_restart(tmp_path: Path) -> None:
    async with some_targets() as [target]:
        _, answer = held()
        target.script("a", answer)
        async with a_place(tmp_path, target) as place:
            job_id = await place.ask(max_attempts=1)
            await saying(target)
        await target.until(lambda: ran(target)[0].aborted)
        async with a_place(tmp_path, target) as place:
            job = await place.done(job_id)
            assert (job["attempt"], outcomes(job)) == (1, ["park", "succeed"])


async def test_a_server_that_stops_hands_all_jobs_back_and_leaves_no_connection_open(tmp_path: Path) -> None:
    async with some_targets(parallel=4) as [target]:
        settings = {"inference__targets": target_tables(target, parallel=4), "inference__lease_seconds": 0.3}
        for number in range(3):
            folder = tmp_path / str(number)
            folder.mkdir()
            target.habits.hold = asyncio.Event()
            async with a_place(folder, target, **settings) as place:
                ids = [await place.ask(max_attempts=1) for _ in range(4)]
                await until(lambda: target.in_flight["a"] == 4)
                store_url = place.server.config.store_url
            await target.until(lambda: target.in_flight["a"] == 0 and not target.connections)
            store = await open_store(store_url)
            jobs = [await store.get_job(job_id) for job_id in ids]
            await store.close()
            assert {(job.state, job.attempt) for job in jobs if job} == {("queued", 0)}
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                gc.collect()


# all at once ----------------------------------------------------------------------------------------------------------


async def test_a_storm_leaves_no_job_waiting_and_the_ledgers_empty(tmp_path: Path) -> None:
    chance = Random(1)
    async with some_targets(2, parallel=2) as targets:
        tables = target_tables(*targets, slots=1, parallel=2)
        settings = {"inference__targets": tables, "inference__wait_cap_seconds": 0.2, "inference__probe_seconds": 0.05}
        async with a_place(tmp_path, *targets, **settings) as place:
            for target in targets:
                target.habits.load_seconds = target.habits.unload_seconds = 0.02
                target.habits.token_seconds = 0.01
            ids = []
            for _ in range(25):
                two = [{"model": model, "priority": chance.randrange(10)} for model in chance.choices("abc", k=2)]
                ids += [await place.ask(max_attempts=1000, **fields) for fields in two]
                await _mishap(place, chance.choice(targets), chance, ids)
            ends = [await place.ended(job_id) for job_id in ids]
            assert {job["error"] for job in ends} <= {None, "cancelled"}
            assert all(set(target.max_in_flight.values()) <= {1, 2} for target in targets)
            ledgers = scheduler_of(place.server).ledgers
            await until(lambda: not any(each.in_flight or each.opening or each.closing for each in ledgers))


async def _mishap(place: Place, target: OllamaTarget, chance: Random, ids: list[str]) -> None:
    match chance.randrange(8):
        case 0:
            target.sleep()
            await asyncio.sleep(0.2)
            target.wake()
        case 1:
            await target.go_away(restart=True)
            await asyncio.sleep(0.05)
            await target.come_back()
        case 2:
            target.habits.resets = 1
        case 3:
            target.habits.load_failure, target.habits.load_failures = "no luck", 1
        case 4:
            await target.crash_runner(reset=True)
        case 5:
            await place.call("DELETE", f"/jobs/{chance.choice(ids)}")
        case _:
            await asyncio.sleep(0.05)
