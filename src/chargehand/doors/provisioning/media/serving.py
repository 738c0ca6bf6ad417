"""Serves the images that BMCs and machines fetch."""

from collections.abc import Awaitable, Callable

from chargehand.doors.provisioning.media.source import ISO, MediaSource
from chargehand.doors.provisioning.media.urls import PATH, MediaUrls
from chargehand.doors.provisioning.names import TAG
from chargehand.errors import Forbidden, NotFound
from chargehand.http.files import Content, send_content
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route

Find = Callable[[str, str], Awaitable[MediaSource | None]]  # job id, name
Fetched = Callable[
    [str, str, int, int, bool], None
]  # job id, name, first byte, bytes sent, whether all of the medium was sent


class MediaServer:
    """Calls `fetched` at the first bytes of each answer, and at its end."""

    def __init__(self, urls: MediaUrls, find: Find, fetched: Fetched) -> None:
        self._urls = urls
        self._find = find
        self._fetched = fetched

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET", PATH, self.get_medium, "For BMCs: read an image", tag=TAG, reply_media=ISO, errors=(Forbidden, NotFound),
                description="The signed URL is the permission, for one image of one job, until it expires."
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
