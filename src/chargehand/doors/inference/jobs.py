"""`/jobs`: submit a chat or a completion; list, read, follow, cancel and retry jobs; fetch their artifacts."""

from typing import Annotated

import msgspec

from chargehand.config import Config
from chargehand.doors.inference import views
from chargehand.doors.inference.artifacts import artifact
from chargehand.doors.inference.names import KIND, TAG, checked, model_of, queue_of, spellings
from chargehand.doors.inference.request import decode_request, encode_request, leaves
from chargehand.doors.inference.running import RunningAttempts
from chargehand.doors.inference.scheduler import Scheduler
from chargehand.doors.inference.submission import SubmitInference, read_submission, target_body, target_path
from chargehand.doors.inference.tokens import follow_with_tokens
from chargehand.engine.engine import Engine
from chargehand.engine.held import PAUSED, held
from chargehand.engine.job import Job, NewJob, Report, State, rfc3339
from chargehand.engine.reads import JobFilter
from chargehand.errors import Conflict, EgressRefused, IdempotencyMismatch, NotFound, TooLarge
from chargehand.files import Files
from chargehand.http import sse
from chargehand.http.auth import Caller
from chargehand.http.files import send_file
from chargehand.http.inputs import identity, json_object, last_event_id, micros
from chargehand.http.jobs import (
    FOLLOW,
    FOLLOW_HEADERS,
    SUBMIT_HEADERS,
    Accepted,
    EventPage,
    EventsQuery,
    JobPage,
    JobResource,
    StepDoor,
    Wording,
)
from chargehand.http.paging import Cursor, Limit, cursor
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, query, read_body, reply

PATH = "/jobs"
POSITION_BOUND = 10_000
SHOWN_BYTES = 65_536


class ListInferenceJobs(msgspec.Struct, forbid_unknown_fields=True):
    state: views.StateFilter | None = None
    model: str | None = None
    cursor: Cursor | None = None
    limit: Limit = 50


class FollowQuery(EventsQuery):
    tokens: Annotated[
        bool, msgspec.Meta(description="With SSE: also what the model says, from its first token, as `token` events")
    ] = False


class InferenceMoved(msgspec.Struct):
    job_id: str
    state: views.StateName


WORDING = Wording(kind=KIND, noun="inference job", path=PATH, event_view=views.event_view, dialect="foreman")


