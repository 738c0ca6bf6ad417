"""The graph of a flow: names become numbers, and what cannot work is refused with the field that is to blame."""

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from chargehand.engine.flow import Edge, On
from chargehand.errors import InvalidField

MAX_EDGES = 50_000
SHOWN_OF_A_CYCLE = 10


class AskedStep(NamedTuple):
    name: str
    after: Sequence[tuple[str, On]]


class Graph:
    def __init__(self, steps: Sequence[AskedStep]) -> None:
        self._steps = steps
        self._numbers = _numbered(steps)
        self.parents = [self._edges(number, step) for number, step in enumerate(steps)]
        self._before = self._all_before(self._in_order())

    def comes_after(self, number: int, name: str) -> bool:
        """Return whether the step comes after that one, directly or not."""
        other = self._numbers.get(name)
        return other is not None and bool(self._before[number] >> other & 1)

    def _edges(self, number: int, step: AskedStep) -> tuple[Edge, ...]:
        edges: dict[int, Edge] = {}
        for place, (name, on) in enumerate(step.after):
            field = f"steps[{number}].after[{place}]"
            other = self._numbers.get(name)
            if other is None:
                raise InvalidField(field, f"there is no step {name!r} in this flow")
            if other in edges:
                raise InvalidField(field, f"names the step {name!r} a second time")
            edges[other] = Edge(other, on)
        return tuple(edges.values())

    def _in_order(self) -> list[int]:
        if sum(map(len, self.parents)) > MAX_EDGES:
            raise InvalidField(
                "steps", f"have more than {MAX_EDGES} entries in `after` together, the most that a flow may have"
            )
        order = TopologicalSorter({n: [edge.number for edge in edges] for n, edges in enumerate(self.parents)})
        try:
            return list(order.static_order())
        except CycleError as error:
            raise self._cycle(error.args[1]) from None

    def _cycle(self, numbers: Sequence[int]) -> InvalidField:
        """`numbers` has each step behind the one that waits for it, and the first one again at the end."""
        waiting, waited_for = numbers[1], numbers[0]
        place = [edge.number for edge in self.parents[waiting]].index(waited_for)
        names = [self._steps[number].name for number in reversed(numbers)]
        shown = names if len(names) <= SHOWN_OF_A_CYCLE else [*names[: SHOWN_OF_A_CYCLE - 1], "…", names[-1]]
        return InvalidField(f"steps[{waiting}].after[{place}]", f"closes a circle: {' after '.join(shown)}")

    def _all_before(self, order: Sequence[int]) -> list[int]:
        """Return for each step a number whose bits are the steps that it comes after."""
        before = [0] * len(order)
        for number in order:
            for edge in self.parents[number]:
                before[number] |= before[edge.number] | 1 << edge.number
        return before


def _numbered(steps: Sequence[AskedStep]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for number, step in enumerate(steps):
        if numbers.setdefault(step.name, number) != number:
            raise InvalidField(
                f"steps[{number}].name", f"{step.name!r} is the name of steps[{numbers[step.name]}] already"
            )
    return numbers
