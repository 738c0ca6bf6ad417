from collections.abc import AsyncIterator
from typing import Any

import pytest

from chargehand.app import Server
from tests.api.serving import Api, serving, talking
from tests.webhooks.receiver import Receiver, receiving


@pytest.fixture
def settings() -> dict[str, Any]:
    """Tests that need other settings override this fixture."""
    return {}


@pytest.fixture
async def server(store_url: str, settings: dict[str, Any]) -> AsyncIterator[Server]:
    async with serving(store_url, settings) as running:
        yield running


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Api]:
    async with talking(server) as client:
        yield client


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened
