"""The images that BMCs and machines fetch: `/media/{job_id}/{pass}/{name}`.

A BMC has no credentials here and keeps the URL where others read it, so the URL itself is the permission: for one medium of
one job, until a time. The signature stands in the path because BMCs choke on query strings and want a URL that ends in `.iso`.
"""

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from chargehand.doors.provisioning.media.source import ISO, MediaSource
from chargehand.doors.provisioning.names import TAG
from chargehand.engine.job import SECOND
from chargehand.errors import Forbidden, NotFound
from chargehand.http.files import Content, send_content
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route

SIGNATURE_BYTES = 18  # 24 characters, far beyond guessing; some BMCs take only short URLs
PATH = "/media/{job_id}/{permit}/{name}"

_PASS = re.compile(r"([0-9]{1,12})-([A-Za-z0-9_-]{24})")
_URL = re.compile(r"(.*)/media/([^/]+)/([^/]+)/([^/]+)")

Find = Callable[[str, str], Awaitable[MediaSource | None]]  # job id, name
Fetched = Callable[
    [str, str, int, int, bool], None
]  # job id, name, first byte, bytes sent, whether all of the medium was


class _Parsed(NamedTuple):
    before: str  # scheme, host and what a proxy puts in front of the path
    job_id: str
    permit: str
    name: str


class MediaUrls:
    """Makes and checks the URLs. `now` is in microseconds, as all instants are."""

    def __init__(self, key: bytes, base_url: Callable[[], str], now: Callable[[], int]) -> None:
        self._key = key
        self._base_url = base_url
        self._now = now

    def url(self, job_id: str, name: str, seconds: float) -> str:
        expiry = str((self._now() + int(seconds * SECOND)) // SECOND)
        permit = f"{expiry}-{self._signature(job_id, name, expiry)}"
        return f"{self._base_url().rstrip('/')}/media/{quote(job_id, safe='')}/{permit}/{quote(name, safe='')}"

    def check(self, job_id: str, permit: str, name: str) -> None:
        """Forbidden, in the same words whatever was wrong."""
        expiry = self._signed(job_id, permit, name)
        if expiry is None or expiry * SECOND <= self._now():
            raise Forbidden("this URL does not open anything, or not any more")

    def same(self, one: str, other: str) -> bool:
        """Whether both name the same medium of the same job: BMCs show what is inserted, perhaps with an older pass."""
        first, second = _parse(one), _parse(other)
        if first is None or second is None:
            return one == other
        return first._replace(permit="") == second._replace(permit="")

    def is_ours(self, url: str, job_id: str) -> bool:
        """Whether we made it for this job, by whatever address we were reached then; it may have expired since."""
        parsed = _parse(url)
        if parsed is None or parsed.job_id != job_id:
            return False
        return self._signed(job_id, parsed.permit, parsed.name) is not None

    def _signed(self, job_id: str, permit: str, name: str) -> int | None:
        """The expiry that a genuine pass names."""
        match = _PASS.fullmatch(permit)
        if match is None or not hmac.compare_digest(match[2], self._signature(job_id, name, match[1])):
            return None
        return int(match[1])

    def _signature(self, job_id: str, name: str, expiry: str) -> str:
        text = "\0".join(("media", expiry, job_id, name)).encode("utf-8", "surrogatepass")
        return urlsafe_b64encode(hmac.digest(self._key, text, "sha256")[:SIGNATURE_BYTES]).decode()


class MediaServer:
    """Serves them. `fetched` hears of the first bytes of each answer, and of its end."""

    def __init__(self, urls: MediaUrls, find: Find, fetched: Fetched) -> None:
        self._urls = urls
        self._find = find
        self._fetched = fetched

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET", PATH, self.get_medium, "An image for a BMC", tag=TAG, reply_media=ISO, errors=(Forbidden, NotFound),
                description="The URL is its own permission: it is signed, for one image of one job and until a time."
                " Ranges are served.",
            ),
            Route("HEAD", PATH, self.get_medium, "As GET", tag=TAG, hidden=True),
        ]  # fmt: skip

    async def get_medium(self, req: Request, resp: Response, job_id: str, permit: str, name: str) -> None:
        self._urls.check(job_id, permit, name)
        source = await self._find(job_id, name)
        if source is None:
            raise NotFound("there is no such medium")

        def sent(first: int, count: int, whole: bool) -> None:
            self._fetched(job_id, name, first, count, whole and count == source.size)

        await send_content(req, resp, Content(source.size, source.etag, source.media_type, source.read), sent)


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
