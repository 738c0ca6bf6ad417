"""Ollama's own API, and OpenAI's and Anthropic's under /v1, for callers who wait for the answer on their connection.

A request that needs the GPU is a job like any other: same queue, same slots, same log. The caller gets the target's own bytes; no
header is written before the target has answered, so its errors arrive as they are.
"""

import asyncio
import contextlib
import math
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

import aiohttp
import msgspec

from chargehand.config import Config
from chargehand.doors.inference.attempt import Attempts
from chargehand.doors.inference.errors import writer_for
from chargehand.doors.inference.names import KIND, TAG, canonical, check_model, queue_of
from chargehand.doors.inference.relay import passed_on, request_headers, write_head
from chargehand.doors.inference.request import (
    Essentials,
    decode_request,
    encode_request,
    essentials,
    fields_of,
    give_way,
    leaves,
    pinned,
    unloads,
)
from chargehand.doors.inference.running import HeldCall
from chargehand.doors.inference.scheduler import Scheduler
from chargehand.doors.inference.stream import AnswerStream, Head
from chargehand.doors.inference.target import Target
from chargehand.doors.inference.target_http import Gone, TargetUnreachable, Unfit, read_whole
from chargehand.doors.inference.wire import FORMS, Form, has_ended
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import FINAL, NewJob, State
from chargehand.engine.moves import Moved
from chargehand.engine.wakeups import wait_within
from chargehand.errors import BadRequest, Conflict, NotFound, StoreError, TargetAway, TargetFailed
from chargehand.http.inputs import check_utf8, identity, trace_headers
from chargehand.http.jobs import JobResource
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, read_body
from chargehand.observability.logs import get_logger
from chargehand.observability.tracing import trace_context

PRIORITY = 5  # a caller waits
PREFER = "`wait=N`: wait so many seconds for a target; `respond-async`: a 202 and a job instead of waiting"
MAX_WAIT_SECONDS = 86_400.0
END_SECONDS = 1.0
CHECK_SECONDS = 1.0  # how often a waiting call checks whether its target is still there
JOB_HEADER = "x-chargehand-job"

log = get_logger(__name__)


class Prefer(msgspec.Struct, frozen=True):
    wait_seconds: float | None
    respond_async: bool


