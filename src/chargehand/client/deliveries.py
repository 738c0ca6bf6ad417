"""Calls for webhooks: `client.deliveries`. What was sent where, what was given up, and how to send it again."""

from collections.abc import AsyncGenerator

from chargehand.client.transport.calls import Calls, path_of
from chargehand.client.types.deliveries import Delivery, DeliveryState, DeliveryWithTries, Endpoint


class DeliveryCalls(Calls):
    base = "/engine"

    def find(
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
        return self._items("/deliveries", "deliveries", list[Delivery], by, before=before, limit=limit)

    async def get(self, delivery_id: str) -> DeliveryWithTries:
        """A delivery with its tries, newest first."""
        return await self._get(path_of("deliveries", delivery_id), DeliveryWithTries)

    async def replay(self, delivery_id: str) -> None:
        """Send a dead or delivered one again. It keeps its id, by which a receiver knows it."""
        await self._call("POST", path_of("deliveries", delivery_id, "/replay"), int, safe=False, member="replayed")

    def endpoints(self) -> AsyncGenerator[Endpoint, None]:
        return self._items("/endpoints", "endpoints", list[Endpoint], {})

    async def endpoint(self, endpoint_id: str) -> Endpoint:
        return await self._get(path_of("endpoints", endpoint_id), Endpoint)

    async def replay_all(self, endpoint_id: str) -> int:
        """Send all dead deliveries of an endpoint again; return how many there are."""
        return await self._call(
            "POST", path_of("endpoints", endpoint_id, "/replay"), int, safe=False, member="replayed"
        )

    async def pause(self, endpoint_id: str) -> Endpoint:
        """Send nothing to the endpoint until it is resumed. Its deliveries wait."""
        return await self._call("POST", path_of("endpoints", endpoint_id, "/pause"), Endpoint, safe=True)

    async def resume(self, endpoint_id: str) -> Endpoint:
        return await self._call("POST", path_of("endpoints", endpoint_id, "/resume"), Endpoint, safe=True)
