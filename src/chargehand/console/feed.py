"""What happens, as it happens, for pages that show it: moves of jobs, outcomes of deliveries, targets that come and go.

A line is a hint and no record: a job's own log is the truth. The last lines are kept, so that a page whose connection was lost goes
on where it was; one that was away too long is told so, and reads everything anew. Other nodes' lines are not among them: of those
a page hears only that something changed.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from secrets import token_hex
from typing import Annotated

import msgspec

from chargehand.engine.delivery import Delivery, DeliveryState, Outgoing, Settle, shown_url
from chargehand.engine.job import rfc3339, topic_of, visible
from chargehand.engine.moves import Moved
from chargehand.engine.store import Hint
from chargehand.errors import TooManyRequests
from chargehand.http.kinds import Kinds
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route
from chargehand.http.sse import Event, send_events

KEPT = 1000
MAX_READERS = 200
PAUSE_SECONDS = 0.25  # lines are sent in bundles: a page cannot show more than four changes a second anyway
QUIET = frozenset({"beat"})


class Line(msgspec.Struct, omit_defaults=True):
    """One thing that happened. Which members there are depends on the type."""

    type: Annotated[str, msgspec.Meta(description="job., delivery. or target. and what it is now")]
    at: str
    kind: Annotated[str, msgspec.Meta(description="Of the job: which door made it")] = ""
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
    lines: list[Line]


class _Told(msgspec.Struct):
    """What the line of a delivery that was settled is made of: nothing large, neither the job's result nor the receiver's answer."""

    at: int
    kind: str
    state: DeliveryState
    status: int | None
    seconds: float
    reason: str
    delivery: Delivery


class _Kept(msgspec.Struct):
    """Lines are made for those who read them: most of the time nobody does."""

    number: int
    tenant: str | None  # None: everybody's business
    kind: str  # of the job; none: about no job
    what: Moved | _Told | Line

    @property
    def line(self) -> Line:
        if isinstance(self.what, Line):
            return self.what
        return _moved(self.what) if isinstance(self.what, Moved) else _told(self.what)


def _moved(moved: Moved) -> Line:
    return Line(
        f"job.{moved.stage or moved.state}", rfc3339(moved.at), moved.kind, moved.job_id, moved.queue, moved.move,
        topic_of(moved.state, moved.stage), moved.attempt,
    )  # fmt: skip


def _told(told: _Told) -> Line:
    delivery = told.delivery
    state = "retry" if told.state is DeliveryState.PENDING else str(told.state)
    return Line(
        f"delivery.{state}", rfc3339(told.at), told.kind, delivery.job_id, delivery_id=delivery.id,
        endpoint_id=delivery.endpoint_id, url=shown_url(delivery.url), status=told.status,
        seconds=told.seconds, message=told.reason,
    )  # fmt: skip


_encoder = msgspec.json.Encoder()


class Feed:
    def __init__(self, now: Callable[[], int], kinds: Kinds) -> None:
        self._now = now
        self._kinds = kinds
        self._run = token_hex(4)  # numbers of another life of this process mean nothing here
        self._number = 0
        self._kept: deque[_Kept] = deque(maxlen=KEPT)
        self._news: dict[asyncio.Event, str] = {}  # of each reader -> whose it is
        self._open = True

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/engine/feed", self.follow, "Follow what happens, for pages that show it", "jobs:read", "jobs",
                  "Server-sent events: bundles of lines, hints and no record. Takes up after `Last-Event-ID`; `reset` means: read everything anew.",
                  headers={"Last-Event-ID": "The last id that was seen"}, reply=bytes, reply_media="text/event-stream",
                  errors=(TooManyRequests,)),
        ]  # fmt: skip

    # what happens -------------------------------------------------------------------------------------------------------

    def on_move(self, moved: Moved) -> None:
        if moved.move in QUIET:
            return
        if not visible(moved.state, moved.stage):
            self._wake(moved.tenant)  # callers see no change, but a page that counts does
            return
        self._add(moved.tenant, moved.kind, moved)

    def on_settled(self, settle: Settle, outgoing: Outgoing) -> None:
        delivery, kind = outgoing.delivery, outgoing.job.kind
        told = _Told(self._now(), kind, settle.state, settle.status, settle.duration_seconds, settle.reason, delivery)
        self._add(delivery.tenant, kind, told)

    def on_target(self, name: str, up: bool, message: str) -> None:
        line = Line(f"target.{'here' if up else 'away'}", rfc3339(self._now()), name=name, message=message)
        self._add(None, "", line)

    def on_hint(self, _hint: Hint) -> None:
        """Another node did something, and does not say for whom: no line, but a reason to look."""
        self._wake(None)

    def _add(self, tenant: str | None, kind: str, what: Moved | _Told | Line) -> None:
        self._number += 1
        self._kept.append(_Kept(self._number, tenant, kind, what))
        self._wake(tenant)

    def _wake(self, tenant: str | None) -> None:
        """Those whom it concerns: that others are busy is nobody's business."""
        for news, reader in self._news.items():
            if tenant in (None, reader):
                news.set()

    # whoever reads ------------------------------------------------------------------------------------------------------

    async def follow(self, req: Request, resp: Response) -> None:
        if len(self._news) >= MAX_READERS:
            raise TooManyRequests("too many pages follow what happens here", retry_after_seconds=5)
        caller = req.caller
        shown = frozenset(("", *self._kinds.readable(caller)))  # a target's lines are about no job
        send_events(req, resp, self._bundles(caller.tenant, shown, req.get_header("last-event-id") or ""))

    def close(self) -> None:
        """The server stops: a page that follows must not hold it up. It comes back to whoever answers then."""
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
        """None: unknown, or too long ago."""
        run, _, number = last_id.partition("-")
        if run != self._run or not number.isdecimal() or len(number) > 18:
            return None
        oldest = self._kept[0].number if self._kept else 1
        return int(number) if oldest - 1 <= int(number) <= self._number else None

    def _lines(self, tenant: str, shown: frozenset[str], after: int) -> list[Line]:
        if self._number == after:
            return []
        return [
            kept.line
            for kept in self._kept
            if kept.number > after and kept.tenant in (None, tenant) and kept.kind in shown
        ]

    def _event(self, name: str, lines: list[Line]) -> Event:
        return Event(name, _encoder.encode(Bundle(lines)), f"{self._run}-{self._number}")
