"""Calls for the engine's own API: `client.engine`. Any JSON can be a job there, and `jobs` lists the jobs of all doors.

A worker's move is not repeated when its answer is lost: `job` shows whether the server made it.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec

from chargehand.client.errors import JobFailed, NotDone
from chargehand.client.transport.calls import decode, given, instant, key_header, path_of
from chargehand.client.transport.job_log import JobCalls, JobLog
from chargehand.client.types.engine import (
    Event,
    Job,
    LeasedJob,
    ListedJob,
    MovedJob,
    QueueStatus,
    RateOfStarts,
    State,
    SubmittedJob,
    Webhook,
)


class EngineCalls(JobCalls[Event, Job]):
    base = "/engine"

    async def submit(
        self,
        queue: str,
        payload: Any,
        *,
        webhook: Webhook | str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        run_at: datetime | str = "",
        delay_seconds: float | None = None,
        deadline_seconds: float | None = None,
        limit_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str = "",
    ) -> SubmittedJob:
        """Submit a job for whichever worker claims from the queue."""
        wishes = {
            "webhook": Webhook(webhook) if isinstance(webhook, str) and webhook else webhook,
            "priority": priority,
            "max_attempts": max_attempts,
            "run_at": instant(run_at),
            "delay_seconds": delay_seconds,
            "deadline_seconds": deadline_seconds,
            "limit_key": limit_key,
            "metadata": metadata,
        }
        body = {"queue": queue, "payload": payload, **given(wishes)}
        return await self._call("POST", "/jobs", SubmittedJob, body, safe=True, headers=key_header(idempotency_key))

    async def job(self, job_id: str, *, retries: int | None = None) -> Job:
        return await self._get(path_of("jobs", job_id), Job, retries=retries)

    def jobs(
        self, *, state: State | None = None, kind: str = "", queue: str = "", before: str = "", limit: int | None = None
    ) -> AsyncGenerator[ListedJob, None]:
        """Newest first, of all doors unless `kind` names one. Without a limit: all; stop reading when you have enough."""
        by = {"state": state, "kind": kind, "queue": queue}
        return self._items("/jobs", "jobs", list[ListedJob], by, before=before, limit=limit)

    async def wait(self, job_id: str, *, timeout: float | None = None) -> Job:
        """Return the job once it has succeeded. JobFailed if it did not, NotDone if it has not ended in time."""
        job = await self._log(job_id).end(timeout) or Job(id=job_id, state="unknown")
        if not job.finished:
            waiting = f", waiting for {job.waiting_for}" if job.waiting_for else ""
            raise NotDone(job, job_id, job.state + waiting)
        if job.state != "succeeded":
            raise JobFailed(job, job.error or job.state)
        return job

    async def cancel(self, job_id: str) -> MovedJob:
        return await self._move(job_id, "cancel", {})

    async def requeue(self, job_id: str) -> MovedJob:
        """Give a failed or cancelled job all its attempts again."""
        return await self._move(job_id, "requeue", {})

    # for workers

    async def claim(
        self,
        queues: Sequence[str],
        *,
        limit: int = 1,
        lease_seconds: float | None = None,
        wait_seconds: float = 0.0,
        owner: str = "",
    ) -> list[LeasedJob]:
        """Claim jobs by priority, then age. If the answer is lost, the jobs stay claimed until their leases end."""
        wishes = {"lease_seconds": lease_seconds, "wait_seconds": wait_seconds, "owner": owner}
        body = {"queues": list(queues), "limit": limit, **given(wishes)}
        timeout = self._http.timeout + wait_seconds
        status, reply = await self._http.call("POST", f"{self.base}/claims", body, safe=False, timeout=timeout)
        return [] if status == 204 else decode(reply, list[LeasedJob], "jobs")

    async def beat(self, job_id: str, lease: int, lease_seconds: float | None = None) -> str:
        """Extend the lease; return until when it holds."""
        body = {"lease": lease, **given({"lease_seconds": lease_seconds})}
        return await self._call("POST", path_of("jobs", job_id, "/beat"), str, body, safe=True, member="lease_until")

    async def advance(self, job_id: str, lease: int, stage: str, message: str = "") -> MovedJob:
        return await self._move(job_id, "advance", {"lease": lease, "stage": stage, "message": message})

    async def note(
        self, job_id: str, lease: int, message: str, *, level: str = "info", step: str = "", data: Any = msgspec.UNSET
    ) -> None:
        """Add a line to the job's log."""
        extra = {} if data is msgspec.UNSET else {"data": data}
        body = {"lease": lease, "message": message, "level": level, "step": step, **extra}
        await self._http.call("POST", self.base + path_of("jobs", job_id, "/note"), body, safe=False)

    async def succeed(self, job_id: str, lease: int, result: Any = None) -> MovedJob:
        return await self._move(job_id, "succeed", {"lease": lease, "result": result})

    async def retry(
        self, job_id: str, lease: int, error: str, *, failed_step: str = "", delay_seconds: float | None = None
    ) -> MovedJob:
        """The work broke: the job runs again later if it has attempts left, else it fails."""
        wishes = given({"failed_step": failed_step, "delay_seconds": delay_seconds})
        return await self._move(job_id, "retry", {"lease": lease, "error": error, **wishes})

    async def park(self, job_id: str, lease: int, waiting_for: str = "", *, delay_seconds: float = 0.0) -> MovedJob:
        """Put the job back into its queue; the attempt does not count."""
        return await self._move(
            job_id, "park", {"lease": lease, "waiting_for": waiting_for, "delay_seconds": delay_seconds}
        )

    async def fail(self, job_id: str, lease: int, error: str, *, failed_step: str = "") -> MovedJob:
        """The job fails now: another attempt would fail too."""
        return await self._move(job_id, "fail", {"lease": lease, "error": error, **given({"failed_step": failed_step})})

    # for operators

    async def queues(self) -> list[QueueStatus]:
        return await self._get("/queues", list[QueueStatus], member="queues")

    async def set_queue(
        self,
        queue: str,
        *,
        kind: str = "job",
        paused: bool = False,
        max_running: int | None = None,
        rate: RateOfStarts | None = None,
        key_max_running: int | None = None,
        key_rate: RateOfStarts | None = None,
    ) -> QueueStatus:
        """Set all settings; one that is left out goes back to its default."""
        path = f"/queues/{quote(kind, safe='')}/{quote(queue, safe='')}"
        limits = {"rate": rate, "key_max_running": key_max_running, "key_rate": key_rate}
        body = {"paused": paused, "max_running": max_running, **given(limits)}
        return await self._call("PUT", path, QueueStatus, body, safe=True)

    async def _move(self, job_id: str, move: str, body: Any) -> MovedJob:
        return await self._call("POST", path_of("jobs", job_id, f"/{move}"), MovedJob, body, safe=False)

    def _log(self, job_id: str) -> JobLog[Event, Job]:
        return JobLog(
            self._http, self.base + path_of("jobs", job_id, "/events"), Event, lambda: self.job(job_id, retries=0)
        )
