"""What every answer says to a browser that shows it: whatever this is, it is no page, and of no use to other sites.

An answer may hold what strangers wrote: a model's words, a manifest, a payload. So it is never taken for another type than it has; if
it is opened as a page, nothing in it runs and it has no origin, hence no way to the console's token; and no page of another site can
embed it. The console and /docs are pages: they say so with a Content-Security-Policy of their own, and it stands instead of this one.
"""

from typing import Final

_ALL: Final = b"\r\nx-content-type-options: nosniff\r\ncross-origin-resource-policy: same-origin\r\n"
_POLICY: Final = b"content-security-policy: "
_NO_PAGE: Final = _ALL + _POLICY + b"default-src 'none'; frame-ancestors 'none'; sandbox\r\n"
_OWN_POLICY: Final = b"\r\n" + _POLICY  # a value has no line ends, so nobody can put this into one

# Scripts and styles only as files of ours, nothing from elsewhere, in nobody's frame, and in no group of windows with other sites.
PAGE: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    # The names stay the same from version to version, so a browser has to ask; the ETag makes asking cheap.
    "cache-control": "no-cache",
}


def protected(head: bytes) -> bytes:
    """The head of an answer with these headers behind its first line. As bytes, because each answer pays for it."""
    return head.replace(b"\r\n", _ALL if _OWN_POLICY in head else _NO_PAGE, 1)
