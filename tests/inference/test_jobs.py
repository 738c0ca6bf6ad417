"""`/jobs` as its callers see it: submitting, webhooks, reading, following, cancelling, and refusals."""

import asyncio
import hashlib
import io
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from standardwebhooks.webhooks import Webhook

from chargehand.app import Server
from chargehand.engine.ids import is_ulid
from chargehand.webhooks.signature import standard_secret, verify
from tests.api.serving import on_sqlite, until
from tests.inference.calling import (
    MODELS,
    Caller,
    a_line,
    a_token,
    before_targets,
    chat,
    is_away,
    ran,
    token_of,
)
from tests.inference.conformance import BROKEN, RUNNER_TERMINATED, Answer, OllamaTarget
from tests.webhooks.receiver import Receiver, answer, receiving

NINE = ["job_id", "state", "previous_state", "timestamp", "model", "attempt", "error", "result", "artifacts"]
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
SECRET = "a secret of forty-one characters, not less"
CLOCKS = frozenset({"created_at", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "id"})
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
async def target() -> AsyncIterator[OllamaTarget]:
    async with OllamaTarget(MODELS) as target:
        yield target


@pytest.fixture
def settings() -> dict[str, Any]:
    """Tests that need other settings override this fixture; two underscores stand for a dot."""
    return {}


@pytest.fixture
async def front(
    store_url: str, tmp_path: Path, target: OllamaTarget, settings: dict[str, Any]
) -> AsyncIterator[tuple[Server, Caller]]:
    async with before_targets(store_url, tmp_path, target, **settings) as both:
        yield both


@pytest.fixture
def server(front: tuple[Server, Caller]) -> Server:
    return front[0]


@pytest.fixture
def caller(front: tuple[Server, Caller]) -> Caller:
    return front[1]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: timeless(each) for name, each in value.items() if name not in CLOCKS}
    return [timeless(each) for each in value] if isinstance(value, list) else value


# submitting -----------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_job_is_accepted_with_its_id_and_its_url(caller: Caller) -> None:
    before = time.time()
    accepted = await caller.post("/jobs", chat())
    assert accepted.good(202).keys() == {"job_id"}
    job_id = accepted.json["job_id"]
    assert is_ulid(job_id)
    assert accepted.headers["location"] == f"/jobs/{job_id}"
    job = await caller.ended(job_id)
    assert (job["id"], job["state"], job["previous_state"], job["model"]) == (job_id, "done", "working", "a")
    assert (job["attempt"], job["max_attempts"], job["error"], job["artifacts"]) == (1, 5, None, [])
    assert (job["waiting_for"], job["position"], job["resident"]) == (None, None, None)
    times = [job[name] for name in ("created_at", "run_at", "updated_at", "finished_at")]
    assert all(RFC_3339.fullmatch(each) for each in times)
    assert before - 1 < datetime.fromisoformat(times[0]).timestamp() < time.time() + 1
    assert job["created_at"] <= job["updated_at"] <= job["finished_at"]
    evidence = job["evidence"]
    assert (evidence["target"], evidence["finish"], evidence["resident"]) == ("laptop", "stop", False)
    assert (evidence["prompt_tokens"], evidence["tokens"]) == (3, 4)
    assert 0 < evidence["load_seconds"] < evidence["seconds"] < 10
    assert 0 < evidence["first_token_seconds"] < evidence["seconds"]


@on_sqlite
async def test_ids_are_in_the_order_of_submission(caller: Caller) -> None:
    ids = [await caller.ask() for _ in range(5)]
    assert ids == sorted(ids)
    assert [job["id"] for job in await caller.jobs()] == ids[::-1]


