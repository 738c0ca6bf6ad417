"""The errors that calls raise, and the two that a worker's function raises.

    ClientError
    ├── NoAnswer             0          no server was there, or its answer was lost
    ├── BadRequest           400, 4xx   the request must change
    ├── Unauthenticated      401        no token, or one that the server does not know
    ├── Forbidden            403        the token does not allow this
    ├── NotFound             404
    ├── Conflict             409        the state of the job, task or server does not allow this
    ├── Busy                 429, 503   the server has no capacity now
    ├── ServerFault          5xx        the server failed
    ├── JobFailed                       the job that was waited for failed or was cancelled; it is in `job`
    └── NotDone                         the job did not end before the timeout; also a TimeoutError

Calls raise nothing else. `advice` says what to do; a traceback shows it. A worker's function raises `Retry` or `Fail`.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

NO_ANSWER = 0
OK = 200  # nothing is wrong with the call itself
UNTRUSTED = "untrusted"  # its certificate is not trusted
NO_TLS = "no-tls"  # the server does not speak TLS
CUT = "cut"  # the server closed the connection without an answer, as one that expects TLS does
# What a server answers about a lease that was lost: ours says 409, or 404 when the task is gone.
_LOST = {404, 409}


class ErrorDetail(msgspec.Struct, frozen=True):
    """One thing that is wrong with a request: where (a JSON pointer), which rule, and what to do."""

    path: str = ""
    code: str = ""
    message: str = ""


class ClientError(Exception):
    """The server refused (`status`, its `text` and `detail`), or there was no answer (`status` 0)."""

    advice = ""  # what the caller can do about it

    def __init__(
        self,
        status: int,
        text: str,
        detail: str = "",
        *,
        code: str = "",
        retry_after_seconds: float | None = None,
        sent: bool = True,
        details: Sequence[ErrorDetail] = (),
        cause: str = "",
    ) -> None:
        what = text if status in (NO_ANSWER, OK) else f"{status} {text}"
        super().__init__(f"{what}: {detail}" if detail else what)
        self.status = status
        self.text = text
        self.detail = detail
        self.code = code  # stable, for programs: docs/reference/errors.md; empty where the server gave none
        self.retry_after_seconds = retry_after_seconds
        self.sent = sent  # False: the request was not sent, so any call may be repeated
        self.details = tuple(details)
        self.cause = cause  # of no answer, if it is known: UNTRUSTED, NO_TLS or CUT
        if self.advice:
            self.add_note(self.advice)

    @property
    def away(self) -> bool:
        """Whether the same call may succeed later."""
        return self.status in (NO_ANSWER, 408, 425, 429) or self.status >= 500

    @property
    def lease_lost(self) -> bool:
        """codeQ answers 403 with this text; its other 403s are about the token."""
        return self.status in _LOST or (self.status == 403 and self.text == "not-owner")


class NoAnswer(ClientError):
    def __init__(self, text: str, detail: str = "", *, sent: bool = True, cause: str = "") -> None:
        self.advice = _advice(sent, cause)
        super().__init__(NO_ANSWER, text, detail, sent=sent, cause=cause)


class BadRequest(ClientError):
    advice = "The server will not accept this request as it is: the text says what must change."


class Unauthenticated(ClientError):
    advice = "Give the client a token that the server knows: token=… or CHARGEHAND_TOKEN. `chargehand token` makes one."


class Forbidden(ClientError):
    advice = "The token lacks a scope, or this server does not allow the call: see docs/operations.md."


class NotFound(ClientError):
    advice = (
        "It does not exist, belongs to another tenant, or was removed after its retention (retention.finished_seconds)."
    )


class Conflict(ClientError):
    advice = "Read it again: its state has changed, or does not allow this call."


class Busy(ClientError):
    advice = "The request is right: try again, after retry_after_seconds if the server gave it."


class ServerFault(ClientError):
    advice = (
        "The server's log says what failed. Repeat reads; before you repeat anything else, check whether it was done."
    )


class JobFailed(ClientError):
    """The job failed or was cancelled. `job` has its `error` and its attempts."""

    advice = "client.retry(job_id), or client.engine.requeue(job_id), gives it all its attempts again."

    def __init__(self, job: Any, error: str) -> None:
        super().__init__(OK, "the job failed", error)
        self.job = job


class NotDone(ClientError, TimeoutError):
    """The job did not end before the timeout, and is still queued or running. `job` is as it was last read, or has its id alone."""

    advice = "Wait again with the same id, or submit with a webhook."

    def __init__(self, job: Any, job_id: str, state: str) -> None:
        known = "its state is unknown" if state.lower() == "unknown" else f"the job is still {state}"
        super().__init__(OK, f"timed out waiting for job {job_id}; {known}")
        self.job = job


class Retry(Exception):
    """A worker's function raises this to have its task tried again. Without a delay the server's backoff decides; the attempt counts."""

    def __init__(self, delay_seconds: float | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry")
        self.delay_seconds = delay_seconds
        self.reason = reason


class Fail(Exception):
    """A worker's function raises this to fail its task for good."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error.strip() or "failed"


class SoftTimeLimit(asyncio.CancelledError):
    """Raised in a worker's function whose `soft_timeout` is over. Whoever catches it has until `timeout` to end; else the task is tried
    again. Like a cancellation it passes `except Exception`, and asyncio ends what the function has begun."""


_KINDS: dict[int, type[ClientError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    429: Busy,
    503: Busy,
}


def refused(status: int, text: str, detail: str = "", **more: Any) -> ClientError:
    """The error for this status."""
    kind = _KINDS.get(status) or (ServerFault if status >= 500 else BadRequest)
    return kind(status, text, detail, **more)


def refusal(status: int, body: bytes, retry_after: str | None) -> ClientError:
    """The error that an answer describes. A proxy may have answered, so the body may be anything."""
    seconds = None
    if retry_after is not None and retry_after.isascii() and retry_after.isdigit():
        seconds = float(retry_after[:9])
    text, detail, code = body[:200].decode("utf-8", "replace").strip(), "", ""
    details: Sequence[ErrorDetail] = ()
    try:
        answer = msgspec.json.decode(body)
    except msgspec.DecodeError:
        answer = None
    if isinstance(answer, dict):
        if isinstance(answer.get("error"), dict):
            answer = answer["error"]  # in the shape of OpenAI's and Anthropic's APIs
        text = str(answer.get("error") or answer.get("title") or answer.get("code") or text)
        detail = str(answer.get("detail") or answer.get("message") or "")
        code = str(answer.get("code") or "")
        details = _details(answer.get("details"))
    return refused(
        status,
        text or "no text",
        detail if detail != text else "",
        code=code,
        retry_after_seconds=seconds,
        details=details,
    )


def _details(given: Any) -> list[ErrorDetail]:
    try:
        return msgspec.convert(given or [], list[ErrorDetail])
    except msgspec.ValidationError:
        return []


def _advice(sent: bool, cause: str) -> str:
    if cause == UNTRUSTED:
        return "Its certificate is not trusted: set SSL_CERT_FILE to the file of its authority."
    if cause == NO_TLS:
        return "The server does not speak TLS: if it speaks plain HTTP, its URL begins with http://."
    if sent:
        return "The server may have done it: check before you repeat it. Calls with an idempotency key may be repeated."
    return "Start a server (`chargehand serve`), or give the URL of yours: the client's url, or CHARGEHAND_URL."
