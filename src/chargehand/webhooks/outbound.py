"""The outbox: prepare -> post -> classify -> settle, for every delivery, apart from the work that caused it.

Each endpoint has a lane of its own, bounded; a slow or dead one fills its lane and nothing else. Deliveries are taken from the
store under a lease, so a sender that dies loses none: another, or the same one after its restart, takes them again.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp

from chargehand import __version__
from chargehand.config import TenantSecrets, WebhooksConfig
from chargehand.engine.backoff import full_jitter
from chargehand.engine.delivery import DeliveryState, Outgoing, Settle, Take
from chargehand.engine.job import SECOND, Report
from chargehand.engine.moves import Moved
from chargehand.engine.store import Store
from chargehand.errors import ConfigError, StoreError
from chargehand.observability.logs import get_logger
from chargehand.observability.metrics import Metrics
from chargehand.observability.tracing import Tracing
from chargehand.store.announce import decode_reports
from chargehand.webhooks.egress import EgressPolicy, make_connector, refusal
from chargehand.webhooks.lanes import Lane
from chargehand.webhooks.signature import Dialect, Keys, sign

Render = Callable[[Outgoing], bytes]

log = get_logger(__name__)
PREFETCH = 2  # taken for each that may be in flight, so that a fast endpoint never waits for the store
DUE_ENDPOINTS = 10_000
STORE_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Prepared:
    outgoing: Outgoing
    body: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Posted:
    """What came back: a status, or the error that kept it from coming."""

    status: int | None
    seconds: float
    error: str = ""
    answer: str = ""
    retry_after_seconds: float | None = None
    refused: bool = False  # by our own policy; the endpoint is not to blame


class Outbox:
    def __init__(
        self,
        store: Store,
        config: WebhooksConfig,
        policy: EgressPolicy,
        renderers: Mapping[str, Render],
        metrics: Metrics,
        tracing: Tracing,
        *,
        poll_seconds: float,
        random: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._config = config
        self._policy = policy
        self._renderers = renderers
        self._metrics = metrics
        self._tracing = tracing
        self._poll_seconds = poll_seconds
        self._random = random or Random()  # noqa: S311 - for jitter
        self._clock = clock
        self._keys = {tenant: _keys(f"webhooks.tenants.{tenant}", s) for tenant, s in config.tenants.items()}
        self._default_keys = _keys("webhooks.secret", config)
        self._lanes: dict[str, Lane] = {}
        self._hosts: Counter[str] = Counter()
        self._in_flight = 0
        self._hungry: dict[Lane, None] = {}  # lanes that wait for room, first come first served
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = True
        # A try may wait behind its own prefetch, each of which may take the whole time limit.
        self._lease_seconds = config.timeout_seconds * (PREFETCH + 1) + 15.0

    async def run(self) -> None:
        """Until cancelled: lanes work by themselves; this finds what nobody here was told of."""
        async with self._session() as self._http:
            while True:
                try:
                    await self._look()
                except StoreError as error:
                    log.warning("the outbox cannot read the store, will look again", error=str(error))
                await asyncio.sleep(self._poll_seconds)

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=make_connector(self._policy, limit=0, limit_per_host=0),  # lanes do the bounding
            timeout=aiohttp.ClientTimeout(total=self._config.timeout_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # an answer of a few bytes must not become a gigabyte
            trust_env=False,
            skip_auto_headers=("Accept", "Accept-Encoding"),
            headers={"User-Agent": f"chargehand/{__version__}", "Content-Type": "application/json"},
        )

    async def drain(self, seconds: float) -> None:
        """Nothing new is taken; what is in flight may end. What does not is sent again by whoever comes next."""
        self._open = False
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # lanes --------------------------------------------------------------------------------------------------------------

    def on_move(self, moved: Moved) -> None:
        for endpoint_id in moved.endpoints:
            self.nudge(endpoint_id)

    def nudge(self, endpoint_id: str) -> None:
        """There may be something to send to this endpoint."""
        lane = self._lanes.get(endpoint_id)
        if lane is None:
            lane = self._lanes[endpoint_id] = Lane(endpoint_id)
        lane.wanted = True
        self._pump(lane)

    def forgive(self, endpoint_id: str) -> None:
        """An operator says that the endpoint is well again."""
        if endpoint_id in self._lanes:
            self._lanes[endpoint_id].succeeded()
        self.nudge(endpoint_id)

    async def _look(self) -> None:
        now_at = await self._store.now()
        overdue = 0
        for endpoint_id, due_at in await self._store.due_endpoints(DUE_ENDPOINTS):
            overdue = max(overdue, now_at - due_at)
            if due_at <= now_at:
                self.nudge(endpoint_id)
            else:
                self._later((due_at - now_at) / SECOND, endpoint_id)
        now = self._clock()
        self._metrics.deliveries_due_seconds.set(overdue / SECOND)
        self._metrics.breakers_open.set(sum(lane.is_open(now) for lane in self._lanes.values()))
        for lane in [lane for lane in self._lanes.values() if lane.idle(now)]:
            del self._lanes[lane.endpoint_id]

    def _later(self, seconds: float, endpoint_id: str) -> None:
        # What is due after the next look is found by that look.
        if seconds < self._poll_seconds:
            asyncio.get_running_loop().call_later(max(seconds, 0.001), self.nudge, endpoint_id)

    def _room(self, lane: Lane) -> int:
        """How many more this lane may have in flight now."""
        if not self._open or lane.is_open(self._clock()):
            return 0
        bound = 1 if lane.on_probation() else self._config.max_in_flight_per_endpoint
        return min(bound - lane.in_flight, self._config.max_in_flight - self._in_flight)

    def _pump(self, lane: Lane) -> None:
        """Starts senders for what is in the buffer, and a take when the buffer runs low."""
        while lane.buffer and self._room(lane) > 0 and (outgoing := self._next(lane)) is not None:
            self._begin(lane, outgoing)
            self._spawn(self._send_on(lane, outgoing))
        if lane.buffer and self._open and not lane.is_open(self._clock()):
            self._hungry[lane] = None
        batch = 1 if lane.on_probation() else self._config.max_in_flight_per_endpoint
        if lane.wanted and not lane.taking and self._room(lane) > 0 and len(lane.buffer) < batch:
            lane.wanted, lane.taking = False, True
            self._spawn(self._take(lane, batch * (1 if lane.on_probation() else PREFETCH) - len(lane.buffer)))

    def _next(self, lane: Lane) -> Outgoing | None:
        outgoing = lane.next_outgoing()
        if outgoing is not None and self._hosts[_host(outgoing)] >= self._config.max_in_flight_per_host:
            lane.buffer.appendleft(outgoing)
            return None
        return outgoing

    def _begin(self, lane: Lane, outgoing: Outgoing) -> None:
        lane.in_flight += 1
        self._in_flight += 1
        self._hosts[_host(outgoing)] += 1
        lane.busy_jobs.add(outgoing.job.id)

    def _end(self, lane: Lane, outgoing: Outgoing) -> None:
        lane.in_flight -= 1
        self._in_flight -= 1
        host = _host(outgoing)
        self._hosts[host] -= 1
        if not self._hosts[host]:
            del self._hosts[host]
        lane.busy_jobs.discard(outgoing.job.id)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, lane: Lane, limit: int) -> None:
        taken_at = self._clock()
        try:
            taken = await self._store.take_deliveries(Take(lane.endpoint_id, limit, self._lease_seconds))
            outgoing = await self._store.outgoing(taken.ids) if taken.ids else []
        except StoreError as error:
            log.warning("the outbox cannot take deliveries, will try again", error=str(error))
            asyncio.get_running_loop().call_later(STORE_PAUSE_SECONDS, self.nudge, lane.endpoint_id)
            return
        finally:
            lane.taking = False
        lane.buffer.extend(outgoing)
        if len(taken.ids) == limit:
            lane.wanted = True
        elif taken.next_due_at is not None:
            self._later((taken.next_due_at - await self._store.now()) / SECOND, lane.endpoint_id)
        if self._clock() - taken_at < self._lease_seconds:
            self._pump(lane)

    async def _send_on(self, lane: Lane, outgoing: Outgoing | None) -> None:
        """One sender: this delivery, then the next of the lane while there is one, then whoever waits for room."""
        while outgoing is not None:
            try:
                await self._deliver(lane, outgoing)
            finally:
                self._end(lane, outgoing)
            outgoing = None
            if self._hungry:
                break  # somebody else's turn
            if lane.buffer and self._room(lane) > 0 and (outgoing := self._next(lane)) is not None:
                self._begin(lane, outgoing)
                if lane.wanted and not lane.taking and len(lane.buffer) < self._config.max_in_flight_per_endpoint:
                    self._pump(lane)
        self._pump(lane)
        while self._hungry and self._in_flight < self._config.max_in_flight:
            hungry = next(iter(self._hungry))
            del self._hungry[hungry]
            self._pump(hungry)
            if hungry in self._hungry:
                break  # it could not go on for another reason

    # one delivery -------------------------------------------------------------------------------------------------------

    async def _deliver(self, lane: Lane, outgoing: Outgoing) -> None:
        try:
            prepared = self._prepare(outgoing)
            posted = await self._post(prepared)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # A fault of ours, not of the receiver: written down with the try, so that it can be seen and replayed.
            log.exception("a delivery could not be made", delivery_id=outgoing.delivery.id, job_id=outgoing.job.id)
            posted = Posted(None, 0.0, error=f"internal: {type(error).__name__}")
        settle = self._classify(outgoing, posted)
        self._judge(lane, posted, settle)
        await self._settle(settle, outgoing)

    def _prepare(self, outgoing: Outgoing) -> Prepared:
        delivery, job = outgoing.delivery, outgoing.job
        body = self._renderers[job.kind](outgoing)
        keys = self._keys.get(job.tenant, self._default_keys)
        headers = sign(cast(Dialect, delivery.dialect), keys, delivery.id, int(time.time()), body)
        headers["X-Chargehand-Job"] = job.id
        headers["X-Chargehand-Sequence"] = str(delivery.seq)
        headers["X-Chargehand-Attempt"] = str(delivery.tries + 1)
        return Prepared(outgoing, body, headers)

    async def _post(self, prepared: Prepared) -> Posted:
        job, url = prepared.outgoing.job, prepared.outgoing.delivery.url
        began = self._clock()
        with self._tracing.span("webhook", traceparent=job.traceparent, tracestate=job.tracestate) as span:
            if span.traceparent:
                prepared.headers["traceparent"] = span.traceparent
                if span.tracestate:
                    prepared.headers["tracestate"] = span.tracestate
            try:
                async with self._http.post(
                    url, data=prepared.body, headers=prepared.headers, allow_redirects=False
                ) as response:
                    answer = await response.content.read(self._config.answer_bytes)
                    if not response.content.at_eof():
                        response.close()  # the rest of a long answer is not worth a connection
                    return Posted(
                        response.status,
                        self._clock() - began,
                        answer=answer.decode("utf-8", "replace").replace("\x00", "\ufffd"),
                        retry_after_seconds=_retry_after(response.headers.get("Retry-After")),
                    )
            except TimeoutError:
                return Posted(None, self._clock() - began, error=f"no answer within {self._config.timeout_seconds:g} s")
            except (aiohttp.ClientError, OSError, ValueError) as error:
                span.fail(error)
                if (reason := refusal(error)) is not None:
                    return Posted(None, self._clock() - began, error=f"refused by policy: {reason}", refused=True)
                return Posted(None, self._clock() - began, error=_say(error))

    def _classify(self, outgoing: Outgoing, posted: Posted) -> Settle:
        """What the answer means: delivered, gone for good, try again later, or given up."""
        delivery = outgoing.delivery
        state, retry, reason, gone = DeliveryState.DEAD, 0.0, "", ""
        if posted.status is not None and 200 <= posted.status < 300:
            state = DeliveryState.DELIVERED
        elif posted.status == 410:
            reason, gone = "the endpoint answered 410 Gone and is disabled", delivery.endpoint_id
        elif posted.refused:
            reason = posted.error
        else:
            reason = posted.error or _status_reason(posted.status)
            max_attempts, base, longest = self._schedule(outgoing)
            if delivery.attempt + 1 < max_attempts:
                state = DeliveryState.PENDING
                retry = full_jitter(delivery.attempt + 1, base, longest, self._random)
                if posted.retry_after_seconds is not None:
                    retry = max(retry, min(posted.retry_after_seconds, self._config.backoff_max_seconds))
            else:
                reason = f"gave up after {max_attempts} tries: {reason}"
        return Settle(
            delivery.id,
            delivery.lease,
            state,
            retry,
            reason,
            posted.status,
            posted.seconds,
            posted.error,
            posted.answer,
            gone,
        )

    def _schedule(self, outgoing: Outgoing) -> tuple[int, float, float]:
        """The door's own retry policy where the report names one, else the server's."""
        config = self._config
        report = _report(outgoing)
        return (
            report.max_attempts or config.max_attempts,
            config.backoff_base_seconds if report.backoff_base_seconds is None else report.backoff_base_seconds,
            config.backoff_max_seconds if report.backoff_max_seconds is None else report.backoff_max_seconds,
        )

    def _judge(self, lane: Lane, posted: Posted, settle: Settle) -> None:
        """What the answer says of the endpoint, beyond this delivery."""
        if posted.refused:
            return
        if settle.state is DeliveryState.DELIVERED:
            lane.succeeded()
            return
        now = self._clock()
        lane.failed(now, self._config.breaker_failures, self._config.breaker_seconds, self._random.random())
        if posted.retry_after_seconds is not None:
            lane.closed_until = max(
                lane.closed_until, now + min(settle.retry_seconds, self._config.backoff_max_seconds)
            )
        if lane.is_open(now):
            asyncio.get_running_loop().call_later(lane.closed_until - now, self.nudge, lane.endpoint_id)

    async def _settle(self, settle: Settle, outgoing: Outgoing) -> None:
        dialect = outgoing.delivery.dialect
        with contextlib.suppress(StoreError):  # then it is sent once more: at least once, never less
            await self._store.settle_delivery(settle)
        outcome = (
            "retry"
            if settle.state is DeliveryState.PENDING
            else "gone"
            if settle.disable_endpoint
            else str(settle.state)
        )
        self._metrics.count_delivery(dialect, outcome, settle.duration_seconds)
        if settle.state is DeliveryState.DELIVERED:
            lag = time.time() - outgoing.event.at / SECOND
            self._metrics.observe_lag(dialect, max(0.0, lag))
        else:
            log.info(
                "a delivery was not taken",
                job_id=outgoing.job.id,
                delivery_id=settle.delivery_id,
                endpoint_id=outgoing.delivery.endpoint_id,
                outcome=outcome,
                status=settle.status,
                reason=settle.reason,
            )
            if settle.state is DeliveryState.PENDING:
                self._later(settle.retry_seconds, outgoing.delivery.endpoint_id)

    @property
    def in_flight(self) -> int:
        return self._in_flight


def _keys(name: str, secrets: WebhooksConfig | TenantSecrets) -> Keys:
    try:
        return Keys(secrets.secret.reveal(), secrets.previous_secret.reveal())
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def _report(outgoing: Outgoing) -> Report:
    delivery = outgoing.delivery
    for report in decode_reports(outgoing.job.reports):
        if report.url == delivery.url and report.dialect == delivery.dialect:
            return report
    return Report(delivery.url, delivery.endpoint_id)


def _host(outgoing: Outgoing) -> str:
    return urlsplit(outgoing.delivery.url).netloc


def _status_reason(status: int | None) -> str:
    if status is not None and 300 <= status < 400:
        return f"answered {status}: redirects are not followed, give the final URL"
    return f"answered {status}"


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _retry_after(value: str | None) -> float | None:
    """Seconds only; a date is rare and depends on clocks that need not agree."""
    if value is None or not value.strip().isdigit():
        return None
    return float(min(int(value), 86_400))
