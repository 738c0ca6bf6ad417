"""THE TABLE of how jobs of each door are read, followed, cancelled and tried again, and what their events say in common.

Every door has words and paths of its own. Here they become one shape, so that `watch` and `jobs` are the same for all of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from chargehand.commands.calling import Api, Json
from chargehand.commands.refusals import refuse

ENDS = {
    "succeed": "succeeded",
    "fail": "failed",
    "expire": "failed",
    "cancel": "cancelled",
}  # moves, and what came of them
REQUEUE = "requeue"
MAX_EVENTS = 20_000  # more than this is read with `watch --json`, not shown


class Seen(NamedTuple):
    """An event of a job, whichever door it comes from."""

    sequence: int
    at: str
    word: str  # the state as its door calls it; empty: none that callers see
    text: str
    move: str = ""
    attempt: int = 0
    outcome: str = ""  # of an event that ends the job
    percent: float | None = None


class Door(NamedTuple):
    kind: str
    job: str
    events: str
    cancel: tuple[str, str]  # method and path
    retry: tuple[str, str] | None
    seen: Callable[[Json], Seen]


def of_inference(event: Json) -> Seen:
    return Seen(
        event["sequence"], event["at"], event.get("state") or "", _text(event), event["move"], event["attempt"],
        ENDS.get(event["move"], ""),
    )  # fmt: skip


def of_engine(event: Json) -> Seen:
    stage = event.get("stage")
    word = event["state"] if not stage or event["state"] != "running" else f"running: {stage}"
    return Seen(
        event["sequence"], event["at"], word, _text(event), event["move"], event["attempt"], ENDS.get(event["move"], "")
    )


def of_tasks(event: Json) -> Seen:
    said = event.get("progress") or {}
    text = said.get("message") or "" if said else _text(event)
    return Seen(
        event["sequence"], event["at"], event["status"], text, event["move"], event.get("attempt", 0),
        ENDS.get(event["move"], ""), said.get("percent"),
    )  # fmt: skip


def of_provisioning(event: Json) -> Seen:
    ended = event.get("status") == "complete"
    return Seen(
        event["sequence"], event.get("time", ""), event.get("status", ""), event.get("message", ""),
        outcome="complete" if ended else "",
    )  # fmt: skip


def _text(event: Json) -> str:
    message, error = event.get("message") or "", event.get("error") or ""
    return message if not error or error in message else f"{message}: {error}" if message else error


_ENGINE = "/engine/jobs/{id}"
_TASK = "/v1/codeq/tasks/{id}"
_MACHINE = "/api/v1/jobs/{id}"

# fmt: off
TABLE = {
    door.kind: door
    for door in (
        #    kind         a job         its events                       cancel                                     retry
        Door("inference", "/jobs/{id}", "/jobs/{id}/events?tokens=1",    ("DELETE", "/jobs/{id}"),                  ("POST", "/jobs/{id}/retry"),     of_inference),
        Door("task",      _TASK,        f"{_TASK}/events",               ("POST", f"{_TASK}/cancel"),               ("POST", f"{_ENGINE}/requeue"),   of_tasks),
        Door("provision", _MACHINE,     f"{_MACHINE}/events",            ("POST", f"{_MACHINE}/cancel"),            ("POST", f"{_MACHINE}/retry"),    of_provisioning),
        Door("batch",     _ENGINE,      f"{_ENGINE}/events",             ("POST", "/v1/batches/batch_{id}/cancel"), None,                             of_engine),
        Door("job",       _ENGINE,      f"{_ENGINE}/events",             ("POST", f"{_ENGINE}/cancel"),             ("POST", f"{_ENGINE}/requeue"),   of_engine),
    )
}
# fmt: on


async def find(api: Api, job_id: str) -> tuple[Door, Json]:
    """Which door a job belongs to, and the job as the engine shows it."""
    job = await api.get(_ENGINE.format(id=job_id))
    return TABLE.get(job["kind"], TABLE["job"]), job


async def all_events(api: Api, job_id: str) -> list[Json]:
    """As the engine has them, which is the same for all doors."""
    events: list[Json] = []
    path = f"{_ENGINE.format(id=job_id)}/events"
    while len(events) < MAX_EVENTS:
        page = (await api.get(path, {"after": str(events[-1]["sequence"] if events else 0)}))["events"]
        if not page:
            break
        events += page
    return events


async def cancel(api: Api, job_id: str) -> tuple[Door, Json]:
    door, _ = await find(api, job_id)
    method, path = door.cancel
    await api.call(method, path.format(id=job_id), safe=False)
    return await find(api, job_id)


async def retry(api: Api, job_id: str) -> tuple[Door, Json]:
    door, _ = await find(api, job_id)
    if door.retry is None:
        refuse(f"{job_id} is a batch: its file is submitted again instead, and lines that succeeded need not be in it")
    method, path = door.retry
    await api.call(method, path.format(id=job_id), safe=False)
    return await find(api, job_id)


class Ending(NamedTuple):
    """How a job ended, and what came of it."""

    outcome: str
    result: Any
    error: str
    job: Json  # as its door shows it


async def ending(api: Api, door: Door, job_id: str, outcome: str) -> Ending:
    """`outcome` is what the last event said; a machine's job itself says it."""
    job = await api.get(door.job.format(id=job_id))
    result = job.get("result")
    if door.kind == "task":
        result = (await api.get(f"{_TASK.format(id=job_id)}/result"))["result"].get("result")
    elif door.kind == "provision":
        outcome = job.get("outcome") or "failed"
    return Ending(outcome, result, job.get("error") or "", job)
