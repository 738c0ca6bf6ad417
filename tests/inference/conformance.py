"""A target on loopback that behaves as Ollama 0.33 does, including its awkward habits, which tests can switch.

In a test: `async with OllamaTarget({"a": Model()}) as target`, then flip `target.habits` and look at what was seen.
As a process: `python -m tests.inference.conformance --port 0 --models a,b` prints {"url": …} and serves until SIGTERM.

From top to bottom: what a test holds (Model, Habits, Answer, Seen, Resident) · the wire · the shapes of the answers ·
the requests of the compatible APIs as native ones · the target: its life, its scheduler, its generations, its routes.
Names of models are Ollama's without `:latest` wherever a test sees them; on the wire they have their tag.
"""

import argparse
import asyncio
import base64
import hashlib
import ipaddress
import itertools
import json
import math
import re
import signal
import socket
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Protocol, Self, cast
from urllib.parse import unquote

import httptools
import msgspec
import uvloop

Object = dict[str, Any]

# The error texts of a failed load. Users of many versions report the first three; 0.33 sends the last three.
OUT_OF_MEMORY: Final = "model requires more system memory (12.1 GiB) than is available (7.4 GiB)"
RUNNER_TERMINATED: Final = "llama runner process has terminated: exit status 2"
LOAD_STALLED: Final = "timed out waiting for llama runner to start - progress 0.00 - "
SERVER_OUT_OF_MEMORY: Final = "llama-server process has terminated: exit status 1: cudaMalloc failed: out of memory"
SERVER_TERMINATED: Final = "llama-server process has terminated: exit status 1"
SERVER_STALLED: Final = "timed out waiting for llama-server to start - "

BUSY: Final = "server busy, please try again.  maximum pending requests exceeded"  # two spaces, as Ollama sends it
BROKEN: Final = "an error was encountered while running the model: unexpected EOF"
RUNNER_STOPPED: Final = (
    "model runner has unexpectedly stopped, this may be due to resource limitations or an internal error, "
    "check ollama server logs for details"
)
FOR_EVER: Final = (2**63 - 1) / 1e9  # Go's longest duration, in seconds: 292 years

