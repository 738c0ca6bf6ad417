"""The conformance target behaves as it is configured, seen by a client that speaks plain HTTP."""

import asyncio
import base64
import hashlib
import json
import math
import os
import signal
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from tests.inference.conformance import (
    BROKEN,
    BUSY,
    LOAD_STALLED,
    OUT_OF_MEMORY,
    RUNNER_TERMINATED,
    SERVER_OUT_OF_MEMORY,
    SERVER_STALLED,
    SERVER_TERMINATED,
    Answer,
    Model,
    OllamaTarget,
)

SOON = 5.0  # longer than any test here takes
SILENCE = 0.05  # how long to wait when asserting that nothing happens


@pytest.fixture
async def target() -> AsyncIterator[OllamaTarget]:
    models = {
        "a": Model(),
        "b": Model(),
        "c": Model(),
        "d": Model(),
        "plain": Model(capabilities=("completion",)),
        "thinker": Model(capabilities=("completion", "thinking", "tools")),
        "embedder": Model(capabilities=("embedding",)),
        "templated": Model(native_template=True),
    }
    async with OllamaTarget(models) as target:
        yield target


class Client:
    """A raw client of one target."""

    def __init__(self, target: OllamaTarget, session: aiohttp.ClientSession) -> None:
        self.target = target
        self.session = session

    def post(self, path: str, **body: Any) -> Any:
        return self.session.post(self.target.url + path, json=body)

    def chat(self, model: str = "a", text: str = "one two three", **fields: Any) -> Any:
        return self.post("/api/chat", model=model, messages=[{"role": "user", "content": text}], **fields)

    async def lines(self, path: str, **body: Any) -> list[Any]:
        async with self.post(path, **body) as response:
            assert response.status == 200, await response.text()
            return [json.loads(line) for line in (await response.read()).splitlines()]

    async def said(self, model: str = "a", text: str = "one two three", **fields: Any) -> list[Any]:
        return await self.lines("/api/chat", model=model, messages=[{"role": "user", "content": text}], **fields)

    async def load(self, model: str = "a", **fields: Any) -> Any:
        (line,) = await self.lines("/api/chat", model=model, **fields)
        return line

    async def answer(self, path: str, **body: Any) -> tuple[int, Any]:
        async with self.post(path, **body) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> Any:
        async with self.session.get(self.target.url + path) as response:
            return await response.json()

    async def resident(self) -> list[str]:
        return [entry["name"] for entry in (await self.get("/api/ps"))["models"]]


@pytest.fixture
async def client(target: OllamaTarget) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SOON)) as session:
        yield Client(target, session)


async def hang_up(request: "asyncio.Task[Any]") -> None:
    request.cancel()
    with suppress(asyncio.CancelledError):
        await request


def text_of(lines: list[Any]) -> str:
    return "".join(line["message"]["content"] for line in lines)


def events(body: str) -> list[tuple[str, Any]]:
    found = []
    for block in body.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((fields.get("event", ""), fields["data"]))
    return found


# ------------------------------------------------------------------------------------------------ generating


async def test_a_model_answers_in_lines_and_the_last_one_has_the_numbers(client: Client) -> None:
    async with client.chat() as response:
        assert response.headers["Content-Type"] == "application/x-ndjson"
        assert response.headers["Transfer-Encoding"] == "chunked"
        lines = [json.loads(line) for line in (await response.read()).splitlines()]
    assert text_of(lines) == "a says: one two three"
    assert [line["done"] for line in lines] == [False] * 4 + [True]
    assert lines[-1]["done_reason"] == "stop"
    assert lines[-1]["prompt_eval_count"] == 3
    assert lines[-1]["eval_count"] == 4
    assert 0 < lines[-1]["load_duration"] < lines[-1]["total_duration"] < SOON * 1e9


async def test_an_answer_depends_on_the_prompt_alone(client: Client) -> None:
    assert text_of(await client.said(options={"seed": 1})) == text_of(await client.said(options={"seed": 2}))
    assert text_of(await client.said(text="four")) == "a says: four"


async def test_without_streaming_the_answer_is_one_object(client: Client) -> None:
    async with client.chat(stream=False) as response:
        assert response.headers["Content-Type"] == "application/json; charset=utf-8"
        whole = await response.json()
    assert whole["message"] == {"role": "assistant", "content": "a says: one two three"}
    assert whole["done"] is True
    (generated,) = await client.lines("/api/generate", model="a", prompt="one", stream=False)
    assert generated["response"] == "a says: one"
    assert generated["context"]


async def test_num_predict_ends_an_answer_for_its_length(client: Client) -> None:
    lines = await client.said(options={"num_predict": 2})
    assert text_of(lines) == "a says: one"
    assert lines[-1]["done_reason"] == "length"


async def test_an_answer_can_be_given_an_exact_number_of_tokens(client: Client, target: OllamaTarget) -> None:
    target.habits.tokens = 64
    assert (await client.said())[-1]["eval_count"] == 64
    target.habits.tokens = 2
    assert text_of(await client.said()) == "a says: one"


async def test_headers_come_only_with_the_first_token(client: Client, target: OllamaTarget) -> None:
    target.habits.hold = asyncio.Event()
    request = asyncio.ensure_future(client.chat().__aenter__())
    await target.until(lambda: target.in_flight["a"] == 1)
    await asyncio.wait({request}, timeout=SILENCE)
    assert not request.done()
    target.habits.hold.set()
    (await request).release()


async def test_headers_can_come_ahead_of_the_first_token(client: Client, target: OllamaTarget) -> None:
    target.habits.headers_with_first_token = False
    target.habits.hold = asyncio.Event()
    async with client.chat() as response:
        assert response.status == 200
        assert target.seen[0].chunks == 0
        target.habits.hold.set()
        assert len((await response.read()).splitlines()) == 5


async def test_prefill_and_tokens_take_the_configured_time(client: Client, target: OllamaTarget) -> None:
    target.habits.prefill_seconds = 0.03
    target.habits.token_seconds = 0.02
    last = (await client.said())[-1]
    assert last["prompt_eval_duration"] >= 0.03 * 1e9
    assert last["eval_duration"] >= 3 * 0.02 * 1e9


