"""The provisioning door: builds its parts and connects them with the engine."""

import os
import socket
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from chargehand.config import Config
from chargehand.doors.provisioning import views
from chargehand.doors.provisioning.adopting import adopt
from chargehand.doors.provisioning.job.assignment import Assignments
from chargehand.doors.provisioning.job.boot import BootSteps
from chargehand.doors.provisioning.job.cancelling import Cancelling
from chargehand.doors.provisioning.job.cleanup import CleanupSteps
from chargehand.doors.provisioning.job.deadlines import Deadlines
from chargehand.doors.provisioning.job.ledger import JobLedgers
from chargehand.doors.provisioning.job.ledger_writer import LedgerWriter
from chargehand.doors.provisioning.job.lifecycle import Lifecycle
from chargehand.doors.provisioning.job.occupancy import Occupancy
from chargehand.doors.provisioning.job.orders import Orders
from chargehand.doors.provisioning.job.outcomes import Outcomes
from chargehand.doors.provisioning.job.position import Positions
from chargehand.doors.provisioning.job.reports import MachineReports
from chargehand.doors.provisioning.job.retention import Retention
from chargehand.doors.provisioning.job.run import JobRuns
from chargehand.doors.provisioning.job.waiting import ReportWait
from chargehand.doors.provisioning.jobs import WORDING, ProvisioningJobsApi
from chargehand.doors.provisioning.machines import Machines
from chargehand.doors.provisioning.media.fetches import Fetches
from chargehand.doors.provisioning.media.files import MediaFiles
from chargehand.doors.provisioning.media.serving import MediaServer
from chargehand.doors.provisioning.media.urls import MediaUrls
from chargehand.doors.provisioning.metrics import ProvisioningMetrics
from chargehand.doors.provisioning.names import KIND, PULL, QUEUES, READ, WRITE
from chargehand.doors.provisioning.redfish.turns import Turns
from chargehand.doors.provisioning.registry.door import Registry
from chargehand.doors.provisioning.servers import Servers
from chargehand.doors.provisioning.tokens import PREFIX, JobTokens
from chargehand.doors.provisioning.vault import Vault
from chargehand.engine.chores import Chore
from chargehand.engine.engine import Engine
from chargehand.engine.job import RESTING
from chargehand.engine.runner import Runner
from chargehand.errors import Forbidden
from chargehand.http.application import Admission
from chargehand.http.auth import token_of
from chargehand.http.jobs import JobResource
from chargehand.http.kinds import KindScopes
from chargehand.http.request import Request
from chargehand.http.route import Route
from chargehand.observability.metrics import Metrics
from chargehand.observability.tracing import Tracing
from chargehand.webhooks.egress import EgressPolicy
from chargehand.webhooks.sending import DoorWebhooks

UNREACHABLE = "no machine can reach this server: it listens on {host}; set provisioning.public_url to the URL by which BMCs and machines reach it"


class ProvisioningDoor:
    def __init__(
        self, engine: Engine, config: Config, gate: Admission, policy: EgressPolicy, tracing: Tracing, metrics: Metrics
    ) -> None:
        settings = config.provisioning
        self._engine = engine
        self._config = config
        self._gate = gate
        self.metrics = ProvisioningMetrics(metrics.registry)
        vault = Vault.of(config)
        orders = Orders(vault)
        runs = JobRuns(engine.records)
        ledgers = JobLedgers(engine.records)
        self._writer = writer = LedgerWriter(engine.records)
        self._tokens = JobTokens(vault.key("job-token"))
        bmcs = policy.for_bmcs()
        turns = Turns()
        machines = Machines(settings, bmcs, self.metrics, turns)
        assignments = Assignments(engine.records)
        servers = Servers(engine, vault, bmcs, machines, assignments)
        self._files = MediaFiles(config, engine.jobs, orders, runs, self._tokens, self.metrics)
        urls = MediaUrls(vault.key("media"), lambda: self._files.base_url, engine.now)
        occupancy = Occupancy(engine)
        boot = BootSteps(settings, servers, machines, occupancy, urls, self._files)
        deadlines = Deadlines(settings)
        waiting = ReportWait(settings, servers, machines, deadlines)
        cleanup = CleanupSteps(settings, servers, machines, urls, self._files)
        self._outcomes = outcomes = Outcomes(engine, self.metrics)
        self._lifecycle = Lifecycle(
            engine, settings, orders, runs, ledgers, writer, assignments, boot, waiting, cleanup, outcomes, self.metrics
        )
        self._fetches = Fetches(engine, writer)
        jobs = JobResource(engine, WORDING, tracing, policy.check_url)
        self._jobs = ProvisioningJobsApi(engine, jobs, vault, orders, Positions(runs, ledgers), deadlines, servers)
        self.steps = self._jobs.steps
        registry = Path(settings.registry_dir or Path(config.server.data_dir) / "registry")
        self._registry = Registry(registry, settings=settings, admit=self._admit_to_registry)
        self._retention = Retention(engine, runs, ledgers, occupancy, self._files, settings.media_keep_seconds)
        self._parts = (
            self._jobs,
            servers,
            MachineReports(engine, settings, self._tokens, runs, writer, assignments, outcomes, self.metrics, turns),
            MediaServer(urls, self._files.find, self._fetches.heard),
            self._registry,
        )
        engine.decide_by(KIND, self._lifecycle.put_back)
        engine.cancel_by(KIND, Cancelling(engine, writer, outcomes).cancel)

    webhooks: dict[str, DoorWebhooks] = {KIND: DoorWebhooks(views.render)}  # noqa: RUF012 - never changed
    scopes: dict[str, KindScopes] = {KIND: KindScopes((READ,), (WRITE,), (WRITE,))}  # noqa: RUF012 - never changed

    def routes(self) -> list[Route]:
        return [route for part in self._parts for route in part.routes()]

    async def start(self) -> None:
        """Migrate old records, before requests are served."""
        await adopt(self._engine)

    def listening(self, url: str) -> None:
        """Use the URL that the server listens on, unless provisioning.public_url is set."""
        host = urlsplit(url).hostname or ""
        if not self._config.provisioning.public_url and ip_address(host).is_unspecified:
            self._jobs.unreachable = UNREACHABLE.format(host=host)
        self._files.base_url = (self._config.provisioning.public_url or url).rstrip("/")

    def chores(self) -> list[Chore]:
        return [*self._fetches.chores(), *self._retention.chores(), *self._registry.chores()]

    async def run(self) -> None:
        settings = self._config.provisioning
        runner = Runner(
            self._engine,
            f"provisioner-{socket.gethostname()}-{os.getpid()}",
            (QUEUES,),
            self._lifecycle.work,
            concurrency=settings.max_active,
            lease_seconds=settings.lease_seconds,
            resting_stage=RESTING,
        )
        await runner.run()

    async def _admit_to_registry(self, req: Request, scope: str) -> str:
        """Return the caller's tenant. A machine may pull with the token of its active job, for the job's tenant."""
        token = token_of(req)
        if scope != PULL or not token.startswith(PREFIX):
            await self._gate.admit(req, scope)
            return str(req.caller.tenant)
        meant = self._tokens.read(token)
        job = await self._engine.jobs.get_job(meant.job_id) if meant else None
        if job is None or job.finished:
            raise Forbidden("this token does not belong to an active job")
        return job.tenant
