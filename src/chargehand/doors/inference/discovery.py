"""Models, residency and versions as the union over all targets; and the management of models on a named target.

With a single target its own bytes are the answer. For a target that is away its last answer is used: a list of models does not
vanish because the laptop's lid is closed.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import aiohttp
import msgspec

from chargehand.config import Config
from chargehand.doors.inference import views
from chargehand.doors.inference.errors import writer_for
from chargehand.doors.inference.names import TAG, canonical, checked
from chargehand.doors.inference.passthrough import forward
from chargehand.doors.inference.relay import passed_on, path_below, write_head
from chargehand.doors.inference.request import NOTHING
from chargehand.doors.inference.residency import why_closed
from chargehand.doors.inference.scheduler import Scheduler
from chargehand.doors.inference.stream import Cut
from chargehand.doors.inference.target import Target, Version
from chargehand.doors.inference.target_http import NO_ANSWER, Gone, TargetUnreachable, Unfit, read_json
from chargehand.engine.job import SECOND, rfc3339
from chargehand.errors import Conflict, InvalidField, NotFound, TargetAway, TargetFailed
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, decode, read_body, reply

ANSWER_SECONDS = 5.0
SHOW_SECONDS = 30.0
MANAGING_SECONDS = 86_400.0  # pulling a large model over a slow line
MAX_NAME_BYTES = 4096
MAX_VERSION = 100  # characters
X_TARGET = "X-Target"
# Paths that change models on a target, and the fields of the body that name the model to lock meanwhile.
MANAGED = {
    ("POST", "/api/pull"): ("model", "name"),
    ("POST", "/api/push"): (),
    ("POST", "/api/create"): ("model", "name"),
    ("POST", "/api/copy"): ("destination",),
    ("DELETE", "/api/delete"): ("model", "name"),
    ("POST", "/api/blobs/{digest}"): (),
    ("HEAD", "/api/blobs/{digest}"): (),
}


class TargetPage(msgspec.Struct):
    targets: list[views.TargetView]


class Unload(msgspec.Struct, forbid_unknown_fields=True):
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class _Listed(msgspec.Struct):
    """A list of models in Ollama's or OpenAI's shape, each with all fields of its target."""

    models: list[dict[str, msgspec.Raw]] | None = None
    data: list[dict[str, msgspec.Raw]] | None = None


class _Names(msgspec.Struct):
    """The fields by which a model is named in requests that manage it."""

    model: msgspec.Raw = NOTHING
    name: msgspec.Raw = NOTHING
    destination: msgspec.Raw = NOTHING


_lists = msgspec.json.Decoder(_Listed)
_names = msgspec.json.Decoder(_Names)
_text = msgspec.json.Decoder(str)
_unload = msgspec.json.Decoder(Unload)


class DiscoveryApi:
    def __init__(self, config: Config, scheduler: Scheduler) -> None:
        self._settings = config.inference
        self._scheduler = scheduler

    def routes(self) -> list[Route]:
        rows: list[tuple[str, str, Callable[..., Awaitable[None]], str]] = [
            ("GET", "/api/version", self.get_version, "The version of a target"),
            ("HEAD", "/api/version", self.get_version, "As GET"),
            ("GET", "/api/tags", self.get_tags, "The models that the targets have"),
            ("HEAD", "/api/tags", self.get_tags, "As GET"),
            ("GET", "/api/ps", self.get_ps, "The models in the targets' memory"),
            ("POST", "/api/show", self.show_model, "What a target knows about a model"),
            ("GET", "/v1/models", self.get_models, "The models that the targets have, in OpenAI's shape"),
            ("GET", "/v1/models/{model:path}", self.get_model, "One of them"),
        ]
        reading = [
            Route(method, path, handler, summary, "jobs:read", TAG, errors=(TargetAway,), error_writer=writer_for(path), hidden=method == "HEAD")
            for method, path, handler, summary in rows
        ]  # fmt: skip
        managing = [
            Route(method, path, self._manager(path, fields), f"As the target's own {path}", "admin", TAG,
                  "On the target that `X-Target` names; a model in use is let finish first.",
                  headers={X_TARGET: "The name of a target; needed when there are several"}, errors=(TargetAway, NotFound),
                  error_writer=writer_for(path), hidden=method == "HEAD")
            for (method, path), fields in MANAGED.items()
        ]  # fmt: skip
        targets = [
            Route("GET", "/targets", self.list_targets, "The targets: there or not, and what they hold", "jobs:read", TAG, reply=TargetPage),
            Route("POST", "/targets/{target}/unload", self.unload_model, "Have a target take a model out of its memory", "admin", TAG,
                  "What runs on the model is let finish first. A job that comes for it has it loaded again.",
                  request=Unload, reply=views.TargetView, errors=(TargetAway, TargetFailed, NotFound, Conflict)),
        ]  # fmt: skip
        return [*reading, *managing, *targets]

    # the union --------------------------------------------------------------------------------------------------------

    @property
    def _targets(self) -> list[Target]:
        return list(self._scheduler.targets.values())

    async def get_version(self, _req: Request, resp: Response) -> None:
        known = [target.version for target in self._targets if target.version]
        if not known:
            raise TargetAway(self._nobody(), retry_after_seconds=5)
        live = next((target.version for target in self._targets if target.up), known[0])
        _json(resp, live)

    async def get_tags(self, _req: Request, resp: Response) -> None:
        answers = await self._collect("/api/tags")
        if len(self._targets) == 1:
            return _json(resp, answers[0][1] or b'{"models":[]}')
        seen: dict[str, Any] = {}
        for target, body in answers:
            for model in _listed(body):
                seen.setdefault(canonical(_name(model)), {**model, "target": target.name})
        return reply(resp, {"models": list(seen.values())})

    async def get_ps(self, _req: Request, resp: Response) -> None:
        answers = await self._collect("/api/ps")
        if len(self._targets) == 1:
            return _json(resp, answers[0][1] or b'{"models":[]}')
        models = [{**model, "target": target.name} for target, body in answers for model in _listed(body)]
        return reply(resp, {"models": models})

    async def get_models(self, _req: Request, resp: Response) -> None:
        answers = await self._collect("/v1/models")
        if len(self._targets) == 1 and answers[0][1]:
            return _json(resp, answers[0][1])
        seen: dict[str, Any] = {}
        for target, body in answers:
            if body:
                for model in _read(body).data or []:
                    seen.setdefault(canonical(_said(model, "id")), model)
            else:  # away: its last answer
                for model in _listed(target.tags):
                    name = _name(model)
                    shown = {"id": name, "object": "model", "created": 0, "owned_by": "library"}
                    seen.setdefault(canonical(name), shown)
        return reply(resp, {"object": "list", "data": list(seen.values())})

    async def get_model(self, req: Request, resp: Response, model: str) -> None:
        path = path_below("/v1/models/", "model", model)
        await self._forward(req, resp, model, "GET", path, None)

    async def show_model(self, req: Request, resp: Response) -> None:
        body = await read_body(req, self._settings.max_body_bytes)
        name = _named(body, ("model", "name"))
        await self._forward(req, resp, name, "POST", "/api/show", body)

    async def _forward(
        self, req: Request, resp: Response, model: str, method: str, path: str, body: bytes | None
    ) -> None:
        target, most = self._having(model), self._settings.max_answer_bytes
        await forward(req, resp, target, method, path, body, max_bytes=most, timeout_seconds=SHOW_SECONDS)

    def _having(self, name: str) -> Target:
        """Return a target that has the model, else any that is up: its own error is the answer then."""
        live = [target for target in self._targets if target.up]
        if not live:
            raise TargetAway(self._nobody(), retry_after_seconds=5)
        return next((target for target in live if target.ledger.offers(canonical(name))), live[0])

    async def _collect(self, path: str) -> list[tuple[Target, bytes]]:
        """Return each target's answer to a GET, or its last answer if it is away or slow."""
        if not self._targets:
            raise TargetAway(self._nobody(), retry_after_seconds=30)
        return list(
            zip(self._targets, await asyncio.gather(*[_get(target, path) for target in self._targets]), strict=True)
        )

    def _nobody(self) -> str:
        away = "; ".join(f"{target.name} is away ({target.problem})" for target in self._targets)
        return away or "no target is configured: set inference.targets"

    async def list_targets(self, _req: Request, resp: Response) -> None:
        reply(resp, TargetPage([self._view(target) for target in self._targets]))

    def _view(self, target: Target) -> views.TargetView:
        ledger = target.ledger
        residents = [
            views.ResidentView(
                each.name, ledger.in_flight.get(model, 0), why_closed(ledger.closing.get(model)), each.size, each.size_vram, each.context_length
            )
            for model, each in sorted(ledger.resident.items())
        ]  # fmt: skip
        version = msgspec.json.decode(target.version, type=Version).version[:MAX_VERSION] if target.version else None
        return views.TargetView(
            target.name, target.url, "up" if target.up else "away", rfc3339(int(target.since * SECOND)), target.problem or None,
            version, ledger.slots, ledger.parallel, sorted(ledger.installed or ()), residents, sorted(ledger.opening),
            self._scheduler.decisions.get(target.name), _seen(target),
        )  # fmt: skip

    async def unload_model(self, req: Request, resp: Response, target: str) -> None:
        """Unload a model once what runs on it has ended. The next job for it loads it again."""
        asked = decode(_unload, await read_body(req, self._settings.max_body_bytes))
        found, model = self._target(target), canonical(asked.model)
        if model not in found.ledger.resident:
            raise NotFound(f"{model} is not in the memory of {found.name}")
        async with self._scheduler.quiet(found, model, "it is being unloaded by hand"):
            if not await found.unload(model):
                raise TargetFailed(f"{found.name} still has {model} in memory")
        reply(resp, self._view(found))

    # managing models --------------------------------------------------------------------------------------------------

    def _manager(self, path: str, fields: tuple[str, ...]) -> Callable[..., Awaitable[None]]:
        prefix = path.partition("{")[0]

        async def manage(req: Request, resp: Response, digest: str = "") -> None:
            await self._manage(req, resp, path_below(prefix, "digest", digest) if digest else path, fields)

        return manage

    async def _manage(self, req: Request, resp: Response, path: str, fields: tuple[str, ...]) -> None:
        target = self._named_target(req)
        async with contextlib.AsyncExitStack() as until_sent:
            body: Any = _body(req)
            if fields:
                body = await read_body(req, self._settings.max_body_bytes)
                model = canonical(_named(body, fields))
                await until_sent.enter_async_context(self._scheduler.quiet(target, model, f"{path} changes it"))
            response = await until_sent.enter_async_context(_open(req, target, path, body))
            write_head(resp, response.status, passed_on(response.headers))
            resp.stream = _pieces(req, response, target, until_sent.pop_all())

    def _named_target(self, req: Request) -> Target:
        name = req.get_header(X_TARGET)
        if name is None:
            if len(self._targets) != 1:
                names = ", ".join(self._scheduler.targets) or "none"
                raise InvalidField(X_TARGET, f"say which target is meant: {names}")
            name = self._targets[0].name
        return self._target(name)

    def _target(self, name: str) -> Target:
        target = self._scheduler.targets.get(name)
        if target is None:
            names = ", ".join(self._scheduler.targets) or "none"
            raise NotFound(f"there is no target {name!r}; there are: {names}")
        if not target.up:
            raise TargetAway(f"{target.name} is away ({target.problem})", retry_after_seconds=5)
        return target


