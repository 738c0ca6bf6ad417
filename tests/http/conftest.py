import asyncio
from collections.abc import Iterator

import pytest
import uvloop

from tests.http.serving import Handlers, Running


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    running = Running(request.param)
    yield running
    running.stop()


@pytest.fixture
def handlers() -> Iterator[Handlers]:
    handlers = Handlers()
    yield handlers
    handlers.released.set()
