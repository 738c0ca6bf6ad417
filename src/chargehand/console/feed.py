"""What happens, as it happens, for pages that show it: moves of jobs, outcomes of deliveries, targets that come and go.

A line is a hint and no record: a job's own log is the truth. The last lines are kept, so that a page whose connection was lost goes
on where it was; one that was away too long is told so, and reads everything anew. Other nodes' lines are not among them: of those
a page hears only that something changed.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from secrets import token_hex
from typing import Annotated, NamedTuple

import msgspec

from chargehand.engine.delivery import DeliveryState, Outgoing, Settle, shown_url
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


class _Kept(NamedTuple):
    number: int
    tenant: str | None  # None: everybody's business
    kind: str  # of the job
    what: Line | Moved  # most moves are read by no page: a line is made of those that are


def _line(what: Line | Moved) -> Line:
    if isinstance(what, Line):
        return what
    return Line(
        f"job.{what.stage or what.state}", rfc3339(what.at), what.kind, what.job_id, what.queue, what.move,
        topic_of(what.state, what.stage), what.attempt,
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
        self._add(moved.tenant, moved)

    def on_settled(self, settle: Settle, outgoing: Outgoing) -> None:
        delivery = outgoing.delivery
        state = "retry" if settle.state is DeliveryState.PENDING else str(settle.state)
        self._add(
            delivery.tenant,
            Line(
                f"delivery.{state}", rfc3339(self._now()), outgoing.job.kind, delivery.job_id, delivery_id=delivery.id,
                endpoint_id=delivery.endpoint_id, url=shown_url(delivery.url), status=settle.status,
                seconds=settle.duration_seconds, message=settle.reason,
            ),
        )  # fmt: skip

    def on_target(self, name: str, up: bool, message: str) -> None:
        self._add(None, Line(f"target.{'here' if up else 'away'}", rfc3339(self._now()), name=name, message=message))

    def on_hint(self, _hint: Hint) -> None:
        """Another node did something, and does not say for whom: no line, but a reason to look."""
        self._wake(None)

    def _add(self, tenant: str | None, what: Line | Moved) -> None:
        self._number += 1
        self._kept.append(_Kept(self._number, tenant, what.kind, what))
        if self._news:
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
        send_events(req, resp, self._bundles(req, caller.tenant, shown, req.get_header("last-event-id") or ""))

    def close(self) -> None:
        """The server stops: a page that follows must not hold it up. It comes back to whoever answers then."""
        self._open = False
        self._wake(None)

    async def _bundles(
        self, req: Request, tenant: str, shown: frozenset[str], last_id: str
    ) -> AsyncGenerator[Event, None]:
        news = asyncio.Event()
        self._news[news] = tenant
        leaving = req.leaving()
        leaving.add_done_callback(lambda _: news.set())
        try:
            seen = self._seen(last_id)
            if seen is None:
                seen = self._number
                recent = self._lines(tenant, shown, 0)[-50:]
                yield self._event("reset", recent)
            while self._open and not leaving.done():
                lines = self._lines(tenant, shown, seen)
                seen = self._number
                if lines or news.is_set():
                    news.clear()
                    yield self._event("lines", lines)
                await asyncio.sleep(PAUSE_SECONDS)
                await news.wait()
        finally:
            leaving.cancel()
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
            _line(kept.what)
            for kept in self._kept
            if kept.number > after and kept.tenant in (None, tenant) and kept.kind in shown
        ]

    def _event(self, name: str, lines: list[Line]) -> Event:
        return Event(name, _encoder.encode(Bundle(lines)), f"{self._run}-{self._number}")