async def test_tokens_are_flushed_one_by_one(client: Client, target: OllamaTarget) -> None:
    hold = asyncio.Event()
    target.script("a", Answer(chunks=["x", "y", "z"], hold=hold, hold_after=2))
    async with client.chat() as response:
        got = [json.loads(await response.content.readline())["message"]["content"] for _ in range(2)]
        assert got == ["x", "y"]
        hold.set()
        assert len((await response.read()).splitlines()) == 2


async def test_an_error_in_mid_stream_is_a_last_line(client: Client, target: OllamaTarget) -> None:
    target.habits.error_after = 2
    lines = await client.said()
    assert len(lines) == 3
    assert lines[-1] == {"error": BROKEN}


async def test_an_error_before_the_first_token_has_a_status(client: Client, target: OllamaTarget) -> None:
    target.habits.error_after = 0
    async with client.chat() as response:
        assert response.status == 500
        assert response.headers["Content-Type"].startswith("application/json")
        assert await response.json() == {"error": BROKEN}


async def test_an_error_without_streaming_has_a_status(client: Client, target: OllamaTarget) -> None:
    target.habits.error_after = 2
    async with client.chat(stream=False) as response:
        assert response.status == 500


async def test_an_error_in_mid_stream_is_lost_on_the_openai_api(client: Client, target: OllamaTarget) -> None:
    target.habits.error_after = 2
    messages = [{"role": "user", "content": "one two three"}]
    async with client.post("/v1/chat/completions", model="a", messages=messages, stream=True) as response:
        body = await response.text()
    assert "unexpected EOF" not in body
    assert "[DONE]" not in body
    chunks = [json.loads(data) for _, data in events(body)]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 3


async def test_a_stream_can_end_cleanly_without_done(client: Client, target: OllamaTarget) -> None:
    target.habits.end_after = 2
    lines = await client.said()
    assert [line["done"] for line in lines] == [False, False]
    (whole,) = await client.said(stream=False)
    assert whole["done"] is False
    assert "eval_count" not in whole
    assert whole["message"]["content"] == "a says: one"


async def test_a_stream_can_be_reset_in_the_middle(client: Client, target: OllamaTarget) -> None:
    target.habits.reset_after = 2
    with pytest.raises(aiohttp.ClientError):
        await client.said()
    assert target.seen[0].chunks == 2
    assert not target.seen[0].aborted


async def test_more_than_thirty_repeats_end_the_stream_silently(client: Client, target: OllamaTarget) -> None:
    target.script("a", Answer(chunks=["x"] * 40), always=True)
    lines = await client.said()
    assert text_of(lines) == "x" * 31
    assert not lines[-1]["done"]
    target.habits.stops_on_repeats = False
    lines = await client.said()
    assert text_of(lines) == "x" * 40
    assert lines[-1]["done"]


async def test_repeats_are_not_noticed_with_a_native_chat_template(client: Client, target: OllamaTarget) -> None:
    target.script("templated", Answer(chunks=["x"] * 40), always=True)
    assert text_of(await client.said("templated")) == "x" * 40
    lines = await client.lines("/api/generate", model="templated", prompt="say x")
    assert len(lines) == 31


async def test_the_last_line_can_exceed_a_megabyte(client: Client, target: OllamaTarget) -> None:
    target.habits.context_tokens = 200_000
    async with client.post("/api/generate", model="a", prompt="one") as response:
        last = (await response.read()).splitlines()[-1]
    assert len(last) > 1_000_000
    assert len(json.loads(last)["context"]) == 200_000


async def test_fragments_split_lines_and_characters(client: Client, target: OllamaTarget) -> None:
    target.habits.fragment_bytes = 3
    async with client.chat(text="ünïcödé \N{SNOWMAN} \N{PILE OF POO}") as response:
        pieces = [piece async for piece in response.content.iter_any()]
    assert not all(piece.endswith(b"\n") for piece in pieces)
    broken = 0
    for piece in pieces:
        try:
            piece.decode()
        except UnicodeDecodeError:
            broken += 1
    assert broken
    lines = [json.loads(line) for line in b"".join(pieces).splitlines()]
    assert text_of(lines) == "a says: ünïcödé \N{SNOWMAN} \N{PILE OF POO}"


async def test_tool_calls_come_as_soon_as_they_are_parsed(client: Client, target: OllamaTarget) -> None:
    calls: list[dict[str, Any]] = [{"name": "look", "arguments": {"at": "sky"}}, {"name": "go"}]
    target.script("a", Answer(chunks=["Well."], tool_calls=calls))
    lines = await client.said(tools=[])
    assert [len(line["message"].get("tool_calls", [])) for line in lines] == [0, 1, 1, 0]
    call = lines[1]["message"]["tool_calls"][0]
    assert call["function"] == {"index": 0, "name": "look", "arguments": {"at": "sky"}}
    assert call["id"].startswith("call_")
    assert lines[-1]["done_reason"] == "stop"


async def test_tool_calls_come_with_the_last_chunk_of_a_native_template(client: Client, target: OllamaTarget) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"n": {"type": "integer"}}}}}
    target.habits.tool_call_ids = False
    lines = await client.said("templated", "please look", tools=[tool])
    assert [line["done"] for line in lines] == [True]
    called = {"function": {"index": 0, "name": "look", "arguments": {"n": 1}}}
    assert lines[0]["message"]["tool_calls"] == [called]
    (whole,) = await client.said("a", "please look", tools=[tool], stream=False)
    assert whole["message"]["tool_calls"] == [called]


async def test_a_thinking_model_thinks_first_unless_told_not_to(client: Client) -> None:
    lines = await client.said("thinker", "hm")
    assert "".join(line["message"].get("thinking", "") for line in lines) == "Let me think."
    assert all(not line["message"]["content"] for line in lines if "thinking" in line["message"])
    assert text_of(lines) == "thinker says: hm"
    assert not any("thinking" in line["message"] for line in await client.said("thinker", "hm", think=False))


