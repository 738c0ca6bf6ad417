"""The API reference at /docs: three files of this package that work with no network, no build and no inline script."""

import hashlib
from importlib.resources import files
from typing import Any

from falcon.asgi import Request, Response

from chargehand.http.headers import PAGE
from chargehand.http.route import Route


def _page(path: str, name: str, media_type: str) -> Route:
    body = files("chargehand.http").joinpath("pages", name).read_bytes()
    etag = hashlib.sha256(body).hexdigest()[:32]

    async def show_page(req: Request, resp: Response, **_: Any) -> None:
        resp.set_headers(PAGE)
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
