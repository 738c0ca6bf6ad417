"""The workers that asked this node for work lately: for which commands, and when they were last seen.

A hint, kept in memory: workers need not register, what they hold is in the store, and a node knows only those that called it. It
shows whether a queue has no workers or only busy ones. A worker is known by its token's name, as everywhere on this wire.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec

from chargehand.doors.tasks.holding import owner_of, tenant_of
from chargehand.doors.tasks.names import ANY
from chargehand.engine.job import SECOND, rfc3339
from chargehand.engine.queue import Wanted
from chargehand.http.auth import Caller

MAX_WORKERS = 2000  # the one that was seen longest ago is dropped
MAX_COMMANDS = 200  # of a worker: the one that it asked for longest ago is dropped
FORGET_SECONDS = 3600


class CommandSeen(msgspec.Struct, rename="camel"):
    command: Annotated[str, msgspec.Meta(description="What it asked for, in lower case; `*`: any")]
    waiting: Annotated[int, msgspec.Meta(description="Claims and streams that are open now")]
    last_claim_at: str


class WorkerSeen(msgspec.Struct, rename="camel"):
    worker_id: str
    worker_group: str
    all_tenants: Annotated[bool, msgspec.Meta(description="Works for every tenant in turn")]
    last_seen_at: str
    last_heartbeat_at: Annotated[str | None, msgspec.Meta(description="When it last said that it is alive")]
    commands: list[CommandSeen]


class WorkersSeen(msgspec.Struct):
    """The workers that called this node in the last hour, the latest first."""

    workers: list[WorkerSeen]


class _Demand:
    __slots__ = ("at", "waiting")

    def __init__(self) -> None:
        self.at = self.waiting = 0


class _Entry:
    def __init__(self) -> None:
        self.group = ""
        self.seen_at = 0
        self.heartbeat_at: int | None = None
        self.commands: dict[str, _Demand] = {}  # ordered by when it was last asked for

    @property
    def waiting(self) -> bool:
        return any(asked.waiting for asked in self.commands.values())


class Roll:
    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._entries: dict[tuple[str | None, str], _Entry] = {}  # by tenant (None: all of them) and name, latest last

    @contextmanager
    def asking(self, caller: Caller, queues: tuple[Wanted, ...]) -> Iterator[None]:
        """Count the worker as waiting while its claim or stream is open."""
        commands = [queue.name or ANY for queue in queues]
        asked = self._ask(caller, commands, 1)
        try:
            yield
        finally:
            # The very entries that were incremented: the worker may have been dropped since.
            for each in asked:
                each.waiting -= 1
            self._ask(caller, commands, 0)

    def asked(self, caller: Caller, queues: tuple[Wanted, ...]) -> None:
        """Note a claim that did not wait."""
        self._ask(caller, [queue.name or ANY for queue in queues], 0)

    def beat(self, caller: Caller) -> None:
        entry = self._see(caller)
        entry.heartbeat_at = entry.seen_at

    def _ask(self, caller: Caller, commands: list[str], more: int) -> list[_Demand]:
        entry = self._see(caller)
        found = []
        for command in commands:
            asked = entry.commands.pop(command, None) or _Demand()
            entry.commands[command] = asked
            if len(entry.commands) > MAX_COMMANDS:
                del entry.commands[next(iter(entry.commands))]
            asked.at = entry.seen_at
            asked.waiting += more
            found.append(asked)
        return found

    def _see(self, caller: Caller) -> _Entry:
        key = tenant_of(caller), owner_of(caller)
        entry = self._entries.pop(key, None) or _Entry()
        self._entries[key] = entry
        if len(self._entries) > MAX_WORKERS:
            del self._entries[next(iter(self._entries))]
        entry.group, entry.seen_at = caller.worker_group, self._now()
        return entry

    def seen(self, tenant: str) -> list[WorkerSeen]:
        """Return the workers of a tenant, and those that serve all tenants."""
        now = self._now()
        oldest = now - FORGET_SECONDS * SECOND
        for key in [key for key, entry in self._entries.items() if entry.seen_at < oldest and not entry.waiting]:
            del self._entries[key]
        return [
            _view(name, owner is None, entry, now)
            for (owner, name), entry in reversed(self._entries.items())
            if owner in (None, tenant)
        ]


def _view(name: str, everywhere: bool, entry: _Entry, now: int) -> WorkerSeen:
    oldest = now - FORGET_SECONDS * SECOND
    commands = [
        CommandSeen(command, asked.waiting, rfc3339(now if asked.waiting else asked.at))
        for command, asked in sorted(entry.commands.items())
        if asked.waiting or asked.at >= oldest
    ]
    seen_at = now if entry.waiting else entry.seen_at
    heartbeat_at = None if entry.heartbeat_at is None else rfc3339(entry.heartbeat_at)
    return WorkerSeen(name, entry.group, everywhere, rfc3339(seen_at), heartbeat_at, commands)