async def test_images_are_counted(client: Client) -> None:
    picture = base64.b64encode(b"picture").decode()
    message = {"role": "user", "content": "look", "images": [picture, picture]}
    assert text_of(await client.lines("/api/chat", model="a", messages=[message])) == "a says: look [2 images]"
    lines = await client.lines("/api/generate", model="a", prompt="look", images=[picture])
    assert "".join(line["response"] for line in lines) == "a says: look [1 images]"


async def test_a_format_is_answered_with_json_that_fits_it(client: Client) -> None:
    assert isinstance(json.loads(text_of(await client.said(format="json"))), dict)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "tags": {"type": "array"}}}
    assert json.loads(text_of(await client.said(format=schema))) == {"n": 1, "tags": []}


# ------------------------------------------------------------------------------------- loading and unloading


async def test_an_empty_chat_loads_the_model_and_answers_when_it_is_ready(client: Client, target: OllamaTarget) -> None:
    loaded = await client.load()
    assert loaded["done_reason"] == "load"
    assert not any(name.endswith(("_duration", "_count")) for name in loaded)
    assert await client.resident() == ["a:latest"]
    assert (await client.lines("/api/generate", model="b"))[0]["done_reason"] == "load"
    assert target.loads == ["a", "b"]


async def test_all_spellings_of_a_name_are_one_model(client: Client, target: OllamaTarget) -> None:
    for name in ("a", "A", "a:latest", "A:Latest", "library/a"):
        assert (await client.load(name))["model"] == name
    assert target.loads == ["a"]


async def test_two_names_of_the_same_weights_share_one_runner(client: Client, target: OllamaTarget) -> None:
    async with client.post("/api/copy", source="a", destination="twin:7b") as response:
        assert response.status == 200
    await client.load("a")
    await client.said("twin:7b")
    assert target.loads == ["a"]
    assert await client.resident() == ["a:latest"]
    shown = [(await client.answer("/api/show", model=name))[1]["modelfile"] for name in ("a", "twin:7b")]
    assert shown[0] == shown[1]


async def test_a_load_takes_the_configured_time_and_reports_it(client: Client, target: OllamaTarget) -> None:
    target.habits.load_seconds = 0.05
    assert (await client.said())[-1]["load_duration"] >= 0.05 * 1e9
    assert (await client.said())[-1]["load_duration"] < 0.05 * 1e9


async def test_a_model_is_listed_only_when_it_is_ready(client: Client, target: OllamaTarget) -> None:
    target.habits.load_seconds = SOON
    loading = asyncio.create_task(client.load())
    await target.until(lambda: target.loading is not None)
    assert await client.resident() == []
    await hang_up(loading)


async def test_an_old_version_lists_a_model_before_it_is_ready(client: Client, target: OllamaTarget) -> None:
    target.habits.ps_lists_loading = True
    target.habits.load_seconds = SOON
    loading = asyncio.create_task(client.load())
    await target.until(lambda: target.loading is not None)
    assert await client.resident() == ["a:latest"]
    assert target.loads == []
    await hang_up(loading)


async def test_a_load_is_aborted_when_its_connection_closes(client: Client, target: OllamaTarget) -> None:
    target.habits.load_seconds = SOON
    loading = asyncio.create_task(client.load())
    await target.until(lambda: target.loading is not None)
    await hang_up(loading)
    await target.until(lambda: target.aborted_loads == 1)
    assert target.seen[0].aborted
    assert target.loads == []
    assert target.loading is None


async def test_a_load_can_be_made_to_survive_its_connection(client: Client, target: OllamaTarget) -> None:
    target.habits.load_aborts_on_close = False
    target.habits.load_seconds = 0.05
    loading = asyncio.create_task(client.load())
    await target.until(lambda: target.loading is not None)
    await hang_up(loading)
    await target.until(lambda: target.loads == ["a"])
    assert target.aborted_loads == 0


async def test_models_are_loaded_one_at_a_time_in_order(client: Client, target: OllamaTarget) -> None:
    target.habits.load_seconds = 0.02
    first = asyncio.create_task(client.load("c"))
    await target.until(lambda: target.loading is not None)
    second = asyncio.create_task(client.load("a"))
    await target.until(lambda: len(target.seen) == 2)
    third = asyncio.create_task(client.load("b"))
    await asyncio.gather(first, second, third)
    assert target.loads == ["c", "a", "b"]


async def test_a_waiting_load_whose_client_is_gone_is_skipped(client: Client, target: OllamaTarget) -> None:
    target.habits.load_seconds = 0.05
    first = asyncio.create_task(client.load("a"))
    await target.until(lambda: target.loading is not None)
    second = asyncio.create_task(client.load("b"))
    await target.until(lambda: len(target.seen) == 2)
    await hang_up(second)
    await client.load("c")
    await first
    assert target.loads == ["a", "c"]


async def test_a_full_queue_of_loads_answers_busy(client: Client, target: OllamaTarget) -> None:
    target.habits.load_seconds = SOON
    target.max_queue = 1
    waiting = [asyncio.create_task(client.load("a"))]
    await target.until(lambda: target.loading is not None)
    waiting.append(asyncio.create_task(client.load("b")))
    await target.until(lambda: len(target.seen) == 2)
    status, body = await client.answer("/api/chat", model="c")
    assert (status, body) == (503, {"error": BUSY})
    for request in waiting:
        await hang_up(request)


@pytest.mark.parametrize(
    "text", [OUT_OF_MEMORY, RUNNER_TERMINATED, LOAD_STALLED, SERVER_OUT_OF_MEMORY, SERVER_TERMINATED, SERVER_STALLED]
)
async def test_a_load_fails_in_ollamas_words(client: Client, target: OllamaTarget, text: str) -> None:
    target.habits.load_failure = text
    assert await client.answer("/api/chat", model="a") == (500, {"error": text})
    target.habits.load_failures = 0
    assert (await client.load())["done_reason"] == "load"
    assert target.failed_loads == 1


async def test_a_load_out_of_memory_evicts_all_others_and_tries_once_more(client: Client, target: OllamaTarget) -> None:
    await client.load("a")
    await client.load("b")
    target.habits.load_failure = SERVER_OUT_OF_MEMORY
    target.habits.load_failures = 1
    await client.load("c")
    assert await client.resident() == ["c:latest"]
    assert target.failed_loads == 1
    assert target.swaps == 2


