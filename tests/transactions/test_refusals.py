"""What the functions of the database refuse, as the server does: with the field and what is allowed."""

import json
from typing import Any

import asyncpg
import pytest

from tests.api.serving import serving
from tests.transactions.submitting import Connection, submit, submit_task

REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("command: must not be blank", (" ",), {}),
    ("command: must not be blank", (None,), {}),
    ("command: .*no [*]", ("pack*",), {}),
    ("command: .*at most 200 printable", ("p" * 201,), {}),
    ("command: .*printable", ("p\nq",), {}),
    ("command: .*ASCII", ("Größe",), {}),
    ("payload: is required", ("pack", "null"), {}),
    ("payload: is required", ("pack", None), {}),
    ("payload: is over 2000 bytes", ("pack", f'"{"x" * 2000}"'), {}),
    ('options: there is no "prority"; allowed are priority, ', (), {"prority": 1}),
    ("priority: must be a number", (), {"priority": "1"}),
    ("priority: must be a whole number", (), {"priority": 1.5}),
    ("max_attempts: must be a number", (), {"max_attempts": []}),
    ("max_attempts: must be a number from", (), {"max_attempts": 10**30}),
    ("delay_seconds: must be a number from 0 to 315360000", (), {"delay_seconds": -1}),
    ("delay_seconds: must be a number", (), {"delay_seconds": 1e300}),
    ("run_at: must be an instant", (), {"run_at": "tomorrow"}),
    ("run_at: must be an instant", (), {"run_at": "2030-01-01T00:00:00"}),
    ("run_at: must be an instant", (), {"run_at": "2030-02-30T00:00:00Z"}),
    ("run_at: must be an instant .* before the year 9000", (), {"run_at": "9999-01-01T00:00:00Z"}),
    ("run_at: must be a text", (), {"run_at": 1}),
    ("idempotency_key: .*at most 255", (), {"idempotency_key": "k" * 256}),
    ("idempotency_key: .*printable", (), {"idempotency_key": "a\tb"}),
    ("unique_key: must be a text", (), {"unique_key": 7}),
    ("tenant: .*at most 63", (), {"tenant": "t" * 64}),
    ("tenant: must be 2 to 63 lower-case", (), {"tenant": "Acme"}),
    *[
        ("webhook: must be http", (), {"webhook": url})
        for url in ("ftp://a/", "http://", "http://u@a/", "http://a/#f", "http://a b/", "http://a\\b/", "http://-a/", "http://a..b/",
                    "http://127.1/", "http://0x7f.0.0.1/", "http://127.0.0.01/", "http://256.0.0.1/", "http://1/", "http://a:0/", "http://a:70000/",
                    "http://[::1]/", "javascript:x")
    ],
    ("webhook: .*at most 2048", (), {"webhook": "http://a/" + "x" * 2048}),
]  # fmt: skip


REFUSED_JOBS: list[tuple[str, str, dict[str, Any]]] = [
    ("queue: ", "*", {}),
    ("queue: ", "a\x07", {}),
    ("queue: ", "", {}),
    ("priority: must be a number from 0 to 9", "q", {"priority": 10}),
    ("max_attempts: .* from 1 to 1000", "q", {"max_attempts": 0}),
    ("deadline_seconds: ", "q", {"deadline_seconds": 0}),
    ("on: must be a list of states", "q", {"on": ["done"]}),
    ("on: must be a list of states", "q", {"on": "queued"}),
    ("metadata: must be a JSON object", "q", {"metadata": []}),
    ("metadata: must be a JSON object of at most", "q", {"metadata": {"a": "x" * 17_000}}),
]


async def test_what_is_refused_names_the_field_and_what_is_allowed(postgres_url: str) -> None:
    async with serving(postgres_url, {"server.max_body_bytes": 2000}):
        connection = await asyncpg.connect(postgres_url)
        for sentence, given, options in REFUSED:
            with pytest.raises(asyncpg.InvalidParameterValueError, match=f"^{sentence}"):
                await submit_task(connection, *(given or ("pack",)), **options)
        with pytest.raises(asyncpg.InvalidParameterValueError, match=r"^options: must be a JSON object"):
            await connection.fetchval("SELECT chargehand_submit_task('pack', '{}', '[]')")
        for sentence, queue, given_options in REFUSED_JOBS:
            with pytest.raises(asyncpg.InvalidParameterValueError, match=f"^{sentence}"):
                await submit(connection, "job", queue, "{}", **given_options)
        assert await connection.fetchval("SELECT COUNT(*) FROM jobs") == 0
        await connection.close()


async def test_what_is_nested_too_deep_is_refused_and_what_is_only_long_is_not(producer: Connection) -> None:
    def nested(depth: int) -> str:
        return '{"[": ' * depth + '"]"' + "}" * depth

    for payload in (nested(900), json.dumps([{"n": [number]} for number in range(2000)]), json.dumps('"[{\\' * 2000)):
        await submit_task(producer, "pack", payload)
    for payload in (nested(901), "[" * 1500 + "]" * 1500):
        with pytest.raises(asyncpg.InvalidParameterValueError, match=r"^payload: is nested more than 900 deep"):
            await submit_task(producer, "pack", payload)
    options = f'{{"metadata": {nested(901)}}}'
    with pytest.raises(asyncpg.InvalidParameterValueError, match=r"^metadata: is nested"):
        await producer.fetchval("SELECT chargehand_submit_job('q', '1', $1)", options)


async def test_before_any_server_has_told_its_settings_nothing_is_taken(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="no server has told"):
        await submit_task(connection)
    await connection.close()


async def test_a_server_with_other_settings_tells_them_at_its_start(postgres_url: str) -> None:
    for attempts in (3, 4):
        async with serving(postgres_url, {"tasks.max_attempts": attempts}) as server:
            connection = await asyncpg.connect(postgres_url)
            job = await server.engine.get(await submit_task(connection), "default")
            assert job.max_attempts == attempts
            await connection.close()
