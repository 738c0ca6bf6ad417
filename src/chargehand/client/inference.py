"""Models, as calls: a chat or a completion is a job that is on disk when `submit` returns, whoever waits for it or not."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Unpack
from urllib.parse import quote

import msgspec

from chargehand.client.answer import StreamedAnswer
from chargehand.client.errors import JobFailed, NotDone
from chargehand.client.transport.calls import Calls, given, instant, key_header
from chargehand.client.transport.job_log import Again, Away, Back, Log, TokenLine, nothing
from chargehand.client.types.engine import SubmittedJob
from chargehand.client.types.inference import (
    Event,
    Job,
    JobState,
    ListedInferenceJob,
    ListedInferenceJobs,
    Messages,
    ModelTarget,
    ModelTargets,
    State,
    Token,
    Wish,
    Wishes,
    token_of,
)


class InferenceCalls(Calls):
    async def submit(
        self, model: str, messages: Messages | None = None, *, prompt: str | None = None, **wishes: Unpack[Wishes]
    ) -> SubmittedJob:
        """A chat, or with `prompt` a completion. A text in place of messages is what the user says."""
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
        """Submit and wait: the job with its answer. It goes on if you go; NotDone and JobFailed hold its id in `job.id`."""
        made = await self.submit(model, messages, prompt=prompt, **wishes)
        return await self.wait(made.job_id, timeout=timeout)

    async def job(self, job_id: str, *, retries: int | None = None) -> Job:
        return await self._get(_job(job_id), Job, retries=retries)

    async def jobs(self, *, state: State | None = None, model: str = "") -> AsyncGenerator[ListedInferenceJob, None]:
        """Newest first, all there are: stop reading when it is enough."""
        async for page in self._pages("/jobs", ListedInferenceJobs, {"state": state, "model": model}):
            for job in page.jobs:
                yield job

    async def wait(self, job_id: str, *, timeout: float | None = None) -> Job:
        """The job once it is done. JobFailed if it failed, NotDone if it has not ended by then. Nothing is polled."""
        job = await self._log(job_id).end(timeout) or Job(id=job_id, state="unknown")
        if not job.finished:
            raise NotDone(job, f"{job.state}{f': {job.waiting}' if job.waiting else ''}")
        return _good(job)

    async def stream(self, job_id: str, *, away: Away = nothing, back: Back = nothing) -> AsyncGenerator[Token, None]:
        """The answer as it is being token_of, each piece once; of a job that is done, all of it. JobFailed if it fails.

        A connection that is lost is taken up again where it was. When an attempt breaks and the next one says something else,
        a token with `restarted` takes the place of all before it. What was told is in the end what the job has for its answer.
        """
        telling = StreamedAnswer()
        async with aclosing(self._log(job_id, tokens=True).news(0, away, back)) as news:
            async for each in news:
                if isinstance(each, TokenLine):
                    if (token := telling.hear(_spoken(each))) is not None:
                        yield token
                elif isinstance(each, Again) or each.state == "queued":
                    telling.begin()
        job = _good(await self.job(job_id))
        if job.result is not None and (token := telling.settle(Token(job.text, job.thinking))) is not None:
            yield token

    def events(self, job_id: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """What happened to it until now."""
        return self._log(job_id).read(after)

    def watch(
        self, job_id: str, after: int = 0, *, away: Away = nothing, back: Back = nothing
    ) -> AsyncGenerator[Event, None]:
        """Its events as they happen, each once and in order, until it has ended. A server that is away is waited for."""
        return self._log(job_id).watch(after, away, back)

    async def cancel(self, job_id: str) -> JobState:
        """A running one is stopped at its target."""
        return await self._call("DELETE", _job(job_id), JobState, safe=False)

    async def retry(self, job_id: str) -> JobState:
        """A failed job gets all its attempts again."""
        return await self._call("POST", _job(job_id, "/retry"), JobState, safe=False)

    async def artifact(self, job_id: str, name: str) -> bytes:
        """The bytes of a file that the job kept, as a whole."""
        path = _job(job_id, f"/artifacts/{quote(name, safe='')}")
        return (await self._http.call("GET", path, safe=True))[1]

    async def targets(self) -> list[ModelTarget]:
        return (await self._get("/targets", ModelTargets)).targets

    def _log(self, job_id: str, *, tokens: bool = False) -> Log[Event, Job]:
        return Log(self._http, _job(job_id, "/events"), Event, lambda: self.job(job_id, retries=0), tokens=tokens)


def _good(job: Job) -> Job:
    if job.state == "failed":
        raise JobFailed(job, job.error or "it does not say why")
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


def _spoken(line: TokenLine) -> Token:
    """Nothing, if it is in the words of another API than Ollama's."""
    try:
        return token_of(msgspec.json.decode(line.data))
    except msgspec.DecodeError:
        return Token()


def _job(job_id: str, verb: str = "") -> str:
    return f"/jobs/{quote(job_id, safe='')}{verb}"
