"""Garbage collection in steps: young objects often, all objects less often if there is little garbage."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from chargehand.collector import LONGEST_SECONDS, MUCH, SHORTEST_SECONDS, next_pause, tend_collector
from tests.api.serving import until


class Knot:
    """An object that refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Turn Python's own collector off, so that only ours can free objects."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
async def test_young_garbage_is_collected_while_the_loop_runs() -> None:
    tending = asyncio.create_task(tend_collector())
    try:
        knot = weakref.ref(Knot())
        assert knot() is not None
        await until(lambda: knot() is None)
    finally:
        tending.cancel()


def test_full_collections_are_rarer_if_there_is_little_garbage() -> None:
    pause = SHORTEST_SECONDS
    pauses = [pause := next_pause(pause, 0) for _ in range(10)]
    assert pauses[:2] == [2 * SHORTEST_SECONDS, 4 * SHORTEST_SECONDS]
    assert pauses[-1] == LONGEST_SECONDS
    assert next_pause(LONGEST_SECONDS, MUCH + 1) == LONGEST_SECONDS / 4
    assert next_pause(SHORTEST_SECONDS, MUCH + 1) == SHORTEST_SECONDS
