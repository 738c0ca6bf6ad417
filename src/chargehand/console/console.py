"""Connects the console's parts with the engine and the outbox."""

import asyncio

from chargehand.console.assets import Assets
from chargehand.console.feed import Feed
from chargehand.console.minutes import Minutes
from chargehand.console.overview import Overviews
from chargehand.engine.engine import Engine
from chargehand.errors import StoreError
from chargehand.http.kinds import Kinds
from chargehand.http.route import Route
from chargehand.observability.logs import get_logger
from chargehand.webhooks.outbound import Outbox

SAMPLE_SECONDS = 30.0

log = get_logger(__name__)


class Console:
    def __init__(self, engine: Engine, outbox: Outbox, doors: tuple[str, ...], kinds: Kinds, *, auth: bool) -> None:
        self.feed = Feed(engine.now, kinds)
        self._minutes = Minutes(engine.records, engine.new_id(), engine.now)
        self._overviews = Overviews(engine, outbox, self._minutes, doors, kinds, auth=auth)
        self._assets = Assets()
        for listener in (self.feed, self._minutes):
            engine.on_move(listener.on_move)
            outbox.on_settled(listener.on_settled)
        engine.on_hint(self.feed.on_hint)

    def routes(self) -> list[Route]:
        return [*self._overviews.routes(), *self.feed.routes(), *self._assets.routes()]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._minutes.run())
            group.create_task(self._sample())

    async def _sample(self) -> None:
        while True:
            try:
                await self._overviews.sample()
            except StoreError as error:
                log.warning("the queues could not be counted; will try again", error=str(error))
            await asyncio.sleep(SAMPLE_SECONDS)
