"""The URLs of media: `/media/{job_id}/{permit}/{name}`.

A BMC has no credentials for this server and shows the URL to others, so the signed URL is the permission: for one medium of one job, until
it expires. The signature is in the path because some BMCs refuse query strings and require a URL that ends in `.iso`.
"""

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from chargehand.engine.job import SECOND
from chargehand.errors import Forbidden

SIGNATURE_BYTES = 18  # 24 characters, far beyond guessing; some BMCs take only short URLs
PATH = "/media/{job_id}/{permit}/{name}"

_PERMIT = re.compile(r"([0-9]{1,12})-([A-Za-z0-9_-]{24})")
_URL = re.compile(r"(.*)/media/([^/]+)/([^/]+)/([^/]+)")


class _Parsed(NamedTuple):
    before: str  # scheme, host and the path prefix of a proxy
    job_id: str
    permit: str
    name: str


class MediaUrls:
    """Makes and checks URLs. `now` is in microseconds."""

    def __init__(self, key: bytes, base_url: Callable[[], str], now: Callable[[], int]) -> None:
        self._key = key
        self._base_url = base_url
        self._now = now

    def url(self, job_id: str, name: str, seconds: float) -> str:
        expiry = str((self._now() + int(seconds * SECOND)) // SECOND)
        permit = f"{expiry}-{self._signature(job_id, name, expiry)}"
        return f"{self._base_url().rstrip('/')}/media/{quote(job_id, safe='')}/{permit}/{quote(name, safe='')}"

    def check(self, job_id: str, permit: str, name: str) -> None:
        """Raise Forbidden, with the same message whatever was wrong."""
        expiry = self._signed(job_id, permit, name)
        if expiry is None or expiry * SECOND <= self._now():
            raise Forbidden("this URL is not valid, or has expired")

    def same(self, one: str, other: str) -> bool:
        """Whether both name the same medium of the same job: a BMC may show a URL with an older permit."""
        first, second = _parse(one), _parse(other)
        if first is None or second is None:
            return one == other
        return first._replace(permit="") == second._replace(permit="")

    def is_ours(self, url: str, job_id: str) -> bool:
        """Whether this server made the URL for this job, at whatever address it had then; it may have expired since."""
        parsed = _parse(url)
        if parsed is None or parsed.job_id != job_id:
            return False
        return self._signed(job_id, parsed.permit, parsed.name) is not None

    def _signed(self, job_id: str, permit: str, name: str) -> int | None:
        """Return the expiry of a genuine permit."""
        match = _PERMIT.fullmatch(permit)
        if match is None or not hmac.compare_digest(match[2], self._signature(job_id, name, match[1])):
            return None
        return int(match[1])

    def _signature(self, job_id: str, name: str, expiry: str) -> str:
        text = "\0".join(("media", expiry, job_id, name)).encode("utf-8", "surrogatepass")
        return urlsafe_b64encode(hmac.digest(self._key, text, "sha256")[:SIGNATURE_BYTES]).decode()


def _parse(url: str) -> _Parsed | None:
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    match = _URL.fullmatch(parts.path)
    if match is None or parts.query or parts.fragment:
        return None
    before = f"{parts.scheme}://{parts.netloc.lower()}{match[1]}"
    return _Parsed(before, unquote(match[2]), match[3], unquote(match[4]))
