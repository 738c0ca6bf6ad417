"""What machines say: `POST /api/v1/status-webhook/{server_serial}`, the one word that ends a job, and `…/progress` before it.

At least once from them, exactly once in effect here: the first word is the verdict, every other one is answered 200 and changes
nothing. Who may speak: whoever has the job's own token (then only for that job), the shared secret, or a client certificate.
"""

import asyncio
import hmac
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from chargehand.config import ProvisioningConfig
from chargehand.doors.provisioning.job.journey import one_line
from chargehand.doors.provisioning.job.ledger import MAX_STEPS, MAX_TAIL, JobLedger, JobLedgers, UnitProgress, Verdict
from chargehand.doors.provisioning.job.lifecycle import Lifecycle
from chargehand.doors.provisioning.job.orders import metadata_of
from chargehand.doors.provisioning.job.run import JobRuns
from chargehand.doors.provisioning.metrics import ProvisioningMetrics
from chargehand.doors.provisioning.names import BASE, KIND, TAG, Stage
from chargehand.doors.provisioning.redfish.turns import Turns
from chargehand.doors.provisioning.refusals import write_error
from chargehand.doors.provisioning.servers import Servers
from chargehand.doors.provisioning.taxonomy import of_unit
from chargehand.doors.provisioning.tokens import PREFIX, JobTokens, Meant
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.ids import is_ulid
from chargehand.engine.job import SECOND, Job, State, topic_of
from chargehand.engine.moves import Note
from chargehand.errors import ChargehandError, Forbidden, InvalidField, NotFound, Unauthenticated
from chargehand.http.auth import token_of
from chargehand.http.inputs import absent
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, decode, read_body, reply
from chargehand.http.tls import client_names
from chargehand.observability.logs import get_logger

SECRET = "X-Webhook-Secret"  # noqa: S105 - the name of a header
MAX_BODY = 262_144
PROVISIONING = topic_of(State.RUNNING, Stage.PROVISIONING)  # of a job without an outcome
EVENT_PERCENT = 10.0  # a step's progress is worth a line in the job's log each so many percent
MAX_EVENTS = 1000  # and no more lines than this for what machines say of one job

log = get_logger(__name__)

MAX_LINE = 1024
LINES = ("job_id", "task_target", "dispatcher_version", "schema_id", "started_at", "finished_at")


Debugging = msgspec.Raw  # a text or a number, where it is as it should be; whatever else it is, it is not built