SUBMITTED: dict[str, dict[str, Any]] = {
    "chat": chat(),
    "chat that says stream": chat(stream=True),
    "chat that says no stream": chat(stream=False),
    "chat cut short": chat(options={"num_predict": 2}),
    "other letters": chat("größer 猫 🐙 <b>&amp;</b>"),
    "a history": {"model": "a", "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]},
    "generate": {"model": "a", "prompt": "one two"},
    "generate raw": {"model": "a", "prompt": "one two", "raw": True},
    "generate with a suffix": {"model": "a", "prompt": "one", "suffix": "two"},
    "tools": chat("weather", tools=[WEATHER]),
    "tools at the end": chat("weather", model="templated", tools=[WEATHER]),
    "thinking": chat(model="thinker", think=True),
    "thinking in a completion": {"model": "thinker", "prompt": "one", "think": "low"},
    "pictures": {"model": "a", "messages": [{"role": "user", "content": "see", "images": ["aGk="]}]},
    "json": chat(format="json"),
    "a schema": chat(format={"type": "object", "properties": {"n": {"type": "integer"}}}),
    "no content": {"model": "a", "messages": [{"role": "user"}]},
}


@on_sqlite
async def test_a_result_equals_the_answer_of_the_target_without_streaming(caller: Caller, target: OllamaTarget) -> None:
    different, direct = [], Caller(target.url, caller.session)
    for name, body in SUBMITTED.items():
        path = "/api/chat" if "messages" in body else "/api/generate"
        whole = msgspec.json.decode((await direct.post(path, body | {"stream": False})).body)
        job = await caller.ended((await caller.post("/jobs", body)).good(202)["job_id"])
        if timeless(job["result"]) != timeless(whole) or job["state"] != "done":
            different.append((name, whole, job))
    assert different == []


@on_sqlite
async def test_only_the_fields_of_the_target_reach_the_target(caller: Caller, target: OllamaTarget) -> None:
    body = chat(
        state_webhook_url="http://127.0.0.1:9/", webhook_events=["done"], priority=4, max_attempts=2, metadata={"x": 1},
        deadline_seconds=100, delay_seconds=0.001, artifacts=[{"name": "x"}], unheard_of=[1.0, "é"],
    )  # fmt: skip
    await caller.ended((await caller.post("/jobs", body)).good(202)["job_id"])
    [seen] = ran(target)
    assert seen.json == chat(stream=True, unheard_of=[1.0, "é"])


@on_sqlite
async def test_an_idempotency_key_makes_one_job_of_many_requests(caller: Caller) -> None:
    key = {"Idempotency-Key": "order-17"}
    first = await caller.post("/jobs", chat(), headers=key)
    again = await asyncio.gather(*[caller.post("/jobs", chat(), headers=key) for _ in range(10)])
    assert {each.good(202)["job_id"] for each in again} == {first.good(202)["job_id"]}
    assert {each.headers["location"] for each in again} == {first.headers["location"]}
    await caller.ended(first.json["job_id"])
    assert (await caller.post("/jobs", chat(), headers=key)).good(202) == first.json
    other = await caller.post("/jobs", chat("something else"), headers=key)
    other.problem(422, "idempotency.mismatch")
    assert len(await caller.jobs()) == 1
    for bad in ("", "x" * 256, "a\tb"):
        (await caller.post("/jobs", chat(), headers={"Idempotency-Key": bad})).problem(
            400, "request.invalid_field", "Idempotency-Key"
        )


@on_sqlite
async def test_a_job_waits_for_its_time(caller: Caller, target: OllamaTarget) -> None:
    at = datetime.now(UTC) + timedelta(seconds=0.6)
    later = await caller.ask(run_at=at.isoformat())
    delayed = await caller.ask(delay_seconds=0.6)
    never = await caller.ask(run_at="2999-01-01T00:00:00+02:00")
    past = await caller.ask(run_at="2001-01-01T00:00:00Z")
    for job_id in (later, delayed, never):
        job = await caller.seen(job_id)
        assert (job["state"], job["waiting_for"]) == ("queued", "run_at")
        assert job["run_at"] in job["waiting"]
    assert (await caller.seen(never))["run_at"] == "2998-12-31T22:00:00.000Z"
    assert (await caller.ended(past))["state"] == "done"
    assert len(ran(target)) == 1
    for job_id in (later, delayed):
        job = await caller.ended(job_id)
        assert job["state"] == "done"
        assert job["finished_at"] >= job["run_at"]


@on_sqlite
async def test_jobs_run_by_priority_and_then_by_age(caller: Caller, target: OllamaTarget) -> None:
    target.habits.hold = asyncio.Event()
    await caller.ask(text="first")
    await target.until(lambda: target.in_flight["a"] == 1)
    last = ""
    for text, priority in (("low", 0), ("default", None), ("high", 9), ("high too", 9), ("default too", 3)):
        last = await caller.ask(text=text, **({} if priority is None else {"priority": priority}))
    low = (await caller.jobs())[-2]["id"]
    assert ((await caller.seen(low))["position"], (await caller.seen(last))["position"]) == (4, 3)
    target.habits.hold.set()
    await caller.ended(low)
    said = [seen.json["messages"][0]["content"] for seen in ran(target)]
    assert said == ["first", "high", "high too", "default", "default too", "low"]


@on_sqlite
async def test_a_job_has_no_more_attempts_than_it_asked_for(caller: Caller, target: OllamaTarget) -> None:
    target.habits.error_after = 1
    job = await caller.ended(await caller.ask(max_attempts=3))
    assert (job["state"], job["attempt"], job["max_attempts"], job["result"]) == ("failed", 3, 3, None)
    assert BROKEN in job["error"]
    assert [(each["attempt"], each["outcome"]) for each in job["attempts"]] == [(1, "retry"), (2, "retry"), (3, "fail")]
    assert {each["evidence"]["failure"] for each in job["attempts"]} == {"transient"}
    assert [each["name"] for each in job["artifacts"]] == [f"attempt-{number}.ndjson" for number in (1, 2, 3)]


@on_sqlite
async def test_a_deadline_ends_a_queued_and_a_running_job(caller: Caller, server: Server, target: OllamaTarget) -> None:
    target.script("a", Answer(chunks=["x", "y"], hold=asyncio.Event(), hold_after=1), always=True)
    running = await caller.ask(deadline_seconds=0.7)
    await target.until(lambda: target.in_flight["a"] == 1)
    waiting = await caller.ask(deadline_seconds=0.3)
    assert (await caller.seen(waiting))["deadline_at"] > (await caller.seen(waiting))["created_at"]
    for job_id in (waiting, running):
        job = await caller.ended(job_id)
        assert (job["state"], job["attempts"][-1]["outcome"]) == ("failed", "expire")
        assert "deadline" in job["error"]
    await target.until(lambda: ran(target)[0].aborted)
    assert len(ran(target)) == 1


@on_sqlite
async def test_metadata_is_kept_as_it_was_sent(caller: Caller) -> None:
    metadata = {"ticket": 12345678901234567890123, "é": [None, {"x": 1.5}]}
    body = msgspec.json.encode(chat(metadata=metadata | {"ticket": 0}))
    body = body.replace(b'"ticket":0', b'"ticket":12345678901234567890123')
    job_id = (await caller.call("POST", "/jobs", data=body)).good(202)["job_id"]
    answered = await caller.get(f"/jobs/{job_id}")
    assert b'"ticket":12345678901234567890123' in answered.body
    assert (await caller.seen(await caller.ask()))["metadata"] is None


# state webhooks -------------------------------------------------------------------------------------------------------


async def told(receiver: Receiver, job_id: str, count: int) -> list[dict[str, Any]]:
    """Return the state webhooks of a job in the order of its events, once there are `count`."""

    def there() -> bool:
        return sum(hook.job_id == job_id for hook in receiver.hooks) >= count

    await until(there)
    bodies = [msgspec.json.decode(hook.body) for hook in receiver.hooks if hook.job_id == job_id]
    assert len(bodies) == count, [body["state"] for body in bodies]
    return sorted(bodies, key=lambda body: int(body["sequence"]))


def chain(bodies: Sequence[dict[str, Any]]) -> list[tuple[str, str | None, int]]:
    return [(body["state"], body["previous_state"], body["attempt"]) for body in bodies]


@on_sqlite
async def test_every_change_of_state_is_sent_in_the_nine_fields_of_adr_0005(caller: Caller, receiver: Receiver) -> None:
    job_id = await caller.ask(state_webhook_url=receiver.url())
    bodies = await told(receiver, job_id, 4)
    assert chain(bodies) == [
        ("queued", None, 1),
        ("loading", "queued", 1),
        ("working", "loading", 1),
        ("done", "working", 1),
    ]
    for body in bodies:
        assert list(body)[:9] == NINE
        assert list(body)[9:] == ["sequence"]
        assert body["job_id"] == job_id
        assert body["model"] == "a"
        assert body["error"] is None
        assert RFC_3339.fullmatch(body["timestamp"])
    assert [body["timestamp"] for body in bodies] == sorted(body["timestamp"] for body in bodies)
    job = await caller.seen(job_id)
    assert [body["result"] for body in bodies] == [None, None, None, job["result"]]
    assert job["result"]["message"]["content"] == "a says: one two three"
    assert bodies[-1]["timestamp"] == job["finished_at"]
    events = (await caller.get(f"/jobs/{job_id}/events")).good()["events"]
    assert [body["sequence"] for body in bodies] == [event["sequence"] for event in events if event["state"]]


@on_sqlite
async def test_no_loading_state_is_sent_if_the_model_is_in_memory(caller: Caller, receiver: Receiver) -> None:
    assert (await caller.post("/api/chat", chat())).status == 200
    job_id = await caller.ask(state_webhook_url=receiver.url())
    assert chain(await told(receiver, job_id, 3)) == [
        ("queued", None, 1),
        ("working", "queued", 1),
        ("done", "working", 1),
    ]
    [event] = [
        each for each in (await caller.get(f"/jobs/{job_id}/events")).json["events"] if each["state"] == "working"
    ]
    assert "in memory" in event["message"]


@on_sqlite
async def test_the_webhooks_of_a_second_attempt_say_so(
    caller: Caller, receiver: Receiver, target: OllamaTarget
) -> None:
    target.script("a", Answer(error_after=1))
    bodies = await told(receiver, await caller.ask(state_webhook_url=receiver.url()), 6)
    assert chain(bodies) == [
        ("queued", None, 1),
        ("loading", "queued", 1),
        ("working", "loading", 1),
        ("queued", "working", 2),
        ("working", "queued", 2),
        ("done", "working", 2),
    ]
    assert [bool(body["error"]) for body in bodies] == [False, False, False, True, False, False]
    assert BROKEN in bodies[3]["error"]


@on_sqlite
async def test_the_webhook_of_a_failure_has_its_error_and_no_result(
    caller: Caller, receiver: Receiver, target: OllamaTarget
) -> None:
    target.habits.error_after = 1
    bodies = await told(receiver, await caller.ask(state_webhook_url=receiver.url(), max_attempts=1), 4)
    assert chain(bodies)[-1] == ("failed", "working", 1)
    assert BROKEN in bodies[-1]["error"]
    assert bodies[-1]["result"] is None
    missing = await told(receiver, await caller.ask(model="nowhere", state_webhook_url=receiver.url()), 2)
    assert chain(missing) == [("queued", None, 1), ("failed", "queued", 1)]
    assert "model 'nowhere" in missing[-1]["error"]


@on_sqlite
async def test_a_target_that_goes_away_costs_no_attempt_and_is_in_the_webhooks(
    caller: Caller, server: Server, receiver: Receiver, target: OllamaTarget
) -> None:
    target.habits.hold = asyncio.Event()
    job_id = await caller.ask(state_webhook_url=receiver.url())
    await target.until(lambda: target.in_flight["a"] == 1)
    await caller.in_state(job_id, "working")
    await target.go_away(restart=True)
    await caller.in_state(job_id, "queued")
    target.habits.hold = None
    await target.come_back()
    bodies = await told(receiver, job_id, 7)
    assert chain(bodies) == [
        ("queued", None, 1),
        ("loading", "queued", 1),
        ("working", "loading", 1),
        ("queued", "working", 1),
        ("loading", "queued", 1),
        ("working", "loading", 1),
        ("done", "working", 1),
    ]


@on_sqlite
async def test_the_webhook_of_a_cancelled_job_says_failed_and_why(
    caller: Caller, server: Server, receiver: Receiver, target: OllamaTarget
) -> None:
    await target.go_away()
    await is_away(server)
    job_id = await caller.ask(state_webhook_url=receiver.url())
    (await caller.call("DELETE", f"/jobs/{job_id}")).good()
    bodies = await told(receiver, job_id, 2)
    assert chain(bodies) == [("queued", None, 1), ("failed", "queued", 1)]
    assert bodies[-1]["error"] == "cancelled"


@on_sqlite
async def test_the_webhooks_of_a_manual_retry_begin_with_the_first_attempt(
    caller: Caller, receiver: Receiver, target: OllamaTarget
) -> None:
    target.script("a", Answer(status=400, error="no"))
    job_id = await caller.ask(state_webhook_url=receiver.url())
    await caller.in_state(job_id, "failed")
    (await caller.post(f"/jobs/{job_id}/retry")).good()
    bodies = await told(receiver, job_id, 7)
    assert chain(bodies)[3:] == [
        ("failed", "working", 1),
        ("queued", "failed", 1),
        ("working", "queued", 1),
        ("done", "working", 1),
    ]
    assert (bodies[3]["result"], bodies[4]["result"], bodies[4]["error"]) == (None, None, None)


@on_sqlite
async def test_only_the_requested_states_are_sent(caller: Caller, receiver: Receiver) -> None:
    some = await caller.ask(state_webhook_url=receiver.url("/some"), webhook_events=["loading", "done"])
    ends = await caller.ask(model="nowhere", state_webhook_url=receiver.url("/ends"), webhook_events=["failed", "done"])
    everything = await caller.ask(state_webhook_url=receiver.url("/all"), webhook_events=[])
    assert [state for state, _, _ in chain(await told(receiver, some, 2))] == ["loading", "done"]
    assert [state for state, _, _ in chain(await told(receiver, ends, 1))] == ["failed"]
    assert len(await told(receiver, everything, 3)) == 3
    assert len(receiver.hooks) == 6


class TestWithASecret:
    pytestmark = on_sqlite

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"webhooks__secret": SECRET}

    async def test_state_webhooks_are_signed_in_both_ways(self, caller: Caller, receiver: Receiver) -> None:
        await told(receiver, await caller.ask(state_webhook_url=receiver.url()), 4)
        for hook in receiver.hooks:
            assert re.fullmatch(r"sha256=[0-9a-f]{64}", hook.headers["X-Foreman-Signature"])
            verify("foreman", [SECRET], hook.headers, hook.body, time.time())
            verify("standard", [SECRET], hook.headers, hook.body, time.time())
            Webhook(standard_secret(SECRET)).verify(hook.body, dict(hook.headers))
            assert hook.headers["content-type"] == "application/json"
        assert len({hook.id for hook in receiver.hooks}) == 4


