"""Rules for requests that llhttp accepts but others may parse differently, and the refusals for malformed requests."""

from http import HTTPStatus

import httptools

from chargehand.http.problems import refuse

# The most common header names as most clients write them: a lookup takes half the time of decoding the name.
_COMMON = (
    "Host", "User-Agent", "Accept", "Accept-Encoding", "Connection", "Authorization", "Content-Type", "Content-Length",
    "Transfer-Encoding", "X-Api-Key", "X-Request-Id", "Idempotency-Key", "Traceparent", "Tracestate", "Origin", "Sec-Fetch-Site",
)  # fmt: skip
NAMES = {spelling.encode(): name.lower() for name in _COMMON for spelling in (name, name.lower())}


class Refusal(Exception):
    """An error that the connection answers itself; the application never sees the request."""

    def __init__(self, status: HTTPStatus, detail: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(detail)
        self.response = refuse(status, detail, retry_after_seconds)


def refusal_for(error: httptools.HttpParserError) -> Refusal:
    cause = error.__context__  # what a callback raised: a refusal, or the error of a bad URL
    if isinstance(cause, Refusal):
        return cause
    why = error if cause is None else "Invalid URL"
    return Refusal(HTTPStatus.BAD_REQUEST, f"not a valid HTTP/1.1 request: {why}")


def check_framing(version: str, transfer_encoding: str | None) -> None:
    """Raise Refusal for framing that llhttp accepts and a proxy may parse differently, which allows request smuggling."""
    if version not in ("1.0", "1.1"):
        raise Refusal(
            HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, f"HTTP/{version} is not supported, only HTTP/1.1 and HTTP/1.0"
        )
    if transfer_encoding is None:
        return
    if version == "1.0":
        raise Refusal(HTTPStatus.BAD_REQUEST, "Transfer-Encoding is not allowed in HTTP/1.0")
    if transfer_encoding.lower() != "chunked":
        raise Refusal(HTTPStatus.NOT_IMPLEMENTED, "the only supported Transfer-Encoding is chunked")


def target_of(url: bytes) -> str:
    """Return path and query as sent. An absolute URL, as sent to proxies, is accepted; its host is ignored in favour of Host."""
    text = url.decode("ascii")
    if not text.startswith(("/", "*")):
        parsed = httptools.parse_url(url)
        text = (parsed.path or b"/").decode() + (f"?{parsed.query.decode()}" if parsed.query else "")
    return text.partition("#")[0] if "#" in text else text
