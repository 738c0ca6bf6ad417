"""A worker's functions: coroutines run in the loop of `Worker.serve`, plain functions in a thread each."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chargehand.client.worker.held import Held
from chargehand.client.worker.limits import NO_LIMITS, TimeLimits

Function = Callable[[Held], Any]


@dataclass(frozen=True)
class TaskFunction:
    command: str
    function: Function
    lease_seconds: float
    limits: TimeLimits = NO_LIMITS

    @property
    def in_a_thread(self) -> bool:
        called = getattr(self.function, "__call__", None)  # noqa: B004 - an object may have a coroutine function there
        return not (inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(called))

    @property
    def can_be_stopped(self) -> bool:
        """Not what runs in a thread, nor a coroutine that waits for one, such as a batch."""
        return not (self.in_a_thread or getattr(self.function, "waits_for_a_thread", False))
