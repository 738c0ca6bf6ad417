"""Helpers for tests of flows: a flow from a graph in Python, and what became of its steps."""

from collections.abc import Mapping, Sequence
from typing import Any

from chargehand.engine.flow import KIND, Edge, NewFlow, NewStep, On
from chargehand.engine.ids import UlidMaker
from chargehand.engine.moves import Change, Moved, Submitted
from chargehand.engine.reads import StepFilter
from chargehand.engine.store import Store
from tests.store.given import a_job, a_queue, claimed_ids, new_id, seen, take_one

Graph = Mapping[str, Sequence[str]]  # step -> those it comes after: "a", or "a:failed"


def a_flow(
    graph: Graph,
    need_any: Sequence[str] = (),
    *,
    fields: Mapping[str, Any] | None = None,
    make_id: UlidMaker = new_id,
    **of_flow: Any,
) -> NewFlow:
    """A flow whose steps have queues of their own, named like them; `fields` are those of the steps' jobs."""
    job = a_job(id=make_id(), queue=a_queue("flow", kind=KIND), **of_flow)
    numbers = {name: number for number, name in enumerate(graph)}
    steps = []
    for name, after in graph.items():
        parents = tuple(_edge(numbers, each) for each in after)
        need = min(1, len(parents)) if name in need_any else len(parents)
        of_step: dict[str, Any] = {"id": make_id(), "queue": f"{job.id}/{name}", "flow": job.id, "step": numbers[name]}
        step = a_job(**of_step, waits=bool(parents), **(fields or {}))
        steps.append(NewStep(name, step, parents, need))
    return NewFlow(job, tuple(steps))


def _edge(numbers: Mapping[str, int], after: str) -> Edge:
    name, _, on = after.partition(":")
    return Edge(numbers[name], On(on or "succeeded"))


async def submit_flow(store: Store, graph: Graph, need_any: Sequence[str] = (), **more: Any) -> NewFlow:
    flow = a_flow(graph, need_any, **more)
    answer = await store.write(flow)
    assert isinstance(answer, Submitted)
    assert answer.created
    return flow


def id_of(flow: NewFlow, name: str) -> str:
    return next(step.job.id for step in flow.steps if step.name == name)


async def end(store: Store, flow: NewFlow, name: str, move: str = "succeed", **fields: Any) -> Moved:
    """Claim the step if it is ready, and end it."""
    job = await take_one(store, a_queue(f"{flow.job.id}/{name}"))
    if move == "succeed":
        fields.setdefault("result", b'"done"')
    guard = seen(job.id)
    moved = await store.write(Change(guard, move, error=None if move == "succeed" else "broken", **fields))
    assert moved is not None
    return moved


async def states(store: Store, flow: NewFlow) -> dict[str, str]:
    """What callers see of each step: ready, waiting, running, succeeded, failed, cancelled, skipped."""
    found = {}
    for step in (await store.list_steps(StepFilter(flow.job.id))).steps:
        word = str(step.job.state)
        if step.outcome == "skipped":
            word = "skipped"
        elif word == "queued":
            word = "waiting" if step.job.waiting_for == "steps" else "ready"
        found[step.name] = word
    return found


async def ready(store: Store, flow: NewFlow) -> list[str]:
    """The names of the steps that can be claimed now. They are claimed by that."""
    found = []
    for step in flow.steps:
        found += [step.name] * len(await claimed_ids(store, step.job.queue))
    return found
