"""NOTIFY between nodes: hints are never the truth, and other users of the database can neither read nor forge them with effect."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from chargehand.app import Server
from chargehand.doors.tasks.names import BASE
from chargehand.store.postgres.store import PostgresStore
from tests.api.serving import Api, serving, talking, until

NODE = "0123456789ab"
HOSTILE = [
    "",
    "x",
    NODE,
    NODE + "null",
    NODE + "[]",
    NODE + "{",
    NODE + '{"queues": 1, "jobs": {}}',
    NODE + '{"queues": {"task/default/c": 0}}',  # as 0.1.0 writes it
    NODE + '{"queues": [[[], 0]]}',
    NODE + '{"queues": [[["task"], 0], [["task", "default"], 0]]}',
    NODE + '{"queues": [[["task", "default", null], 0]]}',
    NODE + '{"queues": [[["", "", ""], 0], [["task", "", "", "node"], 0]]}',
    NODE + '{"queues": [[["task", "default", "c"], -1]]}',
    NODE + '{"queues": [[["job", "default", "q"], ' + "9" * 400 + "]]}",  # a time beyond every clock
    NODE + '{"queues": [[["task", "default", "c"], ' + "9" * 400 + "]]}",
    NODE + '{"queues": [[["job", "default", "q"], 9223372036854775807]]}',
    NODE + '{"x": ' + "[" * 7900,
    NODE + '{"jobs": ["\\ud800", "\\u0000", "../.."], "endpoints": ["ep_"], "streams": ["*", ""]}',
    NODE + '{"streams": [' + ",".join(f'"{number:032x}"' for number in range(200)) + "]}",
    "\u20ac" * 2600,
]


@pytest.fixture
async def stranger(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Yield a connection of another user of the same database, without any rights."""
    name, password = f"stranger_{secrets.token_hex(4)}", secrets.token_hex(8)
    owner = await asyncpg.connect(postgres_url)
    await owner.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
    connection = await asyncpg.connect(postgres_url, user=name, password=password)
    yield connection
    await connection.close()
    await owner.execute(f"DROP ROLE {name}")
    await owner.close()


@asynccontextmanager
async def node(postgres_url: str) -> AsyncIterator[tuple[Server, Api, str]]:
    async with serving(postgres_url, {"engine.poll_seconds": 0.2}) as server, talking(server) as api:
        assert isinstance(server.store, PostgresStore)
        yield server, api, server.store._hints._channel


async def meet_another(server: Server, connection: asyncpg.Connection, channel: str) -> None:
    """Say hello as another node would: a node that is alone has nobody to send hints to."""
    assert isinstance(server.store, PostgresStore)
    hints = server.store._hints

    async def met() -> bool:
        await connection.execute("SELECT pg_notify($1, $2)", channel, NODE + "{}")
        return bool(hints._peers)

    await until(met)


async def works(server: Server, api: Api) -> None:
    """Check that a waiting claim gets a job, and that all tasks of the server run."""
    claim = asyncio.create_task(api.post("/engine/claims", {"queues": ["q"], "wait_seconds": 10}))
    await until(lambda: server.engine.wakeups.waiting)
    job_id = await api.submit()
    assert [job["id"] for job in (await claim).good()["jobs"]] == [job_id]
    assert not [task for task in server._background if task.done()]
    assert (await api.get("/readyz")).status == 200


async def test_another_user_of_the_database_cannot_find_the_channel(
    postgres_url: str, stranger: asyncpg.Connection
) -> None:
    async with node(postgres_url) as (server, api, channel), node(postgres_url) as (_, _, other_channel):
        for question in (
            "SELECT body FROM records",
            f"SELECT 1 FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE '%{channel}%'",
        ):
            try:
                assert await stranger.fetch(question) == []
            except asyncpg.InsufficientPrivilegeError:
                continue
        heard: list[str] = []
        for guess in ("chargehand", "chargehand_"):
            await stranger.add_listener(guess, lambda *said: heard.append(str(said[-1])))
        assert other_channel == channel
        told: list[str] = []
        owner = await asyncpg.connect(postgres_url)
        await owner.add_listener(channel, lambda *said: told.append(str(said[-1])))
        job_id = await api.submit(queue="other")
        await until(lambda: any(job_id in text for text in told))
        await owner.close()
        await stranger.execute("SELECT pg_notify('chargehand', 'the end')")
        await until(lambda: "the end" in heard)
        assert heard == ["the end"]
        await works(server, api)


