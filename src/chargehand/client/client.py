"""The tasks of a server, as calls: for producers, and for workers that want more than `Worker` gives them. What concerns
machines and their provisioning is under `client.provisioning`.

    async with Client("http://127.0.0.1:8484", token="…") as client:
        task = await client.create("render_video", {"file": "cat.mp4"})
        ended = await client.result(task.id, wait_seconds=60)

What goes wrong on the way is always a ClientError. Where the answer is lost, a call is repeated only if that cannot do a thing
twice: reading, creating with an idempotency key, and whatever names the lease that it is about.
"""

import math
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import msgspec

from chargehand.client.errors import ClientError
from chargehand.client.lines import TaskStream
from chargehand.client.provisioning import BASE, Provisioning
from chargehand.client.transport import Transport
from chargehand.client.wire import (
    Claimed,
    Created,
    CreatedMany,
    Ended,
    Nacked,
    NewTask,
    Outcome,
    Result,
    Submitted,
    SubmittedMany,
    Subscription,
    Task,
)

DEFAULT_URL = "http://127.0.0.1:8484"
MAX_BATCH = 100  # creates and results; claims: 10
MAX_CLAIM = 10
SILENCE_SECONDS = 40.0  # a stream shows a sign of life every 10 s

Answer = TypeVar("Answer")


