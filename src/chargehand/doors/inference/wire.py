"""The forms of requests and answers of targets, and the parsing of an answer that has ended.

Bytes are relayed as they come. An answer is parsed once, when it has ended: whether the model finished, and for Ollama's own form
the one object that a caller who does not stream would have got.

A target may send anything, so small values are decoded and large ones are carried as bytes: parsing takes a few times the size of
the answer, whatever its shape.
"""

import codecs
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec
from msgspec import Raw

SHORT_BYTES = 4096  # of a value that is decoded: a reason, a token, an error
SHOWN_ERROR = 2000  # characters of a target's error
OTHER_BYTES = 256 << 10  # of the last line, beside what it may have much of
PIECE_BYTES = 65_536
MAX_CHOICES = 10_000
NOTHING = Raw(b"")
UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)  # what decoding a target's JSON may raise
REPEATS = 30  # equal tokens in a row, after which Ollama stops without an error


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


class ModelAnswer(msgspec.Struct, frozen=True):
    """`finish`: stop, length, load, unload; truncated (no final line), repeats (it repeated one token), error."""

    finish: str
    error: str = ""
    result: bytes | None = None  # JSON; None for an answer that was only relayed
    said: Raw = NOTHING  # the text, as a string of JSON
    prompt_tokens: int | None = None
    tokens: int | None = None
    load_seconds: float | None = None

    @property
    def complete(self) -> bool:
        return self.finish not in ("truncated", "repeats", "error")

    @property
    def text(self) -> str:
        return msgspec.json.decode(self.said, type=str) if len(self.said) else ""


def read_answer(form: Form, media: str, body: bytes | bytearray) -> ModelAnswer:
    """Parse the body of an answer with a good status."""
    try:
        _check_utf8(body)
        if form is Form.NATIVE:
            return _read_native(body)
        if "text/event-stream" in media:
            return _read_events(form, body)
        return _read_object(bytes(body))
    except UNREADABLE as error:
        return ModelAnswer("truncated", f"the answer is not what it should be: {error}")


def has_ended(form: Form, body: bytearray) -> bool:
    """Return whether the final line is there, though the connection may still be open. It may have megabytes."""
    last = bytes(body[body.rfind(b"\n", 0, len(body.rstrip())) + 1 :]).strip()
    if form is Form.NATIVE:
        return last.startswith(b"{") and last.endswith(b"}") and b'"done":true' in last.replace(b" ", b"")
    return b"[DONE]" in last or b"message_stop" in last or b"response.completed" in last


def _check_utf8(body: bytes | bytearray) -> None:
    """Check the encoding of Raw values, which the decoder does not."""
    if body.isascii():
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(body), PIECE_BYTES):
        decoder.decode(body[start : start + PIECE_BYTES], final=start + PIECE_BYTES >= len(body))


def _lines(body: bytes | bytearray) -> Iterator[bytes]:
    """Yield the lines that are not empty."""
    begin = 0
    while begin < len(body):
        end = body.find(b"\n", begin)
        end = len(body) if end < 0 else end
        line = bytes(body[begin:end]).strip()
        if line:
            yield line
        begin = end + 1


# values -----------------------------------------------------------------------------------------------------------------


def _short(raw: Raw) -> str:
    """Return a short JSON string decoded; "" for anything else."""
    if not 2 <= len(raw) <= SHORT_BYTES or bytes(raw)[:1] != b'"':
        return ""
    return msgspec.json.decode(raw, type=str)


def _inside(raw: Raw, bracket: bytes) -> memoryview:
    """Return what is between the delimiters of a string or a list; nothing for null."""
    view = memoryview(raw)
    if len(view) >= 2 and bytes(view[:1]) == bracket:
        return view[1:-1]
    if bytes(view) in (b"", b"null"):
        return view[:0]
    raise ValueError(f"something that begins with {bracket.decode()} was expected, and not {bytes(view[:20])!r}")


class _Text:
    """Concatenate JSON strings without decoding them."""

    begin, end = b'"', b'"'

    def __init__(self) -> None:
        self._inside = bytearray()

    def add(self, raw: Raw) -> None:
        self._inside += _inside(raw, b'"')

    def __bool__(self) -> bool:
        return bool(self._inside)

    def whole(self) -> Raw:
        return Raw(b"".join((self.begin, self._inside, self.end)))


