"""What travels between a client and the provisioning door, typed. A newer server may say more: what is not known is left out."""

from typing import Any, Literal

import msgspec

from chargehand.client.types.page import Page

Status = Literal["queued", "provisioning", "succeeded", "failed", "complete"]


class Slot(msgspec.Struct, frozen=True):
    """A virtual drive of a BMC."""

    path: str
    name: str = ""
    kind: str = "cd"  # or usb


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a BMC turned out to be."""

    system: str = ""
    vendor: str = ""
    manufacturer: str = ""
    model: str = ""
    serial: str = ""
    uuid: str = ""
    bios_version: str = ""
    redfish_version: str = ""
    power: str = "Unknown"
    reset_types: tuple[str, ...] = ()
    boot_targets: tuple[str, ...] = ()
    boot_modes: tuple[str, ...] = ()
    slots: tuple[Slot, ...] = ()
    quirks: str = ""


class Probe(msgspec.Struct, frozen=True):
    at: str
    ok: bool
    problem: str = ""
    facts: Facts | None = None


class Server(msgspec.Struct, frozen=True, kw_only=True):
    server_serial: str
    bmc_address: str = ""
    bmc_username: str = ""
    has_password: bool = False
    system_uuid: str | None = None
    vendor: str | None = None
    tls: str = "verify"
    unidentified: bool = False
    labels: dict[str, str] = {}
    probe: Probe | None = None
    active_job: str | None = None
    created_at: str = ""
    updated_at: str = ""


class Submitted(msgspec.Struct, frozen=True):
    job_id: str
    status: str
    server_serial: str
    created_at: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    server_serial: str = ""
    task_target: str = ""
    status: str = "queued"
    outcome: str | None = None  # succeeded, failed or cancelled, once it is known
    failed_step: str | None = None
    error: str | None = None
    waiting_for: str = ""
    created_at: str = ""
    updated_at: str = ""
    finished_at: str | None = None


class Step(msgspec.Struct, frozen=True):
    step: str
    where: str = "controller"  # or machine
    began_at: str = ""
    ended_at: str | None = None
    seconds: float | None = None
    ok: bool = True
    percent: float | None = None
    message: str = ""


class Progress(msgspec.Struct, frozen=True):
    step: str = ""
    steps: tuple[Step, ...] = ()
    heard_at: str | None = None
    log_tail: str = ""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    failed_step: str | None = None
    unit: str = ""
    message: str = ""
    reason: str = ""
    meaning: str = ""
    advice: str = ""
    can_retry: bool = True


class Job(Summary, frozen=True, kw_only=True):
    attempt: int = 1
    failure: Failure | None = None
    warnings: tuple[str, ...] = ()
    progress: Progress = Progress()
    deadlines: dict[str, str] = {}
    recipe: dict[str, Any] = {}
    metadata: dict[str, Any] = {}

    @property
    def finished(self) -> bool:
        return self.status == "complete"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    sequence: int
    time: str = ""
    level: str = "info"
    kind: str = ""
    step: str = ""
    message: str = ""
    status: str = ""
    data: Any = None


class ServerPage(Page, frozen=True, kw_only=True):
    servers: list[Server]


class JobPage(Page, frozen=True, kw_only=True):
    jobs: list[Summary]


class Webhook(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who is told of the changes of a job, and of which; none named: of all."""

    url: str
    on: tuple[Status, ...] = ()


class NewServer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    bmc_address: str
    bmc_username: str = ""
    bmc_password: str | None = None  # None: stays as it is
    system_uuid: str | None = None
    vendor: str | None = None
    tls: str = "verify"
    unidentified: bool = False
    labels: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"NewServer(bmc_address={self.bmc_address!r}, bmc_username={self.bmc_username!r})"


class NewJob(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    server_serial: str
    recipe: Any
    webhook: Webhook | None = None
    priority: int = 0
    metadata: dict[str, Any] = {}
