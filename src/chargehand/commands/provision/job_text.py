"""Provisioning jobs as text."""

import contextlib
from collections.abc import Sequence

from chargehand.client.types.provisioning import Event, FailureReport, Job, ListedProvisioningJob, StepProgress
from chargehand.commands.doors import waits_for
from chargehand.commands.text import between, clean, clock, columns, day, lasted
from chargehand.doors.provisioning.taxonomy import Key

TAIL_LINES = 15


# jobs -------------------------------------------------------------------------------------------------------------------


def jobs_table(jobs: Sequence[ListedProvisioningJob]) -> list[str]:
    rows = [("JOB", "SERVER", "TARGET", "STATUS", "CREATED", "FAILED AT")]
    rows += [
        (each.job_id, each.server_serial, each.task_target, stands(each), day(each.created_at), each.failed_step or "-")
        for each in jobs
    ]
    return columns(rows)


def stands(job: ListedProvisioningJob) -> str:
    return f"{job.status}, {job.outcome}" if job.outcome and job.outcome != job.status else job.status


def job_lines(job: Job) -> list[str]:
    rows = [
        ("job", job.job_id + (f", attempt {job.attempt}" if job.attempt > 1 else "")),
        ("server", job.server_serial),
        ("target", job.task_target),
        ("status", stands(job)),
        ("created", f"{day(job.created_at)}, {_age(job)}"),
    ]
    if not job.finished:
        rows += [("waits for", waits_for(job))] if job.waiting_for else []
        rows += [("now", job.progress.step)] if job.status != "queued" else []
        rows += [("gives up", f"{key} at {clock(at)}") for key, at in job.deadlines.items()]
    rows += [("heard", clock(job.progress.heard_at))] if job.progress.heard_at else []
    steps = [step_row(step, job) for step in job.progress.steps]
    lines = [*columns(rows), *(["", *columns(steps, "  ")] if steps else [])]
    return [*lines, *warning_lines(job), *failure_lines(job)]


def _age(job: Job) -> str:
    if job.attempt > 1:
        return f"this try {took_this_try(job)}"
    return f"took {took_this_try(job)}" if job.finished else f"{took_this_try(job)} ago"


def took_this_try(job: Job) -> str:
    """A retry may come days later, so its time is counted from its first step."""
    if job.attempt == 1:
        return lasted(between(job.created_at, job.finished_at))
    began = min((step.began_at for step in job.progress.steps), default=None)
    return f"{lasted(between(began, job.finished_at))} ({ordinal(job.attempt)} try)"


def ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 // 10 != 1 else "th"
    return f"{number}{ending}"


def warning_lines(job: Job) -> list[str]:
    """Warnings, each with the advice of the key that it begins with."""
    lines = []
    for text in job.warnings:
        lines.append(f"warning: {clean(text)}")
        with contextlib.suppress(ValueError):
            lines.append(f"  what to do: {Key(text.partition(':')[0]).entry.advice}")
    return lines


def step_row(step: StepProgress, job: Job) -> tuple[str, str, str, str]:
    percent = f"{step.percent:.0f} % " if step.percent is not None and step.ended_at is None else ""
    return step_word(step, job), step.step, _took(step, job), percent + step.message


def step_word(step: StepProgress, job: Job) -> str:
    unit = job.failure.unit if job.failure else ""
    if not step.ok or (unit and step.step == unit):
        return "failed"
    if step.ended_at is not None:
        return "done"
    return "stopped" if job.outcome else "running"


def _took(step: StepProgress, job: Job) -> str:
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


def _blame(failure: FailureReport) -> list[str]:
    key = failure.failed_step or "unknown"
    rows = [("failed at", f"{key}: {failure.meaning}" if failure.meaning else key)]
    rows += [("unit", failure.unit)] if failure.unit else []
    rows += [("because", failure.message + (f" ({failure.reason})" if failure.reason else ""))]
    return columns(rows)


def _tail(text: str) -> list[str]:
    lines = [clean(line) for line in text.splitlines() if line.strip()]
    if not lines:
        return []
    part = f" (the last {TAIL_LINES} of {len(lines)} lines; --json has all)" if len(lines) > TAIL_LINES else ""
    return [f"the machine's log ended with{part}", *(f"  | {line}" for line in lines[-TAIL_LINES:])]


def _what_to_do(failure: FailureReport, job_id: str) -> list[str]:
    again = "then" if failure.can_retry else "the same recipe would fail again: submit one that is mended, or"
    return [
        *([f"what to do: {clean(failure.advice)}"] if failure.advice else []),
        f"{again}: chargehand provision retry {job_id}",
    ]


def event_line(event: Event) -> str:
    level = "" if event.level == "info" else "warning: " if event.level == "warn" else f"{event.level}: "
    return f"{clock(event.time)}  {event.status:<12}  {clean(event.step):<26}  {level}{clean(event.message)}"
