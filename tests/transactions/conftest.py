"""A server on PostgreSQL, and producers with connections of their own."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from chargehand.app import Server
from tests.api.serving import Api, serving, talking
from tests.transactions.submitting import Connection


@pytest.fixture
async def server(postgres_url: str) -> AsyncIterator[Server]:
    async with serving(postgres_url) as server:
        yield server


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Api]:
    async with talking(server) as api:
        yield api


@pytest.fixture
async def producer(api: Api, postgres_url: str) -> AsyncIterator[Connection]:
    """Yield the connection of a producer, once a server has told the database how it takes jobs."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.fixture
async def rival(producer: Connection, postgres_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()
