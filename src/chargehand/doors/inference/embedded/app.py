"""The routes, and the middlewares of every request."""

import hmac
import logging
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from chargehand.doors.inference.embedded.backend import Backend, Failure
from chargehand.doors.inference.embedded.catalogue import Catalogue
from chargehand.doors.inference.embedded.compatible import Compatible
from chargehand.doors.inference.embedded.discovery import Discovery
from chargehand.doors.inference.embedded.embeddings import Embeddings
from chargehand.doors.inference.embedded.generations import Generations
from chargehand.doors.inference.embedded.residents import Residents
from chargehand.doors.inference.embedded.shapes import error_body
from chargehand.http.neighbours import is_foreign, is_local_name

MAX_BODY: Final = 16 << 20  # far more than fits into the context of any model here

logger = logging.getLogger(__name__)


def make_app(catalogue: Catalogue, backend: Backend, *, threads: int, parallel: int, key: str = "") -> web.Application:
    residents = Residents(backend, parallel)
    discovery = Discovery(catalogue, residents)
    generations = Generations(catalogue, residents, threads)
    embeddings = Embeddings(catalogue, residents, threads)
    compatible = Compatible(generations)

    app = web.Application(client_max_size=MAX_BODY, middlewares=[only_with(key) if key else only_local, refusals])
    app.on_cleanup.append(lambda _app: residents.close())
    app.add_routes(
        [
            web.get("/", discovery.root),
            web.get("/api/version", discovery.version),
            web.get("/api/status", discovery.status, allow_head=False),
            web.get("/api/tags", discovery.tags),
            web.get("/api/ps", discovery.ps, allow_head=False),
            web.post("/api/show", discovery.show),
            web.post("/api/chat", generations.chat),
            web.post("/api/generate", generations.generate),
            web.post("/api/embed", embeddings.embed),
            web.post("/api/embeddings", embeddings.embeddings),
            web.post("/v1/chat/completions", compatible.chat_completions),
            web.post("/v1/completions", compatible.completions),
            web.post("/v1/embeddings", embeddings.openai),
            web.post("/v1/messages", compatible.messages),
            web.get("/v1/models", discovery.openai_models, allow_head=False),
            web.get("/v1/models/{model:.+}", discovery.openai_model, allow_head=False),
        ]
    )
    return app


def only_with(key: str) -> Middleware:
    """Return a middleware that requires the key, which only our parent knows: no web page, and no other user of this machine."""
    expected = f"Bearer {key}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return await handler(request) if hmac.compare_digest(given, expected) else web.Response(status=401)

    return check


@web.middleware
async def only_local(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Without a key (started by hand), serve programs of this machine, but not pages of other sites."""
    host, origin, site = (request.headers.get(name, "") for name in ("Host", "Origin", "Sec-Fetch-Site"))
    if is_foreign(host, origin, site) or not is_local_name(host):
        return web.Response(status=403)
    return await handler(request)


@web.middleware
async def refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Failure as failure:
        status, text = failure.status, failure.text
    except ExceptionGroup as group:  # of inputs that were embedded in parallel
        first = group.exceptions[0]
        if not isinstance(first, Failure):
            raise
        status, text = first.status, first.text
    except web.HTTPNotFound:
        return web.Response(status=404, text="404 page not found")
    except web.HTTPMethodNotAllowed as wrong:
        return web.Response(status=405, text="405 method not allowed", headers={"Allow": wrong.headers["Allow"]})
    except web.HTTPRequestEntityTooLarge:
        status, text = 413, "http: request body too large"
    except (web.HTTPException, ConnectionError):
        raise
    except Exception as error:
        logger.exception("%s %s", request.method, request.path)
        status, text = 500, f"{type(error).__name__}: {error}"
    body = error_body(request.path, status, text)
    return web.Response(status=status, body=body, content_type="application/json", charset="utf-8")
