"""Security headers of every answer: they keep browsers from running its content or letting other sites use it.

An answer may hold untrusted content: a model's text, a manifest, a payload. So browsers must not guess its type; if it is opened as
a page, nothing in it runs and it has no origin, hence no access to the console's token; and no page of another site can embed it.
The console and /docs are pages: their own Content-Security-Policy replaces this one.
"""

from functools import lru_cache
from http import HTTPStatus
from typing import Final

POLICY: Final = "content-security-policy"
_ALL: Final = b"x-content-type-options: nosniff\r\ncross-origin-resource-policy: same-origin\r\n"
_NO_PAGE: Final = b"content-security-policy: default-src 'none'; frame-ancestors 'none'; sandbox\r\n"
_PHRASES = {status.value: status.phrase for status in HTTPStatus}

# Scripts and styles only from our own files, nothing from other sites, no framing, and no shared browsing context with other sites.
PAGE: Final = {
    POLICY: (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    # File names do not change with the version, so a browser must revalidate; the ETag makes that cheap.
    "cache-control": "no-cache",
}


@lru_cache(maxsize=1024)  # there are few statuses, and every answer needs this
def head_start(status: int, is_page: bool) -> bytes:
    """Return the status line and these headers; without the policy if the answer has its own."""
    line = f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}\r\n".encode()
    return line + _ALL + (b"" if is_page else _NO_PAGE)
