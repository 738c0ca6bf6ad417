"""Calls for webhooks: `client.deliveries`. What was sent where, what was given up, and how to send it again."""

from collections.abc import AsyncGenerator
from urllib.parse import quote

from chargehand.client.transport.calls import Calls
from chargehand.client.types.deliveries import (
    Delivery,
    DeliveryState,
    DeliveryWithTries,
    Endpoint,
    ListedDeliveries,
    ListedEndpoints,
    ReplayCount,
)


class DeliveryCalls(Calls):
    base = "/engine"

    async def find(
        self,
        *,
        state: DeliveryState | None = None,
        job: str = "",
        endpoint: str = "",
        before: str = "",
        limit: int | None = None,
    ) -> AsyncGenerator[Delivery, None]:
        """Newest first. Without a limit: all; stop reading when you have enough."""
        by = {"state": state, "job": job, "endpoint": endpoint}
        async for page in self._pages("/deliveries", ListedDeliveries, by, before=before, limit=limit):
            for delivery in page.deliveries:
                yield delivery

    async def get(self, delivery_id: str) -> DeliveryWithTries:
        """A delivery with its tries, newest first."""
        return await self._get(_delivery(delivery_id), DeliveryWithTries)

    async def replay(self, delivery_id: str) -> None:
        """Send a dead or delivered one again. It keeps its id, by which a receiver knows it."""
        await self._call("POST", _delivery(delivery_id, "/replay"), ReplayCount, safe=False)

    async def endpoints(self) -> AsyncGenerator[Endpoint, None]:
        async for page in self._pages("/endpoints", ListedEndpoints, {}):
            for endpoint in page.endpoints:
                yield endpoint

    async def endpoint(self, endpoint_id: str) -> Endpoint:
        return await self._get(_endpoint(endpoint_id), Endpoint)

    async def replay_all(self, endpoint_id: str) -> int:
        """Send all dead deliveries of an endpoint again; return how many there are."""
        return (await self._call("POST", _endpoint(endpoint_id, "/replay"), ReplayCount, safe=False)).replayed

    async def pause(self, endpoint_id: str) -> Endpoint:
        """Send nothing to the endpoint until it is resumed. Its deliveries wait."""
        return await self._call("POST", _endpoint(endpoint_id, "/pause"), Endpoint, safe=True)

    async def resume(self, endpoint_id: str) -> Endpoint:
        return await self._call("POST", _endpoint(endpoint_id, "/resume"), Endpoint, safe=True)


def _delivery(delivery_id: str, verb: str = "") -> str:
    return f"/deliveries/{quote(delivery_id, safe='')}{verb}"


def _endpoint(endpoint_id: str, verb: str = "") -> str:
    return f"/endpoints/{quote(endpoint_id, safe='')}{verb}"
