"""Routes as data: one row says method, path, scope, types and handler; serving, metrics and the description read it."""

import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from secrets import token_hex
from typing import Any, Protocol, TypeVar

import falcon.asgi
import msgspec
from falcon.asgi import Request, Response

from chargehand.errors import BadRequest, ChargehandError, InvalidField, Overloaded, TooLarge
from chargehand.http.carried import Answer, in_pieces
from chargehand.http.problems import write_problem
from chargehand.http.weight import READ_BYTES, weigh
from chargehand.observability.logs import get_logger

Handler = Callable[..., Awaitable[None]]
T = TypeVar("T")
_RUN = token_hex(8)  # what tells one server's requests from another's
_numbers = count(1)

log = get_logger(__name__)
JSON = "application/json"
_answer = Answer()
MAX_ECHO = 300
_ABOUT_A_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`")
_SAID = {"missing required": "is missing", "contains unknown": "is not known here"}


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str  # Falcon's template: "/engine/jobs/{job_id}"
    handler: Handler  # async (req, resp, **path_parameters); req.context.caller says who calls
    summary: str
    scope: str | None = None  # None: open to everybody; empty: to everybody with a name
    tag: str = "service"
    description: str = ""
    request: Any = None  # the type that decodes the body
    query: type[msgspec.Struct] | None = None  # the type that decodes the query string
    headers: dict[str, str] = field(default_factory=dict)  # request headers with a meaning, and that meaning
    status: int = 200
    reply: Any = None  # the type of a good answer
    reply_media: str = JSON
    or_nothing: str = ""  # when the answer may also be 204, what that means
    errors: tuple[type[ChargehandError], ...] = ()
    error_writer: Callable[[Response, ChargehandError], None] = write_problem  # for a wire with errors of its own shape
    request_id: bool = False  # whether answers carry X-Request-Id: the caller's own, or a new one
    hidden: bool = False  # left out of the API description


class Gate(Protocol):
    """Who may pass: sets `req.context.caller` or raises."""

    async def admit(self, req: Request, scope: str | None) -> None: ...


Observe = Callable[[str, str, int, float], None]  # method, path, status, seconds


class Room:
    """For large bodies that are read or worked on: their bytes together have a bound. One is let in, however large."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: dict[Request, int] = {}
        self._sum = 0

    def take(self, req: Request, size: int) -> None:
        """So much in all for this request."""
        held = self._held.get(req, 0)
        if self._sum + size - held > self._max_bytes and len(self._held) > (req in self._held):
            raise Overloaded(
                f"large bodies of other requests have {self._sum - held} of {self._max_bytes} bytes; try again later",
                retry_after_seconds=1,
            )
        self._held[req] = size
        self._sum += size - held

    def leave(self, req: Request) -> None:
        self._sum -= self._held.pop(req, 0)


def mount(
    app: "falcon.asgi.App[Request, Response]",
    routes: Iterable[Route],
    gate: Gate,
    observe: Observe,
    room: Room | None = None,
) -> None:
    room = room or Room(sys.maxsize)
    by_path: dict[str, list[Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, []).append(route)
    for path, rows in by_path.items():
        responders = {
            f"on_{route.method.lower()}": staticmethod(_responder(route, gate, observe, room)) for route in rows
        }
        app.add_route(path, type("Resource", (), responders)())


def _responder(route: Route, gate: Gate, observe: Observe, room: Room) -> Handler:
    handler, scope, method, path, write_error = route.handler, route.scope, route.method, route.path, route.error_writer
    request_id = route.request_id
    takes_body = route.method in ("POST", "PUT", "PATCH", "DELETE")

    async def respond(req: Request, resp: Response, **parameters: Any) -> None:
        began = time.perf_counter()
        if request_id:
            resp.set_header("x-request-id", _request_id(req))
        try:
            await gate.admit(req, scope)
            if takes_body:
                req.context.room = room
            await handler(req, resp, **parameters)
        except ChargehandError as error:
            write_error(resp, error)
        except Exception:
            log.exception("a request could not be served", method=method, route=path)
            write_error(resp, ChargehandError("an internal error; the server's log has the details"))
        finally:
            if takes_body:
                room.leave(req)
            observe(method, path, resp.status_code, time.perf_counter() - began)

    return respond


def _request_id(req: Request) -> str:
    given = req.get_header("x-request-id")
    if given and len(given) <= 200 and given.isprintable():
        return given
    return f"{_RUN}{next(_numbers):016x}"


async def read_body(req: Request, max_bytes: int) -> bytes:
    """The body, or TooLarge as soon as that is known: a lying or absent Content-Length changes nothing."""
    declared = req.content_length or 0
    if declared > max_bytes:
        raise TooLarge(f"the body is {declared} bytes; at most {max_bytes} are accepted")
    if 0 < declared <= READ_BYTES:
        whole: bytes = await req.stream.read(
            declared
        )  # most are small, and walking over the pieces costs twice as much
        return whole
    body = bytearray()
    async for piece in req.stream:
        if len(piece) == declared:
            return piece  # as most do, it came in one
        body += piece  # at once, for a list of pieces of two bytes would have twenty times their size
        if len(body) > max_bytes:
            raise TooLarge(f"the body is over {max_bytes} bytes, the most that is accepted")
        if len(body) > READ_BYTES:
            req.context.room.take(req, len(body))
    return bytes(body)


def decode(decoder: "msgspec.json.Decoder[T]", body: bytes | msgspec.Raw, max_read: int = READ_BYTES) -> T:
    """The body as a typed value. All of it but what is only carried (Raw) has at most `max_read` bytes.

    Decoded values take up to forty times the memory of their text, and the decoder makes all items of a list before
    it counts them. So what a large body has to be read of is weighed first.
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
    """The query string as a typed value; unknown names are refused so that a typing error is not a silent wrong answer."""
    try:
        return msgspec.convert(dict(req.params), kind, strict=False)
    except msgspec.ValidationError as error:
        raise _named(error) from None


def _named(error: msgspec.ValidationError) -> InvalidField:
    """msgspec ends its message with a path such as `$.webhook.url`; that path is the field."""
    message, _, path = str(error).partition(" - at `")
    path = path.rstrip("`").removeprefix("$").lstrip(".")
    if match := _ABOUT_A_FIELD.fullmatch(message):
        path, message = ".".join(filter(None, (path, match[2]))), _SAID[match[1]]
    return InvalidField(_cut(path) or "body", _cut(message))


def _cut(text: str) -> str:
    """A refusal repeats what was sent, but not at any length."""
    return text if len(text) <= MAX_ECHO else f"{text[:MAX_ECHO]}…"


def reply(resp: Response, value: Any, status: int = 200) -> None:
    resp.status = status
    resp.content_type = JSON
    text, carried = _answer.encode(value)
    if carried:
        resp.stream = in_pieces(text, carried)
    else:
        resp.data = text
