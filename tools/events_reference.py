"""Generate the page about events in job logs and webhooks of every door. The doors themselves render the example bodies."""

from collections.abc import Callable
from typing import Any

import msgspec

from chargehand.api import views as engine_views
from chargehand.doors.inference import views as inference_views
from chargehand.doors.provisioning import names as provisioning_names
from chargehand.doors.provisioning import views as provisioning_views
from chargehand.doors.provisioning.job.position import TOPICS as PROVISIONING_TOPICS
from chargehand.doors.tasks import names as task_names
from chargehand.doors.tasks import notifier
from chargehand.doors.tasks import views as task_views
from chargehand.engine.delivery import Delivery, DeliveryState, Outgoing
from chargehand.engine.job import SECOND, Event, Job, State
from chargehand.engine.moves import TABLE
from chargehand.engine.queue import Queue

AT = 1_779_537_600 * SECOND
JOB = "01M7GMPMBND7PABGNCP5THXA18"
Render = Callable[[Outgoing], bytes]


def events() -> str:
    return "\n".join([*_intro(), *_engine(), *_inference(), *_tasks(), *_provisioning()]) + "\n"


def _intro() -> list[str]:
    return [
        "# Events",
        "",
        "A job has a log: every move but `beat` writes one event, numbered from 1 without a gap, in the same commit. `note` is an event that",
        "changes no state, such as a step or a progress report. Whoever asked to be told gets a webhook for an event that gave the job a new",
        "state; [webhooks.md](../webhooks.md) says how to receive and verify one. The log can be read, and followed live as server-sent events",
        "(`Accept: text/event-stream`); `id` is the sequence number, and `Last-Event-ID` goes on after it.",
        "",
        "| event | written when |",
        "| --- | --- |",
        "| `submit` | the job was accepted |",
        *[f"| `{move.name}` | {move.meaning} |" for move in TABLE if move.name != "beat"],
        "| `note` | something worth a line happened, and the state is as it was |",
    ]


def _engine() -> list[str]:
    return [
        "",
        "## The engine's own jobs",
        "",
        "`GET /engine/jobs/{job_id}/events`. The name of a server-sent event is the move.",
        "",
        *_fields(engine_views.EventView),
        "",
        "The webhook, in the dialect `standard`. `type` is `job.` and the state:",
        "",
        *_body(
            engine_views.render,
            engine_views.KIND,
            "thumbnails",
            State.SUCCEEDED,
            "running:claimed",
            b'{"file":"cat-320.png"}',
        ),
    ]


def _inference() -> list[str]:
    return [
        "",
        "## Jobs for models",
        "",
        "`GET /jobs/{job_id}/events`. The name of a server-sent event is the move; with `?tokens=1` what the model says comes too, as `token`.",
        "",
        *_fields(inference_views.InferenceEventView),
        "",
        "The webhook, in the dialect `foreman`, told for each of "
        + ", ".join(f"`{state}`" for state in inference_views.TOPICS)
        + ":",
        "",
        *_body(inference_views.render, "inference", "qwen3:30b", State.RUNNING, "queued", stage="loading"),
        "",
        "Of a batch nobody is told; it is read ([batches.md](../batches.md)).",
    ]


def _tasks() -> list[str]:
    notification = notifier.Notification(
        "render_video", True, 42, f"{task_names.BASE}/tasks/claim", "2026-05-23T12:00:00Z", f"ntf-{JOB}"
    )
    return [
        "",
        "## Tasks",
        "",
        f"`GET {task_names.BASE}/tasks/{{task_id}}/events`. The name of a server-sent event is the move, or `{task_views.PROGRESS}`. Members that are",
        "empty are left out.",
        "",
        *_fields(task_views.TaskEvent),
        "",
        "The callback, in the dialect `codeq`, told once, at the end, which is `COMPLETED` or `FAILED`:",
        "",
        *_body(task_views.render, task_names.KIND, "render_video", State.SUCCEEDED, "running:claimed", b'{"ok":true}'),
        "",
        "The notification of a worker that subscribed. It belongs to no task and is tried once:",
        "",
        *_json(msgspec.json.encode(notification)),
    ]


def _provisioning() -> list[str]:
    metadata = b'{"server_serial":"RACK1-07","task_target":"install-linux.target","metadata":{"ticket":"OPS-7"}}'
    data = b'{"kind":"outcome","outcome":"failed","failed_step":"workflow.partition"}'
    return [
        "",
        "## Provisioning jobs",
        "",
        f"`GET {provisioning_names.BASE}/jobs/{{job_id}}/events`. The name of a server-sent event is its `kind`.",
        "",
        *_fields(provisioning_views.ProvisioningEventView),
        "",
        "The webhook, in the dialect `standard`, told for each of "
        + ", ".join(f"`{status}`" for status in PROVISIONING_TOPICS)
        + ":",
        "",
        *_body(provisioning_views.render, provisioning_names.KIND, "RACK1-07", State.RUNNING, "running:provisioning",
               stage="failed", metadata=metadata, data=data, error="parted: no such disk", level="error"),
        "",
        "What machines say to the server, and how they prove who they are, is in [provisioning.md](../provisioning.md#what-machines-send).",
    ]  # fmt: skip


def _fields(kind: type[msgspec.Struct]) -> list[str]:
    """Return a table of an event's fields, from its type."""
    properties: dict[str, Any] = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    lines = ["| field | meaning |", "| --- | --- |"]
    return [*lines, *[f"| `{name}` | {_meaning(name, field)} |" for name, field in properties.items()]]


# Meanings that the types do not describe. `data` differs by door.
_PLAIN = {
    "sequence": "its number in the job's log",
    "time": "when it happened, RFC 3339",
    "at": "when it happened, RFC 3339",
    "level": "info, warn or error",
    "move": "the move that wrote it, or `note`",
    "state": "the engine's state after it",
    "stage": "the stage after it",
    "previous": "the state, and stage after a colon, that was shown before",
    "previous_state": "the state before it",
    "status": "the state after it, in this door's words",
    "attempt": "which attempt it belongs to",
    "step": "what it is about",
    "message": "for people, in one line",
    "error": "what went wrong, if something did",
    "progress": "of a progress report: percent, message, data",
    "data": "for programs: what else is known",
}


def _meaning(name: str, field: dict[str, Any]) -> str:
    described = field.get("description") or next(
        (each["description"] for each in field.get("anyOf", ()) if "description" in each), ""
    )
    if not described or name in ("at", "time"):
        return _PLAIN[name]
    return f"{described[0].lower()}{described[1:]}"


def _body(
    render: Render,
    kind: str,
    queue: str,
    state: State,
    previous: str,
    result: bytes | None = None,
    *,
    stage: str = "",
    metadata: bytes | None = None,
    data: bytes | None = None,
    error: str | None = None,
    level: Any = "info",
) -> list[str]:
    job = Job(
        JOB, Queue(kind, "default", queue), state, stage, "", previous, 3, AT, 1, 5, 1, None, None, "",
        error, None, None, "", "", "", metadata, 3, AT, AT, AT, None, result=result,
    )  # fmt: skip
    event = Event(JOB, 3, AT, level, "advance", state, stage, previous, 1, "", "", error, data)
    delivery = Delivery(JOB, "default", JOB, 3, "", "", "", DeliveryState.PENDING, 0, 0, 0, None, AT, AT, "", AT, AT)
    return _json(render(Outgoing(delivery, job, event)))


def _json(body: bytes) -> list[str]:
    return ["```json", msgspec.json.format(body, indent=2).decode(), "```"]
