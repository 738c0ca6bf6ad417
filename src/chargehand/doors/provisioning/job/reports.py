"""The API for machines: `POST /api/v1/status-webhook/{server_serial}`, the one report that ends a job, and `…/progress` before it.

Machines send at least once; each report counts once: the first one is the verdict, every other one is answered 200 and changes nothing. A
machine may report with the job's own token (then only for that job), the shared secret, or a client certificate.
"""

import asyncio
import hmac
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from chargehand.config import ProvisioningConfig
from chargehand.doors.provisioning.job.assignment import Assignments
from chargehand.doors.provisioning.job.journey import one_line
from chargehand.doors.provisioning.job.ledger import MAX_STEPS, MAX_TAIL, JobLedger, UnitProgress
from chargehand.doors.provisioning.job.ledger_writer import Amend, LedgerWriter
from chargehand.doors.provisioning.job.orders import metadata_of
from chargehand.doors.provisioning.job.outcomes import Outcomes
from chargehand.doors.provisioning.job.position import position_of
from chargehand.doors.provisioning.job.reported import (
    MAX_BODY,
    ProgressAnswer,
    ProgressReport,
    Reported,
    StatusAccepted,
    StatusReport,
    progress_decoder,
    status_decoder,
)
from chargehand.doors.provisioning.job.run import JobRuns
from chargehand.doors.provisioning.metrics import ProvisioningMetrics
from chargehand.doors.provisioning.names import BASE, KIND
from chargehand.doors.provisioning.redfish.turns import Turns
from chargehand.doors.provisioning.refusals import route
from chargehand.doors.provisioning.tokens import PREFIX, JobTokens, Meant
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.ids import is_ulid
from chargehand.engine.job import SECOND, Job
from chargehand.engine.moves import Note
from chargehand.errors import ChargehandError, Forbidden, InvalidField, NotFound, Unauthenticated
from chargehand.http.auth import token_of
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, decode, read_body, reply
from chargehand.http.tls import client_names
from chargehand.observability.logs import get_logger

SECRET = "X-Webhook-Secret"  # noqa: S105 - the name of a header
EVENT_PERCENT = 10.0  # the job's log gets a line for every so many percent of a step
MAX_EVENTS = 1000  # lines in the job's log for reports

log = get_logger(__name__)


