"""Errors on codeQ's wire: `{"error": "…"}` with the texts that its clients compare, and details for people."""

from typing import Any

from chargehand.errors import ChargehandError, InvalidField, TooManyRequests, Unauthenticated
from chargehand.http.problems import retry_after, write_refusal
from chargehand.http.response import Response


class TaskRefused(ChargehandError):
    """An error of codeQ's wire: its status, its text, and other fields."""

    code = "tasks.refused"
    title = "Refused"

    def __init__(
        self, status: int, text: str, *, detail: str = "", retry_after_seconds: float | None = None, **more: Any
    ) -> None:
        super().__init__(text, retry_after_seconds=retry_after_seconds)
        self.http_status = status
        self.more = {**more, **({"detail": detail} if detail else {})}


def invalid_body(error: ChargehandError, text: str = "invalid body") -> TaskRefused:
    """Return codeQ's text for an invalid body, with what is wrong with it in `detail`."""
    refusal = TaskRefused(400, text, detail=error.message)
    if isinstance(error, InvalidField):
        refusal.more["field"] = error.field
    return refusal


def detail_of(error: ChargehandError) -> str:
    return str(error.more.get("detail", "")) if isinstance(error, TaskRefused) else ""


def whole_text(error: ChargehandError) -> str:
    """Return one line with the details, for a wire that has a text alone."""
    detail = detail_of(error)
    return f"{error.message}: {detail}" if detail else error.message


def write_error(resp: Response, error: ChargehandError) -> None:
    body: dict[str, Any] = {"error": error.message}
    status, later = error.status, retry_after(error)
    if isinstance(error, TaskRefused):
        status = error.http_status
        body |= error.more
    elif isinstance(error, InvalidField):
        body |= {"field": error.field}
    elif isinstance(error, Unauthenticated):
        body = {"error": error.short or error.message, "detail": error.message}
    elif isinstance(error, TooManyRequests) and later is not None:
        body = {"error": "rate limit exceeded", "detail": error.message, "retryAfterSeconds": later}
    write_refusal(resp, status, body, later)
