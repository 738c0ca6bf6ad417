"""The lines of a batch: parse and check those of the input, write those of the output."""

import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from chargehand.doors.inference.names import check_model
from chargehand.doors.inference.request import NOTHING, SMALL_BYTES, fields_of, outline
from chargehand.doors.inference.wire import FORMS, UNREADABLE, Form
from chargehand.engine.job import Job, State
from chargehand.errors import ChargehandError
from chargehand.http.inputs import check_utf8

ENDPOINTS = tuple(path for path in FORMS if path.startswith("/v1/") and path != "/v1/messages")
MAX_LINES = 50_000
MAX_CUSTOM_ID = 512
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # which some editors put at the start


class LineError(msgspec.Struct, frozen=True):
    """An error in a line of the input, in OpenAI's shape."""

    code: str
    line: int | None
    message: str
    param: str | None = None


class Invalid(Exception):
    """The input has errors, so none of it is worked on."""

    def __init__(self, *errors: LineError) -> None:
        super().__init__(errors[0].message)
        self.errors = errors


class InputLine(msgspec.Struct, frozen=True):
    number: int  # in the file, from 1
    custom_id: str
    model: str
    body: msgspec.Raw  # as it stands in the line


# input ------------------------------------------------------------------------------------------------------------------


class _RawLine(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Outer(msgspec.Struct):
    body: msgspec.Raw = NOTHING


class _Body(msgspec.Struct):
    model: str


_line = msgspec.json.Decoder(_RawLine)
_outer = msgspec.json.Decoder(_Outer)
_body = msgspec.json.Decoder(_Body)
_PATH = re.compile(r"\$\.?(\w*)")


async def split_lines(pieces: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, with their numbers. Holds one line and one piece in memory."""
    rest, number = bytearray(), 1
    async for piece in pieces:
        *ends, last = piece.split(b"\n")
        for end in ends:
            rest += end
            if rest and not rest.isspace():
                line = bytes(rest)
                rest.clear()
                yield number, line
            rest.clear()
            number += 1
        rest += last
        if len(rest) > max_bytes:
            raise Invalid(LineError("line_too_large", number, f"the line is over {max_bytes} bytes"))
    if rest and not rest.isspace():
        yield number, bytes(rest)


def read_line(number: int, raw: bytes, endpoint: str, allow_cloud: bool) -> InputLine | LineError:
    if number == 1:
        raw = raw.removeprefix(BYTE_ORDER_MARK)
    try:
        check_utf8(raw)
        if len(raw) > SMALL_BYTES and len(raw) - len(_outer.decode(raw).body) > SMALL_BYTES:
            return LineError("line_too_large", number, f"it has over {SMALL_BYTES} bytes beside its body")
        line = _line.decode(raw)
    except (ChargehandError, *UNREADABLE) as error:
        return _refused(number, error, "")
    if not line.custom_id.strip() or len(line.custom_id) > MAX_CUSTOM_ID:
        return LineError("invalid_custom_id", number, f"must have 1 to {MAX_CUSTOM_ID} characters", "custom_id")
    if line.method != "POST":
        return LineError("invalid_method", number, f"must be POST, not {line.method[:20]}", "method")
    if line.url != endpoint:
        return LineError("invalid_url", number, f"must be {endpoint}, the batch's endpoint, not {line.url[:80]}", "url")
    try:
        if len(line.body) > SMALL_BYTES:
            outline(line.body)
        model = _body.decode(line.body).model
    except ChargehandError as error:
        return LineError("invalid_body", number, error.message, "body")
    except UNREADABLE as error:
        return _refused(number, error, "body")
    try:
        check_model(model, allow_cloud)
    except ChargehandError as error:
        return LineError("invalid_model", number, error.message, "body.model")
    return InputLine(number, line.custom_id, model, line.body)


def _refused(number: int, error: Exception, inside: str) -> LineError:
    """msgspec says where: "… missing required field `model`", or "… - at `$.custom_id`"."""
    if not isinstance(error, msgspec.ValidationError):
        return LineError("invalid_json_line", number, f"this is not a line of JSON: {error}", inside or None)
    message, _, path = str(error).partition(" - at ")
    found = _PATH.search(path)
    missing = re.search(r"required field `(\w+)`", message)
    names = [inside, found[1] if found else "", missing[1] if missing else ""]
    code = "missing_required_parameter" if missing else "invalid_type"
    return LineError(code, number, message, ".".join(name for name in names if name) or None)


def for_target(endpoint: str, body: msgspec.Raw) -> msgspec.Raw | dict[str, Any]:
    """Ask for the answer in one piece, whatever the line says about streaming: nobody reads along."""
    if FORMS[endpoint] is Form.VECTORS:
        return body
    kept: dict[str, Any] = {name: value for name, value in fields_of(body).items() if name != "stream_options"}
    return kept | {"stream": False}


# output -----------------------------------------------------------------------------------------------------------------


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str
    message: str


class _Outcome(msgspec.Struct):
    id: str
    custom_id: str
    response: _Response | None = None
    error: _Error | None = None


_encoder = msgspec.json.Encoder()
_ENDED = {
    "": ("not_run", "the batch ended before this request was run"),
    "cancel": ("cancelled", "the request was cancelled before it was done"),
    "expire": ("batch_expired", "the request was not done before the completion window ended"),
}


def how_it_ended(job: Job | None) -> str:
    """Return the move that ended a job, or "" if it has not ended. How a removed job ended is not known."""
    if job is None:
        return "fail"
    if job.state is State.FAILED and job.deadline_at is not None and (job.finished_at or 0) >= job.deadline_at:
        return "expire"
    return {State.SUCCEEDED: "succeed", State.FAILED: "fail", State.CANCELLED: "cancel"}.get(job.state, "")


def write_line(custom_id: bytes, job_id: str, end: str, job: Job | None) -> bytes:
    """Return a line of the output file, or of the error file if there is no answer."""
    outcome = _Outcome(f"batch_req_{job_id}", custom_id.decode())
    if job is not None and job.result is not None:
        _respond(outcome, job_id, job.result)
    elif end in _ENDED:
        outcome.error = _Error(*_ENDED[end])
    elif job is None:
        outcome.error = _Error(
            "result_removed", "the job was removed before the batch ended (retention.finished_seconds)"
        )
    else:
        outcome.error = _Error("request_failed", job.error or "the request failed")
    return _encoder.encode(outcome) + b"\n"


def _respond(outcome: _Outcome, job_id: str, result: bytes) -> None:
    """Return the JSON without whitespace: the target may have sent line breaks, and this is one line."""
    try:
        body = msgspec.Raw(msgspec.json.format(result, indent=-1))
        outcome.response = _Response(200, job_id, body)
    except UNREADABLE as error:
        outcome.error = _Error("result_unreadable", f"the answer cannot be written down: {error}")
