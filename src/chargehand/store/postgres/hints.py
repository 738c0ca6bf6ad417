"""Hints between nodes by NOTIFY, on a connection of their own. It also shows whether the database answers and who else is there."""

import asyncio
import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import msgspec

from chargehand.engine.hint import Hint
from chargehand.engine.queue import Queue
from chargehand.errors import StoreTooNew
from chargehand.store.postgres.connecting import Connection

NOTIFY_BYTES = 7_500  # PostgreSQL takes up to 8,000
UNTOLD_STREAMS = 100
UNTOLD_JOBS = 200  # in one message; more are found by polling
NOTIFY_EVERY_SECONDS = 0.005  # hints of a busy moment travel together
HELLO_EVERY_SECONDS = 1.0
ANSWER_SECONDS = 3.0  # then the database, or the way to it, counts as frozen
PEER_SECONDS = 10.0  # a node that was not heard for so long counts as gone
PEERS = 1_000
AGAIN_SECONDS = 0.5
CLOCKS = 10  # the latest readings of the database's clock that are kept

_NODE_CHARACTERS = 12
_COMMITS = "from-commits"  # in place of a node: a producer's own transaction sends a hint with its commit
_FAULTS = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    StoreTooNew,
)
_SAY = "SELECT pg_notify($1, $2), (EXTRACT(EPOCH FROM CLOCK_TIMESTAMP()) * 1000000)::BIGINT"
_decoder = msgspec.json.Decoder(Hint)


class Hints:
    """While nobody else is known, only what nobody polls for is sent, and a hello every second, by which a new node is noticed."""

    def __init__(
        self,
        channel: str,
        connect: Callable[[], Awaitable[Connection]],
        silent: Callable[[str], None],
        answering: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._connect = connect
        self._silent = silent
        self._answering = answering
        self._node = os.urandom(_NODE_CHARACTERS // 2).hex()
        self._heard: list[Callable[[Hint], None]] = []
        self._peers: dict[str, float] = {}  # other nodes, and when each was last heard
        self._jobs: dict[str, tuple[str, ...]] = {}
        self._queues: dict[Queue, int] = {}
        self._streams: set[str] = set()
        self._greeting = True
        self._soon = asyncio.Event()
        self._clocks: deque[int] = deque(maxlen=CLOCKS)

    @property
    def ahead(self) -> int | None:
        """Return how many microseconds the database's clock is ahead of ours, or a little more: never less, so that what was
        written before does not seem to be in the future."""
        return min(self._clocks, default=None)

    def listen(self, heard: Callable[[Hint], None]) -> None:
        self._heard.append(heard)

    def notify(self, queue: Queue | None, run_at: int, job_id: str, endpoints: tuple[str, ...], stream: str) -> None:
        if not self._peers and not stream:
            return
        if queue is not None:
            self._queues[queue] = min(run_at, self._queues.get(queue, sys.maxsize))
        if job_id and len(self._jobs) < UNTOLD_JOBS:
            self._jobs[job_id] = endpoints
        if stream and len(self._streams) < UNTOLD_STREAMS:
            self._streams.add(stream)  # for a node too that has only just come: nobody polls for streams
        self._soon.set()

    async def run(self) -> None:
        """Send and receive. While the connection is down, the other nodes find by polling what was done here."""
        while True:
            try:
                async with self._listening() as connection:
                    self._answering()
                    await self._talk(connection)
            except TimeoutError:
                self._silent(f"the database has not answered for {ANSWER_SECONDS:.0f} s")
            except _FAULTS:
                self._answering()  # if only with a refusal: whoever needs a connection hears the reason at once
                await asyncio.sleep(AGAIN_SECONDS)
            self._forget()

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[Connection]:
        connection = await self._connect()
        try:
            connection.add_termination_listener(lambda _: self._soon.set())
            await connection.add_listener(self._channel, self._on_notify)
            yield connection
        finally:
            connection.terminate()

    async def _talk(self, connection: Connection) -> None:
        """Return when the connection is closed, which says nothing about the database: another may be made at once."""
        said_at = 0.0
        while not connection.is_closed():
            self._soon.clear()
            texts = self._texts()
            if not texts and (self._greeting or time.monotonic() - said_at >= HELLO_EVERY_SECONDS):
                texts = [self._text(Hint())]
            self._greeting = False
            for text in texts:
                said_at = time.monotonic()
                try:
                    await self._say(connection, text)
                except TimeoutError:
                    raise
                except _FAULTS:
                    return
            await asyncio.sleep(NOTIFY_EVERY_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HELLO_EVERY_SECONDS):
                    await self._soon.wait()

    async def _say(self, connection: Connection, text: str) -> None:
        before = time.time_ns() // 1000
        saying = asyncio.ensure_future(connection.fetch(_SAY, self._channel, text))
        # Its error is no news where nobody waits for it any more: the connection was closed.
        saying.add_done_callback(lambda said: said.cancelled() or said.exception())
        # Not a timeout around the call: if this process was held up, the answer may be there, and the wait still counts it.
        done, _ = await asyncio.wait({saying}, timeout=ANSWER_SECONDS)
        if not done:
            raise TimeoutError
        [(_, at)] = saying.result()
        self._clocks.append(at - before)  # too much by the time that the question was on its way

    def _texts(self) -> list[str]:
        """Return the pending hints in as few messages as fit; what does not fit is found by polling."""
        if not (self._queues or self._jobs or self._streams):
            return []
        queues, self._queues = tuple(self._queues.items()), {}
        told, self._jobs = self._jobs, {}
        jobs = tuple(told)
        endpoints = tuple(dict.fromkeys(endpoint for each in told.values() for endpoint in each))
        streams, self._streams = self._streams, set()
        # A message of their own, since the other one may not fit.
        texts = [self._text(Hint(streams=tuple(streams)))] if streams else []
        # Jobs are many and their watchers poll anyway; queues and endpoints are what somebody waits for at once.
        for hint in (Hint(queues, jobs, endpoints), Hint(queues, (), endpoints)):
            text = self._text(hint)
            if len(text.encode()) <= NOTIFY_BYTES:
                return [*texts, text]
        return texts

    def _text(self, hint: Hint) -> str:
        return self._node + msgspec.json.encode(hint).decode()

    def _on_notify(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        text = str(payload)
        node = text[:_NODE_CHARACTERS]
        if node == self._node:
            self._drop_silent_peers()
            return
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            hint = _decoder.decode(text[_NODE_CHARACTERS:])
            if node != _COMMITS:
                self._meet(node)
            for heard in self._heard:
                heard(hint)

    def _meet(self, node: str) -> None:
        """Note that another node is there; a new one gets a hello, so that it knows us at once."""
        if node not in self._peers and len(self._peers) < PEERS:
            self._peers[node] = 0.0
            self._greeting = True
            self._soon.set()
        if node in self._peers:
            self._peers[node] = time.monotonic()

    def _drop_silent_peers(self) -> None:
        """Our own hello is back, so those of all others that are there have come too."""
        silent_since = time.monotonic() - PEER_SECONDS
        if any(at < silent_since for at in self._peers.values()):
            self._peers = {node: at for node, at in self._peers.items() if at >= silent_since}

    def _forget(self) -> None:
        self._clocks.clear()
        self._jobs.clear()
        self._queues.clear()
        self._streams.clear()
