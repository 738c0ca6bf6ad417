"""What all tests that kill processes share."""

import os
from random import Random, randrange

import pytest


@pytest.fixture
def random() -> Random:
    """The same blows again: set CHARGEHAND_CHAOS_SEED to what a failed run printed."""
    seed = int(os.environ.get("CHARGEHAND_CHAOS_SEED", randrange(1_000_000)))
    print(f"CHARGEHAND_CHAOS_SEED={seed}")
    return Random(seed)