class _List(_Text):
    """Concatenate JSON lists without decoding them."""

    begin, end = b"[", b"]"

    def add(self, raw: Raw) -> None:
        inside = _inside(raw, b"[")
        if not bytes(inside[:SHORT_BYTES]).strip():
            return
        if self._inside:
            self._inside += b","
        self._inside += inside


# Ollama's own form ----------------------------------------------------------------------------------------------------


class _Message(msgspec.Struct):
    content: Raw = NOTHING
    thinking: Raw = NOTHING
    tool_calls: Raw = NOTHING


class _AnswerLine(msgspec.Struct):
    message: _Message | None = None
    response: Raw = NOTHING
    thinking: Raw = NOTHING
    tool_calls: Raw = NOTHING
    logprobs: Raw = NOTHING
    context: Raw = NOTHING
    done: bool = False
    done_reason: Raw = NOTHING
    error: Raw = NOTHING
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    load_duration: int | None = None

    @property
    def said(self) -> Raw:
        return self.message.content if self.message else self.response

    @property
    def thought(self) -> Raw:
        return self.message.thinking if self.message else self.thinking

    @property
    def called(self) -> Raw:
        return self.message.tool_calls if self.message else self.tool_calls

    @property
    def large(self) -> int:
        """Return the size of the fields that may be large."""
        carried = (self.said, self.thought, self.called, self.logprobs, self.context)
        return sum(len(each) for each in carried)


_line = msgspec.json.Decoder(_AnswerLine)
_fields = msgspec.json.Decoder(dict[str, Raw])


def _read_native(body: bytes | bytearray) -> ModelAnswer:
    text, thinking, calls, logprobs = _Text(), _Text(), _List(), _List()
    tokens: deque[str] = deque(maxlen=REPEATS)
    line, raw, chat, error = _AnswerLine(), b"{}", False, ""
    for raw in _lines(body):
        line = _line.decode(raw)
        text.add(line.said)
        thinking.add(line.thought)
        calls.add(line.called)
        logprobs.add(line.logprobs)
        tokens.append((_short(line.said) or _short(line.thought)).strip())  # as Ollama compares them
        chat = chat or line.message is not None
        error = error or _said_wrong(line.error)
    said = text.whole()
    if error:
        return ModelAnswer("error", error, said=said)
    if not line.done:
        stammers = len(tokens) == REPEATS and len(set(tokens)) == 1
        return ModelAnswer("repeats" if stammers else "truncated", "it ended without done:true", said=said)
    if len(raw) - line.large > OTHER_BYTES:
        return ModelAnswer("truncated", f"the last line has over {OTHER_BYTES} bytes beside the answer")
    extras: dict[str, Any] = {}
    if thinking:
        extras["thinking"] = thinking.whole()
    if calls:
        extras["tool_calls"] = calls.whole()
    # All other fields stay as the target wrote them.
    whole: dict[str, Any] = _fields.decode(raw)
    whole |= {"message": {"role": "assistant", "content": said, **extras}} if chat else {"response": said, **extras}
    if logprobs:
        whole["logprobs"] = logprobs.whole()
    return ModelAnswer(
        _short(line.done_reason) or "stop",
        result=msgspec.json.encode(whole),
        said=said,
        prompt_tokens=line.prompt_eval_count,
        tokens=line.eval_count,
        load_seconds=None if line.load_duration is None else line.load_duration / 1e9,
    )


# the other forms ------------------------------------------------------------------------------------------------------


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Choice(msgspec.Struct, gc=False):
    finish_reason: Raw = NOTHING


class _Delta(msgspec.Struct):
    stop_reason: Raw = NOTHING


