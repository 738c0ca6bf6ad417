"""Flows of declared tasks: steps that wait for each other, and take over each other's results.

    fetched = fetch.step("https://…/fox.png")
    small = resize.step(fetched.result, width=320)  # it comes after `fetched`, whose result it takes
    flow = chain(small, pack, lambda parcel: tell.step("ada", f"{parcel.grams} g"))
    print(flow.send().result(timeout=60))

Flows and steps do not change: `after`, `also` and `named` return another one. Steps that come from one another in this way are one step
of the flow, and what was said of any of them holds.
"""

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec
from msgspec.inspect import AnyType, StrType
from msgspec.structs import replace

from chargehand.client.declared.references import (
    VALUE,
    Place,
    Referable,
    Reference,
    ResultShape,
    new_token,
    places_of,
    referred,
)
from chargehand.client.declared.values import pack_body
from chargehand.client.types.flows import FlowOptions, NewStep, On
from chargehand.client.types.tasks import NewTask

if TYPE_CHECKING:
    from chargehand.client.declared.app import App
    from chargehand.client.declared.sent import SentFlow
    from chargehand.client.declared.task import Sender

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
Given = TypeVar("Given", contravariant=True)
R = TypeVar("R", covariant=True)
Need = Literal["all", "any"]
_numbers = itertools.count()


class DeclaredFlow(Referable, Generic[R]):
    """Steps that wait for each other."""

    def __init__(self, ends: Any, beside: "Sequence[DeclaredFlow[Any]]" = ()) -> None:
        self._ends = ends
        self.beside = tuple(beside)

    @property
    def ends(self) -> Any:
        """The steps whose results are its result: a step, or a list of what a step or such a list is."""
        return self._ends

    @property
    def result(self) -> R:
        """It stands for the result in the arguments of other steps. Type checkers take it for the result itself."""
        return cast(R, each_end(Step.reference, self.ends))

    def after(self, *flows: "DeclaredFlow[Any]", on: On = "succeeded", need: Need = "all") -> "DeclaredFlow[R]":
        """The same, to begin when those have ended so: all of them, or any."""
        before = {step.origin for flow in flows for step in all_steps(flow)}
        mine = [step for step in all_steps(self) if step.origin not in before]
        waiting = {step.origin for step in mine if step.edges or step.refers}
        return self.also(*(step.after(*flows, on=on, need=need) for step in mine if step.origin not in waiting))

    def also(self, *flows: "DeclaredFlow[Any]") -> "DeclaredFlow[R]":
        """The same with others beside it that add nothing to its result, such as what to do when a step fails."""
        return DeclaredFlow(self.ends, (*self.beside, self, *flows))

    def send(self, **options: Unpack[FlowOptions]) -> "SentFlow[R]":
        """Send all steps; none, if the server refuses one."""
        return self._app.send_flow(self, **options)

    async def asend(self, **options: Unpack[FlowOptions]) -> "SentFlow[R]":
        return await self._app.asend_flow(self, **options)

    def sent(self, flow_id: str) -> "SentFlow[R]":
        """A flow like this one that was sent under this id, to wait for its result in any process."""
        return self._app.sent_flow(self, flow_id)

    @property
    def _app(self) -> "App":
        for step in all_steps(self):
            if step.task is not None:
                return step.task.app
        raise ValueError("no step of this flow is a declared task: send it with `send_flow` of an app")


class Wait(NamedTuple):
    step: "Step[Any]"
    on: On


class Step(DeclaredFlow[R]):
    """A task that is created with its flow; or, made by `Step.of`, a job of any door."""

    def __init__(self, new: NewStep, task: "Sender[Any] | None" = None) -> None:
        super().__init__(None)
        self.new = new  # where its body refers to other steps, it has their tokens
        self.task = task
        self.origin = next(_numbers)  # the same for all that come from this one
        self.token = new_token(self)
        self.refers = referred(bytes(new.body.payload if isinstance(new.body, NewTask) else new.body))
        self.edges: tuple[Wait, ...] = ()
        self.need: Need = "all"

    @classmethod
    def of(cls, new: NewStep) -> "Step[Any]":
        """A job of any door. Its body may refer to results of other steps, also within a text."""
        body = pack_body(new.body)
        if any(places_of(msgspec.json.decode(body))):
            raise ValueError(f"{new.name}: its body has a result that may be an object or not: declare which")
        return Step(replace(new, body=body))

    @property
    def ends(self) -> "Step[R]":
        return self

    @property
    def state(self) -> str:
        """How the step ended, if it failed: `failed` or `cancelled`. Who takes it comes after that failure."""
        return cast(str, Reference(Place(self, StrType(), ("state",), "!")))

    @property
    def error(self) -> str:
        """Why the step failed, if it did. Who takes it comes after that failure."""
        return cast(str, Reference(Place(self, StrType(), ("error",), "!")))

    def reference(self) -> Reference:
        if self.task is None:
            return Reference(Place(self, AnyType()))
        kind, shape = self.task.returns.type, self.task.returns.shape
        return Reference(
            Place(self, kind, (VALUE,) if shape is ResultShape.VALUE else (), "?" * (shape is ResultShape.EITHER))
        )

    def after(self, *flows: DeclaredFlow[Any], on: On = "succeeded", need: Need = "all") -> "Step[R]":
        """The same, to start when those have ended so: all of them, or any."""
        if self.edges and need != self.need:
            raise ValueError(f"{self!r} needs {self.need} of what it comes after, and cannot need {need} as well")
        edges = [Wait(step, on) for flow in flows for step in steps_at(flow.ends)]
        return self._but(edges=(*self.edges, *edges), need=need, beside=(*self.beside, *flows))

    def named(self, name: str) -> "Step[R]":
        """The same under a name of your choice: letters, digits, - and _."""
        return self._but(new=replace(self.new, name=name))

    def _but(self, **changed: Any) -> "Step[R]":
        other = copy.copy(self)
        vars(other).update(changed, token=new_token(other))
        return other

    def __str__(self) -> str:
        """In a longer text its result."""
        return str(self.result)

    def __repr__(self) -> str:
        return f"<Step {self.new.name or self.new.body.command}>"


