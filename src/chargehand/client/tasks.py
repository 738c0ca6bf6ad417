"""Calls for tasks: `client.tasks`. For producers, and for workers that need more than `Worker` does.

    async with AsyncClient("http://127.0.0.1:8484", token="…") as client:
        task = await client.tasks.create("render_video", {"file": "cat.mp4"})
        task, result = await client.tasks.wait(task.id, timeout=60)

When its answer is lost, a call is repeated only if that cannot do a thing twice: reads, `create`, which always has an idempotency key,
and calls that name a lease.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec

from chargehand.client.errors import ClientError, NotDone
from chargehand.client.task_stream import TaskStream
from chargehand.client.transport.backoff import pause
from chargehand.client.transport.calls import Calls, Reply, decode, filled, instant, last_read, new_key, path_of
from chargehand.client.transport.job_log import Away, Back, JobLog, ignore
from chargehand.client.types.tasks import (
    ClaimedTasks,
    Created,
    Ended,
    Event,
    Nacked,
    NewResult,
    NewTask,
    ReportedResult,
    Result,
    Task,
    WorkerSubscription,
)

MAX_BATCH = 100  # creates and results; claims: 10
MAX_CLAIM = 10
MAX_WAIT_SECONDS = 60.0  # the longest that a server waits for a result
SILENCE_SECONDS = 40.0  # a stream sends a keep-alive every 10 s


class TaskCalls(Calls):
    base = "/v1/codeq"

    # for producers

    async def create(
        self,
        command: str,
        payload: Any,
        *,
        priority: int = 0,
        webhook: str = "",
        max_attempts: int = 0,
        idempotency_key: str = "",
        unique_key: str = "",
        run_at: datetime | str = "",
        delay_seconds: float = 0,
        metadata: Mapping[str, Any] = {},
        limit_key: str = "",
    ) -> Task:
        """Create a task for the workers of a command. The same idempotency key again returns the task that it made; without
        one the client makes a key, so that it can repeat a request whose answer is lost without a second task."""
        key, at = idempotency_key or new_key(), instant(run_at)
        new = NewTask(
            command, payload, priority, webhook, max_attempts, key, unique_key, at, delay_seconds, metadata, limit_key
        )
        return await self._post("/tasks", new, Task, safe=True)

    async def create_many(self, tasks: Iterable[NewTask]) -> list[Created]:
        """Create tasks; the results are in the same order, each a task or an error. One request has up to 100."""
        wanted = list(tasks)
        made: list[Created] = []
        for start in range(0, len(wanted), MAX_BATCH):
            part = [
                new if new.idempotency_key else msgspec.structs.replace(new, idempotency_key=new_key())
                for new in wanted[start : start + MAX_BATCH]
            ]
            made += await self._post("/tasks/batch", {"tasks": part}, list[Created], safe=True, member="results")
        return made

    async def get(self, task_id: str, *, retries: int | None = None) -> Task:
        return await self._get(path_of("tasks", task_id), Task, retries=retries)

    def find(
        self, *, command: str = "", status: str = "", before: str = "", limit: int | None = None
    ) -> AsyncGenerator[Task, None]:
        """Newest first, without payloads. Without a limit: all; stop reading when you have enough."""
        by = {"command": command, "status": status}
        return self._items("/tasks", "tasks", list[Task], by, before=before, limit=limit)

    async def result(
        self, task_id: str, wait_seconds: float = 0, *, retries: int | None = None
    ) -> tuple[Task, Result] | None:
        """The task and its result; None: it has not ended. The server waits 60 seconds at most."""
        query = {"waitSeconds": str(math.ceil(wait_seconds))} if wait_seconds > 0 else {}
        path = path_of("tasks", task_id, "/result")
        try:
            timeout = self._http.timeout + wait_seconds
            ended = await self._get(path, Ended, query=query, timeout=timeout, retries=retries)
        except ClientError as error:
            if error.status == 404 and error.text == "result not found":
                return None
            raise
        return ended.task, ended.result

    async def wait(self, task_id: str, *, timeout: float | None = None) -> tuple[Task, Result]:
        """Return the task and its result once it has ended, COMPLETED or FAILED. NotDone if it has not ended in time. Waits
        while the server is away."""
        try:
            async with asyncio.timeout(timeout):
                return await self._ended(task_id)
        except TimeoutError:
            if (ended := await last_read(self.result(task_id, retries=0))) is not None:
                return ended
        task = await last_read(self.get(task_id, retries=0)) or Task(id=task_id, status="UNKNOWN")
        raise NotDone(task, task_id, task.status)

    def events(self, task_id: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """The events until now, progress too."""
        return self._log(task_id).read(after)

    def watch(
        self, task_id: str, after: int = 0, *, away: Away = ignore, back: Back = ignore
    ) -> AsyncGenerator[Event, None]:
        """The events as they happen, each once and in order, until the task has ended. Waits while the server is away."""
        return self._log(task_id).watch(after, away, back)

    async def artifact(self, task_id: str, name: str) -> bytes:
        """The bytes of a file of its result."""
        path = path_of("tasks", task_id, f"/artifacts/{quote(name, safe='')}")
        return (await self._http.call("GET", self.base + path, safe=True))[1]

    async def cancel(self, task_id: str) -> Task:
        return await self._post(path_of("tasks", task_id, "/cancel"), {}, Task, safe=False)

    # for workers

    async def claim(
        self,
        commands: Sequence[str] = (),
        *,
        lease_seconds: float = 60,
        wait_seconds: float = 0,
        retries: int | None = None,
    ) -> Task | None:
        """Claim a task; None: there is none. If the answer is lost, the task stays claimed until its lease ends."""
        body = {"commands": commands, "leaseSeconds": math.ceil(lease_seconds), "waitSeconds": math.ceil(wait_seconds)}
        timeout = self._http.timeout + wait_seconds
        status, reply = await self._http.call(
            "POST", f"{self.base}/tasks/claim", filled(body), safe=False, timeout=timeout, retries=retries
        )
        return None if status == 204 else decode(reply, Task)

    async def claim_many(
        self, count: int, commands: Sequence[str] = (), *, lease_seconds: float = 60, retries: int | None = None
    ) -> list[Task]:
        """Claim up to ten tasks, without waiting for any."""
        body = {"count": min(count, MAX_CLAIM), "commands": commands, "leaseSeconds": math.ceil(lease_seconds)}
        status, reply = await self._http.call(
            "POST", f"{self.base}/tasks/claim/batch", filled(body), safe=False, retries=retries
        )
        return [] if status == 204 else decode(reply, ClaimedTasks).tasks

    @asynccontextmanager
    async def claims(
        self, commands: Sequence[str] = (), *, lease_seconds: float = 60, max_in_flight: int = 1
    ) -> AsyncIterator[TaskStream]:
        """Open a stream of tasks, of which at most `max_in_flight` are unfinished at once. It ends only when the connection
        breaks, with or without a ClientError: then open it again."""
        body = {"commands": commands, "leaseSeconds": math.ceil(lease_seconds), "maxInFlight": max_in_flight}
        path = f"{self.base}/tasks/claim/stream"
        async with self._http.stream(path, filled(body), SILENCE_SECONDS) as answer:
            name = answer.headers.get("x-chargehand-stream", "")

            async def close() -> None:
                await self._http.call("DELETE", f"{path}/{quote(name, safe='')}", safe=True)

            yield TaskStream(answer, close)

    async def heartbeat(
        self, task_id: str, extend_seconds: float, *, lease: int = 0, retries: int | None = None
    ) -> None:
        body = {"extendSeconds": math.ceil(extend_seconds), **_lease(lease)}
        await self._http.call(
            "POST", self.base + path_of("tasks", task_id, "/heartbeat"), body, safe=True, retries=retries
        )

    async def abandon(self, task_id: str, *, lease: int = 0, retries: int | None = None) -> None:
        """Put the task back into its queue as if nobody had claimed it."""
        await self._http.call(
            "POST", self.base + path_of("tasks", task_id, "/abandon"), _lease(lease), safe=bool(lease), retries=retries
        )

    async def nack(
        self,
        task_id: str,
        *,
        delay_seconds: float | None = None,
        reason: str = "",
        lease: int = 0,
        retries: int | None = None,
    ) -> Nacked:
        """Have the task tried again later, if it has attempts left. Without a delay the server's backoff decides."""
        delay = {} if delay_seconds is None else {"delaySeconds": math.ceil(delay_seconds)}
        body = {"reason": reason, **delay, **_lease(lease)}
        return await self._post(path_of("tasks", task_id, "/nack"), body, Nacked, safe=bool(lease), retries=retries)

    async def complete(self, task_id: str, result: Any, *, artifacts: Sequence[Any] = (), lease: int = 0) -> Result:
        return await self.submit(task_id, NewResult("COMPLETED", result, artifacts=tuple(artifacts), lease=lease))

    async def fail(self, task_id: str, error: str, *, artifacts: Sequence[Any] = (), lease: int = 0) -> Result:
        """The task fails for good."""
        return await self.submit(task_id, NewResult("FAILED", error=error, artifacts=tuple(artifacts), lease=lease))

    async def submit(self, task_id: str, outcome: NewResult, *, retries: int | None = None) -> Result:
        return await self._post(
            path_of("tasks", task_id, "/result"), outcome, Result, safe=bool(outcome.lease), retries=retries
        )

    async def submit_many(self, outcomes: Sequence[NewResult], *, retries: int | None = None) -> list[ReportedResult]:
        """Report up to 100 results, each with its `task_id`; the replies are in the same order. codeQ ignores artifacts here."""
        safe = all(outcome.lease for outcome in outcomes)
        path = "/tasks/batch/results"
        body = {"results": outcomes}
        return await self._post(path, body, list[ReportedResult], safe=safe, retries=retries, member="results")

    async def progress(
        self,
        task_id: str,
        percent: float | None = None,
        message: str | None = None,
        data: Any = msgspec.UNSET,
        *,
        lease: int = 0,
        retries: int | None = None,
    ) -> None:
        fields = {"percent": percent, "message": message}
        body = {name: value for name, value in fields.items() if value is not None} | _lease(lease)
        if data is not msgspec.UNSET:
            body["data"] = data
        await self._http.call(
            "POST", self.base + path_of("tasks", task_id, "/progress"), body, safe=True, retries=retries
        )

    async def subscribe(
        self,
        callback_url: str,
        event_types: Sequence[str] = (),
        *,
        ttl_seconds: int = 0,
        delivery_mode: str = "",
        group_id: str = "",
        min_interval_seconds: int = 0,
    ) -> WorkerSubscription:
        """Have the server call `callback_url` when there is work. Its calls are signed, see verify_webhook."""
        body = {
            "callbackUrl": callback_url,
            "eventTypes": event_types,
            "ttlSeconds": ttl_seconds,
            "deliveryMode": delivery_mode,
            "groupId": group_id,
            "minIntervalSeconds": min_interval_seconds,
        }
        return await self._post("/workers/subscriptions", filled(body), WorkerSubscription, safe=False)

    async def renew(self, subscription_id: str, ttl_seconds: int = 0) -> WorkerSubscription:
        path, body = (
            path_of("workers/subscriptions", subscription_id, "/heartbeat"),
            filled({"ttlSeconds": ttl_seconds}),
        )
        return await self._post(path, body, WorkerSubscription, safe=True)

    async def unsubscribe(self, subscription_id: str) -> None:
        await self._http.call("DELETE", self.base + path_of("workers/subscriptions", subscription_id), safe=True)

    async def _post(
        self, path: str, body: Any, kind: type[Reply], *, safe: bool, retries: int | None = None, member: str = ""
    ) -> Reply:
        return await self._call("POST", path, kind, body, safe=safe, retries=retries, member=member)

    async def _ended(self, task_id: str) -> tuple[Task, Result]:
        failures = 0
        while True:
            try:
                ended = await self.result(task_id, MAX_WAIT_SECONDS, retries=0)
            except ClientError as error:
                if not error.away:
                    raise
                await asyncio.sleep(pause(failures, asked=error.retry_after_seconds))
                failures += 1
            else:
                if ended is not None:
                    return ended
                failures = 0
                await asyncio.sleep(0.1)  # a server that stops answers before its wait is over

    def _log(self, task_id: str) -> JobLog[Event, Task]:
        return JobLog(
            self._http, self.base + path_of("tasks", task_id, "/events"), Event, lambda: self.get(task_id, retries=0)
        )


def _lease(lease: int) -> dict[str, Any]:
    return {"lease": lease} if lease else {}
