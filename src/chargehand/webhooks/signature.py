"""Make and verify the signatures of webhooks: always HMAC-SHA256; each dialect signs other bytes and uses another header.

| dialect    | signed                | header                                                      |
|------------|-----------------------|-------------------------------------------------------------|
| `standard` | `id.timestamp.body`   | `webhook-signature: v1,<base64>`, one for each valid secret |
| `foreman`  | `body`                | `X-Foreman-Signature: sha256=<hex>`                         |
| `codeq`    | `timestamp.body`      | `X-CodeQ-Signature: <hex>` beside `X-CodeQ-Timestamp`       |

Every delivery carries the headers of Standard Webhooks, and beside them those of its own dialect. While a secret is
being replaced, the Standard Webhooks header holds a signature by each; the other headers hold one, by the current secret.

The key is the secret's text in UTF-8. Only Standard Webhooks has a notation of its own: there a secret that begins with
`whsec_` is the base64 of the key. `standard_secret` gives the form that a receiver's library expects for either.
"""

import base64
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, assert_never

Dialect = Literal["standard", "foreman", "codeq"]

_PREFIX = "whsec_"
_UNIX_SECONDS = re.compile(r"[0-9]{1,12}")


class SignatureError(ValueError):
    """The webhook could not be verified. The message says why and never holds a secret or an expected signature."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The secrets that sign for one receiver. Without a `current` secret nothing is signed."""

    current: str = field(default="", repr=False)
    previous: str = field(default="", repr=False)
    text_key: bytes = field(init=False, repr=False, compare=False)
    standard_keys: tuple[bytes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text_key", self.current.encode())
        object.__setattr__(
            self, "standard_keys", tuple(map(_standard_key, filter(None, (self.current, self.previous))))
        )


def sign(dialect: Dialect, keys: Keys, delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers for one try of a delivery; `timestamp` is the time of that try."""
    stamp = str(timestamp)
    headers = {"webhook-id": delivery_id, "webhook-timestamp": stamp}
    if not keys.current:
        return headers
    signed = b".".join((delivery_id.encode(), stamp.encode(), body))
    headers["webhook-signature"] = " ".join([_standard_signature(key, signed) for key in keys.standard_keys])
    if dialect == "foreman":
        headers["X-Foreman-Signature"] = "sha256=" + _hex_signature(keys.text_key, body)
    elif dialect == "codeq":
        headers["X-CodeQ-Timestamp"] = stamp
        headers["X-CodeQ-Signature"] = _hex_signature(keys.text_key, b".".join((stamp.encode(), body)))
    return headers


def verify(
    dialect: Dialect,
    secrets: Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    now: float,
    tolerance_seconds: float = 300,
) -> None:
    """Return if one of the secrets signed this webhook, else raise SignatureError. Header names may be in any case.

    `foreman` signs the body alone, so it cannot detect a replay: a receiver that must do so verifies the `standard`
    headers, which come with every delivery.
    """
    # A string is a sequence too: of one-letter secrets, which anybody could guess.
    secrets = [secrets] if isinstance(secrets, str) else [secret for secret in secrets if secret]
    if not any(secrets):
        raise SignatureError("there is no secret to check the signature with")
    given = {name.lower(): value for name, value in headers.items()}
    if dialect == "standard":
        delivery_id = _required(given, "webhook-id")
        stamp = _fresh(given, "webhook-timestamp", now, tolerance_seconds)
        signed = b".".join((_octets(delivery_id), stamp.encode(), body))
        claimed = _required(given, "webhook-signature").split(" ")
        expected = [_standard_signature(_standard_key(secret), signed) for secret in secrets]
    elif dialect == "foreman":
        claimed = [_required(given, "x-foreman-signature").lower().removeprefix("sha256=")]
        expected = [_hex_signature(secret.encode(), body) for secret in secrets]
    elif dialect == "codeq":
        stamp = _fresh(given, "x-codeq-timestamp", now, tolerance_seconds)
        claimed = [_required(given, "x-codeq-signature").lower()]
        expected = [_hex_signature(secret.encode(), b".".join((stamp.encode(), body))) for secret in secrets]
    else:
        assert_never(dialect)
    # Compare every pair, so that the time taken does not reveal which secret matched.
    matches = [hmac.compare_digest(_octets(one), _octets(other)) for one in expected for other in claimed]
    if True not in matches:
        raise SignatureError("no signature matches")


def standard_secret(secret: str) -> str:
    """Return a secret in the form that Standard Webhooks libraries expect."""
    return _PREFIX + base64.b64encode(_standard_key(secret)).decode()


def _standard_key(secret: str) -> bytes:
    if not secret.startswith(_PREFIX):
        return secret.encode()
    encoded = secret.removeprefix(_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise ValueError(f"a secret that begins with {_PREFIX} must continue in base64")
    return key


def _standard_signature(key: bytes, signed: bytes) -> str:
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


def _hex_signature(key: bytes, signed: bytes) -> str:
    return hmac.digest(key, signed, "sha256").hex()


def _required(given: Mapping[str, str], name: str) -> str:
    value = given.get(name)
    if not value:
        raise SignatureError(f"the header {name} is missing")
    return value


def _fresh(given: Mapping[str, str], name: str, now: float, tolerance_seconds: float) -> str:
    stamp = _required(given, name)
    if not _UNIX_SECONDS.fullmatch(stamp):
        raise SignatureError(f"the header {name} does not hold Unix seconds")
    age_seconds = now - int(stamp)
    if age_seconds > tolerance_seconds:
        raise SignatureError(f"the header {name} is too old")
    if age_seconds < -tolerance_seconds:
        raise SignatureError(f"the header {name} is in the future")
    return stamp


def _octets(text: str) -> bytes:
    # A header may hold any text, even lone surrogates; surrogatepass encodes those too.
    return text.encode("utf-8", "surrogatepass")
