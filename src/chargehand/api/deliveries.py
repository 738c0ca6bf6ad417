"""The outbox for its operator: list and replay deliveries, pause and resume endpoints."""

from typing import Annotated, Any

import msgspec

from chargehand.api.views import DeliveryView, EndpointView, TryView, delivery_view, endpoint_view, try_view
from chargehand.engine.delivery import Delivery, DeliveryState, Endpoint, Subject
from chargehand.engine.engine import Engine
from chargehand.engine.job import SECOND
from chargehand.engine.reads import DeliveryFilter, EndpointFilter
from chargehand.errors import Conflict, InvalidField, NotFound
from chargehand.http.kinds import Kinds, require
from chargehand.http.paging import Cursor, Limit, cursor, ulid
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, query, reply
from chargehand.webhooks.outbound import Outbox

TAG = "deliveries"


class DeliveryQuery(msgspec.Struct, forbid_unknown_fields=True):
    state: DeliveryState | None = None
    endpoint: Annotated[str, msgspec.Meta(description="An endpoint's id")] | None = None
    job: Annotated[str, msgspec.Meta(description="A job's id")] | None = None
    cursor: Cursor | None = None
    limit: Limit = 50


class DeliveryList(msgspec.Struct):
    deliveries: list[DeliveryView]
    next: str | None


class DeliveryHistory(DeliveryView, kw_only=True):
    attempts: Annotated[list[TryView], msgspec.Meta(description="The newest 200 tries, newest first")]


class EndpointQuery(msgspec.Struct, forbid_unknown_fields=True):
    cursor: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    limit: Limit = 50


class EndpointList(msgspec.Struct):
    endpoints: list[EndpointView]
    next: str | None


class ReplayedDeliveries(msgspec.Struct):
    replayed: Annotated[int, msgspec.Meta(description="How many deliveries are pending again")]


