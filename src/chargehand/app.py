"""Connects all parts: Config -> Store -> Engine -> outbox and doors -> HTTP. `Server.close` ends them in the opposite order."""

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from chargehand import __version__
from chargehand.api import views
from chargehand.api.deliveries import DeliveriesApi
from chargehand.api.flows import FlowsApi
from chargehand.api.jobs import JobsApi
from chargehand.api.queues import QueuesApi
from chargehand.api.service import ServiceApi
from chargehand.api.settings import SettingsApi
from chargehand.api.work import WorkApi
from chargehand.collector import calm_collector, tend_collector
from chargehand.config import Config, require_safe
from chargehand.console.console import Console
from chargehand.doors.inference.door import InferenceDoor
from chargehand.doors.provisioning.door import ProvisioningDoor
from chargehand.doors.tasks.door import TasksDoor
from chargehand.engine.chores import Chore, Chores, engine_chores
from chargehand.engine.engine import Engine
from chargehand.engine.flow import KIND as FLOW
from chargehand.engine.flows import Flows
from chargehand.engine.job import FINAL, SECOND
from chargehand.engine.moves import Moved, RetryPolicy
from chargehand.engine.runner import IN_PROCESS
from chargehand.engine.store import Store
from chargehand.files import Blobs, Files
from chargehand.http.application import Application, Observe
from chargehand.http.auth import Gate
from chargehand.http.connection import Bounds
from chargehand.http.kinds import Kinds
from chargehand.http.listening import url_of
from chargehand.http.openapi import describe
from chargehand.http.room import Room
from chargehand.http.route import Route
from chargehand.http.server import HttpServer
from chargehand.http.tls import Tls
from chargehand.observability.logs import get_logger
from chargehand.observability.metrics import Metrics
from chargehand.observability.siblings import Siblings
from chargehand.observability.supervisor import Supervisor
from chargehand.observability.tracing import configure_tracing
from chargehand.private import keep_files_private
from chargehand.store import open_store
from chargehand.webhooks.egress import EgressPolicy
from chargehand.webhooks.outbound import Outbox
from chargehand.webhooks.sending import DoorWebhooks

log = get_logger(__name__)
CERTIFICATE_SECONDS = 60.0
DESCRIPTION = "A durable job server: jobs in, work out, every change of state pushed by signed webhooks."


