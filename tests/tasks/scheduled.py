"""A server with schedules, on a clock that only the test moves."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry

from chargehand.app import Server
from chargehand.config import load_config
from chargehand.doors.tasks.limits import Limits
from chargehand.doors.tasks.metrics import TaskMetrics
from chargehand.doors.tasks.names import KIND
from chargehand.doors.tasks.producer import ProducerApi
from chargehand.doors.tasks.resource import task_resource
from chargehand.doors.tasks.schedules import RECORD, Schedules
from chargehand.doors.tasks.topics import Topics
from chargehand.doors.tasks.wire import CreateTask
from chargehand.engine.job import SECOND, Job, rfc3339
from chargehand.engine.reads import JobFilter
from chargehand.engine.record import Record
from chargehand.engine.records import Records
from chargehand.store import open_store
from tests.api.serving import HURRY, Answer, Api, talking
from tests.conftest import Clock

PATH = "/v1/codeq/schedules"
BODY: dict[str, Any] = {
    "name": "nightly",
    "cron": "0 * * * *",
    "command": "Render",
    "payload": {"n": 12345678901234567890},
}
TENANT = "default"


def micros(text: str) -> int:
    return int(datetime.fromisoformat(text + "+00:00").timestamp()) * SECOND


def clock_at(text: str) -> Clock:
    clock = Clock()
    clock.now = micros(text)
    return clock


class Door:
    """`Producer.create` of the real door; a test can make it fail."""

    def __init__(self, create: Any) -> None:
        self._create = create
        self.fail: Exception | None = None
        self.keys: list[str | None] = []

    async def __call__(self, tenant: str, new: CreateTask, /, *, key: str | None) -> Job:
        self.keys.append(key)
        if self.fail is not None:
            raise self.fail
        job: Job = await self._create(tenant, new, key=key)
        return job


@dataclass
class Node:
    server: Server
    clock: Clock
    door: Door
    schedules: Schedules
    api: Api

    def at(self, text: str) -> None:
        self.clock.now = micros(text)

    async def make(self, api: Api | None = None, **fields: Any) -> Answer:
        return await (api or self.api).post(PATH, BODY | fields)

    async def show(self, name: str = "nightly") -> Any:
        return (await self.api.get(f"{PATH}/{name}")).good()

    async def fire_at(self, text: str) -> None:
        self.at(text)
        await self.schedules.fire()

    async def record(self, name: str = "nightly") -> Record:
        found = await Records(self.server.store).get(RECORD, TENANT, name)
        assert found is not None
        return found

    async def jobs(self, tenant: str = TENANT) -> list[Job]:
        """Return all tasks of a tenant, oldest first."""
        found = await self.server.store.list_jobs(JobFilter(tenant, kind=KIND, limit=500))
        return sorted(found, key=lambda job: job.id)

    async def ticks(self) -> list[str]:
        """Return the ticks that have a task, read from the keys of the tasks."""
        jobs = await self.jobs()
        keys = [(await self.server.engine.get(job.id)).idempotency_key or "" for job in jobs]
        return sorted(rfc3339(int(key.rpartition("/")[2]))[:16] for key in keys)


@asynccontextmanager
async def node(store_url: str, clock: Clock, settings: Mapping[str, Any] = {}) -> AsyncIterator[Node]:
    """A server whose schedules run only when a test fires them. The tasks door is off: it would fire its own too."""
    own = {"store.url": store_url, "tasks.enabled": False}
    config = load_config(environ={}, overrides={**HURRY, **own, **settings})
    async with AsyncExitStack() as stack:
        server = Server(config, await open_store(store_url, clock=clock))
        stack.push_async_callback(server.close)
        server.engine.now = clock
        metrics = TaskMetrics(CollectorRegistry())
        producer = ProducerApi(
            server.engine,
            config,
            task_resource(server.engine, config.tasks, server.tracing, server.egress),
            server.tracing,
            Topics(server.engine, config),
            Limits(config.tasks, metrics),
            metrics,
        )
        door = Door(producer.create)
        schedules = Schedules(server.engine, config, server.egress, door)
        await server.start(schedules.routes())
        yield Node(server, clock, door, schedules, await stack.enter_async_context(talking(server)))
