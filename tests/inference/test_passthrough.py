"""Ollama's API and its OpenAI and Anthropic compatible ones through Chargehand: clients get what the target answers."""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import msgspec
import ollama
import openai
import pytest

from chargehand.app import Server
from tests.api.serving import Answer as Reply
from tests.api.serving import on_sqlite, serving, until
from tests.inference.calling import (
    MODELS,
    SILENCE,
    Caller,
    a_line,
    a_token,
    all_there,
    before_targets,
    chat,
    is_away,
    ran,
    scheduler_of,
    settings_for,
    token_of,
    unchunked,
)
from tests.inference.conformance import (
    BROKEN,
    BUSY,
    OUT_OF_MEMORY,
    RUNNER_TERMINATED,
    Answer,
    Exchange,
    Model,
    OllamaTarget,
)

pytestmark = on_sqlite

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
CLOCKS = frozenset(
    [
        "created_at",
        "expires_at",
        "modified_at",
        "total_duration",
        "load_duration",
        "prompt_eval_duration",
        "eval_duration",
        "created",
        "completed_at",
    ]
)
NUMBERED = frozenset({"id", "item_id", "call_id", "tool_use_id"})  # ids that the target counts up


@pytest.fixture
async def target() -> AsyncIterator[OllamaTarget]:
    async with OllamaTarget(MODELS) as target:
        yield target


@pytest.fixture
async def front(store_url: str, tmp_path: Path, target: OllamaTarget) -> AsyncIterator[tuple[Server, Caller]]:
    async with before_targets(store_url, tmp_path, target) as both:
        yield both


@pytest.fixture
def server(front: tuple[Server, Caller]) -> Server:
    return front[0]


@pytest.fixture
def caller(front: tuple[Server, Caller]) -> Caller:
    return front[1]


def timeless(value: Any, leave_out: frozenset[str] = CLOCKS) -> Any:
    if isinstance(value, dict):
        return {name: timeless(each, leave_out) for name, each in value.items() if name not in leave_out}
    return [timeless(each, leave_out) for each in value] if isinstance(value, list) else value


def lines(body: bytes) -> list[Any]:
    return [msgspec.json.decode(line) for line in body.splitlines() if line]


async def the_job(caller: Caller, answer: Reply | aiohttp.ClientResponse) -> dict[str, Any]:
    return await caller.seen(answer.headers["x-chargehand-job"])


async def the_only_job(caller: Caller, state: str) -> dict[str, Any]:
    async def there() -> list[dict[str, Any]]:
        return await caller.jobs(f"state={state}")

    [job] = await until(there)
    return await caller.seen(job["id"])


async def states_of(caller: Caller, job: dict[str, Any]) -> list[str]:
    events = (await caller.get(f"/jobs/{job['id']}/events")).good()["events"]
    return [event["state"] for event in events if event["state"]]


# Ollama's own client --------------------------------------------------------------------------------------------------

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "list": ("list", {}),
    "show": ("show", {"model": "thinker"}),
    "show an unknown one": ("show", {"model": "nowhere"}),
    "chat": ("chat", chat()),
    "ps": ("ps", {}),
    "chat in a stream": ("chat", chat(stream=True)),
    "chat under another name": ("chat", chat(model="A:latest")),
    "chat with a history": (
        "chat",
        {
            "model": "a",
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "two"},
                {"role": "user", "content": "three"},
            ],
        },
    ),
    "chat cut short": ("chat", chat(options={"num_predict": 2})),
    "chat cut short in a stream": ("chat", chat(options={"num_predict": 2}, stream=True)),
    "chat that stays": ("chat", chat(keep_alive=-1)),
    "chat in other letters": ("chat", chat("größer als 猫 🐙 <b>&amp;</b>", stream=True)),
    "generate": ("generate", {"model": "a", "prompt": "one two"}),
    "generate in a stream": ("generate", {"model": "a", "prompt": "one two", "stream": True}),
    "generate raw": ("generate", {"model": "a", "prompt": "one two", "raw": True}),
    "generate with a suffix": ("generate", {"model": "a", "prompt": "def f(", "suffix": "return 1"}),
    "generate with a picture": ("generate", {"model": "a", "prompt": "see", "images": [PIXEL]}),
    "a tool call": ("chat", chat("the weather please", tools=[WEATHER])),
    "a tool call in a stream": ("chat", chat("the weather please", tools=[WEATHER], stream=True)),
    "a tool call at the end": ("chat", chat("the weather please", model="templated", tools=[WEATHER])),
    "a tool call at the end of a stream": (
        "chat",
        chat("the weather please", model="templated", tools=[WEATHER], stream=True),
    ),
    "thinking": ("chat", chat(model="thinker", think=True)),
    "thinking in a stream": ("chat", chat(model="thinker", think=True, stream=True)),
    "thinking hard": ("generate", {"model": "thinker", "prompt": "one", "think": "high"}),
    "not thinking": ("chat", chat(model="thinker", think=False)),
    "a picture": ("chat", {"model": "a", "messages": [{"role": "user", "content": "see", "images": [PIXEL]}]}),
    "json": ("chat", chat(format="json")),
    "a schema": ("chat", chat(format=SCHEMA)),
    "a schema in a stream": ("generate", {"model": "a", "prompt": "x", "format": SCHEMA, "stream": True}),
    "embed one": ("embed", {"model": "embedder", "input": "one"}),
    "embed many": ("embed", {"model": "embedder", "input": ["one", "two words"], "dimensions": 4}),
    "embed nothing": ("embed", {"model": "embedder", "input": []}),
    "embeddings": ("embeddings", {"model": "embedder", "prompt": "one"}),
    "load": ("chat", {"model": "b"}),
    "load by generate": ("generate", {"model": "b"}),
    "unload": ("generate", {"model": "b", "keep_alive": 0}),
    "unload again": ("chat", {"model": "b", "keep_alive": "0s"}),
    "an unknown model": ("chat", chat(model="nowhere")),
    "an unknown model in a stream": ("chat", chat(model="nowhere", stream=True)),
    "an impossible name": ("chat", chat(model="!?")),
    "an unknown model to embed": ("embed", {"model": "nowhere", "input": "one"}),
    "no tools": ("chat", chat(model="plain", tools=[WEATHER])),
    "no thinking": ("chat", chat(model="plain", think=True, stream=True)),
    "no eyes": ("generate", {"model": "plain", "prompt": "see", "images": [PIXEL]}),
    "no chat": ("chat", chat(model="embedder")),
    "an option of the wrong type": ("chat", chat(options={"num_ctx": "many"})),
    "a raw template": ("generate", {"model": "a", "prompt": "x", "raw": True, "template": "y"}),
    "copy": ("copy", {"source": "a", "destination": "a-copy"}),
    "copy nothing": ("copy", {"source": "nowhere", "destination": "x"}),
    "pull": ("pull", {"model": "new"}),
    "pull in a stream": ("pull", {"model": "newer", "stream": True}),
    "create": ("create", {"model": "made", "from_": "a", "stream": True}),
    "delete nothing": ("delete", {"model": "nowhere"}),
}


def told(parts: list[Any], error: ollama.ResponseError | None = None) -> Any:
    said = [timeless(part.model_dump(mode="json")) for part in parts]
    return said if error is None else (said, error.status_code, error.error)


def call(client: ollama.Client, method: str, fields: dict[str, Any]) -> Any:
    parts: list[Any] = []
    try:
        answer = getattr(client, method)(**fields)
        if fields.get("stream"):
            parts.extend(answer)
        else:
            parts.append(answer)
    except ollama.ResponseError as error:
        return told(parts, error)
    return told(parts)


async def call_async(client: ollama.AsyncClient, method: str, fields: dict[str, Any]) -> Any:
    parts: list[Any] = []
    try:
        answer = await getattr(client, method)(**fields)
        if fields.get("stream"):
            async for part in answer:
                parts.append(part)  # noqa: PERF401 - those that came before an error count
        else:
            parts.append(answer)
    except ollama.ResponseError as error:
        return told(parts, error)
    return told(parts)


async def test_the_ollama_client_gets_what_it_would_get_directly(server: Server, target: OllamaTarget) -> None:
    def differences() -> Iterator[tuple[str, Any, Any]]:
        with ollama.Client(target.url) as direct, ollama.Client(server.url) as through:
            for name, (method, fields) in CALLS.items():
                expected, got = call(direct, method, fields), call(through, method, fields)
                if got != expected:
                    yield name, expected, got

    assert await asyncio.to_thread(lambda: list(differences())) == []


