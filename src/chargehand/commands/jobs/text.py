"""Jobs as text."""

from collections.abc import Sequence
from typing import Any

import msgspec

from chargehand.client.types.deliveries import Delivery
from chargehand.client.types.engine import Event, Job, ListedJob
from chargehand.client.types.flows import Flow
from chargehand.client.types.inference import Job as InferenceJob
from chargehand.client.types.provisioning import Job as ProvisioningJob
from chargehand.client.types.tasks import Task
from chargehand.commands.doors import AnyJob, how_to_retry, of_engine, waits_for
from chargehand.commands.flows.text import flow_lines
from chargehand.commands.provision.job_text import job_lines as provisioning_lines
from chargehand.commands.text import OF_WORDS, ago, between, clean_lines, clock, columns, day, lasted, shorten, table
from chargehand.commands.watch.show import answer_of

SHOWN_CHARACTERS = 2000  # of a payload or a result; --json has all
SHOWN_EVENTS = 20
SHOWN_ERROR = 60


def jobs_table(jobs: Sequence[ListedJob]) -> list[str]:
    rows = [("JOB", "KIND", "QUEUE", "STATE", "CREATED", "TOOK", "NOTE")]
    rows += [
        (each.id, each.kind, each.queue, stands(each), ago(each.created_at), _took(each), _note(each)) for each in jobs
    ]
    return table(rows)


def stands(job: ListedJob) -> str:
    return f"{job.state}: {job.stage}" if job.stage and job.state == "running" else job.state


def _took(job: ListedJob) -> str:
    return lasted(between(job.created_at, job.finished_at)) if job.finished_at else "-"


def _note(job: ListedJob) -> str:
    if job.error:
        return shorten(job.error, SHOWN_ERROR)
    return f"waits for {waits_for(job)}" if job.waiting_for else ""


def cancelled_line(job_id: str, state: str) -> str:
    return f"{job_id} is {'cancelled' if state == 'cancelled' else f'being cancelled, and still {state}'}."


def job_lines(job: Job, own: AnyJob, events: Sequence[Event], deliveries: Sequence[Delivery]) -> list[str]:
    """`own` is the job as its door shows it."""
    if isinstance(own, ProvisioningJob):
        return provisioning_lines(own)
    if isinstance(own, Flow):
        return [*flow_lines(own), *_webhooks(job, deliveries)]
    rows = [
        ("job", job.id),
        ("kind", job.kind),
        ("queue", _name(job, own)),
        ("state", stands(job)),
        ("attempts", f"{job.attempt} of {job.max_attempts}"),
        ("created", f"{day(job.created_at)}, {ago(job.created_at)}"),
    ]
    rows += [("step of", f"{job.flow}, a flow: chargehand flows show {job.flow}")] if job.flow else []
    rows += [("took", _took(job))] if job.finished_at else []
    rows += [("waits for", waits_for(own) or waits_for(job))] if job.waiting_for else []
    rows += [("owner", f"{job.lease_owner}, lease until {clock(job.lease_until)}")] if job.lease_owner else []
    rows += [("fails", f"unless it is done at {clock(job.deadline_at)}")] if job.deadline_at and not job.finished else []  # fmt: skip
    rows += [("error", job.error)] if job.error else []
    lines = columns(rows, styles=OF_WORDS)
    lines += _part("asked", _asked(job, own))
    lines += _part("answer" if isinstance(own, InferenceJob) else "result", answer_of(job.result))
    lines += _happened(events) + _webhooks(job, deliveries)
    again = how_to_retry(job)
    if again and job.state in ("failed", "cancelled"):
        lines += ["", f"to try it again: {again}"]
    return lines


def _name(job: Job, own: AnyJob) -> str:
    if isinstance(own, InferenceJob):
        return own.model
    return own.command if isinstance(own, Task) else job.queue


def _asked(job: Job, own: AnyJob) -> str:
    """Of a chat its messages, of a completion its prompt, of any other job its payload."""
    if not isinstance(own, InferenceJob):
        return _json(job.payload)
    body = (own.request.body if own.request else None) or {}
    said = [f"{each.get('role', '?')}: {each.get('content') or ''}" for each in body.get("messages") or ()]
    return "\n".join(said) or str(body.get("prompt") or "") or _json(body)


def _json(value: Any) -> str:
    return "" if value is None else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _part(name: str, text: str) -> list[str]:
    if not text:
        return []
    cut = text[:SHOWN_CHARACTERS]
    note = f" (the first {SHOWN_CHARACTERS} of {len(text)} characters; --json has all)" if len(text) > len(cut) else ""
    return ["", f"{name}{note}", *(f"  {line}" for line in clean_lines(cut).splitlines())]


def _happened(events: Sequence[Event]) -> list[str]:
    lines, before = [], ""
    for event in events:
        seen = of_engine(event)
        since = f"+{lasted(between(before, seen.at))}" if before else ""
        before = before or seen.at
        lines.append((clock(seen.at), since, event.move, seen.word, seen.text))
    left = len(lines) - SHOWN_EVENTS
    note = f" (the last {SHOWN_EVENTS} of {len(lines)} events; --json has all)" if left > 0 else ""
    return ["", f"what happened{note}", *columns(lines[-SHOWN_EVENTS:], "  ", OF_WORDS)] if lines else []


def _webhooks(job: Job, deliveries: Sequence[Delivery]) -> list[str]:
    if not deliveries:
        return []
    delivered = sum(each.state == "delivered" for each in deliveries)
    dead = sum(each.state == "dead" for each in deliveries)
    count = f"webhooks: {delivered} of {len(deliveries)} delivered" + (f", {dead} dead" if dead else "")
    return ["", count, f"  chargehand deliveries list --job {job.id}"]
