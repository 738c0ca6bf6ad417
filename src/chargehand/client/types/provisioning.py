"""Types of `client.provisioning`: servers, what their BMCs report, and jobs."""

from typing import Any, Literal

import msgspec

Status = Literal["queued", "provisioning", "succeeded", "failed", "complete"]


class DriveSlot(msgspec.Struct, frozen=True):
    """A virtual drive of a BMC."""

    path: str
    name: str = ""
    kind: str = "cd"  # or usb


class BmcFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a BMC reports of itself and its machine."""

    system: str = ""
    managers: tuple[str, ...] = ()
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
    slots: tuple[DriveSlot, ...] = ()
    quirks: str = ""


class ProbeReport(msgspec.Struct, frozen=True):
    at: str
    ok: bool
    problem: str = ""
    facts: BmcFacts | None = None


class RegisteredServer(msgspec.Struct, frozen=True, kw_only=True):
    server_serial: str
    bmc_address: str = ""
    bmc_username: str = ""
    has_password: bool = False
    system_uuid: str | None = None
    vendor: str | None = None
    tls: str = "verify"
    unidentified: bool = False
    labels: dict[str, str] = {}
    probe: ProbeReport | None = None
    active_job: str | None = None
    created_at: str = ""
    updated_at: str = ""


class SubmittedProvisioningJob(msgspec.Struct, frozen=True):
    job_id: str
    status: str
    server_serial: str
    created_at: str


class ListedProvisioningJob(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    server_serial: str = ""
    task_target: str = ""
    status: str = "queued"
    outcome: str | None = None  # succeeded, failed or cancelled; None until it is known
    failed_step: str | None = None
    error: str | None = None
    waiting_for: str = ""
    created_at: str = ""
    updated_at: str = ""
    finished_at: str | None = None


class StepProgress(msgspec.Struct, frozen=True):
    step: str
    where: str = "controller"  # or machine
    began_at: str = ""
    ended_at: str | None = None
    seconds: float | None = None
    ok: bool = True
    percent: float | None = None
    message: str = ""


class ProvisioningProgress(msgspec.Struct, frozen=True):
    step: str = ""
    trouble: str = ""  # why the current step does not succeed yet
    steps: tuple[StepProgress, ...] = ()
    heard_at: str | None = None
    log_tail: str = ""


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    failed_step: str | None = None
    unit: str = ""
    message: str = ""
    reason: str = ""
    meaning: str = ""
    advice: str = ""
    can_retry: bool = True


class Job(ListedProvisioningJob, frozen=True, kw_only=True):
    attempt: int = 1
    failure: FailureReport | None = None
    warnings: tuple[str, ...] = ()
    progress: ProvisioningProgress = ProvisioningProgress()
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


class StatusWebhook(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the server reports the changes of a job: those to the statuses in `on`, or all of them."""

    url: str
    on: tuple[Status, ...] = ()
