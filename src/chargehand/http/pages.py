"""The API reference at /docs: three files of this package that work with no network, no build and no inline script."""

import hashlib
from importlib.resources import files
from typing import Any

from falcon.asgi import Request, Response

from chargehand.http.route import Route

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # The names stay the same from version to version, so a browser has to ask; the ETag makes asking cheap.
    "cache-control": "no-cache",
}


def _page(path: str, name: str, media_type: str) -> Route:
    body = files("chargehand.http").joinpath("pages", name).read_bytes()
    etag = hashlib.sha256(body).hexdigest()[:32]

    async def show_page(req: Request, resp: Response, **_: Any) -> None:
        resp.set_headers(_HEADERS)
        resp.etag = etag
        if any(known in ("*", etag) for known in req.if_none_match or ()):
            resp.status = 304
        else:
            resp.content_type = media_type
            resp.data = body

    return Route("GET", path, show_page, f"Show {name}", hidden=True)


ROUTES = [
    _page("/docs", "docs.html", "text/html; charset=utf-8"),
    _page("/docs/docs.css", "docs.css", "text/css; charset=utf-8"),
    _page("/docs/docs.js", "docs.js", "text/javascript; charset=utf-8"),
]
