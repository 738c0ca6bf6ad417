"""Format the answer of a generation for Ollama's own API and for the APIs it is compatible with.

An error within a stream is sent only in the native API; in the others the stream just stops, as Ollama's does.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

Object = dict[str, Any]


@dataclass(frozen=True)
class Stats:
    """Durations in nanoseconds and numbers of tokens of a finished generation."""

    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int

    def shown(self) -> Object:
        """Return the numbers, without zeros."""
        return {name: value for name, value in vars(self).items() if value}


@dataclass(frozen=True)
class Chunk:
    text: str
    logprobs: Sequence[Mapping[str, Any]] = ()
    reason: str = ""  # why it is the last one
    stats: Stats | None = None
    context: Sequence[int] = ()


class Shape(Protocol):
    stream_type: str

    def chunk(self, chunk: Chunk) -> bytes: ...
    def whole(self, chunk: Chunk) -> bytes: ...
    def broken(self, text: str) -> bytes:
        """Return the error line for a stream that has begun, or b"" if the API has none."""


dumps = msgspec.json.encode


def now_text() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class Native:
    """Common parts of /api/chat and /api/generate."""

    stream_type = "application/x-ndjson"

    def __init__(self, model: str) -> None:
        self.model = model

    def chunk(self, chunk: Chunk) -> bytes:
        return dumps(self.value(chunk)) + b"\n"

    def whole(self, chunk: Chunk) -> bytes:
        return dumps(self.value(chunk))

    def broken(self, text: str) -> bytes:
        return dumps({"error": text}) + b"\n"

    def value(self, chunk: Chunk) -> Object:
        value: Object = {"model": self.model, "created_at": now_text(), **self.words(chunk), "done": bool(chunk.reason)}
        if chunk.reason:
            value["done_reason"] = chunk.reason
        if chunk.context:
            value["context"] = chunk.context
        if chunk.stats:
            value |= chunk.stats.shown()
        if chunk.logprobs:
            value["logprobs"] = chunk.logprobs
        return value

    def words(self, chunk: Chunk) -> Object:
        raise NotImplementedError


class Chat(Native):
    def words(self, chunk: Chunk) -> Object:
        return {"message": {"role": "assistant", "content": chunk.text}}


class Generate(Native):
    def words(self, chunk: Chunk) -> Object:
        return {"response": chunk.text}


class OpenAI:
    """Common parts of /v1/chat/completions and /v1/completions."""

    stream_type = "text/event-stream"
    prefix: str
    kind: str

    def __init__(self, model: str, number: int, *, usage: bool) -> None:
        self.usage = usage
        self.envelope = {
            "id": f"{self.prefix}-{number}",
            "object": self.kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": "fp_ollama",
        }

    def broken(self, text: str) -> bytes:
        return b""

    def line(self, **fields: Any) -> bytes:
        return b"data: " + dumps(self.envelope | fields) + b"\n\n"

    def last(self, chunk: Chunk) -> bytes:
        usage = self.line(choices=[], usage=openai_usage(chunk)) if self.usage else b""
        return usage + b"data: [DONE]\n\n"


class ChatCompletion(OpenAI):
    prefix = "chatcmpl"
    kind = "chat.completion.chunk"

    def __init__(self, model: str, number: int, *, usage: bool) -> None:
        super().__init__(model, number, usage=usage)
        self.first = True

    def chunk(self, chunk: Chunk) -> bytes:
        out = b""
        if self.first or chunk.text or not chunk.reason:
            delta = {"role": "assistant"} if self.first else {}
            choice: Object = {"index": 0, "delta": {**delta, "content": chunk.text}, "finish_reason": None}
            out = self.line(choices=[choice | openai_logprobs(chunk)])
            self.first = False
        if chunk.reason:
            out += self.line(choices=[{"index": 0, "delta": {}, "finish_reason": chunk.reason}]) + self.last(chunk)
        return out

    def whole(self, chunk: Chunk) -> bytes:
        message = {"role": "assistant", "content": chunk.text}
        choice = {"index": 0, "message": message, "finish_reason": chunk.reason} | openai_logprobs(chunk)
        return dumps(self.envelope | {"object": "chat.completion", "choices": [choice], "usage": openai_usage(chunk)})


class Completion(OpenAI):
    prefix = "cmpl"
    kind = "text_completion"

    def chunk(self, chunk: Chunk) -> bytes:
        out = self.line(choices=[self.choice(chunk)])
        return out + self.last(chunk) if chunk.reason else out

    def whole(self, chunk: Chunk) -> bytes:
        return dumps(self.envelope | {"choices": [self.choice(chunk)], "usage": openai_usage(chunk)})

    def choice(self, chunk: Chunk) -> Object:
        return {"text": chunk.text, "index": 0, "finish_reason": chunk.reason or None}


class Messages:
    """Anthropic's /v1/messages."""

    stream_type = "text/event-stream"

    def __init__(self, model: str, number: int) -> None:
        self.envelope = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": model}
        self.started = self.opened = False

    def broken(self, text: str) -> bytes:
        return b""

    def chunk(self, chunk: Chunk) -> bytes:
        out = b""
        if not self.started:
            self.started = True
            out += self.event("message_start", message=self.message([], None) | {"usage": anthropic_usage(chunk)})
        if chunk.text:
            if not self.opened:
                self.opened = True
                out += self.event("content_block_start", index=0, content_block={"type": "text", "text": ""})
            out += self.event("content_block_delta", index=0, delta={"type": "text_delta", "text": chunk.text})
        if chunk.reason:
            if self.opened:
                out += self.event("content_block_stop", index=0)
            delta = {"stop_reason": anthropic_reason(chunk), "stop_sequence": None}
            out += self.event("message_delta", delta=delta, usage=anthropic_usage(chunk))
            out += self.event("message_stop")
        return out

    def whole(self, chunk: Chunk) -> bytes:
        content: list[Object] = [{"type": "text", "text": chunk.text}] if chunk.text else []
        return dumps(self.message(content, anthropic_reason(chunk)) | {"usage": anthropic_usage(chunk)})

    def message(self, content: list[Object], reason: str | None) -> Object:
        return self.envelope | {"content": content, "stop_reason": reason, "stop_sequence": None}

    def event(self, kind: str, **fields: Any) -> bytes:
        return f"event: {kind}\ndata: ".encode() + dumps({"type": kind, **fields}) + b"\n\n"


def openai_usage(chunk: Chunk) -> Object:
    prompt, answer = (chunk.stats.prompt_eval_count, chunk.stats.eval_count) if chunk.stats else (0, 0)
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def openai_logprobs(chunk: Chunk) -> Object:
    return {"logprobs": {"content": chunk.logprobs}} if chunk.logprobs else {}


def anthropic_usage(chunk: Chunk) -> Object:
    stats = chunk.stats
    return {
        "input_tokens": stats.prompt_eval_count if stats else 0,
        "output_tokens": stats.eval_count if stats else 0,
    }


def anthropic_reason(chunk: Chunk) -> str:
    return "max_tokens" if chunk.reason == "length" else "end_turn"


def error_body(path: str, status: int, text: str) -> bytes:
    """Format an error as the API of this path does."""
    kind = {400: "invalid_request_error", 404: "not_found_error"}.get(status, "api_error")
    if path == "/v1/messages":
        return dumps({"type": "error", "error": {"type": kind, "message": text}})
    if path.startswith("/v1/"):
        return dumps({"error": {"message": text, "type": kind, "param": None, "code": None}})
    return dumps({"error": text})
