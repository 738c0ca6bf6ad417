"""Check the signature of a webhook."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from chargehand.webhooks.signature import Dialect, SignatureError, verify


class Headers(Protocol):
    """Request headers as Flask, Django and FastAPI have them, or a dictionary. Names are compared without case."""

    def items(self) -> Iterable[tuple[str, str]]: ...


def verify_webhook(
    secrets: str | Sequence[str],
    headers: Headers,
    body: bytes,
    *,
    dialect: Dialect = "standard",
    tolerance_seconds: float = 300,
    now: float | None = None,
) -> Any:
    """Return the decoded body if one of the secrets signed it within `tolerance_seconds`, else raise SignatureError.

    Give every secret that is valid while one is being replaced, and the body as it came, before any parsing.

    Every webhook of a Chargehand server has the headers of Standard Webhooks, and only these are checked unless `dialect` names another. The
    signature of `codeq`, for webhooks of codeQ itself, does not cover `webhook-id`: do not use that to detect repeats. `foreman` signs the
    body alone. Whoever has seen such a webhook can send it again under another id, for five minutes or, with `foreman`, at any time.
    """
    given: dict[str, str] = {}
    for name, value in headers.items():
        # A framework returns the first of two ids: the receiver would use that one, and the signature cover the other.
        if given.setdefault(name.lower(), value) != value and name.lower() == "webhook-id":
            raise SignatureError("there are two headers webhook-id")
    known = [secrets] if isinstance(secrets, str) else list(secrets)
    verify(dialect, known, given, body, time.time() if now is None else now, tolerance_seconds)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise SignatureError("the signature is good, but the body is not JSON, or nested too deeply") from None
