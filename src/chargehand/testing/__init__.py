"""A real server for your tests, in a temporary folder. In the `conftest.py` at the root of your tests:

    pytest_plugins = ["chargehand.testing"]

Then ask for the fixture `chargehand_server`: `url`, a `client`, and a `receiver` of webhooks to assert on. Or for `chargehand_eager`, with
which the tasks of an app run where they are sent, and need no server.

It is no entry point, which pytest would load in every run of an environment with Chargehand installed, rewriting the assertions of the
whole package.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from chargehand.client import App
from chargehand.testing.receiver import Received, Receiver
from chargehand.testing.server import ChargehandServer

__all__ = ["ChargehandServer", "Received", "Receiver", "chargehand_eager", "chargehand_server", "chargehand_settings"]


@pytest.fixture
def chargehand_settings() -> dict[str, Any]:
    """Settings for `chargehand_server`, such as {"tasks.max_attempts": 1}. Override it in a module or a conftest.py."""
    return {}


@pytest.fixture
def chargehand_server(
    tmp_path_factory: pytest.TempPathFactory, chargehand_settings: dict[str, Any]
) -> Iterator[ChargehandServer]:
    """A server that is ready, for one test. `ChargehandServer` itself is for other lifetimes."""
    with ChargehandServer(tmp_path_factory.mktemp("chargehand"), chargehand_settings) as server:
        yield server


@pytest.fixture
def chargehand_eager() -> Iterator[Callable[[App], None]]:
    """`chargehand_eager(app)`: until the end of the test, the app's tasks run where they are sent."""
    with ExitStack() as until_the_end:

        def make_eager(app: App) -> None:
            until_the_end.enter_context(app.eager())

        yield make_eager
