"""Every request passes the route table, the gate and a handler. An error on that way becomes an answer in the route's own format."""

import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from itertools import count
from secrets import token_hex
from typing import Any, Protocol

from chargehand.errors import ChargehandError
from chargehand.http.problems import refuse
from chargehand.http.request import Disconnected, Request
from chargehand.http.response import Response, discard
from chargehand.http.room import Room
from chargehand.http.route import Route, shortened
from chargehand.http.table import Table
from chargehand.observability.logs import get_logger

Observe = Callable[[int, float], None]  # status, seconds
ObserverOf = Callable[[str, str], Observe]  # method, path of a route
Respond = Callable[..., Awaitable[Response]]  # with the request and the parameters of its path

_RUN = token_hex(8)  # distinguishes the request ids of this process from all others
_numbers = count(1)

CALLER_GONE = 499  # not a standard status: it is only counted in the metrics, never sent

log = get_logger(__name__)


class Admission(Protocol):
    """What an application needs of a gate: it sets `req.caller` or raises."""

    async def admit(self, req: Request, scope: str | None) -> None: ...


class Application:
    def __init__(
        self, routes: Iterable[Route], gate: Admission, observer_of: ObserverOf, room: Room | None = None
    ) -> None:
        by_path: dict[str, dict[str, Respond]] = {}
        for route in routes:
            by_path.setdefault(route.path, {})[route.method] = _responder(
                route, gate, observer_of(route.method, route.path), room or Room(sys.maxsize)
            )
        self._table: Table[dict[str, Respond]] = Table()
        for path, responders in by_path.items():
            if "GET" in responders:
                responders.setdefault("HEAD", responders["GET"])  # the connection leaves the body out
            responders.setdefault("OPTIONS", _options(responders))
            self._table.add(path, responders)

    def __call__(self, req: Request) -> Awaitable[Response]:
        found = self._table.find(req.path)
        if found is None:
            return _refused(HTTPStatus.NOT_FOUND, f"there is nothing at {shortened(req.path)}")
        responders, parameters = found
        respond = responders.get(req.method)
        if respond is None:
            allowed = _allowed(responders)
            return _refused(HTTPStatus.METHOD_NOT_ALLOWED, f"the allowed methods here are {allowed}", allowed)
        return respond(req, **parameters)


def _responder(route: Route, gate: Admission, observe: Observe, room: Room) -> Respond:
    handler, scope, method, path, write_error = route.handler, route.scope, route.method, route.path, route.error_writer
    has_request_id = route.request_id
    takes_body = route.method in ("POST", "PUT", "PATCH", "DELETE")

    async def respond(req: Request, **parameters: str) -> Response:
        began = time.perf_counter()
        resp = Response()
        if has_request_id:
            resp.headers["x-request-id"] = _request_id(req)
        try:
            await gate.admit(req, scope)
            if takes_body:
                req.room = room
            await handler(req, resp, **parameters)
        except ChargehandError as error:
            await _drop_stream(resp)
            write_error(resp, error)
        except Disconnected:
            resp.status = CALLER_GONE
            await _drop_stream(resp)
            raise
        except Exception:
            log.exception("a request could not be served", method=method, route=path)
            await _drop_stream(resp)
            write_error(resp, ChargehandError("an internal error; the server's log has the details"))
        finally:
            if takes_body:
                room.release(req)
            observe(resp.status, time.perf_counter() - began)
        return resp

    return respond


async def _drop_stream(resp: Response) -> None:
    stream, resp.stream = resp.stream, None
    if stream is not None:
        await discard(stream)


def _request_id(req: Request) -> str:
    """Return the caller's own request id if it is usable, else a new one."""
    given = req.headers.get("x-request-id")
    if given and len(given) <= 200 and given.isprintable():
        return given
    return f"{_RUN}{next(_numbers):016x}"


async def _refused(status: HTTPStatus, detail: str, allowed: str = "") -> Response:
    resp = refuse(status, detail)
    if allowed:
        resp.set_header("allow", allowed)
    return resp


def _options(responders: Mapping[str, Any]) -> Respond:
    async def respond(_req: Request, **_: str) -> Response:
        resp = Response()
        resp.set_header("allow", _allowed(responders))
        return resp

    return respond


def _allowed(responders: Mapping[str, Any]) -> str:
    return ", ".join(sorted(responders))
