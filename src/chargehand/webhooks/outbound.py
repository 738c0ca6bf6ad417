"""The outbox: takes due deliveries from the store, sends them and stores the results, independently of the jobs' own work.

Each endpoint has a bounded lane of its own, so a slow or dead endpoint delays no other. Deliveries are taken from the store
under a lease, so a node that dies loses none: another node, or the same one after its restart, takes them again.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import lru_cache, partial
from itertools import islice
from random import Random
from typing import Any
from urllib.parse import urlsplit

from chargehand.config import WebhooksConfig
from chargehand.engine.delivery import (
    Delivery,
    DeliveryState,
    Endpoint,
    EndpointState,
    Outgoing,
    Release,
    Replay,
    SetEndpoint,
    Settle,
    Take,
)
from chargehand.engine.job import SECOND
from chargehand.engine.moves import Moved
from chargehand.engine.reads import OutboxReads
from chargehand.engine.store import OutboxStore
from chargehand.errors import StoreError
from chargehand.observability.logs import get_logger
from chargehand.observability.metrics import Metrics
from chargehand.observability.tracing import Tracing
from chargehand.webhooks.egress import EgressPolicy
from chargehand.webhooks.hours import Hours
from chargehand.webhooks.lanes import Lane
from chargehand.webhooks.sending import DoorWebhooks, Posted, WebhookSender

log = get_logger(__name__)
REPLAY_BATCH = 1000
PREFETCH = 4  # deliveries taken for each one that may be in flight, so that a fast endpoint never waits for the store
DUE_ENDPOINTS = 10_000
STORE_PAUSE_SECONDS = 1.0
DISABLED_PAUSE_SECONDS = 5.0
TURNS = 8  # how many blocked lanes are tried for a slot that became free


class Outbox:
    def __init__(
        self,
        store: OutboxStore,
        config: WebhooksConfig,
        policy: EgressPolicy,
        doors: Mapping[str, DoorWebhooks],
        metrics: Metrics,
        tracing: Tracing,
        *,
        poll_seconds: float,
        random: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self.reads: OutboxReads = store
        self._config = config
        self._metrics = metrics
        self._poll_seconds = poll_seconds
        self._random = random or Random()  # noqa: S311 - for jitter
        self._clock = clock
        self._sender = WebhookSender(config, policy, doors, tracing, self._random, clock)
        self._lanes: dict[str, Lane] = {}
        self._hosts: Counter[str] = Counter()
        self._in_flight = 0
        self._blocked: dict[Lane, None] = {}  # lanes that only the shared bounds keep from sending, in order of arrival
        self._tasks: set[asyncio.Future[Any]] = set()
        self._listeners: list[Callable[[Settle, Outgoing], None]] = []
        self.hours = Hours(clock)
        self._open = True
        # A delivery may wait behind its lane's whole prefetch, each try of which may take the full timeout.
        self._lease_seconds = config.timeout_seconds * (PREFETCH + 2)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def in_flight_to(self, endpoint_ids: Iterable[str]) -> int:
        return sum(self._lanes[each].in_flight for each in endpoint_ids if each in self._lanes)

    async def run(self) -> None:
        """Poll the store until cancelled, for due deliveries that nothing in this process announced with `nudge`."""
        async with self._sender.session():
            while True:
                try:
                    await self._poll()
                except StoreError as error:
                    log.warning("the outbox cannot read the store and will try again", error=str(error))
                await asyncio.sleep(self._poll_seconds)

    async def drain(self, seconds: float) -> None:
        """Take no new deliveries and wait for those in flight; after `seconds` abandon the rest, which are sent again later."""
        self._open = False
        for lane in self._lanes.values():
            self._release(lane)
        until = self._clock() + seconds
        while self._tasks and (left := until - self._clock()) > 0:
            await asyncio.wait(self._tasks, timeout=left)  # tasks that end may add others, which settle
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # finding due deliveries -------------------------------------------------------------------------------------------

    def on_move(self, moved: Moved) -> None:
        for endpoint_id in moved.endpoints:
            self.nudge(endpoint_id)

    def breaker(self, endpoint_id: str) -> tuple[str, float]:
        """Return the breaker's state at this node (closed, open, half open) and for how many seconds it stays open."""
        lane, now = self._lanes.get(endpoint_id), self._clock()
        if lane is None:
            return "closed", 0.0
        if lane.in_backoff(now):
            return "open", lane.backoff_until - now
        return ("half open" if lane.on_probation() else "closed"), 0.0

    def body(self, outgoing: Outgoing) -> bytes:
        """Return the body, which is the same at every try."""
        return self._sender.render(outgoing)

    def nudge(self, endpoint_id: str) -> None:
        """Check soon for deliveries that are due at this endpoint."""
        lane = self._lanes.get(endpoint_id)
        if lane is None:
            lane = self._lanes[endpoint_id] = Lane(endpoint_id)
        lane.wanted = True
        self._pump(lane)

    async def replay_delivery(self, delivery: Delivery) -> bool:
        """Send a delivery that is dead or delivered once more; return False if it is pending."""
        count = await self._store.write(Replay(delivery.tenant, delivery.id))
        self.nudge(delivery.endpoint_id)
        return count == 1

    async def replay_endpoint(self, endpoint: Endpoint) -> int:
        """Send all dead deliveries of an endpoint once more; return how many there were."""
        replay, total, count = Replay(endpoint.tenant, endpoint_id=endpoint.id, limit=REPLAY_BATCH), 0, REPLAY_BATCH
        while count == REPLAY_BATCH:
            count = await self._store.write(replay)
            total += count
            self.nudge(endpoint.id)
        return total

    async def pause_endpoint(self, endpoint: Endpoint, reason: str) -> None:
        await self._store.write(SetEndpoint(endpoint.id, endpoint.tenant, EndpointState.PAUSED, reason))
        if endpoint.id in self._lanes:
            self._release(self._lanes[endpoint.id])

    async def resume_endpoint(self, endpoint: Endpoint) -> None:
        """Close the breaker too, and send again."""
        await self._store.write(SetEndpoint(endpoint.id, endpoint.tenant, EndpointState.ACTIVE, ""))
        if endpoint.id in self._lanes:
            self._lanes[endpoint.id].succeeded()
        self.nudge(endpoint.id)

    async def _poll(self) -> None:
        now_at = await self._store.now()
        overdue = 0
        for endpoint_id, due_at in await self._store.due_endpoints(DUE_ENDPOINTS):
            overdue = max(overdue, now_at - due_at)
            self._nudge_after((due_at - now_at) / SECOND, endpoint_id)
        now = self._clock()
        self._metrics.deliveries_due_seconds.set(overdue / SECOND)
        self._metrics.breakers_open.set(sum(lane.in_backoff(now) for lane in self._lanes.values()))
        for lane in [lane for lane in self._lanes.values() if lane.idle(now)]:
            del self._lanes[lane.endpoint_id]

    def _nudge_after(self, seconds: float, endpoint_id: str) -> None:
        if seconds <= 0:
            self.nudge(endpoint_id)
        elif seconds < self._poll_seconds:  # the next poll finds what is due after it
            asyncio.get_running_loop().call_later(seconds, self.nudge, endpoint_id)

    async def _take(self, lane: Lane, limit: int) -> None:
        # The last moment at which a try can begin and still end within the lease.
        fresh_until = self._clock() + self._lease_seconds - self._config.timeout_seconds
        try:
            taken = await self._store.write(Take(lane.endpoint_id, limit, self._lease_seconds))
            outgoing = await self._store.outgoing(taken.ids) if taken.ids else []
            soon = None if taken.next_due_at is None else taken.next_due_at - await self._store.now()
        except StoreError as error:
            log.warning("the outbox cannot take deliveries and will try again", error=str(error))
            asyncio.get_running_loop().call_later(STORE_PAUSE_SECONDS, self.nudge, lane.endpoint_id)
            return
        finally:
            lane.taking = False
        lane.fill(outgoing, fresh_until)
        if lane.in_backoff(self._clock()):
            self._release(lane)
        if len(taken.ids) == limit:
            lane.wanted = True
        elif soon is not None:
            self._nudge_after(max(soon / SECOND, 0.001), lane.endpoint_id)
        self._pump(lane)

    # sharing the slots ------------------------------------------------------------------------------------------------

    def _pump(self, lane: Lane) -> None:
        """Start as many sending tasks as the bounds allow for this lane."""
        while (outgoing := self._next(lane)) is not None:
            self._spawn(self._send_on(lane, outgoing))
        self._refill(lane)

    def _next(self, lane: Lane) -> Outgoing | None:
        """Return the lane's next delivery and count it as in flight; None if there is none or a bound is reached."""
        if not (lane.buffer and self._open) or lane.in_flight >= self._bound(lane) or lane.in_backoff(self._clock()):
            return None
        outgoing = lane.next_outgoing(self._clock())
        if outgoing is None:
            return None
        host = _host(outgoing.delivery.url)
        if self._in_flight >= self._config.max_in_flight or self._hosts[host] >= self._config.max_in_flight_per_host:
            lane.buffer.appendleft(outgoing)
            self._blocked[lane] = None
            return None
        lane.begin(outgoing)
        self._hosts[host] += 1
        self._in_flight += 1
        return outgoing

    def _bound(self, lane: Lane) -> int:
        return 1 if lane.on_probation() else self._config.max_in_flight_per_endpoint

    def _refill(self, lane: Lane) -> None:
        """Take more deliveries when the buffer is half empty, so that it lasts until the store has answered."""
        full = 1 if lane.on_probation() else self._config.max_in_flight_per_endpoint * PREFETCH
        low = len(lane.buffer) * 2 < full
        if not (low and lane.wanted and self._open) or lane.taking or lane.in_backoff(self._clock()):
            return
        lane.wanted, lane.taking = False, True
        self._spawn(self._take(lane, full - len(lane.buffer)))

    async def _send_on(self, lane: Lane, outgoing: Outgoing | None) -> None:
        """Send this delivery, then keep its slot for the next one that may use it, until there is none."""
        while outgoing is not None:
            try:
                await self._deliver(lane, outgoing)
            finally:
                host = _host(outgoing.delivery.url)
                self._hosts[host] -= 1
                if not self._hosts[host]:
                    del self._hosts[host]
                self._in_flight -= 1
                lane.end(outgoing)
            self._refill(lane)
            lane, outgoing = self._next_turn(lane)

    def _next_turn(self, lane: Lane) -> tuple[Lane, Outgoing | None]:
        """Return who uses a free slot next: lanes that wait for a shared bound come before the lane that had the slot."""
        if not self._blocked:
            return lane, self._next(lane)
        self._blocked.pop(lane, None)
        self._blocked[lane] = None
        for waiting in list(islice(self._blocked, TURNS)):
            del self._blocked[waiting]
            if (outgoing := self._next(waiting)) is not None:
                return waiting, outgoing
        return lane, None

    def _release(self, lane: Lane) -> None:
        """Give the lane's buffered deliveries back to the store, for other nodes or for later."""
        taken = [outgoing.delivery for outgoing in lane.buffer]
        lane.buffer.clear()
        if taken:
            lane.wanted = True
            self._spawn(self._give_back(tuple(d.id for d in taken), tuple(d.lease for d in taken)))

    async def _give_back(self, ids: tuple[str, ...], leases: tuple[int, ...]) -> None:
        try:
            await self._store.write(Release(ids, leases))
        except StoreError as error:
            log.warning("deliveries could not be given back; their leases will lapse", error=str(error))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # one delivery -----------------------------------------------------------------------------------------------------

    async def _deliver(self, lane: Lane, outgoing: Outgoing) -> None:
        posted, settle = await self._sender.send(outgoing)
        self._update_breaker(lane, outgoing, posted, settle)
        # Not awaited, so that the slot is free for sending. What is unsettled is bounded all the same: the next take waits
        # behind it in the store.
        settling = asyncio.ensure_future(self._store.write(settle))
        self._tasks.add(settling)
        settling.add_done_callback(partial(self._settled, settle, outgoing))

    def _settled(self, settle: Settle, outgoing: Outgoing, settling: "asyncio.Future[bool]") -> None:
        self._tasks.discard(settling)
        if not settling.cancelled() and (error := settling.exception()) is not None:
            # The lease lapses and the delivery is sent once more: at least once, never less.
            log.warning("a delivery could not be settled", delivery_id=settle.delivery_id, error=str(error))
        self._after_settled(settle, outgoing)

    def _update_breaker(self, lane: Lane, outgoing: Outgoing, posted: Posted, settle: Settle) -> None:
        """Let the result of a try open or close the endpoint's breaker."""
        if posted.refused or posted.ours:
            return
        if settle.disable_endpoint:
            # Until the store has disabled it, a take that runs beside the settling must not bring more.
            lane.backoff_until = self._clock() + DISABLED_PAUSE_SECONDS
            self._release(lane)
            return
        if settle.state is DeliveryState.DELIVERED:
            lane.succeeded()
            return
        now = self._clock()
        config, pace = self._config, self._sender.pace(outgoing)
        lane.failed(now, config.breaker_failures, config.breaker_seconds, self._random.random(), pace)
        if posted.retry_after_seconds is not None:
            lane.backoff_until = max(
                lane.backoff_until, now + min(settle.retry_seconds, self._config.backoff_max_seconds)
            )
        if lane.in_backoff(now):
            self._release(lane)
            asyncio.get_running_loop().call_later(lane.backoff_until - now, self.nudge, lane.endpoint_id)

    def on_settled(self, listener: Callable[[Settle, Outgoing], None]) -> None:
        self._listeners.append(listener)

    def _after_settled(self, settle: Settle, outgoing: Outgoing) -> None:
        delivery = outgoing.delivery
        for listener in self._listeners:
            listener(settle, outgoing)
        outcome = (
            "gone"
            if settle.disable_endpoint
            else "retry"
            if settle.state is DeliveryState.PENDING
            else str(settle.state)
        )
        self._metrics.count_delivery(delivery.dialect, outcome, settle.duration_seconds)
        self.hours.count(delivery.endpoint_id, settle.state is DeliveryState.DELIVERED, settle.duration_seconds)
        if settle.state is DeliveryState.DELIVERED:
            self._metrics.delivery_lag_seconds.at(delivery.dialect)(max(0.0, time.time() - outgoing.event.at / SECOND))
            return
        if settle.state is DeliveryState.PENDING:
            self._nudge_after(max(settle.retry_seconds, 0.001), delivery.endpoint_id)
        log.info(
            "a delivery failed",
            job_id=outgoing.job.id,
            delivery_id=delivery.id,
            endpoint_id=delivery.endpoint_id,
            outcome=outcome,
            status=settle.status,
            reason=settle.reason,
        )


@lru_cache(maxsize=4096)
def _host(url: str) -> str:
    return urlsplit(url).netloc
