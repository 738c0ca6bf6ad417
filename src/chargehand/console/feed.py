"""A stream of changes for pages: moves of jobs, results of deliveries, targets that become reachable or unreachable.

A line is only a hint: a job's own log is the record. The last lines are kept, so that a page can resume after a lost connection; after
too long a gap it gets a `reset` and must reload everything. There are no lines for changes at other nodes: of those a page learns only
that something changed.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from secrets import token_hex
from typing import Annotated

import msgspec

from chargehand.engine.delivery import Delivery, DeliveryState, Outgoing, Settle, shown_url
from chargehand.engine.hint import Hint
from chargehand.engine.job import rfc3339, topic_of, visible
from chargehand.engine.moves import Moved
from chargehand.errors import TooManyRequests
from chargehand.http.kinds import Kinds
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route
from chargehand.http.sse import Event, send_events

KEPT = 1000
MAX_READERS = 200
PAUSE_SECONDS = 0.25  # lines are sent in bundles, at most four a second, as pages need no more
QUIET = frozenset({"beat"})


class FeedLine(msgspec.Struct, omit_defaults=True):
    """One change. Which fields it has depends on the type."""

    type: Annotated[str, msgspec.Meta(description="job., delivery. or target. and its new state")]
    at: str
    kind: Annotated[str, msgspec.Meta(description="The job's kind, which names its door")] = ""
    job_id: str = ""
    queue: str = ""
    move: str = ""
    topic: str = ""
    attempt: int = 0
    delivery_id: str = ""
    endpoint_id: str = ""
    url: str = ""
    status: int | None = None
    seconds: float = 0.0
    name: str = ""
    message: str = ""


class Bundle(msgspec.Struct):
    lines: list[FeedLine]


class _Settled(msgspec.Struct):
    """The data for the line of a settled delivery; nothing large: neither the job's result nor the receiver's answer."""

    at: int
    kind: str
    state: DeliveryState
    status: int | None
    seconds: float
    reason: str
    delivery: Delivery


class _Kept(msgspec.Struct):
    """A kept change. Its line is created only when it is read, because most of the time there is no reader."""

    number: int
    tenant: str | None  # None: for all tenants
    kind: str  # of the job; "": about no job
    what: Moved | _Settled | FeedLine

    @property
    def line(self) -> FeedLine:
        if isinstance(self.what, FeedLine):
            return self.what
        return _moved(self.what) if isinstance(self.what, Moved) else _settled(self.what)


def _moved(moved: Moved) -> FeedLine:
    return FeedLine(
        f"job.{moved.stage or moved.state}", rfc3339(moved.at), moved.kind, moved.job_id, moved.queue.name, moved.move,
        topic_of(moved.state, moved.stage), moved.attempt,
    )  # fmt: skip


def _settled(settled: _Settled) -> FeedLine:
    delivery = settled.delivery
    state = "retry" if settled.state is DeliveryState.PENDING else str(settled.state)
    return FeedLine(
        f"delivery.{state}", rfc3339(settled.at), settled.kind, delivery.job_id, delivery_id=delivery.id,
        endpoint_id=delivery.endpoint_id, url=shown_url(delivery.url), status=settled.status,
        seconds=settled.seconds, message=settled.reason,
    )  # fmt: skip


_encoder = msgspec.json.Encoder()


class Feed:
    def __init__(self, now: Callable[[], int], kinds: Kinds) -> None:
        self._now = now
        self._kinds = kinds
        self._run = token_hex(4)  # so that numbers of another process are not mistaken for ours
        self._number = 0
        self._kept: deque[_Kept] = deque(maxlen=KEPT)
        self._news: dict[asyncio.Event, str] = {}  # each reader's event -> its tenant
        self._open = True

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/engine/feed", self.follow, "Follow changes, for pages that show them", "jobs:read", "jobs",
                  "Server-sent events with bundles of lines, which are hints, not a record. Resumes after `Last-Event-ID`; `reset` means: reload everything.",
                  headers={"Last-Event-ID": "The last id that was received"}, reply=bytes, reply_media="text/event-stream",
                  errors=(TooManyRequests,)),
        ]  # fmt: skip

    # recording changes --------------------------------------------------------------------------------------------------

    def on_move(self, moved: Moved) -> None:
        if moved.move in QUIET:
            return
        if not visible(moved.state, moved.stage):
            self._wake(moved.tenant)  # callers see no change, but the page's counts do
            return
        self._add(moved.tenant, moved.kind, moved)

    def on_settled(self, settle: Settle, outgoing: Outgoing) -> None:
        delivery, kind = outgoing.delivery, outgoing.job.kind
        settled = _Settled(
            self._now(), kind, settle.state, settle.status, settle.duration_seconds, settle.reason, delivery
        )
        self._add(delivery.tenant, kind, settled)

    def on_target(self, name: str, up: bool, message: str) -> None:
        line = FeedLine(f"target.{'here' if up else 'away'}", rfc3339(self._now()), name=name, message=message)
        self._add(None, "", line)

    def on_hint(self, _hint: Hint) -> None:
        """Another node changed something, of an unknown tenant: wake all readers, without a line."""
        self._wake(None)

    def _add(self, tenant: str | None, kind: str, what: Moved | _Settled | FeedLine) -> None:
        self._number += 1
        self._kept.append(_Kept(self._number, tenant, kind, what))
        self._wake(tenant)

    def _wake(self, tenant: str | None) -> None:
        """Wake this tenant's readers only, so that none learns that other tenants are busy."""
        for news, reader in self._news.items():
            if tenant in (None, reader):
                news.set()

    # readers ------------------------------------------------------------------------------------------------------------

    async def follow(self, req: Request, resp: Response) -> None:
        if len(self._news) >= MAX_READERS:
            raise TooManyRequests(f"the feed already has {MAX_READERS} readers, the maximum", retry_after_seconds=5)
        caller = req.caller
        shown = frozenset(("", *self._kinds.readable(caller)))  # "": lines about targets
        send_events(req, resp, self._bundles(caller.tenant, shown, req.get_header("last-event-id") or ""))

    def close(self) -> None:
        """End all streams, so that they do not delay the server's shutdown; the pages reconnect."""
        self._open = False
        self._wake(None)

    async def _bundles(self, tenant: str, shown: frozenset[str], last_id: str) -> AsyncGenerator[Event, None]:
        news = asyncio.Event()
        self._news[news] = tenant
        try:
            seen = self._seen(last_id)
            if seen is None:
                seen = self._number
                recent = self._lines(tenant, shown, 0)[-50:]
                yield self._event("reset", recent)
            while self._open:
                lines = self._lines(tenant, shown, seen)
                seen = self._number
                if lines or news.is_set():
                    news.clear()
                    yield self._event("lines", lines)
                await asyncio.sleep(PAUSE_SECONDS)
                await news.wait()
        finally:
            del self._news[news]

    def _seen(self, last_id: str) -> int | None:
        """Return the number in an event id, or None if it is unknown or too old."""
        run, _, number = last_id.partition("-")
        if run != self._run or not number.isdecimal() or len(number) > 18:
            return None
        oldest = self._kept[0].number if self._kept else 1
        return int(number) if oldest - 1 <= int(number) <= self._number else None

    def _lines(self, tenant: str, shown: frozenset[str], after: int) -> list[FeedLine]:
        if self._number == after:
            return []
        return [
            kept.line
            for kept in self._kept
            if kept.number > after and kept.tenant in (None, tenant) and kept.kind in shown
        ]

    def _event(self, name: str, lines: list[FeedLine]) -> Event:
        return Event(name, _encoder.encode(Bundle(lines)), f"{self._run}-{self._number}")