async def test_an_unload_is_answered_before_it_is_done(client: Client, target: OllamaTarget) -> None:
    target.habits.unload_seconds = 0.1
    target.habits.ps_blocks_while_unloading = False
    await client.load()
    assert (await client.load(keep_alive=0))["done_reason"] == "unload"
    assert await client.resident() == ["a:latest"]
    await target.until(lambda: target.unloads == ["a"])
    assert await client.resident() == []


async def test_an_unload_can_be_made_to_answer_when_it_is_done(client: Client, target: OllamaTarget) -> None:
    target.habits.unload_seconds = 0.05
    target.habits.unload_answers_first = False
    await client.load()
    await client.load(keep_alive=0)
    assert target.unloads == ["a"]


async def test_ps_blocks_while_a_model_is_unloaded(client: Client, target: OllamaTarget) -> None:
    target.habits.unload_seconds = 0.05
    await client.load()
    await client.load(keep_alive=0)
    assert await client.resident() == []
    assert target.unloads == ["a"]


async def test_unloading_a_model_that_is_not_loaded_answers_unload(client: Client, target: OllamaTarget) -> None:
    assert (await client.load(keep_alive=0))["done_reason"] == "unload"
    assert (await client.lines("/api/generate", model="a", keep_alive="0s"))[0]["done_reason"] == "unload"
    assert target.unloads == []


async def test_an_unload_waits_for_running_requests(client: Client, target: OllamaTarget) -> None:
    target.habits.hold = asyncio.Event()
    request = asyncio.create_task(client.said())
    await target.until(lambda: target.in_flight["a"] == 1)
    assert (await client.load(keep_alive=0))["done_reason"] == "unload"
    assert await client.resident() == ["a:latest"]
    target.habits.hold.set()
    assert (await request)[-1]["done"]
    await target.until(lambda: target.unloads == ["a"])


async def test_ps_can_be_slow_while_the_version_is_not(client: Client, target: OllamaTarget) -> None:
    target.habits.ps_seconds = SOON
    slow = asyncio.create_task(client.get("/api/ps"))
    await target.until(lambda: len(target.seen) == 1)
    assert await client.get("/api/version") == {"version": "0.33.0"}
    assert not slow.done()
    await hang_up(slow)


async def test_ps_lists_the_latest_expiry_first(client: Client) -> None:
    await client.load("a", keep_alive="10m")
    await client.load("b", keep_alive=-1)
    await client.load("c", keep_alive=1.5)
    models = (await client.get("/api/ps"))["models"]
    assert [model["name"] for model in models] == ["b:latest", "a:latest", "c:latest"]
    assert models[0]["expires_at"].startswith("23")  # for ever is 292 years
    assert models[0]["context_length"] == 4096


async def test_a_model_is_unloaded_when_its_keep_alive_is_over(client: Client, target: OllamaTarget) -> None:
    await client.load(keep_alive="20ms")
    await target.until(lambda: target.unloads == ["a"])
    assert target.swaps == 0


async def test_the_countdown_starts_when_the_last_request_ends(client: Client, target: OllamaTarget) -> None:
    hold = asyncio.Event()
    target.script("a", Answer(hold=hold))
    request = asyncio.create_task(client.said(keep_alive=0.01))
    await target.until(lambda: target.in_flight["a"] == 1)
    with pytest.raises(TimeoutError):
        await target.until(lambda: target.unloads == ["a"], SILENCE)
    hold.set()
    await request
    await target.until(lambda: target.unloads == ["a"])


async def test_keep_alive_stays_until_a_request_sets_another(client: Client, target: OllamaTarget) -> None:
    await client.load(keep_alive=-1)
    await client.said()
    assert target.resident["a"].keep_alive > 1e9
    await client.said(keep_alive=60)
    await client.said()
    assert target.resident["a"].keep_alive == 60


async def test_keep_alive_zero_with_a_prompt_unloads_afterwards(client: Client, target: OllamaTarget) -> None:
    assert (await client.said(keep_alive=0))[-1]["done"]
    await target.until(lambda: target.unloads == ["a"])


async def test_other_runner_options_reload_a_model(client: Client, target: OllamaTarget) -> None:
    await client.said()
    await client.said(options={"num_ctx": 4096, "temperature": 0.1})
    assert target.loads == ["a"]
    await client.said(options={"num_ctx": 8192})
    assert target.loads == ["a", "a"]
    assert target.resident["a"].context_length == 8192
    await client.said()
    await client.said(shift=False)
    assert target.loads == ["a"] * 4
    assert target.unloads == ["a"] * 3
    assert target.swaps == 0


async def test_num_ctx_is_clamped_to_the_trained_context_length(client: Client, target: OllamaTarget) -> None:
    await client.said(options={"num_ctx": 10_000_000})
    await client.said(options={"num_ctx": 131_072})
    assert target.loads == ["a"]


async def test_the_model_with_the_shortest_keep_alive_is_evicted(client: Client, target: OllamaTarget) -> None:
    await client.load("a", keep_alive=60)
    await client.load("b", keep_alive=30)
    await client.load("c", keep_alive=90)
    await client.load("b")  # used last, and still evicted
    await client.load("d")
    assert target.unloads == ["b"]
    assert target.swaps == 1
    assert set(target.resident) == {"a", "c", "d"}


async def test_a_load_waits_for_its_victim_to_drain(client: Client, target: OllamaTarget) -> None:
    target.max_loaded = 1
    hold = asyncio.Event()
    target.script("a", Answer(hold=hold))
    running = asyncio.create_task(client.said("a"))
    await target.until(lambda: target.in_flight["a"] == 1)
    newcomer = asyncio.create_task(client.load("b"))
    await asyncio.wait({newcomer}, timeout=SILENCE)
    assert target.loads == ["a"]
    hold.set()
    assert (await running)[-1]["done"]
    await newcomer
    assert target.loads == ["a", "b"]
    assert target.swaps == 1


