"""What many tests of workers need: a server that answers as it is told, and what the client logs."""

import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.client.running_worker import Log
from tests.client.stub_server import Stub, stub


@pytest.fixture
async def server() -> AsyncIterator[Stub]:
    async with stub() as running:
        yield running


@pytest.fixture
def log() -> Iterator[Log]:
    handler = Log()
    logger = logging.getLogger("chargehand.client")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