@on_sqlite
async def test_without_a_secret_nothing_is_signed(caller: Caller, receiver: Receiver) -> None:
    await told(receiver, await caller.ask(state_webhook_url=receiver.url()), 4)
    for hook in receiver.hooks:
        assert not {"x-foreman-signature", "webhook-signature"} & {name.lower() for name in hook.headers}
        assert hook.headers["webhook-id"]


@on_sqlite
async def test_a_receiver_that_fails_gets_the_same_webhooks_again_and_delays_no_job(
    caller: Caller, receiver: Receiver
) -> None:
    receiver.otherwise = answer(500)
    job_id = await caller.ask(state_webhook_url=receiver.url())
    job = await caller.ended(job_id)
    assert job["state"] == "done"
    await until(lambda: len(receiver.hooks) > 8)
    receiver.otherwise = answer(200)
    await caller.deliveries(f"job={job_id}&state=delivered", 4)
    by_id: dict[str, set[bytes]] = {}
    for hook in receiver.hooks:
        by_id.setdefault(hook.id, set()).add(hook.body)
    assert len(by_id) == 4
    assert all(len(bodies) == 1 for bodies in by_id.values())


# artifacts ------------------------------------------------------------------------------------------------------------

PERSON = {"type": "object", "properties": {"name": {"type": "string"}}}