def each_end(call: Callable[[Any], Any], ends: Any) -> Any:
    """Return what the call makes of each end, in the lists in which they are."""
    return [each_end(call, each) for each in ends] if isinstance(ends, list) else call(ends)


def steps_at(ends: Any) -> list[Step[Any]]:
    found: list[Step[Any]] = []
    each_end(found.append, ends)
    return found


def all_steps(flow: DeclaredFlow[Any]) -> list[Step[Any]]:
    """Return the steps of a flow and all that they come after, in the order in which they were made. Some may be the same step."""
    found: dict[DeclaredFlow[Any], None] = {flow: None}
    left = [flow]
    for each in left:
        near: list[DeclaredFlow[Any]] = [*steps_at(each.ends), *each.beside]
        if isinstance(each, Step):
            near += [edge.step for edge in each.edges]
            near += [step for step, _ in each.refers.values()]
        left += [other for other in dict.fromkeys(near) if other not in found]
        found |= dict.fromkeys(near)
    return sorted((each for each in found if isinstance(each, Step)), key=attrgetter("origin"))


# what makes flows of flows ----------------------------------------------------------------------------------------------


class Takes(Protocol[Given, R]):
    """A declared task that can be called with this alone."""

    def step(self, first: Given, /) -> Step[R]: ...


Next: TypeAlias = Takes[A, B] | Callable[[A], DeclaredFlow[B]] | DeclaredFlow[B]


@overload
def chain(first: DeclaredFlow[A], second: Next[A, B], /) -> DeclaredFlow[B]: ...
@overload
def chain(first: DeclaredFlow[A], second: Next[A, B], third: Next[B, C], /) -> DeclaredFlow[C]: ...
@overload
def chain(first: DeclaredFlow[A], second: Next[A, B], third: Next[B, C], fourth: Next[C, D], /) -> DeclaredFlow[D]: ...
@overload
def chain(
    first: DeclaredFlow[A], second: Next[A, B], third: Next[B, C], fourth: Next[C, D], fifth: Next[D, E], /
) -> DeclaredFlow[E]: ...
@overload
def chain(
    first: DeclaredFlow[A],
    second: Next[A, B],
    third: Next[B, C],
    fourth: Next[C, D],
    fifth: Next[D, E],
    sixth: Next[E, Any],
    /,
    *more: Next[Any, Any],
) -> DeclaredFlow[Any]: ...


def chain(first: DeclaredFlow[Any], *more: Next[Any, Any]) -> DeclaredFlow[Any]:
    """One after the other. What follows is a task, which gets the result before it as its first argument; a function, which gets
    it and returns a flow; or a flow, which gets nothing."""
    for each in more:
        first = _made(each, first.result).after(first)
    return DeclaredFlow(first.ends, [first])


def group(*flows: DeclaredFlow[A]) -> DeclaredFlow[list[A]]:
    """Side by side. Its result is the list of theirs."""
    if not flows:
        raise ValueError("a group needs a flow or more")
    return DeclaredFlow([flow.ends for flow in flows], flows)


def join(flows: Iterable[DeclaredFlow[A]], last: Next[list[A], B]) -> DeclaredFlow[B]:
    """Side by side, and then one that gets the list of their results."""
    before = list(flows)
    return chain(group(*before), last) if before else _made(last, [])


def _made(following: Next[A, B], result: A) -> DeclaredFlow[B]:
    if isinstance(following, DeclaredFlow):
        return following
    takes = cast(Callable[[A], DeclaredFlow[B]], getattr(following, "step", following))
    return takes(result)