async def test_the_async_ollama_client_gets_what_it_would_get_directly(server: Server, target: OllamaTarget) -> None:
    different = []
    async with ollama.AsyncClient(target.url) as direct, ollama.AsyncClient(server.url) as through:
        for name, (method, fields) in CALLS.items():
            expected, got = await call_async(direct, method, fields), await call_async(through, method, fields)
            if got != expected:
                different.append((name, expected, got))
    assert different == []


async def test_the_ollama_client_sees_tokens_as_they_come(server: Server, target: OllamaTarget) -> None:
    hold = asyncio.Event()
    target.script("a", Answer(chunks=["x", "y", "z"], hold=hold, hold_after=2))
    async with ollama.AsyncClient(server.url) as client:
        parts = await client.chat(**chat(stream=True))
        assert [(await anext(parts)).message.content for _ in range(2)] == ["x", "y"]
        hold.set()
        assert [part.message.content async for part in parts] == ["z", ""]


async def test_an_error_in_mid_stream_reaches_the_ollama_client(
    server: Server, target: OllamaTarget, caller: Caller
) -> None:
    target.habits.error_after = 2
    async with ollama.AsyncClient(target.url) as direct, ollama.AsyncClient(server.url) as through:
        expected = await call_async(direct, "chat", chat(stream=True))
        assert await call_async(through, "chat", chat(stream=True)) == expected
    assert expected[2] == BROKEN
    job = await the_only_job(caller, "failed")
    assert BROKEN in job["error"]
    assert [each["name"] for each in job["artifacts"]] == ["attempt-1.ndjson"]


async def test_tools_of_both_kinds_are_in_the_result_of_the_job_too(caller: Caller) -> None:
    for model in ("a", "templated"):
        answer = await caller.post("/api/chat", chat("the weather please", model=model, tools=[WEATHER]))
        [call_made] = (await the_job(caller, answer))["result"]["message"]["tool_calls"]
        assert call_made["function"]["name"] == "weather"


# bytes ----------------------------------------------------------------------------------------------------------------

# Decoding and encoding would change every line of this.
ODD = (
    b'{ "model":"a" , "message":{"content":"h\\u00e9\\u003cb\\u003e","role":"assistant"},"done":false}\n'
    b'{"n":12345678901234567890123,"x":1.0,"message":{"role":"assistant","content":"caf\xc3\xa9 \xf0\x9f\x90\x99"},"done":false}\r\n'
    b"\n"
    b'{"done" : true,"done_reason":"stop","message":{"role":"assistant","content":""},"eval_count":2,"y":1e-7}'
)


async def test_the_bytes_of_an_answer_are_relayed_unchanged(caller: Caller, target: OllamaTarget) -> None:
    script = Answer(raw=ODD, content_type="application/x-ndjson", headers={"X-Odd": "yes"})
    target.script("a", script, always=True)
    for fragment_bytes in (0, 1, 3, 64):  # small fragments split lines and characters
        target.habits.fragment_bytes = fragment_bytes
        answer = await caller.post("/api/chat", chat())
        assert (answer.status, answer.body) == (200, ODD)
        assert (answer.headers["content-type"], "x-odd" in answer.headers) == ("application/x-ndjson", False)
        job = await the_job(caller, answer)
        assert job["state"] == "done"
        assert job["result"]["message"] == {"role": "assistant", "content": "hé<b>café 🐙"}


async def test_a_stream_in_fragments_is_relayed_whole(caller: Caller, target: OllamaTarget) -> None:
    target.habits.fragment_bytes = 5
    answer = await caller.post("/api/chat", chat("größer als 猫 🐙"))
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert "".join(line["message"]["content"] for line in lines(answer.body)) == "a says: größer als 猫 🐙"
    assert (await the_job(caller, answer))["result"]["message"]["content"] == "a says: größer als 猫 🐙"


async def test_the_body_of_a_request_reaches_the_target_unchanged(caller: Caller, target: OllamaTarget) -> None:
    body = b'{ "model" : "a",\n "unheard_of": 1.00, "messages":[{"role":"user", "content":"\\u00e9\xc3\xa9"}]\t}'
    assert (await caller.call("POST", "/api/chat", data=body)).status == 200
    [seen] = ran(target)
    assert seen.body == body


async def test_a_last_line_of_over_a_megabyte_comes_whole(caller: Caller, target: OllamaTarget) -> None:
    target.habits.context_tokens = 200_000
    answer = await caller.post("/api/generate", {"model": "a", "prompt": "one"})
    last = answer.body.splitlines()[-1]
    assert len(last) > 1_000_000
    assert msgspec.json.decode(last)["context"] == list(range(100_000, 300_000))
    assert len((await the_job(caller, answer))["result"]["context"]) == 200_000


async def test_a_compressed_answer_stays_compressed(caller: Caller, target: OllamaTarget) -> None:
    body = zlib.compress(b'{"message":{"role":"assistant","content":"x"},"done":true}')
    target.script("a", Answer(raw=body, headers={"Content-Encoding": "deflate"}))
    async with a_line(caller.url) as line:
        line.send("POST", "/api/chat", msgspec.json.encode(chat(stream=False)), {"Connection": "close"})
        status, headers = await line.head()
        assert (status, headers["content-encoding"], await line.rest()) == (200, "deflate", body)


async def test_tokens_are_relayed_one_by_one(caller: Caller, target: OllamaTarget) -> None:
    hold = asyncio.Event()
    target.script("a", Answer(chunks=["x", "y", "z"], hold=hold, hold_after=1))
    async with caller.session.post(caller.url + "/api/chat", json=chat()) as response:
        first = msgspec.json.decode(await response.content.readline())
        assert first["message"]["content"] == "x"
        await caller.in_state(response.headers["x-chargehand-job"], "working")
        hold.set()
        assert len(lines(await response.read())) == 3


async def test_each_of_many_callers_gets_its_own_answer(caller: Caller, target: OllamaTarget) -> None:
    async def ask(number: int) -> str:
        path, text = ("/api/chat", "/v1/chat/completions")[number % 2], f"number {number}"
        answer = await caller.post(path, chat(text, model="ab"[number % 3 % 2], stream=False))
        said = answer.good() if number % 2 else msgspec.json.decode(answer.body)
        return str(said["message"]["content"] if number % 2 == 0 else said["choices"][0]["message"]["content"])

    said = await asyncio.gather(*[ask(number) for number in range(40)])
    assert said == [f"{'ab'[number % 3 % 2]} says: number {number}" for number in range(40)]
    assert target.max_in_flight == {"a": 1, "b": 1}


# heads ----------------------------------------------------------------------------------------------------------------


async def test_head_answers_as_the_target_does(caller: Caller, target: OllamaTarget) -> None:
    direct = Caller(target.url, caller.session)
    for path in ("/", "/api/tags", "/api/version"):
        for method in ("HEAD", "GET"):
            expected, got = await direct.call(method, path), await caller.call(method, path)
            assert (got.status, got.body) == (expected.status, expected.body)
            for name in ("content-type", "content-length"):
                assert got.headers[name] == expected.headers[name], (method, path)


async def test_a_body_needs_no_content_type(caller: Caller) -> None:
    body = msgspec.json.encode(chat(stream=False))
    for media in ("", "text/plain", "application/x-www-form-urlencoded"):
        async with a_line(caller.url) as line:
            line.send("POST", "/api/chat", body, {"Connection": "close", "Content-Type": media})
            assert (await line.head())[0] == 200, media
            assert msgspec.json.decode(await line.rest())["message"]["content"] == "a says: one two three"


async def test_no_header_is_written_before_the_target_has_answered(caller: Caller, target: OllamaTarget) -> None:
    """Otherwise an error after the load could not be relayed."""
    target.habits.hold = asyncio.Event()
    target.habits.error_after = 0
    async with a_line(caller.url) as line:
        line.send("POST", "/api/chat", msgspec.json.encode(chat()), {"Connection": "close"})
        await target.until(lambda: target.in_flight["a"] == 1)
        assert await line.is_silent()
        target.habits.hold.set()
        status, headers = await line.head()
        assert (status, headers["content-type"]) == (500, "application/json; charset=utf-8")
        assert msgspec.json.decode(await line.rest()) == {"error": BROKEN}


async def test_the_job_id_of_an_answer_is_in_its_headers_and_the_job_ends_with_the_answer(caller: Caller) -> None:
    for path in ("/api/chat", "/v1/chat/completions"):
        for stream in (True, False):
            answer = await caller.post(path, chat(stream=stream))
            job = await the_job(caller, answer)
            assert (job["state"], job["model"], job["attempt"], job["priority"]) == ("done", "a", 1, 5)
            assert job["request"]["path"] == path
            assert job["evidence"]["finish"] == "stop"
            assert job["evidence"]["target"] == "laptop"


