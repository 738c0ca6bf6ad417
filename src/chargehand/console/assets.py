"""Serve the console and the API reference at /docs. Every path under /console gets the same HTML shell: its script reads the path."""

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from chargehand.errors import NotFound
from chargehand.http.files import send_asset
from chargehand.http.headers import PAGE
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route

MEDIA = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
SHELL = "index.html"
DOCS = "docs.html"


class Asset(NamedTuple):
    media_type: str
    body: bytes
    etag: str


def _walk(folder: Traversable, at: str = "") -> Iterator[tuple[str, Asset]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _walk(each, f"{at}{each.name}/")
        elif (kind := each.name.rpartition(".")[2]) in MEDIA:
            body = each.read_bytes()
            yield f"{at}{each.name}", Asset(MEDIA[kind], body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


class Assets:
    def __init__(self) -> None:
        self._assets = dict(_walk(files("chargehand.console").joinpath("static")))

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/console", self.show_shell, "The console", hidden=True),
            Route("GET", "/console/static/{file:path}", self.show_asset, "A file of the console", hidden=True),
            Route("GET", "/console/{page:path}", self.show_shell, "A page of the console", hidden=True),
            Route("GET", "/docs", self.show_docs, "The API reference", hidden=True),
        ]

    async def show_shell(self, req: Request, resp: Response, **_: Any) -> None:
        self._show(req, resp, SHELL)

    async def show_docs(self, req: Request, resp: Response) -> None:
        self._show(req, resp, DOCS)

    async def show_asset(self, req: Request, resp: Response, file: str) -> None:
        if file not in self._assets:
            raise NotFound("the console has no such file")
        self._show(req, resp, file)

    def _show(self, req: Request, resp: Response, name: str) -> None:
        asset = self._assets[name]
        resp.set_headers(PAGE)
        send_asset(req, resp, asset.body, asset.etag, asset.media_type)
