import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import uvloop

from chargehand.engine.store import Store
from tests.conftest import Clock
from tests.webhooks.desk import Desk, OpenDesk
from tests.webhooks.receiver import Receiver, receiving

ON_BOTH_LOOPS = {"test_exchange.py", "test_pool.py"}  # the tests close to the sockets


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run on asyncio's event loop; tests close to the sockets also on the server's (uvloop)."""
    loops = {"asyncio": asyncio.new_event_loop}
    return {**loops, "uvloop": uvloop.new_event_loop} if item.path.name in ON_BOTH_LOOPS else loops


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


@pytest.fixture
async def open_desk(store: Store, clock: Clock) -> AsyncIterator[OpenDesk]:
    """Open an outbox with the given [webhooks] settings, on each of the stores."""
    desks: list[Desk] = []

    def opened(**settings: Any) -> Desk:
        desks.append(Desk(store, clock, **settings))
        return desks[-1]

    yield opened
    for desk in desks:
        await desk.close()
