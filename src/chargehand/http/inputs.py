"""What a request to submit a job brings along: its headers, and JSON that is stored as it was sent."""

import codecs
import hashlib
from datetime import datetime

import msgspec

from chargehand.engine.job import SECOND
from chargehand.errors import BadRequest, InvalidField
from chargehand.http.request import Request

TEN_YEARS = 315_360_000  # in seconds: the longest delay
LAST_YEAR = 9000
OBJECT_BYTES = 16_384
PIECE = 65_536
UTF8 = codecs.getincrementaldecoder("utf-8")
IDEMPOTENCY_KEY = "Makes a repeated request safe: same key and body give the first job again; same key, other body: 422. Known as long as the job is kept"


# headers ----------------------------------------------------------------------------------------------------------------


def idempotency_key(req: Request) -> str | None:
    """Return the key without quotes: the draft standard has them, real clients have not."""
    text = req.get_header("idempotency-key")
    if text is None:
        return None
    key = text.strip().strip('"')
    if not 1 <= len(key) <= 255 or not key.isprintable():
        raise InvalidField("Idempotency-Key", "must have 1 to 255 printable characters")
    return key


def identity(req: Request, body: bytes) -> tuple[str | None, str | None]:
    """Return the idempotency key and the fingerprint of the body, by which a repeated request is told from another."""
    key = idempotency_key(req)
    return key, hashlib.blake2b(body, digest_size=16).hexdigest() if key else None


def trace_headers(req: Request) -> dict[str, str]:
    return {"traceparent": req.headers.get("traceparent", ""), "tracestate": req.headers.get("tracestate", "")}


def last_event_id(req: Request) -> int:
    text = req.get_header("last-event-id") or "0"
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise BadRequest("Last-Event-ID must be the sequence number of an event")
    return int(text)


# fields -----------------------------------------------------------------------------------------------------------------


def micros(field: str, instant: datetime | None) -> int | None:
    if instant is None:
        return None
    if instant.year >= LAST_YEAR:
        raise InvalidField(field, f"must be before the year {LAST_YEAR}")
    return int(instant.timestamp() * SECOND)


def absent() -> msgspec.Raw:
    """Return the default of a Raw field: msgspec has no optional Raw."""
    return msgspec.Raw(b"")


def check_utf8(body: bytes) -> None:
    """Refuse a body that is stored as it was sent and is not UTF-8."""
    if (at := not_utf8(body)) is not None:
        raise BadRequest(f"the body is not valid UTF-8 (at byte {at})")


def json_text(field: str, raw: msgspec.Raw) -> bytes:
    """Return the JSON as bytes. The decoder checked its grammar, but not the encoding inside strings."""
    data = bytes(raw)
    if not_utf8(data) is not None:
        raise InvalidField(field, "is not valid UTF-8")
    return data


def not_utf8(data: bytes) -> int | None:
    """Return where it stops being UTF-8. Decodes by pieces: one text would take up to four times its size."""
    if data.isascii():
        return None
    view, decoder, begin = memoryview(data), UTF8(), 0
    try:
        for begin in range(0, len(data), PIECE):
            decoder.decode(view[begin : begin + PIECE], final=begin + PIECE >= len(data))
    except UnicodeDecodeError as error:
        # The decoder put the incomplete end of the previous piece in front of this one.
        return begin + error.start - (len(error.object) - len(view[begin : begin + PIECE]))
    return None


def json_or_absent(field: str, raw: msgspec.Raw) -> bytes | None:
    data = json_text(field, raw)
    return None if data in (b"", b"null") else data


def json_object(field: str, raw: msgspec.Raw) -> bytes | None:
    data = json_or_absent(field, raw)
    if data is None:
        return None
    if not data.startswith(b"{"):
        raise InvalidField(field, "must be a JSON object")
    if len(data) > OBJECT_BYTES:
        raise InvalidField(
            field, f"is over {OBJECT_BYTES} bytes, the most that is accepted; put larger things into the payload"
        )
    return data
