"""What goes wrong between a client and the server, and the two ways in which a task says how it ended.

`ClientError` is the only thing that calls raise. `Retry` and `Fail` are for the functions of a worker.
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


class Detail(msgspec.Struct, frozen=True):
    """One of several things that are wrong with a request: where (a JSON pointer), which rule, and what to do."""

    path: str = ""
    code: str = ""
    message: str = ""


class ClientError(Exception):
    """The server refused (`status`, its `text` and `detail`), or there was no answer (`status` 0)."""

    def __init__(
        self,
        status: int,
        text: str,
        detail: str = "",
        *,
        retry_after_seconds: float | None = None,
        sent: bool = True,
        details: Sequence[Detail] = (),
        cause: str = "",
    ) -> None:
        what = text if status == NO_ANSWER else f"{status} {text}"
        super().__init__(f"{what}: {detail}" if detail else what)
        self.status = status
        self.text = text
        self.detail = detail
        self.retry_after_seconds = retry_after_seconds
        self.sent = sent  # False: the request never left, so that it may be repeated whatever it is
        self.details = tuple(details)
        self.cause = cause  # of no answer, where it is one that somebody can mend: UNTRUSTED, NO_TLS or CUT

    @property
    def away(self) -> bool:
        """Whether a later try may go better without anybody changing anything."""
        return self.status in (NO_ANSWER, 408, 425, 429) or self.status >= 500

    @property
    def lease_lost(self) -> bool:
        """codeQ answers 403 with this text; its other 403s are about the token."""
        return self.status in _LOST or (self.status == 403 and self.text == "not-owner")


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


def refusal(status: int, body: bytes, retry_after: str | None) -> ClientError:
    """The error in an answer. Anything may stand between us and the server, so the body may be anything too."""
    seconds = None
    if retry_after is not None and retry_after.isascii() and retry_after.isdigit():
        seconds = float(retry_after[:9])
    text, detail = body[:200].decode("utf-8", "replace").strip(), ""
    details: Sequence[Detail] = ()
    try:
        told = msgspec.json.decode(body)
    except msgspec.DecodeError:
        told = None
    if isinstance(told, dict):
        text = str(told.get("error") or told.get("title") or text)
        detail = str(told.get("detail") or told.get("message") or "")
        details = _details(told.get("details"))
    return ClientError(
        status, text or "no text", detail if detail != text else "", retry_after_seconds=seconds, details=details
    )


def _details(told: Any) -> list[Detail]:
    try:
        return msgspec.convert(told or [], list[Detail])
    except msgspec.ValidationError:
        return []
