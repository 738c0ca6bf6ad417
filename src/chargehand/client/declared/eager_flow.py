"""Run a flow where it is sent, one step after the other: for tests."""

import itertools
from collections.abc import Generator, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from chargehand.client.declared.eager import Ended, Handler, arun_eagerly, run_eagerly
from chargehand.client.declared.graph import EndedFlow, Node, SentSteps
from chargehand.client.declared.references import TOKEN_IN_TEXT
from chargehand.client.declared.values import unwrapped
from chargehand.client.types.engine import Job
from chargehand.client.types.flows import Flow
from chargehand.client.types.tasks import NewTask

_numbers = itertools.count(1)
Running = Generator[tuple[Handler, NewTask], Ended, EndedFlow]


class NotInResult(Exception):
    """A result has not what a step wants to take over."""


def run_flow_eagerly(graph: SentSteps) -> EndedFlow:
    running = _run(graph)
    try:
        handler, new = next(running)
        while True:
            handler, new = running.send(run_eagerly(handler, new))
    except StopIteration as ended:
        found: EndedFlow = ended.value
        return found


async def arun_flow_eagerly(graph: SentSteps) -> EndedFlow:
    running = _run(graph)
    try:
        handler, new = next(running)
        while True:
            handler, new = running.send(await arun_eagerly(handler, new))
    except StopIteration as ended:
        found: EndedFlow = ended.value
        return found


def _run(graph: SentSteps) -> Running:
    """Yield each step that starts, and be sent how it ended."""
    ended: dict[Node, Job] = {}
    for node in graph.nodes:
        new = node.steps[0].new
        if node.task is None:
            raise RuntimeError(f"eagerly only declared tasks run, and {node.name} is a job of {new.door}")
        unmet = [other for other, on in node.after.items() if on not in ("finished", ended[other].state)]
        if unmet and (node.need == "all" or len(unmet) == len(node.after)):
            was = ended[unmet[-1]].state.replace("skipped", "was skipped")
            ended[node] = Job(id="", state="skipped", error=f"skipped: step {unmet[-1].name!r} {was}")
            continue
        try:
            payload = _filled(
                msgspec.json.decode(node.body), {token: (of, ended[of]) for token, of in graph.referred(node).items()}
            )
        except NotInResult as missing:
            ended[node] = Job(id="", state="failed", error=str(missing))
            continue
        task, result = yield node.task.handler(), node.task.prepared(new.body, Raw(msgspec.json.encode(payload)))
        state = "succeeded" if result.status == "COMPLETED" else "failed"
        ended[node] = Job(id=task.id, state=state, result=result.result, error=result.error or None)
    wrong = [node for node, job in ended.items() if job.state == "failed" and not _taken_care_of(node, ended)]
    error = f"step {wrong[0].name!r} failed: {ended[wrong[0]].error}" if wrong else None
    flow = Flow(id=f"eager-flow-{next(_numbers)}", state="failed" if wrong else "succeeded", error=error)
    return flow, {node.name: job for node, job in ended.items()}


def _taken_care_of(failed: Node, ended: Mapping[Node, Job]) -> bool:
    """Whether a step that was to run if this one fails did run."""
    ran = [node for node, job in ended.items() if job.state != "skipped"]
    return any(node.after.get(failed, "succeeded") != "succeeded" for node in ran)


def _filled(value: Any, results: Mapping[str, tuple[Node, Job]]) -> Any:
    """Return decoded JSON with what it takes over of other steps."""
    if isinstance(value, dict):
        return {key: _filled(each, results) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, results) for each in value]
    if not isinstance(value, str):
        return value
    if (alone := TOKEN_IN_TEXT.fullmatch(value)) is not None:
        return _value(*results[alone[1]], alone[2], alone[3])
    return TOKEN_IN_TEXT.sub(lambda token: _as_text(_value(*results[token[1]], token[2], token[3])), value)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _value(node: Node, job: Job, flag: str, path: str) -> Any:
    value = job.result if job.state == "succeeded" else {"state": job.state, "error": job.error}
    if flag == "?":
        return unwrapped(value)
    for key in path.split(".")[1:]:
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (LookupError, TypeError, ValueError):
            raise NotInResult(f"the result of step {node.name!r} has no {path[1:]}") from None
    return value
