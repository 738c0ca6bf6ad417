"""Errors become answers here and nowhere else: RFC 9457 problem documents with a stable `code`."""

import math

import falcon
import msgspec
from falcon.asgi import Request, Response

from chargehand.errors import ChargehandError, InvalidField

PROBLEM_TYPE = "application/problem+json"


class Problem(msgspec.Struct, omit_defaults=True):
    """An error: `code` is stable and made for programs, `detail` says what was wrong and what to do."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    field: str | None = None
    retry_after_seconds: int | None = None


def write_problem(resp: Response, error: ChargehandError) -> None:
    retry_after = None if error.retry_after_seconds is None else max(1, math.ceil(error.retry_after_seconds))
    problem = Problem(
        type="about:blank",
        title=error.title,
        status=error.status,
        code=error.code,
        detail=error.message,
        field=error.field if isinstance(error, InvalidField) else None,
        retry_after_seconds=retry_after,
    )
    resp.status = error.status
    resp.content_type = PROBLEM_TYPE
    resp.data = msgspec.json.encode(problem)
    if retry_after is not None:
        resp.set_header("retry-after", str(retry_after))
    if error.status == 401:
        resp.set_header("www-authenticate", 'Bearer realm="chargehand"')


def serialize_falcon_error(_req: Request, resp: Response, error: falcon.HTTPError) -> None:
    """Falcon's own refusals (no such route, method not allowed) in the same shape as ours."""
    title = error.title or "Error"
    problem = Problem("about:blank", title, error.status_code, f"http.{error.status_code}", error.description or title)
    resp.status = error.status
    resp.content_type = PROBLEM_TYPE
    resp.data = msgspec.json.encode(problem)
    for name, value in dict(error.headers or {}).items():
        resp.set_header(name, value)
