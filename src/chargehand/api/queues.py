"""Queues: count what is in them, pause them, limit them."""

import re
from typing import Annotated

import msgspec

from chargehand.api.views import Instant, instant
from chargehand.engine.counts import LiveCount
from chargehand.engine.engine import Engine
from chargehand.engine.job import QueueCount, QueueLimits, QueueSettings, Rate, rfc3339
from chargehand.engine.queue import Queue
from chargehand.errors import InvalidField
from chargehand.http.kinds import Kinds
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, decode, read_body, reply

TAG = "queues"
_KIND = re.compile(r"[a-z][a-z0-9-]{0,62}")


class RateOfStarts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most so many starts in any stretch of time of this length."""

    count: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    seconds: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] = 1.0


class QueueView(msgspec.Struct):
    kind: str
    queue: str
    ready: int
    delayed: int
    running: int
    oldest_at: Annotated[Instant | None, msgspec.Meta(description="Since when the oldest ready job is due")]
    paused: bool
    max_running: int | None
    rate: RateOfStarts | None = None
    key_max_running: int | None = None
    key_rate: RateOfStarts | None = None


class AllQueues(msgspec.Struct):
    queues: list[QueueView]
    as_of: Annotated[
        Instant, msgspec.Meta(description="When the jobs were counted; a large count is kept for some seconds")
    ]


class QueueChange(msgspec.Struct, forbid_unknown_fields=True):
    """Sets all of them; a field that is left out goes back to its default."""

    paused: Annotated[bool, msgspec.Meta(description="No more claims; running jobs go on")] = False
    max_running: (
        Annotated[int, msgspec.Meta(ge=1, le=1_000_000, description="Jobs running at once; null: no limit")] | None
    ) = None
    rate: RateOfStarts | None = None
    key_max_running: (
        Annotated[int, msgspec.Meta(ge=1, le=10_000, description="Jobs of each `limit_key` running at once")] | None
    ) = None
    key_rate: RateOfStarts | None = None


_decoder = msgspec.json.Decoder(QueueChange)


class QueuesApi:
    def __init__(self, engine: Engine, kinds: Kinds) -> None:
        self._engine = engine
        self._kinds = kinds

    def routes(self) -> list[Route]:
        # fmt: off
        return [
            Route("GET", "/engine/queues", self.list_queues, "List queues with the number of their jobs", "jobs:read", TAG, reply=AllQueues),
            Route("PUT", "/engine/queues/{kind}/{name:path}", self.set_queue, "Pause, resume or limit a queue", "admin", TAG,
                  request=QueueChange, reply=QueueView),
        ]
        # fmt: on

    async def list_queues(self, req: Request, resp: Response) -> None:
        caller = req.caller
        counted = await self._engine.counts.live()
        views = await self._views(caller.tenant, counted)
        shown = [view for view in views if self._kinds.may_read(caller, view.kind)]
        reply(resp, AllQueues(shown, rfc3339(counted.at)))

    async def set_queue(self, req: Request, resp: Response, kind: str, name: str) -> None:
        if not _KIND.fullmatch(kind):
            raise InvalidField("kind", "must be the kind of a door, such as `job`")
        if not 1 <= len(name) <= 200 or not name.isprintable():
            raise InvalidField("queue", "must have 1 to 200 printable characters")
        asked = decode(_decoder, await read_body(req, 10_000))
        tenant = req.caller.tenant
        limits = QueueLimits(_limit(asked.rate), asked.key_max_running, _limit(asked.key_rate))
        settings = QueueSettings(Queue(kind, tenant, name), asked.paused, asked.max_running, limits)
        await self._engine.set_queue(settings)
        counted = await self._engine.counts.live()
        reply(resp, _view(settings.queue, settings, counted.of(settings.queue)))

    async def _views(self, tenant: str, counted: LiveCount) -> list[QueueView]:
        settings = {s.queue: s for s in await self._engine.jobs.list_queue_settings() if s.queue.tenant == tenant}
        counts = {count.queue: count for count in counted.queues if count.queue.tenant == tenant}
        queues = sorted(settings.keys() | counts.keys())
        return [_view(queue, settings.get(queue), counts.get(queue)) for queue in queues]


def _view(queue: Queue, settings: QueueSettings | None, count: QueueCount | None) -> QueueView:
    settings, count = settings or QueueSettings(queue), count or QueueCount(queue, {}, 0, 0, None)
    return QueueView(
        queue.kind, queue.name, count.ready, count.delayed, count.running, instant(count.oldest_at), settings.paused,
        settings.max_running, _shown(settings.limits.rate), settings.limits.key_max_running, _shown(settings.limits.key_rate),
    )  # fmt: skip


def _limit(rate: RateOfStarts | None) -> Rate | None:
    return None if rate is None else Rate(rate.count, rate.seconds)


def _shown(rate: Rate | None) -> RateOfStarts | None:
    return None if rate is None else RateOfStarts(rate.count, rate.seconds)