async def test_new_requests_for_the_victim_starve_the_newcomer(client: Client, target: OllamaTarget) -> None:
    target.max_loaded = 1
    hold = asyncio.Event()
    target.script("a", Answer(hold=hold))
    running = asyncio.create_task(client.said("a"))
    await target.until(lambda: target.in_flight["a"] == 1)
    newcomer = asyncio.create_task(client.load("b"))
    await target.until(lambda: target.resident["a"].evicted)
    late = asyncio.create_task(client.said("a", keep_alive=-1))
    await target.until(lambda: target.resident["a"].references == 2)
    hold.set()
    await asyncio.gather(running, late)
    await asyncio.wait({newcomer}, timeout=SILENCE)
    assert not newcomer.done()
    await client.load("a", keep_alive=0)
    await newcomer


async def test_requests_wait_for_a_place_in_the_runner(client: Client, target: OllamaTarget) -> None:
    target.habits.hold = asyncio.Event()
    requests = [asyncio.create_task(client.said()) for _ in range(4)]
    await target.until(lambda: "a" in target.resident and target.resident["a"].references == 4)
    assert target.in_flight["a"] == 1
    target.habits.hold.set()
    await asyncio.gather(*requests)
    assert target.max_in_flight == {"a": 1}


async def test_a_runner_has_as_many_places_as_it_was_started_with(client: Client, target: OllamaTarget) -> None:
    target.parallel = 3
    target.habits.hold = asyncio.Event()
    requests = [asyncio.create_task(client.said()) for _ in range(4)]
    await target.until(lambda: target.in_flight["a"] == 3)
    target.habits.hold.set()
    await asyncio.gather(*requests)
    assert target.max_in_flight == {"a": 3}


async def test_an_embedding_model_has_one_place_whatever_other_models_have(
    client: Client, target: OllamaTarget
) -> None:
    target.parallel = 3
    target.habits.hold = asyncio.Event()
    requests = [asyncio.create_task(client.lines("/api/embed", model="embedder", input="x")) for _ in range(3)]
    await target.until(lambda: "embedder" in target.resident and target.resident["embedder"].references == 3)
    target.habits.hold.set()
    await asyncio.gather(*requests)
    assert target.max_in_flight == {"embedder": 1}


async def test_hanging_up_ends_a_generation_and_frees_its_place(client: Client, target: OllamaTarget) -> None:
    target.script("a", Answer(hold=asyncio.Event()))
    request = asyncio.create_task(client.said())
    await target.until(lambda: target.in_flight["a"] == 1)
    await hang_up(request)
    assert (await client.said())[-1]["done"]
    assert [seen.aborted for seen in target.seen] == [True, False]


async def test_a_place_can_stay_taken_for_a_while_after_a_cancel(client: Client, target: OllamaTarget) -> None:
    target.habits.cancel_seconds = 0.1
    target.script("a", Answer(hold=asyncio.Event()))
    request = asyncio.create_task(client.said())
    await target.until(lambda: target.in_flight["a"] == 1)
    await hang_up(request)
    await target.until(lambda: target.seen[0].aborted)
    assert target.in_flight["a"] == 1
    assert (await client.said())[-1]["total_duration"] > 0.05 * 1e9


# ---------------------------------------------------------------------------------- going away and coming back


async def test_a_target_that_went_away_refuses_and_comes_back_on_its_port(client: Client, target: OllamaTarget) -> None:
    target.script("a", Answer(hold=asyncio.Event(), hold_after=1))
    async with client.chat() as response:
        await response.content.readline()
        url = target.url
        await target.go_away()
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    with pytest.raises(aiohttp.ClientConnectorError):
        await client.get("/api/version")
    await target.come_back()
    assert target.url == url
    assert await client.resident() == ["a:latest"]
    await target.go_away(restart=True)
    await target.come_back()
    assert await client.resident() == []


async def test_a_sleeping_target_is_silent_and_goes_on_when_it_wakes(client: Client, target: OllamaTarget) -> None:
    hold = asyncio.Event()
    target.script("a", Answer(chunks=["x", "y"], hold=hold, hold_after=1))
    async with client.chat() as response:
        await response.content.readline()
        target.sleep()
        hold.set()
        rest = asyncio.ensure_future(response.read())
        await asyncio.wait({rest}, timeout=SILENCE)
        assert not rest.done()  # no data, no FIN and no RST
        target.wake()
        assert json.loads((await rest).splitlines()[-1])["done"]


async def test_a_target_can_fall_asleep_in_the_middle_of_a_line(client: Client, target: OllamaTarget) -> None:
    target.habits.fragment_bytes = 1
    async with client.chat() as response:
        got = await response.content.readexactly(10)
        target.sleep()
        with suppress(TimeoutError):
            async with asyncio.timeout(SILENCE):
                while piece := await response.content.readany():  # the rest of the line
                    got += piece
        assert b"\n" not in got
        assert not response.content.at_eof()
        target.wake()
        got += await response.read()
    assert json.loads(got.splitlines()[-1])["done"]


async def test_a_target_can_be_stopped_in_its_sleep(client: Client, target: OllamaTarget) -> None:
    target.script("a", Answer(hold=asyncio.Event(), hold_after=1))
    async with client.chat() as response:
        await response.content.readline()
        target.sleep()
        await target.stop()
        with pytest.raises(aiohttp.ClientError):
            await response.read()


async def test_new_connections_to_a_sleeping_target_are_never_answered(client: Client, target: OllamaTarget) -> None:
    target.sleep()
    _, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", target.port), SOON)  # the kernel accepts it
    request = asyncio.create_task(client.get("/api/version"))
    await asyncio.wait({request}, timeout=SILENCE)
    assert not request.done()
    assert target.seen == []
    target.wake()
    assert await request == {"version": "0.33.0"}
    writer.close()
    await writer.wait_closed()


async def test_a_sleeping_target_notices_a_hang_up_only_when_it_wakes(client: Client, target: OllamaTarget) -> None:
    target.script("a", Answer(hold=asyncio.Event(), hold_after=1))
    async with client.chat() as response:
        await response.content.readline()
        target.sleep()
        response.close()
    with pytest.raises(TimeoutError):
        await target.until(lambda: target.seen[0].aborted, SILENCE)
    assert target.in_flight["a"] == 1
    target.wake()
    await target.until(lambda: target.seen[0].aborted and target.in_flight["a"] == 0)


