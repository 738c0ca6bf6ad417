"""Requests with authentication, safe retries, ETags, tasks and error messages.

Reads are retried. A write is sent once; its caller checks whether it took effect and decides. A write is repeated here only
after an answer that says that nothing was done: the session had expired, or the ETag did not match.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from random import Random
from typing import Any

from chargehand.doors.provisioning.redfish.errors import RedfishError, RedfishRefused, RedfishUnreachable
from chargehand.doors.provisioning.redfish.facts import Bmc
from chargehand.doors.provisioning.redfish.login import ROOT, Login, bad_credentials
from chargehand.doors.provisioning.redfish.patience import Patience
from chargehand.doors.provisioning.redfish.quirks import vendor_of
from chargehand.doors.provisioning.redfish.transport import Observe, RedfishAnswer, RedfishTransport

_RUNNING = ("New", "Starting", "Running", "Pending", "Stopping", "Suspended", "Service", "Interrupted", "Cancelling")
_FAILED = ("Exception", "Killed", "Cancelled")

Permit = Callable[[], Awaitable[None]]  # raises if the job is no longer ours
Turn = Callable[[], Awaitable[None]]  # returns when the next request may be sent


class RedfishClient:
    def __init__(
        self,
        bmc: Bmc,
        transport: RedfishTransport,
        observe: Observe,
        random: Random,
        sleep: Callable[[float], Awaitable[None]],
        patience_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        permit: Permit | None = None,
        turn: Turn | None = None,
    ) -> None:
        self.vendor = vendor_of(bmc.vendor)
        self._bmc = bmc
        self._transport = transport
        self._login = Login(bmc, transport)
        self._observe = observe
        self._patience_seconds = patience_seconds
        self._random = random
        self._sleep = sleep
        self._clock = clock
        self._permit = permit
        self._turn = turn
        self._operation = ""
        self._root: RedfishAnswer | None = None
        self.begin("")

    def begin(self, operation: str, patience_seconds: float | None = None) -> None:
        """Start a new operation, with a new time budget for retries."""
        self._operation = operation
        seconds = self._patience_seconds if patience_seconds is None else patience_seconds
        self.patience = Patience(seconds, self._random, self._sleep, self._clock)

    def hide(self, secret: str, instead: str) -> None:
        self._transport.hide(secret, instead)

    async def close(self) -> None:
        try:
            await self._login.close()
        finally:
            await self._transport.close()

    # reading ----------------------------------------------------------------------------------------------------------

    async def root(self) -> RedfishAnswer:
        if self._root is None:
            self._root = await self._patiently(self._read_root)
        return self._root

    async def get(self, path: str) -> RedfishAnswer:
        root = await self.root()

        async def read() -> RedfishAnswer:
            return self._checked("GET", path, await self._as_user("GET", path, None, {}, root))

        return await self._patiently(read)

    async def find(self, path: str) -> RedfishAnswer | None:
        """Like `get`, but return None if the resource does not exist."""
        try:
            return await self.get(path)
        except RedfishRefused as error:
            if error.status in (404, 405, 410, 501):
                return None
            raise

    # writing ----------------------------------------------------------------------------------------------------------

    async def post(self, path: str, body: Any = None) -> None:
        await self._write("POST", path, body, {})

    async def patch(self, seen: RedfishAnswer, body: Any) -> None:
        """Change a resource with its ETag; if that is refused, with the variants that BMCs accept instead."""
        refused: RedfishRefused | None = None
        async for tag in self._tags(seen):
            try:
                return await self._write("PATCH", seen.path, body, {"If-Match": tag} if tag else {})
            except RedfishRefused as error:
                if error.status not in (412, 428):
                    raise
                refused = refused or error
        raise refused or RedfishRefused(f"PATCH {seen.path}: the BMC accepts none of the possible ETags")

    async def _tags(self, seen: RedfishAnswer) -> AsyncIterator[str]:
        yield seen.etag
        if seen.etag.startswith("W/"):
            yield seen.etag[2:]  # some compare their own weak tag as a strong one
        now = (await self.get(seen.path)).etag
        yield now or "*"
        if now:
            yield ""

    async def _write(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> None:
        answer = await self._as_user(method, path, body, headers, await self.root())
        self._checked(method, path, answer)
        if answer.status == 202:
            await self._follow(answer)

    async def _follow(self, answer: RedfishAnswer) -> None:
        """Wait until the task of a 202 has ended. If the answer names no task, the caller must check the result."""
        monitor = answer.headers.get("Location") or answer.data.get("TaskMonitor") or answer.data.get("@odata.id")
        if not isinstance(monitor, str) or (not answer.headers.get("Location") and not _is_task(answer.data)):
            return
        patience = self.patience
        while True:
            try:
                answer = await self.get(monitor)
            except RedfishRefused as error:
                if error.status in (404, 410):
                    return  # ended and deleted
                error.unclear = True  # the request was accepted; only its result is unknown
                raise
            except RedfishUnreachable as error:
                error.unclear = True
                raise
            state = str(answer.data.get("TaskState", ""))
            if state in _FAILED or (state == "Completed" and answer.data.get("TaskStatus") == "Critical"):
                words = answer.said
                text = self._transport.clean(words.text) or "without a word"
                raise RedfishRefused(f"the BMC's task ended as {state}: {text}", status=answer.status, said=words)
            if answer.status != 202 and state not in _RUNNING:
                return
            if not await patience.pause(answer.retry_after_seconds):
                raise RedfishUnreachable("the BMC's task has not ended in time", unclear=True)

    # one request ------------------------------------------------------------------------------------------------------

    async def _patiently(self, read: Callable[[], Awaitable[RedfishAnswer]]) -> RedfishAnswer:
        while True:
            try:
                return await read()
            except RedfishUnreachable as error:
                error.unclear = False  # reading changes nothing
                if not error.transient or not await self.patience.pause(error.retry_after_seconds):
                    raise

    async def _read_root(self) -> RedfishAnswer:
        """Read the root, which needs no credentials by the standard, but does on some BMCs."""
        await self._wait_for_turn()
        answer = await self._timed("GET", ROOT, None, {})
        if answer.status in (401, 403):
            answer = await self._timed("GET", ROOT, None, self._login.basic())
        if answer.status == 401:
            raise bad_credentials()
        return self._checked("GET", ROOT, answer)

    async def _as_user(
        self, method: str, path: str, body: Any, headers: Mapping[str, str], root: RedfishAnswer
    ) -> RedfishAnswer:
        answer = await self._permitted(method, path, body, {**headers, **await self._login.headers(root)})
        if answer.status == 401 and self._login.expired():
            answer = await self._permitted(method, path, body, {**headers, **await self._login.headers(root)})
        if answer.status == 401:
            raise bad_credentials()
        return answer

    async def _permitted(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> RedfishAnswer:
        """Send a request; before a change check our lease, which a BMC does not know."""
        await self._wait_for_turn()
        if method != "GET" and self._permit is not None:
            await self._permit()
        return await self._timed(method, path, body, headers)

    async def _wait_for_turn(self) -> None:
        if self._turn is not None:
            await self._turn()

    async def _timed(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> RedfishAnswer:
        began = time.monotonic()
        ok = False
        try:
            answer = await self._transport.ask(method, path, body, headers)
            ok = answer.status < 400
            return answer
        finally:
            self._observe(self._operation, self.vendor, time.monotonic() - began, ok)

    def _checked(self, method: str, path: str, answer: RedfishAnswer) -> RedfishAnswer:
        if answer.ok:
            return answer
        raise self._complaint(method, path, answer)

    def _complaint(self, method: str, path: str, answer: RedfishAnswer) -> RedfishError:
        status, words = answer.status, answer.said
        text = self._transport.clean(
            f"{method} {path}: the BMC answered {status}" + (f": {words.text}" if words.text else "")
        )
        if status == 429 or (status >= 500 and status not in (501, 505)):
            return RedfishUnreachable(
                text,
                status=status,
                unclear=status >= 500,
                retry_after_seconds=answer.retry_after_seconds,
                said=words,
            )
        # Many BMCs answer 409 when busy, so it is worth a retry.
        return RedfishRefused(
            text, status=status, transient=status == 409, retry_after_seconds=answer.retry_after_seconds, said=words
        )


def _is_task(data: Mapping[str, Any]) -> bool:
    return "TaskState" in data or ".Task" in str(data.get("@odata.type", ""))
