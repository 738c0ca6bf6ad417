"""A declared task: the function it was, and what sends it to whoever works."""

import copy
import functools
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack

from msgspec import Raw
from msgspec.structs import replace

from chargehand.client.declared.batches import BatchHandler, BatchOf, types_of
from chargehand.client.declared.declaration import Declaration, Every
from chargehand.client.declared.flows import Step
from chargehand.client.declared.handler import FunctionHandler, Surroundings
from chargehand.client.declared.sent import SentTask
from chargehand.client.declared.values import Arguments, Returns, Single, hints_of
from chargehand.client.transport.calls import instant
from chargehand.client.types.flows import NewStep
from chargehand.client.types.schedules import Schedule
from chargehand.client.types.tasks import NewTask

if TYPE_CHECKING:
    from chargehand.client.declared.app import App

P = ParamSpec("P")
R = TypeVar("R")
Called = TypeVar("Called")  # what a call of the function gives: R, or a coroutine of it
T = TypeVar("T")


class SendOptions(TypedDict, total=False):
    """What may be said of one task, besides its payload."""

    priority: int
    webhook: str
    max_attempts: int
    idempotency_key: str
    unique_key: str
    limit_key: str
    run_at: datetime | str
    delay_seconds: float
    metadata: dict[str, Any]


class Sender(Generic[R]):
    """What all declared tasks can: to be sent, by themselves or by the clock."""

    __name__: str  # of the function

    def __init__(self, app: "App", function: Callable[..., Any], declared: Declaration) -> None:
        self.declared = declared
        self.function = function
        self.app = app
        self._base = NewTask(declared.command, None, priority=declared.priority, max_attempts=declared.retries.attempts)

    @property
    def command(self) -> str:
        return self.declared.command

    def options(self, **options: Unpack[SendOptions]) -> Self:
        """The same task, to be sent with these: `greet.options(delay_seconds=60).send(name="fox")`."""
        given: dict[str, Any] = dict(options)
        if "run_at" in given:
            given["run_at"] = instant(given["run_at"])
        other = copy.copy(self)
        other._base = replace(self._base, **given)
        return other

    def send_many(self, new_tasks: Iterable[NewTask]) -> list[SentTask[R]]:
        """Send what `new_task` made, a hundred in one request. ClientError if the server refuses one; the others are sent."""
        return self.app.send_many(self, list(new_tasks))

    async def asend_many(self, new_tasks: Iterable[NewTask]) -> list[SentTask[R]]:
        return await self.app.asend_many(self, list(new_tasks))

    @property
    def returns(self) -> Returns[R]:
        raise NotImplementedError

    def handler(self) -> FunctionHandler | BatchHandler:
        """What a worker runs. TypeError if a type in the function's annotations cannot travel."""
        raise NotImplementedError

    def sent(self, task_id: str) -> SentTask[R]:
        """The task of this id, to wait for its result in any process."""
        return SentTask(self.app, task_id, self.returns)

    def _new(self, payload: Raw) -> NewTask:
        return replace(self._base, payload=payload)

    def prepared(self, new: NewTask, payload: Raw) -> NewTask:
        """The task of a step as it is sent: with this payload, and after the middleware."""
        return self.app.prepared(self, replace(new, payload=payload))

    def _step(self, payload: Raw) -> Step[R]:
        if self._base.idempotency_key:
            raise ValueError("idempotency_key: a step has none; give it to the `send` of the flow")
        return Step(NewStep("", "tasks", self._new(payload)), self)

    def _by_the_clock(self, name: str, every: str | Every, new: NewTask) -> dict[str, Any]:
        for option in ("idempotency_key", "unique_key", "run_at", "delay_seconds"):
            if getattr(new, option):
                raise ValueError(f"{option}: the clock makes a task at every tick and cannot take it; leave it out")
        at = Every(every) if isinstance(every, str) else every
        said = {"name": name, "cron": at.cron, "timezone": at.timezone, "command": new.command, "payload": new.payload}
        names = ("priority", "webhook", "max_attempts", "limit_key", "metadata")
        return said | {name: getattr(new, name) for name in names}


