"""Calls for tasks by the clock, `client.schedules`, and for the policies of commands, `client.topics`."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from chargehand.client.transport.calls import Calls, path_of
from chargehand.client.types.schedules import ListedSchedule, NewSchedule, Policy, Schedule, Topic
from chargehand.client.types.tasks import Task


class ScheduleCalls(Calls):
    base = "/v1/codeq"

    async def put(
        self,
        name: str,
        cron: str,
        command: str,
        payload: Any,
        *,
        timezone: str = "UTC",
        priority: int = 0,
        webhook: str = "",
        max_attempts: int = 0,
        limit_key: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Make the schedule, or change the one of this name to what is said here."""
        asked = NewSchedule(
            cron=cron,
            timezone=timezone,
            command=command,
            payload=payload,
            priority=priority,
            webhook=webhook,
            max_attempts=max_attempts,
            limit_key=limit_key or UNSET,
            metadata=metadata or UNSET,
        )
        return await self._call("PUT", path_of("schedules", name), Schedule, asked, safe=True)

    async def get(self, name: str) -> Schedule:
        return await self._get(path_of("schedules", name), Schedule)

    async def find(self) -> list[ListedSchedule]:
        return await self._get("/schedules", list[ListedSchedule], member="schedules")

    async def pause(self, name: str) -> Schedule:
        return await self._call("POST", path_of("schedules", name, "/pause"), Schedule, {}, safe=True)

    async def resume(self, name: str) -> Schedule:
        return await self._call("POST", path_of("schedules", name, "/resume"), Schedule, {}, safe=True)

    async def run(self, name: str) -> Task:
        """Create its task now."""
        return await self._call("POST", path_of("schedules", name, "/run"), Task, {}, safe=False)

    async def remove(self, name: str) -> None:
        await self._http.call("DELETE", self.base + path_of("schedules", name), safe=False)


class TopicCalls(Calls):
    base = "/v1/codeq/admin"

    async def put(self, name: str, policy: Policy) -> Topic:
        """Make or change what holds for all tasks of a command. It needs the scope `codeq:admin`, as the other calls do."""
        return await self._call("PUT", path_of("topics", name), Topic, policy, safe=True)

    async def get(self, name: str) -> Topic:
        return await self._get(path_of("topics", name), Topic)

    async def find(self) -> list[Topic]:
        return await self._get("/topics", list[Topic], member="topics")

    async def remove(self, name: str) -> None:
        query: Mapping[str, str] = {"deletionPolicy": "Delete"}
        await self._http.call("DELETE", self.base + path_of("topics", name), safe=True, query=query)
