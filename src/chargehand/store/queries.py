"""Load the SQL, which is in files under `-- name: claim_jobs` headings with `:name` parameters.

Both databases get numbered parameters (`?1`, `$1`), so a call binds a tuple. `:now` is special on PostgreSQL: unless a test
gives a time, the database's own clock is used, so that nodes whose clocks differ agree on leases.

Macros keep the files short. `{job j}` is the list of a Job's columns with the alias `j`, in the order of the struct that reads
them. `{each ids as i}` is a list parameter as a table with one column `value`, `{each queue of queues as q}` a list of queues as
one with their four columns: PostgreSQL takes arrays for them, SQLite JSON. `{same j q}` compares the four columns of two tables,
`{same j :}` those of one with parameters. `FROM {rows r(id TEXT, number INTEGER)}` reads the parameter `rows`, a list of mappings: PostgreSQL takes
all of them as a table, made of JSON; SQLite runs the statement for each row, with `r.id` as a parameter. `{among id ids}` tells PostgreSQL which few ids
these rows have.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple

import msgspec

from chargehand.engine.delivery import Delivery, Endpoint, Try
from chargehand.engine.file import File
from chargehand.engine.job import Event, Job
from chargehand.engine.queue import Queue
from chargehand.engine.record import Record

Dialect = Literal["sqlite", "postgres"]

SHARED = ("jobs", "queues", "limits", "outbox", "files", "records", "retention", "schema", "flows")

_HEADING = re.compile(r"^-- (name|part): (\w+)\s*$", re.MULTILINE)
_PART = re.compile(r"\{part (\w+)\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z]\w*)")
_OLDEST = re.compile(r"^-- oldest: (\d+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)
_STATEMENT = re.compile(r"(?:\$\$.*?\$\$|[^;])+", re.DOTALL)  # the body of a function has semicolons of its own
_COLUMNS = re.compile(r"\{(job|event|delivery|endpoint|try|file|record) (\w+)\}")
_EACH = re.compile(r"\{each (\w+) as (\w+)\}")
_EACH_QUEUE = re.compile(r"\{each queue of (\w+) as (\w+)\}")
_ROWS = re.compile(r"\bFROM \{rows (\w+)\(([^)]*)\)\}(\s+CROSS JOIN\b)?")
_AMONG = re.compile(r"\{among (\w+) (\w+)\}")
_SAME = re.compile(r"\{same (\w+) (\w+|:)\}")
_QUEUE = ("kind", "tenant", "queue", "node")  # the columns of a queue
_OF_QUEUES = {f"queues_{column}": attrgetter("name" if column == "queue" else column) for column in _QUEUE}
_STRUCTS: dict[str, tuple[type[msgspec.Struct], int]] = {
    "job": (Job, 2),  # payload and result are columns of other tables
    "event": (Event, 0),
    "delivery": (Delivery, 0),
    "endpoint": (Endpoint, 3),  # its deliveries are counted
    "try": (Try, 0),
    "file": (File, 0),
    "record": (Record, 0),
}
_POSTGRES_NOW = "COALESCE({}::BIGINT, (EXTRACT(EPOCH FROM STATEMENT_TIMESTAMP()) * 1000000)::BIGINT)"


class Query(NamedTuple):
    name: str
    sql: str
    parameters: tuple[str, ...]
    in_order: Callable[[Mapping[str, Any]], tuple[Any, ...]]  # the values by name -> a tuple for the statement
    for_each_row: bool  # the statement runs once for each of its `rows`

    def bind(self, **values: Any) -> tuple[Any, ...]:
        return self.in_order(values)


def columns(queue: Queue) -> dict[str, Any]:
    """The values for `{same j :}`."""
    return {"kind": queue.kind, "tenant": queue.tenant, "queue": queue.name, "node": queue.node}


def queue_from(row: Sequence[Any], at: int = 0) -> Queue:
    """The queue whose four columns begin there."""
    return Queue(row[at], row[at + 1], row[at + 2], row[at + 3])


def _in_order(parameters: tuple[str, ...], lists: frozenset[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    if not _OF_QUEUES.keys().isdisjoint(parameters):
        return lambda values: tuple(
            [[*map(_OF_QUEUES[name], values["queues"])] if name in _OF_QUEUES else values[name] for name in parameters]
        )
    if lists:
        return lambda values: tuple(
            [_json_list(values[name]) if name in lists else values[name] for name in parameters]
        )
    if len(parameters) > 1:
        return itemgetter(*parameters)  # in C: a statement of twenty parameters is bound for every move of a job
    return lambda values: tuple([values[name] for name in parameters])


def _json_list(values: Sequence[str | Queue | Mapping[str, Any]]) -> str:
    return msgspec.json.encode(values).decode()


def load_queries(dialect: Dialect) -> dict[str, Query]:
    """Return the queries of the shared files, overridden by the dialect's own."""
    queries: dict[str, Query] = {}
    parts: dict[str, str] = {}
    for name in (*SHARED, dialect):
        text = (files("chargehand.store") / "sql" / f"{name}.sql").read_text()
        pieces = _HEADING.split(text)[1:]
        for what, heading, body in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            whole = _PART.sub(lambda match: parts[match[1]], body)
            if what == "part":
                parts[heading] = _COMMENT.sub("", whole)
            else:
                queries[heading] = _compile(heading, whole, dialect)
    return queries