class InferenceJobsApi:
    def __init__(
        self,
        engine: Engine,
        config: Config,
        jobs: JobResource,
        scheduler: Scheduler,
        running: RunningAttempts,
        files: Files,
    ) -> None:
        self._engine = engine
        self._jobs = jobs
        self._config = config
        self._settings = config.inference
        self._scheduler = scheduler
        self._running = running
        self._files = files

    def routes(self) -> list[Route]:
        read, write, one = "jobs:read", "jobs:write", f"{PATH}/{{job_id}}"
        # fmt: off
        return [
            Route("POST", PATH, self.submit_job, "Submit a chat or a completion", write, TAG,
                  "Durable when the 202 is there. Every change of state is sent to `state_webhook_url`.",
                  request=SubmitInference, headers=SUBMIT_HEADERS, status=202, reply=Accepted, errors=(EgressRefused, IdempotencyMismatch, TooLarge)),
            Route("GET", PATH, self.list_jobs, "List jobs, newest first", read, TAG, query=ListInferenceJobs, reply=JobPage[views.InferenceJobSummary]),
            Route("GET", one, self.get_job, "Read a job: state, result, artifacts, why it waits", read, TAG, reply=views.InferenceJobView, errors=(NotFound,)),
            Route("DELETE", one, self.cancel_job, "Cancel a job", write, TAG, "A running one is stopped at its target.",
                  reply=InferenceMoved, errors=(NotFound, Conflict)),
            Route("POST", f"{one}/retry", self.retry_job, "Give a failed job all its attempts again", write, TAG, reply=InferenceMoved, errors=(NotFound, Conflict)),
            Route("GET", f"{one}/events", self.list_events, "Read or follow a job's log, and its tokens", read, TAG, FOLLOW, query=FollowQuery,
                  headers=FOLLOW_HEADERS, reply=EventPage[views.InferenceEventView], errors=(NotFound,)),
            Route("HEAD", f"{one}/artifacts/{{name}}", self.get_artifact, "As GET", read, TAG, hidden=True),
            Route("GET", f"{one}/artifacts/{{name}}", self.get_artifact, "Fetch a file of a job", read, TAG, "With ranges and ETag.",
                  reply_media="application/octet-stream", errors=(NotFound,)),
        ]
        # fmt: on

    # submitting -------------------------------------------------------------------------------------------------------

    async def submit_job(self, req: Request, resp: Response) -> None:
        # The job has a copy of the body: nobody holds the body while the job is written.
        body = await read_body(req, self._settings.max_body_bytes)
        job = await self._new_job(req.caller.tenant, body, *identity(req, body))
        del body
        self._jobs.accept(resp, await self._jobs.submit(req, job, {"model": job.queue.name}))

    @property
    def steps(self) -> StepDoor:
        return StepDoor(KIND, ("jobs:write",), self._new_step)

    async def _new_step(self, caller: Caller, body: bytes) -> NewJob:
        return await self._new_job(caller.tenant, body)

    async def _new_job(
        self, tenant: str, body: bytes, key: str | None = None, fingerprint: str | None = None
    ) -> NewJob:
        asked, fields = await read_submission(body, self._settings)
        return NewJob(
            self._engine.new_id(),
            queue_of(tenant, asked.model),
            encode_request(
                target_path(fields), target_body(fields), leaves=leaves(asked.keep_alive), artifacts=asked.artifacts
            ),
            asked.priority,
            asked.max_attempts or self._config.engine.max_attempts,
            micros("run_at", asked.run_at),
            asked.delay_seconds,
            key,
            fingerprint,
            reports=self._reports(tenant, asked),
            metadata=json_object("metadata", asked.metadata),
            deadline_seconds=asked.deadline_seconds,
        )

    def _reports(self, tenant: str, asked: SubmitInference) -> tuple[Report, ...]:
        states = dict.fromkeys(asked.webhook_events or ())
        topics = tuple(topic for state in states for topic in views.TOPICS[state])
        return self._jobs.report_to(tenant, "state_webhook_url", asked.state_webhook_url, topics)

    # reading ----------------------------------------------------------------------------------------------------------

    async def get_job(self, req: Request, resp: Response, job_id: str) -> None:
        job = await self._jobs.get(job_id, req.caller.tenant)
        store = self._engine.jobs
        now, log = await store.now(), await store.list_events(job.id)
        events = [event for event in log if event.seq <= job.seq]  # it may have moved on since it was read
        files = [artifact(job.id, file) for file in await self._files.list_of_job(job.id)]
        attempts = views.attempts_of(events)
        queued = job.state is State.QUEUED
        place = await store.waiting(job, POSITION_BOUND) if queued else None
        waiting_for, waiting = self._waiting(job, now, place.held_by if place else "")
        request = decode_request(job.payload)
        view = views.InferenceJobView(
            **views.summary(job, waiting_for),
            waiting=waiting,
            position=place.position if place else None,
            resident={ledger.name: sorted(ledger.resident) for ledger in self._scheduler.ledgers} if queued else None,
            metadata=msgspec.Raw(job.metadata) if job.metadata else None,
            request=views.RequestView(request.path, len(request.body), _shown(request.body)),
            result=msgspec.Raw(job.result) if job.result else None,
            artifacts=files,
            evidence=attempts[-1].evidence if attempts and job.finished else None,
            attempts=attempts,
        )
        reply(resp, view)

    async def list_jobs(self, req: Request, resp: Response) -> None:
        asked, tenant = query(req, ListInferenceJobs), req.caller.tenant
        by = JobFilter(
            tenant,
            KIND,
            names=() if asked.model is None else spellings(checked("model", asked.model)),
            before=cursor(asked.cursor),
            limit=asked.limit,
            topics=() if asked.state is None else views.TOPICS[asked.state],
            stopped=asked.state == "failed",
        )
        jobs, following = await self._jobs.list(by)
        now = await self._engine.jobs.now()
        why = await held(self._engine.jobs, jobs, now)
        waiting = {job.id: self._waiting(job, now, why.get(job.id, ""))[0] for job in jobs}
        listed = [views.InferenceJobSummary(**views.summary(job, waiting[job.id])) for job in jobs]
        reply(resp, JobPage(listed, following))

    def _waiting(self, job: Job, now: int, held_by: str) -> tuple[str | None, str | None]:
        if views.shown_state(job) != "queued":
            return None, None
        if job.waits_for_steps:
            return job.waiting_for, "waits for other steps of its flow"
        if job.run_at > now:
            why = job.waiting_for or "run_at"
            return why, f"not before {rfc3339(job.run_at)} ({why})" + (f": {job.error}" if job.error else "")
        if held_by:
            return "queue", "an operator has paused its queue" if held_by == PAUSED else held_by
        waiting = self._scheduler.explain(model_of(job.queue), job.queue)
        return waiting.waiting_for, waiting.reason

    async def get_artifact(self, req: Request, resp: Response, job_id: str, name: str) -> None:
        job = await self._jobs.get(job_id, req.caller.tenant)
        file = await self._files.of_job(job.id, name)
        if file is None:
            raise NotFound(f"job {job_id} has no artifact {name!r}")
        await send_file(req, resp, self._files, file)

    # changing ---------------------------------------------------------------------------------------------------------

    async def cancel_job(self, req: Request, resp: Response, job_id: str) -> None:
        job = await self._jobs.get(job_id, req.caller.tenant)
        await self._jobs.cancel(req, job)
        reply(resp, InferenceMoved(job.id, "failed"))

    async def retry_job(self, req: Request, resp: Response, job_id: str) -> None:
        job = await self._jobs.get(job_id, req.caller.tenant)
        if job.queue.node:
            raise Conflict(f"job {job_id} was a synchronous request: its caller is gone, send the request again")
        await self._jobs.requeue(req, job)
        reply(resp, InferenceMoved(job.id, "queued"))

    # following --------------------------------------------------------------------------------------------------------

    async def list_events(self, req: Request, resp: Response, job_id: str) -> None:
        asked = query(req, FollowQuery)
        job = await self._jobs.get(job_id, req.caller.tenant)
        if not asked.tokens:
            return await self._jobs.send_events(req, resp, job, asked.after)
        after = max(asked.after, last_event_id(req))
        sse.send_events(req, resp, follow_with_tokens(self._engine, self._jobs, self._running, job, after))
        return None


def _shown(body: memoryview) -> msgspec.Raw | None:
    """A body with images is megabytes, and whoever asks how a job is doing has it already."""
    return msgspec.Raw(body) if len(body) <= SHOWN_BYTES else None
