"""A transaction in PostgreSQL, and the statements that operations of several kinds need."""

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from chargehand.engine.announce import NewDelivery
from chargehand.engine.delivery import shown_url
from chargehand.store.operations import Answer
from chargehand.store.queries import Query
from chargehand.store.steps import Steps

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"


def arrays(values: Sequence[object], *names: str) -> dict[str, list[Any]]:
    """Return an attribute of all values as an array, for each name, under the plural that the statements use."""
    return {f"{name}s": [getattr(value, name) for value in values] for name in names}


class Transaction:
    def __init__(self, connection: Connection, queries: dict[str, Query], now: int | None) -> None:
        self._connection = connection
        self._queries = queries
        self._now = now

    async def fetch(self, query_name: str, /, **values: Any) -> Sequence[Any]:
        query = self._queries[query_name]
        return await self._connection.fetch(query.sql, *query.bind(now=self._now, **values))

    async def run(self, steps: Steps) -> Answer:
        """Run the statements of an operation that both databases apply alike; return its answer."""
        try:
            name, values = next(steps)
            while True:
                name, values = steps.send(await self.fetch(name, **values))
        except StopIteration as ended:
            return cast(Answer, ended.value)

    async def deliver(self, deliveries: Sequence[NewDelivery]) -> None:
        if not deliveries:
            return
        endpoints = {d.endpoint_id: d for d in deliveries}
        await self.fetch(
            "ensure_endpoints",
            ids=list(endpoints),
            tenants=[d.tenant for d in endpoints.values()],
            urls=[shown_url(d.url) for d in endpoints.values()],
        )
        columns = [list(column) for column in zip(*deliveries, strict=True)]
        names = ("ids", "tenants", "job_ids", "seqs", "endpoint_ids", "urls", "dialects")
        await self.fetch("insert_deliveries", **dict(zip(names, columns, strict=True)))
