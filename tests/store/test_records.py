"""Records: small values of doors. A change succeeds only if its writer saw the last version."""

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

from chargehand.engine.record import DropRecord, PutRecord, Record
from chargehand.engine.records import Records
from chargehand.engine.store import Store
from chargehand.errors import BadRequest
from chargehand.store.queries import load_queries
from tests.conftest import Clock
from tests.store.given import TENANT, opened

KIND = "thing"


def a_put(name: str = "one", body: bytes = b"{}", **fields: Any) -> PutRecord:
    return PutRecord(**{"kind": KIND, "tenant": TENANT, "name": name, "body": body, **fields})


def a_drop(name: str = "one", expected: int | None = None, **fields: Any) -> DropRecord:
    return DropRecord(**{"kind": KIND, "tenant": TENANT, "name": name, "expected": expected, **fields})


async def put(store: Store, name: str = "one", body: bytes = b"{}", **fields: Any) -> Record:
    record = await store.write(a_put(name, body, **fields))
    assert record is not None
    return record


async def test_a_record_is_stored_as_it_was_given(store: Store, clock: Clock) -> None:
    record = await put(store, "größe 💥", b"\x00\xff", due_at=clock.now + 5)
    assert record == Record(
        KIND, TENANT, "größe 💥", b"\x00\xff", 1, clock.now + 5, created_at=clock.now, updated_at=clock.now
    )
    assert await Records(store).get(KIND, TENANT, "größe 💥") == record


async def test_a_change_increments_the_version_and_keeps_the_time_of_creation(store: Store, clock: Clock) -> None:
    made = await put(store, due_at=7)
    clock.advance(1)
    changed = await put(store, body=b"later")
    assert (changed.version, changed.body, changed.due_at) == (2, b"later", None)
    assert (changed.created_at, changed.updated_at) == (made.created_at, clock.now)
    assert await Records(store).get(KIND, TENANT, "one") == changed


async def test_a_missing_record_is_not_found(store: Store) -> None:
    assert await Records(store).get(KIND, TENANT, "one") is None
    assert not await store.write(a_drop())
    assert await Records(store).list(KIND) == await Records(store).list(KIND, TENANT) == []
    assert await Records(store).due(KIND, 10) == []


async def test_a_record_belongs_to_one_kind_and_one_tenant(store: Store) -> None:
    mine = await put(store)
    others = await put(store, tenant="other", body=b"2"), await put(store, kind="else", body=b"3")
    assert [record.version for record in (mine, *others)] == [1, 1, 1]
    assert await store.write(a_drop(tenant="other"))
    assert await Records(store).get(KIND, "other", "one") is None
    assert await Records(store).get(KIND, TENANT, "one") == mine
    assert await Records(store).list("else") == [others[1]]


async def test_a_record_that_must_be_new_is_not_created_twice(store: Store) -> None:
    first = await put(store, body=b"first", expected=0)
    assert await store.write(a_put(body=b"second", expected=0)) is None
    assert await Records(store).get(KIND, TENANT, "one") == first
    assert await store.write(a_drop())
    assert (await put(store, expected=0)).version == 1


async def test_a_change_of_an_old_version_changes_nothing(store: Store) -> None:
    first = await put(store)
    second = await put(store, body=b"second", expected=first.version)
    for expected in (first.version, second.version + 1):
        assert await store.write(a_put(body=b"lost", expected=expected)) is None
        assert not await store.write(a_drop(expected=expected))
    assert await Records(store).get(KIND, TENANT, "one") == second
    assert await store.write(a_put("nothing", expected=1)) is None
    assert await Records(store).get(KIND, TENANT, "nothing") is None
    assert await store.write(a_drop(expected=second.version))
    assert await Records(store).get(KIND, TENANT, "one") is None


@pytest.mark.parametrize("seen", [0, 1])
async def test_only_one_of_many_changes_of_the_same_version_succeeds(store: Store, seen: int) -> None:
    if seen:
        await put(store, expected=0)
    answers = await asyncio.gather(
        *[store.write(a_put(body=str(number).encode(), expected=seen)) for number in range(30)]
    )
    [winner] = [answer for answer in answers if answer is not None]
    assert winner.version == seen + 1
    assert await Records(store).get(KIND, TENANT, "one") == winner


