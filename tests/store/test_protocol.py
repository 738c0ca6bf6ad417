"""The protocol of a store stays narrow, and both stores have no other methods."""

import inspect

import pytest

from chargehand.engine.store import Store
from chargehand.store.postgres.store import PostgresStore
from chargehand.store.sqlite.store import SqliteStore


def methods(of: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(of, inspect.isfunction) if not name.startswith("_")}


def test_a_store_has_at_most_thirty_methods() -> None:
    assert len(methods(Store)) <= 30


@pytest.mark.parametrize("store", [SqliteStore, PostgresStore])
def test_a_store_has_no_methods_besides_the_protocol(store: type) -> None:
    assert methods(store) == methods(Store)
