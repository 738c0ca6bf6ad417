"""A task in the hands of a function: what it may read, and what it may say before it ends."""

import asyncio
import base64
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from chargehand.client.types.tasks import Task, TaskArtifact


class ProgressReport(msgspec.Struct, frozen=True):
    """One report of progress."""

    percent: float | None
    message: str | None
    data: Any


class Held:
    """All of it may be used from threads too."""

    def __init__(self, task: Task, report: Callable[[ProgressReport], "asyncio.Future[None]"]) -> None:
        self.task = task
        self.id = task.id
        self.command = task.command
        self.attempt = task.attempts
        self.max_attempts = task.max_attempts
        self.tenant = task.tenant_id
        self.lost = threading.Event()  # set: somebody else has the task now, and what this function returns is dropped
        self._report = report
        self._artifacts: list[TaskArtifact] = []
        self._loop = asyncio.get_running_loop()

    @property
    def payload(self) -> Any:
        return self.task.payload

    def progress(
        self, percent: float | None = None, message: str | None = None, data: Any = msgspec.UNSET
    ) -> Awaitable[None]:
        """Tell how far it is. Awaiting it waits until the server knows; who does not wait loses nothing, and of several
        that wait to be sent the newest goes. Progress never makes a task fail."""
        said = ProgressReport(percent, message, data)
        if self._in_the_loop():
            return self._report(said)
        self._loop.call_soon_threadsafe(self._report, said)
        return _Nothing()

    def attach(self, name: str, content: bytes | str | os.PathLike[str], content_type: str = "") -> None:
        """A file for the result: its bytes, or the path of a file, which is read now."""
        raw = bytes(content) if isinstance(content, bytes | bytearray | memoryview) else Path(content).read_bytes()
        encoded = base64.b64encode(raw).decode()
        self._artifacts.append(TaskArtifact(name, content_base64=encoded, content_type=content_type))

    @property
    def artifacts(self) -> tuple[TaskArtifact, ...]:
        return tuple(self._artifacts)

    def _in_the_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False


class _Nothing:
    """In a thread there is nothing to wait for."""

    def __await__(self) -> Any:
        return iter(())