@pytest.mark.parametrize("seen", [0, 1])
async def test_only_one_of_many_changes_on_two_nodes_succeeds(postgres_url: str, seen: int) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        for round_number in range(10):
            name = f"round-{round_number}"
            if seen:
                await put(one, name, expected=0)
            puts = [
                store.write(a_put(name, str(number).encode(), expected=seen))
                for number in range(10)
                for store in (one, two)
            ]
            answers = await asyncio.gather(*puts)
            [winner] = [answer for answer in answers if answer is not None]
            assert await Records(one).get(KIND, TENANT, name) == winner


async def test_many_changes_of_many_records_on_two_nodes_are_all_counted(postgres_url: str) -> None:
    """In opposite orders, which must not end in a deadlock."""
    names = [f"name-{number}" for number in range(20)]
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        await asyncio.gather(*[put(one, name) for name in names], *[put(two, name) for name in reversed(names)])
        records = await Records(one).list(KIND, TENANT)
        assert [(record.name, record.version) for record in records] == [(name, 2) for name in sorted(names)]


async def test_only_one_of_a_change_and_a_removal_of_the_same_version_succeeds(store: Store) -> None:
    for number in range(10):
        name = f"name-{number}"
        await put(store, name)
        changed, dropped = await asyncio.gather(store.write(a_put(name, expected=1)), store.write(a_drop(name, 1)))
        assert (changed is None) == dropped
        assert await Records(store).get(KIND, TENANT, name) == changed


async def test_records_are_listed_by_tenant_and_name(store: Store) -> None:
    for tenant, name in (("b", "one"), ("a", "two"), ("a", "one"), ("a", "three")):
        await put(store, name, tenant=tenant)

    async def listed(*by: Any, **fields: Any) -> list[tuple[str, str]]:
        return [(record.tenant, record.name) for record in await Records(store).list(KIND, *by, **fields)]

    assert await listed() == [("a", "one"), ("a", "three"), ("a", "two"), ("b", "one")]
    assert await listed(limit=2) == [("a", "one"), ("a", "three")]
    assert await listed("a", limit=2) == [("a", "one"), ("a", "three")]
    assert await listed("a", after="three") == [("a", "two")]
    assert await listed("a", after="two") == await listed("c") == []


async def test_due_records_are_listed_longest_due_first(store: Store, clock: Clock) -> None:
    await put(store, "never")
    await put(store, "later", due_at=clock.now + 1)
    await put(store, "now", due_at=clock.now)
    await put(store, "before", due_at=clock.now - 1)
    await put(store, "other", kind="else", due_at=1)
    assert [record.name for record in await Records(store).due(KIND, 10)] == ["before", "now"]
    assert [record.name for record in await Records(store).due(KIND, 1)] == ["before"]
    clock.advance(1)
    assert [record.name for record in await Records(store).due(KIND, 10)] == ["before", "now", "later"]


async def test_records_survive_a_restart(store_url: str) -> None:
    async with opened(store_url) as store:
        record = await put(store, body=b"kept", due_at=3)
    async with opened(store_url) as store:
        assert await Records(store).list(KIND) == await Records(store).due(KIND, 1) == [record]


async def test_an_invalid_record_is_refused_and_the_others_of_its_group_are_stored(store: Store) -> None:
    answers = await asyncio.gather(
        put(store, "good"), store.write(a_put("bad", due_at=2**70)), put(store, "fine"), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [Record, BadRequest, Record]


async def test_finding_records_never_scans_them(tmp_path: Path) -> None:
    """On SQLite, whose plan depends only on the schema."""
    async with opened(f"sqlite:///{tmp_path}/records.db"):
        with apsw.Connection(f"{tmp_path}/records.db") as reader:
            for name in ("get_record", "list_records", "list_records_of_tenant", "list_due_records"):
                query = load_queries("sqlite")[name]
                plan = reader.execute(f"EXPLAIN QUERY PLAN {query.sql}", [None] * len(query.parameters)).fetchall()
                steps = " | ".join(str(step[-1]) for step in plan)
                assert "SEARCH r USING INDEX" in steps, (name, steps)
                assert "TEMP B-TREE" not in steps, (name, steps)