@dataclass(eq=False, repr=False)
class MachineReports:
    _engine: Engine
    _settings: ProvisioningConfig
    _tokens: JobTokens
    _runs: JobRuns
    _ledger: LedgerWriter
    _assignments: Assignments
    _outcomes: Outcomes
    _metrics: ProvisioningMetrics
    _turns: Turns

    def __post_init__(self) -> None:
        given = (self._settings.webhook_secret, self._settings.previous_webhook_secret)
        self._secrets = [each.reveal().encode() for each in given if each]
        self._client_names = frozenset(self._settings.client_names)
        self._tenant = self._settings.webhook_tenant  # whose machines use the secret and the certificates

    def routes(self) -> list[Route]:
        path = f"{BASE}/status-webhook/{{server_serial}}"
        headers = {
            SECRET: "provisioning.webhook_secret, or the one before it",
            "Authorization": "Instead: Bearer and the job's token, from report.json on the task medium",
        }
        errors = (Unauthenticated, Forbidden, NotFound)
        # fmt: off
        return [
            route("POST", path, self.take_status, "For machines: report how the job ended", None,
                  "A repeated report is answered 200 and changes nothing. Without valid credentials: 401 or 403.",
                  headers=headers, request=StatusReport, reply=StatusAccepted, errors=errors),
            route("POST", f"{path}/progress", self.take_progress, "For machines: report progress",
                  headers=headers, request=ProgressReport, reply=ProgressAnswer, errors=errors),
        ]
        # fmt: on

    # the report that ends the job ---------------------------------------------------------------------------------------

    async def take_status(self, req: Request, resp: Response, server_serial: str) -> None:
        try:
            meant, auth = self._admit(req, server_serial)
            report = Reported.of(decode(status_decoder, await read_body(req, MAX_BODY), MAX_BODY))
            if report.status == "failed" and report.failed_step is None:
                raise InvalidField("failed_step", "is required when status is failed: the unit that failed")
            job = await self._job(server_serial, meant, report.job_id)
        except ChargehandError:
            self._metrics.webhooks.labels("refused").inc()
            raise
        with self._turns.answering():
            duplicate = not await self._judge(job, meant, report, auth)
        self._metrics.webhooks.labels("duplicate" if duplicate else report.status).inc()
        reply(resp, StatusAccepted(job.id, report.status, duplicate))

    async def _judge(self, job: Job, meant: Meant | None, report: Reported, auth: str) -> bool:
        """Record the report's verdict and show it. False: the outcome was known already."""
        now = self._engine.now()
        verdict = report.verdict(now)

        def counts(ledger: JobLedger) -> bool:
            return _is_for(ledger, meant) and not (report.delivery_id and ledger.knows(report.delivery_id))

        def amend(ledger: JobLedger) -> JobLedger:
            if not counts(ledger):
                return ledger
            if ledger.verdict is None and report.log_tail:
                ledger = replace(ledger, tail=report.log_tail[-MAX_TAIL:])
            ledger = ledger.with_verdict(verdict).with_delivery(report.delivery_id or "")
            return replace(ledger, heard_at=now, told=ledger.told + 1)

        before, after = await self._amend(job, meant, amend)
        decides = before.verdict is None
        if not counts(before) or (not decides and after.told > MAX_EVENTS):
            return False
        noting = self._note(job, report, auth, decides)
        if not decides:
            await noting
            return False
        self._observe(report, now)
        log.info(
            "a machine reported",
            job_id=job.id,
            server_serial=metadata_of(job).server_serial,
            status=report.status,
            step=verdict.failed_step,
            auth=auth,
        )
        # In parallel, so that both are in one commit: the machine waits for the answer.
        await asyncio.gather(noting, self._outcomes.show(job, verdict, held=False))
        return True

    async def _note(self, job: Job, report: Reported, auth: str, decides: bool) -> None:
        line = f"webhook: {report.status}" + (f", {report.failed_step}" if report.failed_step else "")
        message = line if decides else f"{line}; the outcome was known already, nothing changed"
        step = report.failed_step or "webhook"
        await self._engine.note(
            Note(Guard.seen(job), message=one_line(message), step=step, data=report.event_data(auth))
        )

    def _observe(self, report: Reported, now: int) -> None:
        try:
            finished = datetime.fromisoformat(report.finished_at or "")
            seconds = now / SECOND - finished.timestamp()
        except (ValueError, OverflowError):
            return
        self._metrics.webhook_seconds.at()(max(0.0, seconds))

    # progress before it -------------------------------------------------------------------------------------------------

    async def take_progress(self, req: Request, resp: Response, server_serial: str) -> None:
        meant, _ = self._admit(req, server_serial)
        report = decode(progress_decoder, await read_body(req, MAX_BODY), MAX_BODY)
        report.step = one_line(report.step)
        if not report.step:
            raise InvalidField("step", "has no printable character; name the unit that is at work")
        job = await self._job(server_serial, meant, report.job_id)
        before, after = await self._amend(job, meant, _with_progress(report, meant, self._engine.now()))
        reason = _objection(after, report, meant, job)
        if not reason and before.told < after.told <= MAX_EVENTS:
            await self._engine.note(
                Note(Guard.seen(job), step=report.step, message=report.line, data=report.event_data)
            )
        reply(resp, ProgressAnswer(job.id, not reason, reason), 409 if reason else 200)

    # who reports, and about which job -----------------------------------------------------------------------------------

    def _admit(self, req: Request, serial: str) -> tuple[Meant | None, str]:
        """Return the job that the credentials are for, if they are for one, and the kind of credentials; never the credentials."""
        token, given = token_of(req), req.get_header(SECRET)
        if token.startswith(PREFIX) or (token and given is None):
            meant = self._tokens.read(token)
            if meant is None:
                raise Forbidden("this token does not belong to a job")
            return meant, "job-token"
        if given is not None:
            # Compare with every secret, so that the time does not reveal which one matched.
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
        """Return the job that the token names, else the payload, else the one that the server was last started for.

        Without a token nothing says whose machine it is, since tenants choose serials: then it belongs to the one tenant that the secret
        and the certificates are for.
        """
        named = meant.job_id if meant else job_id if job_id and is_ulid(job_id) else ""
        job = await self._engine.jobs.get_job(named) if named else None
        tenant = job.tenant if job and meant else self._tenant
        assigned = await self._assignments.of(tenant, serial)
        if assigned is not None and not named:
            job = await self._engine.jobs.get_job(assigned.job_id)
        if (
            job is None
            or assigned is None
            or job.kind != KIND
            or job.tenant != tenant
            or metadata_of(job).server_serial != serial
        ):
            raise NotFound(f"no job is active for server {one_line(serial)[:64]}")
        return job

    async def _amend(self, job: Job, meant: Meant | None, amend: Amend) -> tuple[JobLedger, JobLedger]:
        """Return the ledger before and after. NotFound if the report cannot be about this start of the job."""
        amended = await self._ledger.amend(job.tenant, job.id, amend) if await self._may_mean(job, meant) else None
        if amended is None:
            raise NotFound(f"no job is active for server {metadata_of(job).server_serial}")
        return amended

    async def _may_mean(self, job: Job, meant: Meant | None) -> bool:
        """Return whether the report may be about this start of the job. One for a job that has not begun is about an earlier start. And
        one without a token may come late, from an earlier start, as long as the machine was not reset for this one.
        """
        position = position_of(job)
        if not position.begun or meant is not None or position.status != "provisioning":
            return position.begun
        found = await self._runs.get(job.tenant, job.id)
        return found is not None and found[0].reset is not None


