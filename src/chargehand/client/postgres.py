"""Submit in the caller's own transaction, where Chargehand's PostgreSQL is also the caller's.

    with psycopg.connect(url) as connection:  # commits at the end of the block, or rolls back
        connection.execute("INSERT INTO orders …")
        submit_task(connection, "pack", {"order": 17})

The job is there when the transaction commits, and a worker that waits is woken at that moment. If it does not commit, there never
was a job. No server is called, and nothing here imports a driver: connections are told apart by what they can do.
"""

from datetime import datetime
from typing import Any, TypedDict, Unpack, overload

import msgspec

from chargehand.client.transport.calls import instant
from chargehand.client.types.tasks import NewTask


class Options(TypedDict, total=False):
    """What both kinds of jobs may be given."""

    priority: int
    max_attempts: int
    run_at: datetime | str
    delay_seconds: float
    idempotency_key: str
    limit_key: str
    webhook: str
    metadata: dict[str, Any]
    traceparent: str
    tracestate: str
    tenant: str
    schema: (
        str  # where Chargehand's tables are; left out: the first of the connection's search_path that has the function
    )


class SubmitTaskOptions(Options, total=False):
    unique_key: str


class SubmitJobOptions(Options, total=False):
    deadline_seconds: float
    on: list[str]  # the states of which the webhook is told; left out: all


@overload
def submit_task(connection: Any, task: NewTask, /, **options: Unpack[SubmitTaskOptions]) -> str: ...
@overload
def submit_task(connection: Any, command: str, payload: Any, **options: Unpack[SubmitTaskOptions]) -> str: ...


def submit_task(connection: Any, *task: Any, **options: Any) -> str:
    """Submit a task within the transaction of the connection, which is of psycopg, Django or SQLAlchemy (a Session too), and return
    the task's id. In place of the command and the payload, what `new_task` of a declared task returns."""
    return _run(connection, *_task(*task, **options))


def submit_job(connection: Any, queue: str, payload: Any, **options: Unpack[SubmitJobOptions]) -> str:
    """The same for a job of the engine's own."""
    return _run(connection, *_call("chargehand_submit_job", queue, payload, dict(options)))


@overload
async def submit_task_async(connection: Any, task: NewTask, /, **options: Unpack[SubmitTaskOptions]) -> str: ...
@overload
async def submit_task_async(
    connection: Any, command: str, payload: Any, **options: Unpack[SubmitTaskOptions]
) -> str: ...


async def submit_task_async(connection: Any, *task: Any, **options: Any) -> str:
    """The same for a connection of asyncpg, of psycopg (AsyncConnection) or of SQLAlchemy (AsyncConnection, AsyncSession)."""
    return await _run_async(connection, *_task(*task, **options))


async def submit_job_async(connection: Any, queue: str, payload: Any, **options: Unpack[SubmitJobOptions]) -> str:
    return await _run_async(connection, *_call("chargehand_submit_job", queue, payload, dict(options)))


Values = tuple[str, str, str]


def _task(command: str | NewTask, payload: Any = msgspec.UNSET, **options: Any) -> tuple[str, Values]:
    function = "chargehand_submit_task"
    if isinstance(command, NewTask):
        said = {name: value for name, value in msgspec.structs.asdict(command).items() if value}
        said.pop("payload", None)
        return _call(function, said.pop("command"), command.payload, said | options)
    if payload is msgspec.UNSET:
        raise TypeError("payload: is missing")
    return _call(function, command, payload, options)


def _call(function: str, name: str, payload: Any, options: dict[str, Any]) -> tuple[str, Values]:
    """Return the function with its schema, and what it is called with."""
    if schema := options.pop("schema", ""):
        function = f'"{_quoted(schema)}".{function}'
    if "run_at" in options:
        options["run_at"] = instant(options["run_at"])
    return function, (name, _json(payload), _json(options))


def _quoted(schema: str) -> str:
    if not schema.isidentifier():
        raise ValueError(
            f"schema: must have letters, digits and _ only, and not begin with a digit, not {schema[:50]!r}"
        )
    return schema


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _statement(function: str, *places: str) -> str:
    # As text: what a driver was told to do with values of the type JSON does not matter then.
    name, payload, options = places
    return f"SELECT {function}({name}, CAST(CAST({payload} AS text) AS json), CAST(CAST({options} AS text) AS json))"


def _run(connection: Any, function: str, values: Values) -> str:
    if hasattr(connection, "scalar"):
        return str(connection.scalar(*_for_sqlalchemy(function, values)))
    with _cursor(connection) as cursor:
        cursor.execute(_statement(function, "%s", "%s", "%s"), values)
        return str(cursor.fetchone()[0])


async def _run_async(connection: Any, function: str, values: Values) -> str:
    if hasattr(connection, "scalar"):
        return str(await connection.scalar(*_for_sqlalchemy(function, values)))
    if hasattr(connection, "is_in_transaction"):
        return str(await connection.fetchval(_statement(function, "$1", "$2", "$3"), *values))
    async with _cursor(connection) as cursor:
        await cursor.execute(_statement(function, "%s", "%s", "%s"), values)
        return str((await cursor.fetchone())[0])


def _cursor(connection: Any) -> Any:
    if not hasattr(connection, "cursor"):
        raise TypeError(
            f"connection: must be one connection of a driver or framework named here, not {type(connection)}"
        )
    cursor = connection.cursor()
    if hasattr(cursor, "row_factory"):
        cursor.row_factory = lambda _: tuple  # psycopg's connection may have another
    return cursor


def _for_sqlalchemy(function: str, values: Values) -> tuple[Any, dict[str, str]]:
    from sqlalchemy import text

    names = ("name", "payload", "options")
    return text(_statement(function, *[f":{name}" for name in names])), dict(zip(names, values, strict=True))
