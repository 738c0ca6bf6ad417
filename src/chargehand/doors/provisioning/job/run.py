"""The run of a job: the step that its owner takes, and what the next owner must know to go on from it. Only the owner writes it, before
each step.

A step that must not be taken twice stores its intent first. An owner that finds an intent without its result looks at the machine
instead of guessing.
"""

from enum import StrEnum

import msgspec

from chargehand.doors.provisioning.job.occupancy import Spot
from chargehand.doors.provisioning.redfish.facts import MachineFacts
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.engine.record import DropRecord, PutRecord, Record
from chargehand.engine.records import Records
from chargehand.errors import StaleLease
from chargehand.observability.logs import get_logger

RECORD = "provision-run"

log = get_logger(__name__)


class RunStep(StrEnum):
    BUILD = "build-media"
    DISCOVER = "discover"
    MOUNT_MAINTENANCE = "mount-maintenance"
    MOUNT_TASK = "mount-task"
    BOOT_OVERRIDE = "boot-override"
    RESET = "reset"
    POLL = "poll"
    WAIT = "wait"
    EJECT = "eject"
    CLEAR_OVERRIDE = "clear-override"
    FINAL_RESET = "final-reset"
    DONE = "done"


# The key of a step's failure. A medium whose file is missing is found while building.
KEYS: dict[RunStep, Key] = {
    RunStep.BUILD: Key.ISO_BUILD,
    RunStep.DISCOVER: Key.REDFISH_DISCOVER,
    RunStep.MOUNT_MAINTENANCE: Key.REDFISH_MOUNT_MAINTENANCE,
    RunStep.MOUNT_TASK: Key.REDFISH_MOUNT_TASK,
    RunStep.BOOT_OVERRIDE: Key.REDFISH_BOOT_OVERRIDE,
    RunStep.RESET: Key.REDFISH_RESET,
    RunStep.POLL: Key.REDFISH_POLL,
    RunStep.WAIT: Key.WEBHOOK_WAIT,
    RunStep.EJECT: Key.CLEANUP_UNMOUNT,
    RunStep.CLEAR_OVERRIDE: Key.CLEANUP_UNMOUNT,
    RunStep.FINAL_RESET: Key.CLEANUP_RESET,
}
AFTER: dict[RunStep, RunStep] = dict(zip(list(RunStep)[:-1], list(RunStep)[1:], strict=True))
BOOTING = (
    RunStep.DISCOVER,
    RunStep.MOUNT_MAINTENANCE,
    RunStep.MOUNT_TASK,
    RunStep.BOOT_OVERRIDE,
    RunStep.RESET,
    RunStep.POLL,
)
CLEANUP = frozenset({RunStep.EJECT, RunStep.CLEAR_OVERRIDE, RunStep.FINAL_RESET, RunStep.DONE})


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step that was begun, for the job's progress."""

    step: RunStep
    began_at: int
    ended_at: int | None = None
    ok: bool = True


class ResetIntent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Stored before a reset is sent, with the state that the BMC showed then, to compare with later."""

    asked_at: int
    power: str = ""
    last_reset_at: str = ""
    override: str = ""  # "Once" until the boot has used it, if the BMC shows that
    sent: str = ""  # the type, once the BMC accepted it
    tries: int = 1

    @property
    def could_be_seen(self) -> bool:
        """Return whether this BMC shows resets."""
        return bool(self.last_reset_at) or self.power != "On"


class JobRun(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    generation: int = 1
    lease: int = 0  # the lease of its last owner
    step: RunStep = RunStep.BUILD
    began_at: int = 0
    taken_at: int = 0  # when its owner claimed the job; before that, perhaps no node was up
    cleanup_at: int | None = None  # when cleaning up began
    facts: MachineFacts | None = None  # what the BMC showed
    spot: Spot | None = None  # what the job occupies
    trouble: str = ""  # what delays the current step, for the job's progress
    combined: bool = False  # one drive: both media in one image
    slots: dict[str, str] = {}  # name of a medium -> path of its drive, stored before it is inserted
    override: bool = False  # we set the boot override
    reset: ResetIntent | None = None
    booted_at: int | None = None  # when the machine was seen to come back
    final_reset: ResetIntent | None = None
    installer: str = ""  # the state of the machine when an installer's reboot was last checked
    iso_size: int = 0
    iso_sha256: str = ""
    warnings: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    media_gone: bool = False  # retention removed the files


_decoder = msgspec.json.Decoder(JobRun)


class JobRuns:
    def __init__(self, records: Records) -> None:
        self._records = records

    async def get(self, tenant: str, job_id: str) -> "tuple[JobRun, int] | None":
        record = await self._records.get(RECORD, tenant, job_id)
        return None if record is None else (_decoder.decode(record.body), record.version)

    async def put(self, tenant: str, job_id: str, run: JobRun, expected: int, *, due_at: int | None = None) -> int:
        """Return the new version. StaleLease stops an owner that was replaced."""
        body = msgspec.json.encode(run)
        record = await self._records.put(PutRecord(RECORD, tenant, job_id, body, expected=expected, due_at=due_at))
        if record is None:
            raise StaleLease(f"job {job_id} has another owner now")
        return record.version

    async def due(self, limit: int) -> list[tuple[Record, JobRun | None]]:
        """Return the runs that retention must check; None for one that cannot be read."""
        return [(record, _read(record)) for record in await self._records.due(RECORD, limit)]

    async def drop(self, tenant: str, job_id: str) -> None:
        await self._records.drop(DropRecord(RECORD, tenant, job_id))


def _read(record: Record) -> JobRun | None:
    try:
        return _decoder.decode(record.body)
    except msgspec.DecodeError as error:
        log.error("a run cannot be read", job_id=record.name, error=str(error))
        return None