async def test_a_target_that_is_a_chargehand_itself_does_not_hide_our_job(caller: Caller, target: OllamaTarget) -> None:
    target.script("a", Answer(raw=ODD, headers={"X-Chargehand-Job": "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"}))
    answer = await caller.post("/api/chat", chat())
    assert (await the_job(caller, answer))["state"] == "done"


async def test_a_token_for_chargehand_is_not_sent_to_the_target(
    store_url: str, tmp_path: Path, target: OllamaTarget
) -> None:
    tokens = [a_token("acme", "acme")]
    async with before_targets(store_url, tmp_path, target, auth__tokens=tokens) as (_, nobody):
        caller = nobody.of(token_of("acme"))
        assert (await caller.post("/api/chat", chat())).status == 200
        assert (await caller.post("/api/embed", {"model": "a", "input": "x"})).status == 200
        assert (await caller.post("/api/show", {"model": "a"})).status == 200
        assert (await caller.post("/api/copy", {"source": "a", "destination": "z"})).status == 200
    assert not [seen.path for seen in target.seen if "authorization" in seen.headers]


# the SDKs of OpenAI and Anthropic -------------------------------------------------------------------------------------

OpenAICall = Callable[[openai.AsyncOpenAI], Any]
USER: Any = [{"role": "user", "content": "one two three"}]
ASK_WEATHER: Any = [{"role": "user", "content": "the weather please"}]
OPENAI_TOOL: Any = WEATHER
OPENAI: dict[str, OpenAICall] = {
    "models": lambda client: client.models.list(),
    "a model": lambda client: client.models.retrieve("a"),
    "chat": lambda client: client.chat.completions.create(model="a", messages=USER),
    "chat in a stream": lambda client: client.chat.completions.create(
        model="a", messages=USER, stream=True, stream_options={"include_usage": True}
    ),
    "chat cut short": lambda client: client.chat.completions.create(model="a", messages=USER, max_tokens=2),
    "chat cut short in a stream": lambda client: client.chat.completions.create(
        model="a", messages=USER, max_tokens=2, stream=True
    ),
    "a tool call": lambda client: client.chat.completions.create(
        model="a",
        messages=ASK_WEATHER,
        tools=[OPENAI_TOOL],
    ),
    "a tool call in a stream": lambda client: client.chat.completions.create(
        model="templated",
        messages=ASK_WEATHER,
        tools=[OPENAI_TOOL],
        stream=True,
    ),
    "thinking": lambda client: client.chat.completions.create(
        model="thinker", messages=USER, reasoning_effort="high", stream=True
    ),
    "a schema": lambda client: client.chat.completions.create(
        model="a",
        messages=USER,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
    ),
    "completion": lambda client: client.completions.create(model="a", prompt="one two"),
    "completion in a stream": lambda client: client.completions.create(model="a", prompt="one two", stream=True),
    "embeddings": lambda client: client.embeddings.create(model="embedder", input=["one", "two words"]),
    "response": lambda client: client.responses.create(model="a", input="one two"),
    "response in a stream": lambda client: client.responses.create(model="a", input="one two", stream=True),
    "an unknown model": lambda client: client.chat.completions.create(model="nowhere", messages=USER),
    "an unknown model in a stream": lambda client: client.responses.create(model="nowhere", input="x", stream=True),
    "an unknown model to embed": lambda client: client.embeddings.create(model="nowhere", input="x"),
    "an unknown model to read": lambda client: client.models.retrieve("nowhere"),
    "no tools": lambda client: client.chat.completions.create(
        model="plain",
        messages=USER,
        tools=[OPENAI_TOOL],
    ),
}


def openai_client(url: str, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


async def through_openai(client: openai.AsyncOpenAI, ask: OpenAICall) -> Any:
    try:
        answer = await ask(client)
        if isinstance(answer, openai.AsyncStream):
            return timeless([part.model_dump(mode="json") async for part in answer], CLOCKS | NUMBERED)
        return timeless(answer.model_dump(mode="json", warnings=False), CLOCKS | NUMBERED)
    except openai.APIStatusError as error:
        return type(error), error.status_code, error.body, str(error)


async def test_the_openai_client_gets_what_it_would_get_directly(server: Server, target: OllamaTarget) -> None:
    different = []
    async with openai_client(target.url) as direct, openai_client(server.url) as through:
        for name, ask in OPENAI.items():
            expected, got = await through_openai(direct, ask), await through_openai(through, ask)
            if got != expected or not expected:
                different.append((name, expected, got))
    assert different == []


AnthropicCall = Callable[[anthropic.AsyncAnthropic], Any]
ANTHROPIC_TOOL: Any = {"name": "weather", "input_schema": WEATHER["function"]["parameters"]}
ANTHROPIC: dict[str, AnthropicCall] = {
    "message": lambda client: client.messages.create(model="a", max_tokens=100, messages=USER),
    "message in a stream": lambda client: client.messages.create(model="a", max_tokens=100, messages=USER, stream=True),
    "message cut short": lambda client: client.messages.create(model="a", max_tokens=2, messages=USER, stream=True),
    "a tool call": lambda client: client.messages.create(
        model="a", max_tokens=100, messages=ASK_WEATHER, tools=[ANTHROPIC_TOOL]
    ),
    "a system": lambda client: client.messages.create(model="a", max_tokens=100, system="brief", messages=USER),
    "an unknown model": lambda client: client.messages.create(model="nowhere", max_tokens=100, messages=USER),
}


def anthropic_client(url: str, key: str = "none") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0)


async def through_anthropic(client: anthropic.AsyncAnthropic, ask: AnthropicCall) -> Any:
    try:
        answer = await ask(client)
        if isinstance(answer, anthropic.AsyncStream):
            return timeless([part.model_dump(mode="json") async for part in answer], CLOCKS | NUMBERED)
        return timeless(answer.model_dump(mode="json"), CLOCKS | NUMBERED)
    except anthropic.APIStatusError as error:
        body = msgspec.json.decode(error.response.content)
        return type(error), error.status_code, timeless(body, frozenset({"request_id"}))


async def test_the_anthropic_client_gets_what_it_would_get_directly(server: Server, target: OllamaTarget) -> None:
    different = []
    async with anthropic_client(target.url) as direct, anthropic_client(server.url) as through:
        for name, ask in ANTHROPIC.items():
            expected, got = await through_anthropic(direct, ask), await through_anthropic(through, ask)
            if got != expected or not expected:
                different.append((name, expected, got))
    assert different == []


async def test_streams_of_the_other_apis_end_as_done(caller: Caller) -> None:
    bodies = {
        "/v1/chat/completions": chat(stream=True),
        "/v1/completions": {"model": "a", "prompt": "x", "stream": True},
        "/v1/responses": {"model": "a", "input": "x", "stream": True},
        "/v1/messages": chat(stream=True, max_tokens=50),
    }
    for path, body in bodies.items():
        answer = await caller.post(path, body)
        assert answer.headers["content-type"].startswith("text/event-stream"), path
        job = await the_job(caller, answer)
        assert (job["state"], job["evidence"]["finish"]) == ("done", "stop"), (path, job["error"])


async def test_streams_of_the_other_apis_that_reach_their_limit_end_with_finish_length(caller: Caller) -> None:
    bodies = {
        "/v1/chat/completions": chat(stream=True, max_tokens=2),
        "/v1/completions": {"model": "a", "prompt": "x y z", "stream": True, "max_tokens": 2},
        "/v1/messages": chat(stream=True, max_tokens=2),
    }
    for path, body in bodies.items():
        job = await the_job(caller, await caller.post(path, body))
        assert (job["state"], job["evidence"]["finish"]) == ("done", "length"), path


async def test_a_stream_of_another_api_that_stops_short_is_relayed_and_the_job_has_failed(
    caller: Caller, target: OllamaTarget
) -> None:
    """Ollama loses the text of an error on these APIs: the stream just stops."""
    target.habits.end_after = 2
    for path, body in (
        ("/v1/chat/completions", chat(stream=True)),
        ("/v1/responses", {"model": "a", "input": "x y z", "stream": True}),
        ("/v1/messages", chat(stream=True, max_tokens=50)),
    ):
        answer = await caller.post(path, body)
        assert answer.status == 200, path
        job = await the_job(caller, answer)
        assert (job["state"], job["evidence"]["finish"]) == ("failed", "truncated"), path


# what Chargehand itself refuses ---------------------------------------------------------------------------------------


def shown(path: str, answer: Reply) -> str:
    """Return the message of an error, after asserting the shape that the clients of the path read."""
    assert answer.headers["content-type"].startswith("application/json")
    body = msgspec.json.decode(answer.body)
    if path.startswith("/v1/messages"):
        assert body.keys() == {"type", "error"}
        assert body["type"] == "error"
        assert body["error"].keys() == {"type", "message"}
        return str(body["error"]["message"])
    if path.startswith("/v1/"):
        assert body["error"].keys() == {"message", "type", "param", "code"}
        return str(body["error"]["message"])
    return str(body["error"])


