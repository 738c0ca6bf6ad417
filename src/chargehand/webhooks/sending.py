"""One try of a delivery, in three steps: `prepare` renders and signs it, `post` sends it, `classify` decides what follows."""

import time
from collections.abc import Callable, Mapping
from html import escape
from random import Random
from typing import NamedTuple, cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from chargehand.config import TenantSecrets, WebhooksConfig
from chargehand.engine.announce import decode_reports
from chargehand.engine.backoff import full_jitter
from chargehand.engine.delivery import DeliveryState, Outgoing, Settle
from chargehand.engine.job import Report
from chargehand.errors import ConfigError
from chargehand.observability.logs import HIDDEN, get_logger, scrub_text
from chargehand.observability.tracing import Tracing
from chargehand.webhooks.egress import EgressPolicy, refusal
from chargehand.webhooks.exchange import CallFailed
from chargehand.webhooks.lanes import Pace
from chargehand.webhooks.pool import ConnectionPool
from chargehand.webhooks.signature import Dialect, Keys, sign

SECRET_CHARACTERS = 4  # a shorter value is taken for a flag or a number, not a secret
MAX_RETRY_AFTER_SECONDS = 86_400.0
Render = Callable[[Outgoing], bytes]
Jitter = Callable[[int, float, float, Random], float]  # (attempt, base_seconds, max_seconds, random) -> seconds

log = get_logger(__name__)


class DoorWebhooks(NamedTuple):
    """What a door decides about the webhooks of its jobs."""

    render: Render
    jitter: Jitter = full_jitter


class Prepared(msgspec.Struct, frozen=True):
    outgoing: Outgoing
    body: bytes
    headers: dict[str, str]


class Posted(msgspec.Struct, frozen=True):
    """The result of one try: the receiver's status, or the error if there was no answer."""

    status: int | None
    seconds: float
    error: str = ""
    answer: str = ""
    retry_after_seconds: float | None = None
    refused: bool = False  # by our own egress policy, so a retry would not help
    ours: bool = False  # a bug on our side, so the endpoint's breaker ignores it


