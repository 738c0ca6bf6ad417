"""The SQL and the programs of docs/transactions.md, run as they are written but for the name of the role."""

import asyncio
import os
import re
import secrets
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from tests.api.serving import serving, talking
from tests.store.given import sql

PAGE = (Path(__file__).parents[2] / "docs/transactions.md").read_text()
PROGRAM = re.compile(r"<!-- file: (\w+\.py) -->\n```python\n(.*?)```", re.DOTALL)
GRANT, SUBMIT, TRIGGER = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
ORDERS = "CREATE TABLE orders (id SERIAL, item TEXT)"
SECONDS = 90


@pytest.fixture
async def shop(postgres_url: str) -> AsyncIterator[str]:
    """Yield a role with a schema of its own, in a database where Chargehand has another."""
    name = f"shop_{secrets.token_hex(4)}"
    for statement in ("CREATE SCHEMA chargehand", f"CREATE ROLE {name} LOGIN", f"CREATE SCHEMA AUTHORIZATION {name}"):
        await sql(postgres_url, statement)
    yield name
    await sql(postgres_url, f"DROP OWNED BY {name}")
    await sql(postgres_url, f"DROP ROLE {name}")


async def run(name: str, program: str, folder: Path, url: str) -> list[str]:
    (folder / name).write_text(program)
    parts = re.fullmatch(r"postgresql://(\w+)@/(\w+)\?host=(.*)", url)
    assert parts is not None
    user, database, host = parts.groups()
    environ = os.environ | {"DATABASE_URL": url, "PGUSER": user, "PGDATABASE": database, "PGHOST": host}
    running = await asyncio.create_subprocess_exec(sys.executable, folder / name, env=environ, stdout=PIPE, stderr=PIPE)
    said, errors = await asyncio.wait_for(running.communicate(), SECONDS)
    assert running.returncode == 0, errors.decode()
    return said.decode().split()


def test_every_program_on_the_page_is_run() -> None:
    assert PAGE.count("```") == 2 * (len(PROGRAM.findall(PAGE)) + 3)


@pytest.mark.timeout(300)  # it starts a few processes, perhaps on a busy machine
@pytest.mark.xdist_group("processes")
async def test_the_commands_and_programs_do_what_the_page_says(postgres_url: str, shop: str, tmp_path: Path) -> None:
    async with serving(f"{postgres_url}&search_path=chargehand") as server, talking(server) as api:
        await sql_script(postgres_url, GRANT.replace("TO shop", f"TO {shop}").replace("'shop'", f"'{shop}'"))
        url = postgres_url.replace("postgres:@", f"{shop}@")
        await sql_script(url, f"{ORDERS}; {SUBMIT}")
        orders = ['{"order": 1}']
        ids = [""]
        for name, program in PROGRAM.findall(PAGE):
            ids += await run(name, program, tmp_path, url)
        orders += [f'{{"order":"{item}"}}' for item in ("a boat", "an owl", "a hat", "a pipe", "a kite")]
        await sql_script(url, TRIGGER + "INSERT INTO orders (item) VALUES ('a moon')")
        orders.append('{"id":7,"item":"a moon"}')
        found = await sql(postgres_url, "SELECT id, priority FROM chargehand.jobs ORDER BY id")
        assert [row[0] for row in found[1:6]] == ids[1:]
        assert [row[1] for row in found] == [5, 5, 0, 0, 0, 0, 0]
        claimed = [(await api.post("/v1/codeq/tasks/claim", {"commands": ["pack"]})).good()["payload"] for _ in orders]
        assert sorted(claimed) == sorted(orders)


async def sql_script(url: str, script: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(script)
    finally:
        await connection.close()
