"""Streamed claims: one connection for many tasks, without a round trip for each.

The answer is NDJSON that goes on for a quarter of an hour: a task a line, and empty lines to keep the connection alive. The server
keeps at most `maxInFlight` of a stream's tasks in progress; when one ends (by result, nack, abandon or lapse) the next is sent.
Results go to the other endpoints, best in batches.

A worker that just hangs up may miss tasks that were sent in that moment, and then their leases have to lapse. A worker that ends the
stream by its name reads the answer to its end, and knows every task that it holds.
"""

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from chargehand.config import Config
from chargehand.doors.tasks import access, wire
from chargehand.doors.tasks.errors import TaskRefused
from chargehand.doors.tasks.holding import owner_of
from chargehand.doors.tasks.limits import Limits
from chargehand.doors.tasks.names import BASE, CLAIM
from chargehand.doors.tasks.roll import Roll
from chargehand.doors.tasks.views import CLAIMED, Task, task_view
from chargehand.doors.tasks.worker import MAX_BODY, WorkerApi, claim_queues
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.hint import Hint
from chargehand.engine.job import Job, State
from chargehand.engine.moves import Moved
from chargehand.engine.queue import Wanted
from chargehand.errors import Conflict, NotFound, StoreError
from chargehand.http.auth import Caller
from chargehand.http.carried import whole
from chargehand.http.request import Request
from chargehand.http.response import BreakOff, Response
from chargehand.http.route import Route

NDJSON = "application/x-ndjson"
NAME_HEADER = "x-chargehand-stream"
NAME_BYTES = 16
_NAME = re.compile(rf"[0-9a-f]{{{2 * NAME_BYTES}}}")
KEEP_ALIVE_SECONDS = 10.0
CHECK_SECONDS = 1.0  # how often a full stream checks for ends that another node wrote
MAX_STREAMS = 10_000
MAX_SECONDS = 900.0  # then it ends: opening another one checks the token again
PORTION = 100  # tasks claimed at once: all their payloads are in memory together
_encoder = msgspec.json.Encoder(enc_hook=whole)


class OpenStream:
    """The tasks that are in progress on one stream."""

    def __init__(self, bound: int, leaving: "asyncio.Future[None]") -> None:
        self.bound = bound
        self.leaving = leaving  # done: the worker has hung up, or has ended the stream
        self.held: dict[str, int] = {}  # task -> lease
        self.doubtful: set[str] = set()  # tasks that changed on another node: the store says whether they ended
        self.news = asyncio.Event()

    @property
    def room(self) -> int:
        return self.bound - len(self.held)


