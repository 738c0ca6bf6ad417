"""The forms in which a target is asked and answers, and what an answer that has ended amounts to.

Bytes are relayed as they come and never made anew. What is worked out here is worked out once, when the stream has ended:
whether the model finished, and for Ollama's own form the one object that a caller who does not stream would have got.
"""

from enum import Enum
from typing import Any

import msgspec

REPEATS = 30  # so many equal tokens in a row, and Ollama stops without a word


class Form(Enum):
    NATIVE = "native"  # Ollama's NDJSON, ends with done:true
    OPENAI = "openai"  # SSE, ends with [DONE]
    RESPONSES = "responses"  # SSE, ends with response.completed
    ANTHROPIC = "anthropic"  # SSE, ends with message_stop
    VECTORS = "vectors"  # embeddings: one object, never a stream


FORMS = {
    "/api/chat": Form.NATIVE,
    "/api/generate": Form.NATIVE,
    "/v1/chat/completions": Form.OPENAI,
    "/v1/completions": Form.OPENAI,
    "/v1/responses": Form.RESPONSES,
    "/v1/messages": Form.ANTHROPIC,
    "/api/embed": Form.VECTORS,
    "/api/embeddings": Form.VECTORS,
    "/v1/embeddings": Form.VECTORS,
}


class Answer(msgspec.Struct, frozen=True):
    """`finish`: stop, length, load, unload; truncated (it ended without saying so), repeats (it had begun to stammer), error."""

    finish: str
    error: str = ""
    result: bytes | None = None  # JSON; None for an answer that was only streamed through
    text: str = ""
    prompt_tokens: int | None = None
    tokens: int | None = None
    load_seconds: float | None = None

    @property
    def complete(self) -> bool:
        return self.finish not in ("truncated", "repeats", "error")


