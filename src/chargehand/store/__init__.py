"""The two stores behind one protocol (`chargehand.engine.store.Store`)."""

from collections.abc import Callable

from chargehand.engine.store import Store
from chargehand.errors import ConfigError

Clock = Callable[[], int]  # microseconds since the epoch; tests give one, production uses the store's own


async def open_store(
    url: str,
    *,
    max_bytes: int = 0,
    pool_size: int = 7,
    group_size: int = 256,
    clock: Clock | None = None,
) -> Store:
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from chargehand.store.sqlite.store import SqliteStore

        return await SqliteStore.open(url, max_bytes=max_bytes, group_size=group_size, clock=clock)
    if scheme in ("postgresql", "postgres"):
        from chargehand.store.postgres.store import PostgresStore

        return await PostgresStore.open(url, pool_size=pool_size, group_size=group_size, clock=clock)
    raise ConfigError(f"store.url: unknown kind of store {scheme!r}; use sqlite:///path/to/file.db or postgresql://…")
