"""A role that owns a schema and nothing else is enough, and two of them in one database are two Chargehands."""

import secrets
from collections.abc import AsyncIterator

import pytest

from chargehand.engine.reads import JobFilter
from chargehand.errors import StoreError
from chargehand.store import open_store
from chargehand.store.checkup import look
from chargehand.store.postgres.store import PostgresStore
from tests.api.serving import until
from tests.store.given import TENANT, a_report, a_settle, a_take, claimed_ids, move, opened, sql, submit, take_one

# How a role finds its schema: what is done to the role, and what is added to the URL.
WAYS = {
    "by its own name": ("{role}", "", ""),
    "by a setting of the role": ("jobs_{role}", "ALTER ROLE {role} SET search_path = jobs_{role}", ""),
    "by the URL": ("jobs_{role}", "", "&search_path=jobs_{role}"),
    "by options in the URL": ("jobs_{role}", "", "&options=-csearch_path%3Djobs_{role}"),
}
SCHEMAS = "SELECT DISTINCT schemaname FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"


class Role:
    def __init__(self, name: str, way: str, postgres_url: str) -> None:
        self.name = name
        self.schema, self.setting, added = (part.format(role=name) for part in WAYS[way])
        self.url = postgres_url.replace("postgres:@", f"{name}@") + added


@pytest.fixture
async def database(postgres_server: str) -> AsyncIterator[str]:
    """Yield the URL of a new database in which nobody may create anything but its owner."""
    name = f"test_{secrets.token_hex(6)}"
    await sql(postgres_server, f"CREATE DATABASE {name}")
    url = postgres_server.replace("/postgres?", f"/{name}?")
    await sql(url, "REVOKE ALL ON SCHEMA public FROM PUBLIC")
    yield url
    await sql(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def roles(database: str, request: pytest.FixtureRequest) -> AsyncIterator[list[Role]]:
    roles = [Role(f"role_{secrets.token_hex(4)}", request.param, database) for _ in range(2)]
    for role in roles:
        await sql(database, f"CREATE ROLE {role.name} LOGIN")
        await sql(database, f"CREATE SCHEMA {role.schema} AUTHORIZATION {role.name}")
        if role.setting:
            await sql(database, role.setting)
    yield roles
    for role in roles:
        await sql(database, f"DROP OWNED BY {role.name}")
        await sql(database, f"DROP ROLE {role.name}")


@pytest.mark.parametrize("roles", WAYS, indirect=True)
async def test_a_role_that_owns_only_its_schema_does_all_that_a_node_does(roles: list[Role], database: str) -> None:
    role = roles[0]
    async with opened(role.url) as store:
        await submit(store, reports=(a_report(),))
        job = await take_one(store)
        assert await move(store, job, "succeed")
        taken = await store.write(a_take())
        assert len(taken.ids) == 2  # submitted, succeeded
        for delivery_id, lease in zip(taken.ids, taken.leases, strict=True):
            assert await store.write(a_settle(delivery_id, lease))
        await store.check()
    assert (await look(role.url)).newest_job == job.id
    assert await sql(database, SCHEMAS) == [(role.schema,)]


@pytest.mark.parametrize("roles", ["by its own name", "by the URL"], indirect=True)
async def test_two_roles_with_a_schema_each_are_two_chargehands_in_one_database(roles: list[Role]) -> None:
    async with opened(roles[0].url) as mine, opened(roles[0].url) as also_mine, opened(roles[1].url) as theirs:
        heard = {"mine": set[str](), "theirs": set[str]()}
        also_mine.listen(lambda hint: heard["mine"].update(hint.streams))
        theirs.listen(lambda hint: heard["theirs"].update(hint.streams))
        job_id = await submit(mine)
        assert await claimed_ids(theirs) == []
        assert await theirs.list_jobs(JobFilter(TENANT)) == []
        assert await claimed_ids(also_mine) == [job_id]
        assert isinstance(mine, PostgresStore)
        assert isinstance(theirs, PostgresStore)
        assert mine._hints._channel != theirs._hints._channel

        def told() -> bool:
            mine.notify(stream="mine")
            theirs.notify(stream="theirs")
            return heard["mine"] == {"mine"}

        await until(told)
        assert heard["theirs"] == set()


@pytest.mark.parametrize("roles", ["by its own name"], indirect=True)
async def test_a_chargehand_in_public_does_not_stand_in_the_way_of_one_in_a_schema(
    roles: list[Role], database: str
) -> None:
    """With both in the search path, which is PostgreSQL's default."""
    await sql(database, "GRANT USAGE ON SCHEMA public TO PUBLIC")
    async with opened(database) as public:
        job_id = await submit(public)
        async with opened(roles[0].url) as mine:
            assert await claimed_ids(mine) == []
            await submit(mine)
        assert [job.id for job in await public.list_jobs(JobFilter(TENANT))] == [job_id]


@pytest.mark.parametrize("roles", ["by its own name"], indirect=True)
async def test_a_role_without_a_schema_that_it_may_use_is_told_so(roles: list[Role], database: str) -> None:
    for url in (roles[0].url + f"&search_path={roles[1].schema}", roles[0].url + "&search_path=nowhere"):
        with pytest.raises(StoreError, match="schema"):
            await open_store(url)
    assert await sql(database, SCHEMAS) == []
