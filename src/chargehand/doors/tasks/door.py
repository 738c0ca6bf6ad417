"""The tasks door: builds its parts and connects them with the engine."""

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from chargehand.config import Config
from chargehand.doors.tasks import views
from chargehand.doors.tasks.admin import AdminApi
from chargehand.doors.tasks.limits import Limits
from chargehand.doors.tasks.metrics import TaskMetrics
from chargehand.doors.tasks.names import ADMIN, KIND, PRODUCE
from chargehand.doors.tasks.notifier import Notifier
from chargehand.doors.tasks.policy import TaskRetries
from chargehand.doors.tasks.producer import ProducerApi
from chargehand.doors.tasks.reading import ReadingApi
from chargehand.doors.tasks.resource import ENDS, task_resource
from chargehand.doors.tasks.results import ResultsApi
from chargehand.doors.tasks.roll import Roll
from chargehand.doors.tasks.schedules import Schedules
from chargehand.doors.tasks.stream import Streams
from chargehand.doors.tasks.subscriptions import Subscriptions
from chargehand.doors.tasks.topics import Topics
from chargehand.doors.tasks.worker import WorkerApi
from chargehand.engine.backoff import added_jitter
from chargehand.engine.chores import Chore
from chargehand.engine.engine import Engine
from chargehand.engine.listing import list_page
from chargehand.engine.reads import JobFilter
from chargehand.errors import ConfigError
from chargehand.files import Files
from chargehand.http.kinds import KindScopes
from chargehand.http.route import Route
from chargehand.http.terms import tell, terms
from chargehand.observability.metrics import Metrics
from chargehand.observability.tracing import Tracing
from chargehand.webhooks.egress import EgressPolicy
from chargehand.webhooks.outbound import Outbox
from chargehand.webhooks.sending import DoorWebhooks

if TYPE_CHECKING:
    from chargehand.doors.tasks.grpc.server import GrpcServer

LOOK_UP = 10  # commands whose spelling is looked up at a time, since a lookup may search many jobs


class TasksDoor:
    def __init__(
        self, engine: Engine, config: Config, files: Files, policy: EgressPolicy, tracing: Tracing, metrics: Metrics
    ) -> None:
        self._engine = engine
        self._metrics = TaskMetrics(metrics.registry)
        limits = Limits(config.tasks, self._metrics)
        self._topics = Topics(engine, config)
        roll = Roll(engine.now)
        jobs = task_resource(engine, config.tasks, tracing, policy)
        worker = WorkerApi(engine, config, limits, roll)
        self._terms = terms(jobs, ENDS, config.tasks.max_attempts, config.server.max_body_bytes)
        producer = ProducerApi(engine, config, jobs, tracing, self._topics, limits, self._metrics)
        self.steps = producer.steps
        streams = Streams(engine, config, worker, limits, roll)
        self._notifier = Notifier(engine, config, policy, tracing, self._metrics.count_webhook)
        self._schedules = Schedules(engine, config, policy, producer.create)
        results = ResultsApi(engine, config, files)
        self.grpc = (
            _grpc_server(config, engine, producer, worker, results, limits, roll) if config.tasks.grpc_listen else None
        )
        self._parts = (
            producer,
            worker,
            streams,
            results,
            ReadingApi(engine, jobs, files),
            Subscriptions(engine, config, policy, self._notifier),
            self._schedules,
            self._topics,
            AdminApi(engine, config, jobs, limits, roll),
        )
        engine.decide_by(KIND, TaskRetries(engine, config.tasks, self._topics))
        engine.on_move(self._metrics.on_move, KIND)
        engine.on_lapse(self._metrics.on_lapse)
        engine.on_move(streams.on_move, KIND)
        engine.on_move(self._notifier.on_move, KIND)
        engine.on_hint(streams.on_hint)
        engine.on_hint(self._notifier.on_hint)

    webhooks: dict[str, DoorWebhooks] = {KIND: DoorWebhooks(views.render, added_jitter)}  # noqa: RUF012 - never changed
    scopes: dict[str, KindScopes] = {KIND: KindScopes((PRODUCE, ADMIN), (PRODUCE, ADMIN), (ADMIN,))}  # noqa: RUF012 - the same

    def routes(self) -> list[Route]:
        return [route for part in self._parts for route in part.routes()]

    def watch(self, outbox: Outbox) -> None:
        outbox.on_settled(self._metrics.on_settled)

    async def start(self) -> None:
        """Load what the first request needs, and store the settings that the database functions read (`http/terms.py`)."""
        await self._topics.load()
        await tell(self._engine.records, KIND, self._terms)

    def chores(self) -> list[Chore]:
        return [*self._topics.chores(), *self._notifier.chores(), *self._schedules.chores()]

    async def run(self) -> None:
        await self._notifier.run()

    async def count(self) -> None:
        """Count the queues for the metrics."""
        counts = [count for count in (await self._engine.counts.live()).queues if count.queue.kind == KIND]
        for queue in self._metrics.strange(counts)[:LOOK_UP]:
            of_it = JobFilter(queue.tenant, KIND, queue.name, limit=1)
            found = (
                await self._engine.jobs.list_jobs(replace(of_it, live=True))
                or (await list_page(self._engine.jobs, of_it))[0]
            )
            self._metrics.spell(views.command_of(found[0]) if found else queue.name)
        dead = await self._engine.counts.stopped(views.DEAD_TOPIC)
        self._metrics.show(counts, dead, self._notifier.active())


def _grpc_server(
    config: Config,
    engine: Engine,
    producer: ProducerApi,
    worker: WorkerApi,
    results: ResultsApi,
    limits: Limits,
    roll: Roll,
) -> "GrpcServer":
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")  # what we start is executed at once; it would only log
    try:
        from chargehand.doors.tasks.grpc.streams import grpc_server
    except ImportError as error:
        raise ConfigError(
            f"tasks.grpc_listen needs packages that are missing ({error}): pip install chargehand[grpc]"
        ) from None
    return grpc_server(config, engine, producer, worker, results, limits, roll)