async def test_a_load_makes_no_progress_in_sleep(client: Client, target: OllamaTarget) -> None:
    target.habits.load_seconds = 0.02
    loading = asyncio.create_task(client.load())
    await target.until(lambda: target.loading is not None)
    target.sleep()
    with pytest.raises(TimeoutError):
        await target.until(lambda: target.loads == ["a"], SILENCE)
    target.wake()
    assert (await loading)["done_reason"] == "load"


async def test_a_crash_resets_running_requests_and_the_model_is_loaded_again(
    client: Client, target: OllamaTarget
) -> None:
    target.script("a", Answer(hold=asyncio.Event(), hold_after=1))
    async with client.chat() as response:
        await response.content.readline()
        await target.crash_runner()
        with pytest.raises(aiohttp.ClientError) as failure:
            await response.read()
    assert isinstance(failure.value.__cause__, ConnectionResetError) or "reset" in str(failure.value).lower()
    assert await client.resident() == ["a:latest"]
    assert (await client.said())[-1]["done"]
    assert target.loads == ["a", "a"]


async def test_a_crash_that_ollama_survives_is_an_error_line(client: Client, target: OllamaTarget) -> None:
    target.script("a", Answer(hold=asyncio.Event(), hold_after=1))
    async with client.chat() as response:
        await response.content.readline()
        await target.crash_runner("a", reset=False)
        assert json.loads(await response.read()) == {"error": BROKEN}


async def test_busy_answers_503_without_retry_after(client: Client, target: OllamaTarget) -> None:
    target.habits.busy = 2
    for _ in range(2):
        assert await client.get("/api/version")
        async with client.chat() as response:
            assert response.status == 503
            assert "Retry-After" not in response.headers
            assert await response.json() == {"error": BUSY}
    assert (await client.said())[-1]["done"]


async def test_connections_are_reset_before_the_headers(client: Client, target: OllamaTarget) -> None:
    target.habits.resets = 2
    for _ in range(2):
        with pytest.raises(aiohttp.ClientOSError) as failure:
            await client.said()
        assert isinstance(failure.value, ConnectionResetError) or "reset" in str(failure.value).lower()
    assert (await client.said())[-1]["done"]
    assert [seen.status for seen in target.seen] == [None, None, 200]


# ------------------------------------------------------------------------------------------------- refusing


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/api/chat", {"model": "nope", "messages": []}, 404, "model 'nope' not found"),
        ("/api/generate", {"model": "nope", "prompt": "x"}, 404, "model 'nope' not found"),
        ("/api/embed", {"model": "nope", "input": "x"}, 404, "model 'nope' not found"),
        ("/api/embeddings", {"model": "nope", "prompt": "x"}, 404, 'model "nope" not found, try pulling it first'),
        ("/api/show", {"model": "nope"}, 404, "model 'nope' not found"),
        ("/api/chat", {"messages": []}, 400, "model is required"),
        ("/api/show", {}, 400, "model is required"),
        ("/api/chat", {"model": "a b"}, 400, "invalid model name"),
        ("/api/chat", {"model": "plain", "tools": [{}]}, 400, "does not support tools"),
        ("/api/chat", {"model": "plain", "think": True}, 400, '"plain" does not support thinking'),
        ("/api/chat", {"model": "thinker", "think": "much"}, 400, "invalid think value"),
        ("/api/chat", {"model": "embedder"}, 400, '"embedder" does not support chat'),
        ("/api/generate", {"model": "embedder"}, 400, '"embedder" does not support generate'),
        ("/api/generate", {"model": "plain", "prompt": "x", "suffix": "y"}, 400, "does not support insert"),
        ("/api/generate", {"model": "a", "prompt": "x", "raw": True, "system": "y"}, 400, "raw mode does not support"),
        ("/api/chat", {"model": "a", "top_logprobs": 21}, 400, "top_logprobs must be between 0 and 20"),
        ("/api/chat", {"model": "a", "keep_alive": "soon"}, 400, 'time: invalid duration "soon"'),
        ("/api/chat", {"model": "a", "keep_alive": "5"}, 400, 'time: missing unit in duration "5"'),
        ("/api/chat", {"model": 1}, 400, "json: cannot unmarshal number"),
        ("/api/chat", {"model": "a", "messages": ["x"]}, 400, "json: cannot unmarshal string"),
        ("/api/chat", {"model": "a", "options": {"num_ctx": "x"}}, 500, 'option "num_ctx" must be of type integer'),
        ("/api/chat", {"model": "a", "options": {"stop": "x"}}, 500, 'option "stop" must be of type array'),
        ("/api/generate", {"model": "a", "prompt": "x", "format": "xml"}, 500, 'invalid format: "\\"xml\\""'),
        ("/api/embed", {"model": "a", "input": 1}, 400, "invalid input type"),
    ],
)
async def test_a_refusal_has_ollamas_status_and_words(
    client: Client, path: str, body: dict[str, Any], status: int, text: str
) -> None:
    got, answer = await client.answer(path, **body)
    assert got == status
    assert text in answer["error"]


async def test_a_body_is_json_whatever_its_type_says(client: Client, target: OllamaTarget) -> None:
    async def post(data: bytes) -> tuple[int, Any]:
        headers = {"Content-Type": "text/plain"}
        async with client.session.post(target.url + "/api/chat", data=data, headers=headers) as response:
            return response.status, await response.json()

    assert await post(b"") == (400, {"error": "missing request body"})
    assert await post(b"nope") == (400, {"error": "invalid character 'n' looking for beginning of value"})
    assert await post(b'{"model": "a"') == (400, {"error": "unexpected EOF"})
    assert (await post(b'{"model": "a", "unknown": 1, "options": {"unknown": 2}}'))[0] == 200


async def test_unknown_paths_methods_and_hosts_are_refused(client: Client, target: OllamaTarget) -> None:
    for method, path, status in (("GET", "/nope", 404), ("GET", "/api/chat", 405), ("POST", "/api/tags", 405)):
        async with client.session.request(method, target.url + path) as response:
            assert response.status == status
            assert response.headers["Content-Type"].startswith("text/plain")
    async with client.session.get(target.url, headers={"Host": "ollama.example.com"}) as response:
        assert response.status == 403
        assert await response.read() == b""
    async with client.session.get(target.url, headers={"Host": "laptop.local:11434"}) as response:
        assert await response.text() == "Ollama is running"