@contextlib.asynccontextmanager
async def _open(req: Request, target: Target, path: str, body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    headers = {"content-type": req.get_header("content-type") or "application/json"}
    try:
        async with target.open(req.method, path, body, headers, timeout_seconds=MANAGING_SECONDS) as response:
            yield response
    except TargetUnreachable as error:
        raise TargetAway(f"{target.name} is away ({error})", retry_after_seconds=5) from None
    except (aiohttp.ClientError, OSError) as error:
        raise TargetFailed(f"{target.name} broke off: {error}") from None


async def _pieces(
    req: Request, response: aiohttp.ClientResponse, target: Target, until_sent: contextlib.AsyncExitStack
) -> AsyncGenerator[bytes, None]:
    """Stream the answer: a pull takes minutes and reports progress. The model stays locked until the end."""
    leaving = req.leaving()
    leaving.add_done_callback(lambda _: response.close())  # hanging up stops it
    try:
        async with target.watch():
            while piece := await response.content.readany():
                yield piece
    except (Gone, aiohttp.ClientError, OSError) as error:
        raise Cut(str(error)) from None
    finally:
        leaving.cancel()
        await until_sent.aclose()
        await target.relist()
        target.refresh()


async def _get(target: Target, path: str) -> bytes:
    if target.up:
        with contextlib.suppress(*NO_ANSWER):
            answer = await target.ask("GET", path, timeout_seconds=ANSWER_SECONDS)
            return answer.body if answer.status == 200 else b""
    return target.tags if path == "/api/tags" else b""


def _json(resp: Response, body: bytes) -> None:
    resp.content_type = "application/json; charset=utf-8"
    resp.data = body


def _read(body: bytes) -> _Listed:
    """Return the models that a target lists; none if the body is not a list."""
    try:
        return read_json(_lists, body) if body else _Listed()
    except Unfit:
        return _Listed()


def _listed(body: bytes) -> list[dict[str, msgspec.Raw]]:
    return _read(body).models or []


def _name(model: dict[str, msgspec.Raw]) -> str:
    return _said(model, "model") or _said(model, "name")


def _said(model: dict[str, msgspec.Raw], field: str) -> str:
    try:
        return read_json(_text, bytes(model[field])) if field in model else ""
    except Unfit:
        return ""


def _named(body: bytes, fields: tuple[str, ...]) -> str:
    """Return the model that a body names. Nothing else is decoded: the body may contain a model's file."""
    said = decode(_names, body, len(body))
    for raw in (getattr(said, field) for field in fields):
        if 2 < len(raw) <= MAX_NAME_BYTES and bytes(raw).startswith(b'"'):
            return checked(fields[0], decode(_text, bytes(raw)))
    raise InvalidField(fields[0], "must name a model")


def _seen(target: Target) -> list[views.PresenceView]:
    return [
        views.PresenceView(rfc3339(int(change.at * SECOND)), "up" if change.up else "away")
        for change in target.presence.since(time.time())
    ]


async def _body(req: Request) -> AsyncIterator[bytes]:
    """Stream a blob of gigabytes."""
    async for piece in req.pieces():
        yield piece