RUNNING = (
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/embeddings",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
)


UNMEANT = (
    (b"", "body"),
    (b"{", "JSON"),
    (b"[]", "object"),
    (b"{}", "model"),
    (b'{"model":7}', "model"),
    (b'{"model":""}', "model"),
    (b'{"model":"%s"}' % (b"x" * 201), "model"),
    (b'{"model":"a","x":"\xff"}', "UTF-8"),
    (b'{"model":"\xff"}', "UTF-8|utf-8"),
    (b'{"model":"a","stream":"yes"}', "stream"),
)


async def test_an_invalid_request_is_refused_in_the_shape_of_its_api(caller: Caller, target: OllamaTarget) -> None:
    for body, field in UNMEANT:
        for path in RUNNING:
            answer = await caller.call("POST", path, data=body)
            assert answer.status == 400, (path, body, answer.body)
            assert re.search(field, shown(path, answer)), (path, body, answer.body)
    assert await caller.jobs() == []
    assert not {seen.path for seen in target.seen} & {*RUNNING}


async def test_an_invalid_preference_is_refused(caller: Caller) -> None:
    for prefer in ("wait=soon", "wait=-1", "wait=1.5", "wait=99999999999"):
        answer = await caller.post("/api/chat", chat(), headers={"Prefer": prefer})
        assert answer.status == 400, prefer
        assert "Prefer" in shown("/api/chat", answer)
    assert await caller.jobs() == []
    not_ours = {"Prefer": 'handling=lenient, wait="5"; foo=bar, return=x'}
    assert (await caller.post("/api/chat", chat(), headers=not_ours)).status == 200


