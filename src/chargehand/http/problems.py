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
    retry_after = None if error.retry_after_seconds is None else max(1, math.ceil(error.retry_after_seconds))
    _write(
        resp,
        Problem(
            type="about:blank",
            title=error.title,
            status=error.status,
            code=error.code,
            detail=error.message,
            field=error.field if isinstance(error, InvalidField) else None,
            retry_after_seconds=retry_after,
        ),
    )
    if error.status == 401:
        resp.set_header("www-authenticate", 'Bearer realm="chargehand"')


def refuse(status: HTTPStatus, detail: str, retry_after_seconds: int | None = None) -> Response:
    """Return an answer of the HTTP layer itself, in the same shape as all other errors."""
    resp = Response()
    code = f"http.{status.value}"
    _write(resp, Problem("about:blank", status.phrase, status.value, code, detail, None, retry_after_seconds))
    return resp


def _write(resp: Response, problem: Problem) -> None:
    resp.status = problem.status
    resp.content_type = PROBLEM_TYPE
    resp.data = msgspec.json.encode(problem)
    resp.stream = None
    if problem.retry_after_seconds is not None:
        resp.set_header("retry-after", str(problem.retry_after_seconds))