class Client:
    """Without arguments: CHARGEHAND_URL and CHARGEHAND_TOKEN, else the server on this machine."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, timeout: float = 30.0, retries: int = 4
    ) -> None:
        self.url = url or os.environ.get("CHARGEHAND_URL") or DEFAULT_URL
        given = os.environ.get("CHARGEHAND_TOKEN", "") if token is None else token
        self._http = Transport(self.url, given, timeout=timeout, retries=retries)
        self._timeout = timeout
        self._machines = Transport(self.url, given, base=BASE, timeout=timeout, retries=retries)
        self.provisioning = Provisioning(self._machines)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.close()
        await self._machines.close()

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
    ) -> Task:
        """A task for whoever works on the command. With an idempotency key a repetition gives the task that is there."""
        new = NewTask(
            command,
            payload,
            priority,
            webhook,
            max_attempts,
            idempotency_key,
            unique_key,
            run_at if isinstance(run_at, str) else _instant(run_at),
            math.ceil(delay_seconds),
        )
        return await self._post("/tasks", new, Task, safe=bool(idempotency_key))

    async def create_many(self, tasks: Iterable[NewTask]) -> list[Created]:
        """In their order; each has a task or an error. Up to 100 go in one request, and each is on its own."""
        wanted = list(tasks)
        made: list[Created] = []
        for start in range(0, len(wanted), MAX_BATCH):
            part = wanted[start : start + MAX_BATCH]
            safe = all(new.idempotency_key for new in part)
            made += (await self._post("/tasks/batch", {"tasks": part}, CreatedMany, safe=safe)).results
        return made

    async def get(self, task_id: str) -> Task:
        return await self._get(_task(task_id), Task)

    async def result(self, task_id: str, wait_seconds: float = 0) -> tuple[Task, Result] | None:
        """None: it has not ended. The server waits 60 seconds at most; ask again for more."""
        query = {"waitSeconds": str(math.ceil(wait_seconds))} if wait_seconds > 0 else {}
        path = _task(task_id, "/result")
        try:
            ended = await self._get(path, Ended, query=query, timeout=self._timeout + wait_seconds)
        except ClientError as error:
            if error.status == 404 and error.text == "result not found":
                return None
            raise
        return ended.task, ended.result

    async def cancel(self, task_id: str) -> Task:
        return await self._post(_task(task_id, "/cancel"), {}, Task, safe=True)

    # for workers

    async def claim(
        self,
        commands: Sequence[str] = (),
        *,
        lease_seconds: float = 60,
        wait_seconds: float = 0,
        retries: int | None = None,
    ) -> Task | None:
        """None: nothing to do. An answer that is lost takes a task with it until its lease ends."""
        body = {"commands": commands, "leaseSeconds": math.ceil(lease_seconds), "waitSeconds": math.ceil(wait_seconds)}
        timeout = self._timeout + wait_seconds
        status, told = await self._http.call(
            "POST", "/tasks/claim", _given(body), safe=False, timeout=timeout, retries=retries
        )
        return None if status == 204 else _read(told, Task)

    async def claim_many(
        self, count: int, commands: Sequence[str] = (), *, lease_seconds: float = 60, retries: int | None = None
    ) -> list[Task]:
        """Up to ten at once, without waiting."""
        body = {"count": min(count, MAX_CLAIM), "commands": commands, "leaseSeconds": math.ceil(lease_seconds)}
        status, told = await self._http.call("POST", "/tasks/claim/batch", _given(body), safe=False, retries=retries)
        return [] if status == 204 else _read(told, Claimed).tasks

    @asynccontextmanager
    async def claims(
        self, commands: Sequence[str] = (), *, lease_seconds: float = 60, max_in_flight: int = 1
    ) -> AsyncIterator[TaskStream]:
        """Tasks as they come, over one connection, never more than `max_in_flight` of them unfinished. It ends only by
        breaking, with ClientError or without: then open it again."""
        body = {"commands": commands, "leaseSeconds": math.ceil(lease_seconds), "maxInFlight": max_in_flight}
        async with self._http.stream("/tasks/claim/stream", _given(body), SILENCE_SECONDS) as answer:
            yield TaskStream(answer)

    async def heartbeat(
        self, task_id: str, extend_seconds: float, *, lease: int = 0, retries: int | None = None
    ) -> None:
        body = {"extendSeconds": math.ceil(extend_seconds), **_lease(lease)}
        await self._http.call("POST", _task(task_id, "/heartbeat"), body, safe=True, retries=retries)

    async def abandon(self, task_id: str, *, lease: int = 0, retries: int | None = None) -> None:
        """Back into the queue as if it had not been claimed."""
        await self._http.call("POST", _task(task_id, "/abandon"), _lease(lease), safe=bool(lease), retries=retries)

    async def nack(
        self,
        task_id: str,
        *,
        delay_seconds: float | None = None,
        reason: str = "",
        lease: int = 0,
        retries: int | None = None,
    ) -> Nacked:
        """Another try later, if there are attempts left. Without a delay the server's backoff decides."""
        delay = {} if delay_seconds is None else {"delaySeconds": math.ceil(delay_seconds)}
        body = {"reason": reason, **delay, **_lease(lease)}
        return await self._post(_task(task_id, "/nack"), body, Nacked, safe=bool(lease), retries=retries)

    async def complete(self, task_id: str, result: Any, *, artifacts: Sequence[Any] = (), lease: int = 0) -> Result:
        return await self.submit(task_id, Outcome("COMPLETED", result, artifacts=tuple(artifacts), lease=lease))

    async def fail(self, task_id: str, error: str, *, artifacts: Sequence[Any] = (), lease: int = 0) -> Result:
        """Final: no other try."""
        return await self.submit(task_id, Outcome("FAILED", error=error, artifacts=tuple(artifacts), lease=lease))

    async def submit(self, task_id: str, outcome: Outcome, *, retries: int | None = None) -> Result:
        return await self._post(_task(task_id, "/result"), outcome, Result, safe=bool(outcome.lease), retries=retries)

    async def submit_many(self, outcomes: Sequence[Outcome], *, retries: int | None = None) -> list[Submitted]:
        """Up to 100, each with its `task_id`; in their order. codeQ ignores artifacts here."""
        safe = all(outcome.lease for outcome in outcomes)
        path = "/tasks/batch/results"
        return (await self._post(path, {"results": outcomes}, SubmittedMany, safe=safe, retries=retries)).results

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
        said = {"percent": percent, "message": message}
        body = {name: value for name, value in said.items() if value is not None} | _lease(lease)
        if data is not msgspec.UNSET:
            body["data"] = data
        await self._http.call("POST", _task(task_id, "/progress"), body, safe=True, retries=retries)

    async def subscribe(
        self,
        callback_url: str,
        event_types: Sequence[str] = (),
        *,
        ttl_seconds: int = 0,
        delivery_mode: str = "",
        group_id: str = "",
        min_interval_seconds: int = 0,
    ) -> Subscription:
        """To be rung when there is work: https and a signature, see verify_webhook."""
        body = {
            "callbackUrl": callback_url,
            "eventTypes": event_types,
            "ttlSeconds": ttl_seconds,
            "deliveryMode": delivery_mode,
            "groupId": group_id,
            "minIntervalSeconds": min_interval_seconds,
        }
        return await self._post("/workers/subscriptions", _given(body), Subscription, safe=False)

    async def renew(self, subscription_id: str, ttl_seconds: int = 0) -> Subscription:
        body = _given({"ttlSeconds": ttl_seconds})
        return await self._post(f"{_subscription(subscription_id)}/heartbeat", body, Subscription, safe=True)

    async def unsubscribe(self, subscription_id: str) -> None:
        await self._http.call("DELETE", _subscription(subscription_id), safe=True)

    # how they are made

    async def _get(
        self, path: str, kind: type[Answer], *, query: dict[str, str] | None = None, timeout: float | None = None
    ) -> Answer:
        _, told = await self._http.call("GET", path, safe=True, query=query or {}, timeout=timeout)
        return _read(told, kind)

    async def _post(
        self, path: str, body: Any, kind: type[Answer], *, safe: bool, retries: int | None = None
    ) -> Answer:
        _, told = await self._http.call("POST", path, body, safe=safe, retries=retries)
        return _read(told, kind)


def _read(told: bytes, kind: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(told, type=kind)
    except msgspec.DecodeError as error:
        raise ClientError(502, "this is not an answer of a tasks server", str(error)) from None


def _task(task_id: str, verb: str = "") -> str:
    return f"/tasks/{quote(task_id, safe='')}{verb}"


def _subscription(subscription_id: str) -> str:
    return f"/workers/subscriptions/{quote(subscription_id, safe='')}"


def _given(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value}


def _lease(lease: int) -> dict[str, Any]:
    return {"lease": lease} if lease else {}


def _instant(at: datetime) -> str:
    if at.tzinfo is None:
        raise ValueError("run_at needs a time zone: datetime.now(UTC) + …")
    return at.isoformat()