class WebhookSender:
    def __init__(
        self,
        config: WebhooksConfig,
        policy: EgressPolicy,
        doors: Mapping[str, DoorWebhooks],
        tracing: Tracing,
        random: Random,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._policy = policy
        self._doors = doors  # by kind of job
        self._tracing = tracing
        self._random = random
        self._clock = clock
        self._keys = {tenant: _keys(f"webhooks.tenants.{tenant}", s) for tenant, s in config.tenants.items()}
        self._default_keys = _keys("webhooks.secret", config)

    def session(self) -> ConnectionPool:
        """Open the connection pool through which all webhooks are sent; close it by leaving its context."""
        self._pool = ConnectionPool(
            self._policy,
            timeout_seconds=self._config.timeout_seconds,
            answer_bytes=self._config.answer_bytes,
            max_idle=self._config.max_in_flight,
        )
        return self._pool

    async def send(self, outgoing: Outgoing) -> tuple[Posted, Settle]:
        """Make one try; return what came back and what it means for the delivery."""
        try:
            posted = await self.post(self.prepare(outgoing))
        except Exception as error:
            # A bug of ours, not the receiver's failure: record it with the try, so that it can be seen and replayed.
            log.exception("a delivery could not be sent", delivery_id=outgoing.delivery.id, job_id=outgoing.job.id)
            posted = Posted(None, 0.0, error=f"internal: {type(error).__name__}", ours=True)
        return posted, self.classify(outgoing, posted)

    def prepare(self, outgoing: Outgoing) -> Prepared:
        delivery, job = outgoing.delivery, outgoing.job
        body = self.render(outgoing)
        headers = self._sign(job.tenant, delivery.dialect, delivery.id, body)
        headers["X-Chargehand-Job"] = job.id
        headers["X-Chargehand-Sequence"] = str(delivery.seq)
        headers["X-Chargehand-Attempt"] = str(delivery.tries + 1)
        return Prepared(outgoing, body, headers)

    def render(self, outgoing: Outgoing) -> bytes:
        return self._doors[outgoing.job.kind].render(outgoing)

    def _sign(self, tenant: str, dialect: str, message_id: str, body: bytes) -> dict[str, str]:
        keys = self._keys.get(tenant, self._default_keys)
        return sign(cast(Dialect, dialect), keys, message_id, int(time.time()), body)

    async def post(self, prepared: Prepared) -> Posted:
        job = prepared.outgoing.job
        url = prepared.outgoing.delivery.url
        return await self._post(url, prepared.body, prepared.headers, job.traceparent, job.tracestate)

    async def notify(self, tenant: str, url: str, dialect: Dialect, message_id: str, body: bytes) -> Posted:
        """Sign and send a message that belongs to no job and is not in the outbox: one try, no retries."""
        return await self._post(url, body, self._sign(tenant, dialect, message_id, body))

    async def _post(
        self, url: str, body: bytes, headers: dict[str, str], traceparent: str = "", tracestate: str = ""
    ) -> Posted:
        began = self._clock()
        with self._tracing.span("webhook", traceparent=traceparent, tracestate=tracestate) as span:
            if span.traceparent:
                headers["traceparent"] = span.traceparent
                if span.tracestate:
                    headers["tracestate"] = span.tracestate
            try:
                answer = await self._pool.post(url, headers, body)
            except TimeoutError:
                return Posted(None, self._clock() - began, error=f"no answer within {self._config.timeout_seconds:g} s")
            except (CallFailed, ValueError) as error:
                span.fail(error)
                if (reason := refusal(error)) is not None:
                    return Posted(None, self._clock() - began, error=f"refused by policy: {reason}", refused=True)
                return Posted(None, self._clock() - began, error=_describe(error))
        text = answer.body.decode("utf-8", "replace").replace("\x00", "\ufffd")
        return Posted(
            answer.status,
            self._clock() - began,
            answer=without_query(text, url),
            retry_after_seconds=_retry_after(answer.retry_after),
        )

    def classify(self, outgoing: Outgoing, posted: Posted) -> Settle:
        """Return what becomes of the delivery: delivered, disabled endpoint, retry later, or dead."""
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
                retry = self._doors[outgoing.job.kind].jitter(delivery.attempt + 1, base, longest, self._random)
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

    def pace(self, outgoing: Outgoing) -> Pace:
        _, base, longest = self._schedule(outgoing)
        return Pace(outgoing.delivery.attempt + 1, base, longest)

    def _schedule(self, outgoing: Outgoing) -> tuple[int, float, float]:
        """Return tries, first pause and longest pause: the report's own where it names them, else the server's."""
        config = self._config
        report = _report(outgoing)
        return (
            report.max_attempts or config.max_attempts,
            config.backoff_base_seconds if report.backoff_base_seconds is None else report.backoff_base_seconds,
            config.backoff_max_seconds if report.backoff_max_seconds is None else report.backoff_max_seconds,
        )


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


def _status_reason(status: int | None) -> str:
    if status is not None and 300 <= status < 400:
        return f"answered {status}: redirects are not followed; register the final URL"
    return f"answered {status}"


def without_query(text: str, url: str) -> str:
    """Return a receiver's answer with the URL's query hidden: many servers repeat the URL in their error pages."""
    query = urlsplit(url).query
    if not query:
        return text
    values = [value for _, value in parse_qsl(query) if len(value) >= SECRET_CHARACTERS]
    whole = [query, unquote(query), *values, *(quote(value, safe="") for value in values)]
    for secret in sorted({spelt for each in whole for spelt in (each, escape(each))}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
        # The answer may be cut off in the middle of the secret.
        cut = next((n for n in range(len(secret) - 1, SECRET_CHARACTERS - 1, -1) if text.endswith(secret[:n])), 0)
        text = text[: len(text) - cut] + HIDDEN if cut else text
    return text


def _describe(error: BaseException) -> str:
    """Return the error's text in one line, without the secrets that some errors repeat."""
    return " ".join(scrub_text(str(error)).split())[:500]


def _retry_after(value: str) -> float | None:
    """Return the header's seconds, or None. Dates are ignored: they are rare and need clocks that agree."""
    seconds = value.strip()
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) < 10):
        return None
    return min(float(seconds), MAX_RETRY_AFTER_SECONDS)
