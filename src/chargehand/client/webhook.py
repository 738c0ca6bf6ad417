"""The check that every receiver of webhooks must make, in one call."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from chargehand.webhooks.signature import Dialect, SignatureError, verify


def verify_webhook(
    secrets: str | Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance_seconds: float = 300,
    now: float | None = None,
) -> Any:
    """What the webhook says, if one of the secrets signed these very bytes just now; else SignatureError.

    Give all secrets that are valid while one is being replaced. codeQ itself sends its own headers only; they are looked
    at when those of Standard Webhooks are not there.
    """
    given = {name.lower() for name in headers}
    known = [secrets] if isinstance(secrets, str) else list(secrets)
    dialect: Dialect = "standard" if "webhook-signature" in given else "codeq"
    verify(dialect, known, headers, body, time.time() if now is None else now, tolerance_seconds)
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise SignatureError("the signature is good, but the body is not JSON") from None
