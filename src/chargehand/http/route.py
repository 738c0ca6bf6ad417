"""Routes as data: each row names method, path, scope, types and handler, for serving, metrics and the API description."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from chargehand.errors import BadRequest, ChargehandError, InvalidField, TooLarge
from chargehand.http.carried import CarryingEncoder, in_pieces
from chargehand.http.problems import write_problem
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.weight import READ_BYTES, weigh

Handler = Callable[..., Awaitable[None]]
T = TypeVar("T")
JSON = "application/json"
_encoder = CarryingEncoder()
MAX_ECHO = 300
_ABOUT_A_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`")
_FIELD_PROBLEMS = {"missing required": "is missing", "contains unknown": "is not a known field"}


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str  # a template: "/engine/jobs/{job_id}"; "{name:path}" at its end matches slashes too
    handler: Handler  # async (req, resp, **path_parameters); req.caller is the authenticated caller
    summary: str
    scope: str | None = None  # None: public; "": any authenticated caller
    tag: str = "service"
    description: str = ""
    request: Any = None  # the type that decodes the body
    query: type[msgspec.Struct] | None = None  # the type that decodes the query string
    headers: dict[str, str] = field(default_factory=dict)  # request headers that the handler reads, and their meaning
    status: int = 200
    reply: Any = None  # the type of a successful answer
    reply_media: str = JSON
    or_nothing: str = ""  # if the answer may also be 204, what that means
    errors: tuple[type[ChargehandError], ...] = ()
    error_writer: Callable[[Response, ChargehandError], None] = write_problem  # other protocols have their own
    request_id: bool = False  # whether answers carry X-Request-Id: the caller's own, or a new one
    hidden: bool = False  # left out of the API description


async def read_body(req: Request, max_bytes: int) -> bytes:
    """Return the body, or raise TooLarge as soon as that is known, even if Content-Length is wrong or missing."""
    declared = req.content_length or 0
    if declared > max_bytes:
        raise TooLarge(f"the body is {declared} bytes; at most {max_bytes} are accepted")
    if req.is_whole and 0 < declared <= READ_BYTES:
        return req.take()  # most bodies arrive together with the head
    body = bytearray()
    while piece := await req.next_piece():
        if len(piece) == declared:
            return piece
        body += piece
        if len(body) > max_bytes:
            raise TooLarge(f"the body is over {max_bytes} bytes, the maximum")
        if len(body) > READ_BYTES:
            req.room.take(req, len(body))
    return bytes(body)


def decode(decoder: "msgspec.json.Decoder[T]", body: bytes | msgspec.Raw, max_read: int = READ_BYTES) -> T:
    """Decode the body, or raise. Apart from fields that are only stored or passed on (Raw) it may have `max_read` bytes.

    Decoded values take up to forty times the memory of their text, and the decoder creates all items of a list before
    it counts them. So the size of what must be decoded is checked first.
    """
    if not body:
        raise BadRequest("the body is empty; a JSON object is expected")
    try:
        if len(body) > max_read:
            weigh(decoder.type, body, max_read)
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _named(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None


def query(req: Request, kind: type[T]) -> T:
    """Decode the query string, or raise; unknown names are refused, so that a misspelt one is not silently ignored."""
    try:
        return msgspec.convert(req.params, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _named(error) from None


def _named(error: msgspec.ValidationError) -> InvalidField:
    """Turn msgspec's error, which ends with a path such as `$.webhook.url`, into one that names this field."""
    message, _, path = str(error).partition(" - at `")
    path = path.rstrip("`").removeprefix("$").lstrip(".")
    if match := _ABOUT_A_FIELD.fullmatch(message):
        path, message = ".".join(filter(None, (path, match[2]))), _FIELD_PROBLEMS[match[1]]
    return InvalidField(shortened(path) or "body", shortened(message))


def shortened(text: str) -> str:
    """Shorten a caller's text so that an error can repeat it."""
    return text if len(text) <= MAX_ECHO else f"{text[:MAX_ECHO]}…"


def reply(resp: Response, value: Any, status: int = 200) -> None:
    resp.status = status
    resp.headers["content-type"] = JSON
    text, carried = _encoder.encode(value)
    if carried:
        resp.stream = in_pieces(text, carried)
    else:
        resp.data = text