class _Event(msgspec.Struct):
    type: Raw = NOTHING
    error: Raw = NOTHING
    choices: Raw = NOTHING
    usage: _Usage | None = None
    status: Raw = NOTHING
    stop_reason: Raw = NOTHING
    delta: Raw = NOTHING
    prompt_eval_count: int | None = None
    load_duration: int | None = None

    @property
    def cut(self) -> bool:
        """Return whether a limit on tokens stopped the model."""
        if _short(self.stop_reason) == "max_tokens" or _short(self.status) == "incomplete":
            return True
        if 2 < len(self.delta) <= SHORT_BYTES and bytes(self.delta)[:1] == b"{":
            return _short(_delta.decode(self.delta).stop_reason) == "max_tokens"
        if len(self.choices) <= 2 or bytes(memoryview(self.choices)[:1]) != b"[":
            return False
        if bytes(self.choices).count(b"{") > MAX_CHOICES:
            return False  # implausibly many, and each would become an object
        return any(_short(choice.finish_reason) == "length" for choice in _choices.decode(self.choices))


_event = msgspec.json.Decoder(_Event)
_delta = msgspec.json.Decoder(_Delta)
_choices = msgspec.json.Decoder(list[_Choice])
_LAST = {"response.completed": "stop", "response.incomplete": "length", "message_stop": "stop"}


def _read_events(form: Form, body: bytes | bytearray) -> ModelAnswer:
    """Parse a stream of another API: only how it ended, since the caller reads its bytes."""
    finish, cut, usage = "", False, _Usage()
    for raw in _lines(body):
        if not raw.startswith(b"data:"):
            continue
        data = raw[5:].strip()
        if data == b"[DONE]":
            finish = finish or "stop"
            continue
        event = _event.decode(data)
        kind = _short(event.type)
        if (error := _said_wrong(event.error)) or kind in ("error", "response.failed"):
            return ModelAnswer("error", error or SOME_ERROR)
        usage = event.usage or usage
        finish = _LAST.get(kind, finish)
        cut = cut or event.cut
    if not finish or (form is Form.OPENAI and b"[DONE]" not in body[-64:]):
        return ModelAnswer("truncated", "the stream ended without saying that it was complete")
    return _counted("length" if cut else finish, None, usage)


def _read_object(body: bytes) -> ModelAnswer:
    event = _event.decode(body)
    if error := _said_wrong(event.error):
        return ModelAnswer("error", error)
    answer = _counted("length" if event.cut else "stop", body, event.usage or _Usage())
    if event.prompt_eval_count is None:
        return answer
    loading = None if event.load_duration is None else event.load_duration / 1e9
    return msgspec.structs.replace(answer, prompt_tokens=event.prompt_eval_count, load_seconds=loading)


def _counted(finish: str, result: bytes | None, usage: _Usage) -> ModelAnswer:
    prompt = usage.prompt_tokens if usage.input_tokens is None else usage.input_tokens
    tokens = usage.completion_tokens if usage.output_tokens is None else usage.output_tokens
    return ModelAnswer(finish, result=result, prompt_tokens=prompt, tokens=tokens)


# what went wrong --------------------------------------------------------------------------------------------------------

SOME_ERROR = "the target reported an error"


class _Refusal(msgspec.Struct):
    error: Raw = NOTHING


class _Worded(msgspec.Struct):
    message: Raw = NOTHING


_refusal = msgspec.json.Decoder(_Refusal)
_worded = msgspec.json.Decoder(_Worded)


def error_text(body: bytes) -> str:
    """Return the error text of an answer with a bad status, in any of the forms."""
    try:
        said = _said_wrong(_refusal.decode(body).error)
    except UNREADABLE:
        said = ""
    return said or _clipped(body).strip()


def _said_wrong(error: Raw) -> str:
    """Return the text of an `error` field; "" if there is none."""
    start = bytes(memoryview(error)[: SHORT_BYTES + 1])
    if start in (b"", b"null", b"false", b"0", b'""', b"[]", b"{}"):
        return ""
    try:
        if start.startswith(b'"') and len(start) <= SHORT_BYTES:
            return msgspec.json.decode(error, type=str)[:SHOWN_ERROR]
        if start.startswith(b"{"):
            return _short(_worded.decode(error).message)[:SHOWN_ERROR] or _clipped(start)
    except UNREADABLE:
        pass
    return _clipped(start)


def _clipped(body: bytes) -> str:
    return body[:SHOWN_ERROR].decode("utf-8", "replace")
