"""Connects the console's parts with the engine and the outbox."""

from chargehand.console.assets import Assets
from chargehand.console.feed import Feed
from chargehand.console.minutes import WRITE_SECONDS, Minutes
from chargehand.console.overview import Overviews
from chargehand.engine.chores import Chore
from chargehand.engine.engine import Engine
from chargehand.http.kinds import Kinds
from chargehand.http.route import Route
from chargehand.webhooks.outbound import Outbox

SAMPLE_SECONDS = 30.0


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

    def chores(self) -> list[Chore]:
        return [
            Chore("last hour", WRITE_SECONDS, self._minutes.exchange),
            Chore("queue counts", SAMPLE_SECONDS, self._overviews.sample),
        ]
