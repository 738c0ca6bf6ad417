"""Turn errors into answers: RFC 9457 problem documents with a stable `code`."""

import math
from http import HTTPStatus

import msgspec

from chargehand.errors import ChargehandError, InvalidField
from chargehand.http.response import Response

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
    field, later = error.field if isinstance(error, InvalidField) else None, retry_after(error)
    problem = Problem("about:blank", error.title, error.status, error.code, error.message, field, later)
    write_refusal(resp, error.status, problem, later, media_type=PROBLEM_TYPE)


def refuse(status: HTTPStatus, detail: str, retry_after_seconds: int | None = None) -> Response:
    """Return an answer of the HTTP layer itself, in the same shape as all other errors."""
    resp = Response()
    code = f"http.{status.value}"
    problem = Problem("about:blank", status.phrase, status.value, code, detail, None, retry_after_seconds)
    write_refusal(resp, status.value, problem, retry_after_seconds, media_type=PROBLEM_TYPE)
    return resp


def retry_after(error: ChargehandError) -> int | None:
    return None if error.retry_after_seconds is None else max(1, math.ceil(error.retry_after_seconds))


def write_refusal(
    resp: Response,
    status: int,
    body: object,
    retry_after_seconds: int | None,
    *,
    media_type: str = "application/json",
    challenge: str = 'Bearer realm="chargehand"',
) -> None:
    """Write an error in the shape that its protocol has."""
    resp.status = status
    resp.content_type = media_type
    resp.data = msgspec.json.encode(body)
    resp.stream = None
    if retry_after_seconds is not None:
        resp.set_header("retry-after", str(retry_after_seconds))
    if status == 401:
        resp.set_header("www-authenticate", challenge)
