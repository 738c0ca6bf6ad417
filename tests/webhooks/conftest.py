from collections.abc import AsyncIterator
from typing import Any

import pytest

from chargehand.engine.store import Store
from tests.conftest import Clock
from tests.webhooks.desk import Desk, OpenDesk
from tests.webhooks.receiver import Receiver, receiving


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


@pytest.fixture
async def open_desk(store: Store, clock: Clock) -> AsyncIterator[OpenDesk]:
    """Opens an outbox with these [webhooks] settings, on each of the stores."""
    desks: list[Desk] = []

    def opened(**settings: Any) -> Desk:
        desks.append(Desk(store, clock, **settings))
        return desks[-1]

    yield opened
    for desk in desks:
        await desk.close()
