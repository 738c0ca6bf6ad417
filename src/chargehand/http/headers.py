"""What every answer says to a browser that shows it: whatever this is, it is no page, and of no use to other sites.

An answer may hold what strangers wrote: a model's words, a manifest, a payload. So it is never taken for another type than it has; if
it is opened as a page, nothing in it runs and it has no origin, hence no way to the console's token; and no page of another site can
embed it. The console and /docs are pages: they say so with a Content-Security-Policy of their own, and it stands instead of this one.
"""

from functools import lru_cache
from http import HTTPStatus
from typing import Final

POLICY: Final = "content-security-policy"
_ALL: Final = b"x-content-type-options: nosniff\r\ncross-origin-resource-policy: same-origin\r\n"
_NO_PAGE: Final = b"content-security-policy: default-src 'none'; frame-ancestors 'none'; sandbox\r\n"
_PHRASES = {status.value: status.phrase for status in HTTPStatus}

# Scripts and styles only as files of ours, nothing from elsewhere, in nobody's frame, and in no group of windows with other sites.
PAGE: Final = {
    POLICY: (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    # The names stay the same from version to version, so a browser has to ask; the ETag makes asking cheap.
    "cache-control": "no-cache",
}


@lru_cache(maxsize=1024)  # there are few statuses, and each answer pays for it
def head_start(status: int, is_page: bool) -> bytes:
    """The first line of an answer, and these headers; the policy only if the answer has none of its own."""
    line = f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}\r\n".encode()
    return line + _ALL + (b"" if is_page else _NO_PAGE)
