"""The check that every receiver of webhooks must make, in one call."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from chargehand.webhooks.signature import Dialect, SignatureError, verify


class Headers(Protocol):
    """Those of Flask, Django and FastAPI, and dictionaries. Upper and lower case are the same."""

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
    """What the webhook says, if one of the secrets signed these very bytes just now; else SignatureError.

    Give all secrets that are valid while one is being replaced, and the body as it came, before any parsing.

    Every webhook of a Chargehand server has the headers of Standard Webhooks, and these alone are looked at, unless another dialect is
    asked for. `codeq`, for webhooks of codeQ itself, does not cover `webhook-id`: do not tell repetitions by it. `foreman` covers the
    body alone. Whoever has seen such a webhook once could send it again under any id, for five minutes or for ever.
    """
    given: dict[str, str] = {}
    for name, value in headers.items():
        # Frameworks give the first of two ids. It would be known by that one, and signed with the other.
        if given.setdefault(name.lower(), value) != value and name.lower() == "webhook-id":
            raise SignatureError("there are two headers webhook-id")
    known = [secrets] if isinstance(secrets, str) else list(secrets)
    verify(dialect, known, given, body, time.time() if now is None else now, tolerance_seconds)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise SignatureError("the signature is good, but the body is not JSON, or nested too deeply") from None
