"""What a worker's function gets: its task, and ways to report progress and to attach files."""

import asyncio
import base64
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from chargehand.client.types.tasks import Task, TaskArtifact


class ReportedProgress(msgspec.Struct, frozen=True):
    percent: float | None
    message: str | None
    data: Any


class Held:
    """A task that this worker holds. Functions in threads may use all of it."""

    def __init__(self, task: Task, report: Callable[[ReportedProgress], "asyncio.Future[None]"]) -> None:
        self.task = task
        self.id = task.id
        self.command = task.command
        self.attempt = task.attempts
        self.max_attempts = task.max_attempts
        self.tenant = task.tenant_id
        self.lost = threading.Event()  # set: the lease was lost, and what the function returns is dropped
        self._report = report
        self._artifacts: list[TaskArtifact] = []
        self._own = asyncio.get_running_loop()  # the worker's own

    @property
    def payload(self) -> Any:
        return self.task.payload

    def progress(
        self, percent: float | None = None, message: str | None = None, data: Any = msgspec.UNSET
    ) -> Awaitable[None]:
        """Report progress. It is sent whether or not you await it; awaiting waits until it was. Of several that wait to be sent,
        the newest is. Progress never makes a task fail."""
        note = ReportedProgress(percent, message, data)
        sent: concurrent.futures.Future[None] = concurrent.futures.Future()
        with suppress(RuntimeError):  # the worker has stopped and closed its loop
            self._own.call_soon_threadsafe(self._send, note, sent)
        try:
            return asyncio.wrap_future(sent)
        except RuntimeError:
            return _Nothing()

    def attach(self, name: str, content: bytes | str | os.PathLike[str], content_type: str = "") -> None:
        """Add a file to the result: its bytes, or the path of a file, which is read now."""
        raw = bytes(content) if isinstance(content, bytes | bytearray | memoryview) else Path(content).read_bytes()
        encoded = base64.b64encode(raw).decode()
        self._artifacts.append(TaskArtifact(name, content_base64=encoded, content_type=content_type))

    def add(self, artifacts: Iterable[TaskArtifact]) -> None:
        self._artifacts.extend(artifacts)

    @property
    def artifacts(self) -> tuple[TaskArtifact, ...]:
        return tuple(self._artifacts)

    def _send(self, note: ReportedProgress, sent: "concurrent.futures.Future[None]") -> None:
        def settle(_: object) -> None:
            if sent.set_running_or_notify_cancel():
                sent.set_result(None)

        self._report(note).add_done_callback(settle)


class _Nothing:
    """What a thread gets to await: nothing."""

    def __await__(self) -> Any:
        return iter(())