class Passthrough:
    def __init__(
        self, engine: Engine, config: Config, jobs: JobResource, scheduler: Scheduler, attempts: Attempts
    ) -> None:
        self._engine = engine
        self._jobs = jobs
        self._config = config
        self._settings = config.inference
        self._scheduler = scheduler
        self._attempts = attempts
        self._calls = attempts.running.calls
        self._tasks: set[asyncio.Task[None]] = set()

    def routes(self) -> list[Route]:
        return [
            Route("POST", path, self._handler(path), f"As the target's own {path}, queued", "jobs:write", TAG,
                  "The answer is the target's, byte for byte, streamed as it comes. The job's id is in `X-Chargehand-Job`.",
                  headers={"Prefer": PREFER}, reply_media="application/json", errors=(TargetAway,), error_writer=writer_for(path))
            for path in FORMS
        ]  # fmt: skip

    def _handler(self, path: str) -> Callable[[Request, Response], Awaitable[None]]:
        async def post(req: Request, resp: Response) -> None:
            await self._post(req, resp, path)

        return post

    async def _post(self, req: Request, resp: Response, path: str) -> None:
        body = await read_body(req, self._settings.max_body_bytes)
        asked = self._read(body)
        await give_way(body)
        prefer = read_prefer(req.get_header("prefer") or "")
        if unloads(asked, path):
            return await req.unless_gone(self._unload(req, resp, path, asked, body))
        job = self._new_job(req, path, asked, body, relay=not prefer.respond_async)
        model = canonical(asked.model)
        del body, asked  # the job has a copy: free the body while the caller waits
        if FORMS[path] is Form.VECTORS and (target := self._holder_of(model)) is not None:
            return await self._bypass(req, resp, target, model, job)
        if prefer.respond_async:
            return await self._respond_async(req, resp, job, prefer.wait_seconds or 0.0)
        return await self._relay_answer(req, resp, path, job, model, prefer)

    def _read(self, body: bytes) -> Essentials:
        check_utf8(body)
        asked = essentials(body)
        check_model(asked.model, self._settings.allow_cloud)
        return asked

    def _new_job(self, req: Request, path: str, asked: Essentials, body: bytes, relay: bool) -> NewJob:
        tenant, (traceparent, tracestate) = req.caller.tenant, trace_context(**trace_headers(req))
        key, fingerprint = (None, None) if relay else identity(req, body)
        return NewJob(
            self._engine.new_id(),
            queue_of(tenant, asked.model, self._scheduler.node if relay else ""),
            encode_request(
                path,
                msgspec.Raw(body) if relay else _for_a_job(path, body),
                relay=relay,
                leaves=leaves(asked.keep_alive),
            ),
            PRIORITY,
            1 if relay else self._config.engine.max_attempts,
            idempotency_key=key,
            fingerprint=fingerprint,
            traceparent=traceparent,
            tracestate=tracestate,
        )

    async def _respond_async(self, req: Request, resp: Response, job: NewJob, wait_seconds: float) -> None:
        """Submit a job and reply 202, or with its result if that comes within `wait` seconds."""
        submitted = await self._engine.submit(job)
        resp.set_header("preference-applied", "respond-async")
        resp.set_header(JOB_HEADER, submitted.job_id)
        finished = await self._jobs.wait(req, submitted.job_id, wait_seconds) if wait_seconds else None
        if finished is None or not finished.finished:
            return self._jobs.accept(resp, submitted)
        if finished.state is not State.SUCCEEDED:
            raise TargetFailed(finished.error or "the job ended without an answer")
        resp.content_type = "application/json"
        resp.data = finished.result or b""
        return None

    # waiting calls ----------------------------------------------------------------------------------------------------

    async def _relay_answer(
        self, req: Request, resp: Response, path: str, job: NewJob, model: str, prefer: Prefer
    ) -> None:
        call = self._calls[job.id] = HeldCall()
        guard = Guard(job.id, job.tenant, KIND, None, None)
        begun = False
        try:
            self._scheduler.expect(job)
            await self._engine.submit(job)
            resp.set_header(JOB_HEADER, job.id)
            stream = await req.unless_gone(self._wait(job.id, call, model, prefer))
            begun = True
            self._relay(req, resp, guard, call, stream, path)
        finally:
            if not begun:
                self._forget(guard, "the caller did not wait any longer")

    async def _wait(self, job_id: str, call: HeldCall, model: str, prefer: Prefer) -> AnswerStream:
        """Return the answer once it begins. Wait for a target that is away for a while, in a queue without end."""
        left = limit = self._settings.wait_seconds if prefer.wait_seconds is None else prefer.wait_seconds
        came_at = time.time()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    return await asyncio.shield(call.answer)
            job = await self._engine.jobs.get_job(job_id, whole=False)
            if job is None or job.finished:  # perhaps on another node, whose notification was lost
                await self._explain(job_id, call)
            if self._scheduler.has_live_target(model):
                left = CHECK_SECONDS
                continue
            gone_at = max((target.since for target in self._scheduler.targets.values() if not target.up), default=0.0)
            left = max(came_at, gone_at) + limit - time.time()
            if left <= 0:
                raise TargetAway(
                    self._scheduler.explain(model).reason, retry_after_seconds=min(max(5.0, math.ceil(limit)), 60.0)
                )

    def on_move(self, moved: Moved) -> None:
        """Give the caller of a job that ended without an answer its error."""
        if moved.state in FINAL and moved.job_id in self._calls:
            call = self._calls[moved.job_id]
            call.finished.set()
            if not call.answer.done():
                self._spawn(self._explain(moved.job_id, call))

    async def _explain(self, job_id: str, call: HeldCall) -> None:
        try:
            error = (await self._engine.get(job_id)).error or "the job ended without an answer"
        except (NotFound, StoreError) as failure:
            error = failure.message
        if not call.answer.done():
            call.answer.set_exception(TargetFailed(error))

    def _forget(self, guard: Guard, why: str) -> None:
        """The caller is gone: cancel the job, and with it the generation at the target."""
        call = self._calls.pop(guard.job_id, None)
        if call is not None:
            call.answer.cancel()
        self._spawn(self._cancel(guard, why))

    async def _cancel(self, guard: Guard, why: str) -> None:
        with contextlib.suppress(Conflict, NotFound, StoreError):
            await self._engine.cancel(guard, message=why)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # relaying ---------------------------------------------------------------------------------------------------------

    def _relay(
        self, req: Request, resp: Response, guard: Guard, call: HeldCall, stream: AnswerStream, path: str
    ) -> None:
        head = stream.head or Head(502, {})
        write_head(resp, head.status, head.headers)
        resp.set_header(JOB_HEADER, guard.job_id)  # overwrites that of a target that is a Chargehand itself
        form = FORMS[path]
        leaving = req.leaving()

        def left(_: object) -> None:
            if not stream.closed and not has_ended(form, stream.content):
                self._forget(guard, "the caller hung up")

        leaving.add_done_callback(left)
        resp.stream = self._pieces(guard.job_id, call, stream, leaving, left)

    async def _pieces(
        self,
        job_id: str,
        call: HeldCall,
        stream: AnswerStream,
        leaving: "asyncio.Future[None]",
        left: Callable[[object], None],
    ) -> AsyncGenerator[bytes, None]:
        """Relay the bytes; raise where the target broke off, so that the caller's connection breaks off too.

        Every byte goes out as it comes, but the end only when the job's end is on disk: whoever reads the job next sees it.
        """
        try:
            async for piece in stream.read():
                yield piece
            await wait_within(call.finished, END_SECONDS)
        finally:
            leaving.remove_done_callback(left)
            leaving.cancel()
            self._calls.pop(job_id, None)

    # what needs no queue ----------------------------------------------------------------------------------------------

    def _holder_of(self, model: str) -> Target | None:
        """Return a target that has the model in memory: embeddings then need no load and no slot."""
        for target in self._scheduler.targets.values():
            ledger = target.ledger
            if ledger.offers(model) and ledger.holds(model) and model not in ledger.closing and ledger.trusts(model):
                return target
        return None

    async def _bypass(self, req: Request, resp: Response, target: Target, model: str, job: NewJob) -> None:
        """Send the request at once, without submitting a job."""
        request = pinned(decode_request(job.payload), self._attempts.pinned_for(model))
        target.ledger.enter(model)
        try:
            await req.unless_gone(self._forward(req, resp, target, request.path, request.body))
        finally:
            target.ledger.leave(model, used=True)
            if request.leaves:
                target.ledger.unloaded(model)
            self._scheduler.kick()

    async def _forward(self, req: Request, resp: Response, target: Target, path: str, body: bytes | memoryview) -> None:
        most, seconds = self._settings.max_answer_bytes, self._settings.answer_timeout_seconds
        await forward(req, resp, target, "POST", path, body, max_bytes=most, timeout_seconds=seconds)

    async def _unload(self, req: Request, resp: Response, path: str, asked: Essentials, body: bytes) -> None:
        """Unload the model under the lock on residency, once what runs on it has ended."""
        model = canonical(asked.model)
        holders = [
            target for target in self._scheduler.targets.values() if target.up and model in target.ledger.resident
        ]
        live = holders or [target for target in self._scheduler.targets.values() if target.up]
        if not live:
            raise TargetAway(self._scheduler.explain(model).reason, retry_after_seconds=5)
        for target in live if holders else live[:1]:
            async with self._scheduler.quiet(target, model, "a caller asked to unload it"):
                await self._forward(req, resp, target, path, body)
                target.ledger.unloaded(model)
            target.refresh()


