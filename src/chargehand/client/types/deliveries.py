"""Types of `client.deliveries`: webhooks and the endpoints that receive them."""

from typing import Literal

import msgspec

DeliveryState = Literal["pending", "delivered", "dead"]


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    job_id: str = ""
    sequence: int = 0
    kind: str = ""
    queue: str = ""
    topic: str = ""  # the state that it reports, and the stage after a colon
    endpoint_id: str = ""
    url: str = ""
    dialect: str = ""
    state: str = "pending"
    tries: int = 0
    due_at: str = ""
    reason: str = ""
    status: int | None = None  # of the last try
    duration_seconds: float | None = None
    created_at: str = ""
    updated_at: str = ""


class DeliveryTry(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    at: str = ""
    status: int | None = None
    duration_seconds: float = 0.0
    error: str = ""
    answer: str = ""


class DeliveryWithTries(Delivery, frozen=True, kw_only=True):
    attempts: tuple[DeliveryTry, ...] = ()  # newest first


class DeliveryHour(msgspec.Struct, frozen=True, kw_only=True):
    """What one node of the server sent to an endpoint in the last hour; of the lists, the last number is this minute's."""

    tries: int = 0
    delivered: int = 0
    success_rate: float | None = None
    p50_seconds: float | None = None
    p95_seconds: float | None = None
    delivered_by_minute: tuple[int, ...] = ()
    failed_by_minute: tuple[int, ...] = ()


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    url: str = ""
    state: str = "active"  # or paused; or disabled, because it answered 410
    reason: str = ""
    pending: int = 0
    dead: int = 0
    oldest_due_at: str | None = None
    created_at: str = ""
    breaker: str = "closed"  # or open, or half open, at the node that answered
    breaker_until: str | None = None
    hour: DeliveryHour = DeliveryHour()
