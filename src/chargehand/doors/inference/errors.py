"""Errors in the shapes of Ollama, OpenAI and Anthropic: each client reads only its own."""

from collections.abc import Callable

import msgspec

from chargehand.errors import ChargehandError
from chargehand.http.problems import retry_after, write_refusal
from chargehand.http.response import Response

Writer = Callable[[Response, ChargehandError], None]


_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def writer_for(path: str) -> Writer:
    if path.startswith("/v1/messages"):
        return write_anthropic
    return write_openai if path.startswith("/v1/") else write_native


def write_native(resp: Response, error: ChargehandError) -> None:
    _write(resp, error, {"error": error.message, "code": error.code})


def write_openai(resp: Response, error: ChargehandError) -> None:
    kind = _KINDS.get(error.status, "api_error")
    detail = {"message": error.message, "type": kind, "param": getattr(error, "field", None), "code": error.code}
    _write(resp, error, {"error": detail})


def write_anthropic(resp: Response, error: ChargehandError) -> None:
    kind = _KINDS.get(error.status, "api_error")
    _write(resp, error, {"type": "error", "error": {"type": kind, "message": error.message}})


def in_shape_of(path: str, status: int, message: str) -> bytes:
    """Return a target's error in the shape of the caller's API."""
    kind = _KINDS.get(status, "api_error")
    if path.startswith("/v1/messages"):
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": None}})


def _write(resp: Response, error: ChargehandError, body: object) -> None:
    write_refusal(resp, error.status, body, retry_after(error))
