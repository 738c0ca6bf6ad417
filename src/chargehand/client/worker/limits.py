"""Time limits of functions. The soft one raises SoftTimeLimit in the function, where it waits; the hard one gives the task back.

A coroutine gets the exception at its next await, a thread before its next line of Python. So neither gets it while it is within a long
call that does not come back, such as `time.sleep`.
"""

import asyncio
import ctypes
import math
import threading
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any

from chargehand.client.errors import SoftTimeLimit


@dataclass(frozen=True)
class TimeLimits:
    hard: float | None = None
    soft: float | None = None

    def __post_init__(self) -> None:
        for name, seconds in (("timeout", self.hard), ("soft_timeout", self.soft)):
            if seconds is not None and not 0 < seconds < math.inf:
                raise ValueError(f"{name} must be a number of seconds above 0, or None for no limit, not {seconds!r}")
        if self.hard is not None and self.soft is not None and self.soft >= self.hard:
            raise ValueError(f"soft_timeout ({self.soft:g}) must be less than timeout ({self.hard:g})")

    def __bool__(self) -> bool:
        return self.hard is not None or self.soft is not None

    def over(self, other: "TimeLimits") -> "TimeLimits":
        """These, and where there is none the other's."""
        return TimeLimits(
            other.hard if self.hard is None else self.hard, other.soft if self.soft is None else self.soft
        )


NO_LIMITS = TimeLimits()


class SoftlyLimited:
    """Awaits a coroutine. A soft limit cancels the task, as that ends whatever it awaits, and the coroutine gets SoftTimeLimit for it."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._due = False

    def end(self, task: "asyncio.Task[Any]") -> None:
        self._due = not task.done()
        task.cancel()

    def __await__(self) -> Generator[Any, Any, Any]:
        thrown: BaseException | None = None
        while True:
            try:
                awaited = self._coroutine.send(None) if thrown is None else self._coroutine.throw(thrown)
            except StopIteration as end:
                return end.value
            try:
                yield awaited
                thrown = None
            except BaseException as error:  # whatever was awaited raised it, or somebody cancels
                thrown = self._instead_of(error)

    def _instead_of(self, error: BaseException) -> BaseException:
        if not self._due or not isinstance(error, asyncio.CancelledError):
            return error
        self._due = False
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
        return SoftTimeLimit()


class ThreadLimit:
    """Raises SoftTimeLimit in the thread that enters this, until it leaves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None

    def __enter__(self) -> None:
        self._thread = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
            _raise_in(thread, None)  # it may be on its way

    def end(self) -> None:
        with self._lock:
            _raise_in(self._thread, SoftTimeLimit)


def _raise_in(thread: int | None, error: type[BaseException] | None) -> None:
    if thread is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error and ctypes.py_object(error))