async def test_parts_of_the_answer_are_kept_as_files(caller: Caller, receiver: Receiver) -> None:
    wishes = [
        {"name": "answer.txt"},
        {"name": "the whole (talk) é.json", "from": "transcript"},
        {"name": "person.json", "from": "structured"},
        {"name": "same.json", "from": "answer"},
    ]
    job_id = await caller.ask(format=PERSON, artifacts=wishes, state_webhook_url=receiver.url())
    job = await caller.ended(job_id)
    files = {each["name"]: each for each in job["artifacts"]}
    assert files.keys() == {wish["name"] for wish in wishes}
    content = {}
    for name, file in files.items():
        assert file.keys() == {"name", "media_type", "size", "sha256", "url"}
        fetched = await caller.get(file["url"])
        assert fetched.status == 200
        assert (len(fetched.body), hashlib.sha256(fetched.body).hexdigest()) == (file["size"], file["sha256"])
        assert fetched.headers["content-type"] == file["media_type"]
        assert fetched.headers["x-content-type-options"] == "nosniff"
        content[name] = fetched.body
    text = job["result"]["message"]["content"]
    assert content["answer.txt"].decode() == text
    assert msgspec.json.decode(content["person.json"]) == msgspec.json.decode(text)
    talk = msgspec.json.decode(content["the whole (talk) é.json"])
    assert talk["model"] == "a"
    assert talk["messages"] == [*chat()["messages"], job["result"]["message"]]
    done = (await told(receiver, job_id, 4))[-1]
    assert sorted(done["artifacts"], key=str) == sorted(job["artifacts"], key=str)


@on_sqlite
async def test_a_file_is_fetched_in_ranges_and_not_sent_again_if_unchanged(caller: Caller) -> None:
    job = await caller.ended(await caller.ask(artifacts=[{"name": "x.txt"}]))
    url = f"/jobs/{job['id']}/artifacts/x.txt"
    whole = await caller.get(url)
    body, etag = b"a says: one two three", whole.headers["etag"]
    assert (whole.status, whole.body, whole.headers["accept-ranges"]) == (200, body, "bytes")
    head = await caller.call("HEAD", url)
    assert (head.status, head.body, head.headers["etag"], head.headers["content-length"]) == (200, b"", etag, "21")
    for asked, start, end in (("0-3", 0, 4), ("8-", 8, 21), ("-5", 16, 21), ("0-999", 0, 21), ("-999", 0, 21)):
        part = await caller.get(url, headers={"Range": f"bytes={asked}"})
        assert (part.status, part.body) == (206, body[start:end]), asked
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/21"
        assert part.headers["content-length"] == str(end - start)
    for asked in ("21-", "100-200", "-0"):
        refused = await caller.get(url, headers={"Range": f"bytes={asked}"})
        assert (refused.status, refused.headers["content-range"]) == (416, "bytes */21"), asked
    for known in (etag, f'"other", {etag}', f"W/{etag}"):
        unchanged = await caller.get(url, headers={"If-None-Match": known})
        assert (unchanged.status, unchanged.body, unchanged.headers["etag"]) == (304, b"", etag), known
    assert (await caller.get(url, headers={"If-None-Match": '"other"'})).body == body
    stale = await caller.get(url, headers={"Range": "bytes=0-3", "If-Range": '"other"'})
    assert (stale.status, stale.body) == (200, body)
    fresh = await caller.get(url, headers={"Range": "bytes=0-3", "If-Range": etag})
    assert (fresh.status, fresh.body) == (206, body[:4])
    for missing in ("y.txt", "X.TXT", "..%2Fx.txt", "x.txt%00"):
        assert (await caller.get(f"/jobs/{job['id']}/artifacts/{missing}")).status == 404, missing


@on_sqlite
async def test_an_artifact_that_cannot_be_made_is_logged_and_the_job_is_done(caller: Caller) -> None:
    wishes = [{"name": "x.json", "from": "structured"}, {"name": "y.txt"}]
    job = await caller.ended(await caller.ask(artifacts=wishes))
    assert (job["state"], [each["name"] for each in job["artifacts"]]) == ("done", ["y.txt"])
    notes = [each for each in (await caller.get(f"/jobs/{job['id']}/events")).json["events"] if each["move"] == "note"]
    assert [("x.json" in note["message"], note["level"]) for note in notes] == [(True, "warn")]


@on_sqlite
async def test_the_transcript_of_a_completion_has_prompt_and_answer(caller: Caller) -> None:
    job = await caller.ended(await caller.ask(prompt="one", artifacts=[{"name": "talk.json", "from": "transcript"}]))
    talk = msgspec.json.decode((await caller.get(job["artifacts"][0]["url"])).body)
    assert talk["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "a says: one"},
    ]


class TestWithAShortMemory:
    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"retention__finished_seconds": 0.4, "retention__interval_seconds": 0.05}

    async def test_files_are_removed_with_their_job(self, caller: Caller, server: Server, tmp_path: Path) -> None:
        job = await caller.ended(await caller.ask(artifacts=[{"name": "x.txt"}]))
        [file] = job["artifacts"]
        blob = tmp_path / "files" / file["sha256"]
        assert blob.is_file()

        async def is_gone() -> bool:
            return (await caller.get(f"/jobs/{job['id']}")).status == 404

        await until(is_gone)
        assert (await caller.get(file["url"])).status == 404
        assert await caller.jobs() == []
        await server.files.sweep(older_than_seconds=0)
        assert not blob.exists()


# reading and listing --------------------------------------------------------------------------------------------------