RUN_PATHS: Final = frozenset(
    {"/api/chat", "/api/generate", "/api/embed", "/api/embeddings"}
    | {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"}
)
INTEGERS: Final = frozenset(
    {"num_predict", "num_keep", "seed", "top_k", "repeat_last_n", "num_ctx", "num_batch", "num_gpu", "main_gpu"}
    | {"num_thread", "draft_num_predict"}
)
FLOATS: Final = frozenset(
    {"temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty"}
)
RUNNER_OPTIONS: Final = ("main_gpu", "use_mmap", "num_thread", "draft_num_predict")  # those that are simply compared


# ---------------------------------------------------------------------------------------- what a test holds


@dataclass(frozen=True)
class Model:
    """A model on disk. Two with one `blob` share one runner, as two tags of the same weights do."""

    capabilities: Sequence[str] = ("completion", "tools", "insert", "vision")
    size: int = 4_000_000_000
    context_length: int = 131_072  # the context length it was trained with
    default_num_ctx: int = 4096  # the context length without num_ctx
    embedding_length: int = 16
    parallel: int | None = None  # some architectures are forced to 1
    native_template: bool = False  # since 0.30: tool calls come with the last chunk, repetition is not noticed
    blob: str | None = None  # hex digest of the weights; None = its own


@dataclass
class Habits:
    """Behaviour that a test can switch at any time. The defaults are what a current Ollama does, only faster."""

    # generating
    headers_with_first_token: bool = True  # so load, queue and prefill look the same from outside
    prefill_seconds: float = 0
    token_seconds: float = 0
    tokens: int | None = None  # the exact number of tokens; None = one for each word of the prompt
    stops_on_repeats: bool = True  # more than 30 repeats in a row: a clean end with neither `done` nor error
    error_after: int | None = None  # an error line after so many chunks; 0 = a 500 in place of the headers
    error: str = BROKEN
    end_after: int | None = None  # a clean end without `done` after so many chunks
    reset_after: int | None = None  # the connection is reset after so many chunks
    context_tokens: int | None = None  # length of `context` on generate's last line; 200_000 make more than 1 MB
    fragment_bytes: int = 0  # every answer in pieces of so many bytes, which splits lines and characters
    tool_call_ids: bool = True  # older versions have none
    cancel_seconds: float = 0  # how long a slot stays taken after its client hung up (#11889)
    hold: asyncio.Event | None = None  # every generation waits for it before its first token
    # loading and unloading
    load_seconds: float = 0
    load_aborts_on_close: bool = True
    load_failure: str | None = None  # how loads fail
    load_failures: int | None = None  # how many of the next loads fail; None = all
    unload_seconds: float = 0
    unload_answers_first: bool = True  # answer "unload" before the model is unloaded
    # discovery
    ps_seconds: float = 0
    ps_lists_loading: bool = False  # before 0.30 a model was listed before it was ready
    ps_blocks_while_unloading: bool = True  # since 0.32.4
    # obstruction: these two concern requests that run a model, not discovery
    busy: int = 0  # the next so many are refused with 503
    resets: int = 0  # the next so many have their connection reset before the headers
    # pulling
    pull_seconds: float = 0
    pull_failure: str | None = None  # an error line after the first status


@dataclass(frozen=True)
class Answer:
    """What to answer in place of the default. A `status` or `raw` is sent at once, before a model is even looked up;
    all the rest is how the model generates once it is loaded. None = as the habits say.
    """

    chunks: Sequence[str] | None = None
    thinking: Sequence[str] | None = None
    tool_calls: Sequence[Mapping[str, Any]] = ()  # {"name": …, "arguments": {…}}
    tool_calls_last: bool | None = None  # on the done:true chunk; None = as the model's template does
    done_reason: str = "stop"
    context_tokens: int | None = None
    error_after: int | None = None
    end_after: int | None = None
    reset_after: int | None = None
    hold: asyncio.Event | None = None  # wait for this event …
    hold_after: int = 0  # … before this chunk
    error: str | None = None  # with `error_after`, or with `status`: {"error": …}
    status: int | None = None
    raw: bytes | None = None  # the whole body, as it is
    content_type: str = "application/json; charset=utf-8"  # of `raw`
    headers: Mapping[str, str] = field(default_factory=dict)  # with `status` or `raw`


@dataclass
class Seen:
    """A received request."""

    method: str
    path: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    at: float  # monotonic
    connection: int  # the number of its connection, counted from 1
    status: int | None = None  # None: not answered yet
    aborted: bool = False  # the client hung up before the end
    finished: bool = False
    chunks: int = 0  # pieces of a stream that were sent

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass(eq=False)
class Resident:
    """A runner: a model in memory."""

    name: str
    model: Model
    blob: str
    options: Object
    shift: bool
    keep_alive: float
    slots: asyncio.Semaphore
    references: int = 0
    expires_at: datetime | None = None  # None until its first request ended: ps estimates it then
    timer: asyncio.TimerHandle | None = None
    unloading: bool = False
    evicted: bool = False  # to be evicted for another model
    dead: bool = False  # its process crashed: listed still, and reloaded for the next request
    crashed: asyncio.Event = field(default_factory=asyncio.Event)
    exchanges: "set[Exchange]" = field(default_factory=set)  # generations under way

    @property
    def context_length(self) -> int:
        return effective_num_ctx(self.model, self.options)

    def serves(self, model: Model, options: Object, shift: bool) -> bool:
        """Whether a request can use this runner as it is (the opposite of Ollama's needsReload)."""
        mine, wanted = self.options, options
        return (
            not self.dead
            and self.shift == shift
            and ("num_ctx" not in (mine | wanted) or self.context_length == effective_num_ctx(model, wanted))
            and mine.get("num_batch", 512) == wanted.get("num_batch", 512)
            and (wanted.get("num_gpu", -1) < 0 or mine.get("num_gpu", -1) == wanted["num_gpu"])
            and all(mine.get(key) == wanted.get(key) for key in RUNNER_OPTIONS)
        )


class Failure(Exception):
    """An answer with a status other than 200, with Ollama's text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def effective_num_ctx(model: Model, options: Object) -> int:
    return min(max(int(options.get("num_ctx", model.default_num_ctx)), 4), model.context_length)


def short(name: str) -> str:
    """Return one name for `Llama3.2`, `llama3.2:latest` and `registry.ollama.ai/library/llama3.2`."""
    for prefix in ("registry.ollama.ai/", "library/"):
        name = name[len(prefix) :] if name.lower().startswith(prefix) else name
    return name[: -len(":latest")] if name.lower().endswith(":latest") else name


def tagged(name: str) -> str:
    return name if ":" in name.rsplit("/", 1)[-1] else f"{name}:latest"


def valid_name(name: str) -> bool:
    return (
        re.fullmatch(r"(?:[\w.-]+(?::\d+)?/)?(?:[\w.-]+/)?[A-Za-z0-9_][\w.-]*(?::[A-Za-z0-9_][\w.-]*)?", name)
        is not None
    )


# ------------------------------------------------------------------------------------------------- the wire


class Exchange:
    """One request and its answer."""

    def __init__(self, target: "OllamaTarget", connection: "Connection", seen: Seen, keep_alive: bool) -> None:
        self.target = target
        self.connection = connection
        self.seen = seen
        self.keep_alive = keep_alive
        self.shape: Shape = NATIVE
        self.scripted: Answer | None = None
        self._head = b""  # headers that wait for the first token

    @property
    def started(self) -> bool:
        return self.seen.status is not None

    async def reply(
        self, status: int, body: bytes = b"", content_type: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send the whole answer at once."""
        head = self._headers(status, content_type, {"Content-Length": str(len(body)), **(headers or {})})
        await self._put(head if self.seen.method == "HEAD" else head + body)

    async def begin(self, content_type: str) -> None:
        """Begin a stream; its headers are sent with its first line unless a habit sends them earlier."""
        self._head = self._headers(200, content_type, {"Transfer-Encoding": "chunked"})
        if not self.target.habits.headers_with_first_token:
            head, self._head = self._head, b""
            await self._put(head)

    async def send(self, data: bytes) -> None:
        if not data:
            return
        head, self._head = self._head, b""
        self.seen.chunks += 1
        await self._put(b"%s%x\r\n%s\r\n" % (head, len(data), data))
        self.target.changed()

    async def end(self) -> None:
        head, self._head = self._head, b""
        await self._put(head + b"0\r\n\r\n")

    def _headers(self, status: int, content_type: str, headers: Mapping[str, str]) -> bytes:
        self.seen.status = status
        phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Unknown"
        lines = [f"HTTP/1.1 {status} {phrase}"]
        if content_type:
            lines.append(f"Content-Type: {content_type}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines.append(f"Date: {self.target.date()}")
        if not self.keep_alive:
            lines.append("Connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def _put(self, data: bytes) -> None:
        size = self.target.habits.fragment_bytes
        if not size:
            self.connection.write(data)
        else:
            for start in range(0, len(data), size):
                self.connection.write(data[start : start + size])
                await asyncio.sleep(0)  # a reader in the same loop needs two rounds to read this piece alone
                await asyncio.sleep(0)
        await self.connection.drained()


class Connection(asyncio.Protocol):
    """One connection: requests are parsed as they come and answered one after the other."""

    def __init__(self, target: "OllamaTarget", sock: socket.socket) -> None:
        self.target = target
        self.number = next(target.connection_numbers)
        self.sock = sock
        self.transport: asyncio.Transport | None = None
        self.gone = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._held: list[bytes] = []  # written while the laptop slept
        self._drained: asyncio.Future[None] | None = None
        self._ours = False  # we closed it

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.target.connections.add(self)
        if self.target.asleep:
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.target.connections.discard(self)
        self.resume_writing()
        for exchange in [*([self._current] if self._current else []), *self._waiting]:
            exchange.seen.aborted = not self._ours
        self._waiting.clear()
        if self._task:
            self._task.cancel()
        if not self.gone.done():
            self.gone.set_result(None)
        self.target.changed()

    def pause_writing(self) -> None:
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained and not drained.done():
            drained.set_result(None)

    # the parser's side

    def on_message_begin(self) -> None:
        self._url = b""
        self._fields: dict[str, str] = {}
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._fields.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = unquote(httptools.parse_url(self._url).path.decode())
        seen = Seen(
            self._parser.get_method().decode(), path, self._fields, b"".join(self._body), time.monotonic(), self.number
        )
        self._waiting.append(Exchange(self.target, self, seen, self._parser.should_keep_alive()))
        if self.target.remember:
            self.target.seen.append(seen)
        self.target.changed()
        self._next()

    def _next(self) -> None:
        if self._task is None and self._waiting:
            self._current = self._waiting.popleft()
            self._task = asyncio.get_running_loop().create_task(self._answer(self._current))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self.target.answer(exchange)
            exchange.seen.finished = exchange.started
        finally:
            self._task = self._current = None
            self.target.changed()
        if not exchange.keep_alive:
            self.close()
        self._next()

    # the target's side

    @property
    def busy(self) -> bool:
        return self._task is not None

    def write(self, data: bytes) -> None:
        if self.target.asleep or self._held:
            self._held.append(data)
        elif self.transport and not self.transport.is_closing():
            self.transport.write(data)

    async def drained(self) -> None:
        if self._drained:
            await asyncio.shield(self._drained)

    def fall_asleep(self) -> None:
        if self.transport and self.transport.is_reading():
            self.transport.pause_reading()  # so that not even a FIN is noticed

    def wake_up(self) -> None:
        held, self._held = self._held, []
        for data in held:
            self.write(data)
        if self.transport and not self.transport.is_closing():
            self.transport.resume_reading()

    def close(self) -> None:
        self._ours = True
        if self.transport:
            self.transport.close()

    def abort(self, *, reset: bool = False) -> None:
        """Close at once; a reset sends RST in place of FIN, as the kernel does for a process that died."""
        self._ours = True
        if self.transport and not self.transport.is_closing():
            if reset:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()


# --------------------------------------------------------------------------------- the shapes of the answers


def dumps(value: Any) -> bytes:
    """Encode JSON as Go does: compact, UTF-8, and with <, > and & escaped."""
    data = msgspec.json.encode(value)
    if b"<" in data or b">" in data or b"&" in data:
        data = data.replace(b"<", b"\\u003c").replace(b">", b"\\u003e").replace(b"&", b"\\u0026")
    return data


def quoted(text: str) -> str:
    """Quote a text as Go's %q does."""
    return json.dumps(text, ensure_ascii=False)


def now_text() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class Shape(Protocol):
    """How the native objects of chat and generate look to the caller. Like Ollama, it re-encodes what it would have
    written natively, which is why an error in mid-stream is lost on every API but its own.
    """

    stream_type: str
    whole_type: str

    def chunk(self, native: Object) -> bytes: ...
    def whole(self, native: Object) -> bytes: ...
    def error(self, status: int, text: str) -> bytes: ...


class NativeShape:
    stream_type = "application/x-ndjson"
    whole_type = "application/json; charset=utf-8"

    def chunk(self, native: Object) -> bytes:
        return dumps(native) + b"\n"

    def whole(self, native: Object) -> bytes:
        return dumps(native)

    def error(self, status: int, text: str) -> bytes:
        return dumps({"error": text})


NATIVE: Final = NativeShape()


def openai_error(status: int, text: str) -> Object:
    kind = {400: "invalid_request_error", 404: "not_found_error"}.get(status, "api_error")
    return {"error": {"message": text, "type": kind, "param": None, "code": None}}


def openai_usage(native: Object) -> Object:
    prompt, completion = native.get("prompt_eval_count", 0), native.get("eval_count", 0)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def openai_tool_calls(calls: Sequence[Object]) -> list[Object]:
    return [
        {
            "id": call.get("id", ""),
            "index": call["function"]["index"],
            "type": "function",
            "function": {
                "name": call["function"]["name"],
                "arguments": dumps(call["function"]["arguments"]).decode(),
            },
        }
        for call in calls
    ]


def data_line(value: Any) -> bytes:
    return b"data: " + dumps(value) + b"\n\n"


def event_lines(kind: str, value: Any) -> bytes:
    return f"event: {kind}\n".encode() + data_line(value)


class OpenAIShape:
    """What /v1/chat/completions and /v1/completions share."""

    stream_type = "text/event-stream"
    whole_type = "application/json"

    def __init__(self, request: Object, number: int) -> None:
        self.usage = bool((request.get("stream_options") or {}).get("include_usage"))
        self.number = number
        self.created = int(time.time())

    def error(self, status: int, text: str) -> bytes:
        return dumps(openai_error(status, text)) + b"\n"

    def envelope(self, prefix: str, kind: str, native: Object) -> Object:
        return {
            "id": f"{prefix}-{self.number}",
            "object": kind,
            "created": self.created,
            "model": native.get("model", ""),
            "system_fingerprint": "fp_ollama",
        }


class ChatCompletionShape(OpenAIShape):
    def __init__(self, request: Object, number: int) -> None:
        super().__init__(request, number)
        self.first = True
        self.called = False

    def chunk(self, native: Object) -> bytes:
        message = native.get("message", {})
        calls = openai_tool_calls(message.get("tool_calls", ()))
        thinking, content = message.get("thinking", ""), message.get("content", "")
        out = b""
        if self.first or not native.get("done") or content or thinking or calls:
            delta: Object = {"role": "assistant"} if self.first else {}
            delta["content"] = content
            if thinking:
                delta["reasoning"] = thinking
            if calls:
                delta["tool_calls"] = calls
            self.called = self.called or bool(calls)
            self.first = False
            out += self._line(native, delta, None)
        if native.get("done"):
            reason = native.get("done_reason") or "stop"
            out += self._line(native, {}, "tool_calls" if reason == "stop" and self.called else reason)
            if self.usage:
                envelope = self.envelope("chatcmpl", "chat.completion.chunk", native)
                out += data_line(envelope | {"choices": [], "usage": openai_usage(native)})
            out += b"data: [DONE]\n\n"
        return out

    def whole(self, native: Object) -> bytes:
        message = native.get("message", {})
        calls = openai_tool_calls(message.get("tool_calls", ()))
        answer: Object = {"role": "assistant", "content": message.get("content", "")}
        if message.get("thinking"):
            answer["reasoning"] = message["thinking"]
        if calls:
            answer["tool_calls"] = calls
        reason = native.get("done_reason")
        choice = {
            "index": 0,
            "message": answer,
            "finish_reason": "tool_calls" if reason == "stop" and calls else reason,
        }
        envelope = self.envelope("chatcmpl", "chat.completion", native)
        return dumps(envelope | {"choices": [choice], "usage": openai_usage(native)}) + b"\n"

    def _line(self, native: Object, delta: Object, reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return data_line(self.envelope("chatcmpl", "chat.completion.chunk", native) | {"choices": [choice]})


class CompletionShape(OpenAIShape):
    def chunk(self, native: Object) -> bytes:
        value = self._value(native)
        if self.usage:
            value["usage"] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        out = data_line(value)
        if native.get("done"):
            if self.usage:
                out += data_line(value | {"choices": [], "usage": openai_usage(native)})
            out += b"data: [DONE]\n\n"
        return out

    def whole(self, native: Object) -> bytes:
        return dumps(self._value(native) | {"usage": openai_usage(native)}) + b"\n"

    def _value(self, native: Object) -> Object:
        choice = {"text": native.get("response", ""), "index": 0, "finish_reason": native.get("done_reason")}
        return self.envelope("cmpl", "text_completion", native) | {"choices": [choice]}


class ResponsesShape:
    stream_type = "text/event-stream"
    whole_type = "application/json"

    def __init__(self, request: Object, number: int) -> None:
        self.request = request
        self.id = f"resp_{number}"
        self.item = f"msg_{number}"
        self.sequence = itertools.count()
        self.first = True
        self.output: list[Object] = []  # items that are complete
        self.text = ""
        self.thinking = ""

    def error(self, status: int, text: str) -> bytes:
        return dumps(openai_error(status, text)) + b"\n"

    def chunk(self, native: Object) -> bytes:
        message = native.get("message", {})
        out = b""
        if self.first:
            self.first = False
            out += self._event("response.created", response=self._response("in_progress", [], None))
            out += self._event("response.in_progress", response=self._response("in_progress", [], None))
        if message.get("thinking"):
            out += self._think(message["thinking"])
        if message.get("tool_calls"):
            out += self._finish_thinking()
            for call in openai_tool_calls(message["tool_calls"]):
                out += self._call(call)
        elif message.get("content"):
            out += self._finish_thinking() + self._say(message["content"])
        if native.get("done"):
            out += self._finish_thinking() + self._finish_text()
            out += self._event("response.completed", response=self._completed(native, self.output))
        return out

    def whole(self, native: Object) -> bytes:
        message = native.get("message", {})
        output: list[Object] = []
        if message.get("thinking"):
            output.append(self._reasoning(message["thinking"]))
        if message.get("tool_calls"):
            output += [self._function_call(call) for call in openai_tool_calls(message["tool_calls"])]
        else:
            output.append(self._message(message.get("content", "")))
        return dumps(self._completed(native, output)) + b"\n"

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event_lines(kind, {"type": kind, "sequence_number": next(self.sequence), **fields})

    def _think(self, text: str) -> bytes:
        out = b""
        where = {"item_id": f"rs_{self.id}", "output_index": len(self.output), "summary_index": 0}
        if not self.thinking:
            item = {"id": f"rs_{self.id}", "type": "reasoning", "summary": []}
            out += self._event("response.output_item.added", output_index=len(self.output), item=item)
        self.thinking += text
        return out + self._event("response.reasoning_summary_text.delta", **where, delta=text)

    def _finish_thinking(self) -> bytes:
        if not self.thinking:
            return b""
        index, thinking = len(self.output), self.thinking
        self.thinking = ""
        self.output.append(self._reasoning(thinking))
        where = {"item_id": f"rs_{self.id}", "output_index": index, "summary_index": 0}
        return self._event("response.reasoning_summary_text.done", **where, text=thinking) + self._event(
            "response.output_item.done", output_index=index, item=self.output[-1]
        )

    def _call(self, call: Object) -> bytes:
        index = len(self.output)
        item = self._function_call(call)
        self.output.append(item)
        where = {"item_id": item["id"], "output_index": index}
        return (
            self._event(
                "response.output_item.added",
                output_index=index,
                item=item | {"status": "in_progress", "arguments": ""},
            )
            + self._event("response.function_call_arguments.delta", **where, delta=item["arguments"])
            + self._event("response.function_call_arguments.done", **where, arguments=item["arguments"])
            + self._event("response.output_item.done", output_index=index, item=item)
        )

    def _say(self, text: str) -> bytes:
        out = b""
        where = {"item_id": self.item, "output_index": len(self.output), "content_index": 0}
        if not self.text:
            item = self._message("") | {"status": "in_progress", "content": []}
            out += self._event("response.output_item.added", output_index=len(self.output), item=item)
            out += self._event("response.content_part.added", **where, part=self._part(""))
        self.text += text
        return out + self._event("response.output_text.delta", **where, delta=text, logprobs=[])

    def _finish_text(self) -> bytes:
        if not self.text:
            return b""
        index = len(self.output)
        self.output.append(self._message(self.text))
        where = {"item_id": self.item, "output_index": index, "content_index": 0}
        return (
            self._event("response.output_text.done", **where, text=self.text, logprobs=[])
            + self._event("response.content_part.done", **where, part=self._part(self.text))
            + self._event("response.output_item.done", output_index=index, item=self.output[-1])
        )

    def _part(self, text: str) -> Object:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _message(self, text: str) -> Object:
        return {
            "id": self.item,
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [self._part(text)],
        }

    def _reasoning(self, text: str) -> Object:
        summary = [{"type": "summary_text", "text": text}]
        return {"id": f"rs_{self.id}", "type": "reasoning", "summary": summary, "encrypted_content": text}

    def _function_call(self, call: Object) -> Object:
        return {
            "id": f"fc_{self.id}_{call['index']}",
            "type": "function_call",
            "status": "completed",
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": call["function"]["arguments"],
        }

    def _completed(self, native: Object, output: list[Object]) -> Object:
        spent, made = native.get("prompt_eval_count", 0), native.get("eval_count", 0)
        usage = {
            "input_tokens": spent,
            "output_tokens": made,
            "total_tokens": spent + made,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        return self._response("completed", output, usage) | {"completed_at": int(time.time())}

    def _response(self, status: str, output: list[Object], usage: Object | None) -> Object:
        request = self.request
        return {
            "id": self.id,
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": status,
            "incomplete_details": None,
            "model": request.get("model", ""),
            "previous_response_id": None,
            "instructions": request.get("instructions"),
            "output": output,
            "error": None,
            "tools": request.get("tools") or [],
            "tool_choice": "auto",
            "truncation": request.get("truncation") or "disabled",
            "parallel_tool_calls": True,
            "text": {"format": (request.get("text") or {}).get("format") or {"type": "text"}},
            "top_p": request.get("top_p") or 1.0,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "top_logprobs": 0,
            "temperature": 1.0 if request.get("temperature") is None else request["temperature"],
            "reasoning": request.get("reasoning"),
            "usage": usage,
            "max_output_tokens": request.get("max_output_tokens"),
            "max_tool_calls": None,
            "store": False,
            "background": bool(request.get("background")),
            "service_tier": "default",
            "metadata": {},
            "safety_identifier": None,
            "prompt_cache_key": None,
        }


class MessagesShape:
    stream_type = "text/event-stream"
    whole_type = "application/json"

    def __init__(self, request: Object, number: int) -> None:
        self.model = request.get("model", "")
        self.id = f"msg_{number}"
        self.first = True
        self.index = 0
        self.open: str | None = None  # the kind of the block under way
        self.called = False

    def error(self, status: int, text: str) -> bytes:
        kinds = {
            400: "invalid_request_error",
            401: "authentication_error",
            403: "permission_error",
            404: "not_found_error",
            429: "rate_limit_error",
            503: "overloaded_error",
        }
        error = {"type": kinds.get(status, "api_error"), "message": text}
        return dumps({"type": "error", "error": error, "request_id": f"req_{self.id}"}) + b"\n"

    def chunk(self, native: Object) -> bytes:
        message = native.get("message", {})
        out = b""
        if self.first:
            self.first = False
            usage = {"input_tokens": native.get("prompt_eval_count", 0), "output_tokens": 0}
            out += self._event("message_start", message=self._envelope([]) | {"usage": usage})
        if message.get("thinking"):
            out += self._block("thinking", {"thinking": ""})
            out += self._delta({"type": "thinking_delta", "thinking": message["thinking"]})
        if message.get("content"):
            out += self._block("text", {"text": ""})
            out += self._delta({"type": "text_delta", "text": message["content"]})
        for call in openai_tool_calls(message.get("tool_calls", ())):
            self.called = True
            out += self._block("tool_use", {"id": call["id"], "name": call["function"]["name"], "input": {}})
            out += self._delta({"type": "input_json_delta", "partial_json": call["function"]["arguments"]})
            out += self._stop()
        if native.get("done"):
            usage = {"input_tokens": native.get("prompt_eval_count", 0), "output_tokens": native.get("eval_count", 0)}
            out += self._stop()
            out += self._event("message_delta", delta={"stop_reason": self._reason(native)}, usage=usage)
            out += self._event("message_stop")
        return out

    def whole(self, native: Object) -> bytes:
        message = native.get("message", {})
        content: list[Object] = []
        if message.get("thinking"):
            content.append({"type": "thinking", "thinking": message["thinking"]})
        if message.get("content"):
            content.append({"type": "text", "text": message["content"]})
        for call in message.get("tool_calls", ()):
            self.called = True
            function = call["function"]
            content.append(
                {
                    "type": "tool_use",
                    "id": call.get("id", ""),
                    "name": function["name"],
                    "input": function["arguments"],
                }
            )
        usage = {"input_tokens": native.get("prompt_eval_count", 0), "output_tokens": native.get("eval_count", 0)}
        answer = self._envelope(content)
        if reason := self._reason(native):
            answer["stop_reason"] = reason
        return dumps(answer | {"usage": usage}) + b"\n"

    def _envelope(self, content: list[Object]) -> Object:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content}

    def _reason(self, native: Object) -> str:
        reason = native.get("done_reason", "")
        if self.called:
            return "tool_use"
        return {"stop": "end_turn", "length": "max_tokens", "": ""}.get(reason, "stop_sequence")

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event_lines(kind, {"type": kind, **fields})

    def _block(self, kind: str, start: Object) -> bytes:
        if self.open == kind:
            return b""
        out = self._stop()
        self.open = kind
        return out + self._event("content_block_start", index=self.index, content_block={"type": kind, **start})

    def _delta(self, delta: Object) -> bytes:
        return self._event("content_block_delta", index=self.index, delta=delta)

    def _stop(self) -> bytes:
        if self.open is None:
            return b""
        self.open = None
        self.index += 1
        return self._event("content_block_stop", index=self.index - 1)


# ------------------------------------------------------------- the requests of the compatible APIs as native ones


def think_from_effort(effort: str) -> bool | str | None:
    known: dict[str, bool | str | None] = {
        "": None,
        "none": False,
        "minimal": "low",
        "low": "low",
        "medium": "medium",
        "high": "high",
        "max": "max",
        "xhigh": "max",
        "ultra": "max",
    }
    if effort not in known:
        raise Failure(400, f"invalid reasoning value: {quoted(effort)}")
    return known[effort]


def data_url(url: str) -> str:
    if url.startswith(("http://", "https://")):
        raise Failure(400, "image URLs are not currently supported, please use base64 encoded data instead")
    match = re.match(r"data:(image/(?:jpeg|jpg|png|webp))?;base64,", url)
    if not match:
        raise Failure(400, "invalid image input")
    return url[match.end() :]


def native_parts(role: str, content: Any) -> list[Object]:
    """Return the native messages for one message of OpenAI's: each part becomes its own message."""
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    messages: list[Object] = []
    for part in content or []:
        match part:
            case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
                messages.append({"role": role, "content": text})
            case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
                messages.append({"role": role, "content": "", "images": [data_url(url)]})
            case {"type": "input_image", "image_url": str(url)}:
                messages.append({"role": role, "content": "", "images": [data_url(url)]})
            case _:
                raise Failure(400, "invalid message format")
    return messages


def native_calls(calls: Sequence[Object]) -> list[Object]:
    try:
        return [
            {
                "id": call.get("id", ""),
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.loads(call["function"]["arguments"]),
                },
            }
            for call in calls
        ]
    except ValueError:
        raise Failure(400, "invalid tool call arguments") from None


def sampling(request: Object, limit: str) -> Object:
    names = {"temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty"}
    options = {name: request[name] for name in names if request.get(name) is not None}
    if request.get(limit) is not None:
        options["num_predict"] = request[limit]
    stop = request.get("stop")
    if stop:
        options["stop"] = [stop] if isinstance(stop, str) else stop
    return options


def native_from_chat_completion(request: Object) -> Object:
    if not request.get("messages"):
        raise Failure(400, "[] is too short - 'messages'")
    messages: list[Object] = []
    for message in request["messages"]:
        calls = message.get("tool_calls")
        if message.get("content") is None and not calls:
            raise Failure(400, "invalid message content type: <nil>")
        parts = native_parts(message["role"], message.get("content")) or [{"role": message["role"], "content": ""}]
        if calls:
            parts[-1]["tool_calls"] = native_calls(calls)
        messages += parts
    form = request.get("response_format") or {}
    format_ = {"json_object": "json", "json_schema": (form.get("json_schema") or {}).get("schema")}
    effort = (request.get("reasoning") or {}).get("effort") or request.get("reasoning_effort") or ""
    return {
        "model": request.get("model", ""),
        "messages": messages,
        "stream": bool(request.get("stream")),
        "format": format_.get(form.get("type", "")),
        "tools": request.get("tools") or [],
        "think": think_from_effort(effort),
        "options": sampling(request, "max_tokens"),
        "top_logprobs": request.get("top_logprobs", 0),
    }


def native_from_completion(request: Object) -> Object:
    if not isinstance(request.get("prompt", ""), str):
        raise Failure(400, "json: cannot unmarshal array into Go struct field CompletionRequest.prompt of type string")
    return {
        "model": request.get("model", ""),
        "prompt": request.get("prompt", ""),
        "suffix": request.get("suffix") or "",
        "stream": bool(request.get("stream")),
        "options": sampling(request, "max_tokens"),
    }


def native_from_responses(request: Object) -> Object:
    messages: list[Object] = []
    if request.get("instructions"):
        messages.append({"role": "system", "content": request["instructions"]})
    given = request.get("input") or ""
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        match item.get("type", "message"):
            case "message":
                messages += native_parts(item["role"], item["content"])
            case "function_call":
                call = {"id": item["call_id"], "function": {"name": item["name"], "arguments": item["arguments"]}}
                messages.append({"role": "assistant", "content": "", "tool_calls": native_calls([call])})
            case "function_call_output":
                messages.append({"role": "tool", "content": item["output"], "tool_call_id": item["call_id"]})
            case "reasoning":
                pass
            case unknown:
                raise Failure(400, f"unknown input item type: {unknown}")
    form = (request.get("text") or {}).get("format") or {}
    tools = [{"type": "function", "function": tool} for tool in request.get("tools") or []]
    return {
        "model": request.get("model", ""),
        "messages": messages,
        "stream": bool(request.get("stream")),
        "format": form.get("schema") if form.get("type") == "json_schema" else None,
        "tools": tools,
        "think": think_from_effort((request.get("reasoning") or {}).get("effort") or ""),
        "options": sampling(request, "max_output_tokens"),
    }


def native_from_messages(request: Object) -> Object:
    if not request.get("model"):
        raise Failure(400, "model is required")
    if (request.get("max_tokens") or 0) <= 0:
        raise Failure(400, "max_tokens is required and must be positive")
    if not request.get("messages"):
        raise Failure(400, "messages is required")
    system = request.get("system") or ""
    text = system if isinstance(system, str) else "\n".join(block.get("text", "") for block in system)
    messages: list[Object] = [{"role": "system", "content": text}] if text else []
    for message in request["messages"]:
        messages += anthropic_parts(message["role"], message["content"])
    tools = [
        {"type": "function", "function": {"name": tool["name"], "parameters": tool.get("input_schema", {})}}
        for tool in request.get("tools") or []
    ]
    return {
        "model": request["model"],
        "messages": messages,
        "stream": bool(request.get("stream")),
        "tools": tools,
        "think": True if (request.get("thinking") or {}).get("type") == "enabled" else None,
        "options": sampling(request | {"stop": request.get("stop_sequences")}, "max_tokens"),
        "relax_thinking": True,
    }


def anthropic_parts(role: str, content: Any) -> list[Object]:
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    message: Object = {"role": role, "content": ""}
    results: list[Object] = []
    for block in content:
        match block:
            case {"type": "text", "text": str(text)}:
                message["content"] += text
            case {"type": "image", "source": {"type": "base64", "data": str(data)}}:
                message.setdefault("images", []).append(data)
            case {"type": "tool_use", "id": str(call), "name": str(name)}:
                function = {"name": name, "arguments": block.get("input", {})}
                message.setdefault("tool_calls", []).append({"id": call, "function": function})
            case {"type": "tool_result", "tool_use_id": str(call)}:
                results.append({"role": "tool", "content": str(block.get("content", "")), "tool_call_id": call})
            case {"type": "thinking", "thinking": str(text)}:
                message["thinking"] = text
            case _:
                raise Failure(400, f"invalid content block type: {block.get('type')}")
    return [*results, message] if len(message) > 2 or message["content"] or not results else results


# --------------------------------------------------------------------------------------- what a request asks for


def parsed(body: bytes, empty: str = "missing request body") -> Object:
    """Parse the body, whatever its Content-Type says."""
    if not body.strip():
        raise Failure(400, empty)
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        first = body.strip()[:1].decode("latin-1")
        if first in '{["':
            raise Failure(400, "unexpected EOF") from None
        raise Failure(400, f"invalid character '{first}' looking for beginning of value") from None
    if not isinstance(value, dict):
        raise Failure(400, f"json: cannot unmarshal {go_kind(value)} into Go value of type api.ChatRequest")
    for name, kind, go_type in (
        ("model", str, "string"),
        ("name", str, "string"),
        ("prompt", str, "string"),
        ("stream", bool, "bool"),
        ("messages", list, "[]api.Message"),
        ("options", dict, "map[string]interface {}"),
    ):
        if value.get(name) is not None and not isinstance(value[name], kind):
            given = go_kind(value[name])
            raise Failure(400, f"json: cannot unmarshal {given} into Go struct field .{name} of type {go_type}")
    return value


def go_kind(value: Any) -> str:
    kinds = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def keep_alive_seconds(value: Any) -> float | None:
    """Return the seconds; None = not given, below zero = for ever."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Failure(400, f"Unsupported type: '{go_kind(value)}'")
    seconds = go_duration(value) if isinstance(value, str) else float(value)
    return FOR_EVER if seconds < 0 else seconds


def go_duration(text: str) -> float:
    units = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
    number = r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)"
    if text in ("0", "+0", "-0"):
        return 0.0
    if re.fullmatch(rf"[+-]?(?:{number})+", text) is None:
        problem = "missing unit in" if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)", text) else "invalid"
        raise Failure(400, f"time: {problem} duration {quoted(text)}")
    seconds = sum(float(amount) * units[unit] for amount, unit in re.findall(number, text))
    return -seconds if text.startswith("-") else seconds


def checked_options(options: Object | None) -> Object:
    """Check the options. A wrong type is a 500, although it is the client's mistake; an unknown name is only logged."""
    for name, value in (options or {}).items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None:
            continue
        if name in INTEGERS and not number:
            raise Failure(500, f"option {quoted(name)} must be of type integer")
        if name in FLOATS and not number:
            raise Failure(500, f"option {quoted(name)} must be of type float32")
        if name == "use_mmap" and not isinstance(value, bool):
            raise Failure(500, f"option {quoted(name)} must be of type boolean")
        if name == "stop" and not isinstance(value, list):
            raise Failure(500, f"option {quoted(name)} must be of type array")
    return {name: value for name, value in (options or {}).items() if value is not None}


def checked_think(think: Any) -> None:
    if not (think is None or isinstance(think, bool) or think in ("low", "medium", "high", "max")):
        raise Failure(
            400,
            f'invalid think value: {quoted(str(think))} (must be "high", "medium", "low", "max", true, or false)',
        )


def sample(schema: Any) -> Any:
    """Return a value that roughly fits the schema."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        return sample(schema["anyOf"][0])
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            return {name: sample(part) for name, part in schema.get("properties", {}).items()}
        case "array":
            return [sample(schema["items"])] if "items" in schema else []
        case "integer":
            return 1
        case "number":
            return 1.5
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return "text"


def embedding(text: str, length: int) -> list[float]:
    """Return a vector that depends on the text alone; not normalised."""
    digest = b"".join(hashlib.sha256(f"{part} {text}".encode()).digest() for part in range(math.ceil(length / 16)))
    return [value / 8192 - 4 for value in struct.unpack(f"<{length}H", digest[: 2 * length])]


def normalised(vector: Sequence[float]) -> list[float]:
    norm = math.sqrt(sum(value * value for value in vector)) or 1.0
    return [value / norm for value in vector]


@dataclass(frozen=True)
class Asked:
    """What a request wants from a model, whichever API it used."""

    request: Object  # in native form
    chat: bool
    name: str  # as the caller spelled it
    installed: str
    model: Model
    options: Object
    keep_alive: float | None
    started: float

    @property
    def shift(self) -> bool:
        return self.request.get("shift") is not False

    @property
    def stream(self) -> bool:
        return self.request.get("stream") is not False

    @property
    def prompt(self) -> str:
        """Return roughly what the model would read."""
        if not self.chat:
            return str(self.request.get("prompt") or "")
        return " ".join(str(message.get("content") or "") for message in self.request.get("messages") or [])

    @property
    def last(self) -> str:
        """Return the last message of the user."""
        if not self.chat:
            return self.prompt
        said = [m for m in self.request.get("messages") or [] if str(m.get("role", "")).lower() == "user"]
        return " ".join(str(m.get("content") or "") for m in said[-1:])

    @property
    def images(self) -> int:
        holders = self.request.get("messages") or [] if self.chat else [self.request]
        return sum(len(holder.get("images") or []) for holder in holders)


@dataclass
class Waiting:
    """A request in the load queue."""

    asked: Asked
    handed: "asyncio.Future[Resident]"
    begun: bool = False
    evicted_all: bool = False


Route = Callable[[Exchange], Awaitable[None]]


# ------------------------------------------------------------------------------------------------- the target


class OllamaTarget:
    """The server. It uses one loop and one thread: what a test reads between two awaits is consistent."""

    def __init__(
        self,
        models: Mapping[str, Model] | None = None,
        habits: Habits | None = None,
        parallel: int = 1,
        max_loaded: int = 3,
        version: str = "0.33.0",
        *,
        max_queue: int = 512,
        keep_alive: float = 300,
        remember: bool = True,
    ) -> None:
        self.models = {short(name): model for name, model in (models or {}).items()}
        self.habits = habits or Habits()
        self.parallel = parallel
        self.max_loaded = max_loaded
        self.version = version
        self.max_queue = max_queue
        self.keep_alive = keep_alive
        self.remember = remember  # False: `seen` stays empty, for long benchmarks
        self.port = 0

        self.seen: list[Seen] = []
        self.resident: dict[str, Resident] = {}
        self.loading: Resident | None = None
        self.loads: list[str] = []  # generations that succeeded
        self.unloads: list[str] = []
        self.swaps = 0  # how often a model was evicted for another
        self.aborted_loads = 0
        self.failed_loads = 0
        self.in_flight: Counter[str] = Counter()  # generations at this moment
        self.max_in_flight: dict[str, int] = {}
        self.blobs: dict[str, int] = {}  # uploaded: digest -> size
        self.errors: list[BaseException] = []  # errors in this file; stop() raises the first

        self.connections: set[Connection] = set()
        self.connection_numbers = itertools.count(1)
        self._numbers = itertools.count(1)
        self._awake = asyncio.Event()
        self._awake.set()
        self._unloaded = asyncio.Event()
        self._queue: asyncio.Queue[Waiting] = asyncio.Queue()
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._connecting: set[asyncio.Task[Any]] = set()
        self._watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._next: dict[str, deque[Answer]] = {}
        self._always: dict[str, Answer] = {}
        self._table = self._routes()
        self._installed_at = datetime.now(UTC)
        self._date = (0, "")

    # its life

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def asleep(self) -> bool:
        return not self._awake.is_set()

    async def start(self, port: int = 0) -> None:
        self.port = port
        self._listen()
        self._spawn(self._schedule())

    async def stop(self) -> None:
        await self.go_away(restart=True)
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.errors:
            raise self.errors[0]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def go_away(self, *, restart: bool = False) -> None:
        """Stop listening and close every connection. With `restart` the models leave memory, too."""
        if self._listener:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await asyncio.gather(*self._connecting)
        connections = [*self.connections]
        for connection in connections:
            connection.abort()
        await asyncio.gather(*(connection.gone for connection in connections))
        await self.until(lambda: not any(connection.busy for connection in connections))
        if restart:
            for runner in self.resident.values():
                self._cancel_timer(runner)
            self.resident.clear()
            self._unloaded.set()

    async def come_back(self) -> None:
        """Listen on the same port again."""
        self._listen()

    def sleep(self) -> None:
        """Behave as a laptop whose lid is closed: connections stay open and silent, and new ones are not accepted."""
        self._awake.clear()
        if self._listener:
            asyncio.get_running_loop().remove_reader(self._listener)
        for connection in self.connections:
            connection.fall_asleep()

    def wake(self) -> None:
        self._awake.set()
        for connection in [*self.connections]:
            connection.wake_up()
        if self._listener:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    async def crash_runner(self, name: str | None = None, *, reset: bool = True) -> None:
        """Let the process of one model, or of all, die. `reset`: the connections of its generations are reset, as when
        Ollama dies with it; otherwise they get the error line that Ollama sends when it survives.
        """
        hit: list[Connection] = []
        for runner in [self.resident[short(name)]] if name else [*self.resident.values()]:
            runner.dead = True
            runner.crashed.set()
            hit += [exchange.connection for exchange in runner.exchanges]
        if reset:
            for connection in hit:
                connection.abort(reset=True)
            await asyncio.gather(*(connection.gone for connection in hit))

    def script(self, where: str, *answers: Answer, always: bool = False) -> None:
        """Set the next answers, one for each request, on a path or for a model ("*" = any). With `always` the last one
        stays. Requests that only load or unload use up no answer.
        """
        key = where if where.startswith(("/", "*")) else short(where).lower()
        if always:
            self._always[key] = answers[-1]
            answers = answers[:-1]
        self._next.setdefault(key, deque()).extend(answers)

    def unscript(self) -> None:
        self._next.clear()
        self._always.clear()

    def at(self, path: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.path == path]

    async def until(self, condition: Callable[[], bool], timeout: float | None = 5) -> None:
        """Wait until the condition holds; it is checked whenever something changes here."""
        if condition():
            return
        watcher = (condition, asyncio.get_running_loop().create_future())
        self._watchers.append(watcher)
        try:
            await asyncio.wait_for(watcher[1], timeout)
        finally:
            self._watchers.remove(watcher)

    def changed(self) -> None:
        for condition, met in self._watchers:
            if not met.done() and condition():
                met.set_result(None)

    def date(self) -> str:
        now = int(time.time())
        if self._date[0] != now:
            self._date = (now, datetime.fromtimestamp(now, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"))
        return self._date[1]

    def _listen(self) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.setblocking(False)
        self._listener.bind(("127.0.0.1", self.port))
        self._listener.listen(1024)
        self.port = self._listener.getsockname()[1]
        if not self.asleep:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        while self._listener:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connecting = self._spawn(self._connect(sock))
            self._connecting.add(connecting)
            connecting.add_done_callback(self._connecting.discard)

    async def _connect(self, sock: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(self, sock), sock)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.errors.append(error)

    async def _pass(self, seconds: float) -> None:
        """Let time pass; none passes while the laptop sleeps."""
        if seconds > 0:
            await asyncio.sleep(seconds)
        if self.asleep:
            await self._awake.wait()

    # its scheduler: one load at a time, in order; whoever heads the queue blocks all behind it

    def blob(self, name: str) -> str:
        return self.models[name].blob or hashlib.sha256(f"weights of {name}".encode()).hexdigest()

    @asynccontextmanager
    async def _runner(self, asked: Asked) -> AsyncIterator[Resident]:
        """Return the runner that serves a request; load the model if necessary."""
        runner = self._usable(asked)
        if runner:
            self._take(runner, asked.keep_alive)
        else:
            runner = await self._queued(asked)
        try:
            yield runner
        finally:
            self._leave(runner)

    async def _queued(self, asked: Asked) -> Resident:
        if self._queue.qsize() >= self.max_queue:
            raise Failure(503, BUSY)
        handed: asyncio.Future[Resident] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(Waiting(asked, handed))
        try:
            return await handed
        except asyncio.CancelledError:
            if not handed.cancelled() and handed.exception() is None:
                self._leave(handed.result())
            raise

    def _usable(self, asked: Asked) -> Resident | None:
        runner = self._of(self.blob(asked.installed))
        if runner and not runner.unloading and runner.serves(asked.model, asked.options, asked.shift):
            return runner
        return None

    def _of(self, blob: str) -> Resident | None:
        return next((runner for runner in self.resident.values() if runner.blob == blob), None)

    async def _schedule(self) -> None:
        while True:
            waiting = await self._queue.get()
            while not await self._place(waiting):
                pass

    async def _place(self, waiting: Waiting) -> bool:
        """Try once to find a runner for the request; return False if another model had to be unloaded first."""
        asked, handed = waiting.asked, waiting.handed
        if handed.cancelled() and not waiting.begun:
            return True
        waiting.begun = True  # from here on a client that hangs up does not unblock the queue
        if runner := self._usable(asked):
            if not handed.done():
                self._take(runner, asked.keep_alive)
                handed.set_result(runner)
            return True
        runner = self._of(self.blob(asked.installed))
        if runner is None and len(self.resident) < self.max_loaded:
            return await self._load(waiting)
        victim = runner or self._victim()
        victim.evicted = runner is None
        await self._throw_out(victim)
        return False

    def _victim(self) -> Resident:
        """Choose by the shortest keep_alive, then the name, not the least recently used; prefer an idle runner."""
        order = sorted(self.resident.values(), key=lambda runner: (runner.keep_alive, runner.blob))
        return next((runner for runner in order if not runner.references), order[0])

    async def _throw_out(self, victim: Resident) -> None:
        """Mark the runner for eviction and wait for an unload. New requests still use it and may remove the mark."""
        self._unloaded.clear()
        self._cancel_timer(victim)
        victim.keep_alive = 0
        if not victim.references:
            self._expire(victim)
        self.changed()
        await self._unloaded.wait()

    async def _load(self, waiting: Waiting) -> bool:
        asked, handed = waiting.asked, waiting.handed
        embeds_only = "completion" not in asked.model.capabilities
        runner = Resident(
            name=asked.installed,
            model=asked.model,
            blob=self.blob(asked.installed),
            options=asked.options,
            shift=asked.shift,
            keep_alive=self.keep_alive if asked.keep_alive is None else asked.keep_alive,
            slots=asyncio.Semaphore(1 if embeds_only else asked.model.parallel or self.parallel),
        )
        self.loading = runner
        self.changed()
        progress = self._spawn(self._pass(self.habits.load_seconds))
        try:
            ends: set[asyncio.Future[Any]] = {progress}
            if self.habits.load_aborts_on_close:
                ends.add(handed)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not progress.done():
                self.aborted_loads += 1
                return True
        finally:
            progress.cancel()
            self.loading = None
            self.changed()
        if failure := self._load_failure():
            return await self._fail(waiting, failure)
        self.resident[runner.name] = runner
        self.loads.append(runner.name)
        runner.references = 1
        if handed.done():
            self._leave(runner)
        else:
            handed.set_result(runner)
        self.changed()
        return True

    def _load_failure(self) -> str | None:
        habits = self.habits
        if habits.load_failure is None or habits.load_failures == 0:
            return None
        if habits.load_failures is not None:
            habits.load_failures -= 1
        return habits.load_failure

    async def _fail(self, waiting: Waiting, failure: str) -> bool:
        self.failed_loads += 1
        scarce = "out of memory" in failure or "not enough memory" in failure
        if scarce and self.resident and not waiting.evicted_all:
            waiting.evicted_all = True
            while self.resident:
                victim = self._victim()
                victim.evicted = True
                await self._throw_out(victim)
            return False
        if not waiting.handed.done():
            waiting.handed.set_exception(Failure(500, failure))
        return True

    def _take(self, runner: Resident, keep_alive: float | None) -> None:
        runner.references += 1
        self._cancel_timer(runner)
        if keep_alive is not None:
            runner.keep_alive = keep_alive
        self.changed()

    def _leave(self, runner: Resident) -> None:
        """End a request; the last one of a runner starts the countdown of keep_alive."""
        runner.references -= 1
        if runner.references > 0 or self.resident.get(runner.name) is not runner:
            return
        runner.expires_at = datetime.now(UTC) + timedelta(seconds=runner.keep_alive)
        if runner.keep_alive <= 0:
            self._expire(runner)
        elif runner.keep_alive < FOR_EVER:
            runner.timer = asyncio.get_running_loop().call_later(runner.keep_alive, self._expire, runner)
        self.changed()

    def _expire(self, runner: Resident) -> None:
        if not runner.unloading:
            runner.unloading = True
            self._spawn(self._unload(runner))

    async def _unload(self, runner: Resident) -> None:
        self._cancel_timer(runner)
        await self._pass(self.habits.unload_seconds)
        if self.resident.get(runner.name) is runner:
            del self.resident[runner.name]
            self.unloads.append(runner.name)
            self.swaps += runner.evicted
        self._unloaded.set()
        self.changed()

    def _cancel_timer(self, runner: Resident) -> None:
        if runner.timer:
            runner.timer.cancel()
            runner.timer = None

    # its generations

    async def _run(self, exchange: Exchange, request: Object, *, chat: bool) -> None:
        """/api/chat and /api/generate, with checks in the order in which Ollama makes them."""
        asked = self._asked(request, chat=chat)
        empty = not request.get("messages" if chat else "prompt")
        if empty and asked.keep_alive == 0:
            await self._answer_unload(exchange, asked)
            return
        self._check_capabilities(asked)
        options = checked_options(request.get("options"))
        asked = replace(asked, options=options)
        async with self._runner(asked) as runner:
            loaded = time.monotonic()
            if empty:
                await exchange.reply(200, exchange.shape.whole(self._brief(asked, "load")), exchange.shape.whole_type)
                return
            chunks = self._chunks(exchange, asked, runner, loaded)
            async with aclosing(chunks):
                if asked.stream:
                    await self._stream(exchange, chunks)
                else:
                    await self._gather(exchange, asked, chunks)

    def _asked(self, request: Object, *, chat: bool) -> Asked:
        name = request.get("model") or ""
        checked_think(request.get("think"))
        keep_alive = keep_alive_seconds(request.get("keep_alive"))
        if not 0 <= (request.get("top_logprobs") or 0) <= 20:
            raise Failure(400, "top_logprobs must be between 0 and 20")
        if chat and not name:
            raise Failure(400, "model is required")
        installed = self.find(name)
        return Asked(request, chat, name, installed, self.models[installed], {}, keep_alive, time.monotonic())

    def find(self, name: str) -> str:
        """Return the name under which the model is installed."""
        if name and not valid_name(name):
            raise Failure(400, "invalid model name")
        wanted = short(name).lower()
        found = next((known for known in self.models if known.lower() == wanted), None)
        if found is None:
            raise Failure(404, f"model '{name}' not found")
        return found

    def _check_capabilities(self, asked: Asked) -> None:
        has, request = asked.model.capabilities, asked.request
        if "thinking" not in has and request.get("think") and not request.get("relax_thinking"):
            raise Failure(400, f"{quoted(asked.name)} does not support thinking")
        if request.get("raw") and any(request.get(name) for name in ("template", "system", "context")):
            raise Failure(400, "raw mode does not support template, system, or context")
        if "completion" not in has:
            raise Failure(400, f"{quoted(asked.name)} does not support {'chat' if asked.chat else 'generate'}")
        if asked.chat and request.get("tools") and "tools" not in has:
            raise Failure(400, f"registry.ollama.ai/library/{tagged(asked.installed)} does not support tools")
        if not asked.chat and request.get("suffix") and "insert" not in has:
            raise Failure(400, f"registry.ollama.ai/library/{tagged(asked.installed)} does not support insert")

    async def _answer_unload(self, exchange: Exchange, asked: Asked) -> None:
        runner = self._of(self.blob(asked.installed))
        if runner and not runner.unloading:
            self._cancel_timer(runner)
            runner.expires_at = datetime.now(UTC)
            runner.keep_alive = 0
            if not runner.references:
                self._expire(runner)
        if not self.habits.unload_answers_first:
            await self.until(lambda: runner not in self.resident.values(), None)
        await exchange.reply(200, exchange.shape.whole(self._brief(asked, "unload")), exchange.shape.whole_type)

    def _brief(self, asked: Asked, reason: str) -> Object:
        return self._native(asked, {"content": ""}, done=True) | {"done_reason": reason}

    def _native(self, asked: Asked, piece: Object, *, done: bool = False) -> Object:
        head = {"model": asked.name, "created_at": now_text()}
        if asked.chat:
            return {**head, "message": {"role": "assistant", **piece}, "done": done}
        said = {("response" if name == "content" else name): value for name, value in piece.items()}
        return {**head, **said, "done": done}

    async def _stream(self, exchange: Exchange, chunks: AsyncIterator[Object]) -> None:
        shape = exchange.shape
        if not self.habits.headers_with_first_token:
            await exchange.begin(shape.stream_type)
        try:
            async for native in chunks:
                if not exchange.started:
                    await exchange.begin(shape.stream_type)
                await exchange.send(shape.chunk(native))
        except Failure as failure:
            if not exchange.started:
                raise
            await exchange.send(shape.chunk({"error": failure.text}))
        if not exchange.started:
            await exchange.begin(shape.stream_type)
        await exchange.end()

    async def _gather(self, exchange: Exchange, asked: Asked, chunks: AsyncIterator[Object]) -> None:
        """Answer with stream:false. Without a last chunk it is a 200 with done:false and no numbers."""
        whole: Object = {"model": "", "created_at": "0001-01-01T00:00:00Z", "done": False}
        whole |= {"message": {"role": "", "content": ""}} if asked.chat else {"response": ""}
        content = thinking = ""
        calls: list[Object] = []
        async for whole in chunks:
            part = whole["message"] if asked.chat else whole
            content += part["content" if asked.chat else "response"]
            thinking += part.get("thinking", "")
            calls += part.get("tool_calls", ()) if asked.request.get("tools") else ()
        part = whole["message"] if asked.chat else whole
        part["content" if asked.chat else "response"] = content
        if thinking:
            part["thinking"] = thinking
        if calls:
            part["tool_calls"] = calls
        await exchange.reply(200, exchange.shape.whole(whole), exchange.shape.whole_type)

    async def _chunks(
        self, exchange: Exchange, asked: Asked, runner: Resident, loaded: float
    ) -> AsyncGenerator[Object, None]:
        """Generate native objects. An answer or a habit may end the generation early or break it."""
        answer, habits = exchange.scripted or Answer(), self.habits
        pieces, last, reason = self._output(asked, answer)
        most = len(pieces)
        broken = given(answer.error_after, habits.error_after, most=most)
        ended = given(answer.end_after, habits.end_after, most=most)
        reset = given(answer.reset_after, habits.reset_after, most=most)
        held = given(answer.hold_after, most=most)
        async with self._slot(exchange, runner):
            begun = time.monotonic()
            await self._or_crash(runner, habits.prefill_seconds, habits.hold)
            prefilled = time.monotonic()
            repeats, token = 0, ""
            for index in range(most + 1):
                if index == held and answer.hold:
                    await self._or_crash(runner, 0, answer.hold)
                if index == broken:
                    raise Failure(500, answer.error or habits.error)
                if index == ended:
                    return
                if index == reset:
                    exchange.connection.abort(reset=True)
                    await asyncio.Event().wait()  # the end of the connection ends this wait, too
                if index == most:
                    break
                await self._pace(index, runner)
                piece = pieces[index]
                if habits.stops_on_repeats and not (asked.chat and asked.model.native_template):
                    said = str(piece["content"] or piece.get("thinking", "")).strip()
                    repeats, token = (repeats + 1 if said == token else 0), said
                    if repeats > 30:
                        return
                yield self._native(asked, piece)
            now = time.monotonic()
            yield self._final(asked, answer, last, reason, len(pieces)) | nanoseconds(
                total_duration=now - asked.started,
                load_duration=loaded - asked.started,
                prompt_eval_duration=prefilled - begun,
                eval_duration=now - prefilled,
            )

    async def _pace(self, index: int, runner: Resident) -> None:
        if index and self.habits.token_seconds:
            await self._or_crash(runner, self.habits.token_seconds)
        elif self.asleep or runner.dead:
            await self._or_crash(runner, 0)
        elif index % 8 == 7:
            await asyncio.sleep(0)  # let other tasks run, but not once per token

    def _final(self, asked: Asked, answer: Answer, last: Object, reason: str, made: int) -> Object:
        read = len(asked.prompt.split()) + asked.images
        native = self._native(asked, {"content": "", **last}, done=True) | {"done_reason": reason}
        if not asked.chat and not asked.request.get("raw"):
            length = given(answer.context_tokens, self.habits.context_tokens)
            native["context"] = list(range(100_000, 100_000 + (read + made if length is None else length)))
        counts = {"prompt_eval_count": read, "eval_count": made}
        return native | {name: count for name, count in counts.items() if count}

    def _output(self, asked: Asked, answer: Answer) -> tuple[list[Object], Object, str]:
        """Return the chunks of an answer, the fields of its last line, and why it ends."""
        request, model = asked.request, asked.model
        form = request.get("format")
        if form not in (None, "", "json") and not isinstance(form, dict):
            text = quoted(dumps(form).decode())
            raise Failure(500, f'invalid format: {text}; expected "json" or a valid JSON Schema object')
        if asked.images and "vision" not in model.capabilities:
            raise Failure(500, "image input is not supported - hint: you may need to provide the mmproj")
        thinks = "thinking" in model.capabilities and request.get("think") is not False
        thinking = given(answer.thinking, ["Let", " me", " think."] if thinks else [])
        calls = self._calls(asked, answer)
        words = given(answer.chunks, [] if calls else self._words(asked, form))
        pieces: list[Object] = [{"content": "", "thinking": token} for token in thinking]
        pieces += [{"content": token} for token in words]
        last: Object = {}
        if calls and given(answer.tool_calls_last, model.native_template):
            last = {"tool_calls": calls}
        else:
            pieces += [{"content": "", "tool_calls": [call]} for call in calls]
        limit = int(asked.options.get("num_predict", -1))
        if 0 < limit < len(pieces):
            return pieces[:limit], {}, "length"
        return pieces, last, answer.done_reason

    def _words(self, asked: Asked, form: Any) -> list[str]:
        """Return the default answer: the model's name and the prompt, then numbers up to the requested length."""
        if form:
            value = sample(form) if isinstance(form, dict) else {"answer": asked.last}
            text = dumps(value).decode()
            return [text[start : start + 4] for start in range(0, len(text), 4)]
        words = [f"{asked.installed} says:", *(f" {word}" for word in asked.last.split())]
        if asked.images:
            words.append(f" [{asked.images} images]")
        if self.habits.tokens is not None:
            words += [f" {number}" for number in range(1, self.habits.tokens - len(words) + 1)]
            words = words[: self.habits.tokens]
        return words

    def _calls(self, asked: Asked, answer: Answer) -> list[Object]:
        """Return the tool calls: those of the script, or of the tools that the user's last message names."""
        calls = [dict(call) for call in answer.tool_calls]
        messages = asked.request.get("messages") or [{}]
        if not calls and answer.chunks is None and messages[-1].get("role") == "user":
            for tool in asked.request.get("tools") or []:
                function = tool.get("function") or {}
                name = function.get("name")
                if name and re.search(rf"\b{re.escape(name)}\b", asked.last):
                    calls.append({"name": name, "arguments": sample(function.get("parameters") or {"type": "object"})})
        made: list[Object] = []
        for index, call in enumerate(calls):
            identity = {"id": f"call_{next(self._numbers):08x}"} if self.habits.tool_call_ids else {}
            made.append({**identity, "function": {"index": index, "arguments": {}, **call}})
        return made

    @asynccontextmanager
    async def _slot(self, exchange: Exchange, runner: Resident) -> AsyncIterator[None]:
        """Hold one of the runner's parallel places. Waiting is first come, first served, and has no bound."""
        await runner.slots.acquire()
        late = 0.0
        runner.exchanges.add(exchange)
        self.in_flight[runner.name] += 1
        self.max_in_flight[runner.name] = max(self.max_in_flight.get(runner.name, 0), self.in_flight[runner.name])
        self.changed()
        try:
            if runner.dead:
                raise Failure(500, RUNNER_STOPPED)
            yield
        except (asyncio.CancelledError, GeneratorExit):
            late = self.habits.cancel_seconds
            raise
        finally:
            runner.exchanges.discard(exchange)
            if late:
                asyncio.get_running_loop().call_later(late, self._free, runner)
            else:
                self._free(runner)

    def _free(self, runner: Resident) -> None:
        self.in_flight[runner.name] -= 1
        runner.slots.release()
        self.changed()

    async def _or_crash(self, runner: Resident, seconds: float, hold: asyncio.Event | None = None) -> None:
        """Wait for the time or for an event; raise if the runner dies first."""
        if seconds > 0 or (hold and not hold.is_set()):
            waits = [asyncio.ensure_future(self._passed(seconds, hold)), asyncio.ensure_future(runner.crashed.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        if self.asleep:
            await self._awake.wait()
        if runner.dead:
            raise Failure(500, BROKEN)

    async def _passed(self, seconds: float, hold: asyncio.Event | None) -> None:
        if hold:
            await hold.wait()
        await self._pass(seconds)

    # its routes

    async def answer(self, exchange: Exchange) -> None:
        """Answer any request."""
        seen = exchange.seen
        try:
            if not host_allowed(seen.headers.get("host", "")):
                await exchange.reply(403)
                return
            route = self._route(seen)
            runs = seen.path in RUN_PATHS
            if runs and self.habits.resets > 0:
                self.habits.resets -= 1
                exchange.connection.abort(reset=True)
                return
            exchange.shape = self._shape(seen.path, {})
            if runs and self.habits.busy > 0:
                self.habits.busy -= 1
                raise Failure(503, BUSY)
            exchange.scripted = self._scripted(seen) if self._next or self._always else None
            if exchange.scripted and await self._outright(exchange, exchange.scripted):
                return
            await route(exchange)
        except Failure as failure:
            shape = exchange.shape
            await exchange.reply(failure.status, shape.error(failure.status, failure.text), shape.whole_type)
        except Exception as error:
            self.errors.append(error)
            exchange.connection.abort(reset=True)

    def _route(self, seen: Seen) -> Route:
        methods = self._table.get(seen.path)
        if methods is None and seen.path.startswith("/api/blobs/"):
            methods = {"HEAD": self._head_blob, "POST": self._post_blob}
        if methods is None and seen.path.startswith("/v1/models/"):
            methods = {"GET": self._v1_model}
        if methods is None:
            return partial(self._plain, 404, "404 page not found")
        return methods.get(seen.method) or partial(self._plain, 405, "405 method not allowed")

    def _routes(self) -> dict[str, dict[str, Route]]:
        return {
            "/": {"GET": self._root, "HEAD": self._root},
            "/api/version": {"GET": self._version, "HEAD": self._version},
            "/api/status": {"GET": self._status},
            "/api/tags": {"GET": self._tags, "HEAD": self._tags},
            "/api/ps": {"GET": self._ps},
            "/api/show": {"POST": self._show},
            "/api/chat": {"POST": self._chat},
            "/api/generate": {"POST": self._generate},
            "/api/embed": {"POST": self._embed},
            "/api/embeddings": {"POST": self._embeddings},
            "/api/pull": {"POST": self._pull},
            "/api/create": {"POST": self._create},
            "/api/copy": {"POST": self._copy},
            "/api/delete": {"DELETE": self._delete},
            "/v1/chat/completions": {"POST": self._v1_run},
            "/v1/completions": {"POST": self._v1_run},
            "/v1/responses": {"POST": self._v1_run},
            "/v1/messages": {"POST": self._v1_run},
            "/v1/embeddings": {"POST": self._v1_embeddings},
            "/v1/models": {"GET": self._v1_models},
        }

    def _shape(self, path: str, request: Object) -> Shape:
        if not path.startswith("/v1/"):
            return NATIVE
        shapes: dict[str, Callable[[Object, int], Shape]] = {
            "/v1/chat/completions": ChatCompletionShape,
            "/v1/responses": ResponsesShape,
            "/v1/messages": MessagesShape,
        }
        return shapes.get(path, CompletionShape)(request, next(self._numbers))

    def _scripted(self, seen: Seen) -> Answer | None:
        """Return the next scripted answer for the path or for the model, unless the request only loads."""
        name = ""
        if seen.path in RUN_PATHS:
            try:
                body = seen.json
                name = short(body.get("model") or "").lower()
                if not any(body.get(part) for part in ("messages", "prompt", "input")):
                    return None
            except (msgspec.DecodeError, AttributeError):
                pass
        for key in (seen.path, name, "*"):
            if self._next.get(key):
                return self._next[key].popleft()
            if key in self._always:
                return self._always[key]
        return None

    async def _outright(self, exchange: Exchange, answer: Answer) -> bool:
        if answer.raw is not None:
            await exchange.reply(answer.status or 200, answer.raw, answer.content_type, answer.headers)
        elif answer.status is not None:
            body = exchange.shape.error(answer.status, answer.error or "")
            await exchange.reply(answer.status, body, exchange.shape.whole_type, answer.headers)
        return answer.raw is not None or answer.status is not None

    async def _plain(self, status: int, text: str, exchange: Exchange) -> None:
        await exchange.reply(status, text.encode(), "text/plain")

    async def _json(self, exchange: Exchange, value: Any) -> None:
        await exchange.reply(200, dumps(value), "application/json; charset=utf-8")

    async def _root(self, exchange: Exchange) -> None:
        await exchange.reply(200, b"Ollama is running", "text/plain; charset=utf-8")

    async def _version(self, exchange: Exchange) -> None:
        await self._json(exchange, {"version": self.version})

    async def _status(self, exchange: Exchange) -> None:
        await self._json(exchange, {"cloud": {"disabled": False, "source": "none"}})

    async def _tags(self, exchange: Exchange) -> None:
        await self._json(exchange, {"models": [self._listed(name) for name in self.models]})

    async def _ps(self, exchange: Exchange) -> None:
        await self._pass(self.habits.ps_seconds)
        if self.habits.ps_blocks_while_unloading:
            await self.until(lambda: not any(runner.unloading for runner in self.resident.values()), None)
        runners = [*self.resident.values()]
        if self.loading and self.habits.ps_lists_loading:
            runners.append(self.loading)
        listed = []
        for runner in runners:
            expires = runner.expires_at or datetime.now(UTC) + timedelta(seconds=runner.keep_alive)
            entry = self._described(runner.name, runner.model)
            entry |= {"expires_at": expires.isoformat(), "size_vram": runner.model.size}
            listed.append(entry | {"context_length": runner.context_length})
        listed.sort(key=lambda entry: entry["expires_at"], reverse=True)
        await self._json(exchange, {"models": listed})

    def _described(self, name: str, model: Model) -> Object:
        details = {
            "parent_model": "",
            "format": "gguf",
            "family": "llama",
            "families": ["llama"],
            "parameter_size": "7B",
            "quantization_level": "Q4_K_M",
        }
        digest = hashlib.sha256(f"manifest of {name}".encode()).hexdigest()
        return {
            "name": tagged(name),
            "model": tagged(name),
            "size": model.size,
            "digest": digest,
            "details": details,
        }

    def _listed(self, name: str) -> Object:
        model = self.models[name]
        entry = self._described(name, model)
        entry["modified_at"] = self._installed_at.isoformat()
        entry["details"] |= {"context_length": model.context_length, "embedding_length": model.embedding_length}
        return entry | {"capabilities": list(model.capabilities)}

    async def _show(self, exchange: Exchange) -> None:
        request = parsed(exchange.seen.body)
        name = request.get("model") or request.get("name")
        if not name:
            raise Failure(400, "model is required")
        installed = self.find(name)
        model, entry = self.models[installed], self._listed(installed)
        weights = f"/usr/share/ollama/.ollama/models/blobs/sha256-{self.blob(installed)}"
        await self._json(
            exchange,
            {
                "modelfile": f'# Modelfile generated by "ollama show"\n\nFROM {weights}\nTEMPLATE {{{{ .Prompt }}}}\n',
                "template": "{{ .Prompt }}",
                "details": self._described(installed, model)["details"],
                "model_info": {
                    "general.architecture": "llama",
                    "llama.context_length": model.context_length,
                    "llama.embedding_length": model.embedding_length,
                },
                "capabilities": list(model.capabilities),
                "modified_at": entry["modified_at"],
            },
        )

    async def _chat(self, exchange: Exchange) -> None:
        request = parsed(exchange.seen.body)
        for message in request.get("messages") or []:
            content = message.get("content") if isinstance(message, dict) else message
            if not isinstance(message, dict) or not isinstance(content, str | None):
                kind = "string" if isinstance(message, dict) else "api.Message"
                text = f"json: cannot unmarshal {go_kind(content)} into Go struct field ChatRequest.messages of type {kind}"
                raise Failure(400, text)
        await self._run(exchange, request, chat=True)

    async def _generate(self, exchange: Exchange) -> None:
        await self._run(exchange, parsed(exchange.seen.body), chat=False)

    async def _v1_run(self, exchange: Exchange) -> None:
        """Turn the request into a native one and the native answers back, as Ollama does."""
        path = exchange.seen.path
        request = parsed(exchange.seen.body, empty="EOF")
        convert = {
            "/v1/chat/completions": native_from_chat_completion,
            "/v1/completions": native_from_completion,
            "/v1/responses": native_from_responses,
            "/v1/messages": native_from_messages,
        }[path]
        exchange.shape = self._shape(path, request)
        try:
            native = convert(request)
        except (KeyError, TypeError, AttributeError) as error:
            raise Failure(400, f"invalid request: {error!r}") from error  # Go would name the field
        await self._run(exchange, native, chat=path != "/v1/completions")

    async def _v1_models(self, exchange: Exchange) -> None:
        await self._json(exchange, {"object": "list", "data": [self._v1_entry(tagged(name)) for name in self.models]})

    async def _v1_model(self, exchange: Exchange) -> None:
        name = exchange.seen.path.removeprefix("/v1/models/")
        self.find(name)
        await self._json(exchange, self._v1_entry(name))

    def _v1_entry(self, name: str) -> Object:
        created = int(self._installed_at.timestamp())
        return {"id": name, "object": "model", "created": created, "owned_by": "library"}

    async def _embed(self, exchange: Exchange) -> None:
        vectors, stats = await self._vectors(exchange, parsed(exchange.seen.body), status=400)
        body = {"model": exchange.seen.json["model"], "embeddings": vectors, **stats}
        await self._json(exchange, body)

    async def _embeddings(self, exchange: Exchange) -> None:
        """The older route: a single vector, not normalised."""
        request = parsed(exchange.seen.body)
        if not request.get("model"):
            raise Failure(400, "model is required")
        try:
            vectors, _ = await self._vectors(
                exchange, request | {"input": request.get("prompt")}, status=500, norm=False
            )
        except Failure as failure:
            if failure.status == 404:
                raise Failure(404, f"model {quoted(request['model'])} not found, try pulling it first") from None
            raise
        await self._json(exchange, {"embedding": vectors[0] if vectors else []})

    async def _v1_embeddings(self, exchange: Exchange) -> None:
        request = parsed(exchange.seen.body, empty="EOF")
        form = str(request.get("encoding_format") or "float").lower()
        if form not in ("float", "base64"):
            text = f"Invalid value for 'encoding_format' = {form}. Supported values: ['float', 'base64']."
            raise Failure(400, text)
        if request.get("input") in (None, []):
            raise Failure(400, "invalid input")
        vectors, stats = await self._vectors(exchange, request, status=400)
        data = [
            {
                "object": "embedding",
                "embedding": base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
                if form == "base64"
                else vector,
                "index": index,
            }
            for index, vector in enumerate(vectors)
        ]
        count = stats.get("prompt_eval_count", 0)
        usage = {"prompt_tokens": count, "total_tokens": count}
        await self._json(exchange, {"object": "list", "data": data, "model": request["model"], "usage": usage})

    async def _vectors(
        self, exchange: Exchange, request: Object, *, status: int, norm: bool = True
    ) -> tuple[list[list[float]], Object]:
        """Return one vector for each text. A failure while it runs has no status of its own: embed makes it a 400."""
        asked = self._asked(request, chat=False)
        asked = replace(asked, options=checked_options(request.get("options")))
        texts = request.get("input") or []
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise Failure(400, "invalid input type")
        answer = exchange.scripted or Answer()
        async with self._runner(asked) as runner:
            loaded = time.monotonic()
            vectors: list[list[float]] = []
            for text in texts:
                if request.get("truncate") is False and len(text.split()) > runner.context_length:
                    raise Failure(400, "the input length exceeds the context length")
                try:
                    async with self._slot(exchange, runner):
                        await self._or_crash(runner, self.habits.prefill_seconds, answer.hold or self.habits.hold)
                        if answer.error is not None or self.habits.error_after is not None:
                            raise Failure(status, answer.error or self.habits.error)
                except Failure as failure:
                    raise Failure(status, failure.text) from None
                vector = embedding(text, asked.model.embedding_length)
                if norm:
                    vector = normalised(normalised(vector)[: request.get("dimensions") or None])
                vectors.append(vector)
        if not texts:
            return [], {}
        stats = nanoseconds(total_duration=time.monotonic() - asked.started, load_duration=loaded - asked.started)
        return vectors, stats | {"prompt_eval_count": sum(len(text.split()) for text in texts)}

    # models as files

    async def _pull(self, exchange: Exchange) -> None:
        request = parsed(exchange.seen.body)
        name = self._named(request)
        digest = hashlib.sha256(f"weights of {short(name)}".encode()).hexdigest()
        size = Model().size

        async def statuses() -> AsyncGenerator[Object, None]:
            yield {"status": "pulling manifest"}
            if self.habits.pull_failure is not None:
                raise Failure(500, self.habits.pull_failure)
            for completed in (0, size // 2, size):
                layer = {"status": f"pulling {digest[:12]}", "digest": f"sha256:{digest}", "total": size}
                yield layer | ({"completed": completed} if completed else {})
                await self._pass(self.habits.pull_seconds / 3)
            for status in ("verifying sha256 digest", "writing manifest"):
                yield {"status": status}
            self.models.setdefault(short(name), Model())
            yield {"status": "success"}

        await self._progress(exchange, request, statuses())

    async def _create(self, exchange: Exchange) -> None:
        request = parsed(exchange.seen.body)
        name = self._named(request)
        source, files = request.get("from"), request.get("files") or {}
        if any(not re.fullmatch(r"sha256:[0-9a-f]{64}", str(digest)) for digest in files.values()):
            raise Failure(400, "invalid digest format")

        async def statuses() -> AsyncGenerator[Object, None]:
            if not source and not files:
                raise Failure(400, "neither 'from' or 'files' was specified")
            if source:
                model = self.models[self.find(source)]
                blob = self.blob(self.find(source))
            else:
                blob = str(next(iter(files.values()))).removeprefix("sha256:")
                if f"sha256:{blob}" not in self.blobs:
                    raise Failure(400, f"blob sha256-{blob} not found")
                model = Model(size=self.blobs[f"sha256:{blob}"])
                yield {"status": "parsing GGUF"}
            yield {"status": f"using existing layer sha256:{blob}"}
            yield {"status": "writing manifest"}
            self.models[short(name)] = replace(model, blob=blob)
            yield {"status": "success"}

        await self._progress(exchange, request, statuses())

    async def _copy(self, exchange: Exchange) -> None:
        request = parsed(exchange.seen.body)
        source, destination = str(request.get("source") or ""), str(request.get("destination") or "")
        for side, name in (("source", source), ("destination", destination)):
            if not valid_name(name):
                raise Failure(400, f"{side} {quoted(name)} is invalid")
        try:
            found = self.find(source)
        except Failure:
            raise Failure(404, f"model {quoted(source)} not found") from None
        self.models[short(destination)] = replace(self.models[found], blob=self.blob(found))
        await exchange.reply(200)

    async def _delete(self, exchange: Exchange) -> None:
        """Delete the model from disk; a loaded one stays in memory."""
        request = parsed(exchange.seen.body)
        name = request.get("model") or request.get("name") or ""
        if not valid_name(name):
            raise Failure(400, f"name {quoted(name)} is invalid")
        del self.models[self.find(name)]
        await exchange.reply(200)

    async def _head_blob(self, exchange: Exchange) -> None:
        await exchange.reply(200 if exchange.seen.path.removeprefix("/api/blobs/") in self.blobs else 404)

    async def _post_blob(self, exchange: Exchange) -> None:
        digest = exchange.seen.path.removeprefix("/api/blobs/")
        found = f"sha256:{hashlib.sha256(exchange.seen.body).hexdigest()}"
        if digest in self.blobs:
            await exchange.reply(200)
        elif digest != found:
            raise Failure(400, f"digest mismatch, expected {quoted(digest)}, got {quoted(found)}")
        else:
            self.blobs[digest] = len(exchange.seen.body)
            await exchange.reply(201)

    def _named(self, request: Object) -> str:
        name = str(request.get("model") or request.get("name") or "")
        if not valid_name(name):
            raise Failure(400, "invalid model name")
        return name

    async def _progress(self, exchange: Exchange, request: Object, statuses: AsyncGenerator[Object, None]) -> None:
        async with aclosing(statuses):
            if request.get("stream") is not False:
                await self._stream(exchange, statuses)
                return
            await self._json(exchange, [status async for status in statuses][-1])


def given(*choices: Any, most: int | None = None) -> Any:
    """Return the first value that is not None, and at most `most` if it is a number."""
    choice = next((choice for choice in choices if choice is not None), None)
    return choice if choice is None or most is None else min(choice, most)


def nanoseconds(**seconds: float) -> Object:
    """Return durations as Ollama reports them; zeros are left out."""
    return {name: int(value * 1e9) for name, value in seconds.items() if int(value * 1e9)}


def host_allowed(host: str) -> bool:
    """Return whether the Host is local or private: otherwise Ollama on loopback answers 403, against DNS rebinding."""
    name = re.sub(r":\d+$", "", host).strip("[]").lower()
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name in ("", "localhost", socket.gethostname().lower()) or name.endswith(
            (".localhost", ".local", ".internal")
        )
    return address.is_loopback or address.is_private or address.is_unspecified


async def serve(options: argparse.Namespace) -> None:
    habits = Habits(
        tokens=options.tokens,
        token_seconds=options.token_seconds,
        prefill_seconds=options.prefill_seconds,
        load_seconds=options.load_seconds,
        unload_seconds=options.unload_seconds,
    )
    models = {name: Model() for name in options.models.split(",")}
    target = OllamaTarget(models, habits, options.parallel, options.max_loaded, options.version, remember=False)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await target.start(options.port)
    sys.stdout.write(json.dumps({"url": target.url}) + "\n")
    sys.stdout.flush()
    await stopped.wait()
    await target.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.inference.conformance", description="Ollama, near enough.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--models", default="a,b")
    parser.add_argument("--tokens", type=int, default=None)
    parser.add_argument("--token-seconds", type=float, default=0)
    parser.add_argument("--prefill-seconds", type=float, default=0)
    parser.add_argument("--load-seconds", type=float, default=0)
    parser.add_argument("--unload-seconds", type=float, default=0)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--max-loaded", type=int, default=3)
    parser.add_argument("--version", default="0.33.0")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
