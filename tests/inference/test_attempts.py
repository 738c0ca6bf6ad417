"""An attempt whose store is closed before it ends."""

import asyncio
import gc
from pathlib import Path

import pytest

from chargehand.doors.inference.states import StateWriter
from chargehand.engine.engine import Engine
from chargehand.engine.job import NewJob
from chargehand.engine.moves import RetryPolicy
from chargehand.engine.queue import Queue
from chargehand.engine.runner import Hand
from chargehand.store import open_store


async def test_a_state_that_can_no_longer_be_written_leaves_no_unretrieved_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/jobs.db")
    engine = Engine(store, policy=RetryPolicy(1, 1))
    await engine.submit(NewJob(engine.new_id(), Queue("inference", "default", "m"), b"{}"))
    [job] = await engine.claim((Queue("inference", "default", "m"),), "@somebody", 30)
    states = StateWriter(Hand(engine, job))
    await store.close()
    states.write("loading", "too late")
    writing: asyncio.Task[None] | None = states._writing
    assert writing is not None
    await asyncio.wait({writing})
    del writing, states
    gc.collect()
    assert "never retrieved" not in caplog.text