def _compile(name: str, body: str, dialect: Dialect) -> Query:
    parameters: list[str] = []

    def number(match: re.Match[str]) -> str:
        parameter = match[1]
        if parameter not in parameters:
            parameters.append(parameter)
        place = parameters.index(parameter) + 1
        if dialect == "sqlite":
            return f"?{place}"
        return _POSTGRES_NOW.format(f"${place}") if parameter == "now" else f"${place}"

    rows = _ROWS.search(body)
    body = _SAME.sub(_same, _COLUMNS.sub(_columns, _COMMENT.sub("", body)))
    each = [name for name, _ in _EACH.findall(body) + _EACH_QUEUE.findall(body)]
    lists = frozenset(each) if dialect == "sqlite" else frozenset({"rows"} if rows else ())
    if rows:
        body = _with_one_row(body, rows) if dialect == "sqlite" else _ROWS.sub(_rows_of_json, body)
    body = _AMONG.sub("TRUE" if dialect == "sqlite" else r"\1 = ANY(:\2::TEXT[])", body)
    body = _EACH_QUEUE.sub(_queues_in_json if dialect == "sqlite" else _queues_in_arrays, body)
    body = _EACH.sub(r"json_each(:\1) AS \2" if dialect == "sqlite" else r"UNNEST(:\1::TEXT[]) AS \2(value)", body)
    # On one line: the drivers find a prepared statement by its text, of which they read every byte each time.
    sql = " ".join(_PARAMETER.sub(number, body).split()).rstrip(";")
    for_each_row = rows is not None and dialect == "sqlite"
    return Query(name, sql, tuple(parameters), _in_order(tuple(parameters), lists), for_each_row)


def _columns(match: re.Match[str]) -> str:
    struct, elsewhere = _STRUCTS[match[1]]
    fields = struct.__struct_fields__
    names = [name for field in fields[: len(fields) - elsewhere] for name in (_QUEUE if field == "queue" else (field,))]
    return ", ".join(f"{match[2]}.{name}" for name in names)


def _queues_in_json(match: re.Match[str]) -> str:
    parts = ", ".join(f"value ->> {place} AS {name}" for place, name in enumerate(_QUEUE))
    return f"(SELECT {parts} FROM json_each(:{match[1]})) AS {match[2]}"  # noqa: S608 - of our own files


def _with_one_row(body: str, rows: re.Match[str]) -> str:
    """Put the row's values where the statement names its columns: a table of JSON costs SQLite more than most statements."""
    return re.sub(rf"\b{rows[1]}\.(\w+)", r":\1", _ROWS.sub(lambda found: "FROM" if found[3] else "", body))


def _rows_of_json(match: re.Match[str]) -> str:
    return f"FROM json_to_recordset(:rows::JSON) AS {match[1]}({match[2]}){match[3] or ''}"


def _queues_in_arrays(match: re.Match[str]) -> str:
    arrays = ", ".join(f":{match[1]}_{name}::TEXT[]" for name in _QUEUE)
    return f"UNNEST({arrays}) AS {match[2]}({', '.join(_QUEUE)})"


def _same(match: re.Match[str]) -> str:
    one, other = match[1], ":" if match[2] == ":" else f"{match[2]}."
    return " AND ".join(f"{one}.{name} = {other}{name}" for name in _QUEUE)


class Migration(NamedTuple):
    version: int
    name: str
    oldest: int  # the oldest version of the schema whose nodes may work once it was applied; its own: no older ones
    statements: tuple[str, ...]

    @property
    def record(self) -> str:
        """Return the name of the query that writes down that it was applied."""
        return "record_migration" if self.oldest == self.version else "record_expansion"


class Schema(NamedTuple):
    """What a database says of its schema."""

    version: int
    oldest: int

    def refusal(self, known: int) -> str:
        """Return why a node that knows the schema up to there may not work on this one; nothing if it may."""
        if known >= self.oldest:
            return ""
        return f"the database is at schema version {self.version}; this version knows up to {known}"


def only_expand(migrations: Sequence[Migration], version: int) -> bool:
    """Say whether all nodes that may work on a schema of this version still may when it was migrated."""
    before = max((each.oldest for each in migrations if each.version <= version), default=0)
    return all(each.oldest <= before for each in migrations)


def load_migrations(dialect: Dialect) -> list[Migration]:
    """Return the migrations for both databases and for this one; the latter have it in their name: `0006_quick_checks.sqlite.sql`."""
    found = []
    for file in (files("chargehand.store") / "sql" / "migrations").iterdir():
        name, _, only = file.name.removesuffix(".sql").partition(".")
        if file.name.endswith(".sql") and only in ("", dialect):
            found.append(_migration(name, file.read_text(), dialect))
    return sorted(found)


def _migration(file_name: str, text: str, dialect: Dialect) -> Migration:
    version, _, name = file_name.partition("_")
    oldest = _OLDEST.search(text)
    text = _COMMENT.sub("", text)
    if dialect == "postgres":
        text = re.sub(r"\bBLOB\b", "BYTEA", text).replace(") WITHOUT ROWID", ")")
    statements = tuple(each.strip() for each in _STATEMENT.findall(text) if each.strip())
    return Migration(int(version), name, int(oldest[1] if oldest else version), statements)