class DeliveriesApi:
    def __init__(self, engine: Engine, outbox: Outbox, kinds: Kinds) -> None:
        self._engine = engine
        self._reads = outbox.reads
        self._outbox = outbox
        self._kinds = kinds

    def routes(self) -> list[Route]:
        one, place, read, admin = (
            "/engine/deliveries/{delivery_id}",
            "/engine/endpoints/{endpoint_id}",
            "jobs:read",
            "admin",
        )
        # fmt: off
        return [
            Route("GET", "/engine/deliveries", self.list_deliveries, "List deliveries, newest first", read, TAG, query=DeliveryQuery, reply=DeliveryList),
            Route("GET", one, self.get_delivery, "Read a delivery with its attempts", read, TAG, reply=DeliveryHistory, errors=(NotFound,)),
            Route("GET", f"{one}/body", self.get_body, "Read the body of a delivery", read, TAG, "It is the same at every try.",
                  reply=dict[str, Any], errors=(NotFound,)),
            Route("POST", f"{one}/replay", self.replay_delivery, "Replay a delivery", admin, TAG,
                  "A dead or a delivered one. It keeps its id.", reply=ReplayedDeliveries, errors=(NotFound, Conflict)),
            Route("GET", "/engine/endpoints", self.list_endpoints, "List endpoints with their pending and dead deliveries", read, TAG,
                  query=EndpointQuery, reply=EndpointList),
            Route("GET", place, self.get_endpoint, "Read an endpoint", read, TAG, reply=EndpointView, errors=(NotFound,)),
            Route("POST", f"{place}/pause", self.pause_endpoint, "Pause an endpoint: nothing is sent to it until it is resumed", admin, TAG,
                  reply=EndpointView, errors=(NotFound,)),
            Route("POST", f"{place}/resume", self.resume_endpoint, "Resume a paused or disabled endpoint", admin, TAG, reply=EndpointView, errors=(NotFound,)),
            Route("POST", f"{place}/replay", self.replay_endpoint, "Replay all dead deliveries of an endpoint", admin, TAG, reply=ReplayedDeliveries, errors=(NotFound,)),
        ]
        # fmt: on

    async def list_deliveries(self, req: Request, resp: Response) -> None:
        by = query(req, DeliveryQuery)
        job = None if by.job is None else ulid("job", by.job)
        found = await self._reads.list_deliveries(
            DeliveryFilter(req.caller.tenant, by.endpoint, job, by.state, cursor(by.cursor), by.limit)
        )
        caller = req.caller
        views = [view for view in await self._described(found) if self._kinds.may_read(caller, view.kind)]
        reply(resp, DeliveryList(views, found[-1].id if len(found) == by.limit else None))

    async def get_delivery(self, req: Request, resp: Response, delivery_id: str) -> None:
        delivery = await self._delivery(req, delivery_id)
        [view] = await self._described([delivery])
        require(req.caller, self._kinds.of(view.kind).read)
        tries = [try_view(t) for t in await self._reads.list_tries(delivery.id)]
        reply(resp, DeliveryHistory(**msgspec.structs.asdict(view), attempts=tries))

    async def get_body(self, req: Request, resp: Response, delivery_id: str) -> None:
        delivery = await self._delivery(req, delivery_id)
        for outgoing in await self._reads.outgoing([delivery.id]):
            require(req.caller, self._kinds.of(outgoing.job.kind).read)
            resp.content_type = "application/json"
            resp.data = self._outbox.body(outgoing)
            return
        raise NotFound(f"the job of delivery {delivery.id} was removed")

    async def replay_delivery(self, req: Request, resp: Response, delivery_id: str) -> None:
        delivery = await self._delivery(req, delivery_id)
        if not await self._outbox.replay_delivery(delivery):
            raise Conflict(f"delivery {delivery.id} is still pending; only a delivered or dead one can be replayed")
        reply(resp, ReplayedDeliveries(1))

    async def list_endpoints(self, req: Request, resp: Response) -> None:
        by = query(req, EndpointQuery)
        found = await self._reads.list_endpoints(EndpointFilter(req.caller.tenant, by.cursor or "", by.limit))
        reply(resp, EndpointList(await self._views(found), found[-1].id if len(found) == by.limit else None))

    async def get_endpoint(self, req: Request, resp: Response, endpoint_id: str) -> None:
        await self._reply(resp, await self._endpoint(req, endpoint_id))

    async def pause_endpoint(self, req: Request, resp: Response, endpoint_id: str) -> None:
        endpoint = await self._endpoint(req, endpoint_id)
        await self._outbox.pause_endpoint(endpoint, f"paused by {req.caller.subject}")
        await self._reply(resp, await self._endpoint(req, endpoint_id))

    async def resume_endpoint(self, req: Request, resp: Response, endpoint_id: str) -> None:
        endpoint = await self._endpoint(req, endpoint_id)
        await self._outbox.resume_endpoint(endpoint)
        await self._reply(resp, await self._endpoint(req, endpoint_id))

    async def replay_endpoint(self, req: Request, resp: Response, endpoint_id: str) -> None:
        endpoint = await self._endpoint(req, endpoint_id)
        reply(resp, ReplayedDeliveries(await self._outbox.replay_endpoint(endpoint)))

    async def _delivery(self, req: Request, delivery_id: str) -> Delivery:
        by = DeliveryFilter(req.caller.tenant, id=ulid("delivery_id", delivery_id))
        for delivery in await self._reads.list_deliveries(by):
            return delivery
        raise NotFound(f"there is no delivery {delivery_id}")

    async def _described(self, deliveries: list[Delivery]) -> list[DeliveryView]:
        about = {
            each.delivery_id: each for each in await self._reads.subjects({each.id: each.job_id for each in deliveries})
        }
        return [delivery_view(each, about.get(each.id, Subject(each.id))) for each in deliveries]

    async def _endpoint(self, req: Request, endpoint_id: str) -> Endpoint:
        if len(endpoint_id) > 64:
            raise InvalidField("endpoint_id", "is too long")
        for endpoint in await self._reads.list_endpoints(EndpointFilter(req.caller.tenant, id=endpoint_id)):
            return endpoint
        raise NotFound(f"there is no endpoint {endpoint_id}")

    async def _views(self, endpoints: list[Endpoint]) -> list[EndpointView]:
        now = await self._engine.jobs.now()
        return [self._view(endpoint, now) for endpoint in endpoints]

    def _view(self, endpoint: Endpoint, now: int) -> EndpointView:
        breaker, seconds = self._outbox.breaker(endpoint.id)
        until = now + int(seconds * SECOND) if seconds else None
        return endpoint_view(endpoint, breaker, until, self._outbox.hours.hour(endpoint.id))

    async def _reply(self, resp: Response, endpoint: Endpoint) -> None:
        reply(resp, (await self._views([endpoint]))[0])