async def test_a_body_that_is_too_large_is_refused_in_the_shape_of_its_api(
    store_url: str, tmp_path: Path, target: OllamaTarget
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    async with before_targets(store_url, tmp_path, target, inference__max_body_bytes=2000) as (_, caller):
        for path in (*RUNNING, "/api/show", "/api/pull"):
            for data in (b" " * 2001, pieces()):
                answer = await caller.call("POST", path, data=data)
                assert answer.status == 413, path
                assert "2000" in shown(path, answer)
        assert (await caller.call("POST", "/api/chat", data=msgspec.json.encode(chat()).ljust(2000))).status == 200


async def test_an_unauthorized_caller_is_refused_in_the_shape_of_its_api(
    store_url: str, tmp_path: Path, target: OllamaTarget
) -> None:
    tokens = [a_token("reader", "acme", "jobs:read"), a_token("writer", "acme", "jobs:write")]
    async with before_targets(store_url, tmp_path, target, auth__tokens=tokens) as (_, nobody):
        reader, writer = nobody.of(token_of("reader")), nobody.of(token_of("writer"))
        for path in RUNNING:
            assert shown(path, await nobody.post(path, chat()))
            assert (await nobody.post(path, chat())).status == 401
            forbidden = await reader.post(path, chat())
            assert forbidden.status == 403
            assert "jobs:write" in shown(path, forbidden)
        assert (await writer.get("/api/tags")).status == 403
        assert (await writer.call("DELETE", "/api/delete", {"model": "a"})).status == 403
        assert (await reader.get("/api/tags")).status == 200
        async with openai_client(nobody.url, "wrong") as wrong:
            with pytest.raises(openai.AuthenticationError):
                await wrong.models.list()
        async with openai_client(nobody.url, token_of("reader")) as good:
            assert len((await good.models.list()).data) == len(MODELS)
        async with anthropic_client(nobody.url, "wrong") as stranger:
            with pytest.raises(anthropic.AuthenticationError):
                await stranger.messages.create(model="a", max_tokens=1, messages=USER)


async def test_the_anthropic_client_authenticates_with_its_key(
    store_url: str, tmp_path: Path, target: OllamaTarget
) -> None:
    tokens = [a_token("acme", "acme")]
    async with (
        before_targets(store_url, tmp_path, target, auth__tokens=tokens) as (_, nobody),
        anthropic_client(nobody.url, token_of("acme")) as client,
    ):
        message = await client.messages.create(model="a", max_tokens=100, messages=USER)
        assert message.content[0].type == "text"


async def test_cloud_models_are_refused_where_they_are_not_allowed(
    store_url: str, tmp_path: Path, target: OllamaTarget
) -> None:
    async with before_targets(store_url, tmp_path, target, inference__allow_cloud=False) as (_, caller):
        for path in RUNNING:
            answer = await caller.post(path, chat(model="gpt-oss:120b-cloud"))
            assert answer.status == 403
            assert "cloud" in shown(path, answer)
        assert await caller.jobs() == []


# what the target refuses ----------------------------------------------------------------------------------------------


REFUSALS = (
    Answer(status=400, error="no"),
    Answer(status=401, error="unauthorized", headers={"WWW-Authenticate": "x"}),
    Answer(status=403, raw=b"", content_type=""),
    Answer(status=418, raw=b"<p>not JSON</p>", content_type="text/html", headers={"X-Why": "tea"}),
    Answer(status=500, error=RUNNER_TERMINATED),
    Answer(status=500, error=OUT_OF_MEMORY),
    Answer(status=501, error="not here"),
)


async def test_refusals_of_the_target_are_relayed_unchanged(caller: Caller, target: OllamaTarget) -> None:
    direct = Caller(target.url, caller.session)
    for refusal in REFUSALS:
        for path in ("/api/chat", "/v1/chat/completions"):
            target.script(path, refusal, refusal)
            expected, got = await direct.post(path, chat()), await caller.post(path, chat())
            assert (got.status, got.body) == (expected.status, expected.body)
            json = expected.headers.get("content-type", "").startswith("application/json")
            assert got.headers["content-type"] == (
                expected.headers["content-type"] if json else "application/octet-stream"
            )
            job = await the_job(caller, got)
            assert (job["state"], job["attempt"], job["result"]) == ("failed", 1, None)
            assert str(expected.status) in job["error"]


async def test_a_refusal_in_fragments_is_relayed_whole(caller: Caller, target: OllamaTarget) -> None:
    target.habits.fragment_bytes = 7
    for path in ("/api/chat", "/v1/chat/completions", "/api/show", "/api/embed"):
        answer = await caller.post(path, chat(model="nowhere"))
        assert answer.status == 404, path
        assert "nowhere" in shown(path, answer)


async def test_a_refusal_before_the_load_is_relayed(caller: Caller, target: OllamaTarget) -> None:
    target.habits.load_failure = RUNNER_TERMINATED
    for path in ("/api/chat", "/api/generate"):
        answer = await caller.post(path, {"model": "a", "prompt": "x"} | chat())
        assert answer.status == 500
        assert RUNNER_TERMINATED in shown(path, answer)


async def test_a_refused_load_has_the_shape_of_the_callers_api(caller: Caller, target: OllamaTarget) -> None:
    """The order to load uses the native API, whichever API the caller uses."""
    target.habits.load_failure = RUNNER_TERMINATED
    for path in RUNNING:
        answer = await caller.post(path, {"model": "a", "prompt": "x", "input": "x", "max_tokens": 5} | chat())
        assert answer.status >= 400
        assert RUNNER_TERMINATED in shown(path, answer), path


async def test_a_request_to_a_busy_target_is_retried(caller: Caller, target: OllamaTarget) -> None:
    target.habits.busy = 1
    answer = await caller.post("/api/chat", chat())
    assert answer.status == 200
    job = await the_job(caller, answer)
    assert (job["attempt"], [each["outcome"] for each in job["attempts"]]) == (1, ["park", "succeed"])
    assert BUSY in job["attempts"][0]["message"]


# callers who hang up --------------------------------------------------------------------------------------------------


async def test_the_queued_request_of_a_caller_that_hung_up_never_runs(caller: Caller, target: OllamaTarget) -> None:
    target.habits.hold = asyncio.Event()
    first = asyncio.create_task(caller.post("/api/chat", chat("first")))
    await target.until(lambda: target.in_flight["a"] == 1)
    async with a_line(caller.url) as line:
        line.send("POST", "/api/chat", msgspec.json.encode(chat("second")))
        await the_only_job(caller, "queued")
        line.hang_up()
    job = await the_only_job(caller, "failed")
    assert (job["error"], job["attempts"][0]["outcome"]) == ("cancelled", "cancel")
    assert "caller" in job["attempts"][0]["message"]
    target.habits.hold.set()
    assert (await first).status == 200
    assert (await caller.post("/api/chat", chat("third"))).status == 200
    assert [seen.json["messages"][0]["content"] for seen in ran(target)] == ["first", "third"]


async def test_a_caller_that_hangs_up_before_the_first_token_stops_the_generation(
    store_url: str, tmp_path: Path
) -> None:
    # Enough places for all: a place stays taken for a while after its caller hung up.
    async with OllamaTarget(MODELS, parallel=10) as target:
        wide = [{"name": "laptop", "url": target.url, "parallel": 10}]
        async with before_targets(store_url, tmp_path, target, inference__targets=wide) as (_, caller):
            target.script("a", Answer(hold=asyncio.Event()), always=True)
            for path in ("/api/chat", "/v1/chat/completions", "/v1/messages"):
                for stream in (True, False):
                    async with a_line(caller.url) as line:
                        line.send("POST", path, msgspec.json.encode(chat(stream=stream, max_tokens=50)))
                        await target.until(lambda: target.in_flight["a"] == 1)
                        line.hang_up()
                        await target.until(lambda: target.in_flight["a"] == 0)
                    assert ran(target, path)[-1].aborted
                    job = await caller.ended((await caller.jobs())[0]["id"])
                    assert job["error"] == "cancelled", (path, stream)


async def test_a_caller_that_hangs_up_in_mid_stream_stops_the_generation(caller: Caller, target: OllamaTarget) -> None:
    target.script("a", Answer(chunks=["x", "y", "z"], hold=asyncio.Event(), hold_after=2), always=True)
    for path in ("/api/chat", "/v1/chat/completions", "/v1/messages"):
        async with a_line(caller.url) as line:
            line.send("POST", path, msgspec.json.encode(chat(stream=True, max_tokens=50)))
            await line.until_seen(b'"y"')
            working = await the_only_job(caller, "working")
            line.hang_up()
        await target.until(lambda path=path: ran(target, path)[-1].aborted)  # type: ignore[misc]
        job = await caller.ended(working["id"])
        assert (job["error"], job["previous_state"]) == ("cancelled", "working"), path
    target.unscript()
    assert (await caller.post("/api/chat", chat())).status == 200


async def test_a_caller_that_hangs_up_during_a_load_does_not_end_the_load(caller: Caller, target: OllamaTarget) -> None:
    """Ollama aborts a load whose connection closes, and the next request would have to load again."""
    target.habits.load_seconds = 0.3
    async with a_line(caller.url) as line:
        line.send("POST", "/api/chat", msgspec.json.encode(chat()))
        await target.until(lambda: target.loading is not None)
        line.hang_up()
        assert (await the_only_job(caller, "failed"))["error"] == "cancelled"
    assert (await caller.post("/api/chat", chat())).status == 200
    assert (target.loads, target.aborted_loads) == (["a"], 0)


class Dawdler(OllamaTarget):
    """A target that sends done:true and delays the end of the answer."""

    def __init__(self) -> None:
        super().__init__(MODELS)
        self.may_end = asyncio.Event()

    async def answer(self, exchange: Exchange) -> None:
        end = exchange.end

        async def late() -> None:
            await self.may_end.wait()
            await end()

        exchange.end = late  # type: ignore[method-assign]
        await super().answer(exchange)


LAST_WORDS: tuple[tuple[str, dict[str, Any], bytes], ...] = (
    ("/api/chat", chat(), b'"done":true'),
    ("/api/generate", {"model": "a", "prompt": "x"}, b"299999]"),  # in a line of over a megabyte
    ("/v1/chat/completions", chat(stream=True), b"[DONE]"),
    ("/v1/responses", {"model": "a", "input": "x", "stream": True}, b'"response.completed"'),
    ("/v1/messages", chat(stream=True, max_tokens=50), b'"message_stop"'),
)


async def test_the_job_of_a_caller_that_hangs_up_after_the_last_token_is_done(store_url: str, tmp_path: Path) -> None:
    """Many clients close at done:true and do not wait for the end of the answer."""
    async with Dawdler() as target, before_targets(store_url, tmp_path, target) as (_, caller):
        target.habits.context_tokens = 200_000
        for path, body, last in LAST_WORDS:
            target.may_end.clear()
            async with a_line(caller.url) as line:
                line.send("POST", path, msgspec.json.encode(body))
                await line.until_seen(last)
                line.hang_up()
            seen = ran(target, path)[-1]
            await asyncio.sleep(SILENCE)
            assert not seen.aborted, path
            target.may_end.set()
            [job] = [job for job in await caller.jobs() if (await caller.seen(job["id"]))["request"]["path"] == path]
            assert (await caller.ended(job["id"]))["state"] == "done", path


async def test_cancelling_the_job_of_a_caller_ends_its_request(caller: Caller, target: OllamaTarget) -> None:
    target.script("a", Answer(hold=asyncio.Event()), Answer(chunks=["x", "y"], hold=asyncio.Event(), hold_after=1))
    waiting = asyncio.create_task(caller.post("/api/chat", chat()))
    job = await the_only_job(caller, "working")
    (await caller.call("DELETE", f"/jobs/{job['id']}")).good()
    answer = await waiting
    assert (answer.status, shown("/api/chat", answer)) == (502, "cancelled")
    async with a_line(caller.url) as line:
        line.send("POST", "/api/chat", msgspec.json.encode(chat()))
        _, headers = await line.head()
        got = await line.until_seen(b'"x"')
        (await caller.call("DELETE", f"/jobs/{headers['x-chargehand-job']}")).good()
        assert not unchunked(got + await line.rest())[1]
    await target.until(lambda: all(seen.aborted for seen in ran(target)))


# targets that are away ------------------------------------------------------------------------------------------------


@pytest.fixture
async def impatient(store_url: str, tmp_path: Path, target: OllamaTarget) -> AsyncIterator[tuple[Server, Caller]]:
    """A server that waits a third of a second for a target that is away."""
    async with before_targets(store_url, tmp_path, target, inference__wait_seconds=0.3) as both:
        yield both


async def test_a_request_for_a_target_that_is_away_gets_a_503_after_the_wait(
    impatient: tuple[Server, Caller], target: OllamaTarget
) -> None:
    _, caller = impatient
    await target.go_away()
    for path in ("/api/chat", "/api/embed", "/v1/chat/completions", "/v1/messages"):
        began = asyncio.get_running_loop().time()
        answer = await caller.post(path, {"model": "a", "prompt": "x", "input": "x", "max_tokens": 5} | chat())
        took = asyncio.get_running_loop().time() - began
        assert answer.status == 503, (path, answer.body)
        assert 0.25 < took < 2
        assert int(answer.headers["retry-after"]) >= 1
        assert "laptop is away" in shown(path, answer)
        job = await caller.ended(answer.headers["x-chargehand-job"])
        assert (job["state"], job["error"]) == ("failed", "cancelled")
    await target.come_back()
    assert (await caller.post("/api/chat", chat(), headers={"Prefer": "wait=10"})).status == 200
    assert len(ran(target)) == 1


async def test_the_sdks_show_that_the_target_is_away(impatient: tuple[Server, Caller], target: OllamaTarget) -> None:
    server, _ = impatient
    await target.go_away()
    async with (
        ollama.AsyncClient(server.url) as of_ollama,
        openai_client(server.url) as of_openai,
        anthropic_client(server.url) as of_anthropic,
    ):
        with pytest.raises(ollama.ResponseError, match="laptop is away") as away:
            await of_ollama.chat(**chat())
        assert away.value.status_code == 503
        with pytest.raises(openai.InternalServerError, match="laptop is away"):
            await of_openai.chat.completions.create(model="a", messages=USER)
        with pytest.raises(anthropic.APIStatusError, match="laptop is away"):
            await of_anthropic.messages.create(model="a", max_tokens=5, messages=USER)


async def test_a_caller_may_choose_not_to_wait(store_url: str, tmp_path: Path, target: OllamaTarget) -> None:
    async with before_targets(store_url, tmp_path, target, inference__wait_seconds=60) as (server, caller):
        await target.go_away()
        await is_away(server)
        async with asyncio.timeout(20):
            assert (await caller.post("/api/chat", chat(), headers={"Prefer": "wait=0"})).status == 503


async def test_a_caller_may_wait_longer(impatient: tuple[Server, Caller], target: OllamaTarget) -> None:
    server, caller = impatient
    await target.go_away()
    await is_away(server)
    patient = asyncio.create_task(caller.post("/api/chat", chat(), headers={"Prefer": "wait=10"}))
    await asyncio.wait({patient}, timeout=0.6)
    assert not patient.done()
    await target.come_back()
    assert (await patient).status == 200


async def test_the_preferred_wait_does_not_limit_the_answer(caller: Caller, target: OllamaTarget) -> None:
    """The preference is about a target that is away; this one is up, and thinking."""
    target.habits.prefill_seconds = 1.3
    assert (await caller.post("/api/chat", chat(), headers={"Prefer": "wait=1"})).status == 200


async def test_a_caller_may_take_a_job_instead(caller: Caller, server: Server, target: OllamaTarget) -> None:
    await target.go_away()
    await is_away(server)
    accepted = []
    for path, body in (
        ("/api/chat", chat(stream=False)),
        ("/api/generate", {"model": "a", "prompt": "one"}),
        ("/api/embed", {"model": "embedder", "input": "one"}),
        ("/v1/chat/completions", chat(stream=True)),
        ("/v1/responses", {"model": "a", "input": "one"}),
        ("/v1/messages", chat(max_tokens=50)),
        ("/v1/embeddings", {"model": "embedder", "input": "one"}),
    ):
        answer = await caller.post(path, body, headers={"Prefer": "respond-async"})
        job_id = answer.good(202)["job_id"]
        assert answer.headers["location"] == f"/jobs/{job_id}"
        assert answer.headers["preference-applied"] == "respond-async"
        accepted.append(job_id)
    assert {(await caller.seen(job_id))["waiting_for"] for job_id in accepted} == {"target"}
    await target.come_back()
    results = [(await caller.ended(job_id))["result"] for job_id in accepted]
    assert results[0]["message"]["content"] == "a says: one two three"
    assert results[1]["response"] == "a says: one"
    assert len(results[2]["embeddings"][0]) == 16
    assert results[3]["choices"][0]["message"]["content"] == "a says: one two three"
    assert results[4]["output"][0]["content"][0]["text"] == "a says: one"
    assert results[5]["content"][0]["text"] == "a says: one two three"
    assert len(results[6]["data"][0]["embedding"]) == 16


async def test_a_job_that_ends_while_its_caller_waits_is_answered_at_once(caller: Caller, target: OllamaTarget) -> None:
    prefer = {"Prefer": "respond-async, wait=10"}
    answer = await caller.post("/api/chat", chat(), headers=prefer)
    assert answer.good()["message"]["content"] == "a says: one two three"
    assert (await the_job(caller, answer))["state"] == "done"
    target.habits.hold = asyncio.Event()
    late = await caller.post("/api/chat", chat(), headers={"Prefer": "wait=1, respond-async"})
    job_id = late.good(202)["job_id"]
    assert (await caller.seen(job_id))["state"] == "working"
    target.habits.hold.set()
    assert (await caller.ended(job_id))["state"] == "done"
    refused = await caller.post("/api/chat", chat(model="nowhere"), headers=prefer)
    assert (refused.status, (await the_job(caller, refused))["state"]) == (502, "failed")
    assert "404 model 'nowhere" in shown("/api/chat", refused)


async def test_a_caller_that_took_a_job_may_hang_up(caller: Caller, target: OllamaTarget) -> None:
    target.habits.hold = asyncio.Event()
    async with a_line(caller.url) as line:
        prefer = {"Prefer": "respond-async, wait=60"}
        line.send("POST", "/api/chat", msgspec.json.encode(chat()), prefer)
        await target.until(lambda: target.in_flight["a"] == 1)
        line.hang_up()
    target.habits.hold.set()
    assert (await the_only_job(caller, "done"))["result"]["message"]["content"] == "a says: one two three"


async def test_a_target_that_is_back_within_the_wait_answers(
    caller: Caller, server: Server, target: OllamaTarget
) -> None:
    target.habits.hold = asyncio.Event()
    waiting = asyncio.create_task(caller.post("/api/chat", chat()))
    await target.until(lambda: target.in_flight["a"] == 1)
    await target.go_away(restart=True)
    await is_away(server)
    job = await the_only_job(caller, "queued")
    assert (job["attempt"], job["waiting_for"]) == (1, "target")
    target.habits.hold.set()
    await target.come_back()
    answer = await waiting
    assert (answer.status, lines(answer.body)[0]["message"]["content"]) == (200, "a says:")
    assert (await the_job(caller, answer))["attempt"] == 1


async def test_the_wait_for_a_target_begins_when_it_goes_away(
    store_url: str, tmp_path: Path, target: OllamaTarget
) -> None:
    """The wait does not begin with the request, which may have been queued for an hour by then."""
    async with before_targets(store_url, tmp_path, target, inference__wait_seconds=1) as (server, caller):
        target.habits.hold = asyncio.Event()
        waiting = asyncio.create_task(caller.post("/api/chat", chat()))
        await asyncio.wait({waiting}, timeout=1.7)
        await target.go_away()
        await is_away(server)
        await asyncio.wait({waiting}, timeout=0.6)
        target.habits.hold.set()
        await target.come_back()
        assert (await waiting).status == 200


async def test_a_target_that_falls_asleep_before_the_first_token_is_waited_for(
    caller: Caller, server: Server, target: OllamaTarget
) -> None:
    target.habits.hold = asyncio.Event()
    waiting = asyncio.create_task(caller.post("/api/chat", chat()))
    await target.until(lambda: target.in_flight["a"] == 1)
    target.sleep()
    await is_away(server)
    target.habits.hold = None
    target.wake()
    assert (await waiting).status == 200


@pytest.mark.parametrize("how", ["reset", "away", "asleep"])
async def test_a_target_that_dies_in_mid_stream_breaks_the_callers_connection(
    caller: Caller, server: Server, target: OllamaTarget, how: str
) -> None:
    hold = asyncio.Event()
    target.script("a", Answer(chunks=["x", "y", "z"], hold=hold, hold_after=2))
    async with a_line(caller.url) as line:
        line.send("POST", "/api/chat", msgspec.json.encode(chat()))
        status, headers = await line.head()
        assert status == 200
        got = await line.until_seen(b'"y"')
        if how == "reset":
            await target.crash_runner("a")
        elif how == "away":
            await target.go_away()
        else:
            target.sleep()
        body, ended = unchunked(got + await line.rest())
        assert not ended
        assert len(lines(body)) == 2
    job = await caller.ended(headers["x-chargehand-job"])
    assert (job["state"], job["attempt"], job["evidence"]["finish"]) == ("failed", 1, "truncated")
    assert [each["name"] for each in job["artifacts"]] == ["attempt-1.ndjson"]
    if how == "asleep":
        target.wake()


async def test_an_answer_of_known_length_that_is_cut_off_breaks_the_callers_connection(
    caller: Caller, target: OllamaTarget
) -> None:
    target.script("a", Answer(raw=ODD, headers={"Content-Length": str(len(ODD) + 100)}))
    async with caller.session.post(caller.url + "/api/chat", json=chat()) as response:
        await target.until(lambda: bool(ran(target)) and ran(target)[-1].finished)
        await target.go_away()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert (await the_only_job(caller, "failed"))["attempt"] == 1


async def test_an_end_without_done_is_relayed_and_the_job_has_failed(caller: Caller, target: OllamaTarget) -> None:
    target.habits.end_after = 2
    direct = Caller(target.url, caller.session)
    for stream in (True, False):
        expected, got = (
            await direct.post("/api/chat", chat(stream=stream)),
            await caller.post("/api/chat", chat(stream=stream)),
        )
        assert got.status == 200
        assert timeless(lines(got.body)) == timeless(lines(expected.body))
        job = await the_job(caller, got)
        assert (job["state"], job["evidence"]["finish"], job["result"]) == ("failed", "truncated", None)
        assert "done:true" in job["error"]


async def test_a_request_for_a_target_that_was_never_up_gets_a_503(
    store_url: str, tmp_path: Path, target: OllamaTarget
) -> None:
    await target.go_away()
    settings = settings_for(tmp_path, target, inference__wait_seconds=0.1)
    async with serving(store_url, settings) as server, aiohttp.ClientSession() as session:
        caller = Caller(server.url, session)
        for path in ("/api/chat", "/api/embed"):
            assert (await caller.post(path, chat())).status == 503
        assert (await caller.post("/api/show", {"model": "a"})).status == 503
        assert (await caller.post("/api/pull", {"model": "a"})).status == 503
        assert (await caller.post("/api/generate", {"model": "a", "keep_alive": 0})).status == 503
        assert (await caller.get("/api/version")).status == 503
        assert (await caller.get("/v1/models/a")).status == 503
        assert msgspec.json.decode((await caller.get("/api/tags")).body) == {"models": []}
        assert msgspec.json.decode((await caller.get("/api/ps")).body) == {"models": []}
        assert (await caller.get("/v1/models")).good()["data"] == []
        await target.come_back()
        await all_there(server)
        assert (await caller.post("/api/chat", chat())).status == 200


async def test_without_any_target_the_refusal_says_what_to_set(store_url: str, tmp_path: Path) -> None:
    settings = settings_for(tmp_path, inference__wait_seconds=0, inference__embedded="off")
    async with serving(store_url, settings) as server, aiohttp.ClientSession() as session:
        caller = Caller(server.url, session)
        answer = await caller.post("/api/chat", chat())
        assert answer.status == 503
        assert "inference.targets" in shown("/api/chat", answer)
        assert (await caller.get("/api/tags")).status == 503


async def test_an_answer_without_end_is_cut_off(store_url: str, tmp_path: Path, target: OllamaTarget) -> None:
    async with before_targets(store_url, tmp_path, target, inference__max_answer_bytes=20_000) as (_, caller):
        target.habits.tokens = 1000
        async with caller.session.post(caller.url + "/api/chat", json=chat()) as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
            job = await caller.ended(response.headers["x-chargehand-job"])
        assert (job["state"], job["attempt"], job["result"]) == ("failed", 1, None)
        assert "inference.max_answer_bytes" in job["error"]
        target.habits.tokens = 20
        assert (await caller.post("/api/chat", chat())).status == 200


# embeddings -----------------------------------------------------------------------------------------------------------


async def test_embeddings_need_no_job_when_their_model_is_in_memory(
    caller: Caller, server: Server, target: OllamaTarget
) -> None:
    body = {"model": "embedder", "input": "one", "prompt": "one"}
    for count, path in enumerate(("/api/embed", "/api/embeddings", "/v1/embeddings"), 1):
        first = await caller.post(path, body)
        job = await the_job(caller, first)
        assert (job["state"], job["request"]["path"]) == ("done", path)
        assert await states_of(caller, job) == ["queued", "loading", "working", "done"]
        await until(lambda: "embedder:latest" in scheduler_of(server).ledgers[0].resident)
        second = await caller.post(path, body)
        assert timeless(lines(second.body)) == timeless(lines(first.body))
        assert "x-chargehand-job" not in second.headers
        assert len(await caller.jobs()) == len(target.loads) == count
        assert (await caller.post("/api/generate", {"model": "embedder", "keep_alive": 0})).status == 200
        await target.until(lambda: not target.resident)


async def test_embeddings_do_not_wait_for_generations(caller: Caller, target: OllamaTarget) -> None:
    assert (await caller.post("/api/embed", {"model": "embedder", "input": "one"})).status == 200
    target.script("a", Answer(chunks=["x"], hold=asyncio.Event()), always=True)
    generating = [asyncio.create_task(caller.post("/api/chat", chat())) for _ in range(3)]
    await target.until(lambda: target.in_flight["a"] == 1)
    assert (await caller.post("/api/embed", {"model": "embedder", "input": "one"})).status == 200
    for task in generating:
        task.cancel()
    await asyncio.gather(*generating, return_exceptions=True)


async def test_errors_of_embeddings_that_need_no_job_are_relayed(caller: Caller, target: OllamaTarget) -> None:
    direct = Caller(target.url, caller.session)
    assert (await caller.post("/api/embed", {"model": "embedder", "input": "one"})).status == 200
    body = {"model": "embedder", "input": [1]}
    expected, got = await direct.post("/api/embed", body), await caller.post("/api/embed", body)
    assert (got.status, got.body) == (expected.status, expected.body) == (400, b'{"error":"invalid input type"}')


async def test_embeddings_of_a_caller_that_hung_up_are_aborted(
    caller: Caller, server: Server, target: OllamaTarget
) -> None:
    assert (await caller.post("/api/embed", {"model": "embedder", "input": "one"})).status == 200
    target.habits.hold = asyncio.Event()
    async with a_line(caller.url) as line:
        line.send("POST", "/api/embed", b'{"model":"embedder","input":"two"}')
        await target.until(lambda: target.in_flight["embedder"] == 1)
        line.hang_up()
    await target.until(lambda: target.at("/api/embed")[-1].aborted)
    await until(lambda: not scheduler_of(server).ledgers[0].in_flight)


async def test_embeddings_of_a_target_that_dies_are_refused_at_once(
    caller: Caller, server: Server, target: OllamaTarget
) -> None:
    assert (await caller.post("/api/embed", {"model": "embedder", "input": "one"})).status == 200
    target.habits.hold = asyncio.Event()
    waiting = asyncio.create_task(caller.post("/api/embed", {"model": "embedder", "input": "two"}))
    await target.until(lambda: target.in_flight["embedder"] == 1)
    await target.go_away()
    answer = await waiting
    assert answer.status in (502, 503)
    assert "laptop" in shown("/api/embed", answer)


# loading, unloading, managing -----------------------------------------------------------------------------------------


async def test_an_order_to_load_loads_once(caller: Caller, target: OllamaTarget) -> None:
    direct = Caller(target.url, caller.session)
    for body in ({"model": "b"}, {"model": "b", "messages": []}, {"model": "b", "messages": None, "keep_alive": "10m"}):
        answer = await caller.post("/api/chat", body)
        assert timeless(lines(answer.body)) == timeless(lines((await direct.post("/api/chat", body)).body))
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        job = await the_job(caller, answer)
        assert (job["state"], job["evidence"]["finish"]) == ("done", "load")
    assert target.loads == ["b"]
    assert target.resident["b"].keep_alive == 600


async def test_an_order_to_unload_unloads(caller: Caller, target: OllamaTarget) -> None:
    orders = (0, 0.0, "0", "0s", "0m", "-0")
    for keep_alive in orders:
        answer = await caller.post("/api/chat", chat())
        assert await states_of(caller, await the_job(caller, answer)) == ["queued", "loading", "working", "done"]
        answer = await caller.post("/api/generate", {"model": "A:latest", "keep_alive": keep_alive})
        assert (answer.status, lines(answer.body)[0]["done_reason"]) == (200, "unload"), keep_alive
        await target.until(lambda: "a" not in target.resident)
    assert len(target.loads) == len(target.unloads) == len(orders)


async def test_an_order_to_unload_waits_for_running_requests(caller: Caller, target: OllamaTarget) -> None:
    target.habits.hold = asyncio.Event()
    running = asyncio.create_task(caller.post("/api/chat", chat()))
    await target.until(lambda: target.in_flight["a"] == 1)
    unloading = asyncio.create_task(caller.post("/api/generate", {"model": "a", "keep_alive": 0}))
    await asyncio.wait({unloading}, timeout=SILENCE)
    assert not unloading.done()
    target.habits.hold.set()
    assert (await running).status == 200
    assert (await unloading).status == 200
    await target.until(lambda: "a" not in target.resident)


async def test_concurrent_orders_to_unload_all_succeed(caller: Caller, target: OllamaTarget) -> None:
    assert (await caller.post("/api/chat", chat())).status == 200
    target.habits.unload_seconds = 0.1
    orders = [caller.post("/api/generate", {"model": "a", "keep_alive": 0}) for _ in range(5)]
    assert [answer.status for answer in await asyncio.gather(*orders)] == [200] * 5
    await target.until(lambda: "a" not in target.resident)


async def test_a_caller_that_hangs_up_on_an_order_to_unload_withdraws_it(caller: Caller, target: OllamaTarget) -> None:
    """Otherwise the order would block the model for all others until the running requests have ended."""
    target.habits.hold = asyncio.Event()
    running = asyncio.create_task(caller.post("/api/chat", chat()))
    await target.until(lambda: target.in_flight["a"] == 1)
    waiting = await caller.ask()
    async with a_line(caller.url) as line:
        line.send("POST", "/api/generate", b'{"model":"a","keep_alive":0}')
        await until_closed(caller, waiting)
        line.hang_up()
    target.habits.hold.set()
    assert (await running).status == 200
    assert (await caller.ended(waiting))["state"] == "done"
    assert target.unloads == []


async def until_closed(caller: Caller, job_id: str) -> None:
    async def is_closed() -> bool:
        return "takes no new work" in ((await caller.seen(job_id))["waiting"] or "")

    await until(is_closed)


async def test_a_generation_with_keep_alive_0_is_not_taken_for_an_unload(caller: Caller, target: OllamaTarget) -> None:
    target.habits.load_seconds = 0.1
    for path, body in (
        ("/api/chat", chat(keep_alive=0)),
        ("/api/generate", {"model": "a", "prompt": "x", "keep_alive": "0s"}),
    ):
        for _ in range(2):  # each request loads the model again, and its states show it
            target.loads.clear()
            answer = await caller.post(path, body)
            assert lines(answer.body)[-1]["done_reason"] == "stop"
            job = await the_job(caller, answer)
            assert await states_of(caller, job) == ["queued", "loading", "working", "done"]
            assert job["evidence"]["load_seconds"] >= 0.1
            assert target.loads == ["a"]
            await target.until(lambda: "a" not in target.resident)


async def test_embeddings_with_keep_alive_0_leave_no_model_in_memory(caller: Caller, target: OllamaTarget) -> None:
    for keep_alive in (None, 0, 0):  # the second finds the model in memory, the third has to load it
        body = {"model": "embedder", "input": "one", "keep_alive": keep_alive}
        assert (await caller.post("/api/embed", body)).status == 200
    assert target.loads == ["embedder"] * 2
    jobs = await caller.jobs()
    assert [await states_of(caller, job) for job in jobs] == [["queued", "loading", "working", "done"]] * 2


@pytest.fixture
async def two(store_url: str, tmp_path: Path) -> AsyncIterator[tuple[OllamaTarget, OllamaTarget, Server, Caller]]:
    async with (
        OllamaTarget({"a": Model(), "small": Model()}) as laptop,
        OllamaTarget({"a": Model(), "large": Model(), "hub.example/me/large:q4": Model()}) as desktop,
        before_targets(store_url, tmp_path, laptop, desktop) as (server, caller),
    ):
        yield laptop, desktop, server, caller


Two = tuple[OllamaTarget, OllamaTarget, Server, Caller]


async def test_models_are_managed_on_the_target_that_is_named(two: Two) -> None:
    laptop, desktop, server, caller = two
    async with ollama.AsyncClient(server.url, headers={"X-Target": "desktop"}) as client:
        progress = [each.status async for each in await client.pull("new", stream=True)]
        assert (progress[0], progress[-1]) == ("pulling manifest", "success")
        assert (await client.copy("a", "b")).status == "success"
        digest = await client.create_blob(__file__)
        assert digest in desktop.blobs
        assert (await client.delete("large")).status == "success"
        with pytest.raises(ollama.ResponseError) as missing:
            await client.delete("large")
        assert missing.value.status_code == 404
    assert desktop.models.keys() == {"a", "b", "new", "hub.example/me/large:q4"}
    assert laptop.models.keys() == {"a", "small"}
    head = await caller.call("HEAD", f"/api/blobs/{digest}", headers={"X-Target": "laptop"})
    assert head.status == 404
    assert (await caller.call("HEAD", f"/api/blobs/{digest}", headers={"X-Target": "desktop"})).status == 200
    # A new model can be used at once, and a deleted one is not looked for there.
    assert (await caller.post("/api/chat", chat(model="new"))).status == 200
    assert (await caller.post("/api/chat", chat(model="large"))).status == 404
    names = {each["name"] for each in msgspec.json.decode((await caller.get("/api/tags")).body)["models"]}
    assert names == {"a:latest", "b:latest", "small:latest", "new:latest", "hub.example/me/large:q4"}


async def test_with_several_targets_one_has_to_be_named(two: Two) -> None:
    laptop, desktop, _, caller = two
    before = len(laptop.seen) + len(desktop.seen)
    managing = [
        ("POST", "/api/pull", {"model": "x"}),
        ("POST", "/api/push", {"model": "x"}),
        ("POST", "/api/create", {"model": "x", "from": "a"}),
        ("POST", "/api/copy", {"source": "a", "destination": "x"}),
        ("DELETE", "/api/delete", {"model": "a"}),
        ("POST", "/api/blobs/sha256:" + "0" * 64, None),
    ]
    for method, path, body in managing:
        unnamed = await caller.call(method, path, body)
        assert unnamed.status == 400, path
        assert "X-Target" in shown(path, unnamed)
        assert "laptop, desktop" in shown(path, unnamed)
        unknown = await caller.call(method, path, body, headers={"X-Target": "attic"})
        assert unknown.status == 404, path
        assert "attic" in shown(path, unknown)
    paths = {seen.path for seen in (laptop.seen + desktop.seen)[before:]}
    assert paths <= {"/api/version", "/api/tags", "/api/ps"}
    assert laptop.models.keys() == {"a", "small"}


async def test_a_delete_waits_for_the_running_requests_of_the_model(caller: Caller, target: OllamaTarget) -> None:
    target.habits.hold = asyncio.Event()
    running = asyncio.create_task(caller.post("/api/chat", chat()))
    await target.until(lambda: target.in_flight["a"] == 1)
    deleting = asyncio.create_task(caller.call("DELETE", "/api/delete", {"model": "a"}))
    await asyncio.wait({deleting}, timeout=SILENCE)
    assert not deleting.done()
    target.habits.hold.set()
    assert (await running).status == 200
    assert (await deleting).status == 200
    assert (await caller.post("/api/chat", chat())).status == 404


async def test_a_pull_streams_its_progress(caller: Caller, target: OllamaTarget) -> None:
    target.habits.pull_seconds = 0.6
    async with caller.session.post(caller.url + "/api/pull", json={"model": "new"}) as response:
        first = await response.content.readline()
        assert msgspec.json.decode(first) == {"status": "pulling manifest"}
        assert "new" not in target.models
        assert lines(await response.read())[-1] == {"status": "success"}


async def test_a_caller_that_hangs_up_on_a_pull_stops_it_and_unlocks_the_model(
    caller: Caller, server: Server, target: OllamaTarget
) -> None:
    target.habits.pull_seconds = 60
    async with a_line(caller.url) as line:
        line.send("POST", "/api/pull", b'{"model":"a"}')
        await line.until_seen(b"pulling")
        line.hang_up()
    await target.until(lambda: target.at("/api/pull")[-1].aborted)
    await until(lambda: not scheduler_of(server).ledgers[0].closing)
    assert (await caller.post("/api/chat", chat())).status == 200


async def test_an_unknown_path_is_a_404(caller: Caller) -> None:
    assert (await caller.post("/api/nothing", {})).status == 404
    assert (await caller.get("/api/chat")).status == 405


# the union ------------------------------------------------------------------------------------------------------------


async def test_the_lists_are_the_union_over_the_targets(two: Two) -> None:
    _, desktop, server, caller = two
    tags = msgspec.json.decode((await caller.get("/api/tags")).body)["models"]
    assert {each["name"]: each["target"] for each in tags} == {
        "a:latest": "laptop",
        "small:latest": "laptop",
        "large:latest": "desktop",
        "hub.example/me/large:q4": "desktop",
    }
    models = (await caller.get("/v1/models")).good()
    assert models["object"] == "list"
    assert [each["id"] for each in models["data"]] == [each["name"] for each in tags]
    for model in ("small", "large"):
        assert (await caller.post("/api/chat", chat(model=model))).status == 200
    assert (await Caller(desktop.url, caller.session).post("/api/chat", {"model": "a"})).status == 200
    resident = msgspec.json.decode((await caller.get("/api/ps")).body)["models"]
    assert sorted((each["name"], each["target"]) for each in resident) == [
        ("a:latest", "desktop"),
        ("large:latest", "desktop"),
        ("small:latest", "laptop"),
    ]
    async with ollama.AsyncClient(server.url) as client:
        assert len((await client.list()).models) == 4
        assert len((await client.ps()).models) == 3
        for model in ("small", "large", "hub.example/me/large:q4"):
            assert (await client.show(model)).capabilities
    for name in ("large", "hub.example/me/large:q4"):
        assert (await caller.get(f"/v1/models/{name}")).status == 200, name
    assert (await caller.get("/v1/models/nowhere")).status == 404
    assert [each["state"] for each in (await caller.get("/targets")).good()["targets"]] == ["up", "up"]


async def test_a_slow_target_does_not_hide_the_other(two: Two) -> None:
    _, desktop, server, caller = two
    await desktop.go_away()
    await is_away(server, "desktop")
    names = {each["name"] for each in msgspec.json.decode((await caller.get("/api/tags")).body)["models"]}
    assert "large:latest" in names
    assert "small:latest" in names
    assert (await caller.get("/api/version")).status == 200
    [there, away] = (await caller.get("/targets")).good()["targets"]
    assert (there["state"], away["state"]) == ("up", "away")
    assert away["problem"]


async def test_discovery_goes_on_while_the_only_target_is_away(
    caller: Caller, server: Server, target: OllamaTarget
) -> None:
    before = {path: (await caller.get(path)).body for path in ("/api/tags", "/api/version")}
    listed = msgspec.json.decode((await caller.get("/v1/models")).body)["data"]
    models = {each["id"] for each in listed}
    await target.go_away()
    await is_away(server)
    for path, body in before.items():
        answer = await caller.get(path)
        assert (answer.status, answer.body) == (200, body), path
    assert (await caller.call("HEAD", "/api/tags")).status == 200
    assert {each["id"] for each in (await caller.get("/v1/models")).good()["data"]} == models
    assert msgspec.json.decode((await caller.get("/api/ps")).body) == {"models": []}
    assert (await caller.get("/")).body == b"Ollama is running"
    shown_503 = await caller.post("/api/show", {"model": "a"})
    assert shown_503.status == 503
    assert "laptop is away" in shown("/api/show", shown_503)
    assert shown_503.headers["retry-after"]