class Server:
    """All parts of one process: `await Server.open(config)`, then `start()`, `wait()`, `close()`."""

    def __init__(self, config: Config, store: Store, siblings: Siblings | None = None) -> None:
        self.config = config
        self.store = store
        self.metrics = Metrics()
        self.tracing = configure_tracing(
            config.tracing.endpoint, config.tracing.service_name, config.tracing.sample_ratio
        )
        policy = RetryPolicy(config.engine.backoff_base_seconds, config.engine.backoff_max_seconds)
        self.engine = Engine(store, policy=policy)
        self._flows = Flows(self.engine)
        self.egress = EgressPolicy.of(config)
        self.files = Files(store, Blobs(config.files_directory), self.engine.new_id)
        self.inference = self._inference_door() if config.inference.enabled else None
        self.tasks = self._tasks_door() if config.tasks.enabled else None
        self._gate = Gate(config)
        self.provisioning = self._provisioning_door() if config.provisioning.enabled else None
        webhooks: dict[str, DoorWebhooks] = {  # all kinds of jobs, also those of doors that are off
            views.KIND: DoorWebhooks(views.render),
            FLOW: DoorWebhooks(views.render),
            **InferenceDoor.webhooks,
            **TasksDoor.webhooks,
            **ProvisioningDoor.webhooks,
        }
        self.outbox = Outbox(
            store,
            config.webhooks,
            self.egress,
            webhooks,
            self.metrics,
            self.tracing,
            poll_seconds=config.engine.poll_seconds,
        )
        self.engine.on_move(self.outbox.on_move)
        if self.tasks is not None:
            self.tasks.watch(self.outbox)
        self.engine.on_move(_counting(self.metrics))
        self.kinds = Kinds(views.SCOPES | InferenceDoor.scopes | TasksDoor.scopes | ProvisioningDoor.scopes)
        self._jobs = JobsApi(self.engine, self.config, self.egress, self.tracing, self.kinds)
        self.console = Console(self.engine, self.outbox, self._open_kinds(), self.kinds, auth=config.has_auth)
        if self.inference is not None:
            self.inference.on_target(self.console.feed.on_target)
        self.http = HttpServer(_bounds(config))
        self._chores = Chores(self.chores(), self.metrics.count_chore)
        counters = [self.tasks.count] if self.tasks is not None else []
        self._siblings = siblings
        self._service = ServiceApi(
            self.engine, self.outbox, self.metrics, self._chores, self.describe, counters, siblings
        )
        self._background: list[asyncio.Task[None]] = []

    def _open_kinds(self) -> tuple[str, ...]:
        doors = ((self.inference, InferenceDoor), (self.tasks, TasksDoor), (self.provisioning, ProvisioningDoor))
        return (*(kind for door, made in doors if door is not None for kind in made.webhooks), views.KIND, FLOW)

    def _inference_door(self) -> InferenceDoor:
        return InferenceDoor(self.engine, self.config, self.files, self.egress, self.tracing, self.metrics)

    def _tasks_door(self) -> TasksDoor:
        return TasksDoor(self.engine, self.config, self.files, self.egress, self.tracing, self.metrics)

    def _provisioning_door(self) -> ProvisioningDoor:
        return ProvisioningDoor(self.engine, self.config, self._gate, self.egress, self.tracing, self.metrics)

    @classmethod
    async def open(cls, config: Config, siblings: Siblings | None = None) -> "Server":
        require_safe(config)
        store = await open_store(
            config.store_url,
            max_bytes=config.store.max_bytes,
            pool_size=config.store.pool_size,
            group_size=config.store.group_size,
        )
        try:
            return cls(config, store, siblings)
        except BaseException:
            await store.close()
            raise

    def routes(self) -> list[Route]:
        doors = {"engine": self._jobs.steps} | {
            name: door.steps
            for name, door in (
                ("tasks", self.tasks),
                ("inference", self.inference),
                ("provisioning", self.provisioning),
            )
            if door is not None
        }
        return [
            *self._jobs.routes(),
            *FlowsApi(self.engine, self._flows, self.config, self.egress, self.tracing, self.kinds, doors).routes(),
            *WorkApi(self.engine, self.config).routes(),
            *QueuesApi(self.engine, self.kinds).routes(),
            *DeliveriesApi(self.engine, self.outbox, self.kinds).routes(),
            *(self.inference.routes() if self.inference else ()),
            *(self.tasks.routes() if self.tasks else ()),
            *(self.provisioning.routes() if self.provisioning else ()),
            *self.console.routes(),
            *SettingsApi(self.config).routes(),
            *self._service.routes(),
        ]

    def chores(self) -> list[Chore]:
        """All periodic work. What waits for events has a loop of its own instead:

        - in `start`: the outbox, the notifier of the tasks door, the scheduler, batches, targets and embedded model of the
          inference door, the runner of the provisioning door;
        - in the parts themselves: the connections' timeouts (http/server.py), the store's connection and writer;
        - in `serve`, because they outlast the server: the supervisor's watchdog and the garbage collector.
        """
        doors = (self.inference, self.tasks, self.provisioning)
        certificate = Chore("certificate", CERTIFICATE_SECONDS, self.http.refresh_certificate)
        return [
            *engine_chores(self.engine, self.config),
            *self._flows.chores(),
            *self.files.chores(self.config.retention.interval_seconds),
            *self.console.chores(),
            *([certificate] if self.config.server.tls_certificate else []),
            *(chore for door in doors if door is not None for chore in door.chores()),
        ]

    def describe(self) -> dict[str, Any]:
        return describe(self.routes(), title="Chargehand", version=__version__, description=DESCRIPTION)

    def application(self, extra_routes: Sequence[Route] = ()) -> Application:
        room = Room(self.config.server.max_bodies_bytes)
        return Application([*self.routes(), *extra_routes], self._gate, self._http_observer, room)

    def _http_observer(self, method: str, route: str) -> Observe:
        own = self.metrics.http_observer(method, route)
        if self.provisioning is None or not self.provisioning.metrics.counts(route):
            return own
        count = self.provisioning.metrics.count_http

        def observe(status: int, seconds: float) -> None:
            own(status, seconds)
            count(route, status)

        return observe

    async def start(self, extra_routes: Sequence[Route] = (), inherited: Sequence[socket.socket] = ()) -> None:
        if self.config.store_url.startswith("sqlite:"):
            # Only one process uses the file, so the runners of the process before hold their leases for nobody.
            await self.engine.lapse_all(IN_PROCESS)
        await self.engine.refresh_limits()
        await self._jobs.start()
        self._run(self.outbox.run())
        if self.tasks is not None:
            await self.tasks.start()
            self._run(self.tasks.run())
        if self.provisioning is not None:
            await self.provisioning.start()
        self._run(self._chores.run())
        server = self.config.server
        if self._siblings is not None:
            await self._siblings.listen(self._service.render)
        await self.http.start(self.application(extra_routes), server.host, server.port, Tls.of(server), inherited)
        if self.tasks is not None and self.tasks.grpc is not None:
            await self.tasks.grpc.start(self._gate.known, shared=self._siblings is not None)
        if self.provisioning is not None:
            self.provisioning.listening(self.url)
            self._run(self.provisioning.run())
        if self.inference is not None:
            await self.inference.start()
            self._run(self.inference.run())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._background.append(asyncio.create_task(work))

    async def wait(self, stop: asyncio.Event) -> str:
        """Wait until `stop` is set (returns "") or something ends without which the server cannot go on (returns what)."""
        stopping = asyncio.create_task(stop.wait())
        ended = asyncio.create_task(self.store.ended())
        done, _ = await asyncio.wait({stopping, ended, *self._background}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        ended.cancel()
        if stopping in done:
            return ""
        if ended in done:
            return ended.result()
        [broken] = [task for task in self._background if task in done][:1]
        return f"a background task ended: {broken.exception()!r}"

    async def close(self) -> None:
        """Refuse new claims, answer running requests, let webhooks in flight end, hand leases back: each step has a time limit."""
        self.engine.drain()
        self.console.feed.close()
        if self.tasks is not None and self.tasks.grpc is not None:
            await self.tasks.grpc.close(self.config.server.drain_seconds)
        await self.http.drain()
        await self.outbox.drain(self.config.webhooks.timeout_seconds)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._siblings is not None:
            self._siblings.close()
        await self.engine.handed_back()
        await self.store.close()
        await asyncio.to_thread(self.tracing.shutdown)

    @property
    def url(self) -> str:
        return url_of(self.http.addresses[0], tls=bool(self.config.server.tls_certificate))


async def serve(
    config: Config,
    started: Callable[[Server], None],
    inherited: Sequence[socket.socket] = (),
    siblings: Siblings | None = None,
) -> int:
    """Run a server until it is told to stop; return the exit code of the process."""
    keep_files_private()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    supervisor = Supervisor()
    upkeep = [asyncio.create_task(supervisor.keep_alive()), asyncio.create_task(tend_collector())]
    try:
        server = await Server.open(config, siblings)
        return await _serve(server, started, inherited, stop, supervisor)
    finally:
        for task in upkeep:
            task.cancel()


async def _serve(
    server: Server,
    started: Callable[[Server], None],
    inherited: Sequence[socket.socket],
    stop: asyncio.Event,
    supervisor: Supervisor,
) -> int:
    try:
        await server.start(inherited=inherited)
        calm_collector()
        started(server)
        supervisor.ready()
        reason = await server.wait(stop)
        supervisor.stopping()
        if reason:
            log.error("the server stops", reason=reason)
        else:
            log.info("draining", seconds=server.config.server.drain_seconds)
    finally:
        await server.close()
    return 1 if reason else 0


def _bounds(config: Config) -> Bounds:
    server = config.server
    return Bounds(
        max_header_bytes=server.max_header_bytes,
        header_timeout_seconds=server.header_timeout_seconds,
        body_timeout_seconds=server.body_timeout_seconds,
        keep_alive_seconds=server.keep_alive_seconds,
        max_connections=server.max_connections,
        drain_seconds=server.drain_seconds,
    )


def _counting(metrics: Metrics) -> Callable[[Moved], None]:
    def count(moved: Moved) -> None:
        metrics.count_move(moved.kind, moved.move)
        if moved.move == "claim":
            metrics.claim_wait_seconds.at(moved.kind)(max(0, moved.at - moved.run_at) / SECOND)
        elif moved.state in FINAL:
            metrics.job_seconds.at(moved.kind, moved.state)((moved.at - moved.created_at) / SECOND)

    return count
