"""What a decorator declares of a task, besides its function."""

import re
from typing import Any

import msgspec

from chargehand.client.declared.retries import Retries
from chargehand.client.types.engine import RateOfStarts
from chargehand.client.types.schedules import KeyPolicy

_TOPIC = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?")  # what a server takes as the name of a topic


class Every(msgspec.Struct, frozen=True):
    """By the clock: `Every("30 2 * * *", "Europe/Berlin")`, or `Every("@daily")`."""

    cron: str
    timezone: str = "UTC"


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    command: str
    retries: Retries
    priority: int = 0
    lease_seconds: float | None = None
    timeout: float | None = None
    soft_timeout: float | None = None
    max_running: int = 0
    rate: RateOfStarts | None = None
    per_key: KeyPolicy | None = None
    every: Every | None = None

    def __post_init__(self) -> None:
        if not self.command.strip():
            raise ValueError("queue: must not be blank")
        if self.max_running < 0:
            raise ValueError(f"max_running must be 1 or more, or 0 for no limit, not {self.max_running}")
        if self.limits and not _TOPIC.fullmatch(self.command):
            [first, *_] = self.limits
            raise ValueError(f"queue: {first} needs one of letters, digits, - or _, not {self.command!r}")

    @property
    def limits(self) -> dict[str, Any]:
        """What the server is to limit, by the decorator's names."""
        known = {"max_running": self.max_running or None, "rate": self.rate, "per_key": self.per_key}
        return {name: value for name, value in known.items() if value is not None}

    @property
    def for_worker(self) -> dict[str, Any]:
        """What the worker is to know of it."""
        known = {"lease_seconds": self.lease_seconds, "timeout": self.timeout, "soft_timeout": self.soft_timeout}
        return {name: value for name, value in known.items() if value is not None}


def declaration(
    name: str,
    *,
    queue: str = "",
    retry: int | Retries = 0,
    priority: int = 0,
    lease_seconds: float | None = None,
    timeout: float | None = None,
    soft_timeout: float | None = None,
    max_running: int = 0,
    rate: RateOfStarts | None = None,
    per_key: KeyPolicy | None = None,
    every: str | Every | None = None,
) -> Declaration:
    return Declaration(
        command=queue or name,
        retries=Retries(attempts=retry) if isinstance(retry, int) else retry,
        priority=priority,
        lease_seconds=lease_seconds,
        timeout=timeout,
        soft_timeout=soft_timeout,
        max_running=max_running,
        rate=rate,
        per_key=per_key,
        every=Every(every) if isinstance(every, str) else every,
    )