class Streams:
    def __init__(self, engine: Engine, config: Config, worker: WorkerApi, limits: Limits, roll: Roll) -> None:
        self._engine = engine
        self._worker = worker
        self._limits = limits
        self._roll = roll
        self._alone = config.store_url.startswith("sqlite:")
        self._by_task: dict[str, OpenStream] = {}
        self._by_name: dict[str, OpenStream] = {}

    def routes(self) -> list[Route]:
        # fmt: off
        return [
            wire.route("POST", f"{BASE}/tasks/claim/stream", self.claim_stream, "Claim tasks as they come, on one connection",
                  "NDJSON: a task a line; empty lines keep the connection alive. At most `maxInFlight` are in progress at once.",
                  request=wire.StreamTasks, reply=Task, reply_media=NDJSON),
            wire.route("DELETE", f"{BASE}/tasks/claim/stream/{{stream}}", self.leave_stream, "Have a stream end",
                  f"Its name is in the header `{NAME_HEADER}` of its answer. Nothing more is claimed for it, and the answer ends behind the last task "
                  "that was: read on until then. 204 also when there is none.", status=204),
        ]
        # fmt: on

    def on_move(self, moved: Moved) -> None:
        if moved.state is not State.RUNNING and (stream := self._by_task.get(moved.job_id)) is not None:
            self._free(stream, moved.job_id)

    def on_hint(self, hint: Hint) -> None:
        """Results may go to any node: its hint names the task, and the store says whether the task has ended."""
        for task_id in hint.jobs:
            if (stream := self._by_task.get(task_id)) is not None:
                stream.doubtful.add(task_id)
                stream.news.set()
        for name in hint.streams:
            self._leave(name)

    def _free(self, stream: OpenStream, task_id: str) -> None:
        if self._by_task.get(task_id) is stream:  # else its lease lapsed, and another stream has it now
            del self._by_task[task_id]
        stream.held.pop(task_id, None)
        stream.news.set()

    async def claim_stream(self, req: Request, resp: Response) -> None:
        caller = access.worker(req.caller, CLAIM)
        self._limits.check("worker", "claim", caller)
        asked = await wire.read(req, wire.stream_tasks, MAX_BODY)
        if len(self._by_name) >= MAX_STREAMS:
            raise TaskRefused(503, "too many streams", detail=f"{MAX_STREAMS} are open", retry_after_seconds=5)
        queues, lease = claim_queues(caller, asked), self._worker.lease(asked.lease_seconds)
        name = secrets.token_hex(NAME_BYTES)  # a secret: who knows it may end the stream
        resp.content_type = NDJSON
        resp.set_header(NAME_HEADER, name)
        resp.set_header("cache-control", "no-store")
        resp.set_header("x-accel-buffering", "no")
        resp.stream = self._on_roll(
            caller, queues, self._lines(req, name, queues, owner_of(caller), lease, asked.max_in_flight)
        )

    async def leave_stream(self, req: Request, resp: Response, stream: str) -> None:
        access.worker(req.caller, CLAIM)
        if not self._leave(stream) and _NAME.fullmatch(stream):
            self._engine.end_stream(stream)  # another node may have it
        resp.status = 204

    def _leave(self, name: str) -> bool:
        if (stream := self._by_name.get(name)) is None:
            return False
        stream.leaving.cancel()
        return True

    async def _on_roll(
        self, caller: Caller, queues: tuple[Wanted, ...], lines: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        with self._roll.asking(caller, queues):
            async with contextlib.aclosing(lines):
                async for line in lines:
                    yield line

    async def _lines(
        self, req: Request, name: str, queues: tuple[Wanted, ...], owner: str, lease: float, bound: int
    ) -> AsyncGenerator[bytes, None]:
        leaving = req.leaving()
        stream = self._by_name[name] = OpenStream(bound, leaving)
        try:
            yield b"\n"  # sends the response head at once, so that the worker knows that the stream is open
            until = asyncio.get_running_loop().time() + MAX_SECONDS
            while not leaving.done() and not self._engine.draining and asyncio.get_running_loop().time() < until:
                if stream.room <= 0:
                    if not await self._wait_for_room(stream):
                        yield b"\n"
                    continue
                limit = min(stream.room, PORTION)
                claiming = asyncio.ensure_future(
                    self._engine.claim(
                        queues, owner, lease, limit=limit, stage=CLAIMED, wait_seconds=KEEP_ALIVE_SECONDS
                    )
                )
                try:
                    both: set[asyncio.Future[Any]] = {claiming, leaving}
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not claiming.done():
                        claiming.cancel()  # the engine hands back what a cancelled claim got
                        await asyncio.wait({claiming})
                if claiming.cancelled():
                    return
                jobs = claiming.result()
                if leaving.done():
                    await self._hand_back(jobs)
                    return
                self._hold(stream, jobs)
                yield b"".join(_encoder.encode(task_view(job, job.updated_at)) + b"\n" for job in jobs) or b"\n"
        except StoreError as error:
            raise BreakOff(error.message) from None  # the worker opens another stream, and gets the error then
        finally:
            leaving.cancel()
            del self._by_name[name]
            for task_id in list(stream.held):
                self._free(stream, task_id)

    def _hold(self, stream: OpenStream, jobs: tuple[Job, ...]) -> None:
        for job in jobs:
            stream.held[job.id] = job.lease
            self._by_task[job.id] = stream

    async def _hand_back(self, jobs: tuple[Job, ...]) -> None:
        for job in jobs:
            with contextlib.suppress(Conflict, NotFound):  # cancelled meanwhile, and perhaps purged
                await self._engine.park(Guard.held(job), "", message="handed back: the stream's reader is gone")

    async def _wait_for_room(self, stream: OpenStream) -> bool:
        """Return False when a keep-alive line is due."""
        loop, leaving = asyncio.get_running_loop(), stream.leaving
        until = loop.time() + KEEP_ALIVE_SECONDS
        while stream.room <= 0 and not leaving.done() and not self._engine.draining:
            left = until - loop.time()
            if left <= 0:
                return False
            if stream.doubtful:
                await self._check(stream, stream.held.keys() & stream.doubtful)
                continue
            stream.news.clear()
            waiting: asyncio.Future[Any] = asyncio.ensure_future(stream.news.wait())
            try:
                await asyncio.wait(
                    {waiting, leaving}, timeout=min(left, CHECK_SECONDS), return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                waiting.cancel()
            # A single node sees every end, but for one that came while the claim was still on its way here.
            if not stream.news.is_set() and (not self._alone or left <= CHECK_SECONDS):
                await self._check(stream, set(stream.held))
        return True

    async def _check(self, stream: OpenStream, task_ids: set[str]) -> None:
        stream.doubtful.clear()
        for task_id in task_ids:
            lease = stream.held.get(task_id)
            if lease is not None and not await self._engine.holds(task_id, lease):
                self._free(stream, task_id)
