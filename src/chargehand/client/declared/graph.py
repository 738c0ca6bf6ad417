"""What is sent of a flow: each of its steps once, under a name, with what it waits for."""

import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from chargehand.client.declared.flows import DeclaredFlow, Need, Step, all_steps, each_end
from chargehand.client.declared.references import TOKEN, as_text, places_of
from chargehand.client.declared.values import RESULTS, Returns
from chargehand.client.types.engine import Job
from chargehand.client.types.flows import After, Flow, NewStep, On
from chargehand.client.types.tasks import NewTask

LONGEST = 56  # of a name without its number

EndedFlow = tuple[Flow, Mapping[str, Job]]  # the jobs of its last steps, by name


class LastStep(NamedTuple):
    """A step whose result is one of the flow's."""

    name: str
    returns: Returns[Any] | None  # None: of another door


def end_names(ends: Any) -> set[str]:
    found: list[LastStep] = []
    each_end(found.append, ends)
    return {end.name for end in found}


class Node:
    """A step, with all that was said of it and of those that came from it."""

    def __init__(self, steps: list[Step[Any]]) -> None:
        self.steps = steps
        self.task = steps[0].task
        self.name = next((step.new.name for step in steps if step.new.name), "")
        self.need: Need = "any" if any(step.need == "any" for step in steps) else "all"
        self.after: dict[Node, On] = {}

    @property
    def body(self) -> bytes:
        """With tokens. Of a task, its payload."""
        body = self.steps[0].new.body
        return bytes(body.payload if isinstance(body, NewTask) else body)


class SentSteps:
    """Its nodes are in an order in which they may run."""

    def __init__(self, flow: DeclaredFlow[Any]) -> None:
        found: dict[int, list[Step[Any]]] = {}
        for step in all_steps(flow):
            found.setdefault(step.origin, []).append(step)
        self._nodes = {origin: Node(steps) for origin, steps in found.items()}
        for node in self._nodes.values():
            self._connect(node)
        self.nodes = self._in_order()
        self._name()

    def of(self, step: Step[Any]) -> Node:
        return self._nodes[step.origin]

    def referred(self, node: Node) -> dict[str, Node]:
        """By token, the nodes that the body of this one refers to."""
        return {token: self.of(step) for token, (step, _) in node.steps[0].refers.items()}

    def ends(self, flow: DeclaredFlow[Any]) -> Any:
        return each_end(lambda step: LastStep(self.of(step).name, step.task and step.task.returns), flow.ends)

    def new_steps(self) -> list[NewStep]:
        return [self._new_step(node) for node in self.nodes]

    def _connect(self, node: Node) -> None:
        """A step comes after those whose results it takes, if nothing else was said of them or of `need`."""
        node.after = {self.of(edge.step): edge.on for step in node.steps for edge in step.edges}
        if node.need == "all":
            for step, failed in sorted(node.steps[0].refers.values(), key=itemgetter(1)):
                node.after.setdefault(self.of(step), "failed" if failed else "succeeded")

    def _in_order(self) -> list[Node]:
        try:
            return list(TopologicalSorter({node: list(node.after) for node in self._nodes.values()}).static_order())
        except CycleError as error:
            circle = " after ".join(repr(node.steps[0]) for node in error.args[1])
            raise ValueError(f"steps wait for each other in a circle: {circle}") from None

    def _name(self) -> None:
        """Steps have the names that they were given, others that of their task; the second of a name has the number 2."""
        taken = {node.name for node in self.nodes if node.name}
        numbers: dict[str, int] = {}
        for node in self.nodes:
            if not node.name:
                base = re.sub(r"[^A-Za-z0-9_-]", "-", node.steps[0].new.body.command)[:LONGEST]
                while not node.name or node.name in taken:
                    number = numbers[base] = numbers.get(base, 0) + 1
                    node.name = base if number == 1 else f"{base}-{number}"
                taken.add(node.name)

    def _new_step(self, node: Node) -> NewStep:
        nodes = self.referred(node)
        tokens = node.body
        body = TOKEN.sub(lambda token: b"{{%b%b}}" % (nodes[token[1].decode()].name.encode(), token[3]), tokens)
        new = node.steps[0].new
        after = [*new.after, *(After(other.name, on) for other, on in node.after.items())]
        if node.task is None:
            return replace(new, name=node.name, body=Raw(body), after=after, need=max(new.need, node.need))
        task = node.task.prepared(new.body, Raw(body))
        if places := list(places_of(msgspec.json.decode(tokens))):
            task = replace(task, metadata={**task.metadata, RESULTS: places})
        if task.metadata:
            task = replace(task, metadata=Raw(as_text(msgspec.json.encode(task.metadata))))
        return NewStep(node.name, "tasks", task, after, node.need)