class StatusReport(msgspec.Struct):
    """Other members are ignored, and so is what is not as it should be in those that only help with debugging: a sender that is
    refused gives up in the end, and the outcome would be lost for that.
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
    """What is made of it."""

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
        # It becomes a key, and stands in messages and on screens: of what a machine sends there, only what can be seen.
        failed_step = one_line(status.failed_step or "") or None
        lines = {name: _text(getattr(status, name), MAX_LINE) for name in LINES}
        exit_code, log_tail = _exit_code(status.exit_code), _text(status.log_tail, MAX_BODY)
        return cls(
            status.status, failed_step, status.delivery_id, **lines, exit_code=exit_code, log_tail=log_tail
        )  # fmt: skip


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
        Annotated[
            str, Meta(max_length=64, description="Of the machine's boot: the first one that asks may work, no other")
        ]
        | None
    ) = None
    job_id: Annotated[str, Meta(max_length=MAX_LINE)] | None = None


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
_status = msgspec.json.Decoder(StatusReport)
_progress = msgspec.json.Decoder(ProgressReport)


class MachineReports:
    def __init__(
        self,
        engine: Engine,
        settings: ProvisioningConfig,
        tokens: JobTokens,
        runs: JobRuns,
        ledgers: JobLedgers,
        servers: Servers,
        lifecycle: Lifecycle,
        metrics: ProvisioningMetrics,
        turns: Turns,
    ) -> None:
        self._engine = engine
        self._turns = turns
        self._tokens = tokens
        self._runs = runs
        self._ledgers = ledgers
        self._servers = servers
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._secrets = [
            each.reveal().encode() for each in (settings.webhook_secret, settings.previous_webhook_secret) if each
        ]
        self._client_names = frozenset(settings.client_names)
        self._tenant = settings.webhook_tenant  # for whose machines they speak

    def routes(self) -> list[Route]:
        path = f"{BASE}/status-webhook/{{server_serial}}"
        headers = {
            SECRET: "provisioning.webhook_secret, or the one before it",
            "Authorization": "Instead: Bearer and the job's token, from report.json on the task medium",
        }
        common: dict[str, Any] = {
            "tag": TAG,
            "headers": headers,
            "error_writer": write_error,
            "errors": (Unauthenticated, Forbidden, NotFound),
        }
        # fmt: off
        return [
            Route("POST", path, self.take_status, "For machines: how the job ended", request=StatusReport, reply=StatusAccepted,
                  description="200 also for a repeated one. Without valid credentials 401 or 403.", **common),
            Route("POST", f"{path}/progress", self.take_progress, "For machines: where they are", request=ProgressReport, reply=ProgressAnswer, **common),
        ]
        # fmt: on

    # the terminal word --------------------------------------------------------------------------------------------------

    async def take_status(self, req: Request, resp: Response, server_serial: str) -> None:
        try:
            meant, scheme = self._admit(req, server_serial)
            said = Reported.of(decode(_status, await read_body(req, MAX_BODY), MAX_BODY))
            if said.status == "failed" and said.failed_step is None:
                raise InvalidField("failed_step", "is required when status is failed: the unit that failed")
            job = await self._job(server_serial, meant, said.job_id)
        except ChargehandError:
            self._metrics.webhooks.labels("refused").inc()
            raise
        with self._turns.answering():
            duplicate = await self._judge(job, meant, said, scheme)
        self._metrics.webhooks.labels("duplicate" if duplicate else said.status).inc()
        reply(resp, StatusAccepted(job.id, said.status, duplicate))

    async def _judge(self, job: Job, meant: Meant | None, said: Reported, scheme: str) -> bool:
        """False: this was the word that decided."""
        now = self._engine.now()
        unit = said.failed_step or ""
        failed = said.status == "failed"
        verdict = Verdict(
            "failed" if failed else "succeeded",
            now,
            "webhook",
            of_unit(unit) if failed else None,
            unit if failed else "",
            one_line(f"{unit} failed" + (f" with exit code {said.exit_code}" if said.exit_code is not None else ""))
            if failed
            else "",
        )

        def amend(ledger: JobLedger) -> JobLedger:
            if not _is_for(ledger, meant) or (said.delivery_id and ledger.knows(said.delivery_id)):
                return ledger
            if ledger.verdict is None and said.log_tail:
                ledger = replace(ledger, tail=said.log_tail[-MAX_TAIL:])
            ledger = ledger.with_verdict(verdict).with_delivery(said.delivery_id or "")
            return replace(ledger, heard_at=now, told=ledger.told + 1)

        amended = await self._ledgers.amend(job.tenant, job.id, amend) if await self._may_mean(job, meant) else None
        if amended is None:
            raise NotFound(f"no job is active for server {metadata_of(job).server_serial}")
        before, after = amended
        if not _is_for(before, meant) or (said.delivery_id and before.knows(said.delivery_id)):
            return True
        decided = before.verdict is None
        if not decided and after.told > MAX_EVENTS:
            return True
        telling = self._note(job, said, scheme, decided)
        if decided and after.verdict is not None:
            self._observe(said, now)
            log.info(
                "a machine reported",
                job_id=job.id,
                server_serial=metadata_of(job).server_serial,
                status=said.status,
                step=verdict.failed_step,
                auth=scheme,
            )
            # At once, so that both are in one commit: the machine waits for the answer.
            await asyncio.gather(telling, self._lifecycle.show(job, after.verdict, held=False))
        else:
            await telling
        return not decided

    async def _may_mean(self, job: Job, meant: Meant | None) -> bool:
        """What comes for a job that has not begun, or not begun again, is about another start: it may decide nothing here. And
        what names no start cannot come from a machine that was not reset yet: a late word about an earlier one, perhaps.
        """
        if job.topic == "queued":
            return False
        if meant is not None or job.topic != PROVISIONING:
            return True
        found = await self._runs.get(job.tenant, job.id)
        return found is not None and found[0].reset is not None

    async def _note(self, job: Job, said: Reported, scheme: str, decided: bool) -> None:
        told = f"webhook: {said.status}" + (f", {said.failed_step}" if said.failed_step else "")
        message = told if decided else f"{told}; the outcome was known already, nothing changed"
        data = {
            "kind": "webhook",
            "auth": scheme,
            **{
                name: value
                for name in (
                    "status",
                    "failed_step",
                    "delivery_id",
                    "task_target",
                    "dispatcher_version",
                    "schema_id",
                    "started_at",
                    "finished_at",
                    "exit_code",
                )
                if (value := getattr(said, name)) is not None
            },
        }
        note = Note(
            Guard.seen(job),
            message=one_line(message),
            step=said.failed_step or "webhook",
            data=msgspec.json.encode(data),
        )
        await self._engine.note(note)

    def _observe(self, said: Reported, now: int) -> None:
        try:
            finished = datetime.fromisoformat(said.finished_at or "")
            seconds = now / SECOND - finished.timestamp()
        except (ValueError, OverflowError):
            return
        self._metrics.webhook_seconds.at()(max(0.0, seconds))

    # before it ----------------------------------------------------------------------------------------------------------

    async def take_progress(self, req: Request, resp: Response, server_serial: str) -> None:
        meant, _ = self._admit(req, server_serial)
        said = decode(_progress, await read_body(req, MAX_BODY), MAX_BODY)
        said.step = one_line(said.step)
        if not said.step:
            raise InvalidField("step", "holds nothing that can be read")
        job = await self._job(server_serial, meant, said.job_id)
        now = self._engine.now()
        may_mean = await self._may_mean(job, meant)
        amended = await self._ledgers.amend(job.tenant, job.id, _hear(said, meant, now)) if may_mean else None
        if amended is None:
            raise NotFound(f"no job is active for server {server_serial}")
        before, after = amended
        reason = _objection(after, said, meant, job)
        if not reason and before.told < after.told <= MAX_EVENTS:
            shown = f" {said.percent:g} %" if said.percent is not None else ""
            message = (
                f"{said.step}{' is done' if said.finished else shown}{': ' + said.message if said.message else ''}"
            )
            data = {"kind": "progress", "percent": said.percent, "finished": said.finished}
            await self._engine.note(
                Note(Guard.seen(job), step=said.step, message=one_line(message), data=msgspec.json.encode(data))
            )
        reply(resp, ProgressAnswer(job.id, not reason, reason), 409 if reason else 200)

    # who, and about what ------------------------------------------------------------------------------------------------

    def _admit(self, req: Request, serial: str) -> tuple[Meant | None, str]:
        """The job that the credentials are for, if they are for one, and the kind of credentials. Never what was sent."""
        token, given = token_of(req), req.get_header(SECRET)
        if token.startswith(PREFIX) or (token and given is None):
            meant = self._tokens.read(token)
            if meant is None:
                raise Forbidden("this token is no job's")
            return meant, "job-token"
        if given is not None:
            # Every one is compared, so that the time says nothing about which was closer.
            matches = [
                hmac.compare_digest(given.encode("utf-8", "surrogateescape"), secret) for secret in self._secrets
            ]
            if not any(matches):
                raise Forbidden(f"the {SECRET} is not valid")
            return None, "secret"
        names = client_names(req)
        if serial in names or self._client_names.intersection(names):
            return None, "certificate"
        if names:
            raise Forbidden("the client certificate may not report for this server")
        raise Unauthenticated(f"send {SECRET}, or `Authorization: Bearer` with the token on the task medium")

    async def _job(self, serial: str, meant: Meant | None, job_id: str | None) -> Job:
        """The token says which job; else the payload may, and else it is the one that the server was last started for.

        Without a token nothing says whose machine it is, and serials are what tenants say: so it is of the one tenant that the secret
        and the certificates are for.
        """
        said = meant.job_id if meant else job_id if job_id and is_ulid(job_id) else ""
        job = await self._engine.jobs.get_job(said) if said else None
        tenant = job.tenant if job and meant else self._tenant
        owner = await self._servers.owner(tenant, serial)
        if owner is not None and not said:
            job = await self._engine.jobs.get_job(owner.job_id)
        if (
            job is None
            or owner is None
            or job.kind != KIND
            or job.tenant != tenant
            or metadata_of(job).server_serial != serial
        ):
            raise NotFound(f"no job is active for server {one_line(serial)[:64]}")
        return job


def _is_for(ledger: JobLedger, meant: Meant | None) -> bool:
    """A token of an earlier start says nothing about this one."""
    return meant is None or meant.generation == ledger.generation


def _hear(said: ProgressReport, meant: Meant | None, now: int) -> Callable[[JobLedger], JobLedger]:
    def amend(ledger: JobLedger) -> JobLedger:
        if ledger.verdict is not None or not _is_for(ledger, meant):
            return ledger
        if said.boot_id:
            if ledger.boot_id and ledger.boot_id != said.boot_id:
                return ledger
            ledger = replace(ledger, boot_id=said.boot_id)
        known = next((each for each in ledger.steps if each.step == said.step), None)
        others = tuple(each for each in ledger.steps if each.step != said.step)
        current = UnitProgress(
            said.step,
            known.began_at if known else now,
            now,
            said.percent if said.percent is not None else known.percent if known else None,
            one_line(said.message) or (known.message if known else ""),
            said.finished,
        )
        tail = ledger.tail if said.log_tail is None else said.log_tail[-MAX_TAIL:]
        told = ledger.told + _worth_telling(known, said)
        return replace(ledger, heard_at=now, steps=(*others, current)[-MAX_STEPS:], tail=tail, told=told)

    return amend


def _objection(ledger: JobLedger, said: ProgressReport, meant: Meant | None, job: Job) -> str:
    if not _is_for(ledger, meant):
        return "this start of the job is over"
    if ledger.verdict is not None or job.finished:
        return f"the job is over: {ledger.verdict.outcome if ledger.verdict else 'complete'}"
    if said.boot_id and ledger.boot_id != said.boot_id:
        return "another boot of this machine is at work, or was: a machine is not imaged twice for one job"
    return ""


def _worth_telling(known: UnitProgress | None, said: ProgressReport) -> bool:
    if known is None or said.finished != known.finished:
        return True
    return int((said.percent or 0) / EVENT_PERCENT) > int((known.percent or 0) / EVENT_PERCENT)
