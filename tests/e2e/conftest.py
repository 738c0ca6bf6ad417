"""Fixtures for tests that kill processes."""

import os
from random import Random, randrange

import pytest


@pytest.fixture
def random() -> Random:
    """To repeat a run, set CHARGEHAND_CHAOS_SEED to what the failed run printed."""
    seed = int(os.environ.get("CHARGEHAND_CHAOS_SEED", randrange(1_000_000)))
    print(f"CHARGEHAND_CHAOS_SEED={seed}")
    return Random(seed)
