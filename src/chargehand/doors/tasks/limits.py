"""Rate limits of creating, claiming and cleaning up. A limit is off unless its rate and its burst are both set."""

import math

from chargehand.config import TasksConfig
from chargehand.doors.tasks.errors import TaskRefused
from chargehand.doors.tasks.metrics import TaskMetrics
from chargehand.http.auth import Caller
from chargehand.http.rate import RateLimiter


class Limits:
    def __init__(self, config: TasksConfig, metrics: TaskMetrics) -> None:
        self._buckets = {
            "producer": (config.producer_per_minute / 60, config.producer_burst),
            "worker": (config.worker_per_minute / 60, config.worker_burst),
            "admin": (config.admin_per_minute / 60, config.admin_burst),
        }
        self._limiter = RateLimiter()
        self._metrics = metrics

    def check(self, scope: str, operation: str, caller: Caller) -> None:
        rate, burst = self._buckets[scope]
        if not (rate and burst):
            return
        wait = self._limiter.take(f"{scope}:{caller.rate_key}", rate, burst)
        if wait:
            self._metrics.rate_limited.labels(scope, operation).inc()
            raise TaskRefused(
                429,
                "rate limit exceeded",
                scope=scope,
                operation=operation,
                retryAfterSeconds=max(1, math.ceil(wait)),
                retry_after_seconds=wait,
            )
