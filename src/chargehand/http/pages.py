"""The API reference at /docs: three files of this package that need no other network resource, no build and no inline script."""

import hashlib
from importlib.resources import files
from typing import Any

from chargehand.http.files import send_asset
from chargehand.http.headers import PAGE
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route


def _page(path: str, name: str, media_type: str) -> Route:
    body = files("chargehand.http").joinpath("pages", name).read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'

    async def show_page(req: Request, resp: Response, **_: Any) -> None:
        resp.set_headers(PAGE)
        send_asset(req, resp, body, etag, media_type)

    return Route("GET", path, show_page, f"Show {name}", hidden=True)


ROUTES = [
    _page("/docs", "docs.html", "text/html; charset=utf-8"),
    _page("/docs/docs.css", "docs.css", "text/css; charset=utf-8"),
    _page("/docs/docs.js", "docs.js", "text/javascript; charset=utf-8"),
]
