"""Workers finish tasks here. Result, state and callback of a task are written in one commit."""

import asyncio
import base64
import binascii
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from chargehand.config import Config
from chargehand.doors.tasks import access, wire
from chargehand.doors.tasks.errors import TaskRefused, detail_of
from chargehand.doors.tasks.holding import TaskHolder
from chargehand.doors.tasks.names import BASE, RESULT
from chargehand.doors.tasks.views import ResultArtifact, ResultView, result_view
from chargehand.engine.endings import end_of, repeated
from chargehand.engine.engine import Engine
from chargehand.engine.job import rfc3339
from chargehand.engine.moves import Change
from chargehand.errors import ChargehandError, Conflict, InvalidField, NotFound, StaleLease
from chargehand.files import Files, checked_name
from chargehand.http.carried import carried_json
from chargehand.http.inputs import absent
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, reply

INVALID = "invalid request body"
NO_TASK = "task not found"
COMPLETED, FAILED = "COMPLETED", "FAILED"
MAX_URL = 4096


class SubmittedResult(msgspec.Struct, rename="camel", omit_defaults=True):
    task_id: str
    result: ResultView | None = None
    error: str = ""
    detail: str = ""


class SubmittedResults(msgspec.Struct):
    results: list[SubmittedResult]


class ResultsApi:
    def __init__(self, engine: Engine, config: Config, files: Files) -> None:
        self._engine = engine
        self._files = files
        self._max_body = config.server.max_body_bytes
        self._public_url = config.tasks.public_url.rstrip("/")

    def routes(self) -> list[Route]:
        # fmt: off
        return [
            wire.route("POST", f"{BASE}/tasks/{{task_id}}/result", self.submit_result, "Finish a task",
                  "COMPLETED with a result, or FAILED with an error: neither is tried again.",
                  request=wire.SubmitResult, reply=ResultView, errors=(NotFound, StaleLease)),
            wire.route("POST", f"{BASE}/tasks/batch/results", self.submit_results, "Finish up to 100 tasks", "Each for itself.",
                  request=wire.SubmitResults, reply=SubmittedResults),
        ]
        # fmt: on

    async def submit_result(self, req: Request, resp: Response, task_id: str) -> None:
        holder = TaskHolder.of(req.caller, RESULT, task_id, NO_TASK)
        asked = await wire.read(req, wire.submit_result, self._max_body, INVALID)
        reply(resp, await self.submit(holder, asked, req.base_url))

    async def submit_results(self, req: Request, resp: Response) -> None:
        access.worker(req.caller, RESULT)
        asked = await wire.read(req, wire.submit_results, self._max_body)
        wire.check_batch("results", asked.results)
        submitting = [self._submit_one(req, each) for each in asked.results]
        del asked  # the body is freed once each result has been copied
        done = await asyncio.gather(*submitting)
        reply(resp, SubmittedResults(list(done)))

    async def _submit_one(self, req: Request, raw: msgspec.Raw) -> SubmittedResult:
        asked = wire.SubmitOne()
        try:
            asked = wire.parse(wire.submit_one, raw, INVALID)
            del raw
            holder = TaskHolder.of(req.caller, RESULT, asked.task_id, NO_TASK)
            return SubmittedResult(asked.task_id, await self.submit(holder, asked, req.base_url))
        except ChargehandError as error:
            return SubmittedResult(asked.task_id, error=error.message, detail=detail_of(error))

    async def submit(self, holder: TaskHolder, asked: wire.SubmitResult, base_url: str) -> ResultView:
        change = _end(holder, asked)
        asked.result = absent()  # frees the body: the change has a copy
        try:
            return await self._finish(holder, asked, change, base_url)
        except TaskRefused as refused:
            done = await repeated(self._engine.jobs, change) if refused.http_status == Conflict.status else None
            if done is None:
                raise
            return result_view(done, await end_of(self._engine.jobs, done))

    async def _finish(self, holder: TaskHolder, asked: wire.SubmitResult, change: Change, base_url: str) -> ResultView:
        artifacts = []
        if asked.artifacts:
            # Checked first, so that no worker adds files to a task that it does not hold.
            job = await holder.held(self._engine, asked.lease)
            base = self._public_url or base_url
            kept = [await self._keep(job.id, job.tenant, each, base) for each in asked.artifacts]
            artifacts = [each for each in kept if each is not None]
            change = replace(change, data=msgspec.json.encode({"artifacts": artifacts}) if artifacts else None)
        moved = await holder.act(self._engine, asked.lease, self._engine.change(change))
        return ResultView(
            holder.task_id,
            asked.status,
            rfc3339(moved.at),
            carried_json(change.result) if change.result else None,
            change.error or "",
            artifacts or None,
        )

    # artifacts --------------------------------------------------------------------------------------------------------

    async def _keep(self, task_id: str, tenant: str, given: wire.NewArtifact, base: str) -> ResultArtifact | None:
        """Save an artifact, or return it as it is if it is a URL. One with neither is dropped, as codeQ does."""
        if given.url:
            if len(given.url) > MAX_URL or not given.url.isprintable():
                raise TaskRefused(400, INVALID, detail=f"artifacts.url: at most {MAX_URL} printable characters")
            return ResultArtifact(given.name, given.url)
        if bytes(memoryview(given.content_base64)[:5]) in (b"", b"null"):
            return None
        try:
            name = checked_name("artifacts.name", given.name)
            content = _from_base64(given.content_base64)
            media_type = given.content_type or "application/octet-stream"
            file = await self._files.save(tenant, name, media_type, content, job_id=task_id)
        except (binascii.Error, ValueError):
            raise TaskRefused(400, f"artifact {given.name[:100]!r}: contentBase64 is not base64") from None
        except InvalidField as error:
            raise TaskRefused(400, f"artifact {given.name[:100]!r}: {error.message}") from None
        return ResultArtifact(file.name, f"{base}{BASE}/tasks/{task_id}/artifacts/{quote(file.name, safe='')}")


def _end(holder: TaskHolder, asked: wire.SubmitResult) -> Change:
    """Return the move that ends the task as the worker asks."""
    result, error = _checked(asked)
    completed = asked.status == COMPLETED
    return Change(
        holder.guard(asked.lease),
        "succeed" if completed else "fail",
        error=None if completed else error,
        result=result,
        level="info" if completed else "error",
        message=f"{asked.status} by {holder.owner}" if completed else f"{asked.status} by {holder.owner}: {error}",
    )


def _from_base64(raw: msgspec.Raw) -> bytes:
    """Decode a JSON string of base64, with or without padding. Some encoders escape slashes; other escapes are refused."""
    if bytes(memoryview(raw)[:1]) != b'"':
        raise ValueError("not a string")
    text = bytes(memoryview(raw)[1:-1]).replace(b"\\/", b"/")
    return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)


def _checked(asked: wire.SubmitResult) -> tuple[bytes | None, str]:
    result = wire.some_json("result", asked.result, INVALID)
    if result is not None and not result.startswith(b"{"):
        raise TaskRefused(400, INVALID, detail="result: must be a JSON object", field="result")
    error = (asked.error or "").strip()
    if asked.status not in (COMPLETED, FAILED):
        if not asked.status:
            raise TaskRefused(400, INVALID, detail="status: is required", field="status")
        raise TaskRefused(400, "invalid status", detail="status: must be COMPLETED or FAILED", field="status")
    if asked.status == COMPLETED and result is None:
        raise TaskRefused(400, "result required when status=COMPLETED", field="result")
    if asked.status == FAILED and not error:
        raise TaskRefused(400, "error required when status=FAILED", field="error")
    return result, error
