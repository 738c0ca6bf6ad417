"""Health, readiness, metrics and the description of the API."""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import msgspec

from chargehand import __version__
from chargehand.engine.chores import ChoreReport, Chores, ChoreState
from chargehand.engine.engine import Engine
from chargehand.engine.job import SECOND
from chargehand.errors import StoreError, StoreUnavailable
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, reply
from chargehand.observability.metrics import CONTENT_TYPE, Metrics
from chargehand.observability.siblings import Siblings
from chargehand.webhooks.outbound import Outbox

LIVENESS = b"Ollama is running"  # clients of Ollama look for exactly this text at /


class Health(msgspec.Struct):
    status: Annotated[str, msgspec.Meta(description="ok")]
    version: str


class Ready(msgspec.Struct):
    status: Annotated[str, msgspec.Meta(description="ready")]
    store: str


class ChoreList(msgspec.Struct):
    chores: list[ChoreReport]


class ServiceApi:
    def __init__(
        self,
        engine: Engine,
        outbox: Outbox,
        metrics: Metrics,
        chores: Chores,
        describe: Callable[[], dict[str, Any]],
        counters: Sequence[Callable[[], Awaitable[None]]] = (),
        siblings: Siblings | None = None,
    ) -> None:
        self._engine = engine
        self._outbox = outbox
        self._metrics = metrics
        self._chores = chores
        self._describe = describe
        self._counters = counters  # of doors: called when metrics are read
        self._siblings = siblings  # the processes that serve on the same port
        self._description: bytes | None = None

    def routes(self) -> list[Route]:
        # fmt: off
        return [
            Route("GET", "/healthz", self.get_health, "The process is alive", reply=Health),
            Route("GET", "/readyz", self.get_ready, "The store can be reached, its schema is current and its writer alive", reply=Ready, errors=(StoreUnavailable,)),
            Route("GET", "/metrics", self.get_metrics, "Prometheus metrics", "metrics", reply_media=CONTENT_TYPE),
            Route("GET", "/engine/chores", self.list_chores, "List the periodic work of this node and how it goes", "jobs:read", "service",
                  "`failing`: the last turn failed, and `error` says why; `late`: the current turn should have ended.", reply=ChoreList),
            Route("GET", "/openapi.json", self.get_openapi, "This description", hidden=True),
            Route("GET", "/", self.get_root, "A browser is sent to the console, anything else gets a liveness text", hidden=True),
            Route("HEAD", "/", self.get_root, "As GET", hidden=True),
        ]
        # fmt: on

    async def get_health(self, _req: Request, resp: Response) -> None:
        reply(resp, Health("ok", __version__))

    async def get_ready(self, _req: Request, resp: Response) -> None:
        if self._engine.draining:
            raise StoreUnavailable("the server is stopping", retry_after_seconds=5)
        await self._engine.check()
        reply(resp, Ready("ready", "ok"))

    async def get_metrics(self, _req: Request, resp: Response) -> None:
        resp.content_type = CONTENT_TYPE
        resp.data = await (self.render() if self._siblings is None else self._siblings.metrics())

    async def render(self) -> bytes:
        """Return the metrics of this process."""
        self._metrics.waiters.set(self._engine.wakeups.waiting)
        self._metrics.deliveries_in_flight.set(self._outbox.in_flight)
        for chore in self._chores.reports():
            self._metrics.chore_up.labels(chore.name).set(chore.state is ChoreState.OK)
        await self._count()
        for count in self._counters:
            with contextlib.suppress(StoreError):
                await count()
        return self._metrics.render()

    async def _count(self) -> None:
        metrics = self._metrics
        try:
            await self._engine.check()
            counted = await self._engine.counts.live()
        except StoreError:
            metrics.store_up.set(0)
            return
        metrics.store_up.set(1)
        metrics.queue_jobs.clear()
        metrics.queue_oldest_seconds.clear()
        for count in counted.queues:
            metrics.queue_jobs.labels(str(count.queue), "ready").set(count.ready)
            metrics.queue_jobs.labels(str(count.queue), "delayed").set(count.delayed)
            metrics.queue_jobs.labels(str(count.queue), "running").set(count.running)
            age = 0.0 if count.oldest_at is None else (counted.at - count.oldest_at) / SECOND
            metrics.queue_oldest_seconds.labels(str(count.queue)).set(age)

    async def list_chores(self, _req: Request, resp: Response) -> None:
        reply(resp, ChoreList(self._chores.reports()))

    async def get_openapi(self, _req: Request, resp: Response) -> None:
        if self._description is None:
            self._description = msgspec.json.encode(self._describe())
        resp.content_type = "application/json"
        resp.data = self._description

    async def get_root(self, req: Request, resp: Response) -> None:
        if "text/html" in (req.get_header("accept") or ""):
            resp.status = 302
            resp.set_header("location", "/console")
            return
        resp.content_type = "text/plain; charset=utf-8"
        resp.data = LIVENESS