class DeclaredTask(Sender[R], Generic[P, Called, R]):
    def __init__(self, app: "App", function: Callable[P, Called], declared: Declaration) -> None:
        super().__init__(app, function, declared)
        functools.update_wrapper(self, function)
        self._arguments = Arguments(function)
        if declared.every and (missing := self._arguments.required):
            raise TypeError(
                f"{self.command}: every: the clock gives no arguments, and {missing[0]} has no default; see `schedule`"
            )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Called:
        """Call the function here, as if it were not declared."""
        called: Called = self.function(*args, **kwargs)
        return called

    def new_task(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """The task of this call, to be sent by `send_many`."""
        return self._new(self._arguments.pack(*args, **kwargs))

    def send(self, *args: P.args, **kwargs: P.kwargs) -> SentTask[R]:
        """Have a worker call the function. PayloadError if an argument is of another type than declared."""
        return self.app.send(self, self.new_task(*args, **kwargs))

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> SentTask[R]:
        return await self.app.asend(self, self.new_task(*args, **kwargs))

    def step(self, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        """This call as a step of a flow. Arguments may be results of other steps, or have them in them."""
        return self._step(self._arguments.pack_step(*args, **kwargs))

    def schedule(self, name: str, every: str | Every, /, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        """Send this call by the clock. A schedule of this name is changed to it."""
        return self.app.client.schedules.put(**self._by_the_clock(name, every, self.new_task(*args, **kwargs)))

    async def aschedule(self, name: str, every: str | Every, /, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        new = self.new_task(*args, **kwargs)
        return await self.app.async_client.schedules.put(**self._by_the_clock(name, every, new))

    @functools.cached_property
    def returns(self) -> Returns[R]:
        return Returns(hints_of(self.function).get("return", Any))

    def handler(self) -> FunctionHandler:
        self._arguments.check_types()
        around = Surroundings(self.app.middleware, self.declared.retries)
        return FunctionHandler(self.function, self._arguments, self.returns, around)


class BatchTask(Sender[R], Generic[T, R]):
    """A task whose function gets up to `of.size` payloads at once."""

    def __init__(self, app: "App", function: Callable[[list[T]], Any], declared: Declaration, of: BatchOf) -> None:
        super().__init__(app, function, declared)
        functools.update_wrapper(self, function)
        self.of = of
        if declared.every:
            raise TypeError(f"{self.command}: every: the clock gives no payload; see `schedule`")

    def __call__(self, payloads: list[T]) -> Any:
        """Call the function here, as if it were not declared."""
        return self.function(payloads)

    def new_task(self, payload: T) -> NewTask:
        """The task of this payload, to be sent by `send_many`."""
        return self._new(self._single.pack(payload))

    def send(self, payload: T) -> SentTask[R]:
        """Have a worker call the function with this payload, among others."""
        return self.app.send(self, self.new_task(payload))

    async def asend(self, payload: T) -> SentTask[R]:
        return await self.app.asend(self, self.new_task(payload))

    def step(self, payload: T) -> Step[R]:
        """This payload as a step of a flow. It may be the result of another step, or have one in it."""
        return self._step(self._single.pack_step(payload))

    def schedule(self, name: str, every: str | Every, payload: T) -> Schedule:
        """Send this payload by the clock. A schedule of this name is changed to it."""
        return self.app.client.schedules.put(**self._by_the_clock(name, every, self.new_task(payload)))

    async def aschedule(self, name: str, every: str | Every, payload: T) -> Schedule:
        new = self.new_task(payload)
        return await self.app.async_client.schedules.put(**self._by_the_clock(name, every, new))

    @functools.cached_property
    def returns(self) -> Returns[R]:
        return Returns(types_of(self.function)[1])

    @functools.cached_property
    def _single(self) -> Single:
        return Single(types_of(self.function)[0])

    def handler(self) -> BatchHandler:
        around = Surroundings(self.app.middleware, self.declared.retries)
        return BatchHandler(self.function, self._single, self.returns, around, self.of)
