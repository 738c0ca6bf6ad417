"""What goes wrong between a client and the server, and the two ways in which a task says how it ended.

    ClientError
    ├── NoAnswer             0          nobody was there, or the answer was lost on its way
    ├── BadRequest           400, 4xx   the request must change
    ├── Unauthenticated      401        no token, or one that the server does not know
    ├── Forbidden            403        the token may not do this
    ├── NotFound             404
    ├── Conflict             409        the thing is not in the state that the caller thought
    ├── Busy                 429, 503   not now
    ├── ServerFault          5xx        something broke behind the door
    ├── JobFailed                       the job that was waited for has ended badly; it is in `job`
    └── NotDone                         it has not ended in the time that was given; a TimeoutError too

Calls raise nothing else. `advice` says what to do, and a traceback shows it. `Retry` and `Fail` are for the functions of a worker.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

NO_ANSWER = 0
UNTRUSTED = "untrusted"  # its certificate is nobody's whom we trust
NO_TLS = "no-tls"  # what answers there does not speak TLS
CUT = "cut"  # it took the connection and ended it without an answer: one that wants TLS does so
# The server's answers to those who hold a task no longer: ours says 409, and 404 when the task is gone.
_LOST = {404, 409}


class ErrorDetail(msgspec.Struct, frozen=True):
    """One of several things that are wrong with a request: where (a JSON pointer), which rule, and what to do."""

    path: str = ""
    code: str = ""
    message: str = ""


class ClientError(Exception):
    """The server refused (`status`, its `text` and `detail`), or there was no answer (`status` 0)."""

    advice = ""  # what whoever called may do about it

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
        what = text if status == NO_ANSWER else f"{status} {text}"
        super().__init__(f"{what}: {detail}" if detail else what)
        self.status = status
        self.text = text
        self.detail = detail
        self.code = code  # stable, for programs: docs/reference/errors.md; empty where the server gave none
        self.retry_after_seconds = retry_after_seconds
        self.sent = sent  # False: the request never left, so that it may be repeated whatever it is
        self.details = tuple(details)
        self.cause = cause  # of no answer, where it is one that somebody can mend: UNTRUSTED, NO_TLS or CUT
        if self.advice:
            self.add_note(self.advice)

    @property
    def away(self) -> bool:
        """Whether a later try may go better without anybody changing anything."""
        return self.status in (NO_ANSWER, 408, 425, 429) or self.status >= 500

    @property
    def lease_lost(self) -> bool:
        """codeQ answers 403 with this text; its other 403s are about the token."""
        return self.status in _LOST or (self.status == 403 and self.text == "not-owner")


class NoAnswer(ClientError):
    def __init__(self, text: str, detail: str = "", *, sent: bool = True, cause: str = "") -> None:
        self.advice = _unheard(sent, cause)
        super().__init__(NO_ANSWER, text, detail, sent=sent, cause=cause)


class BadRequest(ClientError):
    advice = "The server will never take this as it is: the text says what must change."


class Unauthenticated(ClientError):
    advice = "Give the client a token that the server knows: token=… or CHARGEHAND_TOKEN. `chargehand token` makes one."


class Forbidden(ClientError):
    advice = "The token lacks a scope, or what was asked for is not allowed here: see docs/operations.md."


class NotFound(ClientError):
    advice = (
        "It was never there, is another tenant's, or was removed when its time was over (retention.finished_seconds)."
    )


class Conflict(ClientError):
    advice = "Read it again: its state has changed, or is not the one that this can be done in."


class Busy(ClientError):
    advice = "Nothing is wrong with the request: try again, after retry_after_seconds if the server said so."


class ServerFault(ClientError):
    advice = "The server's log says what broke. Reading may be repeated; before repeating anything else, look whether it was done."


class JobFailed(ClientError):
    """A job ended badly. `job` is what the server says of it: its `error`, its attempts."""

    advice = "client.retry(job_id), or requeue at the engine, gives it all its attempts again."

    def __init__(self, job: Any, error: str) -> None:
        super().__init__(200, "the job failed", error)
        self.job = job


class NotDone(ClientError, TimeoutError):
    """The job, as it was last seen, is in `job`; of one that nobody could ask about then, its id. It goes on."""

    advice = "Nothing is lost: wait again with the same id, or have yourself told by a webhook."

    def __init__(self, job: Any, why: str) -> None:
        super().__init__(200, "the job has not ended yet", why)
        self.job = job


class Retry(Exception):
    """Raised by a task: not now. Without a delay the server's backoff decides; each try costs an attempt."""

    def __init__(self, delay_seconds: float | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry")
        self.delay_seconds = delay_seconds
        self.reason = reason


class Fail(Exception):
    """Raised by a task: it has failed, and no other try would change that."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error.strip() or "failed"


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
    """The error in an answer. Anything may stand between us and the server, so the body may be anything too."""
    seconds = None
    if retry_after is not None and retry_after.isascii() and retry_after.isdigit():
        seconds = float(retry_after[:9])
    text, detail, code = body[:200].decode("utf-8", "replace").strip(), "", ""
    details: Sequence[ErrorDetail] = ()
    try:
        told = msgspec.json.decode(body)
    except msgspec.DecodeError:
        told = None
    if isinstance(told, dict):
        if isinstance(told.get("error"), dict):
            told = told["error"]  # as OpenAI's and Anthropic's APIs say it
        text = str(told.get("error") or told.get("title") or told.get("code") or text)
        detail = str(told.get("detail") or told.get("message") or "")
        code = str(told.get("code") or "")
        details = _details(told.get("details"))
    return refused(
        status,
        text or "no text",
        detail if detail != text else "",
        code=code,
        retry_after_seconds=seconds,
        details=details,
    )


def _details(told: Any) -> list[ErrorDetail]:
    try:
        return msgspec.convert(told or [], list[ErrorDetail])
    except msgspec.ValidationError:
        return []


def _unheard(sent: bool, cause: str) -> str:
    if cause == UNTRUSTED:
        return "Its certificate is not trusted: set SSL_CERT_FILE to the file of its authority."
    if cause == NO_TLS:
        return "It does not answer as HTTPS does: if it speaks plain HTTP, its URL begins with http://."
    if sent:
        return "It may have been done all the same: look before you do it again. Calls with an idempotency key may be repeated."
    return "Start a server (`chargehand serve`), or say where yours is: the client's url, or CHARGEHAND_URL."
