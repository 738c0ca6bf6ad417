"""How a request is read where llhttp leaves a choice, and what is said of one that cannot be read."""

from http import HTTPStatus

import httptools

from chargehand.http.problems import refuse

# The names that most requests have, in the spellings that most clients use: to look one up takes half the time of making it.
_COMMON = (
    "Host", "User-Agent", "Accept", "Accept-Encoding", "Connection", "Authorization", "Content-Type", "Content-Length",
    "Transfer-Encoding", "X-Api-Key", "X-Request-Id", "Idempotency-Key", "Traceparent", "Tracestate", "Origin", "Sec-Fetch-Site",
)  # fmt: skip
NAMES = {spelling.encode(): name.lower() for name in _COMMON for spelling in (name, name.lower())}


class Refusal(Exception):
    """An answer of the connection itself; the application never hears of the request."""

    def __init__(self, status: HTTPStatus, detail: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(detail)
        self.response = refuse(status, detail, retry_after_seconds)


def refusal_for(error: httptools.HttpParserError) -> Refusal:
    cause = error.__context__  # what a callback raised: a refusal, or what a bad URL led to
    if isinstance(cause, Refusal):
        return cause
    why = error if cause is None else "Invalid URL"
    return Refusal(HTTPStatus.BAD_REQUEST, f"this is not a valid HTTP/1.1 request: {why}")


def check_framing(version: str, transfer_encoding: str | None) -> None:
    """Refuse what llhttp lets pass and others may read in another way: that is how requests are smuggled past a proxy."""
    if version not in ("1.0", "1.1"):
        raise Refusal(
            HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, f"HTTP/{version} is not spoken here, only HTTP/1.1 and 1.0"
        )
    if transfer_encoding is None:
        return
    if version == "1.0":
        raise Refusal(HTTPStatus.BAD_REQUEST, "HTTP/1.0 knows no Transfer-Encoding")
    if transfer_encoding.lower() != "chunked":
        raise Refusal(
            HTTPStatus.NOT_IMPLEMENTED, "a body is sent as it is or chunked: no other Transfer-Encoding is read"
        )


def target_of(url: bytes) -> str:
    """Path and query as they were sent. A proxy's form with scheme and host is understood; whom it names is the header Host."""
    text = url.decode("ascii")
    if not text.startswith(("/", "*")):
        parsed = httptools.parse_url(url)
        text = (parsed.path or b"/").decode() + (f"?{parsed.query.decode()}" if parsed.query else "")
    return text.partition("#")[0] if "#" in text else text
