"""Idempotency keys and unique keys of tasks that are submitted within a transaction."""

import asyncio
from typing import Any

import asyncpg
import pytest

from tests.api.serving import Api
from tests.store.given import until_held_up
from tests.transactions.submitting import Connection, camel, claimed, submit, submit_task, task


async def test_a_key_that_made_a_task_before_is_answered_with_that_task(api: Api, producer: Connection) -> None:
    by_http = await task(api, idempotencyKey="k", uniqueKey="u")
    async with producer.transaction():
        assert await submit_task(producer, idempotency_key="k") == by_http
        assert await submit_task(producer, unique_key="u") == by_http
        assert await submit_task(producer, unique_key="u", idempotency_key="other") == by_http
        assert await submit_task(producer, "another", unique_key="u") != by_http
    own = await submit_task(producer, idempotency_key="own", unique_key="own")
    assert await task(api, idempotencyKey="own") == await task(api, uniqueKey="own") == own
    assert await producer.fetchval("SELECT COUNT(*) FROM jobs") == 3


async def test_a_key_that_is_used_twice_in_a_transaction_makes_one_task(producer: Connection) -> None:
    async with producer.transaction():
        first = await submit_task(producer, idempotency_key="k", unique_key="u")
        assert await submit_task(producer, idempotency_key="k") == first
        assert await submit_task(producer, unique_key="u") == first
    assert [row[0] for row in await producer.fetch("SELECT id FROM jobs")] == [first]


async def test_a_savepoint_that_is_rolled_back_takes_its_tasks_and_their_keys_along(producer: Connection) -> None:
    async with producer.transaction():
        kept = await submit_task(producer)
        savepoint = producer.transaction()
        await savepoint.start()
        await submit_task(producer, idempotency_key="k")
        await savepoint.rollback()
        again = await submit_task(producer, idempotency_key="k")
    assert {row[0] for row in await producer.fetch("SELECT id FROM jobs")} == {kept, again}


@pytest.mark.parametrize("key", ["idempotency_key", "unique_key"])
@pytest.mark.parametrize("commits", [True, False])
async def test_a_second_transaction_with_the_same_key_waits_for_the_end_of_the_first(
    producer: Connection, rival: Connection, key: str, commits: bool
) -> None:
    transaction = producer.transaction()
    await transaction.start()
    first = await submit_task(producer, **{key: "k"})
    second = asyncio.create_task(submit_task(rival, **{key: "k"}))
    await until_held_up(producer, second)
    assert not second.done()
    await (transaction.commit() if commits else transaction.rollback())
    assert (await second == first) == commits
    assert await producer.fetchval("SELECT COUNT(*) FROM jobs") == 1


@pytest.mark.parametrize("key", ["idempotency_key", "unique_key"])
async def test_a_server_does_not_wait_for_a_producer_and_the_producer_repeats_its_transaction(
    api: Api, producer: Connection, key: str
) -> None:
    transaction = producer.transaction()
    await transaction.start()
    await submit_task(producer, **{key: "k"})
    by_http = await task(api, **{camel(key): "k"})
    with pytest.raises(asyncpg.SerializationError, match=f"{key}: .*repeat the transaction"):
        await transaction.commit()
    assert await submit_task(producer, **{key: "k"}) == by_http
    assert await claimed(api, count=2) == [by_http]


async def test_a_key_of_an_engine_job_with_another_request_is_refused(producer: Connection) -> None:
    first = await submit(producer, "job", "q", '{"a": 1}', idempotency_key="k", priority=1)
    assert await submit(producer, "job", "q", '{"a": 1}', priority=1, idempotency_key="k") == first
    with pytest.raises(asyncpg.InvalidParameterValueError, match=f"idempotency_key: .*another request .job {first}"):
        await submit(producer, "job", "q", '{"a": 2}', idempotency_key="k", priority=1)


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_transaction_that_cannot_see_the_job_of_its_key_is_repeated(
    api: Api, producer: Connection, isolation: Any
) -> None:
    transaction = producer.transaction(isolation=isolation)
    await transaction.start()
    await producer.fetchval("SELECT COUNT(*) FROM jobs")
    await task(api, idempotencyKey="k")
    await submit_task(producer, idempotency_key="k")
    with pytest.raises(asyncpg.SerializationError):
        await transaction.commit()
    async with producer.transaction(isolation=isolation):
        assert await submit_task(producer, idempotency_key="k") == (await claimed(api))[0]
