"""An engine and an outbox over one store, with a clock that only the test moves."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, cast

from chargehand.api.views import KIND, render
from chargehand.config import load_config
from chargehand.engine.delivery import Delivery, DeliveryState, endpoint_id
from chargehand.engine.engine import Engine
from chargehand.engine.job import SECOND, NewJob, Report
from chargehand.engine.moves import RetryPolicy
from chargehand.engine.queue import Queue
from chargehand.engine.reads import DeliveryFilter
from chargehand.engine.store import Store
from chargehand.observability.metrics import Metrics
from chargehand.observability.tracing import Tracing
from chargehand.webhooks.egress import EgressPolicy
from chargehand.webhooks.outbound import Outbox
from chargehand.webhooks.sending import DoorWebhooks
from tests.api.serving import until
from tests.conftest import Clock
from tests.webhooks.receiver import Receiver

QUEUE = Queue(KIND, "default", "q")


class Desk:
    def __init__(self, store: Store, clock: Clock, *, poll_seconds: float = 0.01, **settings: Any) -> None:
        # Leases depend on the timeout and must last longer than the clock jumps that tests make.
        settings = {"breaker_failures": 1000, "timeout_seconds": 600, **settings}
        overrides = {f"webhooks.{name}": value for name, value in settings.items()}
        self.config = load_config(environ={}, overrides=overrides).webhooks
        self.store = store
        self.clock = clock
        self.engine = Engine(store, policy=RetryPolicy(0, 0), now=clock)
        self.outbox = Outbox(
            store,
            self.config,
            EgressPolicy(allow_local=True),
            {KIND: DoorWebhooks(render)},
            Metrics(),
            Tracing(),
            poll_seconds=poll_seconds,
            random=Random(7),
            clock=lambda: clock.now / SECOND,
        )
        self.engine.on_move(self.outbox.on_move)
        self._running = asyncio.create_task(self.outbox.run())

    async def submit(self, *urls: str, tenant: str = "default", **report: Any) -> str:
        """Submit a job that stays queued and is reported to each URL: one delivery each."""
        reports = tuple(Report(url, endpoint_id(tenant, url), **report) for url in urls)
        job = NewJob(self.engine.new_id(), Queue(KIND, tenant, "q"), b"null", reports=reports)
        return (await self.engine.submit(job)).job_id

    async def delivery(self, job_id: str) -> Delivery:
        [delivery] = await self.store.list_deliveries(DeliveryFilter(job_id=job_id))
        return delivery

    async def tried(self, job_id: str, times: int = 1) -> Delivery:
        """Wait until the delivery was tried so many times, and return it."""
        delivery = await self._once(job_id, lambda delivery: delivery.tries >= times)
        assert delivery.tries == times
        return delivery

    async def delivered(self, job_id: str) -> Delivery:
        return await self._once(job_id, lambda delivery: delivery.state is DeliveryState.DELIVERED)

    async def dead(self, job_id: str) -> Delivery:
        return await self._once(job_id, lambda delivery: delivery.state is DeliveryState.DEAD)

    async def _once(self, job_id: str, it_is_so: Callable[[Delivery], bool]) -> Delivery:
        async def found() -> Delivery | None:
            delivery = await self.delivery(job_id)
            return delivery if it_is_so(delivery) else None

        return cast(Delivery, await until(found))

    async def settle_down(self, receiver: Receiver, url: str) -> None:
        """Return when everything that could be sent to the URL was: a later delivery to another URL has arrived."""
        for _ in range(3):
            self.outbox.nudge(endpoint_id("default", url))
            job_id = await self.submit(receiver.url("/elsewhere"))
            await self.delivered(job_id)

    async def close(self) -> None:
        self.engine.drain()
        await self.outbox.drain(0.1)
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


OpenDesk = Callable[..., Desk]
