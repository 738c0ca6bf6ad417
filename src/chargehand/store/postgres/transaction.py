"""A transaction in PostgreSQL, and the statements that operations of several kinds need."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from chargehand.engine.announce import NewDelivery
from chargehand.engine.delivery import shown_url
from chargehand.engine.job import Job
from chargehand.store.postgres.connecting import Connection
from chargehand.store.queries import Query
from chargehand.store.steps import Doing, OwnWork, T, no_work

SILENT_JOBS = 100_000

_encoder = msgspec.json.Encoder()


def as_json(rows: Sequence[Mapping[str, Any]]) -> str:
    return _encoder.encode(rows).decode()


class NumberedBytes(list[bytes]):
    """Bytes that travel beside rows of JSON, which have their numbers."""

    def number(self, value: bytes | None) -> int | None:
        if value is None:
            return None
        self.append(value)
        return len(self)


def delivery_rows(deliveries: Iterable[NewDelivery]) -> str:
    return as_json([each._asdict() | {"shown_url": shown_url(each.url)} for each in deliveries])


class Silent:
    """Jobs claimed here that report to nobody and are no steps of flows: nothing follows when they move, so the move is one statement.

    Neither ever changes, so this can be incomplete but never wrong.
    """

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def note(self, jobs: Iterable[Job]) -> None:
        self._ids |= {job.id: None for job in jobs if not job.reports and job.flow is None}
        while len(self._ids) > SILENT_JOBS:
            del self._ids[next(iter(self._ids))]

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._ids

    def forget(self, job_id: str) -> None:
        self._ids.pop(job_id, None)


class Transaction:
    def __init__(
        self,
        connection: Connection,
        queries: dict[str, Query],
        now: int | None,
        silent: Silent,
        heard: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._queries = queries
        self._now = now
        self.silent = silent
        self._heard = heard  # called with each answer of the database

    @contextlib.asynccontextmanager
    async def atomic(self) -> AsyncIterator[None]:
        """Begin a transaction, unless one has begun. Whoever runs one statement needs none."""
        if self._connection.is_in_transaction():
            yield
        else:
            async with self._connection.transaction():
                yield

    @contextlib.asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Undo the block on an error; keep the rest of the transaction."""
        async with self._connection.transaction():
            yield

    async def fetch(self, query_name: str, /, **values: Any) -> Sequence[Any]:
        query = self._queries[query_name]
        rows = await self._connection.fetch(query.sql, *query.bind(now=self._now, **values))
        self._heard()
        return rows

    async def run(self, steps: Doing[T], do: Callable[[OwnWork], Awaitable[Any]] = no_work) -> T:
        """Run an operation that both databases apply alike; return its answer."""
        try:
            asked = next(steps)
            while True:
                if isinstance(asked, OwnWork):
                    asked = steps.send(await do(asked))
                else:
                    name, values = asked
                    asked = steps.send(await self.fetch(name, **values))
        except StopIteration as ended:
            return cast(T, ended.value)

    async def deliver(self, deliveries: Sequence[NewDelivery]) -> None:
        if deliveries:
            await self.fetch("insert_deliveries", deliveries=delivery_rows(deliveries))