async def test_jobs_are_listed_by_state_and_model_a_page_at_a_time(
    caller: Caller, server: Server, target: OllamaTarget
) -> None:
    done = [await caller.ended(await caller.ask(text=f"number {number}")) for number in range(5)]
    failed = await caller.ended(await caller.ask(model="nowhere"))
    target.habits.hold = asyncio.Event()
    working = await caller.in_state(await caller.ask(model="b"), "working")
    queued = await caller.seen(await caller.ask(model="b", run_at="2999-01-01T00:00:00Z"))
    cancelled = await caller.ask(model="b", delay_seconds=100)
    (await caller.call("DELETE", f"/jobs/{cancelled}")).good()

    async def listed(query: str) -> list[str]:
        return [job["id"] for job in await caller.jobs(query)]

    newest_first = [cancelled, queued["id"], working["id"], failed["id"], *[job["id"] for job in done[::-1]]]
    assert await listed("") == newest_first
    assert await listed("state=done") == [job["id"] for job in done[::-1]]
    assert await listed("state=failed") == [cancelled, failed["id"]]
    assert await listed("state=working") == [working["id"]]
    assert await listed("state=queued") == [queued["id"]]
    assert await listed("state=loading") == []
    assert await listed("model=nowhere") == [failed["id"]]
    assert await listed("model=b&state=working") == [working["id"]]
    assert await listed("model=b&state=done") == []
    pages, cursor = [], ""
    while True:
        page = (await caller.get(f"/jobs?limit=4{cursor}")).good()
        pages.append([job["id"] for job in page["jobs"]])
        await caller.ask(model="b", delay_seconds=100)  # a page does not change while jobs are added
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert pages == [newest_first[:4], newest_first[4:8], newest_first[8:]]
    summary = (await caller.jobs("state=done"))[0]
    assert summary == {name: (await caller.seen(summary["id"]))[name] for name in summary}


async def test_a_model_is_found_under_each_of_its_names(caller: Caller) -> None:
    ids = {await caller.ask(model=name) for name in ("a", "A", "a:latest", "registry.ollama.ai/library/a")}
    for job_id in ids:
        assert (await caller.ended(job_id))["state"] == "done"
    for name in ("a", "A:latest"):
        assert {job["id"] for job in await caller.jobs(f"model={name}")} == ids, name


async def makes_room(caller: Caller, target: OllamaTarget) -> dict[str, Any]:
    """Return a job that was claimed and waits until another model is unloaded: it is shown as queued."""
    for model in ("a", "b"):
        await caller.ended(await caller.ask(model=model))
    target.habits.unload_seconds = 0.5
    job_id = await caller.ask(model="c")
    await target.until(lambda: any(runner.unloading for runner in target.resident.values()))
    return await caller.seen(job_id)


@on_sqlite
async def test_a_job_that_makes_room_says_what_it_waits_for(caller: Caller, target: OllamaTarget) -> None:
    job = await makes_room(caller, target)
    assert (job["state"], job["waiting_for"]) == ("queued", "model")
    assert job["waiting"]
    assert (await caller.ended(job["id"]))["state"] == "done"


@on_sqlite
async def test_a_job_that_makes_room_is_listed_in_the_state_it_is_shown_in(
    caller: Caller, target: OllamaTarget
) -> None:
    job = await makes_room(caller, target)
    assert job["state"] == "queued"
    assert [each["id"] for each in await caller.jobs("state=queued")] == [job["id"]]


@on_sqlite
async def test_jobs_of_other_doors_are_not_shown(caller: Caller) -> None:
    other = await caller.submit()
    assert await caller.jobs() == []
    (await caller.get(f"/jobs/{other}")).problem(404, "not_found")
    (await caller.call("DELETE", f"/jobs/{other}")).problem(404, "not_found")


# following ------------------------------------------------------------------------------------------------------------