def _is_for(ledger: JobLedger, meant: Meant | None) -> bool:
    """Return whether the token is for this start of the job."""
    return meant is None or meant.generation == ledger.generation


def _with_progress(report: ProgressReport, meant: Meant | None, now: int) -> Amend:
    def amend(ledger: JobLedger) -> JobLedger:
        if ledger.verdict is not None or not _is_for(ledger, meant):
            return ledger
        if report.boot_id:
            if ledger.boot_id and ledger.boot_id != report.boot_id:
                return ledger
            ledger = replace(ledger, boot_id=report.boot_id)
        known = next((each for each in ledger.steps if each.step == report.step), None)
        others = tuple(each for each in ledger.steps if each.step != report.step)
        current = UnitProgress(
            report.step,
            known.began_at if known else now,
            now,
            report.percent if report.percent is not None else known.percent if known else None,
            one_line(report.message) or (known.message if known else ""),
            report.finished,
        )
        tail = ledger.tail if report.log_tail is None else report.log_tail[-MAX_TAIL:]
        told = ledger.told + _is_news(known, report)
        return replace(ledger, heard_at=now, steps=(*others, current)[-MAX_STEPS:], tail=tail, told=told)

    return amend


def _objection(ledger: JobLedger, report: ProgressReport, meant: Meant | None, job: Job) -> str:
    """Why the machine must stop; empty: it may go on."""
    if not _is_for(ledger, meant):
        return "this start of the job is over"
    if ledger.verdict is not None or job.finished:
        return f"the job is over: {ledger.verdict.outcome if ledger.verdict else 'complete'}"
    if report.boot_id and ledger.boot_id != report.boot_id:
        return "another boot of this machine has begun the work: a machine is not imaged twice for one job"
    return ""


def _is_news(known: UnitProgress | None, report: ProgressReport) -> bool:
    """Return whether the job's log gets a line for the report."""
    if known is None or report.finished != known.finished:
        return True
    return int((report.percent or 0) / EVENT_PERCENT) > int((known.percent or 0) / EVENT_PERCENT)
