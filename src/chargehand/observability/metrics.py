"""The metrics of a server. Each server has its own registry, so that two in one process do not mix."""

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import generate_latest

from chargehand.observability.tally import Observe, Tally, TallyCounter

disable_created_metrics()  # type: ignore[no-untyped-call]  # else each counter has a second, useless series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LONG_SECONDS = (0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        r = self.registry
        # fmt: off
        self.http_seconds = Tally("chargehand_http_request_seconds", "Time to answer a request", ["method", "route", "status"], _SECONDS, r)
        self.moves = TallyCounter("chargehand_moves_total", "Moves of jobs", ["kind", "move"], r)
        self.claim_wait_seconds = Tally("chargehand_claim_wait_seconds", "From a job being due to its claim", ["kind"], _LONG_SECONDS, r)
        self.job_seconds = Tally("chargehand_job_seconds", "From submission to the end", ["kind", "state"], _LONG_SECONDS, r)
        self.waiters = Gauge("chargehand_claim_waiters", "Claims that wait for a job", registry=r)
        self.queue_jobs = Gauge("chargehand_queue_jobs", "Jobs in a queue: ready, delayed, running", ["queue", "state"], registry=r)
        self.queue_oldest_seconds = Gauge("chargehand_queue_oldest_seconds", "Age of the ready job that waits longest", ["queue"], registry=r)
        self.deliveries = TallyCounter("chargehand_deliveries_total", "Tries to deliver, by outcome: delivered, retry, dead, gone", ["dialect", "outcome"], r)
        self.delivery_seconds = Tally("chargehand_delivery_seconds", "Duration of a try", ["dialect"], _SECONDS, r)
        self.delivery_lag_seconds = Tally("chargehand_delivery_lag_seconds", "From the event to its delivery", ["dialect"], _LONG_SECONDS, r)
        self.deliveries_in_flight = Gauge("chargehand_deliveries_in_flight", "Deliveries being sent", registry=r)
        self.deliveries_due_seconds = Gauge("chargehand_deliveries_oldest_due_seconds", "How long the oldest due delivery is overdue", registry=r)
        self.breakers_open = Gauge("chargehand_breakers_open", "Endpoints whose circuit breaker is open", registry=r)
        self.store_up = Gauge("chargehand_store_up", "1 while the store can serve", registry=r)
        self.chore_up = Gauge("chargehand_chore_up", "1 while the chore neither fails nor is late", ["chore"], registry=r)
        self.chore_seconds = Tally("chargehand_chore_seconds", "Duration of a turn of periodic work", ["chore"], _LONG_SECONDS, r)
        self.chore_failures = TallyCounter("chargehand_chore_failures_total", "Turns of periodic work that failed", ["chore"], r)
        self.chore_succeeded_at = Gauge("chargehand_chore_last_success_timestamp_seconds", "When a turn last succeeded", ["chore"], registry=r)
        self.target_up = Gauge("chargehand_inference_target_up", "1 while the target is reachable", ["target"], registry=r)
        self.target_in_flight = Gauge("chargehand_inference_in_flight", "Requests at a target", ["target"], registry=r)
        self.evictions = TallyCounter("chargehand_inference_evictions_total", "Models evicted from memory for others", ["target"], r)
        self.load_seconds = Tally("chargehand_inference_load_seconds", "Time to load a model", ["target"], _LONG_SECONDS, r)
        self.first_token_seconds = Tally("chargehand_inference_first_token_seconds", "From the request to the first token", ["target"], _SECONDS, r)
        self.tokens = Counter("chargehand_inference_tokens_total", "Tokens that models answered with", ["target"], registry=r)
        self.failures = TallyCounter("chargehand_inference_failures_total", "Failed attempts, by the kind in the failure table", ["kind"], r)
        # fmt: on

    def http_observer(self, method: str, route: str) -> Callable[[int, float], None]:
        """Return a function that records the status and the seconds of each answer of a route."""
        observers: dict[int, Observe] = {}

        def observe(status: int, seconds: float) -> None:
            observer = observers.get(status)
            if observer is None:
                observer = observers[status] = self.http_seconds.at(method, route, str(status))
            observer(seconds)

        return observe

    def count_move(self, kind: str, move: str) -> None:
        self.moves.at(kind, move)()

    def count_delivery(self, dialect: str, outcome: str, seconds: float) -> None:
        self.deliveries.at(dialect, outcome)()
        self.delivery_seconds.at(dialect)(seconds)

    def count_chore(self, chore: str, seconds: float, succeeded: bool) -> None:
        self.chore_seconds.at(chore)(seconds)
        failed = self.chore_failures.at(chore)  # shown as 0 before the first failure
        if succeeded:
            self.chore_succeeded_at.labels(chore).set_to_current_time()
        else:
            failed()

    def count_eviction(self, target: str) -> None:
        self.evictions.at(target)()

    def count_failure(self, kind: str) -> None:
        self.failures.at(kind)()

    def observe_load(self, target: str, seconds: float) -> None:
        self.load_seconds.at(target)(seconds)

    def observe_answer(self, target: str, first_token_seconds: float | None, tokens: int | None) -> None:
        if first_token_seconds is not None:
            self.first_token_seconds.at(target)(first_token_seconds)
        self.tokens.labels(target).inc(tokens or 0)

    def render(self) -> bytes:
        return generate_latest(self.registry)