async def test_forged_hints_break_nothing_and_change_nothing_and_take_no_memory(postgres_url: str) -> None:
    broken: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: broken.append(context))
    connection = await asyncpg.connect(postgres_url)
    async with node(postgres_url) as (server, api, channel):
        subscription = {"callbackUrl": "http://127.0.0.1:9/", "eventTypes": ["*"]}
        (await api.post(f"{BASE}/workers/subscriptions", subscription)).good(201)
        job_id = await api.submit(queue="other")
        before = await api.job(job_id)
        heard: list[object] = []
        assert isinstance(server.store, PostgresStore)
        server.store.listen(lambda hint: heard.append(hint))
        claim = asyncio.create_task(api.post("/engine/claims", {"queues": ["q"], "wait_seconds": 20}))
        await until(lambda: server.engine.wakeups.waiting)
        for _ in range(20):
            for text in HOSTILE:
                await connection.execute("SELECT pg_notify($1, $2)", channel, text)
        await connection.execute("SELECT pg_notify($1, $2)", channel, NODE + '{"jobs": ["the end"]}')
        await until(lambda: any("the end" in str(hint) for hint in heard))
        assert await api.job(job_id) == before
        mine = await api.submit()
        assert [job["id"] for job in (await claim).good()["jobs"]] == [mine]
        await works(server, api)
        assert server.tasks is not None
        assert len(server.tasks._notifier._timers) <= 1  # for a task queue with a subscriber
        assert server.outbox._lanes.keys() == set()
    await connection.close()
    assert broken == []


async def test_a_hint_is_small_and_contains_no_payload(postgres_url: str) -> None:
    """Whatever names callers choose. PostgreSQL accepts at most 8,000 bytes."""
    connection = await asyncpg.connect(postgres_url)
    async with node(postgres_url) as (server, api, channel):
        heard: list[str] = []
        await connection.add_listener(channel, lambda *said: heard.append(str(said[-1])))
        await meet_another(server, connection, channel)
        secret = "a secret of the payload"
        webhook = {"url": "http://127.0.0.1:9/?token=a-secret-of-the-query", "on": ["succeeded"]}
        names = [f"{number:03}" + "\u20ac" * 60 for number in range(120)]
        job = {"payload": secret, "metadata": {"secret": secret}, "webhook": webhook}
        await asyncio.gather(*(api.submit(queue=name, **job) for name in names))
        for command in ("c", "c" * 200, "\u20ac" * 60):
            (await api.post(f"{BASE}/tasks", {"command": command, "payload": {"secret": secret}})).good(202)
        last = await api.submit(queue="last")
        await until(lambda: any(last in text for text in heard))
        assert max(len(text.encode()) for text in heard) < 8000
        assert not [text for text in heard if "secret" in text]
    await connection.close()


async def test_a_node_that_is_alone_sends_no_hints_and_begins_when_another_comes(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    async with node(postgres_url) as (server, api, channel):
        heard: list[str] = []
        await connection.add_listener(channel, lambda *said: heard.append(str(said[-1])))
        alone = await api.submit(queue="other")
        await until(lambda: len(heard) >= 2)  # hellos, which come every second
        assert not any(alone in text for text in heard)
        async with node(postgres_url) as (other, _, _):
            assert isinstance(server.store, PostgresStore)
            assert isinstance(other.store, PostgresStore)
            hints = server.store._hints, other.store._hints
            await until(lambda: all(each._peers for each in hints))
            job_id = await api.submit(queue="other")
            await until(lambda: any(job_id in text for text in heard))
    await connection.close()


async def test_a_node_that_knows_no_other_still_tells_which_stream_ended(postgres_url: str) -> None:
    """The other node may have come a moment ago, and nobody polls for streams."""
    connection = await asyncpg.connect(postgres_url)
    async with node(postgres_url) as (server, _, channel):
        heard: list[str] = []
        await connection.add_listener(channel, lambda *said: heard.append(str(said[-1])))
        assert isinstance(server.store, PostgresStore)
        server.store.notify(stream="the stream")
        await until(lambda: any("the stream" in text for text in heard))
    await connection.close()


async def test_a_server_ends_if_what_watches_its_database_breaks(postgres_url: str) -> None:
    """Without it a database that freezes would not be noticed."""
    connection = await asyncpg.connect(postgres_url)
    async with node(postgres_url) as (server, _, _):
        assert isinstance(server.store, PostgresStore)
        hints = server.store._hints
        await until(lambda: hints.ahead is not None)
        waiting = asyncio.create_task(server.wait(asyncio.Event()))

        async def broken() -> asyncpg.Connection:
            raise ArithmeticError("a fault of ours")

        hints._connect = broken
        listening = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_notify%' AND pid <> pg_backend_pid()"
        await connection.execute(listening + " AND datname = current_database()")
        assert "a fault of ours" in await asyncio.wait_for(waiting, 10)
    await connection.close()


async def test_the_time_of_the_database_is_its_time_even_if_one_answer_was_slow(postgres_url: str) -> None:
    async with node(postgres_url) as (server, _, _):
        assert isinstance(server.store, PostgresStore)
        hints = server.store._hints
        await until(lambda: hints.ahead is not None)
        hints._clocks.append(2_000_000)  # a question that was on its way for two seconds
        assert hints.ahead is not None
        assert hints.ahead < 1_000_000
