"""The current state of everything in one answer: doors by state, the last hour, deliveries, and the caller."""

import time
from functools import partial
from typing import Annotated

import msgspec

from chargehand import __version__
from chargehand.console.minutes import DELIVERIES, Minutes
from chargehand.engine.counts import Kept, LiveCount
from chargehand.engine.delivery import Endpoint
from chargehand.engine.engine import Engine
from chargehand.engine.job import rfc3339
from chargehand.engine.reads import EndpointFilter
from chargehand.http.kinds import Kinds
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, reply
from chargehand.webhooks.outbound import Outbox

MAX_ENDPOINTS = 1000
MAX_TENANTS = 1000  # whose deliveries are kept as they were counted


class Hour(msgspec.Struct):
    """Lists of sixty numbers, one for each minute; the last is the current minute."""

    submitted: list[int]
    ended: list[int]
    failed: list[int]
    waiting: list[int]
    running: list[int]


class DoorNow(msgspec.Struct):
    kind: Annotated[
        str, msgspec.Meta(description="Which door: inference, task, provision, or job for the engine's own")
    ]
    waiting: Annotated[int, msgspec.Meta(description="Queued jobs, including those that are not due yet")]
    running: dict[str, Annotated[int, msgspec.Meta(description="Running jobs, by the state that their callers see")]]
    oldest_at: Annotated[str | None, msgspec.Meta(description="Since when the job that waits longest is due")]
    hour: Hour


class DeliveriesNow(msgspec.Struct):
    pending: int
    dead: int
    in_flight: Annotated[int, msgspec.Meta(description="At this node")]
    endpoints: int
    oldest_due_at: str | None
    hour: Hour


class Me(msgspec.Struct):
    subject: str
    tenant: str
    scopes: list[str]


class Overview(msgspec.Struct):
    now: str
    version: str
    up_seconds: float
    auth: bool
    me: Me
    doors: list[DoorNow]
    deliveries: DeliveriesNow


class Overviews:
    def __init__(
        self, engine: Engine, outbox: Outbox, minutes: Minutes, doors: tuple[str, ...], kinds: Kinds, *, auth: bool
    ) -> None:
        self._engine = engine
        self._outbox = outbox
        self._minutes = minutes
        self._doors = doors  # the kinds of the doors that are enabled
        self._kinds = kinds
        self._auth = auth
        self._began = time.monotonic()
        self._endpoints: dict[str, Kept[list[Endpoint]]] = {}  # by tenant

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/engine/overview", self.get_overview, "Get the current state of everything", "jobs:read", "service", reply=Overview)
        ]  # fmt: skip

    async def get_overview(self, req: Request, resp: Response) -> None:
        caller = req.caller
        counts = await self._engine.counts.live()
        shown = [kind for kind in self._doors if self._kinds.may_read(caller, kind)]
        doors = [self._door(caller.tenant, kind, counts) for kind in shown]
        deliveries = await self._deliveries(caller.tenant)
        me = Me(caller.subject, caller.tenant, sorted(caller.scopes))
        up = time.monotonic() - self._began
        reply(
            resp, Overview(rfc3339(await self._engine.jobs.now()), __version__, up, self._auth, me, doors, deliveries)
        )

    async def sample(self) -> None:
        """Record how many jobs wait and run, for the hour's charts."""
        counts = await self._engine.counts.live()
        waiting: dict[tuple[str, str], int] = {}
        running: dict[tuple[str, str], int] = {}
        for queue in counts.queues:
            key = queue.queue.tenant, queue.queue.kind
            waiting[key] = waiting.get(key, 0) + queue.ready + queue.delayed
        for topic in counts.topics:
            running[topic.tenant, topic.kind] = running.get((topic.tenant, topic.kind), 0) + topic.count
        for tenant, kind in waiting.keys() | running.keys():
            self._minutes.stand(tenant, kind, waiting.get((tenant, kind), 0), running.get((tenant, kind), 0))

    def _door(self, tenant: str, kind: str, counts: LiveCount) -> DoorNow:
        queues = [count for count in counts.queues if (count.queue.kind, count.queue.tenant) == (kind, tenant)]
        running = {each.topic: each.count for each in counts.topics if (each.tenant, each.kind) == (tenant, kind)}
        oldest = min((count.oldest_at for count in queues if count.oldest_at is not None), default=None)
        return DoorNow(
            kind,
            sum(count.ready + count.delayed for count in queues),
            running,
            None if oldest is None else rfc3339(oldest),
            self._hour(tenant, kind),
        )

    async def _deliveries(self, tenant: str) -> DeliveriesNow:
        endpoints = await self._endpoints_of(tenant)
        oldest = min((each.oldest_at for each in endpoints if each.oldest_at is not None), default=None)
        return DeliveriesNow(
            sum(endpoint.pending for endpoint in endpoints),
            sum(endpoint.dead for endpoint in endpoints),
            self._outbox.in_flight_to(endpoint.id for endpoint in endpoints),
            len(endpoints),
            None if oldest is None else rfc3339(oldest),
            self._hour(tenant, DELIVERIES),
        )

    async def _endpoints_of(self, tenant: str) -> list[Endpoint]:
        if tenant not in self._endpoints:
            if len(self._endpoints) >= MAX_TENANTS:
                self._endpoints.clear()
            read = partial(self._outbox.reads.list_endpoints, EndpointFilter(tenant, limit=MAX_ENDPOINTS))
            self._endpoints[tenant] = Kept(read, lambda found: sum(each.pending + each.dead for each in found))
        return await self._endpoints[tenant].get()

    def _hour(self, tenant: str, kind: str) -> Hour:
        counts = self._minutes.hour(tenant, kind)
        return Hour(*([getattr(count, name) for count in counts] for name in Hour.__struct_fields__))
