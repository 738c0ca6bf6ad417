"""How a connection to PostgreSQL is made: to which of several hosts, within what time, with which settings, to a session of our own."""

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias
from urllib.parse import parse_qs, urlsplit

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from chargehand.errors import ConfigError, StoreError

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

NAME = "chargehand"  # of our sessions; more follows it when the schema is known
OPEN_SECONDS = 15.0  # for each connection of a start, for which no caller waits
CONNECT_SECONDS = 3.0  # a host that is frozen accepts a connection and never answers on it
STATEMENT_SECONDS = 30  # of any statement but a migration's: a lock that is held for ever must not hold us for ever
HEAR_SECONDS = 3.0  # a notification is there within milliseconds
IDLE_SECONDS = 10  # within a transaction: then the database ends it, and with it the locks of a node that froze
_SETTINGS = {
    "jit": "off",
    "statement_timeout": f"{STATEMENT_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
}
# A write is the same statement for any group. Its plan would be made anew for the values of each, and that costs more than to run
# it. A plan that is made while the tables are empty must serve when they are not, so it must not read them whole. Reads keep
# PostgreSQL's own choice: how many rows are wanted changes their plans.
PLANNED_ONCE = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
# A page of a list is read off an index until it is full. Making the plan, over the tables of all periods, costs more than that; and
# one that is made without the values knows nothing of what the filters leave, and would rather read all and sort.
READ_IN_ORDER = PLANNED_ONCE | {"enable_sort": "off", "enable_bitmapscan": "off"}
_SET = """
SELECT set_config(s.name, w.value, false)
FROM UNNEST($1::TEXT[], $2::TEXT[]) AS w(name, value) JOIN pg_settings s ON s.name = w.name
UNION ALL
SELECT set_config(s.name, 'on', false) FROM pg_settings s WHERE s.name = 'synchronous_commit' AND s.setting = 'off'
"""
NO_SESSION = (
    "PostgreSQL: a pooler lends this connection another session for each transaction or statement, so settings, LISTEN and prepared "
    "statements do not last: name the database's own address in store.url, or let the pooler pool by session (PgBouncer: pool_mode = session)"
)
_HOSTS = re.compile(r"(?P<scheme>\w+://(?:[^/?#]*@)?)(?P<hosts>[^/?#@]*)(?P<rest>.*)", re.DOTALL)


async def connect(url: str, seconds: float = CONNECT_SECONDS, settings: Mapping[str, str] | None = None) -> Connection:
    """Connect to the first host of the URL that answers and takes writes. All are asked at once, since one may be frozen."""
    urls = each_host(url)
    settings = {**_SETTINGS, **(settings or {})}
    if len(urls) == 1:
        return await _connect(url, seconds, settings)
    trying = [asyncio.ensure_future(_connect(each, seconds, settings, writable=True)) for each in urls]
    try:
        return await _first(trying)
    finally:
        for each in trying:
            each.cancel()


async def require_session(connection: Connection, connect: Callable[[], Awaitable[Connection]]) -> None:
    """Refuse a pooler that does not pool by session. That there is one shows in the process id, which it makes up.

    Such a pooler has nobody to give a notification to: between two statements the session that listens is not ours.
    """
    if await connection.fetchval("SELECT pg_backend_pid()") == connection.get_server_pid():
        return
    channel, heard = f"chargehand_{secrets.token_hex(16)}", asyncio.Event()
    await connection.add_listener(channel, hear := lambda *_: heard.set())
    other = await connect()
    try:
        await other.execute(f"NOTIFY {channel}")
    finally:
        other.terminate()
    try:
        await asyncio.wait_for(heard.wait(), HEAR_SECONDS)
    except TimeoutError:
        raise StoreError(NO_SESSION) from None
    await connection.remove_listener(channel, hear)


def each_host(url: str) -> list[str]:
    """Return a URL for each host that the URL names. Several in its query are refused: the driver would try one after the other."""
    if any("," in hosts for hosts in parse_qs(urlsplit(url).query).get("host", ())):
        raise ConfigError(
            "store.url: several hosts stand before the path and not behind host=: postgresql://user@host1:5432,host2:5432/database"
        )
    parts = _HOSTS.fullmatch(url)
    if parts is None:
        return [url]
    return [f"{parts['scheme']}{host}{parts['rest']}" for host in parts["hosts"].split(",")]


async def _first(trying: Sequence[asyncio.Future[Connection]]) -> Connection:
    """Return the first connection that succeeds; raise the last error if none does."""
    waiting, failed = set(trying), list[asyncio.Future[Connection]]()
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        made = [each.result() for each in done if each.exception() is None]
        for spare in made[1:]:
            spare.terminate()
        if made:
            return made[0]
        failed += done
    return failed[-1].result()


async def _connect(url: str, seconds: float, settings: Mapping[str, str], *, writable: bool = False) -> Connection:
    connection = await asyncpg.connect(
        url,
        timeout=seconds,
        server_settings={"application_name": NAME},
        command_timeout=STATEMENT_SECONDS + 5,
        target_session_attrs=SessionAttribute.read_write if writable else None,
    )
    try:
        await connection.execute(_SET, list(settings), list(settings.values()), timeout=seconds)
    except BaseException:
        connection.terminate()
        raise
    return connection