class Followed:
    """A reader of server-sent events."""

    def __init__(self, response: Any) -> None:
        self._response = response

    async def next(self) -> tuple[str, str, Any]:
        """Return kind, id and data of the next event; ("", "", None) at the end."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(10):
            while line := (await self._response.content.readline()).decode():
                if line.strip() and not line.startswith(":"):
                    name, _, value = line.rstrip("\n").partition(":")
                    fields[name] = value.removeprefix(" ")
                elif fields:
                    return fields["event"], fields.get("id", ""), msgspec.json.decode(fields["data"])
        return "", "", None

    async def rest(self) -> list[tuple[str, str, Any]]:
        found = []
        while (event := await self.next())[0]:
            found.append(event)
        return found

    async def tokens(self, count: int) -> list[str]:
        """Return the next `count` tokens; skip other events."""
        found: list[str] = []
        while len(found) < count:
            kind, _, data = await self.next()
            assert kind, f"it ended after {found}"
            if kind == "token":
                found.append(data["message"]["content"])
        return found


@asynccontextmanager
async def following(caller: Caller, job_id: str, query: str = "", after: str = "") -> AsyncIterator[Followed]:
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": after} if after else {})
    async with caller.session.get(f"{caller.url}/jobs/{job_id}/events{query}", headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Followed(response)


async def test_the_log_of_a_job_is_read_and_followed(caller: Caller, target: OllamaTarget) -> None:
    target.habits.hold = asyncio.Event()
    job_id = await caller.ask()
    async with following(caller, job_id) as live:
        first = [await live.next() for _ in range(2)]
        assert [(kind, number) for kind, number, _ in first] == [("submit", "1"), ("claim", "2")]
        target.habits.hold.set()
        rest = await live.rest()
    assert [kind for kind, _, _ in rest] == ["advance", "advance", "succeed"]
    events = (await caller.get(f"/jobs/{job_id}/events")).good()["events"]
    assert [data for _, _, data in first + rest] == events
    assert [event["sequence"] for event in events] == [1, 2, 3, 4, 5]
    assert [event["state"] for event in events] == ["queued", None, "loading", "working", "done"]
    assert [event["previous_state"] for event in events] == [None, "queued", "queued", "loading", "working"]
    assert all(RFC_3339.fullmatch(event["at"]) for event in events)
    assert events[-1]["data"]["evidence"]["target"] == "laptop"
    async with following(caller, job_id, after="3") as again:
        assert [number for _, number, _ in await again.rest()] == ["4", "5"]
    async with following(caller, job_id, "?after=4") as again:
        assert [number for _, number, _ in await again.rest()] == ["5"]
    async with following(caller, job_id, after="5") as again:
        assert await again.rest() == []
    assert [each["sequence"] for each in (await caller.get(f"/jobs/{job_id}/events?after=3")).json["events"]] == [4, 5]


@on_sqlite
async def test_a_late_reader_gets_all_tokens_from_the_first_on(caller: Caller, target: OllamaTarget) -> None:
    hold = asyncio.Event()
    target.script("a", Answer(chunks=["x", "y", "z"], hold=hold, hold_after=2))
    job_id = (await caller.in_state(await caller.ask(), "working"))["id"]
    async with following(caller, job_id, "?tokens=1") as early:
        assert await early.tokens(2) == ["x", "y"]
    async with following(caller, job_id, "?tokens=1", after="4") as late:
        assert await late.tokens(2) == ["x", "y"]
        hold.set()
        rest = await late.rest()
    assert [kind for kind, _, _ in rest] == ["token", "token", "succeed"]
    assert rest[0][2]["message"]["content"] == "z"
    assert rest[1][2]["done"] is True
    assert (await caller.seen(job_id))["result"]["message"]["content"] == "xyz"
    async with following(caller, job_id, "?tokens=1") as after:
        assert [kind for kind, _, _ in await after.rest()] == ["submit", "claim", "advance", "advance", "succeed"]


@on_sqlite
async def test_a_reader_gets_the_tokens_of_the_second_attempt_too(caller: Caller, target: OllamaTarget) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    target.script(
        "a",
        Answer(chunks=["p", "q"], hold=first, hold_after=2, error_after=2),
        Answer(chunks=["x", "y"], hold=second, hold_after=1),
    )
    job_id = await caller.ask()
    async with following(caller, job_id, "?tokens=1") as live:
        assert await live.tokens(2) == ["p", "q"]
        first.set()
        between = []
        while (event := await live.next())[0] != "retry":
            between.append(event)
        assert [data for kind, _, data in between if kind == "token"] == [{"error": BROKEN}]
        assert event[2]["attempt"] == 2
        assert await live.tokens(1) == ["x"]
        async with following(caller, job_id, "?tokens=1") as other:
            assert await other.tokens(1) == ["x"]
        second.set()
        rest = await live.rest()
    assert [kind for kind, _, _ in rest if kind != "advance"] == ["token", "token", "succeed"]


@on_sqlite
async def test_a_reader_of_a_queued_job_misses_no_token(caller: Caller, target: OllamaTarget) -> None:
    """Also if the generation is very short."""
    await caller.ended(await caller.ask())
    for _ in range(10):
        hold = asyncio.Event()
        target.script("a", Answer(chunks=["-"], hold=hold), Answer(chunks=["x", "y", "z"]))
        first, second = await caller.ask(), await caller.ask()
        async with following(caller, second, "?tokens=1") as live:
            assert (await live.next())[0] == "submit"
            hold.set()
            assert await live.tokens(3) == ["x", "y", "z"]
        await caller.ended(first)


@on_sqlite
async def test_the_tokens_of_a_synchronous_call_can_be_followed_by_others(caller: Caller, target: OllamaTarget) -> None:
    hold = asyncio.Event()
    target.script("a", Answer(chunks=["x", "y"], hold=hold, hold_after=1))
    async with caller.session.post(caller.url + "/api/chat", json=chat()) as response:
        async with following(caller, response.headers["x-chargehand-job"], "?tokens=1") as along:
            assert await along.tokens(1) == ["x"]
            hold.set()
            assert await along.tokens(1) == ["y"]
        assert len((await response.read()).splitlines()) == 3


# why it waits ---------------------------------------------------------------------------------------------------------


class TestWaiting:
    pytestmark = on_sqlite

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"engine__backoff_base_seconds": 60, "engine__backoff_max_seconds": 60}

    async def test_a_job_waits_for_a_target(self, caller: Caller, server: Server, target: OllamaTarget) -> None:
        await target.go_away()
        await is_away(server)
        first, second = await caller.ask(), await caller.ask()
        job = await caller.seen(first)
        assert (job["state"], job["waiting_for"], job["position"]) == ("queued", "target", 0)
        assert "laptop is away" in job["waiting"]
        assert "refused" in job["waiting"]
        assert job["resident"] == {"laptop": []}
        assert (await caller.seen(second))["position"] == 1
        assert [each["waiting_for"] for each in await caller.jobs()] == ["target", "target"]

    async def test_a_job_waits_for_its_turn(self, caller: Caller, target: OllamaTarget) -> None:
        target.habits.hold = asyncio.Event()
        await caller.in_state(await caller.ask(), "working")
        second, third = await caller.ask(), await caller.ask()
        job = await caller.seen(second)
        assert (job["waiting_for"], job["position"], job["resident"]) == ("turn", 0, {"laptop": ["a:latest"]})
        assert "1 of 1" in job["waiting"]
        assert (await caller.seen(third))["position"] == 1

    async def test_a_job_waits_for_a_slot(self, caller: Caller, target: OllamaTarget) -> None:
        target.habits.hold = asyncio.Event()
        for model in ("a", "b"):
            await caller.in_state(await caller.ask(model=model), "working")
            await caller.ask(model=model)  # so that the model is still wanted
        third = await caller.ask(model="c", priority=0)
        job = await caller.seen(third)
        assert (job["waiting_for"], job["position"]) == ("slot", 0)
        assert job["resident"] == {"laptop": ["a:latest", "b:latest"]}
        assert re.search("a:latest.*b:latest", job["waiting"])

    async def test_a_job_waits_for_its_model(self, caller: Caller, target: OllamaTarget) -> None:
        target.habits.load_seconds = 0.5
        await caller.ask()
        second = await caller.ask()
        await target.until(lambda: target.loading is not None)
        job = await caller.seen(second)
        assert job["waiting_for"] == "model"
        assert "is being loaded on laptop" in job["waiting"]

    async def test_a_job_waits_for_its_backoff(self, caller: Caller, target: OllamaTarget) -> None:
        target.habits.load_failure = RUNNER_TERMINATED
        job_id = await caller.ask()

        async def has_broken() -> dict[str, Any] | None:
            job = await caller.seen(job_id)
            return job if job["error"] else None

        job = await until(has_broken)
        assert (job["state"], job["waiting_for"], job["attempt"]) == ("queued", "backoff", 2)
        assert RUNNER_TERMINATED in job["waiting"]
        assert job["run_at"] in job["waiting"]

    async def test_a_job_waits_for_its_run_at_and_an_ended_one_waits_for_nothing(self, caller: Caller) -> None:
        job = await caller.seen(await caller.ask(delay_seconds=60))
        assert job["waiting_for"] == "run_at"
        assert job["run_at"] in job["waiting"]
        job = await caller.ended(await caller.ask())
        assert (job["waiting_for"], job["waiting"], job["position"], job["resident"]) == (None, None, None, None)


# cancelling and retrying ----------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_queued_and_a_running_job_are_cancelled(caller: Caller, target: OllamaTarget) -> None:
    target.script("a", Answer(chunks=["x", "y"], hold=asyncio.Event(), hold_after=1))
    working = await caller.in_state(await caller.ask(), "working")
    queued = await caller.ask()
    for job_id in (queued, working["id"]):
        cancelled = (await caller.call("DELETE", f"/jobs/{job_id}")).good()
        assert cancelled == {"job_id": job_id, "state": "failed"}
        job = await caller.seen(job_id)
        assert (job["state"], job["error"], job["result"]) == ("failed", "cancelled", None)
        assert job["attempts"][-1]["outcome"] == "cancel"
        (await caller.call("DELETE", f"/jobs/{job_id}")).problem(409, "conflict")
    await target.until(lambda: ran(target)[0].aborted)
    assert len(ran(target)) == 1
    done = await caller.ended(await caller.ask())
    (await caller.call("DELETE", f"/jobs/{done['id']}")).problem(409, "conflict")


@on_sqlite
async def test_a_failed_job_gets_all_its_attempts_again(caller: Caller, target: OllamaTarget) -> None:
    target.script("a", Answer(error_after=1), Answer(error_after=1))
    job = await caller.ended(await caller.ask(max_attempts=2))
    assert (job["state"], job["attempt"]) == ("failed", 2)
    assert (await caller.post(f"/jobs/{job['id']}/retry")).good() == {"job_id": job["id"], "state": "queued"}
    job = await caller.ended(job["id"])
    assert (job["state"], job["attempt"], job["error"]) == ("done", 1, None)
    (await caller.post(f"/jobs/{job['id']}/retry")).problem(409, "conflict")
    sync = await caller.post("/api/chat", chat(model="nowhere"))
    (await caller.post(f"/jobs/{sync.headers['x-chargehand-job']}/retry")).problem(409, "conflict")


# tenants and scopes ---------------------------------------------------------------------------------------------------


class TestTenants:
    pytestmark = on_sqlite

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {
            "auth__tokens": [
                a_token("acme", "acme"),
                a_token("umbrella", "umbrella"),
                a_token("reader", "acme", "jobs:read"),
                a_token("writer", "acme", "jobs:write"),
            ]
        }

    async def test_nobody_sees_another_tenants_jobs(self, caller: Caller, target: OllamaTarget) -> None:
        acme, umbrella = caller.of(token_of("acme")), caller.of(token_of("umbrella"))
        key = {"Idempotency-Key": "same"}
        body = chat(artifacts=[{"name": "x.txt"}])
        mine = (await acme.post("/jobs", body, headers=key)).good(202)["job_id"]
        theirs = (await umbrella.post("/jobs", body, headers=key)).good(202)["job_id"]
        assert mine != theirs
        await acme.ended(mine)
        await umbrella.ended(theirs)
        assert [job["id"] for job in await acme.jobs()] == [mine]
        assert [job["id"] for job in await umbrella.jobs("model=a")] == [theirs]
        assert (await acme.get(f"/jobs/{mine}/artifacts/x.txt")).status == 200
        for method, path in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/retry"),
            ("GET", "/events"),
            ("GET", "/events?tokens=1"),
            ("GET", "/artifacts/x.txt"),
        ):
            (await umbrella.call(method, f"/jobs/{mine}{path}")).problem(404, "not_found")

    async def test_every_route_needs_its_scope(self, caller: Caller) -> None:
        reader, writer = caller.of(token_of("reader")), caller.of(token_of("writer"))
        job_id = (await writer.post("/jobs", chat())).good(202)["job_id"]
        await reader.ended(job_id)
        for method, path in (("POST", "/jobs"), ("DELETE", f"/jobs/{job_id}"), ("POST", f"/jobs/{job_id}/retry")):
            (await reader.call(method, path, chat())).problem(403, "auth.forbidden")
        for path in ("/jobs", f"/jobs/{job_id}", f"/jobs/{job_id}/events", f"/jobs/{job_id}/artifacts/x", "/targets"):
            (await writer.get(path)).problem(403, "auth.forbidden")
            (await caller.get(path)).problem(401, "auth.unauthenticated")
        (await caller.post("/jobs", chat())).problem(401, "auth.unauthenticated")


# what is refused ------------------------------------------------------------------------------------------------------

LONG = "x" * 201
WRONG: dict[str, list[Any]] = {
    "model": [None, 7, [], "", " ", LONG, "a\nb"],
    "messages": [
        *("hello", 7, {}, [], [7], [None], ["hello"], [{}], [{"content": "x"}]),
        *([{"role": "robot", "content": "x"}], [{"role": "User ", "content": "x"}], [{"role": None}]),
        *([{"role": "user", "content": 7}], [{"role": "user", "content": ["x"]}]),
        *([{"role": "user", "images": "x"}], [{"role": "user", "images": [7]}]),
        *([{"role": "assistant", "tool_calls": {}}], [{"role": "assistant", "tool_calls": ["x"]}]),
        [{"role": "user", "content": "x"}] * 10_000,
    ],
    "options": ["x", [], 7],
    "keep_alive": [[], {}, True],
    "tools": ["x", {}, [7]],
    "think": [7, [], {}],
    "system": [7, []],
    "suffix": [7, []],
    "template": [7, []],
    "raw": ["yes", 1],
    "images": ["x", [7]],
    "stream": ["yes", 0],
    "state_webhook_url": [
        *(7, [], "", "nonsense", "ftp://example.com/", "http://", "http:///x", "file:///etc/passwd"),
        *("http://user:secret@example.com/", "http://169.254.169.254/latest", "http://[::]/", "http://0.0.0.0/"),
    ],
    "webhook_events": ["done", 7, [7], ["finished"], ["succeeded"]],
    "priority": [-1, 10, 1.5, "5", None, 10**30, True],
    "max_attempts": [0, -1, 1001, "3", 1.5],
    "run_at": [7, "tomorrow", "2026-05-23", "2026-05-23T12:00:00", "9999-12-31T23:59:59Z"],
    "delay_seconds": [-1, -0.001, "1", 1e12, None],
    "deadline_seconds": [0, -1, "1", 1e12],
    "metadata": ["x", 7, [], {"x": "y" * 20_000}],
    "artifacts": [
        *("x", 7, {}, [7], ["x"], [{}], [{"from": "answer"}], [{"name": "x", "from": "nothing"}]),
        *([{"name": 7}], [{"name": ""}], [{"name": LONG}], [{"name": "x", "more": 1}]),
        *([{"name": "../x"}], [{"name": "a/b"}], [{"name": "a\\b"}], [{"name": ".."}], [{"name": "."}]),
        *([{"name": "a\nb"}], [{"name": "a\0b"}], [{"name": "x"}, {"name": "x"}]),
        [{"name": f"{number}"} for number in range(33)],
    ],
}


@on_sqlite
async def test_an_invalid_field_is_named_and_nothing_is_enqueued(caller: Caller, target: OllamaTarget) -> None:
    wrong = []
    for field, values in WRONG.items():
        for value in values:
            body = chat() | {field: value}
            if field == "webhook_events":
                body["state_webhook_url"] = "http://127.0.0.1:9/"
            refused = await caller.post("/jobs", body)
            problem = msgspec.json.decode(refused.body)
            named = str(problem.get("field")).startswith(field) and problem.get("detail")
            if refused.status not in (400, 422) or not named:
                wrong.append((field, str(value)[:80], refused.status, problem))
    assert wrong == []
    assert await caller.jobs() == []
    assert ran(target) == []


@on_sqlite
async def test_fields_that_exclude_each_other_are_named(caller: Caller) -> None:
    message = {"role": "user", "content": "x"}
    for body, field in (
        ({"model": "a"}, "messages"),
        ({"model": "a", "messages": None, "prompt": None}, "messages"),
        ({"model": "a", "messages": [message], "prompt": "x"}, "messages"),
        ({"model": "a", "prompt": ""}, "prompt"),
        ({"model": "a", "prompt": 7}, "prompt"),
        ({"messages": [message]}, "model"),
        (chat(run_at="2999-01-01T00:00:00Z", delay_seconds=1), "delay_seconds"),
        (chat(webhook_events=["done"]), "webhook_events"),
    ):
        problem = (await caller.post("/jobs", body)).problem(400, "request.invalid_field", field)
        assert field in problem["detail"]
    assert await caller.jobs() == []


@on_sqlite
async def test_a_body_that_is_not_json_is_refused(caller: Caller) -> None:
    good = msgspec.json.encode(chat(metadata={"x": "y"}))
    for body in (
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        good[:-1],
        good + b"{}",
        good.replace(b"three", b"\xff"),
        good.replace(b'"y"', b'"\xc3\x28"'),
        good.replace(b'"x"', b'"\xff"'),
        good.replace(b'"y"', b"NaN"),
        b"\xef\xbb\xbf" + good,
        good.decode().encode("utf-16"),
    ):
        refused = await caller.call("POST", "/jobs", data=body)
        assert refused.status == 400, (body[:80], refused.body)
        assert refused.json["detail"], body[:80]
    assert await caller.jobs() == []
    assert (await caller.call("POST", "/jobs", data=good)).status == 202


@on_sqlite
async def test_a_body_that_is_nested_too_deeply_is_refused(caller: Caller) -> None:
    good = msgspec.json.encode(chat(metadata={"x": "y"}))
    for body in (b"[" * 100_000, good.replace(b'{"x":"y"}', b'{"x":' * 100_000)):
        for path in ("/jobs", "/api/chat"):
            assert (await caller.call("POST", path, data=body)).status == 400, path


@on_sqlite
async def test_a_malformed_name_or_number_in_a_path_or_query_is_refused(caller: Caller) -> None:
    job_id = (await caller.ended(await caller.ask()))["id"]
    for bad in ("x", job_id.lower(), job_id[:-1], f"{job_id}0", "8" + job_id[1:], "%00", "' OR 1=1"):
        for method, rest in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/retry"),
            ("GET", "/events"),
            ("GET", "/artifacts/x"),
        ):
            refused = await caller.call(method, f"/jobs/{bad}{rest}")
            refused.problem(400, "request.invalid_field", "job_id")
    unknown = "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"
    for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/retry"), ("GET", "/events"), ("GET", "/artifacts/x")):
        (await caller.call(method, f"/jobs/{unknown}{rest}")).problem(404, "not_found")
    for query, field in (
        ("state=finished", "state"),
        ("state=succeeded", "state"),
        ("state=", "state"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=x", "limit"),
        ("cursor=x", "cursor"),
        ("sort=up", "sort"),
    ):
        refused = await caller.get(f"/jobs?{query}")
        assert refused.status == 400, query
        assert field in refused.json["detail"], query
    for query in ("after=-1", "after=x", "tokens=perhaps", "more=1"):
        refused = await caller.get(f"/jobs/{job_id}/events?{query}")
        assert refused.status == 400, query
        assert query.partition("=")[0] in refused.json["detail"]
    bad_id = await caller.get(f"/jobs/{job_id}/events", headers={"Accept": "text/event-stream", "Last-Event-ID": "x"})
    assert "Last-Event-ID" in bad_id.problem(400, "request.invalid")["detail"]


class TestWithClosedDoors:
    pytestmark = on_sqlite

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"webhooks__deny_networks": ["127.0.0.0/8", "10.0.0.0/8"], "inference__max_body_bytes": 4096}

    async def test_a_webhook_url_that_the_policy_forbids_is_refused(self, caller: Caller) -> None:
        for url in ("http://127.0.0.1:9000/hook", "http://10.1.2.3/", "http://2130706433/", "http://0x7f.1/"):
            refused = await caller.post("/jobs", chat(state_webhook_url=url))
            refused.problem(422, "egress.refused", "state_webhook_url")
        assert await caller.jobs() == []

    async def test_a_body_that_is_too_large_is_refused(self, caller: Caller) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b'{"model":"a","prompt":"'
            for _ in range(100):
                yield b"x" * 100

        for data in (msgspec.json.encode(chat("x" * 4096)), pieces()):
            refused = await caller.call("POST", "/jobs", data=data)
            assert "4096" in refused.problem(413, "request.too_large")["detail"]
        assert await caller.jobs() == []
        exact = msgspec.json.encode(chat()).ljust(4096)
        assert (await caller.call("POST", "/jobs", data=exact)).status == 202


@on_sqlite
async def test_a_body_of_over_100_megabytes_is_refused_as_soon_as_its_size_is_known(caller: Caller) -> None:
    size, sent = 300_000_000, 0
    async with a_line(caller.url) as line:
        line.writer.write(f"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode())

        async def send() -> None:
            nonlocal sent
            while sent < size:
                line.writer.write(b" " * 1_000_000)
                await line.writer.drain()
                sent += 1_000_000

        sending = asyncio.create_task(send())
        status, _ = await line.head()
        assert (status, sent < 50_000_000) == (413, True)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(110):
            yield b" " * 1_000_000

    (await caller.call("POST", "/jobs", data=pieces())).problem(413, "request.too_large")
    assert await caller.jobs() == []


@on_sqlite
async def test_a_large_body_within_the_limit_is_served(caller: Caller, target: OllamaTarget) -> None:
    picture = "A" * 20_000_000
    body = {"model": "a", "messages": [{"role": "user", "content": "see", "images": [picture]}]}
    accepted = await caller.call("POST", "/jobs", data=io.BytesIO(msgspec.json.encode(body)))
    job = await caller.ended(accepted.good(202)["job_id"])
    assert job["result"]["message"]["content"] == "a says: see [1 images]"
    assert len(ran(target)[0].json["messages"][0]["images"][0]) == len(picture)
