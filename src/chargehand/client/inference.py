"""Calls for models: a chat or a completion is a job that is on disk when `submit` returns, whether or not anybody waits for it."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Unpack
from urllib.parse import quote

import msgspec

from chargehand.client.answer import StreamedAnswer
from chargehand.client.errors import JobFailed, NotDone
from chargehand.client.transport.calls import given, instant, key_header, path_of
from chargehand.client.transport.job_log import Away, Back, JobCalls, JobLog, Reconnected, TokenLine, ignore
from chargehand.client.types.engine import SubmittedJob
from chargehand.client.types.inference import (
    Event,
    Job,
    JobState,
    ListedInferenceJob,
    Messages,
    ModelTarget,
    State,
    Token,
    Wish,
    Wishes,
    token_of,
)


class InferenceCalls(JobCalls[Event, Job]):
    async def submit(
        self, model: str, messages: Messages | None = None, *, prompt: str | None = None, **wishes: Unpack[Wishes]
    ) -> SubmittedJob:
        """Submit a chat, or with `prompt` a completion. A text in place of messages is one message of the user."""
        body = {"model": model, "messages": _messages(messages), "prompt": prompt, **_body(wishes)}
        headers = key_header(wishes.get("idempotency_key", ""))
        return await self._call("POST", "/jobs", SubmittedJob, given(body), safe=True, headers=headers)

    async def chat(
        self,
        model: str,
        messages: Messages | None = None,
        *,
        prompt: str | None = None,
        timeout: float | None = None,
        **wishes: Unpack[Wishes],
    ) -> Job:
        """Submit and wait; return the job with its answer. NotDone and JobFailed have its id in `job.id`."""
        made = await self.submit(model, messages, prompt=prompt, **wishes)
        return await self.wait(made.job_id, timeout=timeout)

    async def job(self, job_id: str, *, retries: int | None = None) -> Job:
        return await self._get(path_of("jobs", job_id), Job, retries=retries)

    def jobs(
        self, *, state: State | None = None, model: str = "", before: str = "", limit: int | None = None
    ) -> AsyncGenerator[ListedInferenceJob, None]:
        """Newest first. Without a limit: all; stop reading when you have enough."""
        by = {"state": state, "model": model}
        return self._items("/jobs", "jobs", list[ListedInferenceJob], by, before=before, limit=limit)

    async def wait(self, job_id: str, *, timeout: float | None = None) -> Job:
        """Return the job once it is done. JobFailed if it failed, NotDone if it has not ended in time. Nothing is polled."""
        job = await self._log(job_id).end(timeout) or Job(id=job_id, state="unknown")
        if not job.finished:
            raise NotDone(job, job_id, f"{job.state}{f': {job.waiting}' if job.waiting else ''}")
        return _good(job)

    async def stream(self, job_id: str, *, away: Away = ignore, back: Back = ignore) -> AsyncGenerator[Token, None]:
        """The answer as the model writes it, each piece once; of a job that is done, all of it. JobFailed if it fails.

        When the connection is lost, the stream continues where it was. When another attempt gives another answer, a token with
        `restarted` replaces all tokens before it. In the end the tokens add up to the answer that the job has.
        """
        answer = StreamedAnswer()
        async with aclosing(self.follow(job_id, away=away, back=back)) as news:
            async for each in news:
                if isinstance(each, Token):
                    if (token := answer.add(each)) is not None:
                        yield token
                elif isinstance(each, Reconnected) or each.state == "queued":
                    answer.restart()
        job = _good(await self.job(job_id))
        if job.result is not None and (token := answer.complete(Token(job.text, job.thinking))) is not None:
            yield token

    async def follow(
        self, job_id: str, after: int = 0, *, away: Away = ignore, back: Back = ignore
    ) -> AsyncGenerator[Event | Token | Reconnected, None]:
        """`watch`, with the tokens as the server sends them: from the attempt's first on after each Reconnected."""
        async with aclosing(self._log(job_id, tokens=True).follow(after, away, back)) as news:
            async for each in news:
                yield _token(each) if isinstance(each, TokenLine) else each

    async def cancel(self, job_id: str) -> JobState:
        """Cancel a job; the target stops a running one."""
        return await self._call("DELETE", path_of("jobs", job_id), JobState, safe=False)

    async def cancel_batch(self, job_id: str) -> None:
        """Cancel a batch, by the id of its job: what stands after `batch_` in the batch's own id."""
        await self._http.call("POST", f"/v1{path_of('batches', f'batch_{job_id}', '/cancel')}", safe=False)

    async def retry(self, job_id: str) -> JobState:
        """Give a failed job all its attempts again."""
        return await self._call("POST", path_of("jobs", job_id, "/retry"), JobState, safe=False)

    async def artifact(self, job_id: str, name: str) -> bytes:
        """The bytes of a file that the job kept."""
        path = path_of("jobs", job_id, f"/artifacts/{quote(name, safe='')}")
        return (await self._http.call("GET", path, safe=True))[1]

    async def targets(self) -> list[ModelTarget]:
        return await self._get("/targets", list[ModelTarget], member="targets")

    def _log(self, job_id: str, *, tokens: bool = False) -> JobLog[Event, Job]:
        return JobLog(
            self._http, path_of("jobs", job_id, "/events"), Event, lambda: self.job(job_id, retries=0), tokens=tokens
        )


def _good(job: Job) -> Job:
    if job.state == "failed":
        raise JobFailed(job, job.error or "the server gives no reason")
    return job


def _messages(messages: Messages | None) -> list[Mapping[str, Any]] | None:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return None if messages is None else list(messages)


def _body(wishes: Wishes) -> dict[str, Any]:
    body: dict[str, Any] = {name: value for name, value in wishes.items() if name != "idempotency_key"}
    if "webhook" in body:
        body["state_webhook_url"] = body.pop("webhook")
    if "run_at" in wishes:
        body["run_at"] = instant(wishes["run_at"])
    if "artifacts" in wishes:
        body["artifacts"] = [Wish(each) if isinstance(each, str) else each for each in wishes["artifacts"]]
    return body


def _token(line: TokenLine) -> Token:
    """Empty for a line that is not in the shape of Ollama's API."""
    try:
        return token_of(msgspec.json.decode(line.data))
    except msgspec.DecodeError:
        return Token()
