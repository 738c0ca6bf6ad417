"""What the commands print, as text: plain columns that look the same on a terminal, in a pipe and in a ticket."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from chargehand.client.machines import Event, Facts, Failure, Job, Probe, Server, Slot, Step, Summary

TAIL_LINES = 15


def clean(text: str) -> str:
    """One line without anything that a terminal would obey: what machines say is not to be trusted with that."""
    return "".join(each if each.isprintable() else " " for each in text).rstrip()


def columns(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Left-aligned, two spaces between; the last column is as long as it is."""
    cleaned = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cleaned, strict=True)]
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cleaned
    ]


# times ------------------------------------------------------------------------------------------------------------------


def moment(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def clock(text: str | None) -> str:
    """The time of the day where the reader is."""
    at = moment(text)
    return at.astimezone().strftime("%H:%M:%S") if at else ""


def day(text: str | None) -> str:
    at = moment(text)
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if at else ""


def lasted(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} h" if hours else f"{minutes}:{rest:02d} min"


def between(began: str | None, ended: str | None) -> float:
    """Until now, if it has not ended."""
    first, last = moment(began), moment(ended) or datetime.now(UTC)
    return max(0.0, (last - first).total_seconds()) if first else 0.0


# servers ----------------------------------------------------------------------------------------------------------------


def servers_table(servers: Sequence[Server]) -> list[str]:
    rows = [("SERIAL", "BMC", "MACHINE", "PROBED", "ACTIVE JOB")]
    for each in servers:
        facts = each.probe.facts if each.probe else None
        machine = " ".join(filter(None, (facts.vendor, facts.model))) if facts else (each.vendor or "-")
        probed = "never" if each.probe is None else "ok" if each.probe.ok else f"not reached: {each.probe.problem}"[:60]
        rows.append((each.server_serial, each.bmc_address, machine, probed, each.active_job or "-"))
    return columns(rows)


def server_lines(server: Server) -> list[str]:
    rows = [
        ("server", server.server_serial),
        ("bmc", f"{server.bmc_address}, tls {server.tls}"),
        ("user", f"{server.bmc_username or '-'}, {'with' if server.has_password else 'without'} a password"),
    ]
    rows += [("uuid", server.system_uuid)] if server.system_uuid else []
    rows += [("vendor", server.vendor)] if server.vendor else []
    rows += [("note", "taken for this server without its serial or UUID")] if server.unidentified else []
    rows += [("labels", ", ".join(f"{key}={value}" for key, value in server.labels.items()))] if server.labels else []
    rows += [("job", server.active_job)] if server.active_job else []
    rows += [] if server.probe else [("probed", f"never: chargehand provision server probe {server.server_serial}")]
    return [*columns(rows), *(["", *probe_lines(server.probe)] if server.probe else [])]


def probe_lines(probe: Probe) -> list[str]:
    """What the BMC can do, and what that means for jobs."""
    if not probe.ok or probe.facts is None:
        found = f"the BMC could not be asked at {day(probe.at)}: {clean(probe.problem)}"
        return [found, "check the address, the user and password, and --tls; `server add` again changes them"]
    facts = probe.facts
    rows = [
        ("probed", day(probe.at)),
        ("machine", " ".join(filter(None, (facts.manufacturer, facts.model))) or "-"),
        ("vendor", f"{facts.vendor}, quirks of {facts.quirks}" if facts.quirks else facts.vendor),
        ("serial", facts.serial or "-"),
        ("uuid", facts.uuid or "-"),
        ("bios", facts.bios_version or "-"),
        ("redfish", facts.redfish_version or "-"),
        ("power", facts.power),
        ("drives", ", ".join(f"{slot.name} ({slot.kind})" for slot in facts.slots) or "none"),
        ("resets", ", ".join(facts.reset_types) or "not said"),
        ("boots", ", ".join(facts.boot_targets) or "not said"),
        ("modes", ", ".join(facts.boot_modes) or "not said"),
    ]
    return [*columns(rows), "", *(f"{line}" for line in meanings(facts))]


def meanings(facts: Facts) -> list[str]:
    cds = [slot for slot in facts.slots if slot.kind == "cd"]
    others = [*cds[1:], *(slot for slot in facts.slots if slot.kind == "usb")]
    lines = [_drives(cds, others)]
    if facts.reset_types and not {"ForceRestart", "GracefulRestart", "PowerCycle"} & set(facts.reset_types):
        lines.append("no restart among its resets: the machine is switched off and on")
    if facts.power == "Off":
        lines.append("the machine is off: a job switches it on")
    if facts.boot_targets and "Cd" not in facts.boot_targets:
        lines.append(
            "Cd is not among the boot targets that it names: setting the boot may fail (redfish.boot-override)"
        )
    return lines


def _drives(cds: Sequence[Slot], others: Sequence[Slot]) -> str:
    if not cds:
        return "no CD drive that takes an image: jobs would fail at redfish.discover; is virtual media licensed?"
    if not others:
        return f"one CD drive: both media will be in one image, in {cds[0].name}"
    kind = "the second CD drive" if others[0].kind == "cd" else "a USB drive"
    return f"two drives: the maintenance image goes into {cds[0].name}, the task medium into {others[0].name}, {kind}"


# jobs -------------------------------------------------------------------------------------------------------------------


def jobs_table(jobs: Sequence[Summary]) -> list[str]:
    rows = [("JOB", "SERVER", "TARGET", "STATUS", "CREATED", "FAILED AT")]
    rows += [
        (each.job_id, each.server_serial, each.task_target, stands(each), day(each.created_at), each.failed_step or "-")
        for each in jobs
    ]
    return columns(rows)


def stands(job: Summary) -> str:
    return f"{job.status}, {job.outcome}" if job.outcome and job.outcome != job.status else job.status


def job_lines(job: Job) -> list[str]:
    rows = [
        ("job", job.job_id + (f", attempt {job.attempt}" if job.attempt > 1 else "")),
        ("server", job.server_serial),
        ("target", job.task_target),
        ("status", stands(job)),
        ("created", f"{day(job.created_at)}, {lasted(between(job.created_at, job.finished_at))} ago" if not job.finished
         else f"{day(job.created_at)}, took {lasted(between(job.created_at, job.finished_at))}"),
    ]  # fmt: skip
    if not job.finished:
        rows += [("waits for", job.waiting_for)] if job.waiting_for else []
        rows += [("now", job.progress.step)] if job.status != "queued" else []
        rows += [("gives up", f"{key} at {clock(at)}") for key, at in job.deadlines.items()]
    rows += [("heard", clock(job.progress.heard_at))] if job.progress.heard_at else []
    steps = [step_row(step, job) for step in job.progress.steps]
    lines = [*columns(rows), *(["", *columns(steps, "  ")] if steps else [])]
    return [*lines, *(f"warning: {clean(text)}" for text in job.warnings), *failure_lines(job)]


def step_row(step: Step, job: Job) -> tuple[str, str, str, str]:
    percent = f"{step.percent:.0f} % " if step.percent is not None and step.ended_at is None else ""
    return step_word(step, job), step.step, _took(step, job), percent + step.message


def step_word(step: Step, job: Job) -> str:
    unit = job.failure.unit if job.failure else ""
    if not step.ok or (unit and step.step == unit):
        return "failed"
    if step.ended_at is not None:
        return "done"
    return "stopped" if job.outcome else "running"


def _took(step: Step, job: Job) -> str:
    if step.seconds is not None:
        return lasted(step.seconds)
    return "" if job.outcome else lasted(between(step.began_at, None))


def failure_lines(job: Job) -> list[str]:
    failure = job.failure
    if failure is None:
        return []
    if job.outcome == "cancelled":
        return [
            "",
            clean(failure.message) or "cancelled",
            f"to start it again: chargehand provision retry {job.job_id}",
        ]
    return ["", *_blame(failure), *_tail(job.progress.log_tail), *_what_to_do(failure, job.job_id)]


def _blame(failure: Failure) -> list[str]:
    key = failure.failed_step or "unknown"
    rows = [("failed at", f"{key}: {failure.meaning}" if failure.meaning else key)]
    rows += [("unit", failure.unit)] if failure.unit else []
    rows += [("because", failure.message + (f" ({failure.reason})" if failure.reason else ""))]
    return columns(rows)


def _tail(text: str) -> list[str]:
    lines = [clean(line) for line in text.splitlines() if line.strip()][-TAIL_LINES:]
    return ["the machine's log ended with", *(f"  | {line}" for line in lines)] if lines else []


def _what_to_do(failure: Failure, job_id: str) -> list[str]:
    again = "then" if failure.can_retry else "the same recipe would fail again: submit one that is mended, or"
    return [
        *([f"what to do: {clean(failure.advice)}"] if failure.advice else []),
        f"{again}: chargehand provision retry {job_id}",
    ]


def event_line(event: Event) -> str:
    level = "" if event.level == "info" else "warning: " if event.level == "warn" else f"{event.level}: "
    return f"{clock(event.time)}  {event.status:<12}  {clean(event.step):<26}  {level}{clean(event.message)}"
