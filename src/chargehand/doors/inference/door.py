"""The inference door: builds its parts and connects them with the engine."""

import asyncio
from collections.abc import Callable
from secrets import token_urlsafe

from chargehand.config import Config, Secret, TargetConfig
from chargehand.doors.inference import views
from chargehand.doors.inference.attempt import Attempts
from chargehand.doors.inference.batches import KIND as BATCH
from chargehand.doors.inference.batches import Batches
from chargehand.doors.inference.discovery import DiscoveryApi
from chargehand.doors.inference.embedded.process import CannotStart, Embedded
from chargehand.doors.inference.jobs import WORDING, InferenceJobsApi
from chargehand.doors.inference.names import KIND
from chargehand.doors.inference.passthrough import Passthrough
from chargehand.doors.inference.running import RunningAttempts
from chargehand.doors.inference.scheduler import Scheduler
from chargehand.doors.inference.target import Target
from chargehand.doors.inference.uploads import FilesApi
from chargehand.engine.chores import Chore
from chargehand.engine.engine import Engine
from chargehand.files import Files
from chargehand.http.jobs import JobResource
from chargehand.http.kinds import KindScopes
from chargehand.http.route import Route
from chargehand.observability.logs import get_logger
from chargehand.observability.metrics import Metrics
from chargehand.observability.tracing import Tracing
from chargehand.webhooks.egress import EgressPolicy
from chargehand.webhooks.sending import DoorWebhooks

EMBEDDED_NAME = "embedded"
EMBEDDED_PARALLEL = 4
FIRST_LOOK_SECONDS = 1.5

log = get_logger(__name__)

Listener = Callable[[str, bool, str], None]  # (target, whether it is up, what is wrong if not)


class InferenceDoor:
    def __init__(
        self, engine: Engine, config: Config, files: Files, policy: EgressPolicy, tracing: Tracing, metrics: Metrics
    ) -> None:
        settings = config.inference
        self.embedded: Embedded | None = None
        self.note = ""  # for the person at the terminal
        self._settings = settings
        self._metrics = metrics
        self._listeners: list[Listener] = []
        self._announced: dict[str, bool] = {}  # target -> up or not, as listeners were last told
        running = RunningAttempts()
        attempts = Attempts(settings, files, metrics, running)
        targets = [Target(target, settings, self._changed) for target in settings.targets]
        self.scheduler = Scheduler(
            engine,
            targets,
            attempts.work,
            metrics,
            alone=config.store_url.startswith("sqlite:"),
            lease_seconds=settings.lease_seconds,
            cap_seconds=settings.wait_cap_seconds,
            poll_seconds=config.engine.poll_seconds,
        )
        jobs = JobResource(engine, WORDING, tracing, policy.check_url)
        self._passthrough = Passthrough(engine, config, jobs, self.scheduler, attempts)
        self._uploads = FilesApi(config, files)
        self._batches = Batches(engine, config, files)
        own_jobs = InferenceJobsApi(engine, config, jobs, self.scheduler, running, files)
        self.steps = own_jobs.steps
        self._parts = (
            own_jobs,
            self._passthrough,
            DiscoveryApi(config, self.scheduler),
            self._uploads,
            self._batches,
        )
        engine.on_move(self.scheduler.on_move, KIND)
        engine.on_move(self._passthrough.on_move, KIND)
        engine.on_move(self._batches.on_move, BATCH)
        engine.on_move(self._batches.on_line_move, KIND)

    webhooks: dict[str, DoorWebhooks] = {KIND: DoorWebhooks(views.render)}  # noqa: RUF012 - never changed
    scopes: dict[str, KindScopes] = dict.fromkeys(
        (KIND, BATCH), KindScopes(("jobs:read",), ("jobs:write",), ("jobs:write",))
    )

    def routes(self) -> list[Route]:
        return [route for part in self._parts for route in part.routes()]

    async def start(self) -> None:
        """Start the embedded model and check the targets, so that the first job finds a model."""
        await self._start_embedded()
        checks = [asyncio.create_task(target.check()) for target in self.scheduler.targets.values()]
        if checks:
            await asyncio.wait(checks, timeout=FIRST_LOOK_SECONDS)

    async def _start_embedded(self) -> None:
        asked = self._settings.embedded
        if asked == "off" or (asked == "auto" and self._settings.targets):
            return
        self.note = Embedded.available()
        if self.note:
            log.warning("the embedded model cannot run here", reason=self.note)
            return
        key = token_urlsafe(32)
        embedded = Embedded(parallel=EMBEDDED_PARALLEL, key=key)
        try:
            url = await embedded.start()
        except (CannotStart, OSError) as error:
            self.note = str(error)
            log.warning("the embedded model did not start", reason=self.note)
            return
        self.embedded = embedded
        config = TargetConfig(url=url, name=EMBEDDED_NAME, api_key=Secret(key), parallel=EMBEDDED_PARALLEL)
        self.scheduler.add(Target(config, self._settings, self._changed))

    def chores(self) -> list[Chore]:
        return self._uploads.chores()

    async def run(self) -> None:
        self._changed()  # shows a target that is away from the beginning
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.scheduler.run())
                group.create_task(self._batches.run())
                for target in self.scheduler.targets.values():
                    group.create_task(target.run())
                if self.embedded is not None:
                    group.create_task(self.embedded.keep_running())
        finally:
            for target in self.scheduler.targets.values():
                await target.close()
            if self.embedded is not None:
                await self.embedded.stop()

    def on_target(self, listener: Listener) -> None:
        """Call the listener whenever a target comes or goes."""
        self._listeners.append(listener)

    def _changed(self) -> None:
        """A target came, went, or has read its models."""
        for name, target in self.scheduler.targets.items():
            self._metrics.target_up.labels(name).set(target.up)
            if self._announced.get(name, False) != target.up:
                self._announced[name] = target.up
                for listener in self._listeners:
                    listener(name, target.up, target.problem)
        self.scheduler.kick()
