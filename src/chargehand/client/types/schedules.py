"""Types of `client.schedules` and `client.topics`."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from chargehand.client.types.engine import RateOfStarts


class NewSchedule(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """When to create which task."""

    cron: str
    timezone: str = "UTC"
    command: str
    payload: Any
    priority: int = 0
    webhook: str = ""
    max_attempts: int = 0
    limit_key: str | UnsetType = UNSET  # unset for servers that do not know it
    metadata: Mapping[str, Any] | UnsetType = UNSET


class ListedSchedule(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    name: str
    cron: str
    timezone: str
    command: str
    payload: Any
    priority: int
    webhook: str
    max_attempts: int
    limit_key: str = ""
    metadata: Any = None
    paused: bool
    next_run_at: str | None
    last_run_at: str | None
    last_task_id: str
    last_error: str
    version: int
    created_at: str


class Schedule(ListedSchedule, frozen=True, rename="camel", kw_only=True):
    next_runs: tuple[str, ...]


class KeyPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """What holds for the tasks of each `limit_key` by itself."""

    max_consumers: int = 0  # that run at once; 0: no limit
    rate: RateOfStarts | UnsetType = UNSET


class Policy(msgspec.Struct, frozen=True, rename="camel"):
    """What holds for all tasks of a command."""

    priority_tiers: tuple[int, ...]
    max_attempts: int
    dead_letter_topic_ref: str = ""
    retention_seconds: int = 0
    max_consumers: int = 0
    rate: RateOfStarts | UnsetType = UNSET
    per_key: KeyPolicy | UnsetType = UNSET


class Topic(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    topic_id: str
    tenant_id: str
    topic_name: str
    policy: Policy
    version: int
    created_at: str
    updated_at: str