# ------------------------------------------------------------------------------------------------- scripting


async def test_scripted_answers_come_in_order_and_loads_use_none_up(client: Client, target: OllamaTarget) -> None:
    target.script("/api/chat", Answer(chunks=["by path"]))
    target.script("A:latest", Answer(chunks=["first"]), Answer(chunks=["always"]), always=True)
    await client.load()
    got = [text_of(await client.said()) for _ in range(4)]
    assert got == ["by path", "first", "always", "always"]
    target.unscript()
    assert text_of(await client.said()) == "a says: one two three"


async def test_a_scripted_status_or_body_is_given_outright(client: Client, target: OllamaTarget) -> None:
    target.script("/api/chat", Answer(status=429, error="slow down", headers={"Retry-After": "7"}))
    async with client.chat() as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "7")
        assert await response.json() == {"error": "slow down"}
    target.script("/api/tags", Answer(raw=b"<html>", content_type="text/html"))
    async with client.session.get(target.url + "/api/tags") as response:
        assert await response.read() == b"<html>"
    assert target.loads == []


async def test_the_received_requests_are_recorded(client: Client, target: OllamaTarget) -> None:
    await client.said(keep_alive=7)
    (seen,) = target.at("/api/chat")
    assert (seen.method, seen.status, seen.finished, seen.aborted) == ("POST", 200, True, False)
    assert seen.json["keep_alive"] == 7
    assert seen.headers["content-type"] == "application/json"
    await client.get("/api/tags")
    assert target.seen[1].connection == seen.connection


# ---------------------------------------------------------------------------------- embeddings and discovery


async def test_embeddings_are_normalised_and_depend_on_the_text(client: Client) -> None:
    (answer,) = await client.lines("/api/embed", model="embedder", input=["x", "y", "x"])
    first, second, third = answer["embeddings"]
    assert first == third != second
    assert math.isclose(sum(value * value for value in first), 1)
    assert answer["prompt_eval_count"] == 3
    (short,) = await client.lines("/api/embed", model="embedder", input="x", dimensions=4)
    assert len(short["embeddings"][0]) == 4
    (old,) = await client.lines("/api/embeddings", model="embedder", prompt="x")
    assert not math.isclose(sum(value * value for value in old["embedding"]), 1)


async def test_an_empty_embedding_loads_the_model(client: Client, target: OllamaTarget) -> None:
    assert await client.lines("/api/embed", model="embedder") == [{"model": "embedder", "embeddings": []}]
    assert await client.lines("/api/embeddings", model="a") == [{"embedding": []}]
    assert target.loads == ["embedder", "a"]


async def test_a_broken_embedding_is_a_400_at_embed_and_a_500_elsewhere(client: Client, target: OllamaTarget) -> None:
    target.script("embedder", Answer(error="runner gone"), always=True)
    assert await client.answer("/api/embed", model="embedder", input="x") == (400, {"error": "runner gone"})
    assert await client.answer("/api/embeddings", model="embedder", prompt="x") == (500, {"error": "runner gone"})


async def test_an_input_that_is_too_long_is_truncated_unless_that_is_forbidden(client: Client) -> None:
    text = "word " * 20
    options = {"num_ctx": 10}
    assert (await client.answer("/api/embed", model="a", input=text, options=options))[0] == 200
    refused = await client.answer("/api/embed", model="a", input=text, options=options, truncate=False)
    assert refused == (400, {"error": "the input length exceeds the context length"})


async def test_probes_work_with_get_and_head(client: Client, target: OllamaTarget) -> None:
    for path in ("/", "/api/version", "/api/tags"):
        async with client.session.head(target.url + path) as response:
            assert response.status == 200
            assert int(response.headers["Content-Length"]) > 0
    tags = await client.get("/api/tags")
    assert [model["name"] for model in tags["models"]] == [f"{name}:latest" for name in target.models]
    status, shown = await client.answer("/api/show", name="thinker")
    assert status == 200
    assert shown["capabilities"] == ["completion", "thinking", "tools"]


# --------------------------------------------------------------------------------------------- models as files


async def test_a_pull_streams_its_progress_and_installs_the_model(client: Client, target: OllamaTarget) -> None:
    lines = await client.lines("/api/pull", model="new:7b")
    assert lines[0] == {"status": "pulling manifest"}
    assert any(line.get("completed") for line in lines)
    assert lines[-1] == {"status": "success"}
    assert text_of(await client.said("new:7b", "x")) == "new:7b says: x"
    assert await client.lines("/api/pull", name="other", stream=False) == [{"status": "success"}]
    target.habits.pull_failure = "pull model manifest: file does not exist"
    lines = await client.lines("/api/pull", model="third")
    assert lines[-1] == {"error": "pull model manifest: file does not exist"}
    assert "third" not in target.models


async def test_a_model_is_created_from_a_blob_copied_and_deleted(client: Client, target: OllamaTarget) -> None:
    weights = b"GGUF and so on"
    digest = f"sha256:{hashlib.sha256(weights).hexdigest()}"
    url = f"{target.url}/api/blobs/{digest}"
    for method, data, status in (
        ("HEAD", None, 404),
        ("POST", b"other", 400),
        ("POST", weights, 201),
        ("POST", weights, 200),
        ("HEAD", None, 200),
    ):
        async with client.session.request(method, url, data=data) as response:
            assert response.status == status
    lines = await client.lines("/api/create", model="made", files={"model.gguf": digest})
    assert lines[-1] == {"status": "success"}
    assert (await client.answer("/api/create", model="bare"))[0] == 400
    assert await client.answer("/api/copy", source="nope", destination="x") == (
        404,
        {"error": 'model "nope" not found'},
    )
    async with client.post("/api/copy", source="made", destination="copied") as response:
        assert (response.status, await response.read()) == (200, b"")
    for status in (200, 404):
        async with client.session.delete(target.url + "/api/delete", json={"model": "made"}) as response:
            assert response.status == status
    assert "made" not in target.models
    assert "copied" in target.models


