"""The connection that writes to SQLite, and what belongs to the group that is being committed."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import apsw

from chargehand.engine.announce import NewDelivery
from chargehand.engine.delivery import shown_url
from chargehand.engine.ids import UlidMaker
from chargehand.store.queries import load_queries
from chargehand.store.steps import Doing, OwnWork, T, no_work

Row = tuple[Any, ...]
LARGE = 1 << 20
MAX_KNOWN_ENDPOINTS = 100_000
# The cache forgets the statement that was put back longest ago, and each use puts one back: so it has to hold more than a large group runs
# between two uses of any of its few statements, else that one is prepared again for every group.
PREPARED = 500


def plan_once(connection: apsw.Connection) -> None:
    """Let a statement keep its plan whatever is bound to it. Else SQLite prepares many anew each time, which costs more than they do."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


class Session:
    def __init__(self, path: str, max_bytes: int) -> None:
        self.queries = load_queries("sqlite")
        self.connection = apsw.Connection(path, statementcachesize=PREPARED)
        self.connection.set_busy_timeout(5_000)
        plan_once(self.connection)
        self.new_id = UlidMaker()
        self.now = 0
        self.endpoints: set[str] = set()  # those known to have a row
        self.connection.pragma("journal_mode", "wal")
        self.connection.pragma("synchronous", "full")
        self.connection.pragma("wal_autocheckpoint", 4000)
        self.connection.pragma("journal_size_limit", 64 << 20)
        self.connection.pragma("cache_size", -32_000)
        if max_bytes:
            page_bytes = cast(int, self.connection.pragma("page_size"))
            self.connection.pragma("max_page_count", max(1, max_bytes // page_bytes))

    def transaction(self) -> "_WriteTransaction":
        return _WriteTransaction(self.connection)

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the block on an error; keep the rest of the transaction."""
        try:
            with self.connection:
                yield
        except BaseException:
            self.endpoints.clear()  # what was undone may be among them
            raise

    def one(self, query_name: str, /, **values: Any) -> Row | None:
        query = self.queries[query_name]
        rows = self.connection.execute(query.sql, query.in_order(values)).fetchall()
        return rows[0] if rows else None

    def all(self, query_name: str, /, **values: Any) -> list[Row]:
        query = self.queries[query_name]
        return cast(list[Row], self.connection.execute(query.sql, query.in_order(values)).fetchall())

    def wrote(self, query_name: str, /, **values: Any) -> bool:
        """Run a statement that returns no rows; return whether it changed one."""
        query = self.queries[query_name]
        self.connection.execute(query.sql, query.in_order(values))
        return self.connection.changes() > 0

    def many(self, name: str, rows: Sequence[Row]) -> None:
        if rows:
            self.connection.executemany(self.queries[name].sql, rows)

    def run(self, steps: Doing[T], do: Callable[[OwnWork], Any] = no_work) -> T:
        """Run an operation that both databases apply alike; return its answer."""
        try:
            asked = next(steps)
            while True:
                asked = steps.send(do(asked) if isinstance(asked, OwnWork) else self._rows(*asked))
        except StopIteration as ended:
            return cast(T, ended.value)

    def _rows(self, name: str, values: dict[str, Any]) -> list[Row]:
        query, values = self.queries[name], values | {"now": self.now}
        if not query.for_each_row:
            return cast(list[Row], self.connection.execute(query.sql, query.in_order(values)).fetchall())
        each = [query.in_order(values | row) for row in values["rows"]]
        return cast(list[Row], self.connection.executemany(query.sql, each).fetchall())

    def put_blob(self, query_name: str, column: str, job_id: str, data: bytes) -> None:
        """As one value SQLite would copy it twice, to bind it and to build the row; so a large one goes in by pieces."""
        if len(data) <= LARGE:
            self.one(query_name, job_id=job_id, **{column: data})
            return
        self.one(query_name, job_id=job_id, **{column: apsw.zeroblob(len(data))})
        [(row,)] = self.all(f"row_of_{column}", job_id=job_id)
        view = memoryview(data)
        with self.connection.blob_open("main", f"job_{column}s", column, row, True) as blob:
            for begin in range(0, len(data), LARGE):
                blob.write(view[begin : begin + LARGE])

    def deliver(self, deliveries: Sequence[NewDelivery]) -> None:
        for d in deliveries:
            if d.endpoint_id not in self.endpoints:
                self.one("ensure_endpoint", id=d.endpoint_id, tenant=d.tenant, url=shown_url(d.url), now=self.now)
                if len(self.endpoints) > MAX_KNOWN_ENDPOINTS:
                    self.endpoints.clear()
                self.endpoints.add(d.endpoint_id)
        self.many("insert_delivery", [(*d, self.now) for d in deliveries])


class _WriteTransaction:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK: a failed COMMIT (a full disk) rolls back too."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
