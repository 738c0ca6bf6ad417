"""Every periodic job of the server, listed in one function. Each may run on all nodes at once: what it does is guarded."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from chargehand.config import Config
from chargehand.engine.engine import Engine
from chargehand.errors import StoreError
from chargehand.observability.logs import get_logger

log = get_logger(__name__)
LAPSE_SECONDS = 1.0
EXPIRE_SECONDS = 1.0
LIMITS_SECONDS = 5.0


class Chore(NamedTuple):
    name: str
    every_seconds: float
    do: Callable[[], Awaitable[object]]


def chores(engine: Engine, config: Config) -> list[Chore]:
    retention = config.retention

    async def prune() -> None:
        while (count := await engine.prune(retention.finished_seconds, retention.batch)) >= retention.batch:
            log.debug("pruned", jobs=count)

    async def give_up() -> None:
        await engine.give_up_deliveries(config.webhooks.give_up_seconds, retention.batch)

    return [
        Chore("lapsed leases", LAPSE_SECONDS, engine.lapse_all),
        Chore("deadlines", EXPIRE_SECONDS, engine.expire_all),
        Chore("queue limits", LIMITS_SECONDS, engine.refresh_limits),
        Chore("retention", retention.interval_seconds, prune),
        Chore("old deliveries", retention.interval_seconds, give_up),
    ]


async def keep_up(engine: Engine, config: Config, others: Sequence[Chore] = ()) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_look_for_due(engine, config.engine.poll_seconds))
        for chore in (*chores(engine, config), *others):
            group.create_task(_repeat(chore))


async def _repeat(chore: Chore) -> None:
    while True:
        try:
            await chore.do()
        except StoreError as error:
            log.warning("a chore could not be done, it will be tried again", chore=chore.name, error=str(error))
        await asyncio.sleep(chore.every_seconds)


async def _look_for_due(engine: Engine, poll_seconds: float) -> None:
    while True:
        try:
            await engine.look_for_due()
        except StoreError as error:
            log.warning("cannot look for due jobs, will look again", error=str(error))
        await engine.wakeups.pause(poll_seconds, engine.now)