# --------------------------------------------------------------------------------------- the compatible APIs


async def test_openai_chat_streams_deltas_usage_and_done(client: Client) -> None:
    body = {"model": "thinker", "messages": [{"role": "user", "content": [{"type": "text", "text": "hm"}]}]}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    async with client.post("/v1/chat/completions", **body, **stream) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        *chunks, done = [data for _, data in events(await response.text())]
    assert done == "[DONE]"
    values = [json.loads(chunk) for chunk in chunks]
    deltas = [choice["delta"] for value in values for choice in value["choices"]]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "Let me think."
    assert "".join(delta.get("content", "") for delta in deltas) == "thinker says: hm"
    assert values[-2]["choices"][0]["finish_reason"] == "stop"
    assert values[-1]["usage"] == {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6}
    status, whole = await client.answer("/v1/chat/completions", **body, max_tokens=4)
    assert status == 200
    assert whole["choices"][0]["message"]["content"] == "thinker says:"
    assert whole["choices"][0]["finish_reason"] == "length"


async def test_openai_tool_calls_have_their_arguments_as_text(client: Client, target: OllamaTarget) -> None:
    target.script("a", Answer(chunks=[], tool_calls=[{"name": "look", "arguments": {"at": "sky"}}]), always=True)
    tools = [{"type": "function", "function": {"name": "look"}}]
    body: dict[str, Any] = {"model": "a", "messages": [{"role": "user", "content": "x"}], "tools": tools}
    _, whole = await client.answer("/v1/chat/completions", **body)
    call = whole["choices"][0]["message"]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"at": "sky"}
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    body["tools"] = [{"name": "look", "input_schema": {}}]
    _, message = await client.answer("/v1/messages", **body, max_tokens=100)
    assert message["content"][0]["input"] == {"at": "sky"}
    assert message["stop_reason"] == "tool_use"


async def test_openai_clients_get_completions_embeddings_and_models(client: Client, target: OllamaTarget) -> None:
    _, whole = await client.answer("/v1/completions", model="a", prompt="x")
    assert whole["choices"][0]["text"] == "a says: x"
    async with client.post("/v1/completions", model="a", prompt="x", stream=True) as response:
        *chunks, done = [data for _, data in events(await response.text())]
    assert done == "[DONE]"
    assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "stop"
    _, plain = await client.answer("/v1/embeddings", model="a", input="x")
    _, coded = await client.answer("/v1/embeddings", model="a", input="x", encoding_format="base64")
    floats = struct.unpack("<16f", base64.b64decode(coded["data"][0]["embedding"]))
    assert floats == pytest.approx(plain["data"][0]["embedding"])
    assert [model["id"] for model in (await client.get("/v1/models"))["data"]][:2] == ["a:latest", "b:latest"]
    assert (await client.get("/v1/models/a"))["id"] == "a"
    async with client.session.get(target.url + "/v1/models/nope") as response:
        assert response.status == 404
        assert (await response.json())["error"]["type"] == "not_found_error"


async def test_openai_responses_stream_ends_with_completed(client: Client) -> None:
    async with client.post(
        "/v1/responses", model="thinker", input="hm", instructions="be brief", stream=True
    ) as answer:
        got = events(await answer.text())
    kinds = [kind for kind, _ in got]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    values = [json.loads(data) for _, data in got]
    assert [value["sequence_number"] for value in values] == list(range(len(values)))
    said = "".join(value["delta"] for value in values if value["type"] == "response.output_text.delta")
    assert said == "thinker says: hm"
    final = values[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["reasoning", "message"]
    assert final["output"][1]["content"][0]["text"] == said
    _, whole = await client.answer("/v1/responses", model="a", input=[{"role": "user", "content": "x"}])
    assert whole["output"][0]["content"][0]["text"] == "a says: x"


async def test_anthropic_messages_stream_ends_with_message_stop(client: Client) -> None:
    body = {"model": "thinker", "max_tokens": 100, "messages": [{"role": "user", "content": "hm"}]}
    async with client.post("/v1/messages", **body, stream=True) as response:
        got = events(await response.text())
    kinds = [kind for kind, _ in got]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 2
    deltas = [json.loads(data)["delta"] for kind, data in got if kind == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "thinker says: hm"
    assert "".join(delta.get("thinking", "") for delta in deltas) == "Let me think."
    _, whole = await client.answer("/v1/messages", **(body | {"model": "plain"}), thinking={"type": "enabled"})
    assert whole["content"] == [{"type": "text", "text": "plain says: hm"}]  # thinking is relaxed, not refused
    assert whole["stop_reason"] == "end_turn"


async def test_errors_have_the_shape_of_the_called_api(client: Client, target: OllamaTarget) -> None:
    messages = [{"role": "user", "content": "x"}]
    status, body = await client.answer("/v1/chat/completions", model="nope", messages=messages)
    assert status == 404
    assert body["error"] == {
        "message": "model 'nope' not found",
        "type": "not_found_error",
        "param": None,
        "code": None,
    }
    target.habits.busy = 1
    status, body = await client.answer("/v1/messages", model="a", max_tokens=1, messages=messages)
    assert (status, body["type"], body["error"]["type"]) == (503, "error", "overloaded_error")
    status, body = await client.answer("/v1/chat/completions", model="a", messages=[])
    assert (status, body["error"]["message"]) == (400, "[] is too short - 'messages'")


# ---------------------------------------------------------------------------------------------- as a process


async def test_the_target_runs_as_a_process_until_it_is_stopped() -> None:
    command = [sys.executable, "-m", "tests.inference.conformance", "--models", "x,y", "--tokens", "8"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=dict(os.environ))
    assert process.stdout
    url = json.loads(await process.stdout.readline())["url"]
    body = {"model": "y", "prompt": "hello"}
    async with aiohttp.request("POST", f"{url}/api/generate", json=body) as response:
        lines = [json.loads(line) for line in (await response.read()).splitlines()]
    assert "".join(line["response"] for line in lines) == "y says: hello 1 2 3 4 5 6"
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), SOON) == 0
