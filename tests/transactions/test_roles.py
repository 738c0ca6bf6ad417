"""Which roles of the database may submit, and for whom."""

import secrets
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tests.transactions.submitting import HOOK, Connection, submit_task

OUR_TABLES = """
    SELECT oid::REGCLASS::TEXT FROM pg_class WHERE relnamespace = 'public'::REGNAMESPACE AND relkind IN ('r', 'p')"""
OUR_FUNCTIONS = """
    SELECT oid::REGPROCEDURE::TEXT, has_function_privilege($1, oid, 'EXECUTE') FROM pg_proc WHERE proname LIKE 'chargehand%'"""


class Role:
    def __init__(self, owner: Connection, url: str) -> None:
        self.name = f"shop_{secrets.token_hex(4)}"
        self._owner, self._url = owner, url
        self._open: list[Connection] = []

    async def make(self, *tenants: str, options: str = "LOGIN") -> None:
        await self._owner.execute(f"CREATE ROLE {self.name} {options}")
        await self._owner.execute(
            f"GRANT EXECUTE ON FUNCTION chargehand_submit_task, chargehand_submit_job TO {self.name}"
        )
        for tenant in tenants:
            await self._owner.execute("INSERT INTO producers (role, tenant) VALUES ($1, $2)", self.name, tenant)

    async def connect(self) -> Connection:
        self._open.append(await asyncpg.connect(self._url.replace("postgres:@", f"{self.name}@")))
        return self._open[-1]

    async def drop(self) -> None:
        for connection in self._open:
            await connection.close()
        await self._owner.execute(f"DROP OWNED BY {self.name}")
        await self._owner.execute(f"DROP ROLE {self.name}")


@pytest.fixture
async def shop(producer: Connection, postgres_url: str) -> AsyncIterator[Role]:
    role = Role(producer, postgres_url)
    yield role
    await role.drop()


async def tenant_of(owner: Connection, job_id: str) -> Any:
    return await owner.fetchval("SELECT tenant FROM jobs WHERE id = $1", job_id)


async def test_a_role_submits_for_the_tenant_that_it_is_given_and_for_no_other(
    shop: Role, producer: Connection
) -> None:
    await shop.make("acme")
    role = await shop.connect()
    assert await tenant_of(producer, await submit_task(role, webhook=HOOK, idempotency_key="k")) == "acme"
    assert await tenant_of(producer, await submit_task(role, tenant="acme")) == "acme"
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match=r"tenant: the role .* may not submit for globex"):
        await submit_task(role, tenant="globex")
    await producer.execute("INSERT INTO producers VALUES ($1, 'globex')", shop.name)
    assert await tenant_of(producer, await submit_task(role, tenant="globex")) == "globex"
    with pytest.raises(asyncpg.InvalidParameterValueError, match="tenant: must be one of acme, globex"):
        await submit_task(role)


async def test_a_role_without_a_tenant_submits_nothing(shop: Role) -> None:
    await shop.make()
    role = await shop.connect()
    for options in ({}, {"tenant": "default"}):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match=r"tenant: .*the table producers says who may"):
            await submit_task(role, **options)


async def test_a_member_of_a_role_submits_for_its_tenant(shop: Role, producer: Connection, postgres_url: str) -> None:
    await shop.make("acme", options="NOLOGIN")
    member = Role(producer, postgres_url)
    await producer.execute(f"CREATE ROLE {member.name} LOGIN IN ROLE {shop.name}")
    try:
        assert await tenant_of(producer, await submit_task(await member.connect())) == "acme"
    finally:
        await member.drop()


async def test_the_owner_submits_for_any_tenant(producer: Connection) -> None:
    assert await tenant_of(producer, await submit_task(producer)) == "default"
    assert await tenant_of(producer, await submit_task(producer, tenant="acme")) == "acme"


async def test_a_role_that_may_submit_can_read_and_call_nothing_else(shop: Role, producer: Connection) -> None:
    await shop.make("acme")
    role = await shop.connect()
    await submit_task(role)
    tables = [row[0] for row in await producer.fetch(OUR_TABLES)]
    assert {"jobs", "submissions", "producers", "records"} <= set(tables)
    for table in tables:
        for statement in (f"SELECT 1 FROM {table}", f"DELETE FROM {table}", f"INSERT INTO {table} DEFAULT VALUES"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await role.execute(statement)
    functions = await producer.fetch(OUR_FUNCTIONS, shop.name)
    assert {name.partition("(")[0] for name, allowed in functions if allowed} == {
        "chargehand_submit_task", "chargehand_submit_job"
    }  # fmt: skip
    assert len(functions) > 10


async def test_tables_and_functions_of_a_role_do_not_take_the_place_of_ours(shop: Role, producer: Connection) -> None:
    await shop.make("acme")
    await producer.execute(f"CREATE SCHEMA {shop.name} AUTHORIZATION {shop.name}")
    role = await shop.connect()
    for made in (
        "CREATE TEMP TABLE producers (role TEXT, tenant TEXT)",
        f"INSERT INTO producers VALUES ('{shop.name}', 'globex')",
        "CREATE TEMP TABLE submissions (LIKE producers)",
        "CREATE TEMP TABLE records (kind TEXT, tenant TEXT, name TEXT, body BYTEA)",
        "CREATE FUNCTION convert_to(TEXT, TEXT) RETURNS BYTEA LANGUAGE sql AS 'SELECT NULL::BYTEA'",
        "CREATE FUNCTION chargehand_tenant(JSONB) RETURNS TEXT LANGUAGE sql AS 'SELECT ''globex'''",
    ):
        await role.execute(f"SET search_path = {shop.name}, pg_catalog, public")
        await role.execute(made)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await submit_task(role, tenant="globex")
    assert await tenant_of(producer, await submit_task(role)) == "acme"
    assert await producer.fetchval("SELECT COUNT(*) FROM submissions") == 0
