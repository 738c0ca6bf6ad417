"""The reports of machines and the answers to them: the bodies of `POST /api/v1/status-webhook/{server_serial}` and of `…/progress`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from chargehand.doors.provisioning.job.journey import one_line
from chargehand.doors.provisioning.job.ledger import Verdict
from chargehand.doors.provisioning.taxonomy import of_unit
from chargehand.http.inputs import absent

MAX_BODY = 262_144
MAX_LINE = 1024
LINES = ("job_id", "task_target", "dispatcher_version", "schema_id", "started_at", "finished_at")
LOGGED = ("status", "failed_step", "delivery_id", *LINES[1:], "exit_code")  # the fields that go into the job's log


Debugging = msgspec.Raw  # a text or a number; a value of another type is dropped without being decoded


class StatusReport(msgspec.Struct):
    """Unknown members are ignored, and so are invalid values of members for debugging: if the report were refused, the machine would
    give up in the end, and the outcome would be lost.
    """

    status: Annotated[Literal["success", "failed"], Meta(description="How it ended")]
    failed_step: (
        Annotated[str, Meta(max_length=256, description="Required with failed: the unit that failed")] | None
    ) = None
    delivery_id: Annotated[str, Meta(min_length=1, max_length=128, description="The same on each retry")] | None = None
    job_id: Debugging = msgspec.field(default_factory=absent)
    task_target: Debugging = msgspec.field(default_factory=absent)
    dispatcher_version: Debugging = msgspec.field(default_factory=absent)
    schema_id: Debugging = msgspec.field(default_factory=absent)
    started_at: Debugging = msgspec.field(default_factory=absent)
    finished_at: Debugging = msgspec.field(default_factory=absent)
    exit_code: Debugging = msgspec.field(default_factory=absent)
    log_tail: Annotated[Debugging, Meta(description="The end of the unit's log; cut to 64 Ki characters")] = (
        msgspec.field(default_factory=absent)
    )


class Reported(msgspec.Struct):
    """A status report, cleaned."""

    status: str
    failed_step: str | None
    delivery_id: str | None
    job_id: str | None
    task_target: str | None
    dispatcher_version: str | None
    schema_id: str | None
    started_at: str | None
    finished_at: str | None
    exit_code: int | None
    log_tail: str | None

    @classmethod
    def of(cls, status: StatusReport) -> "Reported":
        # It becomes a key and part of messages, so only its printable characters are kept.
        failed_step = one_line(status.failed_step or "") or None
        lines = {name: _text(getattr(status, name), MAX_LINE) for name in LINES}
        exit_code, log_tail = _exit_code(status.exit_code), _text(status.log_tail, MAX_BODY)
        return cls(status.status, failed_step, status.delivery_id, **lines, exit_code=exit_code, log_tail=log_tail)

    def verdict(self, now: int) -> Verdict:
        if self.status != "failed":
            return Verdict("succeeded", now, "webhook")
        unit = self.failed_step or ""
        code = f" with exit code {self.exit_code}" if self.exit_code is not None else ""
        return Verdict("failed", now, "webhook", of_unit(unit), unit, one_line(f"{unit} failed{code}"))

    def event_data(self, auth: str) -> bytes:
        given = {name: value for name in LOGGED if (value := getattr(self, name)) is not None}
        return msgspec.json.encode({"kind": "webhook", "auth": auth, **given})


def _text(raw: msgspec.Raw, most: int) -> str | None:
    try:
        return _string.decode(raw)[:most]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _exit_code(raw: msgspec.Raw) -> int | None:
    try:
        return int(_small.decode(raw))
    except msgspec.DecodeError:
        return None


class ProgressReport(msgspec.Struct):
    step: Annotated[str, Meta(min_length=1, max_length=256, description="The unit that is at work")]
    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    message: Annotated[str, Meta(max_length=2000)] = ""
    finished: Annotated[bool, Meta(description="The step is done")] = False
    log_tail: Annotated[str, Meta(max_length=MAX_BODY)] | None = None
    boot_id: (
        Annotated[str, Meta(max_length=64, description="Identifies the boot: only the first one that reports may work")]
        | None
    ) = None
    job_id: Annotated[str, Meta(max_length=MAX_LINE)] | None = None

    @property
    def line(self) -> str:
        """Return the line for the job's log."""
        percent = f" {self.percent:g} %" if self.percent is not None else ""
        text = f": {self.message}" if self.message else ""
        return one_line(f"{self.step}{' is done' if self.finished else percent}{text}")

    @property
    def event_data(self) -> bytes:
        return msgspec.json.encode({"kind": "progress", "percent": self.percent, "finished": self.finished})


class StatusAccepted(msgspec.Struct):
    job_id: str
    status: str
    duplicate: bool


class ProgressAnswer(msgspec.Struct):
    job_id: str
    go_on: Annotated[bool, Meta(description="False: the job is over or belongs to another boot; touch nothing")]
    reason: str


_string = msgspec.json.Decoder(str)
_small = msgspec.json.Decoder(Annotated[int, Meta(gt=-(2**31), lt=2**31)])
status_decoder = msgspec.json.Decoder(StatusReport)
progress_decoder = msgspec.json.Decoder(ProgressReport)