def read_answer(form: Form, media: str, body: bytes) -> Answer:
    """What the body of an answer with a good status says about itself."""
    try:
        if form is Form.NATIVE:
            return _read_native(body)
        if "text/event-stream" in media:
            return _read_events(form, body)
        return _read_object(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Answer("truncated", f"the answer is not what it should be: {error}")


def has_ended(form: Form, body: bytes) -> bool:
    """Whether the model has said its last word, though the connection is still open. That line may have megabytes."""
    last = body.rstrip().rpartition(b"\n")[2]
    if form is Form.NATIVE:
        return last.startswith(b"{") and last.endswith(b"}") and b'"done":true' in last.replace(b" ", b"")
    return b"[DONE]" in last or b"message_stop" in last or b"response.completed" in last


# Ollama's own form ----------------------------------------------------------------------------------------------------


class _Message(msgspec.Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Line(msgspec.Struct):
    message: _Message | None = None
    response: str | None = None
    thinking: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    logprobs: list[msgspec.Raw] | None = None
    done: bool = False
    done_reason: str | None = None
    error: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    load_duration: int | None = None

    @property
    def said(self) -> str:
        return (self.message.content if self.message else self.response) or ""

    @property
    def thought(self) -> str:
        return (self.message.thinking if self.message else self.thinking) or ""

    @property
    def called(self) -> list[msgspec.Raw]:
        return (self.message.tool_calls if self.message else self.tool_calls) or []


_line = msgspec.json.Decoder(_Line)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _read_native(body: bytes) -> Answer:
    raw_lines = [raw for raw in body.split(b"\n") if raw.strip()]
    lines = [_line.decode(raw) for raw in raw_lines]
    text = "".join([line.said for line in lines])
    error = next((line.error for line in lines if line.error), "")
    if error:
        return Answer("error", error, text=text)
    last = lines[-1] if lines else _Line()
    if not last.done:
        return Answer("repeats" if _stammers(lines) else "truncated", "it ended without done:true", text=text)
    return Answer(
        last.done_reason or "stop",
        result=_whole(raw_lines[-1], lines, text),
        text=text,
        prompt_tokens=last.prompt_eval_count,
        tokens=last.eval_count,
        load_seconds=None if last.load_duration is None else last.load_duration / 1e9,
    )


def _whole(final: bytes, lines: list[_Line], text: str) -> bytes:
    """The final line, with what the others brought put together in it: every other field stays as the target wrote it."""
    whole: dict[str, Any] = _fields.decode(final)
    chat = any(line.message for line in lines)
    thinking = "".join([line.thought for line in lines])
    calls = [call for line in lines for call in line.called]
    extras: dict[str, Any] = {}
    if thinking:
        extras["thinking"] = thinking
    if calls:
        extras["tool_calls"] = calls
    if chat:
        whole["message"] = {"role": "assistant", "content": text, **extras}
    else:
        whole |= {"response": text, **extras}
    if logprobs := [each for line in lines for each in line.logprobs or ()]:
        whole["logprobs"] = logprobs
    return msgspec.json.encode(whole)


def _stammers(lines: list[_Line]) -> bool:
    tokens = [(line.said or line.thought).strip() for line in lines[-REPEATS:]]  # as Ollama compares them
    return len(tokens) == REPEATS and len(set(tokens)) == 1


# the other forms ------------------------------------------------------------------------------------------------------


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    error: Any = None
    choices: list[_Choice] = []
    usage: _Usage | None = None
    status: str | None = None
    stop_reason: str | None = None
    delta: Any = None
    prompt_eval_count: int | None = None
    load_duration: int | None = None


_event = msgspec.json.Decoder(_Event)
_LAST = {"response.completed": "stop", "response.incomplete": "length", "message_stop": "stop"}


def _read_events(form: Form, body: bytes) -> Answer:
    """Streams of the other APIs have no text for us: who streams through them reads the bytes."""
    finish, cut, usage = "", False, _Usage()
    for raw in body.split(b"\n"):
        if not raw.startswith(b"data:"):
            continue
        data = raw[5:].strip()
        if data == b"[DONE]":
            finish = finish or "stop"
            continue
        event = _event.decode(data)
        if event.error or event.type in ("error", "response.failed"):
            return Answer("error", _error_text(event.error))
        usage = event.usage or usage
        finish = _LAST.get(event.type, finish)
        cut = cut or any(choice.finish_reason == "length" for choice in event.choices)
        cut = cut or (isinstance(event.delta, dict) and event.delta.get("stop_reason") == "max_tokens")
    if not finish or (form is Form.OPENAI and b"[DONE]" not in body[-64:]):
        return Answer("truncated", "the stream ended without saying that it was complete")
    return _counted("length" if cut else finish, None, usage)


def _read_object(body: bytes) -> Answer:
    event = _event.decode(body)
    if event.error:
        return Answer("error", _error_text(event.error))
    cut = event.stop_reason == "max_tokens" or event.status == "incomplete"
    cut = cut or any(choice.finish_reason == "length" for choice in event.choices)
    answer = _counted("length" if cut else "stop", body, event.usage or _Usage())
    if event.prompt_eval_count is None:
        return answer
    loading = None if event.load_duration is None else event.load_duration / 1e9
    return msgspec.structs.replace(answer, prompt_tokens=event.prompt_eval_count, load_seconds=loading)


def _counted(finish: str, result: bytes | None, usage: _Usage) -> Answer:
    prompt = usage.prompt_tokens if usage.input_tokens is None else usage.input_tokens
    tokens = usage.completion_tokens if usage.output_tokens is None else usage.output_tokens
    return Answer(finish, result=result, prompt_tokens=prompt, tokens=tokens)


def _error_text(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("message", error))
    return str(error) if error else "the target reported an error"


def error_text(body: bytes) -> str:
    """What a target's answer with a bad status says, in whichever form."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body[:500].decode("utf-8", "replace").strip()
    if isinstance(said, dict) and "error" in said:
        return _error_text(said["error"])
    return body[:500].decode("utf-8", "replace")