async def forward(
    req: Request,
    resp: Response,
    target: Target,
    method: str,
    path: str,
    body: bytes | memoryview | None,
    *,
    max_bytes: int,
    timeout_seconds: float,
) -> None:
    """Forward a request to one target and reply with its whole answer; for small answers."""
    try:
        async with (
            target.watch(),
            target.open(method, path, body, request_headers(req), timeout_seconds=timeout_seconds) as response,
        ):
            content = await read_whole(response, max_bytes)
            write_head(resp, response.status, passed_on(response.headers))
            resp.data = content
    except (TargetUnreachable, Gone) as error:
        raise TargetAway(f"{target.name} is away ({error})", retry_after_seconds=5) from None
    except Unfit as error:
        raise TargetFailed(f"{target.name}: {error}") from None
    except TimeoutError:
        raise TargetFailed(f"{target.name} did not finish within {timeout_seconds:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        target.look()
        raise TargetFailed(f"{target.name} broke off: {error}") from None


def read_prefer(text: str) -> Prefer:
    words = [word.strip().lower() for word in re.split(r"[,;]", text)]
    wait = next((word.partition("=")[2].strip('" ') for word in words if word.startswith("wait=")), "")
    if wait and not (wait.isascii() and wait.isdigit() and len(wait) < 8):
        raise BadRequest("Prefer: wait must be a whole number of seconds")
    seconds = min(float(wait), MAX_WAIT_SECONDS) if wait else None
    return Prefer(seconds, "respond-async" in words)


def _for_a_job(path: str, body: bytes) -> msgspec.Raw | dict[str, Any]:
    """Return the body for a job: Ollama's own form is streamed, so that we see it grow; the others come in one piece."""
    if FORMS[path] is Form.VECTORS:
        return msgspec.Raw(body)
    return {**fields_of(body), "stream": FORMS[path] is Form.NATIVE}
