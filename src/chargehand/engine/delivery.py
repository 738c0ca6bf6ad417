"""A delivery: one event of one job, to be sent to one endpoint. The row refers to the event; the body is made when it is sent.

Nothing is copied: an event never changes and a result is written once, so every try of a delivery renders the same body, and
a result of megabytes is stored once however many endpoints it is sent to.
"""

import base64
import hashlib
from enum import StrEnum
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec

from chargehand.engine.job import Event, Job
from chargehand.engine.operation import Operation


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


class EndpointState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"  # by an operator
    DISABLED = "disabled"  # by the endpoint itself, which answered 410


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """A receiver: a tenant's URL without its query, so that `?job=17` does not make a receiver of its own."""

    id: str
    tenant: str
    url: str
    state: EndpointState
    reason: str
    created_at: int
    updated_at: int
    pending: int  # deliveries
    dead: int
    oldest_at: int | None  # due_at of the pending delivery that waits longest


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    id: str
    tenant: str
    job_id: str
    seq: int
    endpoint_id: str
    url: str
    dialect: str
    state: DeliveryState
    attempt: int  # tries since it was made or replayed: what the retry policy counts
    tries: int  # tries in all: what the attempt log is numbered by
    lease: int  # grows each time it is taken for sending: the fence against a sender that was too slow
    lease_until: int | None
    due_at: int
    since_at: int  # when it was made or replayed: what the age limit counts from
    reason: str
    created_at: int
    updated_at: int


class Try(msgspec.Struct, frozen=True, array_like=True):
    """A line of a delivery's attempt log."""

    delivery_id: str
    number: int
    at: int
    status: int | None
    duration_seconds: float
    error: str
    answer: str


class Subject(msgspec.Struct, frozen=True, array_like=True):
    """What a delivery is about, and how its last try ended, without the job's payload and result."""

    delivery_id: str
    kind: str = ""
    queue: str = ""
    state: str = ""
    stage: str = ""
    status: int | None = None
    duration_seconds: float | None = None


class Outgoing(msgspec.Struct, frozen=True):
    """All that is needed to render and send one delivery."""

    delivery: Delivery
    job: Job
    event: Event


class Taken(msgspec.Struct, frozen=True, array_like=True, tag="taken"):
    ids: tuple[str, ...]
    leases: tuple[int, ...]
    next_due_at: int | None  # when the endpoint's next delivery is due; None: nothing is pending
    blocked: bool = False  # paused or disabled


class Take(Operation[Taken], frozen=True, array_like=True, tag="take"):
    """Take up to `limit` due deliveries of an endpoint, for `lease_seconds`."""

    endpoint_id: str
    limit: int
    lease_seconds: float


class Settle(Operation[bool], frozen=True, array_like=True, tag="settle"):
    """The outcome of one try, guarded by the lease under which it was made. False: the lease is no longer held."""

    delivery_id: str
    lease: int
    state: DeliveryState
    retry_seconds: float
    reason: str
    status: int | None
    duration_seconds: float
    error: str
    answer: str
    disable_endpoint: str = ""  # the endpoint's id, when it answered 410


class Release(Operation[None], frozen=True, array_like=True, tag="release"):
    """Give back deliveries that were taken and will not be sent by this node now."""

    ids: tuple[str, ...]
    leases: tuple[int, ...]


class Replay(Operation[int], frozen=True, array_like=True, tag="replay"):
    """Make one delivery due again by its id, or the dead ones of an endpoint; the answer is how many."""

    tenant: str
    delivery_id: str = ""
    endpoint_id: str = ""
    limit: int = 0


class SetEndpoint(Operation[bool], frozen=True, array_like=True, tag="set_endpoint"):
    endpoint_id: str
    tenant: str
    state: str
    reason: str


@lru_cache(maxsize=4096)  # callers name the same few again and again
def shown_url(url: str) -> str:
    """Return the URL as every view and log line shows it: without user, password, query and fragment, which may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path or '/'}"


@lru_cache(maxsize=4096)
def endpoint_id(tenant: str, url: str) -> str:
    """Return the id of the tenant's endpoint, made from both, so that a delivery is written without a lookup."""
    digest = hashlib.sha256(f"{tenant}\n{shown_url(url)}".encode()).digest()
    return "ep_" + base64.b32encode(digest[:15]).decode().lower()
